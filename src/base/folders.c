/* folders.c - see folders.h. */
#include "base/folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void folders_make(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

const char *folders_writer(int fd) {
    struct stat st;
    if (fstat(fd, &st))
        return NULL;
    return st.st_uid != geteuid() && st.st_uid != 0 ? "another user, whose folder it is"
           : st.st_mode & (S_IWGRP | S_IWOTH)       ? "others who may write to it"
                                                    : NULL;
}

char *folders_user_file(const char *variable, const char *below, const char *name) {
    const char *folder = getenv(variable), *home = getenv("HOME");
    char *path = NULL;
    int n = -1;
    if (folder && folder[0] == '/') /* relative paths are ignored, by the XDG specification */
        n = asprintf(&path, "%s/sluice/%s", folder, name);
    else if (home && home[0] == '/')
        n = asprintf(&path, "%s/%s/sluice/%s", home, below, name);
    if (n < 0)
        return NULL;
    folders_make(path);
    return path;
}
