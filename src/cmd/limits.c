/* limits.c - the machine's limits for a plain program: memcpy, and a file written and read. */
#include "cmd/limits.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

enum { PIECE = 2 << 20, PIECES = 64, REPEATS = 3 };

static double rate(double started) {
    return (double)PIECE * PIECES / (seconds_now() - started) / 1e9;
}

static double copy_all(char *to, const char *from) {
    double started = seconds_now();
    for (int i = 0; i < PIECES; i++)
        memcpy(to + (size_t)i * PIECE, from + (size_t)i * PIECE, PIECE);
    return rate(started);
}

static double write_all(int fd, const char *from) {
    double started = seconds_now();
    for (int i = 0; i < PIECES; i++)
        if (write(fd, from + (size_t)i * PIECE, PIECE) != PIECE)
            return 0;
    return fdatasync(fd) == 0 ? rate(started) : 0;
}

static double read_all(int fd, char *to) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    lseek(fd, 0, SEEK_SET);
    double started = seconds_now();
    for (int i = 0; i < PIECES; i++)
        if (read(fd, to, PIECE) != PIECE)
            return 0;
    return rate(started);
}

static void measure_file(struct limits *l, const char *folder, char *memory) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    l->write = write_all(fd, memory);
    if (l->write > 0)
        l->read = read_all(fd, memory);
    close(fd);
}

struct limits limits_measure(const char *folder) {
    struct limits l = {0};
    size_t bytes = (size_t)PIECE * PIECES;
    char *from = malloc(bytes);
    void *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from && fresh != MAP_FAILED) {
        madvise(fresh, bytes, MADV_HUGEPAGE); /* as the host tier does */
        memset(from, 1, bytes);
        l.first_copy = copy_all(fresh, from);
        for (int i = 0; i < REPEATS; i++) {
            double again = copy_all(fresh, from);
            l.copy = again > l.copy ? again : l.copy;
        }
        if (folder)
            measure_file(&l, folder, fresh);
    }
    if (fresh != MAP_FAILED)
        munmap(fresh, bytes);
    free(from);
    return l;
}
