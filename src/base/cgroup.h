/* cgroup.h - what the control groups that this process is in leave to it: version 1, version 2, and
 * both side by side. A group is bound by the limits of all above it.
 *
 * root: the folder that /proc and /sys are in, "" for this machine; tests make one. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdint.h>

/* The bytes that the tightest limit leaves; page cache, which the kernel drops when it is needed,
 * counts as free. UINT64_MAX: no limit. */
uint64_t cgroup_memory_left(const char *root);

/* The tightest quota of processor time, in processors, rounded up; 0: none. */
int cgroup_processors(const char *root);

/* The number after `name` at the beginning of a line of a system file, ROOT PATH; UINT64_MAX: there
 * is none, or it is "max". */
uint64_t cgroup_read(const char *root, const char *path, const char *name);

#endif
