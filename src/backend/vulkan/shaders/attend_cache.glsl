// attend_cache.glsl - four values of a key or a value, as the cache has them: bindings 3 and 4, rows of D.
// The shader defines D. CACHE: 0 F32, 1 F16, 2 Q8_0, 3 Q4_0.
#ifndef ATTEND_CACHE_GLSL
#define ATTEND_CACHE_GLSL

#include "half.glsl"

#if CACHE == 0
layout(binding = 3) readonly buffer Keys { vec4 keys[]; };
layout(binding = 4) readonly buffer Values { vec4 values[]; };
#elif CACHE == 1
layout(binding = 3) readonly buffer Keys { uvec2 keys[]; };
layout(binding = 4) readonly buffer Values { uvec2 values[]; };
#else
layout(binding = 3) readonly buffer Keys { uint keys[]; };
layout(binding = 4) readonly buffer Values { uint values[]; };
#endif

// A softmax weight as it is multiplied with values.
float softmax_weight(float v) {
#if CACHE == 1
    return nearest_f16(v);
#else
    return v;
#endif
}

#if CACHE == 0
vec4 key_at(uint row, uint c) {
    return keys[row * (D / 4) + c];
}
vec4 value_at(uint row, uint c) {
    return values[row * (D / 4) + c];
}
#elif CACHE == 1
vec4 four_halves(uvec2 v) {
    return vec4(unpack_halves(v.x), unpack_halves(v.y));
}
vec4 key_at(uint row, uint c) {
    return four_halves(keys[row * (D / 4) + c]);
}
vec4 value_at(uint row, uint c) {
    return four_halves(values[row * (D / 4) + c]);
}
#else
#define CACHE_BLOCK (CACHE == 2 ? 17 : 9) // half-words
#define HALF_OF_WORDS(cache, h) (cache[(h) / 2] >> ((h) % 2 * 16) & 0xffffu)

vec4 scaled(uint d, uint bytes) {
#if CACHE == 2
    return unpack_halves(d).x * vec4(int(bytes << 24) >> 24, int(bytes << 16) >> 24,
                                      int(bytes << 8) >> 24, int(bytes) >> 24);
#else
    return unpack_halves(d).x * (vec4(bytes & 15u, bytes >> 8 & 15u, bytes >> 16 & 15u,
                                       bytes >> 24 & 15u) - 8.0);
#endif
}

// Value 4 c is in half-word `at` of its block, and the one after.
#if CACHE == 2
#define QUANTS_AT(c) (1 + (c) % 8 * 2)
#define SHIFT(c) 0
#else
#define QUANTS_AT(c) (1 + (c) % 4 * 2)
#define SHIFT(c) ((c) % 8 / 4 * 4)
#endif
// half_at: how a half-word of `cache` is read.
#define FOUR_OF(name, cache, half_at)                                                              \
    vec4 name(uint row, uint c) {                                                                  \
        uint block = (row * (D / 32) + c / 8) * CACHE_BLOCK, at = block + QUANTS_AT(c);            \
        uint bytes = half_at(cache, at) | half_at(cache, at + 1) << 16;                            \
        return scaled(half_at(cache, block), bytes >> SHIFT(c));                                   \
    }
FOUR_OF(key_at, keys, HALF_OF_WORDS)
FOUR_OF(value_at, values, HALF_OF_WORDS)
#endif

#endif
