/* cache.c - see cache.h. */
#include "backend/vulkan/host/cache.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/folders.h"
#include "base/hash.h"
#include "base/outfile.h"

struct cache_head {
    char magic[8];
    struct cache_key key;
    uint64_t bytes, hash;
};
static_assert(sizeof(struct cache_head) == 88, "as files have it");

static const char MAGIC[8] = "SLUICVK1";
static const size_t MOST_BYTES = 256 << 20;

char *cache_path(const struct cache_key *key) {
    const char *given = getenv("SLUICE_VULKAN_CACHE");
    char name[32], *path = NULL;
    snprintf(name, sizeof name, "vulkan-%016llx",
             (unsigned long long)hash64_of(key->device, sizeof key->device));
    if (!given)
        return folders_user_file("XDG_CACHE_HOME", ".cache", name);
    if (!*given || asprintf(&path, "%s/%s", given, name) < 0)
        return NULL;
    folders_make(path);
    return path;
}

static bool is_whole(const struct cache_head *head, const struct cache_key *key,
                     const struct filemap *map) {
    return memcmp(head->magic, MAGIC, sizeof MAGIC) == 0 &&
           memcmp(&head->key, key, sizeof *key) == 0 && head->bytes == map->size - sizeof *head &&
           head->hash == hash64_of(map->data + sizeof *head, head->bytes);
}

void *cache_read(const char *path, const struct cache_key *key, size_t *n) {
    struct filemap map;
    struct cache_head head;
    struct err ignored;
    void *bytes = NULL;
    *n = 0;
    if (filemap_open(&map, path, &ignored))
        return NULL;
    if (map.size > sizeof head && map.size <= MOST_BYTES) {
        memcpy(&head, map.data, sizeof head);
        if (is_whole(&head, key, &map) && (bytes = malloc(head.bytes))) {
            memcpy(bytes, map.data + sizeof head, head.bytes);
            *n = head.bytes;
        }
    }
    filemap_close(&map);
    return bytes;
}

bool cache_write(const char *path, const struct cache_key *key, const void *bytes, size_t n) {
    struct cache_head head = {.key = *key, .bytes = n, .hash = hash64_of(bytes, n)};
    struct outfile out = {0};
    struct err ignored;
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    if (n == 0 || n > MOST_BYTES - sizeof head || outfile_open(&out, path, &ignored))
        return false;
    bool is_written = !outfile_write(&out, &head, sizeof head, &ignored) &&
                      !outfile_write(&out, bytes, n, &ignored) && !outfile_commit(&out, &ignored);
    outfile_abort(&out);
    return is_written;
}
