/* guard.c - who may use the server, and which requests it accepts.
 *
 * A web page from elsewhere must not use a server on this machine. Its requests carry an Origin,
 * which is refused unless allowed; and if its own name is made to point here (DNS rebinding), the
 * Host that the browser sends is not one of ours. */
#include "serve/http/guard.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <strings.h>

#include "serve/http/internal.h"

static const char *header(const struct exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* ---- names -------------------------------------------------------------------------------- */

/* The name without its port, if any. */
static struct str host_name(const char *host) {
    const char *close = host[0] == '[' ? strchr(host, ']') : NULL;
    size_t n = close ? (size_t)(close - host) + 1 : strcspn(host, ":");
    bool has_port = host[n] == ':' && !host[n + 1 + strspn(host + n + 1, "0123456789")];
    return has_port ? (struct str){host, n} : str_of(host);
}

static bool is_name(struct str name, const char *z) {
    return name.len == strlen(z) && strncasecmp(name.at, z, name.len) == 0;
}

bool guard_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)address;
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* 127.0.0.1, and also what clients send as they were given it: 127.1. */
static bool is_address_127(struct str name) {
    bool is = str_starts(name, "127.");
    for (size_t i = 0; is && i < name.len; i++)
        is = (name.at[i] >= '0' && name.at[i] <= '9') || name.at[i] == '.';
    return is;
}

/* An IPv6 address of this machine, in any spelling; in brackets or, as some clients send it,
 * without. */
static bool is_address_six(struct str name) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6};
    char text[INET6_ADDRSTRLEN];
    bool has_brackets = name.len >= 2 && name.at[0] == '[' && name.at[name.len - 1] == ']';
    size_t n = name.len - 2 * has_brackets;
    if (n >= sizeof text)
        return false;
    memcpy(text, name.at + has_brackets, n);
    text[n] = 0;
    return inet_pton(AF_INET6, text, &address.sin6_addr) == 1 &&
           guard_is_loopback((const struct sockaddr *)&address);
}

/* Whether "name:port" is a name of the local machine. */
static bool is_local_name(const char *host) {
    struct str name = host_name(host);
    static const char suffix[] = ".localhost";
    size_t n = sizeof suffix - 1;
    return is_name(name, "localhost") || is_address_six(name) || is_address_127(name) ||
           (name.len > n && strncasecmp(name.at + name.len - n, suffix, n) == 0);
}

static bool is_allowed_host(const struct server *s, const char *host) {
    struct str name = host_name(host);
    if (!s->is_loopback || is_local_name(host))
        return true;
    if (s->options.host && is_name(name, s->options.host))
        return true;
    for (int i = 0; i < s->options.n_allowed; i++)
        if (strcmp(s->options.allowed[i], "*") == 0 || is_name(name, s->options.allowed[i]))
            return true;
    return false;
}

/* Whether an origin is that of the host it was sent to. */
static bool is_same_origin(const char *origin, const char *host) {
    const char *at = strstr(origin, "://");
    return at &&
           (strncasecmp(origin, "http://", 7) == 0 || strncasecmp(origin, "https://", 8) == 0) &&
           strcasecmp(at + 3, host) == 0;
}

/* A page of the address that the browser asked, which a proxy hides from us: with nginx's usual
 * settings Host is the server's own. Scripts cannot set a header that begins with Sec-, and
 * browsers send this one to https and to local addresses alone, not to a name that was made to
 * point here. */
static bool is_from_own_page(const struct exchange *x) {
    const char *site = header(x, "Sec-Fetch-Site");
    return site && strcmp(site, "same-origin") == 0;
}

static bool is_allowed_origin(const struct server *s, const char *origin) {
    for (int i = 0; i < s->options.n_cors; i++)
        if (strcmp(s->options.cors[i], "*") == 0 || strcasecmp(s->options.cors[i], origin) == 0)
            return true;
    return false;
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Whether the texts are equal, in constant time. */
static bool is_same_text(const char *given, const char *expected) {
    size_t n = strlen(expected), n_given = strlen(given);
    volatile unsigned char differs = n != n_given;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)expected[i] ^ (unsigned char)given[n_given ? i % n_given : 0];
    return !differs;
}

static bool has_key(const struct exchange *x, const char *key) {
    const char *bearer = header(x, "Authorization"), *plain = header(x, "x-api-key");
    bool is_good = plain && is_same_text(plain, key);
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        is_good |= is_same_text(bearer + 7, key);
    return is_good;
}

/* ---- where a request ends ---------------------------------------------------------------------
 *
 * A proxy in front must read the same end of a request as we do, or what it takes for a part of one
 * client's body is another's request here. */

struct framing {
    unsigned n_lengths, n_encodings, n_hosts, n_origins;
    bool is_malformed; /* a header's name is */
    bool has_control;  /* a value has a control character, which some parsers take for a line end */
    const char *length, *encoding;
};

/* Only letters, digits and -_., as in all names in use. libmicrohttpd (0.9.75) appends a
 * continuation line to the name of the header before: "Content-Length:", " 16" has the name
 * Content-Length16. */
static bool is_sound_name(const char *name) {
    static const char *const whole[] = {"Content-Length", "Transfer-Encoding"};
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || (name[n] && strchr("-_.", name[n])))
        n++;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (n > strlen(whole[i]) && strncasecmp(name, whole[i], strlen(whole[i])) == 0)
            return false;
    return n > 0 && name[n] == 0;
}

static bool is_sound_value(const char *value) {
    while (value && *value && (!iscntrl((unsigned char)*value) || *value == '\t'))
        value++;
    return !value || !*value;
}

static enum MHD_Result note_header(void *user, enum MHD_ValueKind kind, const char *name,
                                   const char *value) {
    struct framing *f = user;
    (void)kind;
    f->is_malformed |= !is_sound_name(name);
    f->has_control |= !is_sound_value(value);
    if (strcasecmp(name, "Content-Length") == 0) {
        f->n_lengths++;
        f->length = value ? value : "";
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->n_encodings++;
        f->encoding = value ? value : "";
    } else if (strcasecmp(name, "Host") == 0) {
        f->n_hosts++;
    } else if (strcasecmp(name, "Origin") == 0) {
        f->n_origins++;
    }
    return MHD_YES;
}

/* What is wrong with it; NULL: nothing. */
static const char *framing_fault(const struct exchange *x) {
    struct framing f = {.length = "0", .encoding = "chunked"};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, note_header, &f);
    const struct {
        bool is_wrong;
        const char *what;
    } faults[] = {
        {f.is_malformed, "a header's name is malformed"},
        {f.has_control, "a header has a control character"},
        {f.n_lengths > 1, "Content-Length appears twice, expected once"},
        {f.n_encodings > 1, "Transfer-Encoding appears twice, expected once"},
        {f.n_hosts > 1, "Host appears twice, expected once"},
        {f.n_origins > 1, "Origin appears twice, expected once"},
        {f.n_lengths && f.n_encodings,
         "Content-Length and Transfer-Encoding are both given, expected one"},
        {strcasecmp(f.encoding, "chunked") != 0, "Transfer-Encoding is not chunked"},
        {!*f.length || f.length[strspn(f.length, "0123456789")], "Content-Length is not a number"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i].is_wrong)
            return faults[i].what;
    return NULL;
}

/* ---- requests ----------------------------------------------------------------------------- */

bool guard_admits(struct exchange *x) {
    const struct server *s = x->server;
    const char *host = x->authority ? x->authority : header(x, "Host");
    const char *origin = header(x, "Origin"), *fault = framing_fault(x);
    x->ends_connection = fault != NULL;
    if (fault)
        exchange_refuse(x, 400, NULL, "%s", fault);
    else if (host && !is_allowed_host(s, host))
        exchange_refuse(x, 403, NULL,
                        "the host name '%.80s' is not this server's; --allow-host adds it", host);
    else if (origin && !is_allowed_origin(s, origin) && !(host && is_same_origin(origin, host)) &&
             !is_from_own_page(x))
        exchange_refuse(x, 403, NULL, "pages of '%.80s' may not use this server; --cors allows it",
                        origin);
    else if (s->options.api_key && !(x->route && x->route->is_open) &&
             strcmp(x->method, "OPTIONS") != 0 && !has_key(x, s->options.api_key))
        exchange_refuse(x, 401, NULL, "the API key is %s",
                        header(x, "Authorization") || header(x, "x-api-key") ? "wrong" : "missing");
    else
        return true;
    return false;
}

void guard_add_headers(const struct exchange *x, struct MHD_Response *response) {
    const char *origin = x->connection ? header(x, "Origin") : NULL;
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control",
                            x->has_page_policy ? "no-cache" : "no-store");
    if (x->has_page_policy) {
        MHD_add_response_header(
            response, "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' "
            "data:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'");
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    if (!origin || !is_allowed_origin(x->server, origin))
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(response, "Vary", "Origin");
    MHD_add_response_header(response, "Access-Control-Expose-Headers",
                            "X-Request-Id, request-id, Retry-After");
    if (strcmp(x->method, "OPTIONS") == 0) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods",
                                "GET, POST, DELETE, OPTIONS");
        const char *asked = header(x, "Access-Control-Request-Headers");
        MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                asked ? asked : "Authorization, Content-Type");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
}
