// attend_head.glsl - a head of a row as ATTEND uses it: normed, rotated, and encoded as the cache's
// type, in shared memory x. The shader defines D, ROTARY and IS_NEIGHBOURS, has the angles, and SQUARES, a
// shared array.
//
// CACHE: 0 F32, 1 F16, 2 Q8_0, 3 Q4_0. Quantized heads are rounded as src/quant/encode.c does.
#ifndef ATTEND_HEAD_GLSL
#define ATTEND_HEAD_GLSL

#include "half.glsl"

#ifndef HEADS_OF_X
#define HEADS_OF_X 1
#endif
shared float x[HEADS_OF_X * D];

// ---- norm and rotation ------------------------------------------------------------------------

float square_of(float v, float sum) {
    precise float y = fma(v, v, sum);
    return y;
}

// Of the sum of squares.
float factor_of(float sum) {
    precise float mean = sum / float(D);
    return 1.0 / sqrt(mean + p.eps);
}

float normed(float v, float factor, float w) {
    precise float y = v * factor * w;
    return y;
}

// The i-th pair of a head's values that are rotated together.
uvec2 pair_at(uint i) {
    return IS_NEIGHBOURS != 0 ? uvec2(2 * i, 2 * i + 1) : uvec2(i, i + ROTARY / 2);
}

vec2 angle_at(uint row, uint i) {
    uint at = p.angles_first + row * ROTARY + 2 * i;
    return vec2(angles[at], angles[at + 1]);
}

vec2 rotated(vec2 v, vec2 angle) {
    precise vec2 y =
        vec2(fma(v.x, angle.x, -(v.y * angle.y)), fma(v.y, angle.x, v.x * angle.y));
    return y;
}

// A query's value as it is multiplied with keys; what is too large for F16 becomes the largest.
float scaled_query(float v) {
    precise float y = v * p.scale;
#if CACHE == 1
    uint size = floatBitsToUint(y) & 0x7fffffffu;
    float f16 = nearest_f16(uintBitsToFloat(size));
    f16 = size > 0x477fe000u && size < 0x7f800000u ? 65504.0 : f16;
    y = y < 0 ? -f16 : f16;
#endif
    precise float of_exp2 = y * LOG2_E;
    return of_exp2;
}

// The sum of 128 threads' squares from `at` on, in two steps with a barrier after each: eight threads
// add sixteen each, in order; then everybody adds these, as a tree.
float eighth_of(uint at, uint i) {
    precise float sum = SQUARES(at + i);
    [[unroll]] for (uint k = 1; k < 16; k++)
        sum += SQUARES(at + i + 8 * k);
    return sum;
}

float sum_of_eighths(uint at) {
    precise float sum =
        ((SQUARES(at) + SQUARES(at + 1)) + (SQUARES(at + 2) + SQUARES(at + 3))) +
        ((SQUARES(at + 4) + SQUARES(at + 5)) + (SQUARES(at + 6) + SQUARES(at + 7)));
    return sum;
}

// ---- the cache's types ------------------------------------------------------------------------

// To the nearest half, even where two are as near; what is too large becomes the largest.
uint half_of(float v) {
    uint bits = floatBitsToUint(v), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x7f800000u)
        return sign | (size > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (size >= 0x477ff000u)
        return sign | 0x7bffu;
    if (size < 0x38800000u)
        return sign | uint(roundEven(uintBitsToFloat(size) * 16777216.0));
    return sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
}

#if CACHE == 0
#define WORDS(row) ((row) * D)
uint word_of(uint w) {
    return floatBitsToUint(x[w]);
}
#define N_WORDS D
#elif CACHE == 1
#define WORDS(row) ((row) * (D / 2))
uint word_of(uint w) {
    return half_of(x[2 * w]) | half_of(x[2 * w + 1]) << 16;
}
#define N_WORDS (D / 2)
#else
#define BLOCK (CACHE == 2 ? 17 : 9) // half-words
#define HALVES (D / 32 * BLOCK)
shared uint halves[HEADS_OF_X * HALVES];

bool is_number(float v) {
    return (floatBitsToUint(v) & 0x7f800000u) != 0x7f800000u;
}

uint scale_half(float scale) {
    uint h = half_of(scale);
    float found = unpack_halves(h).x, lost = scale < 0 ? found - scale : scale - found;
    return h + ((h & 0x7c00u) == 0 && lost > 0 ? 1u : 0u);
}

uint q8_of(float v) {
    float size = min(abs(v), 127.0);
    int whole = int(size);
    whole += size - float(whole) >= 0.5 ? 1 : 0;
    return uint(v < 0 ? -whole : whole) & 255u;
}

uint q4_of(float v, float factor) {
    precise float code = v * factor + 8.0;
    return uint(roundEven(clamp(code, 0.0, 15.0)));
}

void encode_block(uint b) {
    float low = x[32 * b], high = low;
    bool is_sound = true;
    for (uint i = 0; i < 32; i++) {
        float v = x[32 * b + i];
        low = v < low ? v : low;
        high = v > high ? v : high;
        is_sound = is_sound && is_number(v);
    }
    uint at = b * BLOCK, d;
#if CACHE == 2
    precise float scale = (-low > high ? -low : high) / 127.0;
    d = half_of(scale);
    float base = scale <= 65504.0 ? scale : unpack_halves(d).x;
    float factor = base != 0 ? 1.0 / base : 0.0;
    factor = is_number(factor) ? factor : 0.0;
    for (uint i = 0; i < 16; i++) {
        precise float a = x[32 * b + 2 * i] * factor, c = x[32 * b + 2 * i + 1] * factor;
        halves[at + 1 + i] = q8_of(a) | q8_of(c) << 8;
    }
#else
    precise float scale = (-low > high ? low : high) / -8.0;
    d = scale == 0 ? 0 : scale_half(scale);
    float stored = unpack_halves(d).x, factor = stored != 0 ? 1.0 / stored : 0.0;
    for (uint i = 0; i < 8; i++) {
        uint j = 32 * b + 2 * i;
        halves[at + 1 + i] = q4_of(x[j], factor) | q4_of(x[j + 16], factor) << 4 |
                             q4_of(x[j + 1], factor) << 8 | q4_of(x[j + 17], factor) << 12;
    }
#endif
    halves[at] = is_sound ? d : 0x7e00u;
}
#endif

#if CACHE < 2
#define STORE(cache)                                                                               \
    for (uint w = t; w < N_WORDS; w += ATTEND_THREADS)                                             \
        cache[WORDS(cache_row) + w] = word_of(w);
#else
// HALVES from halves[from] on to the cache's row. The first and the last word may hold half a
// neighbour, which others write now.
#define STORE_HALVES(cache, row, from, threads)                                                    \
    for (uint w = (row) * HALVES / 2 + t; w <= ((row) * HALVES + HALVES - 1) / 2; w += threads) {  \
        uint first = (row) * HALVES;                                                               \
        bool has_low = 2 * w >= first, has_high = 2 * w + 1 < first + HALVES;                      \
        uint low = has_low ? halves[(from) + 2 * w - first] : 0;                                   \
        uint high = has_high ? halves[(from) + 2 * w + 1 - first] << 16 : 0;                       \
        if (has_low && has_high) {                                                                 \
            cache[w] = low | high;                                                                 \
        } else {                                                                                   \
            atomicAnd(cache[w], has_low ? 0xffff0000u : 0x0000ffffu);                              \
            atomicOr(cache[w], low | high);                                                        \
        }                                                                                          \
    }
#define STORE(cache)                                                                               \
    for (uint b = t; b < D / 32; b += ATTEND_THREADS)                                              \
        encode_block(b);                                                                           \
    barrier();                                                                                     \
    STORE_HALVES(cache, cache_row, 0, ATTEND_THREADS)
#endif

#endif
