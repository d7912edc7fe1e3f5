/* output.c - where verbs write to, and what that replaces. */
#include "cmd/output.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/filemap.h"
#include "cmd/cmd.h"

const char *output_path(const char *word) {
    return strcmp(word, "-") == 0 ? "/dev/stdout" : word;
}

bool output_is_stdout(const char *word) {
    return descriptor_of_path(output_path(word)) == STDOUT_FILENO;
}

int output_check_binary(const char *verb, const char *word) {
    int fd = descriptor_of_path(output_path(word));
    return fd >= 0 && isatty(fd)
               ? complain(EXIT_USAGE, "%s: the output is a terminal, expected a file or a pipe",
                          verb)
               : OPTS_GO_ON;
}

const char *output_replaces(const char *word) {
    static char text[64];
    struct stat st;
    text[0] = 0;
    if (descriptor_of_path(output_path(word)) < 0 && stat(word, &st) == 0 && S_ISREG(st.st_mode))
        snprintf(text, sizeof text, "; overwrote the existing file of %s",
                 human_bytes((uint64_t)st.st_size));
    return text;
}

const char *output_replaces_model(const char *word) {
    struct filemap map;
    struct err err;
    if (!output_replaces(word)[0] || filemap_open(&map, word, &err))
        return "";
    bool is_model = map.size > 4 && memcmp(map.data, "GGUF", 4) == 0;
    filemap_close(&map);
    return is_model ? output_replaces(word) : "";
}
