/* descriptor.h - descriptors that were open when the program began: their names; and waiting.
 *
 * Opening a path like /dev/stdin makes a new description of the file, which begins at its start,
 * and fails for sockets. Ask here first, and use the descriptor itself, at its position. */
#ifndef BASE_DESCRIPTOR_H
#define BASE_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The descriptor that "/dev/stdin", "/dev/fd/3", "/proc/self/fd/3" ... mean; -1 for other paths. */
static inline int descriptor_of_path(const char *path) {
    static const char *const streams[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"};
    for (int i = 0; i < 3; i++)
        if (strcmp(path, streams[i]) == 0)
            return i;
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(folders[i]);
        size_t digits = strncmp(path, folders[i], n) == 0 ? strspn(path + n, "0123456789") : 0;
        if (digits == 0 || digits > 6 || path[n + digits] != 0)
            continue;
        int number = 0;
        for (const char *p = path + n; *p; p++)
            number = number * 10 + (*p - '0');
        return number;
    }
    return -1;
}

/* Standard streams that were closed when the program began are opened, so that no file takes their
 * numbers: a model as the prompt, progress in an output file. Reading or writing them still fails.
 */
static inline void descriptors_reserve(void) {
    static const int flags[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", flags[fd]) != fd)
            return; /* open returns the lowest free number: this one */
}

/* After a failed call: whether it failed because the descriptor is non-blocking (another process
 * that shares it may have set that); if so, waits until it can be read (POLLIN) or written
 * (POLLOUT). */
static inline bool wait_for(int fd, short event) {
    struct pollfd p = {.fd = fd, .events = event};
    return (errno == EAGAIN || errno == EWOULDBLOCK) && (poll(&p, 1, -1) > 0 || errno == EINTR);
}

/* How long to wait for a FIFO's other end: enough when both ends are started at once. */
enum { FIFO_PATIENCE_MS = 3000 };

#endif
