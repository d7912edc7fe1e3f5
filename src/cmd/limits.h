/* limits.h - the machine's limits for a plain program, to compare the cache's tiers with. */
#ifndef CMD_LIMITS_H
#define CMD_LIMITS_H

/* GB/s. 0: it could not be measured. */
struct limits {
    double copy, first_copy; /* memcpy into touched memory, and into untouched memory */
    double write, read; /* of a file: write and fdatasync; read after the page cache dropped it */
};

/* Measures 128 MB in pieces of 2 MB, as the host tier copies. The file is made in `folder` and has
 * no name; NULL: files are not measured. */
struct limits limits_measure(const char *folder);

#endif
