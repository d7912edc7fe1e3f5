/* common.c - what several verbs share. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "cmd/cmd.h"
#include "file/folder.h"
#include "file/gguf.h"
#include "model/mixture.h"
#include "quant/quant.h"

#define SHIPPED_MODEL "stories-27m-q4_k_m.gguf"

int fail(const struct err *err) {
    return complain(EXIT_WORLD, "%s", err->text);
}

int hint_if_missing(struct err *err, const char *path, const char *hint) {
    size_t n = strlen(err->text);
    if (access(path, F_OK) != 0 && errno == ENOENT)
        snprintf(err->text + n, sizeof err->text - n, "; %s", hint);
    return err->code;
}

/* The first file of a folder by name that begins and ends so; of a split model that is the first
 * part. False: there is none, or it is no folder. */
static bool find_file(const char *path, const char *begin, const char *end, char *name,
                      size_t size) {
    DIR *folder = opendir(path);
    struct dirent *e;
    name[0] = 0;
    while (folder && (e = readdir(folder)))
        if (str_starts(str_of(e->d_name), begin) && str_ends(str_of(e->d_name), end) &&
            (!name[0] || strcmp(e->d_name, name) < 0))
            snprintf(name, size, "%s", e->d_name);
    if (folder)
        closedir(folder);
    return name[0];
}

static void add_hint(struct err *err, const char *format, ...) {
    size_t n = strlen(err->text);
    va_list args;
    va_start(args, format);
    vsnprintf(err->text + n, sizeof err->text - n, format, args);
    va_end(args);
}

void hint_of_folder(struct err *err, const char *path) {
    char name[NAME_MAX + 1];
    int length = (int)strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (find_file(path, "config.json", "", name, sizeof name)) {
        bool has_start = find_file(path, "model.safetensors", "", name, sizeof name);
        if (!has_start && find_file(path, "", ".safetensors", name, sizeof name))
            add_hint(err, "; it has %s, but no model.safetensors.index.json", name);
        else if (!has_start && find_file(path, "pytorch_model", ".bin", name, sizeof name))
            add_hint(err, "; its weights are %s, expected safetensors", name);
    } else if (find_file(path, "adapter_config.json", "", name, sizeof name)) {
        add_hint(err, "; it is an adapter, which has to be merged into its model");
    } else if (find_file(path, "", ".gguf", name, sizeof name)) {
        add_hint(err, "; a GGUF file in it is %.*s/%s", length, path, name);
    }
}

int hint_of_model(struct err *err, const char *path) {
    struct str p = str_of(path);
    if (str_starts(p, "synth:"))
        return err->code;
    if (str_ends(p, ".safetensors") || str_ends(p, ".json"))
        add_hint(err, "; give the folder that it is in");
    hint_of_folder(err, path);
    const char *hint = "a model is a GGUF file or a folder";
    if (str_starts(p, "http:") || str_starts(p, "https:") || str_starts(p, "hf.co/") ||
        str_starts(p, "hf:"))
        hint = "a model is a GGUF file or a folder of this machine: nothing is downloaded";
    else if (strchr(path, ' '))
        hint = "a model is a GGUF file or a folder, and a text goes after -p";
    return hint_if_missing(err, path, hint);
}

int template_read(const char *given, char **out, struct err *err) {
    struct filemap map = {.fd = -1};
    bool is_text = strstr(given, "{%") || strstr(given, "{{");
    int status = is_text ? SLUICE_OK : filemap_read(&map, given, err);
    *out = NULL;
    if (status)
        return hint_if_missing(err, given,
                               "--chat-template takes a file or the text of a Jinja template");
    if (!is_text && map.size == 0)
        status = err_set(err, SLUICE_ERR_FORMAT, "%s: is empty, expected a chat template", given);
    else if (!(*out = is_text ? strdup(given) : strndup((const char *)map.data, map.size)))
        status = err_memory(err, given);
    filemap_close(&map);
    return status;
}

/* From where the program is: in the tree (build/sluice, build/FLAVOUR/sluice) or installed. */
static bool find_shipped(char *out, size_t size) {
    static const char *const places[] = {"../models/", "../../models/", "../share/sluice/models/"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0)
        return false;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash)
        slash[1] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int len = snprintf(out, size, "%s%s%s", exe, places[i], SHIPPED_MODEL);
        if (len > 0 && (size_t)len < size && access(out, R_OK) == 0)
            return true;
    }
    return false;
}

const char *model_named(const char *path) {
    const char *from_environment = getenv("SLUICE_MODEL");
    return path ? path : from_environment && *from_environment ? from_environment : NULL;
}

const char *model_path(const char *path, struct err *err) {
    static char shipped[PATH_MAX + 64];
    const char *named = model_named(path);
    if (named)
        return named;
    if (find_shipped(shipped, sizeof shipped))
        return shipped;
    err_set(err, SLUICE_ERR_IO,
            "no model given, and " SHIPPED_MODEL " is not beside the program; name one with -m or "
            "SLUICE_MODEL");
    return NULL;
}

int tokenizer_of_model(struct tokenizer **out, const char *path, struct err *err) {
    if (folder_is(path)) {
        struct folder *f;
        int status = folder_open(&f, path, false, err);
        if (!status)
            status = tokenizer_from_folder(out, f, err);
        folder_close(f);
        return status;
    }
    struct gguf *g;
    int status = gguf_open(&g, path, err);
    if (status)
        return hint_of_model(err, path);
    status = tokenizer_from_gguf(out, g, err);
    gguf_close(g);
    return status;
}

uint32_t common_prefix(const sluice_seq *seq, const int32_t *tokens, size_t n) {
    const int32_t *old;
    uint32_t n_old, common = 0;
    sluice_seq_tokens(seq, &old, &n_old, NULL);
    while (common < n_old && common < n && old[common] == tokens[common])
        common++;
    return common;
}

json_t *json_text(struct str s) {
    json_t *whole = json_stringn(s.at ? s.at : "", s.len);
    if (whole)
        return whole;
    char *out = malloc(s.len * 3 + 1);
    size_t len = 0;
    while (out && s.len > 0) {
        size_t n = utf8_length(s);
        memcpy(out + len, n ? s.at : "\xEF\xBF\xBD", n ? n : 3);
        len += n ? n : 3;
        s = str_skip(s, n ? n : 1);
    }
    whole = json_stringn(out ? out : "", len);
    free(out);
    return whole;
}

json_t *json_number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* jansson escapes the controls up to 0x1F; terminals also obey DEL and U+0080 to U+009F. These only
 * occur in strings, whose characters arrive whole. */
static int put_safely(const char *at, size_t size, void *user) {
    (void)user;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)at[i];
        unsigned char next = i + 1 < size ? (unsigned char)at[i + 1] : 0xFF;
        if (c == 0x7F)
            fputs("\\u007f", stdout);
        else if (c == 0xC2 && next < 0xA0)
            printf("\\u%04x", (unsigned)(unsigned char)at[++i]);
        else
            putchar(c);
    }
    return 0;
}

void print_json_value(const json_t *value, size_t flags) {
    json_dump_callback(value, put_safely, NULL, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
}

void print_json_line(json_t *value) {
    print_json_value(value, 0);
    putchar('\n');
    json_decref(value);
}

size_t quote_one(struct str s, char out[8]) {
    uint32_t c = 0;
    size_t n = utf8_decode(s, &c);
    bool is_plain = n > 0 && !utf8_is_control(c) && c != '"' && c != '\\';
    if (is_plain)
        snprintf(out, 8, "%.*s", (int)n, s.at);
    else if (c == '\n' || c == '\t' || c == '"' || c == '\\')
        snprintf(out, 8, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : (char)c);
    else
        snprintf(out, 8, "\\x%02x", (unsigned char)s.at[0]);
    return is_plain ? n : 1;
}

const char *quoted(struct str s, char *out, size_t size) {
    size_t used = 1;
    out[0] = '"';
    while (s.len > 0) {
        char one[8];
        s = str_skip(s, quote_one(s, one));
        if (used + strlen(one) + 2 > size)
            break;
        memcpy(out + used, one, strlen(one));
        used += strlen(one);
    }
    memcpy(out + used, "\"", 2);
    return out;
}

static char *ring(void) {
    static char text[8][32];
    static int next;
    return text[next++ & 7];
}

const char *human_bytes(uint64_t bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    char *out = ring();
    double v = (double)bytes;
    int unit = 0;
    for (; v >= 999.5 && unit < 4; unit++)
        v /= 1000;
    snprintf(out, 32, unit == 0 ? "%.0f %s" : v < 10 ? "%.2f %s" : "%.1f %s", v, units[unit]);
    return out;
}

const char *human_count(uint64_t n) {
    char digits[24], *out = ring();
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

int check_range(const char *verb, const char *option, int value, int min, int max) {
    if (value >= min && value <= max)
        return OPTS_GO_ON;
    return complain(EXIT_USAGE, "%s: %s is %d, expected %d to %d", verb, option, value, min, max);
}

int find_written_type(const char *verb, const char *what, const char *name,
                      const struct mixture **out) {
    *out = mixture_find(name);
    enum dtype type;
    if (*out && mixture_is_written(*out))
        return OPTS_GO_ON;
    if (dtype_find(str_of(name), &type) && dtype_info(type)->decode)
        return complain(EXIT_USAGE, "%s: %s can be read but not written; expected one of %s", verb,
                        dtype_name(type), mixture_names());
    return complain(EXIT_USAGE, "%s: %s is '%s', expected one of %s", verb, what, name,
                    mixture_names());
}

int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
