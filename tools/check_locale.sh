#!/usr/bin/env bash
# check_locale.sh - what depends on the program's locale is not used in the library.
#
# base/locale.h has what to use instead. Not looked at: the program (cmd, serve), which leaves
# LC_NUMERIC and LC_TIME alone, and kernels of GPUs.
set -u
cd "$(dirname "$0")/.."
library=$(find src -name '*.[ch]' -not -path 'src/cmd/*' -not -path 'src/serve/*' -not -path src/base/locale.c)
bad=0
# NAME INSTEAD: everywhere, then calls that format a floating-point number.
while read -r name instead; do
    found=$(grep -nE "(^|[^a-z_0-9])($name) *\(" $library) || continue
    sed "s|\$| (expected $instead)|" <<<"$found"
    bad=1
done <<'END'
strto(d|f|ld)|atof locale_number
v(sn|s|f|as|d)?printf locale_vprint
strftime locale_time
strerror(_[rl])? locale_error
str(n?casecmp|casestr|coll|xfrm)|to(lower|upper)|is(alpha|alnum|upper|lower|digit|xdigit|space|punct|print|graph|cntrl) str_is_caseless,_or_ASCII's_letters
towlower|towupper|isw[a-z]*|mbr?to[a-z]*|wc[a-z]*to[a-z]* utf8_decode
END
perl -0777 -ne '
    while (/\b(sn?printf|fprintf|asprintf|dprintf)\s*\(((?:[^;"]|"(?:[^"\\]|\\.)*")*);/g) {
        my ($call, $line) = ($2, 1 + (substr($`, 0) =~ tr/\n//));
        $call = join "", $call =~ /"((?:[^"\\]|\\.)*)"/g;
        $call =~ s/%%//g;
        next unless $call =~ /%[-+ #0-9.*]*L?[aAeEfFgG]/;
        print "$ARGV:$line: a floating-point number (expected locale_print)\n";
        $bad = 1;
    }
    END { exit($bad ? 1 : 0) }' $library || bad=1
exit $bad
