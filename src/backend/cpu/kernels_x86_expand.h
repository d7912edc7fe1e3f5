/* kernels_x86_format.h - how a weight type is expanded on x86: shared by kernels_x86.h and the
 * dot_rows of kernels_avx2.c and kernels_avx512.c, which include it and first define VEC and INTS.
 */

/* A group of 32 values of TILE rows. */
struct expanded {
    INTS w[8];            /* values 4j .. 4j + 3 of every row, plus the type's bias */
    VEC scale[2], min[2]; /* of the group, or of its halves */
};

struct format {
    /* Group g of a packed block. */
    void (*expand)(const uint8_t *block, int g, struct expanded *out);
    uint32_t groups, block_bytes; /* of a packed block */
    int runs;                     /* scales in a group: 1 or 2 */
    int bias_log2;                /* the weights' bias is a power of two; 0: none */
    bool has_min;
    int max; /* the largest weight, with its bias; 255: whole bytes, which AVX2 keeps signed */
};
