/* fuzz_gguf.c - any bytes as a GGUF file: what opens must be whole. */
#include "file/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static uint64_t sum; /* so that no read is optimized away */

static void touch(const void *bytes, uint64_t size) {
    const volatile uint8_t *p = bytes;
    if (size > 0)
        sum += p[0] + p[size - 1];
}

static void read_values(const struct gguf_key *key) {
    for (uint64_t i = 0; i < key->count; i++) {
        if (key->type == GGUF_STRING)
            touch(key->strings[i].at, key->strings[i].len);
        else if (gguf_is_int(key))
            sum += (uint64_t)gguf_int_at(key, i);
        else if (key->type != GGUF_BOOL)
            sum += gguf_float_at(key, i) > 0;
        else
            touch(key->data + i, 1);
    }
}

/* A key's name as a C string: one that is there is found, under each type. */
static void get_values(const struct gguf *g, const struct gguf_key *key) {
    char name[64];
    if (key->name.len >= sizeof name)
        return;
    memcpy(name, key->name.at, key->name.len);
    name[key->name.len] = 0;
    CHECK(gguf_key(g, name) == key);
    struct err err;
    uint64_t u64;
    uint32_t u32;
    float f32;
    bool flag;
    struct str s;
    int found = gguf_get_u64(g, name, &u64, &err) == 1;
    CHECK(gguf_get_u32(g, name, &u32, &err) != 1 || u32 == u64);
    found += gguf_get_f32(g, name, &f32, &err) == 1;
    found += gguf_get_bool(g, name, &flag, &err) == 1;
    found += gguf_get_str(g, name, &s, &err) == 1;
    CHECK(found <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct gguf *g;
    struct err err = {0};
    if (gguf_parse(&g, bytes, size, &err)) {
        CHECK(!g && err.code < 0 && strstr(err.text, "(memory): "));
        return 0;
    }
    for (uint32_t i = 0; i < g->n_keys; i++) {
        touch(g->keys[i].name.at, g->keys[i].name.len);
        read_values(&g->keys[i]);
        get_values(g, &g->keys[i]);
    }
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct tensor *t = &g->tensors[i];
        CHECK(t->data >= bytes && t->bytes <= size && t->data + t->bytes <= bytes + size);
        touch(t->data, t->bytes);
    }
    CHECK(g->arena.used <= 16 * size + (64 << 10));
    gguf_close(g);
    return 0;
}
