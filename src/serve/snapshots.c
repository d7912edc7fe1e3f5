/* snapshots.c - conversations that clients keep under ids they choose. */
#include "serve/snapshots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/outfile.h"

enum { MAX_SNAPSHOTS = 4096 }; /* snapshots, so that a list stays short */

static const char ending[] = ".json";

struct snapshot {
    char id[SNAPSHOT_MAX_ID + 1];
    time_t created;
    size_t bytes;
    char *text; /* NULL: it is in its file */
    struct snapshot *next;
};

struct snapshots {
    pthread_mutex_t lock;
    char *folder; /* NULL: in memory */
    struct snapshot *first;
    uint32_t n;
    uint64_t bytes, max_bytes;
};

bool snapshot_id_is_good(const char *id) {
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    size_t n = strspn(id, alphabet);
    return n >= 1 && n <= SNAPSHOT_MAX_ID && id[n] == 0;
}

/* ---- the table --------------------------------------------------------------------------------
 *
 * Sorted by age. Under the lock. */

static struct snapshot **find(struct snapshots *s, const char *id) {
    struct snapshot **e = &s->first;
    while (*e && strcmp((*e)->id, id) != 0)
        e = &(*e)->next;
    return e;
}

static void forget(struct snapshots *s, struct snapshot **at) {
    struct snapshot *e = *at;
    *at = e->next;
    s->bytes -= e->bytes;
    s->n--;
    free(e->text);
    free(e);
}

static void enter(struct snapshots *s, struct snapshot *e) {
    struct snapshot **at = &s->first;
    while (*at && (*at)->created <= e->created)
        at = &(*at)->next;
    e->next = *at;
    *at = e;
    s->bytes += e->bytes;
    s->n++;
}

/* ---- the folder --------------------------------------------------------------------------- */

/* To free; NULL when memory ran out. */
static char *path_of(const struct snapshots *s, const char *id) {
    size_t size = strlen(s->folder) + 1 + strlen(id) + sizeof ending;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/%s%s", s->folder, id, ending);
    return path;
}

static int make_folder(struct snapshots *s, const char *folder, struct err *err) {
    size_t size = strlen(folder) + sizeof "/snapshots";
    s->folder = malloc(size);
    if (!s->folder)
        return err_memory(err, "snapshots");
    snprintf(s->folder, size, "%s/snapshots", folder);
    if (mkdir(s->folder, 0700) && errno != EEXIST)
        return err_set(err, SLUICE_ERR_IO, "%s: %s", s->folder, strerror(errno));
    return SLUICE_OK;
}

/* Notes a file that has one of our names; others are left alone. */
static void note_file(struct snapshots *s, int folder, const char *name) {
    struct snapshot e = {0};
    struct stat st;
    size_t n = strlen(name);
    if (n < sizeof ending || n - (sizeof ending - 1) > SNAPSHOT_MAX_ID ||
        strcmp(name + n - (sizeof ending - 1), ending) != 0)
        return;
    memcpy(e.id, name, n - (sizeof ending - 1));
    if (!snapshot_id_is_good(e.id) || fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) ||
        !S_ISREG(st.st_mode) || s->n >= MAX_SNAPSHOTS)
        return;
    struct snapshot *copy = malloc(sizeof *copy);
    if (!copy)
        return;
    e.created = st.st_mtime;
    e.bytes = (size_t)st.st_size;
    *copy = e;
    enter(s, copy);
}

static int scan(struct snapshots *s, struct err *err) {
    DIR *d = opendir(s->folder);
    if (!d)
        return err_set(err, SLUICE_ERR_IO, "%s: %s", s->folder, strerror(errno));
    for (struct dirent *e; (e = readdir(d));)
        note_file(s, dirfd(d), e->d_name);
    closedir(d);
    return SLUICE_OK;
}

/* The folder may be deleted at any time, and the cache's around it. */
static void make_folders(const struct snapshots *s) {
    char *slash = strrchr(s->folder, '/');
    *slash = 0;
    mkdir(s->folder, 0700);
    *slash = '/';
    mkdir(s->folder, 0700);
}

static int write_file(const struct snapshots *s, const char *id, struct str text, struct err *err) {
    struct outfile out = {.fd = -1};
    char *path = path_of(s, id);
    make_folders(s);
    int status = path ? outfile_open_own(&out, path, err) : err_memory(err, "a snapshot");
    if (!status)
        status = outfile_write(&out, text.at, text.len, err);
    if (!status)
        status = outfile_commit(&out, err);
    else
        outfile_abort(&out);
    free(path);
    return status;
}

static char *read_file(const struct snapshots *s, const char *id, size_t *n, bool *is_there) {
    char *path = path_of(s, id), *text = NULL;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    struct stat st;
    *is_there = fd >= 0 || (errno != ENOENT && errno != ENOTDIR);
    bool is_file = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                   (uint64_t)st.st_size <= s->max_bytes;
    if (is_file && (text = malloc((size_t)st.st_size + 1))) {
        ssize_t got = read(fd, text, (size_t)st.st_size);
        text[ *n = got > 0 ? (size_t)got : 0] = 0;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    return text;
}

/* ---- open and close ----------------------------------------------------------------------- */

int snapshots_open(struct snapshots **out, const char *folder, uint64_t max_bytes,
                   struct err *err) {
    struct snapshots *s = *out = calloc(1, sizeof *s);
    if (!s)
        return err_memory(err, "snapshots");
    s->max_bytes = max_bytes;
    pthread_mutex_init(&s->lock, NULL);
    int status = folder ? make_folder(s, folder, err) : SLUICE_OK;
    if (!status && folder)
        status = scan(s, err);
    if (!status)
        return SLUICE_OK;
    snapshots_close(s);
    *out = NULL;
    return status;
}

void snapshots_close(struct snapshots *s) {
    if (!s)
        return;
    while (s->first)
        forget(s, &s->first);
    pthread_mutex_destroy(&s->lock);
    free(s->folder);
    free(s);
}

/* ---- snapshots ---------------------------------------------------------------------------- */

static int check_fits(struct snapshots *s, const char *id, size_t bytes, struct err *err) {
    const struct snapshot *before = *find(s, id);
    uint64_t others = s->bytes - (before ? before->bytes : 0);
    if (bytes > s->max_bytes - (others < s->max_bytes ? others : s->max_bytes))
        return err_set(err, SLUICE_ERR_MEMORY,
                       "snapshot %s has %zu bytes, and the others %llu, expected at most %llu "
                       "together: delete some",
                       id, bytes, (unsigned long long)others, (unsigned long long)s->max_bytes);
    if (!before && s->n >= MAX_SNAPSHOTS)
        return err_set(err, SLUICE_ERR_MEMORY,
                       "there are %d snapshots, expected fewer: delete some", MAX_SNAPSHOTS);
    return SLUICE_OK;
}

int snapshots_put(struct snapshots *s, const char *id, struct str text, struct err *err) {
    struct snapshot *e = calloc(1, sizeof *e);
    char *copy = e && !s->folder ? malloc(text.len + 1) : NULL;
    if (!e || (!s->folder && !copy)) {
        free(e);
        return err_memory(err, "a snapshot");
    }
    if (copy)
        memcpy(copy, text.at, text.len);
    *e = (struct snapshot){.created = time(NULL), .bytes = text.len, .text = copy};
    snprintf(e->id, sizeof e->id, "%s", id);
    pthread_mutex_lock(&s->lock);
    int status = check_fits(s, id, text.len, err);
    if (!status && s->folder)
        status = write_file(s, id, text, err);
    if (!status) {
        struct snapshot **before = find(s, id);
        if (*before)
            forget(s, before);
        enter(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    if (status) {
        free(copy);
        free(e);
    }
    return status;
}

char *snapshots_get(struct snapshots *s, const char *id, size_t *n) {
    char *text = NULL;
    pthread_mutex_lock(&s->lock);
    struct snapshot **at = find(s, id);
    const struct snapshot *e = *at;
    bool is_there = true;
    if (e && s->folder)
        text = read_file(s, id, n, &is_there);
    if (!is_there)
        forget(s, at);
    else if (e && !s->folder && (text = malloc(e->bytes + 1))) {
        memcpy(text, e->text, e->bytes);
        text[ *n = e->bytes] = 0;
    }
    pthread_mutex_unlock(&s->lock);
    return text;
}

int snapshots_drop(struct snapshots *s, const char *id, bool *is_there, struct err *err) {
    int status = SLUICE_OK;
    pthread_mutex_lock(&s->lock);
    struct snapshot **at = find(s, id);
    *is_there = *at != NULL;
    char *path = *is_there && s->folder ? path_of(s, id) : NULL;
    if (*is_there && s->folder && !path)
        status = err_memory(err, "a snapshot");
    else if (path && unlink(path) && errno != ENOENT && errno != ENOTDIR)
        status = err_set(err, SLUICE_ERR_IO, "%s: cannot delete: %s", path, strerror(errno));
    if (*is_there && !status)
        forget(s, at);
    pthread_mutex_unlock(&s->lock);
    free(path);
    return status;
}

json_t *snapshots_list(struct snapshots *s) {
    json_t *out = json_array();
    pthread_mutex_lock(&s->lock);
    for (const struct snapshot *e = s->first; e; e = e->next)
        json_array_append_new(out, json_pack("{s:s, s:s, s:I, s:I}", "id", e->id, "object",
                                             "snapshot", "created_at", (json_int_t)e->created,
                                             "bytes", (json_int_t)e->bytes));
    pthread_mutex_unlock(&s->lock);
    return out;
}
