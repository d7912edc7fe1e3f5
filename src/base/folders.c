/* folders.c - see folders.h. */
#include "base/folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void folders_make(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
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
