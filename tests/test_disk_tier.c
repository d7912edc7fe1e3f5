/* test_disk_tier.c - a folder as a store: random operations against a simple model, failing
 * callbacks, killed writers, damaged and strange files, several processes, full disks, bounds. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/disk_fetch.h"
#include "test.h"
#include "tiers.h"

/* ---- helpers ------------------------------------------------------------------------------ */

static const struct hash128 own_identity = {0x1234, 0x5678}, other_identity = {0x1234, 0x5679};
enum { MAX_TOKENS = 40 };

struct rig {
    struct host_tier host;
    struct disk_tier *disk;
    struct disk_options options;
};

static void remove_tree(const char *path) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    EXPECT_INT(system(command), 0);
}

static struct disk_options options_for(const char *folder) {
    return (struct disk_options){
        .folder = folder,
        .identity = own_identity,
        .max_bytes = 1 << 26,
        .max_objects = 256,
        .max_tokens = MAX_TOKENS,
        .seconds_for_close = 600,
    };
}

static bool rig_open(struct rig *r, const struct disk_options *options) {
    struct err err = {0};
    *r = (struct rig){.options = *options};
    EXPECT_INT(host_tier_open(&r->host, 1 << 25, 1 << 12, &err), SLUICE_OK);
    r->options.host = &r->host;
    if (disk_tier_open(&r->disk, &r->options, &err) == SLUICE_OK)
        return true;
    test_fail(__FILE__, __LINE__, "%s", err.text);
    host_tier_close(&r->host);
    return false;
}

static void rig_close(struct rig *r) {
    disk_tier_close(r->disk);
    if (r->host.n_units) {
        EXPECT_INT(host_tier_free_bytes(&r->host), 1 << 25); /* nothing is left pinned */
        EXPECT(host_tier_broken(&r->host) == NULL);
    }
    host_tier_close(&r->host);
}

/* Everything about an object follows from its seed. */
static struct disk_meta meta_of(uint64_t seed, int32_t tokens[MAX_TOKENS]) {
    uint64_t s = seed;
    struct disk_meta m = {
        .kind = below(&s, 2) ? DISK_BLOCK : DISK_SNAPSHOT,
        .position = below(&s, 1 << 20),
        .hash = {random_next(&s), random_next(&s)},
        .parent = {random_next(&s), random_next(&s)},
        .n_tokens = below(&s, MAX_TOKENS + 1),
        .bytes = 1 + below(&s, below(&s, 4) ? 5000 : 200000),
    };
    for (uint32_t i = 0; i < m.n_tokens; i++)
        tokens[i] = (int32_t)random_next(&s);
    return m;
}

/* Puts the object of a seed; its host object is freed at once. */
static uint32_t put_disk(struct rig *r, uint64_t seed) {
    int32_t tokens[MAX_TOKENS];
    struct disk_meta meta = meta_of(seed, tokens);
    uint32_t host_object = put_host(&r->host, seed, meta.bytes);
    if (host_object == HOST_NONE)
        return DISK_NONE;
    uint32_t object = disk_tier_put(r->disk, &meta, tokens, host_object);
    host_tier_free(&r->host, host_object);
    return object;
}

/* Whether the object of a seed is found; what is found must be right. */
static bool get_disk(struct rig *r, uint32_t object, uint64_t seed) {
    int32_t tokens[MAX_TOKENS];
    struct disk_meta meta = meta_of(seed, tokens);
    struct stream s = stream_of(seed);
    bool is_found = false;
    struct err err;
    EXPECT_INT(disk_tier_get(r->disk, object, tokens, take, &s, &is_found, &err), SLUICE_OK);
    EXPECT(!is_found || (!s.is_wrong && s.at == meta.bytes));
    return is_found;
}

struct list {
    uint32_t n, objects[1024];
    uint64_t seeds[1024]; /* those that seed_of knows; 0 */
    uint32_t last_position;
    bool is_wrong;
};

/* Seeds are found again by the parent's hash, which is unlike others. */
static uint64_t seed_of(const struct disk_meta *meta, uint64_t first, uint64_t n) {
    int32_t tokens[MAX_TOKENS];
    for (uint64_t seed = first; seed < first + n; seed++)
        if (hash128_equal(meta_of(seed, tokens).hash, meta->hash))
            return seed;
    return 0;
}

static bool note(void *user, uint32_t object, const struct disk_meta *meta, const int32_t *tokens) {
    struct list *l = user;
    uint64_t seed = seed_of(meta, 1, 2000);
    int32_t expected[MAX_TOKENS];
    struct disk_meta m = meta_of(seed, expected);
    l->is_wrong |= seed == 0 || m.kind != meta->kind || m.position != meta->position ||
                   m.bytes != meta->bytes || !hash128_equal(m.parent, meta->parent) ||
                   m.n_tokens != meta->n_tokens || meta->position < l->last_position ||
                   memcmp(tokens, expected, m.n_tokens * sizeof *tokens) != 0;
    l->last_position = meta->position;
    l->objects[l->n] = object;
    l->seeds[l->n++] = seed;
    return true;
}

static uint32_t scan(struct rig *r, struct list *l) {
    *l = (struct list){0};
    disk_tier_scan(r->disk, note, l);
    EXPECT(!l->is_wrong);
    return l->n;
}

static const char *folder_of(const char *folder, struct hash128 identity) {
    static char path[600];
    char name[DISK_FOLDER_BYTES];
    disk_file_folder(identity, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *own_folder(const char *folder) {
    return folder_of(folder, own_identity);
}

static const char *path_of(const char *folder, uint64_t seed) {
    static char path[700];
    char name[DISK_NAME_BYTES];
    int32_t tokens[MAX_TOKENS];
    struct disk_meta meta = meta_of(seed, tokens);
    disk_file_name(&meta, name);
    snprintf(path, sizeof path, "%s/%s", own_folder(folder), name);
    return path;
}

/* Files of such names in a folder, and their bytes. */
static uint32_t count_in(const char *path, const char *ending, uint64_t *bytes) {
    uint32_t n = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t length = strlen(e->d_name), end = strlen(ending);
        struct stat st;
        if (e->d_name[0] == '.' && !e->d_name[1 + (e->d_name[1] == '.')])
            continue;
        if (length < end || strcmp(e->d_name + length - end, ending) != 0)
            continue;
        n++;
        if (bytes && fstatat(dirfd(dir), e->d_name, &st, 0) == 0)
            *bytes += (uint64_t)st.st_size;
    }
    if (dir)
        closedir(dir);
    return n;
}

static uint32_t count_files(const char *folder, const char *ending, uint64_t *bytes) {
    return count_in(own_folder(folder), ending, bytes);
}

/* ---- random operations -------------------------------------------------------------------- */

enum { DISK_MODEL = 120 };

/* One object of the model: put and not yet freed. What was damaged must not be found. */
struct put {
    uint32_t object;
    uint64_t seed; /* 0: none */
    bool is_damaged;
};

static void damage(struct rig *r, const char *folder, struct put *p, uint64_t *random) {
    disk_tier_flush(r->disk);
    const char *path = path_of(folder, p->seed);
    struct stat st;
    EXPECT_INT(stat(path, &st), 0);
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    off_t at = below(random, (uint32_t)st.st_size);
    switch (below(random, 4)) {
    case 0:
        EXPECT_INT(unlink(path), 0);
        break;
    case 1:
        EXPECT_INT(ftruncate(fd, at), 0);
        break;
    case 2:
        EXPECT_INT(ftruncate(fd, st.st_size + 1 + at), 0);
        break;
    default:
        EXPECT_INT(pread(fd, &byte, 1, at), 1);
        byte ^= 1 << below(random, 8);
        EXPECT_INT(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    p->is_damaged = true;
}

static void disk_operation(struct rig *r, const char *folder, struct put *p, uint64_t *random,
                           uint64_t *next_seed) {
    if (p->seed == 0) {
        p->object = put_disk(r, *next_seed);
        p->is_damaged = false;
        p->seed = p->object == DISK_NONE ? 0 : (*next_seed)++;
        return;
    }
    uint32_t what = below(random, 16);
    if (what == 0) {
        if (!p->is_damaged)
            damage(r, folder, p, random);
    } else if (what < 4) {
        disk_tier_free(r->disk, p->object);
        *p = (struct put){0};
    } else if (what == 4 && !p->is_damaged) { /* the one who takes fails: nothing is lost */
        int32_t tokens[MAX_TOKENS];
        struct disk_meta meta = meta_of(p->seed, tokens);
        struct stream s = stream_of(p->seed);
        s.fails_at = below(random, (uint32_t)meta.bytes);
        bool is_found = true;
        EXPECT_INT(disk_tier_get(r->disk, p->object, tokens, take, &s, &is_found, NULL),
                   SLUICE_ERR_DEVICE);
        EXPECT(!is_found);
    } else if (what < 12) {
        EXPECT_INT(get_disk(r, p->object, p->seed), !p->is_damaged);
    }
}

/* After a restart everything that was neither freed nor damaged is there, and nothing else is
 * found. A damaged payload is only found out by reading. */
static void disk_restart(struct rig *r, struct put *puts) {
    struct list l;
    struct disk_options options = r->options;
    rig_close(r);
    if (!rig_open(r, &options))
        return;
    scan(r, &l);
    for (uint32_t i = 0; i < DISK_MODEL; i++) {
        uint32_t at = 0;
        while (at < l.n && l.seeds[at] != puts[i].seed)
            at++;
        if (puts[i].seed && at == l.n && !puts[i].is_damaged)
            test_fail(__FILE__, __LINE__, "object %llu is lost", (unsigned long long)puts[i].seed);
        if (at == l.n) {
            puts[i] = (struct put){0};
            continue;
        }
        puts[i].object = l.objects[at];
        l.seeds[at] = UINT64_MAX;
    }
    for (uint32_t i = 0; i < l.n; i++)
        if (l.seeds[i] != UINT64_MAX)
            test_fail(__FILE__, __LINE__, "object %llu was freed and is found",
                      (unsigned long long)l.seeds[i]);
}

TEST(tier_disk_is_as_its_model) {
    struct rig r;
    struct put puts[DISK_MODEL] = {{0}};
    uint64_t random = 7, next_seed = 1;
    const char *folder = strdup(test_temporary("tier-model"));
    struct disk_options options = options_for(folder);
    options.max_objects = 100; /* fewer than the model would like */
    if (!rig_open(&r, &options))
        return;
    for (int i = 0; i < 3000 && next_seed < 1900; i++) {
        disk_operation(&r, folder, &puts[below(&random, DISK_MODEL)], &random, &next_seed);
        if (i % 500 == 499) {
            const char *broken = disk_tier_broken(r.disk);
            if (broken)
                test_fail(__FILE__, __LINE__, "%s", broken);
        }
        if (i % 1000 == 999)
            disk_restart(&r, puts);
    }
    EXPECT(next_seed > 250);
    for (int i = 0; i < DISK_MODEL; i++)
        if (puts[i].seed)
            disk_tier_free(r.disk, puts[i].object);
    EXPECT(disk_tier_broken(r.disk) == NULL);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* ---- files that are not as they should be ------------------------------------------------- */

static void patch(const char *path, off_t at, const void *bytes, size_t n) {
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pwrite(fd, bytes, n, at) == (ssize_t)n);
    close(fd);
}

/* Another value in the header, with checksums that are right again. */
static void patch_header(const char *path, off_t at, uint32_t value) {
    enum { HEADER = 96, SUM = 88, N_TOKENS = 68 };
    size_t size = 0;
    patch(path, at, &value, sizeof value);
    uint8_t *bytes = (uint8_t *)test_read_file(path, &size);
    uint32_t n_tokens;
    struct hash h;
    if (!bytes)
        return;
    memcpy(&n_tokens, bytes + N_TOKENS, sizeof n_tokens);
    hash_begin(&h);
    hash_add(&h, bytes, SUM);
    hash_add(&h, bytes + HEADER, n_tokens * sizeof(int32_t));
    uint64_t sum = hash64_end(&h);
    patch(path, SUM, &sum, sizeof sum);
    memcpy(bytes + SUM, &sum, sizeof sum);
    sum = hash64_of(bytes, size - sizeof sum);
    patch(path, (off_t)(size - sizeof sum), &sum, sizeof sum);
    free(bytes);
}

static void same(const char *path, const char *other) {
    uint32_t version = 2;
    (void)other;
    patch_header(path, 8, version);
}
static void next_version(const char *path, const char *other) {
    (void)other;
    patch_header(path, 8, 3);
}
/* Whose names clients could choose twice. */
static void first_version(const char *path, const char *other) {
    (void)other;
    patch_header(path, 8, 1);
}
static void foreign_identity(const char *path, const char *other) {
    (void)other;
    patch_header(path, 16, 0x1235);
}
static void other_position(const char *path, const char *other) {
    (void)other;
    patch_header(path, 64, 3);
}
static void other_magic(const char *path, const char *other) {
    (void)other;
    patch_header(path, 0, 3);
}
static void empty_file(const char *path, const char *other) {
    (void)other;
    EXPECT_INT(truncate(path, 0), 0);
}
static void only_header(const char *path, const char *other) {
    (void)other;
    EXPECT_INT(truncate(path, 96), 0);
}
static void last_byte_cut(const char *path, const char *other) {
    struct stat st;
    (void)other;
    EXPECT(stat(path, &st) == 0 && truncate(path, st.st_size - 1) == 0);
}
static void link_to_good(const char *path, const char *other) {
    EXPECT(rename(path, other) == 0 && symlink(other, path) == 0);
}
static void link_to_nothing(const char *path, const char *other) {
    (void)other;
    EXPECT(unlink(path) == 0 && symlink("/nowhere/at/all", path) == 0);
}
static void fifo(const char *path, const char *other) {
    (void)other;
    EXPECT(unlink(path) == 0 && mkfifo(path, 0600) == 0);
}
static void folder_in_its_place(const char *path, const char *other) {
    (void)other;
    EXPECT(unlink(path) == 0 && mkdir(path, 0700) == 0);
}
static void gone(const char *path, const char *other) {
    (void)other;
    EXPECT_INT(unlink(path), 0);
}
static void of_another_name(const char *path, const char *other) {
    (void)other;
    char next[700];
    snprintf(next, sizeof next, "%s", path);
    char *digit = strrchr(next, '/') + 12;
    *digit = *digit == '0' ? '1' : '0';
    EXPECT_INT(rename(path, next), 0);
}

static const struct {
    const char *what;
    void (*do_it)(const char *path, const char *other);
    bool is_found;
} spoilers[] = {
    {"nothing", same, true}, /* the patching itself is right */
    {"the next version", next_version, false},
    {"the first version", first_version, false},
    {"another identity", foreign_identity, false},
    {"another position", other_position, false},
    {"another magic", other_magic, false},
    {"no bytes", empty_file, false},
    {"only a header", only_header, false},
    {"its last byte cut", last_byte_cut, false},
    {"a symlink to it", link_to_good, false},
    {"a dangling symlink", link_to_nothing, false},
    {"a FIFO", fifo, false},
    {"a folder", folder_in_its_place, false},
    {"nothing there", gone, false},
    {"another name", of_another_name, false},
};

/* Spoiled while it is open, and between two runs. */
static void spoil(size_t which, bool is_open) {
    const char *folder = strdup(test_temporary("tier-spoiled"));
    const char *other = strdup(test_temporary("tier-elsewhere"));
    struct disk_options options = options_for(folder);
    struct rig r;
    struct list l;
    const uint64_t seed = 5;
    if (!rig_open(&r, &options))
        return;
    uint32_t object = put_disk(&r, seed), good = put_disk(&r, seed + 1);
    disk_tier_flush(r.disk);
    bool is_found = true;
    if (is_open) {
        spoilers[which].do_it(path_of(folder, seed), other);
        is_found = get_disk(&r, object, seed);
        EXPECT_INT(get_disk(&r, object, seed), is_found);
        EXPECT(get_disk(&r, good, seed + 1));
        disk_tier_free(r.disk, object);
        EXPECT(disk_tier_broken(r.disk) == NULL);
        object = put_disk(&r, seed); /* and it can be put again, where a name is free */
        EXPECT(object != DISK_NONE);
    }
    rig_close(&r);
    if (!is_open) {
        spoilers[which].do_it(path_of(folder, seed), other);
        if (!rig_open(&r, &options))
            return;
        scan(&r, &l);
        is_found = false;
        for (uint32_t i = 0; i < l.n; i++)
            is_found |= l.seeds[i] == seed && get_disk(&r, l.objects[i], seed);
        EXPECT(l.n >= 1 && disk_tier_broken(r.disk) == NULL);
        rig_close(&r);
    }
    if (is_found != spoilers[which].is_found)
        test_fail(__FILE__, __LINE__, "a file with %s is%s found (%s)", spoilers[which].what,
                  is_found ? "" : " not", is_open ? "open" : "after a restart");
    remove_tree(folder);
    unlink(other);
    free((char *)folder);
    free((char *)other);
}

TEST(tier_disk_spoiled_files_are_misses) {
    for (size_t i = 0; i < sizeof spoilers / sizeof *spoilers; i++) {
        spoil(i, true);
        spoil(i, false);
    }
}

/* A symlink under the name of a file that is to be written is replaced, not followed. */
TEST(tier_disk_follows_no_links) {
    const char *folder = strdup(test_temporary("tier-links"));
    const char *precious = strdup(test_temporary("tier-precious"));
    struct disk_options options = options_for(folder);
    struct rig r;
    struct stat st;
    FILE *f = fopen(precious, "wb");
    EXPECT(f && fputs("precious", f) >= 0 && fclose(f) == 0);
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(symlink(precious, path_of(folder, 3)), 0);
    uint32_t object = put_disk(&r, 3);
    disk_tier_flush(r.disk);
    EXPECT(get_disk(&r, object, 3));
    EXPECT(lstat(path_of(folder, 3), &st) == 0 && S_ISREG(st.st_mode));
    EXPECT_INT(st.st_mode & 0777, 0600);
    EXPECT(stat(own_folder(folder), &st) == 0 && (st.st_mode & 0777) == 0700);
    EXPECT(stat(precious, &st) == 0 && st.st_size == 8);
    rig_close(&r);
    remove_tree(folder);
    unlink(precious);
    free((char *)folder);
    free((char *)precious);
}

/* Root reads everything, so this needs a process that is not. */
TEST(tier_disk_unreadable_files_are_misses) {
    const char *folder = strdup(test_temporary("tier-unreadable"));
    struct disk_options options = options_for(folder);
    struct rig r;
    struct list l;
    if (!rig_open(&r, &options))
        return;
    put_disk(&r, 1);
    put_disk(&r, 2);
    rig_close(&r);
    EXPECT_INT(chmod(path_of(folder, 1), 0), 0);
    EXPECT(geteuid() != 0 ||
           (chown(folder, 65534, 65534) == 0 && chown(own_folder(folder), 65534, 65534) == 0 &&
            chown(path_of(folder, 1), 65534, 65534) == 0 &&
            chown(path_of(folder, 2), 65534, 65534) == 0));
    uid_t self = geteuid();
    bool is_other = self != 0 || seteuid(65534) == 0;
    bool is_reachable = faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0;
    if (!is_other || !is_reachable) {
        test_skip("another user can't get at %s", folder);
    } else if (rig_open(&r, &options)) {
        EXPECT_INT(scan(&r, &l), 1);
        EXPECT(l.seeds[0] == 2 && get_disk(&r, l.objects[0], 2));
        rig_close(&r);
    }
    EXPECT_INT(seteuid(self), 0);
    remove_tree(folder);
    free((char *)folder);
}

TEST(tier_disk_opens_where_it_may) {
    struct disk_tier *d;
    struct err err = {0};
    const char *file = test_temporary("tier-file");
    FILE *f = fopen(file, "wb");
    EXPECT(f && fclose(f) == 0);
    char inside[600];
    snprintf(inside, sizeof inside, "%s/cache", file);
    const char *bad[] = {"", file, inside, "/proc/nowhere/cache"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct disk_options options = options_for(bad[i]);
        EXPECT_INT(disk_tier_open(&d, &options, &err), SLUICE_ERR_IO);
        EXPECT(d == NULL && strstr(err.text, bad[i]) && !strchr(err.text, '\n'));
    }
    unlink(file);
    const char *deep = test_temporary("tier-deep");
    snprintf(inside, sizeof inside, "%s/a/b", deep);
    struct disk_options options = options_for(inside);
    EXPECT_INT(disk_tier_open(&d, &options, &err), SLUICE_OK);
    disk_tier_close(d);
    disk_tier_close(NULL);
    remove_tree(deep);
}

static void count_writers(void *user, enum log_level level, const char *line) {
    *(int *)user += level == LOG_WARN && strstr(line, "may be changed by ") != NULL;
}

/* Another user may have made the folder that is used in one that all may write to. */
TEST(tier_disk_says_who_else_may_write) {
    const char *folder = strdup(test_temporary("tier-writers"));
    struct disk_options options = options_for(folder);
    const char *own = own_folder(folder);
    const struct {
        mode_t mode;
        uid_t user;
        bool is_told;
    } cases[] = {{0700, geteuid(), false},
                 {0755, geteuid(), false},
                 {0770, geteuid(), true},
                 {0702, geteuid(), true},
                 {0700, 4321, true}};
    size_t n = geteuid() == 0 ? 5 : 4; /* only root gives folders away */
    for (size_t i = 0; i < n; i++) {
        struct disk_tier *d;
        struct err err;
        int n_told = 0;
        mkdir(folder, 0777);
        EXPECT(mkdir(own, 0700) == 0 && chmod(own, cases[i].mode) == 0);
        EXPECT(cases[i].user == geteuid() || chown(own, cases[i].user, (gid_t)-1) == 0);
        log_set(count_writers, &n_told);
        EXPECT_INT(disk_tier_open(&d, &options, &err), SLUICE_OK);
        log_set(NULL, NULL);
        EXPECT_INT(n_told, cases[i].is_told);
        disk_tier_close(d);
        remove_tree(folder);
    }
    free((char *)folder);
}

/* ---- what happens meanwhile --------------------------------------------------------------- */

TEST(tier_disk_folder_may_be_deleted) {
    const char *folder = strdup(test_temporary("tier-deleted"));
    struct disk_options options = options_for(folder);
    struct rig r;
    if (!rig_open(&r, &options))
        return;
    uint32_t first = put_disk(&r, 1);
    disk_tier_flush(r.disk);
    remove_tree(folder);
    EXPECT(!get_disk(&r, first, 1));
    uint32_t second = put_disk(&r, 2);
    disk_tier_flush(r.disk);
    EXPECT(disk_tier_is_written(r.disk, second) && get_disk(&r, second, 2));
    EXPECT_INT(count_files(folder, "", NULL), 1);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* Writes and removes until it is killed; says when it begins. */
_Noreturn static void write_forever(const struct disk_options *options, uint64_t random, int says) {
    struct rig r;
    uint32_t objects[50];
    memset(objects, 0xFF, sizeof objects);
    if (!rig_open(&r, options) || write(says, "x", 1) != 1)
        _exit(1);
    for (;;) {
        uint32_t i = below(&random, 50);
        if (objects[i] == DISK_NONE) {
            objects[i] = put_disk(&r, 1 + i);
        } else {
            disk_tier_free(r.disk, objects[i]);
            objects[i] = DISK_NONE;
        }
        if (below(&random, 8) == 0)
            disk_tier_flush(r.disk);
    }
}

TEST(tier_disk_survives_kill) {
    const char *folder = strdup(test_temporary("tier-kill"));
    struct disk_options options = options_for(folder);
    uint32_t n_found = 0, n_temporaries = 0;
    for (uint64_t i = 0; i < 25; i++) {
        uint64_t random = i;
        int ends[2];
        char byte;
        EXPECT_INT(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0)
            write_forever(&options, i, ends[1]);
        EXPECT_INT(read(ends[0], &byte, 1), 1);
        close(ends[0]);
        close(ends[1]);
        struct timespec moment = {0, below(&random, 20000000)};
        nanosleep(&moment, NULL);
        EXPECT_INT(kill(child, SIGKILL), 0);
        waitpid(child, NULL, 0);
        n_temporaries += count_files(folder, ".tmp", NULL);
        struct rig r;
        struct list l;
        if (!rig_open(&r, &options))
            break;
        EXPECT_INT(count_files(folder, ".tmp", NULL), 0);
        n_found += scan(&r, &l);
        EXPECT_INT(l.n, count_files(folder, "", NULL));
        for (uint32_t k = 0; k < l.n; k++)
            EXPECT(l.seeds[k] && get_disk(&r, l.objects[k], l.seeds[k]));
        rig_close(&r);
    }
    test_note("kill -9 of a writer: %u whole files found, %u half-written ones cleaned up", n_found,
              n_temporaries);
    remove_tree(folder);
    free((char *)folder);
}

/* One of several that share a folder: what it finds is right, no matter who wrote it. */
static int share(const struct disk_options *options, uint64_t random) {
    struct rig r;
    struct list l;
    uint32_t objects[50];
    uint64_t n_found = 0;
    memset(objects, 0xFF, sizeof objects);
    if (!rig_open(&r, options))
        return 1;
    scan(&r, &l);
    for (uint32_t i = 0; i < l.n; i++)
        objects[l.seeds[i] - 1] = l.objects[i];
    for (int step = 0; step < 400; step++) {
        uint32_t i = below(&random, 50);
        if (objects[i] == DISK_NONE)
            objects[i] = put_disk(&r, 1 + i);
        else if (below(&random, 4))
            n_found += get_disk(&r, objects[i], 1 + i);
        else {
            disk_tier_free(r.disk, objects[i]);
            objects[i] = DISK_NONE;
        }
    }
    const char *broken = disk_tier_broken(r.disk);
    rig_close(&r);
    return broken != NULL || l.is_wrong || n_found == 0;
}

TEST(tier_disk_is_shared_by_processes) {
    enum { CHILDREN = 3 };
    const char *folder = strdup(test_temporary("tier-shared"));
    struct disk_options options = options_for(folder);
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        fflush(stdout);
        children[i] = fork();
        if (children[i] == 0)
            _exit(share(&options, (uint64_t)i));
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        EXPECT_INT(status, 0);
    }
    struct rig r;
    struct list l;
    if (rig_open(&r, &options)) {
        scan(&r, &l);
        for (uint32_t i = 0; i < l.n; i++)
            EXPECT(get_disk(&r, l.objects[i], l.seeds[i]));
        EXPECT_INT(count_files(folder, ".tmp", NULL), 0);
        rig_close(&r);
    }
    remove_tree(folder);
    free((char *)folder);
}

/* A temporary file that its process is writing is left alone. */
TEST(tier_disk_leaves_running_writers_alone) {
    const char *folder = strdup(test_temporary("tier-running"));
    struct disk_options options = options_for(folder);
    struct rig r;
    char path[700], byte = 0;
    int ends[2];
    if (!rig_open(&r, &options) || pipe(ends) != 0)
        return;
    rig_close(&r);
    snprintf(path, sizeof path, "%s/.0123456789abcdef.tmp", own_folder(folder));
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        if (flock(fd, LOCK_EX) == 0 && write(ends[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    EXPECT_INT(read(ends[0], &byte, 1), 1);
    for (uint32_t is_running = 2; is_running-- > 0;) {
        if (rig_open(&r, &options))
            rig_close(&r);
        EXPECT_INT(count_files(folder, ".tmp", NULL), is_running);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    close(ends[0]);
    close(ends[1]);
    remove_tree(folder);
    free((char *)folder);
}

/* ---- no room ------------------------------------------------------------------------------ */

static int n_lines;
static void count_line(void *user, enum log_level level, const char *line) {
    (void)user;
    n_lines += level == LOG_WARN && strstr(line, "cannot write to the cache") != NULL;
}

/* Puts what will not go; then what will. */
static void expect_full(struct rig *r, bool is_full) {
    uint32_t objects[30];
    for (uint32_t i = 0; i < 30; i++)
        objects[i] = put_disk(r, 1 + i);
    disk_tier_flush(r->disk);
    uint32_t n_missed = 0;
    for (uint32_t i = 0; i < 30; i++) {
        EXPECT(objects[i] != DISK_NONE);
        n_missed += !get_disk(r, objects[i], 1 + i);
        disk_tier_free(r->disk, objects[i]);
    }
    EXPECT(is_full ? n_missed > 2 : n_missed == 0);
    EXPECT(disk_tier_broken(r->disk) == NULL);
}

TEST(tier_disk_full_is_a_miss) {
    const char *folder = strdup(test_temporary("tier-full"));
    struct disk_options options = options_for(folder);
    struct rlimit old, small;
    struct rig r;
    if (!rig_open(&r, &options))
        return;
    n_lines = 0;
    log_set(count_line, NULL);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 2000;
    setrlimit(RLIMIT_FSIZE, &small); /* the signal goes to the thread, which has it blocked */
    expect_full(&r, true);
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_INT(count_files(folder, ".tmp", NULL), 0);
    EXPECT_INT(n_lines, 1);
    expect_full(&r, false);
    EXPECT_INT(n_lines, 1);
    log_set(NULL, NULL);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

TEST(tier_disk_full_file_system_is_a_miss) {
    const char *folder = strdup(test_temporary("tier-tmpfs"));
    mkdir(folder, 0700);
    if (mount("tmpfs", folder, "tmpfs", 0, "size=100k") != 0) {
        test_skip("no tmpfs can be mounted: %s", strerror(errno));
    } else {
        struct disk_options options = options_for(folder);
        struct rig r;
        if (rig_open(&r, &options)) {
            n_lines = 0;
            log_set(count_line, NULL);
            expect_full(&r, true);
            EXPECT(n_lines >= 1);
            log_set(NULL, NULL);
            rig_close(&r);
        }
        EXPECT_INT(umount(folder), 0);
    }
    rmdir(folder);
    free((char *)folder);
}

TEST(tier_disk_keeps_to_its_bytes) {
    const char *folder = strdup(test_temporary("tier-bound"));
    struct disk_options options = options_for(folder);
    options.max_bytes = 300000;
    struct rig r;
    uint32_t n = 0, objects[200];
    if (!rig_open(&r, &options))
        return;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t object = put_disk(&r, 1 + i);
        if (object != DISK_NONE)
            objects[n++] = object;
        EXPECT(disk_tier_free_bytes(r.disk) <= options.max_bytes);
    }
    disk_tier_flush(r.disk);
    uint64_t bytes = 0;
    EXPECT_INT(count_files(folder, "", &bytes), n);
    EXPECT(n > 5 && n < 190 && bytes <= options.max_bytes);
    EXPECT_INT(disk_tier_free_bytes(r.disk), options.max_bytes - bytes);
    for (uint32_t i = 0; i < n; i += 2)
        disk_tier_free(r.disk, objects[i]);
    disk_tier_flush(r.disk);
    bytes = 0;
    EXPECT_INT(count_files(folder, "", &bytes), n / 2);
    EXPECT_INT(disk_tier_free_bytes(r.disk), options.max_bytes - bytes);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

static uint32_t put_many(struct rig *r, uint64_t first, uint32_t n) {
    uint32_t n_put = 0;
    for (uint32_t i = 0; i < n; i++)
        n_put += put_disk(r, first + i) != DISK_NONE;
    disk_tier_flush(r->disk);
    return n_put;
}

/* What another model left there counts, and goes when it is the older. */
TEST(tier_disk_old_files_of_others_make_room) {
    const char *folder = strdup(test_temporary("tier-others"));
    struct disk_options options = options_for(folder), other = options_for(folder);
    options.max_bytes = other.max_bytes = 300000;
    other.identity = other_identity;
    struct rig r;
    struct list l;
    uint64_t bytes = 0;
    if (!rig_open(&r, &other))
        return;
    EXPECT(put_many(&r, 1, 200) > 5);
    rig_close(&r);
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(scan(&r, &l), 0); /* of another identity */
    EXPECT(disk_tier_free_bytes(r.disk) < 50000);
    uint32_t n = 0;
    for (int i = 0; i < 20; i++)
        n += put_many(&r, 300 + 10 * (uint32_t)i, 10);
    EXPECT(n > 5);
    EXPECT_INT(count_files(folder, "", &bytes), n);
    EXPECT(bytes <= options.max_bytes);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* What others have used since stays: then it is for the cache to give up what it needs least. */
TEST(tier_disk_new_files_of_others_stay) {
    const char *folder = strdup(test_temporary("tier-newer"));
    struct disk_options options = options_for(folder), other = options_for(folder);
    options.max_bytes = 600000;
    other.identity = other_identity; /* and a bound that it does not reach */
    struct rig r, s;
    if (!rig_open(&r, &options))
        return;
    uint32_t first = put_disk(&r, 1);
    disk_tier_flush(r.disk);
    if (!rig_open(&s, &other))
        return;
    uint32_t n = put_many(&s, 1, 20);
    EXPECT_INT(n, 20);
    for (uint32_t i = 0; i < 3; i++)
        put_many(&r, 2 + 100 * i, 100);
    uint64_t bytes = 0;
    EXPECT_INT(count_in(folder_of(folder, other_identity), "", &bytes), n);
    count_files(folder, "", &bytes);
    EXPECT(bytes <= options.max_bytes * 9 / 8 + 200000); /* and the last file */
    rig_close(&s);
    EXPECT(get_disk(&r, first, 1));
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* A bound that became smaller: the newest files are kept. */
TEST(tier_disk_bound_may_shrink) {
    const char *folder = strdup(test_temporary("tier-shrink"));
    struct disk_options options = options_for(folder);
    struct rig r;
    struct list l;
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(put_many(&r, 1, 40), 40);
    rig_close(&r);
    uint64_t before = 0, after = 0;
    count_files(folder, "", &before);
    options.max_bytes = before / 3;
    if (!rig_open(&r, &options))
        return;
    uint32_t n = scan(&r, &l);
    count_files(folder, "", &after);
    EXPECT(n > 3 && n < 40 && after <= options.max_bytes);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* A file of a good name that is larger than the bound goes, whenever it came; the others stay. */
TEST(tier_disk_huge_file_goes_alone) {
    const char *folder = strdup(test_temporary("tier-huge"));
    struct disk_options options = options_for(folder);
    struct rig r;
    struct list l;
    char path[400];
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(put_many(&r, 1, 10), 10);
    rig_close(&r);
    snprintf(path, sizeof path, "%s/00000100-%032x.block", folder_of(folder, own_identity), 1);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    EXPECT(fd >= 0 && ftruncate(fd, 1ll << 40) == 0);
    close(fd);
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(scan(&r, &l), 10);
    EXPECT(access(path, F_OK) != 0);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* ---- the end ------------------------------------------------------------------------------ */

/* How many of 100 objects are found after a close. */
static uint32_t put_and_close(const struct disk_options *options) {
    struct rig r;
    struct list l;
    uint32_t n_put = 0;
    if (!rig_open(&r, options))
        return 0;
    for (uint32_t i = 0; i < 100; i++)
        n_put += put_disk(&r, 1 + i) != DISK_NONE;
    rig_close(&r);
    EXPECT_INT(n_put, 100);
    EXPECT_INT(count_files(options->folder, ".tmp", NULL), 0);
    if (!rig_open(&r, options))
        return 0;
    uint32_t n = scan(&r, &l);
    for (uint32_t i = 0; i < n; i++)
        EXPECT(get_disk(&r, l.objects[i], l.seeds[i]));
    rig_close(&r);
    return n;
}

TEST(tier_disk_close_writes_what_waits) {
    for (int is_patient = 0; is_patient < 2; is_patient++) {
        const char *folder = strdup(test_temporary("tier-close"));
        struct disk_options options = options_for(folder);
        options.seconds_for_close = is_patient ? 600 : 0;
        /* The thread may have written all before it is told to end: once in 30 it was not. */
        uint32_t n = 100;
        for (int i = 0; n == 100 && i < (is_patient ? 1 : 30); i++) {
            n = put_and_close(&options);
            remove_tree(folder);
        }
        EXPECT(is_patient ? n == 100 : n < 100);
        free((char *)folder);
    }
}

TEST(tier_disk_bounds_what_waits) {
    const char *folder = strdup(test_temporary("tier-waiting"));
    struct disk_options options = options_for(folder);
    options.max_waiting = 1; /* one object at a time, of any size */
    struct rig r;
    uint32_t n_put = 200;
    if (!rig_open(&r, &options))
        return;
    for (int round = 0; n_put == 200 && round < 30; round++) { /* the thread may be quick */
        uint32_t objects[200];
        n_put = 0;
        for (uint32_t i = 0; i < 200; i++)
            n_put += (objects[i] = put_disk(&r, 1 + i)) != DISK_NONE;
        disk_tier_flush(r.disk);
        for (uint32_t i = 0; i < 200; i++)
            if (objects[i] != DISK_NONE)
                disk_tier_free(r.disk, objects[i]);
    }
    EXPECT(n_put >= 1 && n_put < 200);
    EXPECT(put_disk(&r, 500) != DISK_NONE);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* ---- objects that are not filled yet ------------------------------------------------------ */

static int no_fence(void *user, uint32_t job, struct err *err) {
    (void)user, (void)job, (void)err;
    return SLUICE_OK;
}

/* The object of `cell`, when the gate is open; cell 7 fails. */
static int fill_at_the_gate(void *user, uint32_t job, struct host_source from, uint64_t at,
                            uint64_t n, void *to, struct err *err) {
    struct stream s = {.seed = from.cell, .at = at, .fails_at = UINT64_MAX};
    (void)job;
    pthread_mutex_lock(user);
    pthread_mutex_unlock(user);
    return from.cell == 7 ? err_set(err, SLUICE_ERR_DEVICE, "gone") : fill(&s, at, n, to, err);
}

TEST(tier_disk_writes_what_is_filled_later) {
    const char *folder = strdup(test_temporary("tier-later"));
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct rig r;
    struct disk_options o = options_for(folder);
    struct err err;
    int32_t tokens[2][MAX_TOKENS];
    uint32_t host[2], disk[2];
    bool is_found;
    if (!rig_open(&r, &o))
        return;
    const struct host_filler filler = {&gate, no_fence, fill_at_the_gate};
    EXPECT_INT(host_tier_start(&r.host, &filler, &err), SLUICE_OK);
    pthread_mutex_lock(&gate);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t cell = i ? 7 : 3;
        struct disk_meta meta = meta_of(cell, tokens[i]);
        EXPECT_INT(host_tier_put_later(&r.host, meta.bytes, (struct host_source){.cell = cell},
                                       &host[i], &err),
                   SLUICE_OK);
        disk[i] = disk_tier_put(r.disk, &meta, tokens[i], host[i]);
        EXPECT(disk[i] != DISK_NONE && !disk_tier_is_written(r.disk, disk[i]));
    }
    pthread_mutex_unlock(&gate);
    struct stream s = stream_of(3); /* found, whether it is filled, written, or neither */
    EXPECT_INT(disk_tier_get(r.disk, disk[0], tokens[0], take, &s, &is_found, &err), SLUICE_OK);
    EXPECT(is_found && !s.is_wrong);
    EXPECT_INT(disk_tier_get(r.disk, disk[1], tokens[1], take, &s, &is_found, &err), SLUICE_OK);
    EXPECT(!is_found);
    disk_tier_flush(r.disk);
    EXPECT(disk_tier_is_written(r.disk, disk[0]) && !disk_tier_is_written(r.disk, disk[1]));
    EXPECT(disk_tier_broken(r.disk) == NULL);
    for (uint32_t i = 0; i < 2; i++)
        host_tier_free(&r.host, host[i]);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* ---- into host memory ahead of need ------------------------------------------------------- */

/* What is fetched of an object, whatever else happens to it meanwhile. */
struct fetched {
    uint64_t seed;
    uint32_t disk, host; /* DISK_NONE, HOST_NONE: freed */
    bool is_spoiled;
};

static void fetch_disk(struct rig *r, struct disk_fetch *f, struct fetched *o) {
    int32_t tokens[MAX_TOKENS];
    struct err err;
    struct disk_meta meta = meta_of(o->seed, tokens);
    EXPECT_INT(host_tier_reserve(&r->host, meta.bytes, &o->host, &err), SLUICE_OK);
    disk_fetch_begin(f, o->disk, tokens, o->host);
}

static void check_fetched(struct rig *r, const struct fetched *o) {
    struct stream s = stream_of(o->seed);
    struct err err;
    bool is_filled = host_tier_wait(&r->host, o->host);
    EXPECT(!host_tier_is_pending(&r->host, o->host));
    EXPECT(is_filled == !o->is_spoiled);
    if (is_filled)
        EXPECT_INT(host_tier_get(&r->host, o->host, take, &s, &err), SLUICE_OK);
    EXPECT(!s.is_wrong);
}

/* Objects are fetched, waited for, filled by somebody else, and freed in either tier at any time;
 * some of their files are spoiled. */
TEST(tier_disk_is_fetched_to_host_memory) {
    enum { N = 60 };
    const char *folder = strdup(test_temporary("tier-fetch"));
    struct disk_options options = options_for(folder);
    struct fetched objects[N];
    struct disk_fetch *f;
    struct rig r;
    struct err err;
    uint64_t random = 3;
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(disk_fetch_open(&f, r.disk, &r.host, MAX_TOKENS, &err), SLUICE_OK);
    for (uint32_t i = 0; i < N; i++)
        objects[i] = (struct fetched){1 + i, put_disk(&r, 1 + i), HOST_NONE, i % 7 == 0};
    disk_tier_flush(r.disk);
    for (uint32_t i = 0; i < N; i++)
        if (objects[i].is_spoiled)
            EXPECT_INT(truncate(path_of(folder, objects[i].seed), 100), 0);
    for (uint32_t i = 0; i < N; i++) {
        struct fetched *o = &objects[i];
        struct stream s = stream_of(o->seed);
        EXPECT(disk_fetch_has_room(f));
        fetch_disk(&r, f, o);
        uint32_t how = below(&random, 4);
        if (how == 0 && !o->is_spoiled) { /* evicted from the device, which has it too */
            EXPECT(host_tier_finish(&r.host, o->host, fill, &s));
        } else if (how == 1) { /* its room is wanted by others */
            host_tier_free(&r.host, o->host);
            o->host = HOST_NONE;
        } else if (how == 2 && !o->is_spoiled) { /* found, or gone before it was read */
            disk_tier_free(r.disk, o->disk);
            o->disk = DISK_NONE;
            o->is_spoiled = !host_tier_wait(&r.host, o->host);
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        if (objects[i].host != HOST_NONE) {
            check_fetched(&r, &objects[i]);
            host_tier_free(&r.host, objects[i].host);
        }
        if (objects[i].disk != DISK_NONE)
            disk_tier_free(r.disk, objects[i].disk);
    }
    EXPECT(disk_fetch_moved(f).bytes > 0);
    disk_fetch_close(f);
    EXPECT(disk_tier_broken(r.disk) == NULL);
    rig_close(&r);
    remove_tree(folder);
    free((char *)folder);
}

/* What waits at the end is dropped: it is neither filled nor pinned. */
TEST(tier_disk_fetch_ends_with_files_that_wait) {
    const char *folder = strdup(test_temporary("tier-fetch-end"));
    struct disk_options options = options_for(folder);
    struct fetched objects[100];
    struct disk_fetch *f;
    struct rig r;
    struct err err;
    if (!rig_open(&r, &options))
        return;
    EXPECT_INT(disk_fetch_open(&f, r.disk, &r.host, MAX_TOKENS, &err), SLUICE_OK);
    for (uint32_t i = 0; i < 100; i++)
        objects[i] = (struct fetched){1 + i, put_disk(&r, 1 + i), HOST_NONE, false};
    disk_tier_flush(r.disk);
    for (uint32_t i = 0; i < 100; i++)
        fetch_disk(&r, f, &objects[i]);
    disk_fetch_close(f);
    for (uint32_t i = 0; i < 100; i++) {
        EXPECT(!host_tier_is_pending(&r.host, objects[i].host));
        host_tier_free(&r.host, objects[i].host);
    }
    rig_close(&r);
    disk_fetch_close(NULL);
    remove_tree(folder);
    free((char *)folder);
}
