/* test_file.c - the containers: GGUF, safetensors, folders, JSON, and the files below them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/log.h"
#include "base/outfile.h"
#include "file/folder.h"
#include "file/gguf.h"
#include "file/gguf_write.h"
#include "file/json.h"
#include "file/path.h"
#include "file/safetensors.h"
#include "test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- making files byte by byte ---- */

struct bytes {
    uint8_t *at;
    size_t size, capacity;
};

/* Room for more bytes, zeroed. */
static uint8_t *extend(struct bytes *b, size_t size) {
    if (b->size + size >= b->capacity) {
        b->capacity = 2 * (b->size + size) + 64;
        b->at = realloc(b->at, b->capacity);
    }
    b->size += size;
    return memset(b->at + b->size - size, 0, size);
}

static void put(struct bytes *b, const void *bytes, size_t size) {
    memcpy(extend(b, size), bytes, size);
}

static void put_u32(struct bytes *b, uint32_t value) {
    put(b, &value, sizeof value);
}

static void put_u64(struct bytes *b, uint64_t value) {
    put(b, &value, sizeof value);
}

static void put_str(struct bytes *b, const char *z) {
    put_u64(b, strlen(z));
    put(b, z, strlen(z));
}

static void put_zeros(struct bytes *b, size_t count) {
    extend(b, count);
}

static void pad(struct bytes *b, size_t align) {
    put_zeros(b, (align - b->size % align) % align);
}

static void drop(struct bytes *b) {
    free(b->at);
    *b = (struct bytes){0};
}

static void begin(struct bytes *b, uint64_t n_tensors, uint64_t n_keys) {
    drop(b);
    put(b, "GGUF", 4);
    put_u32(b, 3);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}

static void key_u32(struct bytes *b, const char *name, uint32_t value) {
    put_str(b, name);
    put_u32(b, GGUF_U32);
    put_u32(b, value);
}

/* The start of an array; its elements follow. */
static void key_array(struct bytes *b, const char *name, uint32_t type, uint64_t count) {
    put_str(b, name);
    put_u32(b, GGUF_ARRAY);
    put_u32(b, type);
    put_u64(b, count);
}

static void tensor(struct bytes *b, const char *name, uint32_t type, uint64_t offset,
                   uint32_t n_dims, const uint64_t *dims) {
    put_str(b, name);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

#define DIMS(...)                                                                                  \
    (uint32_t)(sizeof((uint64_t[]){__VA_ARGS__}) / 8), (uint64_t[]) {                              \
        __VA_ARGS__                                                                                \
    }

/* The example of the format's description: one string, one array, one tensor. */
static void put_example(struct bytes *b) {
    begin(b, 1, 2);
    put_str(b, "general.architecture");
    put_u32(b, GGUF_STRING);
    put_str(b, "qwen35");
    key_array(b, "a.b", GGUF_U32, 2);
    put_u32(b, 7);
    put_u32(b, 9);
    tensor(b, "w", DT_F32, 0, DIMS(4, 2));
    pad(b, 32);
    for (int i = 0; i < 8; i++)
        put(b, &(float){(float)i}, 4);
}

/* A new, empty folder for the files of a test, which removes it. */
static void fresh_folder(char out[512], const char *name) {
    snprintf(out, 512, "%s", test_temporary(name));
    EXPECT(mkdir(out, 0777) == 0);
}

/* A copy of just this size, so that the sanitizer sees a read beyond the end. */
static void *exact_copy(const void *bytes, size_t size) {
    void *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, bytes, size);
    return copy;
}

/* Reads the first and last byte of all there is: a bad pointer would show. */
static unsigned touch_gguf(const struct gguf *g) {
    unsigned sum = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++)
        sum += g->tensors[i].data[0] + g->tensors[i].data[g->tensors[i].bytes - 1];
    for (uint32_t i = 0; i < g->n_keys; i++) {
        const struct gguf_key *key = &g->keys[i];
        for (uint64_t k = 0; k < key->count; k++) {
            if (key->type == GGUF_STRING)
                sum += key->strings[k].len ? (unsigned char)key->strings[k].at[0] : 0;
            else
                sum += key->data[k * gguf_type_bytes(key->type)];
        }
    }
    return sum;
}

static void expect_error_at(int line, const char *what, const struct err *err,
                            const char *fragment) {
    if (err->code >= 0)
        test_fail(__FILE__, line, "%s: opened, expected \"%s\"", what, fragment);
    else if (!strstr(err->text, fragment))
        test_fail(__FILE__, line, "%s: \"%s\", expected \"%s\"", what, err->text, fragment);
}

/* The bytes must be refused with a line that holds the fragment. */
static void refuse_at(int line, const struct bytes *b, const char *fragment) {
    struct gguf *g;
    struct err err = {0};
    void *copy = exact_copy(b->at, b->size);
    gguf_parse(&g, copy, b->size, &err);
    expect_error_at(line, "gguf", &err, fragment);
    EXPECT(!g || !err.code);
    if (err.code)
        EXPECT(gguf_parse(&g, copy, b->size, NULL) == err.code); /* errors may go unheard */
    gguf_close(g);
    free(copy);
}
#define REFUSE(b, fragment) refuse_at(__LINE__, b, fragment)

static struct gguf *accept_at(int line, const struct bytes *b) {
    struct gguf *g;
    struct err err = {0};
    if (gguf_parse(&g, b->at, b->size, &err))
        test_fail(__FILE__, line, "refused: %s", err.text);
    return g;
}
#define ACCEPT(b) accept_at(__LINE__, b)

/* ---- GGUF: reading ---- */

TEST(gguf_example) {
    static const uint8_t start[] = {0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0, 1, 0, 0,
                                    0,    0,    0,    0,    0, 2, 0, 0, 0, 0, 0,
                                    0,    0,    0x14, 0,    0, 0, 0, 0, 0, 0, 'g'};
    static const uint8_t end[] = {1, 0, 0, 0, 0, 0, 0, 0, 'w', 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
                                  2, 0, 0, 0, 0, 0, 0, 0, 0,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    struct bytes b = {0};
    put_example(&b);
    EXPECT_INT(b.size, 192);
    EXPECT(memcmp(b.at, start, sizeof start) == 0);
    EXPECT(memcmp(b.at + 146 - sizeof end, end, sizeof end) == 0);
    struct gguf *g = ACCEPT(&b);
    if (g) {
        struct str arch = {0};
        EXPECT_INT(gguf_get_str(g, "general.architecture", &arch, NULL), 1);
        EXPECT(str_is(arch, "qwen35"));
        const struct gguf_key *key = gguf_key(g, "a.b");
        EXPECT(key && key->is_array && key->type == GGUF_U32 && key->count == 2);
        EXPECT(key && gguf_int_at(key, 0) == 7 && gguf_int_at(key, 1) == 9);
        EXPECT_STR(gguf_key_type_name(key), "u32[]");
        const struct tensor *t = gguf_tensor(g, "w");
        EXPECT(t && t->type == DT_F32 && t->n_dims == 2 && t->dims[0] == 4 && t->dims[1] == 2);
        EXPECT(t && t->dims[2] == 1 && t->n_values == 8 && t->bytes == 32);
        EXPECT(t && t->data == b.at + 160);
        EXPECT_INT(g->version, 3);
        EXPECT_INT(g->alignment, 32);
        EXPECT(!gguf_tensor(g, "v") && !gguf_key(g, "a.c"));
    }
    gguf_close(g);
    drop(&b);
}

/* One value of the example changed. */
TEST(gguf_hostile_patches) {
    static const struct {
        size_t at, size;
        uint64_t value;
        const char *fragment;
    } cases[] = {
        {0, 4, 0x4C4D4747, "is not a GGUF file: begins with 47 47 4d 4c, expected 47 47 55 46"},
        {4, 4, 0, "is GGUF version 0, expected 2 or 3"},
        {4, 4, 1, "is GGUF version 1, expected 2 or 3"},
        {4, 4, 4, "is GGUF version 4, expected 2 or 3"},
        {4, 4, 0x02000000, "is a big-endian GGUF file, expected little-endian"},
        {4, 4, 0x03000000, "is a big-endian GGUF file, expected little-endian"},
        {8, 8, 1000001, "the header says 1000001 tensors, expected at most 1000000"},
        {8, 8, UINT64_MAX, "18446744073709551615 tensors, expected at most 1000000"},
        {8, 8, 1000000, "1000000 tensors, the 87 bytes left in the file hold at most 3"},
        {8, 8, 4, "the header says 4 tensors, the 87 bytes left in the file hold at most 3"},
        {8, 8, 2, "tensor name  has 0 bytes, expected 1 to 63"},
        {16, 8, 1000001, "the header says 1000001 keys, expected at most 1000000"},
        {16, 8, UINT64_MAX, "18446744073709551615 keys, expected at most 1000000"},
        {16, 8, 1000000, "1000000 keys, the 168 bytes left in the file hold at most 12"},
        {16, 8, 13, "the header says 13 keys, the 168 bytes left in the file hold at most 12"},
        {24, 8, 0, "key name  has 0 bytes, expected 1 to 65535"},
        {24, 8, 161, "key 1 needs 161 bytes, the file has 160 left"},
        {24, 8, UINT64_MAX, "key 1 needs 18446744073709551615 bytes, the file has 160 left"},
        {32, 1, 0, "holds a zero byte"},
        {32, 1, 0xFF, "eneral.architecture is not UTF-8"},
        {52, 4, 13, "key general.architecture has type id 13, expected at most 12"},
        {52, 4, UINT32_MAX, "key general.architecture has type id 4294967295"},
        {56, 8, 129, "key 1 general.architecture needs 129 bytes, the file has 128 left"},
        {56, 8, 1ull << 63, "general.architecture needs 9223372036854775808 bytes"},
        {70, 8, 1ull << 32, "key 2 needs 4294967296 bytes"},
        {85, 4, 9, "key a.b is an array of arrays"},
        {85, 4, 13, "key a.b has type id 13, expected at most 12"},
        {85, 4, 8, "key 2 a.b needs 38654705671 bytes, the file has 87 left"},
        {89, 8, 24, "key 2 a.b needs 96 bytes, the file has 95 left"},
        {89, 8, (1 << 30) + 1, "key a.b has 1073741825 elements, expected at most 1073741824"},
        {89, 8, 1ull << 62, "key a.b has 4611686018427387904 elements, expected at most"},
        {89, 8, UINT64_MAX, "key a.b has 18446744073709551615 elements, expected at most"},
        {105, 8, 0, "tensor name  has 0 bytes, expected 1 to 63"},
        {105, 8, 80, "tensor 1 needs 80 bytes, the file has 79 left"},
        {105, 8, UINT64_MAX, "tensor 1 needs 18446744073709551615 bytes, the file has 79 left"},
        {113, 1, 0, "holds a zero byte, expected none"},
        {113, 1, 0xC3, "is not UTF-8"},
        {114, 4, 5, "tensor w has 5 dimensions, expected at most 4"},
        {114, 4, UINT32_MAX, "tensor w has 4294967295 dimensions, expected at most 4"},
        {118, 8, 0, "tensor w has dimension 0 of 0, expected 1 to 281474976710656"},
        {126, 8, (1ull << 48) + 1, "tensor w has dimension 1 of 281474976710657, expected 1 to"},
        {126, 8, UINT64_MAX, "tensor w has dimension 1 of 18446744073709551615, expected 1 to"},
        {118, 8, 1ull << 48, "tensor w has 2251799813685248 bytes at offset 0 of the data, the"},
        {126, 8, 3, "tensor w has 48 bytes at offset 0 of the data, the file has 32 bytes of data"},
        {134, 4, 8, "tensor w has rows of 4 values, expected a multiple of 32 for Q8_0"},
        {134, 4, 12, "tensor w has rows of 4 values, expected a multiple of 256 for Q4_K"},
        {138, 8, 1, "tensor w is at offset 1 of the data, expected a multiple of 32"},
        {138, 8, 32, "tensor w has 32 bytes at offset 32 of the data, the file has 32 bytes"},
        {138, 8, 1 << 20, "tensor w has 32 bytes at offset 1048576 of the data"},
        {138, 8, UINT64_MAX - 31, "tensor w has 32 bytes at offset 18446744073709551584"},
    };
    struct bytes b = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_example(&b);
        memcpy(b.at + cases[i].at, &cases[i].value, cases[i].size);
        REFUSE(&b, cases[i].fragment);
    }
    static const uint32_t no_types[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 44, 255, UINT32_MAX};
    for (size_t i = 0; i < COUNT(no_types); i++) {
        char fragment[80];
        put_example(&b);
        memcpy(b.at + 134, &no_types[i], 4);
        snprintf(fragment, sizeof fragment, "tensor w has type id %u, which is retired or unknown",
                 no_types[i]);
        REFUSE(&b, fragment);
    }
    drop(&b);
}

TEST(gguf_hostile_keys) {
    struct bytes b = {0};
    begin(&b, 0, 2);
    key_u32(&b, "k", 1);
    key_u32(&b, "k", 1);
    REFUSE(&b, "key k appears twice");

    char name[65537];
    memset(name, 'n', sizeof name);
    name[65536] = 0;
    begin(&b, 0, 1);
    key_u32(&b, name, 1);
    REFUSE(&b, "has 65536 bytes, expected 1 to 65535");
    name[65535] = 0;
    begin(&b, 0, 1);
    key_u32(&b, name, 1);
    gguf_close(ACCEPT(&b));

    begin(&b, 0, 1);
    key_array(&b, "s", GGUF_STRING, 3);
    put_zeros(&b, 23);
    REFUSE(&b, "key s has 3 strings, the 23 bytes left in the file hold at most 2");
    begin(&b, 0, 1);
    key_array(&b, "s", GGUF_STRING, 1 << 30);
    put_zeros(&b, 64);
    REFUSE(&b, "key s has 1073741824 strings, the 64 bytes left in the file hold at most 8");
    begin(&b, 0, 1);
    key_array(&b, "d", GGUF_F64, 1 << 30);
    put_zeros(&b, 64);
    REFUSE(&b, "key 1 d needs 8589934592 bytes, the file has 64 left");
    drop(&b);
}

TEST(gguf_alignment) {
    static const struct {
        uint32_t type;
        uint32_t value;
        const char *fragment;
    } cases[] = {
        {GGUF_U32, 0, "key general.alignment is 0, expected a power of two up to 1048576"},
        {GGUF_U32, 3, "key general.alignment is 3, expected a power of two"},
        {GGUF_U32, 48, "key general.alignment is 48, expected a power of two"},
        {GGUF_U32, 1 << 21, "key general.alignment is 2097152, expected a power of two up to"},
        {GGUF_U32, 1u << 31, "key general.alignment is 2147483648, expected a power of two"},
        {GGUF_I32, 32, "key general.alignment is i32, expected u32"},
        {GGUF_F32, 32, "key general.alignment is f32, expected u32"},
        {GGUF_U32, 1, NULL},
        {GGUF_U32, 64, NULL},
        {GGUF_U32, 1 << 20, NULL},
    };
    struct bytes b = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        begin(&b, 0, 1);
        put_str(&b, "general.alignment");
        put_u32(&b, cases[i].type);
        put_u32(&b, cases[i].value);
        if (cases[i].fragment) {
            REFUSE(&b, cases[i].fragment);
            continue;
        }
        b.at[8] = 1;
        tensor(&b, "w", DT_I8, 0, DIMS(3));
        pad(&b, cases[i].value);
        put(&b, "abc", 3);
        struct gguf *g = ACCEPT(&b);
        EXPECT(g && memcmp(g->tensors[0].data, "abc", 3) == 0);
        gguf_close(g);
    }
    begin(&b, 0, 1);
    key_array(&b, "general.alignment", GGUF_U32, 1);
    put_u32(&b, 32);
    REFUSE(&b, "key general.alignment is u32[], expected u32");
    drop(&b);
}

TEST(gguf_hostile_tensors) {
    struct bytes b = {0};
    begin(&b, 2, 0);
    tensor(&b, "w", DT_F32, 0, DIMS(8));
    tensor(&b, "w", DT_F32, 32, DIMS(8));
    pad(&b, 32);
    put_zeros(&b, 64);
    REFUSE(&b, "tensor w appears twice");

    char name[65];
    memset(name, 'n', sizeof name);
    name[64] = 0;
    begin(&b, 1, 0);
    tensor(&b, name, DT_F32, 0, DIMS(1));
    put_zeros(&b, 64);
    REFUSE(&b, "has 64 bytes, expected 1 to 63");
    name[63] = 0;
    begin(&b, 1, 0);
    tensor(&b, name, DT_F32, 0, 0, NULL);
    pad(&b, 32);
    put_zeros(&b, 4);
    struct gguf *g = ACCEPT(&b);
    EXPECT(g && g->tensors[0].n_dims == 0 && g->tensors[0].n_values == 1);
    gguf_close(g);

    const uint64_t big = 1ull << 48;
    static const struct {
        uint32_t type;
        uint64_t last;
        const char *fragment;
    } sizes[] = {
        {DT_I8, (1 << 14) + 1, "tensor w has more than 4611686018427387904 values"},
        {DT_I8, 1ull << 48, "tensor w has more than 4611686018427387904 values"},
        {DT_F64, 1 << 14, "tensor w of 4611686018427387904 F64 values has more bytes than can be"},
        {DT_F32, 1 << 14, "tensor w of 4611686018427387904 F32 values has more bytes than can be"},
        {DT_F16, 1 << 14, "tensor w has 9223372036854775808 bytes at offset 0"},
        {DT_I8, 1 << 14, "tensor w has 4611686018427387904 bytes at offset 0"},
    };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        begin(&b, 1, 0);
        tensor(&b, "w", sizes[i].type, 0, DIMS(big, sizes[i].last));
        put_zeros(&b, 64);
        REFUSE(&b, sizes[i].fragment);
    }
    begin(&b, 1, 0);
    tensor(&b, "w", DT_I8, 0, DIMS(big, big, big, big));
    put_zeros(&b, 64);
    REFUSE(&b, "tensor w has more than 4611686018427387904 values");
    begin(&b, 1, 0);
    tensor(&b, "w", DT_Q8_0, 0, 0, NULL);
    put_zeros(&b, 64);
    REFUSE(&b, "tensor w has rows of 1 values, expected a multiple of 32 for Q8_0");

    begin(&b, 1, 0);
    tensor(&b, "w", DT_F32, 0, DIMS(8));
    REFUSE(&b, "the file has 57 bytes, its data begins at 64");
    drop(&b);
    REFUSE(&b, "has 0 bytes, expected the 24 of a GGUF header at least");
    put(&b, "GGUF\3", 6);
    put_zeros(&b, 17);
    REFUSE(&b, "has 23 bytes, expected the 24 of a GGUF header at least");
    drop(&b);
}

TEST(gguf_overlaps) {
    static const struct {
        uint64_t a, b, c; /* offsets of tensors of 48, 32 and 4 bytes */
        const char *fragment;
    } cases[] = {
        {0, 64, 96, NULL},
        {96, 0, 32, NULL},
        {32, 128, 0, NULL}, /* gaps */
        {0, 32, 96, "tensor b begins at offset 32 of the data, inside a, which ends at 48"},
        {64, 64, 0, "of the data, inside "},
        {64, 0, 96, "tensor c begins at offset 96 of the data, inside a, which ends at 112"},
        {0, 0, 0, "of the data, inside "},
    };
    struct bytes b = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        begin(&b, 3, 0);
        tensor(&b, "a", DT_F32, cases[i].a, DIMS(4, 3));
        tensor(&b, "b", DT_F32, cases[i].b, DIMS(4, 2));
        tensor(&b, "c", DT_F32, cases[i].c, DIMS(1));
        pad(&b, 32);
        put_zeros(&b, 160);
        if (cases[i].fragment)
            REFUSE(&b, cases[i].fragment);
        else
            gguf_close(ACCEPT(&b));
    }
    drop(&b);
}

/* A file with a key of each type, arrays, and tensors of several types. */
static void put_rich(struct bytes *b) {
    begin(b, 3, 2 * GGUF_TYPE_COUNT - 2);
    for (uint32_t type = 0; type < GGUF_TYPE_COUNT; type++) {
        char name[16];
        if (type == GGUF_ARRAY)
            continue;
        snprintf(name, sizeof name, "one.%s", gguf_type_name(type));
        put_str(b, name);
        put_u32(b, type);
        put(b, "\5\0\0\0\0\0\0\0value", type == GGUF_STRING ? 13 : gguf_type_bytes(type));
        snprintf(name, sizeof name, "all.%s", gguf_type_name(type));
        key_array(b, name, type, 2);
        for (int i = 0; i < 2; i++)
            put(b, "\2\0\0\0\0\0\0\0ab", type == GGUF_STRING ? 10 : gguf_type_bytes(type));
    }
    tensor(b, "blk.0.q", DT_Q8_0, 0, DIMS(32, 2));
    tensor(b, "blk.0.k", DT_Q4_K, 96, DIMS(256, 1, 1));
    tensor(b, "scalar", DT_BF16, 256, 0, NULL);
    pad(b, 32);
    put_zeros(b, 258);
}

TEST(gguf_every_truncation) {
    struct bytes b = {0};
    put_rich(&b);
    gguf_close(ACCEPT(&b));
    for (size_t size = 0; size < b.size; size++) {
        struct gguf *g;
        struct err err = {0};
        void *copy = exact_copy(b.at, size);
        EXPECT(gguf_parse(&g, copy, size, &err) < 0 && err.text[0]); /* even the last byte counts */
        gguf_close(g);
        free(copy);
    }
    drop(&b);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

TEST(gguf_random_flips) {
    struct bytes b = {0};
    uint64_t seed = 20250711;
    unsigned sum = 0;
    put_rich(&b);
    uint8_t *copy = exact_copy(b.at, b.size);
    for (int i = 0; i < 20000; i++) {
        struct gguf *g;
        struct err err = {0};
        size_t at = next_random(&seed) % b.size;
        copy[at] ^= (uint8_t)(1 + next_random(&seed) % 255);
        if (gguf_parse(&g, copy, b.size, &err) == 0)
            sum += touch_gguf(g);
        EXPECT(g || err.text[0]);
        gguf_close(g);
        copy[at] = b.at[at];
    }
    EXPECT(sum > 0);
    free(copy);
    drop(&b);
}

TEST(gguf_values) {
    static const struct {
        const char *name;
        uint32_t type, size;
        uint64_t bits;
        const char *fragment; /* of gguf_get_u32; NULL: it gives bits */
    } cases[] = {
        {"u8", GGUF_U8, 1, 255, NULL},
        {"i8", GGUF_I8, 1, 127, NULL},
        {"i8 negative", GGUF_I8, 1, 0x80, "key i8 negative is -128, expected 0 or more"},
        {"u16", GGUF_U16, 2, 65535, NULL},
        {"i16 negative", GGUF_I16, 2, 0xFFFF, "is -1, expected 0 or more"},
        {"u32", GGUF_U32, 4, UINT32_MAX, NULL},
        {"i32 negative", GGUF_I32, 4, 0x80000000, "is -2147483648, expected 0 or more"},
        {"u64", GGUF_U64, 8, 1, NULL},
        {"u64 big", GGUF_U64, 8, 1ull << 32, "is 4294967296, expected at most 4294967295"},
        {"u64 most", GGUF_U64, 8, UINT64_MAX, "is 18446744073709551615, expected at most"},
        {"i64 negative", GGUF_I64, 8, UINT64_MAX, "is -1, expected 0 or more"},
        {"bool", GGUF_BOOL, 1, 2, "key bool is bool, expected an integer"},
        {"f32", GGUF_F32, 4, 0x3FC00000, "key f32 is f32, expected an integer"},
        {"f32 inf", GGUF_F32, 4, 0x7F800000, "is f32, expected an integer"},
        {"f64 big", GGUF_F64, 8, 0x7E37E43C8800759C, "is f64, expected an integer"},
        {"f64 nan", GGUF_F64, 8, 0x7FF8000000000000, "is f64, expected an integer"},
    };
    struct bytes b = {0};
    begin(&b, 0, COUNT(cases) + 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_str(&b, cases[i].name);
        put_u32(&b, cases[i].type);
        put(&b, &cases[i].bits, cases[i].size);
    }
    key_array(&b, "array", GGUF_U32, 0);
    struct gguf *g = ACCEPT(&b);
    for (size_t i = 0; g && i < COUNT(cases); i++) {
        struct err err = {0};
        uint32_t value = 0;
        int found = gguf_get_u32(g, cases[i].name, &value, &err);
        if (cases[i].fragment)
            expect_error_at(__LINE__, cases[i].name, &err, cases[i].fragment);
        else
            EXPECT(found == 1 && value == cases[i].bits);
    }
    struct err err = {0};
    uint64_t u64 = 77;
    float f32 = 0;
    bool flag = false;
    struct str s;
    EXPECT(gguf_get_u64(g, "u64 most", &u64, &err) == 1 && u64 == UINT64_MAX);
    EXPECT(gguf_int_at(gguf_key(g, "u64 most"), 0) == INT64_MAX);
    EXPECT(gguf_float_at(gguf_key(g, "u64 most"), 0) == 0x1p64);
    EXPECT(gguf_float_at(gguf_key(g, "i8 negative"), 0) == -128);
    EXPECT(gguf_get_u64(g, "absent", &u64, &err) == 0 && u64 == UINT64_MAX);
    EXPECT(gguf_get_f32(g, "absent", &f32, &err) == 0 && f32 == 0);
    EXPECT(gguf_get_bool(g, "absent", &flag, &err) == 0 && !flag);
    EXPECT(gguf_get_str(g, "absent", &s, &err) == 0);
    EXPECT(gguf_get_bool(g, "bool", &flag, &err) == 1 && flag);
    EXPECT(gguf_get_f32(g, "f32", &f32, &err) == 1 && f32 == 1.5f);
    EXPECT(gguf_get_f32(g, "f32 inf", &f32, &err) < 0);
    EXPECT_STR(err.text, "(memory): key f32 inf is inf, expected a finite f32");
    EXPECT(gguf_get_f32(g, "f64 big", &f32, &err) < 0 && strstr(err.text, "e+300, expected a"));
    EXPECT(gguf_get_f32(g, "f64 nan", &f32, &err) < 0 && strstr(err.text, "nan, expected a"));
    EXPECT(gguf_get_f32(g, "u8", &f32, &err) < 0 && strstr(err.text, "is u8, expected f32"));
    EXPECT(gguf_get_bool(g, "u8", &flag, &err) < 0 && strstr(err.text, "is u8, expected bool"));
    EXPECT(gguf_get_str(g, "u8", &s, &err) < 0 && strstr(err.text, "is u8, expected string"));
    EXPECT(gguf_get_u64(g, "array", &u64, &err) < 0);
    EXPECT_STR(err.text, "(memory): key array is u32[], expected an integer");
    gguf_close(g);
    drop(&b);
}

/* Metadata memory stays in proportion to the file, whatever it claims. */
TEST(gguf_memory_is_bounded) {
    struct bytes b = {0};
    enum { MANY = 20000 };
    begin(&b, 0, MANY);
    for (int i = 0; i < MANY; i++) {
        char name[8];
        snprintf(name, sizeof name, "%x", i);
        put_str(&b, name);
        put_u32(&b, GGUF_U8);
        put(&b, "", 1);
    }
    struct gguf *g = ACCEPT(&b);
    EXPECT(g && g->arena.used <= 16 * b.size + (64 << 10));
    EXPECT(g && gguf_key(g, "4e1f") == &g->keys[MANY - 1]);
    gguf_close(g);
    drop(&b);
}

/* A string beyond the cap in a file long enough for it, whose pages are never touched. */
TEST(gguf_longest_string) {
    const char *path = test_temporary("long.gguf");
    struct bytes b = {0};
    struct gguf *g;
    struct err err = {0};
    for (uint64_t extra = 0; extra < 2; extra++) {
        begin(&b, 0, 1);
        put_str(&b, "s");
        put_u32(&b, GGUF_STRING);
        put_u64(&b, GGUF_MAX_LENGTH + extra);
        int fd = open(path, O_RDWR | O_CREAT, 0666);
        EXPECT(fd >= 0 && write(fd, b.at, b.size) == (ssize_t)b.size);
        EXPECT(ftruncate(fd, (off_t)GGUF_MAX_LENGTH + 100) == 0);
        close(fd);
        EXPECT_INT(gguf_open(&g, path, &err), extra ? SLUICE_ERR_FORMAT : SLUICE_OK);
        gguf_close(g);
    }
    expect_error_at(__LINE__, "long", &err,
                    "key s holds a string of 1073741825 bytes, expected at most 1073741824");
    unlink(path);
    drop(&b);
}

/* ---- GGUF: writing ---- */

static void expect_same_key(const struct gguf_key *a, const struct gguf_key *b) {
    EXPECT(a && b && str_equal(a->name, b->name) && a->type == b->type);
    EXPECT(a->is_array == b->is_array && a->count == b->count);
    for (uint64_t i = 0; a->type == GGUF_STRING && i < a->count; i++)
        EXPECT(str_equal(a->strings[i], b->strings[i]));
    if (a->type != GGUF_STRING && a->count)
        EXPECT(memcmp(a->data, b->data, a->count * gguf_type_bytes(a->type)) == 0);
}

static void expect_same_file(const struct gguf *a, const struct gguf *b) {
    EXPECT_INT(a->n_keys, b->n_keys);
    EXPECT_INT(a->n_tensors, b->n_tensors);
    for (uint32_t i = 0; i < a->n_keys && i < b->n_keys; i++)
        expect_same_key(&a->keys[i], &b->keys[i]);
    for (uint32_t i = 0; i < a->n_tensors && i < b->n_tensors; i++) {
        const struct tensor *s = &a->tensors[i], *t = &b->tensors[i];
        EXPECT(str_equal(s->name, t->name) && s->type == t->type && s->n_dims == t->n_dims);
        EXPECT(memcmp(s->dims, t->dims, sizeof s->dims) == 0 && s->bytes == t->bytes);
        EXPECT(memcmp(s->data, t->data, s->bytes) == 0);
    }
}

/* Writes a file again from what was read; the payloads in two pieces each. */
static void copy_gguf(const struct gguf *from, const char *path, uint32_t alignment) {
    struct gguf_writer *w = NULL;
    struct err err = {0};
    EXPECT_INT(gguf_writer_open(&w, path, alignment, &err), 0);
    for (uint32_t i = 0; i < from->n_keys; i++)
        EXPECT_INT(gguf_write_key(w, &from->keys[i], &err), 0);
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        const struct tensor *t = &from->tensors[i];
        EXPECT_INT(gguf_write_tensor(w, t->name, t->type, t->dims, t->n_dims, &err), 0);
    }
    uint64_t size = gguf_writer_size(w);
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        const struct tensor *t = &from->tensors[i];
        EXPECT_INT(gguf_write_data(w, t->data, t->bytes / 3, &err), 0);
        EXPECT_INT(gguf_write_data(w, t->data + t->bytes / 3, t->bytes - t->bytes / 3, &err), 0);
    }
    EXPECT_INT(gguf_writer_close(w, &err), 0);
    struct stat info;
    EXPECT(stat(path, &info) == 0 && (uint64_t)info.st_size == size);
}

TEST(gguf_write_round_trips) {
    static const uint32_t alignments[] = {0, 32, 1, 64, 4096};
    const char *path = test_temporary("round.gguf");
    struct bytes b = {0};
    put_rich(&b);
    struct gguf *from = ACCEPT(&b);
    for (size_t i = 0; i < COUNT(alignments); i++) {
        struct gguf *to;
        struct err err = {0};
        copy_gguf(from, path, alignments[i]);
        if (gguf_open(&to, path, &err)) {
            test_fail(__FILE__, __LINE__, "%s", err.text);
            break;
        }
        uint32_t alignment = alignments[i] ? alignments[i] : 32;
        EXPECT_INT(to->alignment, alignment);
        EXPECT_INT(to->file_bytes % alignment, 0);
        if (alignment == 32) {
            expect_same_file(from, to);
        } else { /* the alignment is said in front */
            EXPECT_INT(to->n_keys, from->n_keys + 1);
            to->keys++;
            to->n_keys--;
            expect_same_file(from, to);
        }
        gguf_close(to);
    }
    unlink(path);
    gguf_close(from);
    drop(&b);
}

TEST(gguf_write_is_byte_for_byte_the_example) {
    const char *path = test_temporary("example.gguf");
    struct bytes b = {0};
    size_t size = 0;
    put_example(&b);
    struct gguf *g = ACCEPT(&b);
    copy_gguf(g, path, 0);
    char *written = test_read_file(path, &size);
    EXPECT_INT(size, b.size);
    EXPECT(written && memcmp(written, b.at, b.size) == 0);
    free(written);
    unlink(path);
    gguf_close(g);
    drop(&b);
}

TEST(gguf_write_keys) {
    const char *path = test_temporary("keys.gguf");
    const struct str words[] = {STR("a"), STR(""), STR("\xFF\0z")};
    struct gguf_writer *w = NULL;
    struct gguf *g = NULL;
    struct err err = {0};
    EXPECT_INT(gguf_writer_open(&w, path, 0, &err), 0);
    EXPECT_INT(gguf_write_u32(w, "u", 1, &err), 0);
    EXPECT_INT(gguf_write_f32(w, "f", 0.5f, &err), 0);
    EXPECT_INT(gguf_write_bool(w, "b", true, &err), 0);
    EXPECT_INT(gguf_write_str(w, "s", STR("text"), &err), 0);
    EXPECT_INT(gguf_write_strs(w, "ss", words, 3, &err), 0);
    EXPECT_INT(gguf_write_i32s(w, "is", (int32_t[]){-1, 2}, 2, &err), 0);
    EXPECT_INT(gguf_write_f32s(w, "fs", NULL, 0, &err), 0);
    EXPECT_INT(gguf_write_str(w, "u", STR("now a string"), &err), 0); /* replaces */
    EXPECT_INT(gguf_write_u32(w, "general.alignment", 7, &err), 0);   /* is left out */
    EXPECT(gguf_write_u32(w, "", 1, &err) < 0);
    EXPECT(strstr(err.text, "keys.gguf: key name  has 0 bytes, expected 1 to 65535") != NULL);
    uint64_t size = gguf_writer_size(w);
    EXPECT_INT(gguf_writer_close(w, &err), 0);
    EXPECT_INT(gguf_open(&g, path, &err), 0);
    if (g) {
        struct str s;
        EXPECT_INT(g->file_bytes, size);
        EXPECT_INT(g->n_keys, 7);
        EXPECT(str_is(g->keys[0].name, "u") && str_is(g->keys[2].name, "b"));
        EXPECT(gguf_get_str(g, "u", &s, &err) == 1 && str_is(s, "now a string"));
        const struct gguf_key *key = gguf_key(g, "ss");
        EXPECT(key && key->count == 3 && str_equal(key->strings[2], words[2]));
        EXPECT(gguf_int_at(gguf_key(g, "is"), 0) == -1);
        EXPECT(gguf_key(g, "fs")->count == 0);
    }
    gguf_close(g);
    unlink(path);
}

/* More keys than any table begins with; each is written twice, the second time another value. */
TEST(gguf_write_many_keys) {
    enum { KEYS = 100000 };
    struct gguf_writer *w = NULL;
    struct gguf *g = NULL;
    struct err err = {0};
    void *header = NULL;
    size_t size = 0;
    char name[32];
    clock_t started = clock();
    EXPECT_INT(gguf_writer_open(&w, NULL, 0, &err), 0);
    for (uint32_t i = 0; i < 2 * KEYS; i++) {
        snprintf(name, sizeof name, "key.%u", i / 2);
        EXPECT_INT(gguf_write_u32(w, name, i, &err), 0);
    }
    EXPECT_INT(gguf_writer_header(w, &header, &size, &err), 0);
    EXPECT_INT(gguf_parse(&g, header, size, &err), 0);
    EXPECT_INT(g ? g->n_keys : 0, KEYS);
    for (uint32_t i = 0; g && i < KEYS; i += 997) {
        uint32_t value = 0;
        snprintf(name, sizeof name, "key.%u", i);
        EXPECT(str_is(g->keys[i].name, name) && gguf_get_u32(g, name, &value, &err) == 1);
        EXPECT_INT(value, 2 * i + 1);
    }
    EXPECT((clock() - started) / CLOCKS_PER_SEC < 30); /* comparing each with each takes minutes */
    gguf_close(g);
    free(header);
    gguf_writer_abort(w);
}

TEST(gguf_write_refuses) {
    const char *path = test_temporary("refused.gguf");
    struct gguf_writer *w = NULL;
    struct err err = {0};
    EXPECT(gguf_writer_open(&w, path, 48, &err) < 0 && !w);
    expect_error_at(__LINE__, "alignment", &err, "alignment is 48, expected a power of two");
    EXPECT(gguf_writer_open(&w, "/no/such/folder/x.gguf", 0, &err) < 0 && !w);
    expect_error_at(__LINE__, "folder", &err, "/no/such/folder/x.gguf: cannot create");
    EXPECT_INT(gguf_writer_open(&w, path, 0, &err), 0);
    EXPECT(gguf_write_tensor(w, STR(""), DT_F32, NULL, 0, &err) < 0);
    EXPECT(gguf_write_tensor(w, STR("q"), DT_Q8_0, (uint64_t[]){31}, 1, &err) < 0);
    expect_error_at(__LINE__, "rows", &err, "refused.gguf: tensor q has rows of 31 values");
    EXPECT(gguf_write_tensor(w, STR("n"), DT_F32, (uint64_t[]){0}, 1, &err) < 0);
    EXPECT_INT(gguf_write_tensor(w, STR("a"), DT_I8, (uint64_t[]){1}, 1, &err), 0);
    EXPECT_INT(gguf_write_tensor(w, STR("a"), DT_I8, (uint64_t[]){1}, 1, &err), 0);
    EXPECT(gguf_write_data(w, "x", 1, &err) < 0);
    expect_error_at(__LINE__, "twice", &err, "tensor a is described twice");
    gguf_writer_abort(w);
    EXPECT(access(path, F_OK) != 0);
    gguf_writer_abort(NULL);
}

/* ---- GGUF: split models ---- */

/* How a good model of three parts with one tensor each, a, b and c, is spoilt. */
struct split_case {
    const char *fragment;         /* of the error; NULL: it opens */
    const char *name;             /* of the parts, without suffix */
    int open;                     /* the part that is opened, from 0 */
    int missing;                  /* a part that is not there; 0: none */
    bool is_plain;                /* the first part is called name.gguf */
    bool has_no_total;            /* no split.tensors.count */
    uint32_t more_total;          /* added to split.tensors.count */
    int odd;                      /* the part to which the rest applies */
    uint32_t more_no, more_count; /* added to its keys */
    const char *tensor;           /* the name of its tensor */
};

static const char *split_tensor(const struct split_case *c, int i) {
    static const char *names[] = {"a", "b", "c"};
    return c->tensor && i == c->odd ? c->tensor : names[i];
}

static void write_part(const char *path, const struct split_case *c, int i) {
    struct gguf_writer *w = NULL;
    struct err err = {0};
    uint32_t no = (uint32_t)i + (i == c->odd ? c->more_no : 0);
    uint32_t count = 3 + (i == c->odd ? c->more_count : 0);
    EXPECT_INT(gguf_writer_open(&w, path, i == 1 ? 64 : 0, &err), 0);
    EXPECT_INT(gguf_write_u32(w, "split.no", no, &err), 0);
    EXPECT_INT(gguf_write_u32(w, "split.count", count, &err), 0);
    if (!c->has_no_total)
        EXPECT_INT(gguf_write_u32(w, "split.tensors.count", 3 + c->more_total, &err), 0);
    EXPECT_INT(gguf_write_u32(w, "part", (uint32_t)i, &err), 0);
    struct str name = str_of(split_tensor(c, i));
    EXPECT_INT(gguf_write_tensor(w, name, DT_I8, (uint64_t[]){5}, 1, &err), 0);
    EXPECT_INT(gguf_write_data(w, "12345", 5, &err), 0);
    EXPECT_INT(gguf_writer_close(w, &err), 0);
}

static void check_split(const char *folder, const struct split_case *c) {
    char paths[3][600];
    struct err err = {0};
    struct gguf *g = NULL;
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s-%05d-of-00003.gguf", folder, c->name, i + 1);
        if (i == 0 && c->is_plain)
            snprintf(paths[i], sizeof paths[i], "%s/%s.gguf", folder, c->name);
        if (i == 0 || c->missing != i)
            write_part(paths[i], c, i);
    }
    gguf_open(&g, paths[c->open], &err);
    if (c->fragment) {
        expect_error_at(__LINE__, c->name, &err, c->fragment);
        EXPECT(!g && strncmp(err.text, folder, strlen(folder)) == 0);
    } else if (!g) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
    } else {
        uint32_t part = 9;
        EXPECT(g->n_parts == 3 && g->n_tensors == 3 && gguf_get_u32(g, "part", &part, &err) == 1);
        EXPECT_INT(part, 0);
        for (int i = 0; i < 3; i++) {
            const struct tensor *t = gguf_tensor(g, split_tensor(c, i));
            EXPECT(t && memcmp(t->data, "12345", 5) == 0);
        }
        EXPECT_INT(g->file_bytes, g->parts[0].size + g->parts[1].size + g->parts[2].size);
    }
    gguf_close(g);
    for (int i = 0; i < 3; i++)
        unlink(paths[i]);
}

TEST(gguf_split) {
    static const struct split_case cases[] = {
        {.name = "good"},
        {.name = "good-00001-of-00003"},
        {.fragment = "missing-00002-of-00003.gguf: cannot open", .name = "missing", .missing = 1},
        {.fragment = "lost-00003-of-00003.gguf: cannot open", .name = "lost", .missing = 2},
        {.fragment = "is part 2 of 3, expected the first: ", .name = "second", .open = 1},
        {.fragment = "/third-00001-of-00003.gguf", .name = "third", .open = 2},
        {.fragment =
             "plain.gguf: is part 1 of 3, expected a name that ends in -00001-of-00003.gguf",
         .name = "plain",
         .is_plain = true},
        {.fragment = "says it is part 3 of 3, expected 2 of 3",
         .name = "order",
         .odd = 1,
         .more_no = 1},
        {.fragment = "says it is part 3 of 4, expected 3 of 3",
         .name = "count",
         .odd = 2,
         .more_count = 1},
        {.fragment = "expected a name that ends in -00001-of-00004.gguf",
         .name = "four",
         .more_count = 1},
        {.fragment = "is part 3 of 3, expected the first: a name that ends in -00001-of-00003.gguf",
         .name = "astray",
         .more_no = 2},
        {.fragment = "key split.count is 65536, expected at most 65535",
         .name = "many",
         .more_count = 65533},
        {.fragment = "key split.no is 3, but split.count is 3", .name = "high", .more_no = 3},
        {.fragment = "its 3 parts hold 3 tensors, expected 4 by split.tensors.count",
         .name = "sum",
         .more_total = 1},
        {.fragment = "has no key split.tensors.count", .name = "silent", .has_no_total = true},
        {.fragment = "twice-00003-of-00003.gguf: tensor a is in an earlier part already",
         .name = "twice",
         .odd = 2,
         .tensor = "a"},
    };
    char folder[512];
    fresh_folder(folder, "split");
    for (size_t i = 0; i < COUNT(cases); i++)
        check_split(folder, &cases[i]);
    EXPECT(rmdir(folder) == 0);
}

/* ---- GGUF: files as they come ---- */

TEST(gguf_references) {
    static const struct {
        const char *name;
        uint32_t n_tensors, n_keys;
        const char *arch;
    } cases[] = {
        {"reference/llama-a/model-f32.gguf", 21, 27, "llama"},
        {"reference/llama-a/model-q8_0.gguf", 21, 27, "llama"},
        {"reference/llama-b/model-f32.gguf", 21, 27, "llama"},
        {"reference/llama-k/model-q4_k_m.gguf", 20, 27, "llama"},
        {"reference/qwen2-a/model-f32.gguf", 27, 26, "qwen2"},
        {"reference/qwen3-a/model-f32.gguf", 35, 26, "qwen3"},
        {"reference/qwen3moe-a/model-f32.gguf", 39, 29, "qwen3moe"},
        {"reference/qwen3moe-a/model-q8_0.gguf", 39, 29, "qwen3moe"},
        {"reference/qwen3next-a/model-f32.gguf", 55, 36, "qwen3next"},
        {"reference/qwen3next-a/model-fused.gguf", 53, 36, "qwen3next"},
        {"reference/qwen35-dense-a/model-f32.gguf", 55, 33, "qwen35"},
        {"reference/qwen35-dense-a/model-q8_0.gguf", 55, 33, "qwen35"},
        {"reference/qwen35-dense-k/model-q4_k_m.gguf", 27, 33, "qwen35"},
        {"reference/qwen35-moe-a/model-f32.gguf", 73, 36, "qwen35moe"},
        {"tokenizer/ggml-vocab-gpt-2.gguf", 0, 16, "gpt2"},
        {"tokenizer/ggml-vocab-llama-spm.gguf", 0, 22, "llama"},
        {"tokenizer/ggml-vocab-starcoder.gguf", 0, 19, "starcoder2"},
        {"tokenizer/qwen35-vocab.gguf", 0, 10, "qwen35"},
    };
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        struct gguf *g;
        struct err err = {0};
        struct str arch = {0};
        size_t n = i % COUNT(cases);
        if (i == COUNT(cases))
            setenv("SLUICE_NO_MMAP", "1", 1); /* and once more by reading */
        if (gguf_open(&g, test_data(cases[n].name), &err)) {
            test_fail(__FILE__, __LINE__, "%s", err.text);
            break;
        }
        EXPECT_INT(g->n_tensors, cases[n].n_tensors);
        EXPECT_INT(g->n_keys, cases[n].n_keys);
        EXPECT(gguf_get_str(g, "general.architecture", &arch, &err) == 1);
        EXPECT(str_is(arch, cases[n].arch));
        EXPECT(g->parts[0].is_mapped == (i < COUNT(cases)));
        EXPECT(touch_gguf(g) > 0);
        EXPECT(g->arena.used < 64 << 20);
        gguf_close(g);
    }
    unsetenv("SLUICE_NO_MMAP");
}

TEST(gguf_open_errors) {
    struct gguf *g;
    struct err err = {0};
    EXPECT(gguf_open(&g, "/no/such.gguf", &err) == SLUICE_ERR_IO && !g);
    EXPECT_STR(err.text, "/no/such.gguf: cannot open: No such file or directory");
    EXPECT(gguf_open(&g, "/", &err) == SLUICE_ERR_IO && !g);
    EXPECT_STR(err.text, "/: is a directory, expected a file");
    EXPECT(gguf_open(&g, "/dev/null", &err) == SLUICE_ERR_IO && !g);
    EXPECT_STR(err.text, "/dev/null: is a character device, expected a file");
    const char *empty = test_temporary("empty.gguf");
    close(open(empty, O_WRONLY | O_CREAT, 0600));
    EXPECT(gguf_open(&g, empty, &err) == SLUICE_ERR_FORMAT && !g);
    EXPECT(strstr(err.text, ": has 0 bytes, expected the 24 of a GGUF header at least") != NULL);
    unlink(empty);
    EXPECT(gguf_open(&g, "/no/such.gguf", NULL) == SLUICE_ERR_IO);
    gguf_close(NULL);
}

/* ---- JSON ---- */

/* What json_parse says of a text; "" when it takes it. */
static const char *json_says(const char *text, size_t size, const struct json_limits *limits) {
    static struct err err;
    err = (struct err){0};
    char *copy = exact_copy(text, size);
    json_t *value = json_parse((struct str){copy, size}, "t", limits, &err);
    EXPECT(!value == (err.code != 0));
    json_decref(value);
    free(copy);
    return err.text;
}

static void expect_json(const char *text, size_t size, const struct json_limits *limits,
                        const char *fragment) {
    const char *says = json_says(text, size, limits);
    if (fragment ? !strstr(says, fragment) : says[0])
        test_fail(__FILE__, __LINE__, "%.60s: \"%s\", expected \"%s\"", text, says,
                  fragment ? fragment : "");
}

TEST(json_texts) {
    static const struct {
        const char *text, *fragment;
    } cases[] = {
        {"{}", NULL},
        {" [1, 2.5, true, null, \"\\u0000\\\"]]]]\", {\"a\": []}] \n", NULL},
        {"", "t: line 1, column 0: "},
        {"{", "t: line 1, column 1: "},
        {"[1,\n 2,,]", "t: line 2, column 4: "},
        {"{\"a\":1,\"a\":2}", "duplicate object key"},
        {"[\"\xFF\"]", "unable to decode byte 0xff"},
        {"[\"a]", "t: line 1"},
        {"[\"a\\", "t: line 1"},
        {"[99999999999999999999]", "too big integer"},
        {"[1e999]", "real number overflow"},
        {"[1] x", "end of file expected"},
        {"{\"a\\u0000b\":1}", "NUL byte in object key"},
        {"]", "t: line 1, column 1: "},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_json(cases[i].text, strlen(cases[i].text), NULL, cases[i].fragment);
}

TEST(json_limits) {
    struct json_limits few = {.max_bytes = 24, .max_values = 4, .max_depth = 3};
    expect_json("[1,2,3]", 7, &few, NULL);
    expect_json("[1,2,3,4]", 9, &few, "t: JSON has more than 4 values");
    expect_json("[[[1]]]", 7, &few, NULL);
    expect_json("[[[[1]]]]", 9, &few, "t: JSON is nested deeper than 3 levels at byte 3");
    expect_json("[\"[[[[,,,,\\\"[[\"]", 16, &few, NULL); /* inside a string nothing counts */
    expect_json("[        1             ]   ", 26, &few, "has 26 bytes of JSON, expected at most");

    enum { DEEP = 100000, MANY = 8000001 };
    char *text = malloc(2 * MANY);
    memset(text, '[', DEEP);
    expect_json(text, DEEP, NULL, "nested deeper than 64 levels at byte 64");
    memset(text + 64, ']', 64);
    expect_json(text, 128, NULL, NULL);
    for (int i = 0; i < MANY; i++)
        memcpy(text + 2 * i, i ? ",1" : "[1", 2);
    expect_json(text, 2 * MANY, NULL, "JSON has more than 8000000 values");
    free(text);
}

TEST(json_files) {
    struct err err = {.code = 7};
    EXPECT(!json_read("/no/such.json", NULL, false, &err) && err.code == 0);
    EXPECT(!json_read("/no/such.json", NULL, true, &err) && err.code == SLUICE_ERR_IO);
    EXPECT_STR(err.text, "/no/such.json: cannot open: No such file or directory");
    EXPECT(!json_read("/dev/null", NULL, false, &err) && err.code == SLUICE_ERR_IO);
    const char *empty = test_temporary("empty.json");
    close(open(empty, O_WRONLY | O_CREAT, 0600));
    EXPECT(!json_read(empty, NULL, false, &err) && err.code == SLUICE_ERR_FORMAT);
    unlink(empty);
    EXPECT(!json_read("/", NULL, false, &err) && err.code == SLUICE_ERR_IO);
    json_t *value = json_read(test_data("reference/llama-a/config.json"), NULL, true, &err);
    struct str s;
    EXPECT(json_str(json_object_get(value, "model_type"), &s) && str_is(s, "llama"));
    EXPECT(!json_str(value, &s) && !json_str(NULL, &s));
    json_decref(value);
}

/* ---- safetensors ---- */

/* A file: length, header, `size` bytes of data 0, 1, 2 ... */
static void put_safetensors(struct bytes *b, const char *header, size_t size) {
    drop(b);
    put_str(b, header);
    for (size_t i = 0; i < size; i++)
        put(b, &(uint8_t){(uint8_t)i}, 1);
}

static const char *rich_header =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
    "\"a\\u00e9\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[4,0],\"data_offsets\":[12,12]},"
    "\"u\":{\"dtype\":\"U16\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[16,20]}}   ";

TEST(safetensors_example) {
    struct bytes b = {0};
    struct safetensors *st;
    struct err err = {0};
    put_safetensors(&b, rich_header, 20);
    if (safetensors_parse(&st, b.at, b.size, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
    } else {
        EXPECT_INT(st->n_tensors, 4);
        const struct tensor *t = safetensors_find(st, STR("a\xC3\xA9"));
        EXPECT(t && t->type == DT_BF16 && t->n_dims == 2 && t->dims[0] == 3 && t->dims[1] == 2);
        EXPECT(t && t->n_values == 6 && t->bytes == 12 && t->data[0] == 0 && t->data[11] == 11);
        t = safetensors_find(st, STR("b"));
        EXPECT(t && t->n_dims == 0 && t->n_values == 1 && t->dims[0] == 1 && t->data[0] == 12);
        t = safetensors_find(st, STR("none"));
        EXPECT(t && t->n_values == 0 && t->bytes == 0 && t->dims[0] == 0 && t->dims[1] == 4);
        t = safetensors_find(st, STR("u"));
        EXPECT(t && t->type == -1 && t->n_dims == 8 && t->dims[0] == 2);
        EXPECT_STR(t ? t->type_name : "", "U16");
        EXPECT(!safetensors_find(st, STR("__metadata__")));
    }
    safetensors_close(st);
    drop(&b);
}

TEST(safetensors_hostile) {
#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define U8(name, from, to)                                                                         \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" from "," to "]}"
    static const struct {
        const char *header;
        size_t size;
        const char *fragment; /* NULL: it opens */
    } cases[] = {
        /* clang-format off */
        {"{}", 0, NULL},
        {"{}   \n", 0, NULL},
        {"{\"__metadata__\":{}}", 0, NULL},
        {"{" U8("b", "4", "8") "," U8("a", "0", "4") "}", 8, NULL},
        {ENTRY("\"U8\"", "[0]", "[0,0]"), 0, NULL},
        {ENTRY("\"F8_E4M3\"", "[4]", "[0,4]"), 4, NULL},
        {"", 0, "its header does not begin with '{'"},
        {" {}", 0, "its header does not begin with '{'"},
        {"[]", 0, "its header does not begin with '{'"},
        {"{]", 0, "(memory): line 1, column 2: "},
        {"{}x", 0, "end of file expected"},
        {"{}", 1, "has 1 bytes of data, its tensors end at 0"},
        {"{\"\xFF\":1}", 0, "unable to decode byte 0xff"},
        {"{\"a\":1}", 0, "tensor a: is not a JSON object"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not a JSON object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ entry k is not a string"},
        {"{" U8("a", "0", "4") "," U8("a", "4", "8") "}", 8, "duplicate object key"},
        {"{" U8("a", "0", "4") "," U8("b", "0", "4") "}", 4, "begins at 0 of the data, expected 4"},
        {"{" U8("a", "0", "4") "," U8("b", "2", "6") "}", 6, "begins at 2 of the data, expected 4"},
        {"{" U8("a", "0", "4") "," U8("b", "5", "9") "}", 9, "begins at 5 of the data, expected 4"},
        {"{" U8("a", "1", "5") "}", 5, "tensor a: begins at 1 of the data, expected 0"},
        {"{" U8("a", "0", "4") "}", 5, "has 5 bytes of data, its tensors end at 4"},
        {"{" U8("a", "0", "4") "}", 3, "data from 0 to 4, expected a range inside the 3 bytes"},
        {"{" U8("a", "4", "0") "}", 4, "data from 4 to 0, expected a range inside the 4 bytes"},
        {"{" U8("a", "0", "5") "}", 5, "has 5 bytes of data, expected 4 by its shape and type U8"},
        {"{" U8("a", "-4", "0") "}", 4, "tensor a: data_offsets are not two integers of 0 or more"},
        {"{" U8("a", "0", "4.0") "}", 4, "data_offsets are not two integers"},
        {"{" U8("a", "0", "4,8") "}", 4, "data_offsets are not two integers"},
        {"{" U8("a", "0", "9223372036854775807") "}", 4, "data from 0 to 9223372036854775807"},
        {"{" U8("a", "0", "9223372036854775808") "}", 4, "too big integer"},
        {ENTRY("\"U8\"", "[4]", "7"), 4, "data_offsets are not two integers"},
        {ENTRY("\"Q4\"", "[4]", "[0,4]"), 4, "tensor a: has dtype Q4, expected F64, F32"},
        {ENTRY("\"f32\"", "[1]", "[0,4]"), 4, "tensor a: has dtype f32, expected"},
        {ENTRY("\"U8\\u0000\"", "[4]", "[0,4]"), 4, "tensor a: has dtype U8, expected"},
        {ENTRY("4", "[4]", "[0,4]"), 4, "tensor a: dtype is not a string"},
        {ENTRY("\"U8\"", "{}", "[0,4]"), 4, "tensor a: shape is not an array of at most 8 integers"},
        {ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "shape is not an array of at most 8"},
        {ENTRY("\"U8\"", "[-1]", "[0,4]"), 4, "dimension 0 of its shape is not an integer from 0 to"},
        {ENTRY("\"U8\"", "[1,4.0]", "[0,4]"), 4, "dimension 1 of its shape is not an integer"},
        {ENTRY("\"U8\"", "[\"4\"]", "[0,4]"), 4, "dimension 0 of its shape is not an integer"},
        {ENTRY("\"U8\"", "[281474976710657]", "[0,4]"), 4, "integer from 0 to 281474976710656"},
        {ENTRY("\"U8\"", "[281474976710656,16385]", "[0,4]"), 4, "more than 4611686018427387904"},
        {ENTRY("\"U8\"", "[281474976710656,281474976710656]", "[0,4]"), 4, "more than 46116860"},
        {ENTRY("\"U8\"", "[281474976710656,281474976710656,0]", "[0,0]"), 0, "more than 46116860"},
        {ENTRY("\"F64\"", "[281474976710656,16384]", "[0,0]"), 0, "more bytes than can be counted"},
        {ENTRY("\"F32\"", "[281474976710656,16384]", "[0,0]"), 0, "more bytes than can be counted"},
        {"{\"a\":{}}", 0, "tensor a: dtype is not a string"},
        {"{\"a\":{\"dtype\":\"U8\"}}", 0, "tensor a: shape is not an array"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor a: data_offsets are not two"},
        /* clang-format on */
    };
#undef ENTRY
#undef U8
    struct bytes b = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct safetensors *st;
        struct err err = {0};
        put_safetensors(&b, cases[i].header, cases[i].size);
        void *copy = exact_copy(b.at, b.size);
        safetensors_parse(&st, copy, b.size, &err);
        if (cases[i].fragment)
            expect_error_at(__LINE__, cases[i].header, &err, cases[i].fragment);
        else if (!st)
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].header, err.text);
        safetensors_close(st);
        if (err.code)
            EXPECT(safetensors_parse(&st, copy, b.size, NULL) == err.code);
        free(copy);
    }
    drop(&b);
}

/* What is there where a repository was cloned without Git LFS. */
TEST(lfs_pointers_are_told) {
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2"
                                  "ca24d17e2393\nsize 12345\n";
    struct gguf *g;
    struct safetensors *st;
    struct err err = {0};
    EXPECT_INT(gguf_parse(&g, pointer, sizeof pointer - 1, &err), SLUICE_ERR_FORMAT);
    EXPECT(strstr(err.text, "is only a pointer of Git LFS") != NULL);
    EXPECT_INT(safetensors_parse(&st, pointer, sizeof pointer - 1, &err), SLUICE_ERR_FORMAT);
    EXPECT(strstr(err.text, "is only a pointer of Git LFS") != NULL);
}

TEST(safetensors_header_length) {
    static const struct {
        uint64_t length;
        const char *fragment;
    } cases[] = {
        {3, "says its header has 3 bytes, expected at most 2"},
        {100000001, "says its header has 100000001 bytes, expected at most 2"},
        {UINT64_MAX, "says its header has 18446744073709551615 bytes, expected at most 2"},
        {UINT64_MAX - 7, "says its header has 18446744073709551608 bytes, expected at most 2"},
        {0, "its header does not begin with '{'"},
    };
    struct bytes b = {0};
    struct safetensors *st;
    struct err err = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_safetensors(&b, "{}", 0);
        memcpy(b.at, &cases[i].length, 8);
        safetensors_parse(&st, b.at, b.size, &err);
        expect_error_at(__LINE__, "length", &err, cases[i].fragment);
    }
    drop(&b);
    safetensors_parse(&st, "1234567", 7, &err);
    expect_error_at(__LINE__, "short", &err, "has 7 bytes, expected 8 of header length at least");

    /* The format's own cap, on a file long enough: its pages are never touched. */
    const char *path = test_temporary("long.safetensors");
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    EXPECT(fd >= 0 && write(fd, &(uint64_t){100000001}, 8) == 8 && ftruncate(fd, 200 << 20) == 0);
    close(fd);
    safetensors_open(&st, path, &err);
    expect_error_at(__LINE__, "long", &err,
                    "header has 100000001 bytes, expected at most 100000000");
    unlink(path);

    char deep[1200];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[sizeof deep - 1] = 0;
    put_safetensors(&b, deep, 0);
    safetensors_parse(&st, b.at, b.size, &err);
    expect_error_at(__LINE__, "deep", &err, "JSON is nested deeper than 64 levels");
    drop(&b);
}

TEST(safetensors_every_truncation_and_flips) {
    struct bytes b = {0};
    uint64_t seed = 7;
    unsigned opened = 0;
    put_safetensors(&b, rich_header, 20);
    for (size_t size = 0; size < b.size; size++) {
        struct safetensors *st;
        struct err err = {0};
        void *copy = exact_copy(b.at, size);
        EXPECT(safetensors_parse(&st, copy, size, &err) < 0 && !st && err.text[0]);
        free(copy);
    }
    uint8_t *copy = exact_copy(b.at, b.size);
    for (int i = 0; i < 10000; i++) {
        struct safetensors *st;
        struct err err = {0};
        size_t at = next_random(&seed) % b.size;
        copy[at] ^= (uint8_t)(1 + next_random(&seed) % 255);
        opened += safetensors_parse(&st, copy, b.size, &err) == 0;
        EXPECT(st || err.text[0]);
        safetensors_close(st);
        copy[at] = b.at[at];
    }
    EXPECT(opened > 0 && opened < 10000);
    free(copy);
    drop(&b);
}

/* ---- folders ---- */

static void write_file(const char *folder, const char *name, const void *bytes, size_t size) {
    struct arena arena = {0};
    const char *path = path_join(&arena, folder, name);
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(bytes, 1, size, f) == size);
    if (f)
        fclose(f);
    arena_free(&arena);
}

static void write_text(const char *folder, const char *name, const char *text) {
    write_file(folder, name, text, strlen(text));
}

/* A shard that holds one tensor of four bytes. */
static void write_shard(const char *folder, const char *name, const char *tensor_name) {
    char header[200];
    struct bytes b = {0};
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", tensor_name);
    put_safetensors(&b, header, 4);
    write_file(folder, name, b.at, b.size);
    drop(&b);
}

static void remove_file(const char *folder, const char *name) {
    struct arena arena = {0};
    unlink(path_join(&arena, folder, name));
    arena_free(&arena);
}

static int warnings;
static void count_warnings(void *user, enum log_level level, const char *line) {
    (void)user, (void)line;
    warnings += level == LOG_WARN;
}

TEST(safetensors_shards) {
#define MAP(entries) "{\"metadata\":{},\"weight_map\":{" entries "}}"
#define A1 "\"a\":\"1.safetensors\""
#define B2 "\"b\":\"2.safetensors\""
    static const struct {
        const char *index, *fragment; /* NULL: it opens */
        int warnings;
    } cases[] = {
        /* clang-format off */
        {MAP(A1 "," B2), NULL, 0},
        {MAP("\"b\":\"both.safetensors\""), NULL, 1},
        {MAP(A1 ",\"b\":\"3.safetensors\""), "/3.safetensors: cannot open: No such file", 0},
        {MAP(A1 ",\"b\":\"1.safetensors\""), "tensor b is not in ", 0},
        {MAP("\"a\":\"2.safetensors\",\"b\":\"1.safetensors\""), "tensor a is not in ", 0},
        {MAP(A1 "," B2 ",\"c\":\"1.safetensors\""), "tensor c is not in ", 0},
        {MAP(A1 ",\"b\":\"both.safetensors\""), "tensor a: is in an earlier shard already", 0},
        {MAP("\"a\":\"../1.safetensors\""), "is '../1.safetensors', expected a plain file name", 0},
        {MAP("\"a\":\"/etc/passwd\""), "is '/etc/passwd', expected a plain file name", 0},
        {MAP("\"a\":\"x\\\\y\""), "expected a plain file name", 0},
        {MAP("\"a\":\"..\""), "is '..', expected a plain file name", 0},
        {MAP("\"a\":\"\""), "the file of tensor a is '', expected a plain file name", 0},
        {MAP("\"a\":\"1.safetensors\\u0000\""), "expected a plain file name", 0},
        {MAP("\"a\":\".\""), ": is a directory, expected a file", 0},
        {MAP("\"a\":1"), "the file of tensor a is not a string", 0},
        {MAP(A1 "," A1), "duplicate object key", 0},
        {MAP(""), "weight_map has 0 tensors, expected an object of 1 to 1000000", 0},
        {"{\"weight_map\":[1]}", "weight_map has 0 tensors, expected an object", 0},
        {"[]", "weight_map has 0 tensors, expected an object", 0},
        {"{", "model.safetensors.index.json: line 1", 0},
        {MAP("\"a\":\"broken.safetensors\""), "broken.safetensors: has 3 bytes, expected 8", 0},
        /* clang-format on */
    };
#undef MAP
#undef A1
#undef B2
    static const char *files[] = {"1.safetensors",      "2.safetensors",
                                  "both.safetensors",   "model.safetensors.index.json",
                                  "broken.safetensors", "model.safetensors"};
    char folder[512];
    struct safetensors *st;
    fresh_folder(folder, "shards");
    write_shard(folder, "1.safetensors", "a");
    write_shard(folder, "2.safetensors", "b");
    write_shard(folder, "both.safetensors",
                "a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"b");
    write_text(folder, "broken.safetensors", "abc");
    log_set(count_warnings, NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct err err = {0};
        warnings = 0;
        write_text(folder, "model.safetensors.index.json", cases[i].index);
        safetensors_open(&st, folder, &err);
        if (cases[i].fragment)
            expect_error_at(__LINE__, cases[i].index, &err, cases[i].fragment);
        else if (!st)
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].index, err.text);
        else
            EXPECT(st->n_tensors == 2 && safetensors_find(st, STR("b"))->data[3] == 3);
        EXPECT_INT(warnings, cases[i].warnings);
        EXPECT(!err.code || strncmp(err.text, folder, strlen(folder)) == 0);
        safetensors_close(st);
    }
    log_set(NULL, NULL);
    struct err err = {0};
    remove_file(folder, "model.safetensors.index.json");
    safetensors_open(&st, folder, &err);
    expect_error_at(__LINE__, "none", &err, "/model.safetensors: cannot open: No such file");
    write_shard(folder, "model.safetensors", "only");
    EXPECT(safetensors_open(&st, folder, &err) == 0 && st->n_tensors == 1);
    safetensors_close(st);
    for (size_t i = 0; i < COUNT(files); i++)
        remove_file(folder, files[i]);
    EXPECT(rmdir(folder) == 0);
}

TEST(folder_references) {
    static const struct {
        const char *name;
        uint32_t n_tensors, n_shards;
        int hidden_size;
    } cases[] = {
        {"reference/llama-a", 21, 1, 96},        {"reference/llama-b", 20, 1, 192},
        {"reference/qwen2-a", 27, 1, 64},        {"reference/qwen3-a", 35, 1, 64},
        {"reference/qwen35-dense-a", 55, 1, 64}, {"reference/qwen35-dense-b", 110, 2, 64},
        {"reference/qwen35-moe-a", 69, 1, 64},   {"reference/qwen3next-a", 107, 1, 64},
        {"reference/qwen3moe-a", 129, 1, 64},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct folder *f;
        struct err err = {0};
        EXPECT(folder_is(test_data(cases[i].name)));
        if (folder_open(&f, test_data(cases[i].name), true, &err)) {
            test_fail(__FILE__, __LINE__, "%s", err.text);
            break;
        }
        EXPECT_INT(f->weights->n_tensors, cases[i].n_tensors);
        EXPECT_INT(f->weights->n_shards, cases[i].n_shards);
        EXPECT_INT(json_integer_value(json_object_get(f->config, "hidden_size")),
                   cases[i].hidden_size);
        EXPECT(f->generation && f->tokenizer && f->tokenizer_config);
        EXPECT_INT(f->chat_template.len, 178); /* dense-b's is in a file of its own */
        folder_close(f);
    }
    EXPECT(!folder_is(test_data("reference/llama-a/config.json")) && !folder_is("/no/such"));
}

TEST(folder_merges) {
    static const char *files[] = {"config.json", "tokenizer_config.json", "chat_template.jinja",
                                  "generation_config.json"};
    char folder[512];
    struct folder *f;
    struct err err = {0};
    fresh_folder(folder, "folder");

    EXPECT(folder_open(&f, folder, true, &err) == SLUICE_ERR_IO && !f);
    expect_error_at(__LINE__, "no config", &err, "/config.json: cannot open");
    EXPECT_INT(folder_open(&f, folder, false, &err), 0); /* tokenize needs none */
    EXPECT(f && json_is_object(f->config) && json_object_size(f->config) == 0);
    EXPECT(f && !f->weights && !f->tokenizer && f->chat_template.len == 0);
    folder_close(f);

    write_text(
        folder, "config.json",
        "{\"model_type\":\"vl\",\"tie\":true,\"n\":1,\"text_config\":{\"model_type\":\"text\","
        "\"n\":2,\"text_config\":{\"n\":3}}}");
    EXPECT_INT(folder_open(&f, folder, false, &err), 0);
    if (f) {
        struct str s;
        EXPECT(json_str(json_object_get(f->config, "model_type"), &s) && str_is(s, "text"));
        EXPECT(json_is_true(json_object_get(f->config, "tie")));
        EXPECT_INT(json_integer_value(json_object_get(f->config, "n")), 2);
    }
    folder_close(f);

    static const struct {
        const char *file, *text,
            *fragment; /* of the error; or the template when it begins with = */
    } cases[] = {
        {"config.json", "[]", "/config.json: is a JSON array, expected an object"},
        {"config.json", "{\"text_config\":3}", "/config.json: text_config is not an object"},
        {"config.json", "{\"text_config\":null}", "="},
        {"generation_config.json", "[1]", "/generation_config.json: is a JSON array, expected"},
        {"generation_config.json", "{", "/generation_config.json: line 1"},
        {"generation_config.json", "{}", "="},
        {"tokenizer_config.json", "{\"chat_template\":7}", "chat_template is not a string"},
        {"tokenizer_config.json", "{\"chat_template\":null}", "="},
        {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"x\",\"template\":\"t\"}]}", "="},
        {"tokenizer_config.json",
         "{\"chat_template\":[{\"name\":\"x\",\"template\":\"t\"},1,{\"name\":\"default\","
         "\"template\":\"the one\"}]}",
         "=the one"},
        {"tokenizer_config.json", "{\"chat_template\":\"one\"}", "=one"},
        {"chat_template.jinja", "bad \xFF", "/chat_template.jinja: is not UTF-8"},
        {"chat_template.jinja", "from the file", "=from the file"},
        {"chat_template.jinja", "", "="},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        err = (struct err){0};
        write_text(folder, cases[i].file, cases[i].text);
        folder_open(&f, folder, false, &err);
        if (cases[i].fragment[0] != '=')
            expect_error_at(__LINE__, cases[i].text, &err, cases[i].fragment);
        else if (!f)
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, err.text);
        else
            EXPECT(str_is(f->chat_template, cases[i].fragment + 1));
        folder_close(f);
    }
    for (size_t i = 0; i < COUNT(files); i++)
        remove_file(folder, files[i]);
    EXPECT(rmdir(folder) == 0);
    EXPECT(folder_open(&f, folder, true, &err) < 0);
    expect_error_at(__LINE__, "gone", &err, ": is not a folder, expected one");
}

/* ---- files ---- */

TEST(filemap_kinds) {
    struct filemap map;
    struct err err = {0};
    char folder[512];
    fresh_folder(folder, "maps");
    EXPECT(filemap_open(&map, "/no/such", &err) == SLUICE_ERR_IO && !map.data);
    EXPECT_STR(err.text, "/no/such: cannot open: No such file or directory");
    EXPECT(filemap_open(&map, folder, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, ": is a directory, expected a file") != NULL);
    filemap_close(&map);

    write_text(folder, "empty", "");
    write_text(folder, "three", "abc");
    for (int i = 0; i < 2; i++) {
        struct arena arena = {0};
        EXPECT(filemap_open(&map, path_join(&arena, folder, "empty"), &err) == 0 && map.size == 0);
        filemap_close(&map);
        EXPECT(filemap_open(&map, path_join(&arena, folder, "three"), &err) == 0);
        EXPECT(map.size == 3 && memcmp(map.data, "abc", 3) == 0 && map.is_mapped == (i == 0));
        filemap_close(&map);
        filemap_close(&map);
        arena_free(&arena);
        setenv("SLUICE_NO_MMAP", "1", 1);
    }
    unsetenv("SLUICE_NO_MMAP");

    static const char *const devices[] = {"/dev/zero", "/dev/null"};
    for (size_t i = 0; i < COUNT(devices); i++) {
        EXPECT(filemap_open(&map, devices[i], &err) == SLUICE_ERR_IO);
        EXPECT(strstr(err.text, ": is a character device, expected a file") != NULL);
    }
    char fifo[600];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    EXPECT(mkfifo(fifo, 0600) == 0);
    EXPECT(filemap_open(&map, fifo, &err) == SLUICE_ERR_IO); /* nobody writes: this would wait */
    EXPECT(strstr(err.text, "/fifo: is a FIFO, expected a file") != NULL);
    unlink(fifo);
    remove_file(folder, "empty");
    remove_file(folder, "three");
    EXPECT(rmdir(folder) == 0);
}

/* Reads a text through a descriptor's name. */
static void expect_text(int fd, const char *text) {
    struct filemap map;
    struct err err = {0};
    char name[64];
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    EXPECT_INT(filemap_read(&map, name, &err), 0);
    EXPECT(!map.is_mapped && str_is((struct str){(const char *)map.data, map.size}, text));
    filemap_close(&map);
}

TEST(filemap_reads_texts_of_every_kind) {
    struct filemap map;
    struct err err = {0};
    char folder[512], path[600];
    int ends[2];
    EXPECT(pipe(ends) == 0 && write(ends[1], "through a pipe", 14) == 14);
    close(ends[1]);
    expect_text(ends[0], "through a pipe");
    close(ends[0]);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    EXPECT(write(ends[1], "a socket", 8) == 8);
    close(ends[1]);
    expect_text(ends[0], "a socket");
    close(ends[0]);

    fresh_folder(folder, "texts");
    write_text(folder, "text", "first and second");
    snprintf(path, sizeof path, "%s/text", folder);
    int fd = open(path, O_RDONLY);
    EXPECT(lseek(fd, 10, SEEK_SET) == 10);
    expect_text(fd, "second"); /* from where the descriptor stands */
    expect_text(fd, "");       /* and there is nothing left */
    close(fd);
    EXPECT(filemap_read(&map, path, &err) == 0 && map.is_mapped && map.size == 16);
    filemap_close(&map);
    EXPECT(filemap_read(&map, folder, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, ": is a directory, expected a file") != NULL);
    EXPECT(filemap_read(&map, "/dev/fd/999", &err) == SLUICE_ERR_IO);
    EXPECT_STR(err.text, "/dev/fd/999: cannot open: Bad file descriptor");
    remove_file(folder, "text");
    EXPECT(rmdir(folder) == 0);
}

struct late_writer {
    const char *path, *text;
};

static void *write_late(void *arg) {
    const struct late_writer *w = arg;
    int fd = open(w->path, O_WRONLY); /* waits for the reader */
    EXPECT(write(fd, w->text, strlen(w->text)) == (ssize_t)strlen(w->text));
    close(fd);
    return NULL;
}

TEST(filemap_waits_for_writers_and_for_nothing_else) {
    struct filemap map;
    struct err err = {0};
    char folder[512], path[600];
    fresh_folder(folder, "waits");
    snprintf(path, sizeof path, "%s/fifo", folder);
    EXPECT(mkfifo(path, 0600) == 0);
    static const char *const texts[] = {"late, but there", ""};
    for (size_t i = 0; i < COUNT(texts); i++) {
        pthread_t thread;
        struct late_writer writer = {path, texts[i]};
        EXPECT(pthread_create(&thread, NULL, write_late, &writer) == 0);
        EXPECT_INT(filemap_read(&map, path, &err), 0);
        EXPECT(str_is((struct str){(const char *)map.data, map.size}, texts[i]));
        filemap_close(&map);
        pthread_join(thread, NULL);
    }
    unlink(path);

    snprintf(path, sizeof path, "%s/socket", folder);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (strlen(path) < sizeof address.sun_path) {
        memcpy(address.sun_path, path, strlen(path) + 1);
        EXPECT(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
        EXPECT(filemap_read(&map, path, &err) == SLUICE_ERR_IO);
        EXPECT(strstr(err.text, "/socket: is a socket, expected a file") != NULL);
        unlink(path);
    }
    close(fd);
    EXPECT(rmdir(folder) == 0);

    EXPECT(filemap_read(&map, "/dev/zero", &err) == SLUICE_ERR_IO);
    EXPECT_STR(err.text, "/dev/zero: does not end, expected at most 1048576 bytes");
    EXPECT(filemap_read(&map, "/dev/null", &err) == 0 && map.size == 0);
    filemap_close(&map);
    EXPECT(filemap_read(&map, "/proc/self/status", &err) == 0 && map.size > 100);
    filemap_close(&map);
    fd = open("/proc/kmsg", O_RDONLY | O_NONBLOCK); /* root's alone */
    if (fd >= 0) {
        EXPECT(filemap_read(&map, "/proc/kmsg", &err) == SLUICE_ERR_IO);
        EXPECT(strstr(err.text, "/proc/kmsg: ") == err.text);
        close(fd);
    }
}

TEST(filemap_knows_its_file) {
    struct filemap map, other;
    struct err err = {0};
    char folder[512], path[600], more[600];
    fresh_folder(folder, "known");
    write_text(folder, "file", "abc");
    write_text(folder, "other", "abc");
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(more, sizeof more, "%s/other", folder);
    EXPECT(filemap_open(&map, path, &err) == 0 && filemap_open(&other, more, &err) == 0);
    EXPECT(filemap_is(&map, path) && !filemap_is(&map, more) && !filemap_is(&map, "/no/such"));
    unlink(more);
    EXPECT(link(path, more) == 0 && filemap_is(&map, more));
    unlink(more);
    EXPECT(symlink("file", more) == 0 && filemap_is(&map, more));
    unlink(more);

    /* An address says which file it is, as long as it is mapped. */
    const uint8_t *at = map.data;
    EXPECT_STR(filemap_at(at + 2), path);
    EXPECT_STR(filemap_at(other.data), more);
    EXPECT(filemap_at(&map) == NULL && filemap_at(NULL) == NULL);
    long page = sysconf(_SC_PAGESIZE);
    uint8_t *again = mmap(NULL, (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(filemap_map_at(&map, again) && memcmp(again, "abc", 3) == 0);
    EXPECT_STR(filemap_at(again), path);
    filemap_forget_at(&map);
    EXPECT(filemap_at(again) == NULL);
    munmap(again, (size_t)page);
    filemap_close(&map);
    EXPECT(filemap_at(at) == NULL);
    filemap_close(&other);
    unlink(path);
    EXPECT(rmdir(folder) == 0);
}

static void expect_content(const char *path, const char *text) {
    size_t size = 0;
    char *found = test_read_file(path, &size);
    EXPECT_STR(found ? found : "", text);
    free(found);
}

TEST(outfile_whole_or_not_at_all) {
    char folder[512], path[600];
    struct outfile out;
    struct err err = {0};
    fresh_folder(folder, "out");
    snprintf(path, sizeof path, "%s/file", folder);
    EXPECT_INT(outfile_open(&out, path, &err), 0);
    EXPECT_INT(outfile_write(&out, "abc", 3, &err), 0);
    EXPECT(access(path, F_OK) != 0);
    EXPECT_INT(outfile_commit(&out, &err), 0);
    expect_content(path, "abc");

    EXPECT_INT(outfile_open(&out, path, &err), 0);
    EXPECT_INT(outfile_write(&out, "new", 3, &err), 0);
    outfile_abort(&out);
    outfile_abort(&out);
    expect_content(path, "abc");

    EXPECT_INT(outfile_open(&out, path, &err), 0);
    EXPECT_INT(outfile_write(&out, "new", 3, &err), 0);
    EXPECT_INT(outfile_pad(&out, 1, &err), 0);
    EXPECT_INT(outfile_pad(&out, 4, &err), 0);
    EXPECT_INT(outfile_pad(&out, 4, &err), 0);
    EXPECT_INT(out.written, 4);
    EXPECT_INT(outfile_commit(&out, &err), 0);
    expect_content(path, "new");
    unlink(path);
    EXPECT(rmdir(folder) == 0); /* no temporary is left behind */

    EXPECT(outfile_open(&out, path, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "/file: cannot create: No such file") != NULL);
    outfile_abort(&out);
}

/* A file of that content by way of an outfile. */
static void write_out(const char *path, const char *text) {
    struct outfile out;
    struct err err = {0};
    int status = outfile_open(&out, path, &err);
    if (!status)
        status = outfile_write(&out, text, strlen(text), &err);
    if (!status)
        status = outfile_commit(&out, &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", path, err.text);
    outfile_abort(&out);
}

static mode_t mode_of(const char *path) {
    struct stat st = {0};
    EXPECT(lstat(path, &st) == 0);
    return st.st_mode;
}

TEST(outfile_follows_symlinks) {
    char folder[512], sub[560], file[600], link[600], first[600];
    fresh_folder(folder, "links");
    snprintf(sub, sizeof sub, "%s/sub", folder);
    snprintf(file, sizeof file, "%s/sub/file", folder);
    snprintf(link, sizeof link, "%s/sub/link", folder);
    snprintf(first, sizeof first, "%s/first", folder);
    EXPECT(mkdir(sub, 0700) == 0 && symlink("file", link) == 0 && symlink("sub/link", first) == 0);
    for (int i = 0; i < 2; i++) { /* to a file that is not there yet, then to one that is */
        write_out(first, i ? "second" : "first");
        expect_content(file, i ? "second" : "first");
        EXPECT(S_ISLNK(mode_of(first)) && S_ISLNK(mode_of(link)) && S_ISREG(mode_of(file)));
    }
    unlink(link);
    EXPECT(symlink("../first", link) == 0); /* in circles */
    struct outfile out;
    struct err err = {0};
    EXPECT(outfile_open(&out, first, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "/first: cannot create: Too many levels of symbolic links") != NULL);
    unlink(file);
    unlink(link);
    unlink(first);
    EXPECT(rmdir(sub) == 0 && rmdir(folder) == 0);
}

TEST(outfile_keeps_permissions) {
    char folder[512], path[600];
    fresh_folder(folder, "modes");
    snprintf(path, sizeof path, "%s/file", folder);
    mode_t mask = umask(027);
    write_out(path, "new");
    umask(mask);
    EXPECT_INT(mode_of(path) & 07777, 0640);
    EXPECT(chmod(path, 0604) == 0);
    write_out(path, "old");
    EXPECT_INT(mode_of(path) & 07777, 0604);
    EXPECT(chmod(path, 0444) == 0);
    if (geteuid() != 0) { /* root may write anything */
        struct outfile out;
        struct err err = {0};
        EXPECT(outfile_open(&out, path, &err) == SLUICE_ERR_IO);
        EXPECT(strstr(err.text, "/file: cannot create: Permission denied") != NULL);
    }
    unlink(path);
    EXPECT(rmdir(folder) == 0);
}

/* A device of our own, as root could destroy the machine's; false where there can't be one. */
static bool make_device(const char *path, unsigned minor) {
    if (mknod(path, S_IFCHR | 0666, makedev(1, minor)) != 0)
        return false;
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        unlink(path); /* a file system without devices */
    close(fd);
    return fd >= 0;
}

TEST(outfile_writes_special_files_straight) {
    char folder[512], path[600], node[600], name[64], got[16] = "";
    fresh_folder(folder, "special");
    snprintf(path, sizeof path, "%s/fifo", folder);
    EXPECT(mkfifo(path, 0600) == 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    write_out(path, "fifo");
    EXPECT(read(fd, got, sizeof got) == 4 && memcmp(got, "fifo", 4) == 0);
    EXPECT(S_ISFIFO(mode_of(path)));
    close(fd);
    unlink(path);
    snprintf(node, sizeof node, "%s/node", folder);
    if (make_device(node, 3)) { /* null */
        write_out(node, "nothing");
        EXPECT(S_ISCHR(mode_of(node)));
        EXPECT(symlink("node", path) == 0);
        write_out(path, "nothing");
        EXPECT(S_ISLNK(mode_of(path)) && S_ISCHR(mode_of(node)));
        unlink(path);
        unlink(node);
    }

    /* A descriptor of our own is written from its current position, also a regular file. */
    fd = open(path, O_RDWR | O_CREAT, 0600);
    EXPECT(write(fd, "ab", 2) == 2);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    write_out(name, "cd");
    EXPECT(write(fd, "ef", 2) == 2);
    close(fd);
    expect_content(path, "abcdef");
    unlink(path);

    struct outfile out;
    struct err err = {0};
    if (make_device(node, 7)) { /* full */
        EXPECT_INT(outfile_open(&out, node, &err), 0);
        EXPECT_INT(outfile_write(&out, "x", 1, &err), 0);
        EXPECT(outfile_commit(&out, &err) == SLUICE_ERR_IO);
        EXPECT(strstr(err.text, "/node: cannot write: No space left on device") != NULL);
        unlink(node);
    }
    EXPECT(outfile_open(&out, folder, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, ": cannot create: Is a directory") != NULL);
    EXPECT(outfile_open(&out, "", &err) == SLUICE_ERR_IO);
    EXPECT_STR(err.text, "'': cannot create: No such file or directory");
    EXPECT(rmdir(folder) == 0);
}

TEST(outfile_is_checked_before_the_work) {
    char folder[512], path[600];
    struct err err = {0};
    fresh_folder(folder, "checked");
    snprintf(path, sizeof path, "%s/new", folder);
    EXPECT_INT(outfile_check(path, &err), 0);
    EXPECT(rmdir(folder) == 0 && mkdir(folder, 0700) == 0); /* nothing is left there */
    write_out(path, "old");
    EXPECT_INT(outfile_check(path, &err), 0);
    expect_content(path, "old");
    unlink(path);
    EXPECT(mkfifo(path, 0600) == 0);
    EXPECT_INT(outfile_check(path, &err), 0); /* a reader may come yet */
    struct outfile out;
    EXPECT(outfile_open(&out, path, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "/new: is a FIFO that nobody reads") != NULL);
    unlink(path);
    EXPECT(outfile_check(folder, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, ": cannot create: Is a directory") != NULL);
    EXPECT(rmdir(folder) == 0);
    EXPECT(outfile_check(path, &err) == SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "/new: cannot create: No such file or directory") != NULL);
}

TEST(outfile_takes_the_longest_name) {
    char folder[512], path[800];
    fresh_folder(folder, "longest");
    size_t n = (size_t)snprintf(path, sizeof path, "%s/", folder);
    memset(path + n, 'x', 255);
    path[n + 255] = 0;
    write_out(path, "long");
    expect_content(path, "long");
    unlink(path);
    EXPECT(rmdir(folder) == 0);
}

TEST(outfile_abandons_all) {
    char folder[512], paths[3][600];
    struct outfile outs[3];
    struct err err = {0};
    fresh_folder(folder, "abandoned");
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%d", folder, i);
        EXPECT_INT(outfile_open(&outs[i], paths[i], &err), 0);
        EXPECT_INT(outfile_write(&outs[i], "abc", 3, &err), 0);
    }
    EXPECT_INT(outfile_commit(&outs[0], &err), 0);
    errno = 77;
    outfile_abandon_all();
    EXPECT_INT(errno, 77);
    unlink(paths[0]);
    EXPECT(rmdir(folder) == 0); /* nothing is left */
    EXPECT(outfile_commit(&outs[1], &err) == SLUICE_ERR_IO);
    outfile_abort(&outs[2]);
    fresh_folder(folder, "abandoned");
    write_out(paths[0], "again"); /* later files can be written */
    expect_content(paths[0], "again");
    unlink(paths[0]);
    EXPECT(rmdir(folder) == 0);
}

/* Many files of one letter each, under one name. */
static void *write_many(void *user) {
    const char *path = user;
    char text[20000];
    for (int i = 0; i < 50; i++) {
        memset(text, 'a' + i % 26, sizeof text - 1);
        text[sizeof text - 1] = 0;
        write_out(path, text);
    }
    return NULL;
}

static uint32_t count_entries(const char *folder) {
    DIR *d = opendir(folder);
    uint32_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d)
        closedir(d);
    return n;
}

/* What a killed writer left goes with the next write into its folder; what another is writing, and
 * what only looks like it, stays. */
TEST(outfile_removes_what_killed_writers_left) {
    static const char *const others[] = {
        ".sluice-0123456789abcdef.tmp.gguf", ".sluice-0123456789abcde.tmp",
        ".sluice-0123456789abcdeF.tmp",      ".sluice-0123456789abcdef-tmp",
        "sluice-0123456789abcdef.tmp",       "file",
    };
    enum { N_OTHERS = sizeof others / sizeof *others };
    char folder[512], path[600];
    int ready[2];
    char byte;
    fresh_folder(folder, "killed");
    for (int i = 0; i < N_OTHERS; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, others[i]);
        write_out(path, "other");
    }
    EXPECT(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct outfile out;
        struct err err;
        int status = outfile_open(&out, path, &err);
        status |= outfile_write(&out, "half", 4, &err);
        _exit(status || write(ready[1], "", 1) != 1 || pause());
    }
    EXPECT(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    write_out(path, "whole");
    EXPECT_INT(count_entries(folder), N_OTHERS + 1);
    kill(child, SIGKILL);
    EXPECT_INT(waitpid(child, NULL, 0), child);
    snprintf(path, sizeof path, "%s/.sluice-0123456789abcdef.tmp", folder);
    EXPECT(mkdir(path, 0700) == 0); /* of that name, and no file */
    snprintf(path, sizeof path, "%s/.sluice-fedcba9876543210.tmp", folder);
    EXPECT(symlink("file", path) == 0);
    snprintf(path, sizeof path, "%s/file", folder);
    write_out(path, "again");
    EXPECT_INT(count_entries(folder), N_OTHERS + 2);
    expect_content(path, "again");
    snprintf(path, sizeof path, "%s/.sluice-0123456789abcdef.tmp", folder);
    EXPECT(rmdir(path) == 0);
}

TEST(outfile_of_two_writers_is_whole) {
    char folder[512], path[600];
    pthread_t threads[2];
    struct err err = {0};
    fresh_folder(folder, "writers");
    snprintf(path, sizeof path, "%s/file", folder);
    write_out(path, "");
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, write_many, path);
    for (int i = 0; i < 200; i++) {
        struct filemap map;
        EXPECT_INT(filemap_open(&map, path, &err), 0);
        EXPECT(map.size == 0 || map.size == 19999);
        for (size_t k = 1; k < map.size; k++)
            EXPECT(map.data[k] == map.data[0]);
        filemap_close(&map);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    unlink(path);
    EXPECT(rmdir(folder) == 0);
}
