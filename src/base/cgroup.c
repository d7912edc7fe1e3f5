/* cgroup.c - see cgroup.h.
 *
 * /proc/self/cgroup names the group of each hierarchy, /proc/self/mountinfo where the hierarchy is
 * mounted. A container often sees a part of it only, which begins at the mount's root. Files that
 * are missing limit nothing: so the roots of hierarchies, which have none, and hierarchies without
 * the controller need no case of their own. */
#include "base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 }; /* PATH_MAX of Linux; the widths in take_mount */

uint64_t cgroup_read(const char *root, const char *path, const char *name) {
    char whole[2 * PATH_BYTES], line[256];
    uint64_t found = UINT64_MAX;
    snprintf(whole, sizeof whole, "%s%s", root, path);
    FILE *f = fopen(whole, "re");
    while (f && found == UINT64_MAX && fgets(line, sizeof line, f)) {
        unsigned long long n;
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%llu", &n) == 1)
            found = n; /* "-1", no limit in version 1, is UINT64_MAX */
    }
    if (f)
        fclose(f);
    return found;
}

/* ---- groups ------------------------------------------------------------------------------- */

/* Whether a list with commas has the word. */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (!p[n] || p[n] == ','))
            return true;
    return false;
}

/* Calls `on` with each line of a file, without its end, until that returns true. */
static bool find_line(const char *root, const char *path, bool (*on)(void *user, char *line),
                      void *user) {
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    FILE *f = fopen(whole, "re");
    char *line = NULL;
    size_t size = 0;
    bool is_found = false;
    while (f && !is_found && getline(&line, &size, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        is_found = on(user, line);
    }
    free(line);
    if (f)
        fclose(f);
    return is_found;
}

/* A hierarchy: the one of a controller of version 1, or version 2 (controller NULL). */
struct hierarchy {
    const char *controller;
    char group[PATH_BYTES];                      /* of this process, as the kernel names it */
    char mount_root[PATH_BYTES], at[PATH_BYTES]; /* the group that is mounted, and where */
};

/* "4:cpu,cpuacct:/a/b", or "0::/a/b" in version 2. */
static bool take_group(void *user, char *line) {
    struct hierarchy *h = user;
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : 0;
    if (!path)
        return false;
    *path++ = 0;
    controllers++;
    if (h->controller ? !has_word(controllers, h->controller) : *controllers != 0)
        return false;
    snprintf(h->group, sizeof h->group, "%s", path);
    return true;
}

/* "31 23 0:28 ROOT AT rw,relatime shared:9 - cgroup NAME rw,cpu,cpuacct"; `shared:9` are any number
 * of words. */
static bool take_mount(void *user, char *line) {
    struct hierarchy *h = user;
    char *end = strstr(line, " - "), type[16], options[512];
    if (!end || sscanf(end + 3, "%15s %*s %511s", type, options) != 2)
        return false;
    if (strcmp(type, h->controller ? "cgroup" : "cgroup2") != 0 ||
        (h->controller && !has_word(options, h->controller)))
        return false;
    return sscanf(line, "%*s %*s %*s %4095s %4095s", h->mount_root, h->at) == 2;
}

/* Calls `on` with the folder of the process's group, and of those above it as far as they can be
 * seen. */
static void each_group(const char *root, const char *controller,
                       void (*on)(void *user, const char *root, const char *folder), void *user) {
    struct hierarchy h = {.controller = controller};
    if (!find_line(root, "/proc/self/cgroup", take_group, &h) ||
        !find_line(root, "/proc/self/mountinfo", take_mount, &h))
        return;
    size_t skipped = strcmp(h.mount_root, "/") == 0 ? 0 : strlen(h.mount_root);
    bool is_below = strncmp(h.group, h.mount_root, skipped) == 0 &&
                    (h.group[skipped] == '/' || !h.group[skipped]) && !strstr(h.group, "/..");
    char folder[2 * PATH_BYTES];
    int top = snprintf(folder, sizeof folder, "%s", h.at);
    if (is_below && strcmp(h.group + skipped, "/") != 0)
        snprintf(folder + top, sizeof folder - (size_t)top, "%s", h.group + skipped);
    for (on(user, root, folder); strlen(folder) > (size_t)top; on(user, root, folder))
        *strrchr(folder, '/') = 0;
}

static uint64_t read_file(const char *root, const char *folder, const char *file,
                          const char *name) {
    char path[2 * PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return cgroup_read(root, path, name);
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* What the file memory.stat counts under these names; missing ones are 0. */
static uint64_t sum_of_stat(const char *root, const char *folder, const char *const *names) {
    uint64_t sum = 0;
    for (; *names; names++) {
        uint64_t n = read_file(root, folder, "memory.stat", *names);
        sum += n == UINT64_MAX ? 0 : n;
    }
    return sum;
}

static void take_left(uint64_t *left, uint64_t limit, uint64_t used, uint64_t reclaimable) {
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return;
    used -= least(used, reclaimable);
    *left = least(*left, limit - least(limit, used));
}

static void take_memory_2(void *user, const char *root, const char *folder) {
    /* Above memory.high a group is not killed, but slowed down until it is of no use. */
    uint64_t limit = least(read_file(root, folder, "memory.max", ""),
                           read_file(root, folder, "memory.high", ""));
    take_left(user, limit, read_file(root, folder, "memory.current", ""),
              sum_of_stat(root, folder,
                          (const char *const[]){"inactive_file ", "active_file ",
                                                "slab_reclaimable ", NULL}));
}

/* hierarchical_memory_limit is the tightest of all groups above, also where they cannot be seen;
 * what others use of it is not known then. */
static void take_memory_1(void *user, const char *root, const char *folder) {
    uint64_t limit = least(read_file(root, folder, "memory.limit_in_bytes", ""),
                           read_file(root, folder, "memory.stat", "hierarchical_memory_limit "));
    take_left(
        user, limit, read_file(root, folder, "memory.usage_in_bytes", ""),
        sum_of_stat(root, folder,
                    (const char *const[]){"total_inactive_file ", "total_active_file ", NULL}));
}

uint64_t cgroup_memory_left(const char *root) {
    uint64_t left = UINT64_MAX;
    each_group(root, NULL, take_memory_2, &left);
    each_group(root, "memory", take_memory_1, &left);
    return left;
}

/* ---- processors --------------------------------------------------------------------------- */

static void take_processors(int *least_yet, uint64_t quota, uint64_t period) {
    if (quota == UINT64_MAX || period == UINT64_MAX || !quota || !period)
        return;
    uint64_t n = quota / period + (quota % period != 0);
    if (n < INT_MAX && (!*least_yet || (int)n < *least_yet))
        *least_yet = (int)n;
}

static void take_cpu_2(void *user, const char *root, const char *folder) {
    char quota[32];
    uint64_t n = read_file(root, folder, "cpu.max", ""); /* "150000 100000", "max 100000" */
    snprintf(quota, sizeof quota, "%llu ", (unsigned long long)n);
    if (n != UINT64_MAX)
        take_processors(user, n, read_file(root, folder, "cpu.max", quota));
}

static void take_cpu_1(void *user, const char *root, const char *folder) {
    take_processors(user, read_file(root, folder, "cpu.cfs_quota_us", ""),
                    read_file(root, folder, "cpu.cfs_period_us", ""));
}

int cgroup_processors(const char *root) {
    int least_yet = 0;
    each_group(root, NULL, take_cpu_2, &least_yet);
    each_group(root, "cpu", take_cpu_1, &least_yet);
    return least_yet;
}
