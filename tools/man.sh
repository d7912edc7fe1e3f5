#!/usr/bin/env bash
# man.sh SLUICE - the manual page sluice(1) on standard output, made of what the program's help says.
set -eu -o pipefail
sluice=$1
# Text as it is: backslashes, and dots and quotes at the beginning of a line, mean something to man.
text() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"; }
verbatim() { printf '.nf\n'; text; printf '.fi\n'; }
overview=$("$sluice" help)
verbs=$(printf '%s\n' "$overview" | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p')
printf '.TH SLUICE 1 "" "%s"\n' "$("$sluice" --version | sed -n 1p)"
printf '.SH NAME\nsluice \\- run large language models: chat, server, tools for GGUF files\n'
printf '.SH SYNOPSIS\n'
printf '%s\n' "$overview" | sed -n 's/^usage: //p' | verbatim
printf '.SH VERBS\n'
printf '%s\n' "$overview" | sed 1,2d | verbatim
for verb in $verbs; do
    printf '.SH "SLUICE %s"\n' "${verb^^}"
    "$sluice" help "$verb" | verbatim
done
printf '.SH ENVIRONMENT\n'
"$sluice" help environment | verbatim
