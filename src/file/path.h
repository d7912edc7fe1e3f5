/* path.h - names of files in a folder. */
#ifndef FILE_PATH_H
#define FILE_PATH_H

#include "base/arena.h"
#include "base/str.h"

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

/* What `git clone` leaves in a large file's place where Git LFS is not installed. */
static inline bool is_lfs_pointer(const void *bytes, size_t size) {
    return str_starts((struct str){bytes, size}, "version https://git-lfs.");
}
#define LFS_POINTER "is only a pointer of Git LFS, not the file itself; `git lfs pull` fetches it"

#endif
