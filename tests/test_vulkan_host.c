/* test_vulkan_host.c - the Vulkan backend's host side without a device: which dispatches need a
 * barrier between them, and the cache of pipelines on disk. */
#include "built_with.h"
#ifdef SLUICE_VULKAN
#include <unistd.h>

#include "backend/vulkan/host/cache.h"
#include "backend/vulkan/host/hazards.h"
#include "test.h"

enum { R = VULKAN_READ, W = VULKAN_WRITE, RW = VULKAN_READ | VULKAN_WRITE };

static struct vulkan_bind bytes_of(enum vulkan_memory memory, int access, uint64_t from,
                                   uint64_t to) {
    return (struct vulkan_bind){
        .memory = (uint8_t)memory, .access = (uint8_t)access, .offset = from, .bytes = to - from};
}

TEST(vulkan_hazards_of_two_dispatches) {
    static const struct {
        const char *name;
        struct {
            uint8_t memory, access;
            uint64_t from, to;
        } first, second;
        bool needs_barrier;
    } cases[] = {
        {"read after write", {VULKAN_SCRATCH, W, 0, 512}, {VULKAN_SCRATCH, R, 256, 1024}, true},
        {"write after read", {VULKAN_SCRATCH, R, 0, 512}, {VULKAN_SCRATCH, W, 508, 600}, true},
        {"write after write", {VULKAN_STATE, W, 0, 512}, {VULKAN_STATE, W, 0, 512}, true},
        {"in place", {VULKAN_STATE, RW, 0, 512}, {VULKAN_STATE, RW, 0, 512}, true},
        {"read after read", {VULKAN_SCRATCH, R, 0, 512}, {VULKAN_SCRATCH, R, 0, 512}, false},
        {"neighbours", {VULKAN_SCRATCH, W, 0, 512}, {VULKAN_SCRATCH, RW, 512, 1024}, false},
        {"before it", {VULKAN_SCRATCH, W, 512, 1024}, {VULKAN_SCRATCH, R, 0, 512}, false},
        {"within it", {VULKAN_SCRATCH, W, 0, 4096}, {VULKAN_SCRATCH, R, 256, 512}, true},
        {"another memory", {VULKAN_SCRATCH, W, 0, 512}, {VULKAN_STATE, RW, 0, 512}, false},
        {"weights", {VULKAN_WEIGHTS, R, 0, 512}, {VULKAN_WEIGHTS, R, 0, 512}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct hazards h;
        struct vulkan_bind a = bytes_of(cases[i].first.memory, cases[i].first.access,
                                        cases[i].first.from, cases[i].first.to),
                           b = bytes_of(cases[i].second.memory, cases[i].second.access,
                                        cases[i].second.from, cases[i].second.to);
        hazards_clear(&h);
        EXPECT(!hazards_need_barrier(&h, &a, 1));
        hazards_add(&h, &a, 1);
        if (hazards_need_barrier(&h, &b, 1) != cases[i].needs_barrier)
            test_fail(__FILE__, __LINE__, "%s: %d is wrong", cases[i].name,
                      !cases[i].needs_barrier);
        hazards_clear(&h);
        EXPECT(!hazards_need_barrier(&h, &b, 1));
    }
}

/* Segments of a product write columns of the same rows: they need not wait for each other. */
TEST(vulkan_hazards_of_columns) {
    static struct hazards h;
    struct vulkan_bind rows = bytes_of(VULKAN_SCRATCH, W, 256, 256 + 5 * 400), left = rows,
                       right = rows, middle = rows, other = rows;
    left.row_bytes = right.row_bytes = middle.row_bytes = 400;
    left.width = 100, left.column = 0;
    right.width = 300, right.column = 100;
    middle.width = 8, middle.column = 96;
    other.row_bytes = 404, other.width = 4, other.column = 200;
    hazards_add(&h, &left, 1);
    EXPECT(!hazards_need_barrier(&h, &right, 1));
    EXPECT(hazards_need_barrier(&h, &middle, 1));
    EXPECT(hazards_need_barrier(&h, &rows, 1));
    EXPECT(hazards_need_barrier(&h, &other, 1)); /* rows of another width: anything may be */
    hazards_add(&h, &right, 1);
    EXPECT(hazards_need_barrier(&h, &middle, 1));
    /* The same columns, seen from a bind that begins within a row. */
    struct vulkan_bind shifted = right;
    shifted.offset += 200, shifted.bytes -= 200, shifted.column = 300;
    hazards_clear(&h);
    hazards_add(&h, &left, 1);
    EXPECT(!hazards_need_barrier(&h, &shifted, 1));
    shifted.column = 200;
    EXPECT(hazards_need_barrier(&h, &shifted, 1));
}

/* More than the list holds: a barrier, not an overflow. */
TEST(vulkan_hazards_of_many) {
    static struct hazards h;
    for (uint64_t i = 0; i < MAX_HAZARDS; i++) {
        struct vulkan_bind b = bytes_of(VULKAN_SCRATCH, W, 256 * i, 256 * i + 256);
        EXPECT(!hazards_need_barrier(&h, &b, 1));
        hazards_add(&h, &b, 1);
    }
    struct vulkan_bind last = bytes_of(VULKAN_IO, R, 0, 4);
    EXPECT(hazards_need_barrier(&h, &last, 1));
}

static struct cache_key some_key(void) {
    struct cache_key key = {.vendor_id = 1, .device_id = 2, .driver_version = 3};
    memset(key.device, 7, sizeof key.device);
    return key;
}

/* The file's bytes with one changed, or some cut off the end. */
static void spoil(const char *path, size_t at, size_t cut) {
    size_t n = 0;
    char *bytes = test_read_file(path, &n);
    FILE *f = fopen(path, "wb");
    bytes[at] ^= 1;
    EXPECT(f && fwrite(bytes, 1, n - cut, f) == n - cut);
    fclose(f);
    free(bytes);
}

TEST(vulkan_cache_of_pipelines_is_kept) {
    struct cache_key key = some_key(), newer = some_key(), other = some_key();
    const char *path = test_temporary("pipelines");
    char bytes[1000];
    size_t n = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7);
    newer.driver_version++;
    other.pipelines[15] = 1;
    EXPECT(!cache_read(path, &key, &n) && n == 0);
    EXPECT(cache_write(path, &key, bytes, sizeof bytes));
    char *found = cache_read(path, &key, &n);
    EXPECT(found && n == sizeof bytes && memcmp(found, bytes, n) == 0);
    free(found);
    EXPECT(!cache_read(path, &newer, &n));
    EXPECT(!cache_read(path, &other, &n));
    EXPECT(cache_write(path, &newer, bytes, 10)); /* replaces it */
    EXPECT(!cache_read(path, &key, &n));
    EXPECT(!cache_write(path, &key, bytes, 0));
    unlink(path);
}

TEST(vulkan_cache_of_pipelines_that_is_spoilt_is_replaced) {
    struct cache_key key = some_key();
    const char *path = test_temporary("pipelines");
    char bytes[100] = "compiled";
    size_t n = 0;
    const size_t spoilt[] = {0, 9, 72, 80, 88, 187};
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        unlink(path);
        EXPECT(cache_write(path, &key, bytes, sizeof bytes));
        spoil(path, spoilt[i], 0);
        EXPECT(!cache_read(path, &key, &n));
        spoil(path, spoilt[i], 0); /* as it was */
        char *found = cache_read(path, &key, &n);
        EXPECT(found);
        free(found);
        spoil(path, 0, 100 - i); /* the first byte too, and cut */
        EXPECT(!cache_read(path, &key, &n));
        EXPECT(cache_write(path, &key, bytes, sizeof bytes)); /* replaces it */
        found = cache_read(path, &key, &n);
        EXPECT(found && n == sizeof bytes);
        free(found);
    }
    unlink(path);
}

TEST(vulkan_cache_of_pipelines_has_a_folder) {
    struct cache_key key = some_key();
    const char *folder = test_temporary("caches");
    char deep[600];
    size_t n;
    snprintf(deep, sizeof deep, "%s/of/mine", folder);
    setenv("SLUICE_VULKAN_CACHE", "", 1);
    EXPECT(!cache_path(&key));
    setenv("SLUICE_VULKAN_CACHE", deep, 1);
    char *path = cache_path(&key);
    EXPECT(path && strncmp(path, deep, strlen(deep)) == 0);
    EXPECT(path && cache_write(path, &key, "x", 1));
    char *found = cache_read(path, &key, &n);
    EXPECT(found && *found == 'x');
    free(found);
    unlink(path);
    rmdir(deep);
    deep[strlen(folder) + 3] = 0;
    rmdir(deep);
    EXPECT(rmdir(folder) == 0);
    free(path);
    unsetenv("SLUICE_VULKAN_CACHE");
}
#else
typedef int nothing; /* without Vulkan there is nothing to test */
#endif
