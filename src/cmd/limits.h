/* limits.h - what the machine gives a plain program, for comparison with the cache's tiers. */
#ifndef CMD_LIMITS_H
#define CMD_LIMITS_H

/* GB/s. 0: it could not be measured. */
struct limits {
    double copy, first_copy; /* memcpy into memory that was used before, and that never was */
    double write, read; /* of a file: write and fdatasync; read after the page cache dropped it */
};

/* Of 128 MB in pieces of 2 MB, as the host tier has them. The file is made in `folder` and has no
 * name; NULL: files are not measured. */
struct limits limits_measure(const char *folder);

#endif
