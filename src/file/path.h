/* path.h - names of files in a folder. */
#ifndef FILE_PATH_H
#define FILE_PATH_H

#include "base/arena.h"

/* "folder/name" from the arena; NULL when memory ran out. */
static inline char *path_join(struct arena *arena, const char *folder, const char *name) {
    size_t folder_len = strlen(folder), name_len = strlen(name);
    while (folder_len > 1 && folder[folder_len - 1] == '/')
        folder_len--;
    char *path = arena_alloc(arena, folder_len + name_len + 2);
    if (!path)
        return NULL;
    memcpy(path, folder, folder_len);
    path[folder_len] = '/';
    memcpy(path + folder_len + 1, name, name_len);
    return path;
}

#endif
