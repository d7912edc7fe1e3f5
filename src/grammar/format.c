/* format.c - the formats of strings, as patterns. Each is the format, or its common part: every
 * text that matches is valid, rare valid ones are left out (years before 1000, dates of the 29th of
 * February in years that are full hundreds, e-mail addresses in quotes). */
#include <string.h>

#include "grammar/schema.h"

/* clang-format off */
#define DATE "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
             "02-(?:0[1-9]|1\\d|2[0-8]))|[1-9]\\d(?:0[48]|[2468][048]|[13579][26])-02-29)"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,6}"
#define MAIL "[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" LABEL "(?:\\." LABEL "){0,3}\\.[A-Za-z]{2,16}"
#define PATH "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define URI  "[a-z][a-z0-9+.-]{1,15}://" HOST "(?::[1-9]\\d{0,3})?(?:/" PATH "*)*(?:\\?(?:" PATH "|[/?])*)?(?:#(?:" PATH "|[/?])*)?"
#define BYTE "(?:\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])"
#define GROUP "[0-9A-Fa-f]{1,4}"
#define TO6(n) "(?::" GROUP "){1," #n "}"
#define IPV6 "(?:(?:" GROUP ":){7}" GROUP "|::|::" GROUP "(?::" GROUP "){0,5}|(?:" GROUP ":){1,7}:|" \
             "(?:" GROUP ":){6}:" GROUP "|(?:" GROUP ":){5}" TO6(2) "|(?:" GROUP ":){4}" TO6(3) "|" \
             "(?:" GROUP ":){3}" TO6(4) "|(?:" GROUP ":){2}" TO6(5) "|" GROUP ":" TO6(6) ")"
#define N "\\d{1,6}"
#define HMS "(?:" N "H(?:" N "M)?(?:" N "S)?|" N "M(?:" N "S)?|" N "S)"
#define YMD "(?:" N "Y(?:" N "M)?(?:" N "D)?|" N "M(?:" N "D)?|" N "D)"
#define B64 "[A-Za-z0-9+/]"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:" N "W|" YMD "(?:T" HMS ")?|T" HMS ")"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", MAIL},
    {"hostname", HOST},
    {"ipv4", BYTE "\\." BYTE "\\." BYTE "\\." BYTE},
    {"ipv6", IPV6},
    {"uri", URI},
    {"url", URI},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"byte", "(?:" B64 "{4})*(?:" B64 "{2}==|" B64 "{3}=)?"},
    {"password", "[\\u0020-\\uD7FF]*"},
};
/* clang-format on */

bool format_find(struct schema *s, const char *name, struct sized_expr *out) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char anchored[2048];
        if (strcmp(formats[i].name, name) != 0)
            continue;
        int n = snprintf(anchored, sizeof anchored, "^(?:%s)$", formats[i].pattern);
        CHECK(n > 0 && (size_t)n < sizeof anchored);
        return pattern_read(s, anchored, out);
    }
    schema_fail(s, SLUICE_ERR_UNSUPPORTED, "format %s is not supported", name);
    return false;
}
