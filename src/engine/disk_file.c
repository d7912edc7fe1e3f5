/* disk_file.c - one object of the disk tier as a file. */
#include "engine/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/entropy.h"
#include "base/size.h"

enum { DISK_VERSION = 2 };

struct disk_header {
    char magic[8];
    uint32_t version, kind;
    struct hash128 identity, hash, parent;
    uint32_t position, n_tokens;
    uint64_t bytes;
    uint64_t reserved;
    uint64_t checksum; /* of all before it, and of the tokens */
};
_Static_assert(sizeof(struct disk_header) == 96, "disk_header");

static const char magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'};

/* ---- names -------------------------------------------------------------------------------- */

static const char *const endings[DISK_KINDS] = {
    [DISK_BLOCK] = ".block", [DISK_SNAPSHOT] = ".snapshot"};

void disk_file_name(const struct disk_meta *meta, char out[DISK_NAME_BYTES]) {
    snprintf(out, DISK_NAME_BYTES, "%08x-%016llx%016llx%s", meta->position,
             (unsigned long long)meta->hash.high, (unsigned long long)meta->hash.low,
             endings[meta->kind]);
}

/* n hexadecimal digits in lower case, as we write them. */
static bool parse_hex(const char *text, int n, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef";
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return false;
        *out = *out << 4 | (uint64_t)(digit - digits);
    }
    return true;
}

bool disk_file_parse(const char *name, struct disk_meta *out) {
    uint64_t position, high, low;
    if (!parse_hex(name, 8, &position) || name[8] != '-' || !parse_hex(name + 9, 16, &high) ||
        !parse_hex(name + 25, 16, &low))
        return false;
    *out = (struct disk_meta){.position = (uint32_t)position, .hash = {low, high}};
    for (int kind = 0; kind < DISK_KINDS; kind++) {
        out->kind = kind;
        if (strcmp(name + 41, endings[kind]) == 0)
            return true;
    }
    return false;
}

static void temporary_name(char out[DISK_NAME_BYTES]) {
    uint64_t n; /* O_EXCL finds a name that is taken */
    entropy_fill(&n, sizeof n);
    snprintf(out, DISK_NAME_BYTES, ".%016llx.tmp", (unsigned long long)n);
}

bool disk_file_is_temporary(const char *name) {
    uint64_t n;
    return name[0] == '.' && parse_hex(name + 1, 16, &n) && strcmp(name + 17, ".tmp") == 0;
}

void disk_file_folder(struct hash128 identity, char out[DISK_FOLDER_BYTES]) {
    snprintf(out, DISK_FOLDER_BYTES, "%016llx%016llx", (unsigned long long)identity.high,
             (unsigned long long)identity.low);
}

bool disk_file_is_folder(const char *name) {
    uint64_t high, low;
    return parse_hex(name, 16, &high) && parse_hex(name + 16, 16, &low) && name[32] == 0;
}

/* ---- the format --------------------------------------------------------------------------- */

uint64_t disk_file_bytes(uint32_t n_tokens, uint64_t payload) {
    uint64_t head = sizeof(struct disk_header) + (uint64_t)n_tokens * sizeof(int32_t);
    return size_plus(size_plus(head, payload), sizeof(uint64_t));
}

static uint64_t head_checksum(const struct disk_header *h, const int32_t *tokens) {
    struct hash sum;
    hash_begin(&sum);
    hash_add(&sum, h, offsetof(struct disk_header, checksum));
    hash_add(&sum, tokens, h->n_tokens * sizeof *tokens);
    return hash64_end(&sum);
}

static struct disk_header header_of(const struct disk_head *head) {
    const struct disk_meta *meta = head->meta;
    struct disk_header h = {
        .version = DISK_VERSION,
        .kind = meta->kind,
        .identity = head->identity,
        .hash = meta->hash,
        .parent = meta->parent,
        .position = meta->position,
        .n_tokens = meta->n_tokens,
        .bytes = meta->bytes,
    };
    memcpy(h.magic, magic, sizeof magic);
    h.checksum = head_checksum(&h, head->tokens);
    return h;
}

/* ---- writing ------------------------------------------------------------------------------ */

struct disk_writer {
    int fd, why; /* errno */
    struct hash hash;
    const atomic_bool *stop;
};

static int fail(struct disk_writer *w, int why) {
    w->why = why;
    return SLUICE_ERR_IO;
}

static int put_bytes(struct disk_writer *w, const void *bytes, uint64_t n) {
    const uint8_t *p = bytes;
    while (n > 0) {
        ssize_t done = write(w->fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail(w, done < 0 ? errno : ENOSPC);
        p += done;
        n -= (uint64_t)done;
    }
    return SLUICE_OK;
}

static int put_hashed(struct disk_writer *w, const void *bytes, uint64_t n) {
    hash_add(&w->hash, bytes, n);
    return put_bytes(w, bytes, n);
}

static int put_payload(void *user, uint64_t at, uint64_t n, const void *from, struct err *err) {
    enum { CHUNK = 1 << 20 };
    struct disk_writer *w = user;
    int status = SLUICE_OK;
    (void)at, (void)err;
    for (uint64_t done = 0; !status && done < n; done += CHUNK)
        status = atomic_load(w->stop) ? fail(w, ECANCELED)
                                      : put_hashed(w, (const uint8_t *)from + done,
                                                   n - done < CHUNK ? n - done : CHUNK);
    return status;
}

static int put_all(struct disk_writer *w, const struct disk_header *h, const int32_t *tokens,
                   struct host_tier *host, uint32_t host_object) {
    if (!host_tier_wait(host, host_object))
        return fail(w, ECANCELED);
    /* Finds a full disk before gigabytes are written, where the file system can tell. */
    uint64_t bytes = disk_file_bytes(h->n_tokens, h->bytes);
    if (fallocate(w->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return fail(w, errno);
    int status = put_hashed(w, h, sizeof *h);
    if (!status)
        status = put_hashed(w, tokens, h->n_tokens * sizeof *tokens);
    if (!status)
        status = host_tier_get(host, host_object, put_payload, w, NULL);
    uint64_t sum = hash64_end(&w->hash);
    if (!status)
        status = put_bytes(w, &sum, sizeof sum);
    if (!status && fdatasync(w->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = fail(w, errno);
    return status;
}

int disk_file_write(int folder, const struct disk_head *head, struct host_tier *host,
                    uint32_t host_object, const atomic_bool *stop) {
    char temporary[DISK_NAME_BYTES], name[DISK_NAME_BYTES];
    struct disk_header h = header_of(head);
    struct disk_writer w = {.stop = stop};
    hash_begin(&w.hash);
    disk_file_name(head->meta, name);
    temporary_name(temporary);
    w.fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w.fd < 0)
        return errno;
    flock(w.fd, LOCK_EX | LOCK_NB); /* some file systems have no locks: see is_abandoned */
    int status = put_all(&w, &h, head->tokens, host, host_object);
    if (!status && renameat(folder, temporary, folder, name) != 0)
        status = fail(&w, errno);
    if (status)
        unlinkat(folder, temporary, 0);
    close(w.fd);
    return status ? w.why : 0;
}

/* ---- reading ------------------------------------------------------------------------------ */

int disk_file_open(int folder, const char *name, uint64_t *bytes) {
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0)
        *bytes = (uint64_t)st.st_size;
    return fd;
}

static bool read_fully(int fd, void *to, uint64_t n) {
    uint8_t *p = to;
    while (n > 0) {
        ssize_t done = read(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        p += done;
        n -= (uint64_t)done;
    }
    return true;
}

bool disk_file_read_head(int fd, uint64_t file_bytes, struct hash128 identity,
                         struct disk_meta *meta, int32_t *tokens, uint32_t max_tokens) {
    struct disk_header h;
    if (!read_fully(fd, &h, sizeof h) || h.n_tokens > max_tokens ||
        disk_file_bytes(h.n_tokens, h.bytes) != file_bytes ||
        !read_fully(fd, tokens, h.n_tokens * sizeof *tokens))
        return false;
    meta->parent = h.parent;
    meta->n_tokens = h.n_tokens;
    meta->bytes = h.bytes;
    struct disk_header expected = header_of(&(struct disk_head){identity, meta, tokens});
    return memcmp(&h, &expected, sizeof h) == 0;
}

int disk_file_read_payload(int fd, const struct disk_head *head, struct disk_buffer buffer,
                           tier_take_fn *take, void *user, bool *is_whole, struct err *err) {
    struct disk_header h = header_of(head);
    struct hash hash;
    uint64_t sum;
    *is_whole = false;
    hash_begin(&hash);
    hash_add(&hash, &h, sizeof h);
    hash_add(&hash, head->tokens, h.n_tokens * sizeof *head->tokens);
    for (uint64_t at = 0; at < h.bytes; at += buffer.bytes) {
        uint64_t n = h.bytes - at < buffer.bytes ? h.bytes - at : buffer.bytes;
        if (!read_fully(fd, buffer.at, n))
            return SLUICE_OK;
        hash_add(&hash, buffer.at, n);
        int status = take(user, at, n, buffer.at, err);
        if (status)
            return status;
    }
    *is_whole = read_fully(fd, &sum, sizeof sum) && sum == hash64_end(&hash);
    return SLUICE_OK;
}
