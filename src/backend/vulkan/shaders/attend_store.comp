#version 450
// attend_store.comp - a head of a row a workgroup: queries normed, rotated and scaled to memory;
// keys, normed and rotated, and values into the cache, encoded as its type.
//
// CACHE: 0 F32, 1 F16, 2 Q8_0, 3 Q4_0. Quantized heads are rounded as src/quant/encode.c does.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"
#include "attend.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint ROTARY = 0;
layout(constant_id = 5) const uint IS_NEIGHBOURS = 0;
layout(constant_id = 6) const uint HAS_Q_NORM = 0;
layout(constant_id = 7) const uint HAS_K_NORM = 0;
layout(constant_id = 8) const uint PAGES = 1; // of a slot

layout(push_constant) uniform Push {
    IO_AT;
    uint in_first, in_stride, q_stride, k_column, v_column;
    uint q_norm_first, k_norm_first, angles_first, pages_first;
    float eps, scale;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer In { float x_in[]; };
layout(binding = 2) readonly buffer QNorm { float q_norm[]; };
layout(binding = 3) readonly buffer KNorm { float k_norm[]; };
layout(binding = 4) readonly buffer Angles { float angles[]; };
layout(binding = 5) readonly buffer Pages { uint pages[]; };
layout(binding = 6) buffer Keys { uint keys[]; };
layout(binding = 7) buffer Values { uint values[]; };
layout(binding = 8) writeonly buffer Queries { float queries[]; };

shared float x[D];
shared float sums[ATTEND_THREADS];

// ---- norm and rotation ------------------------------------------------------------------------

// The factor of the head's norm: every thread has it.
float norm_factor(uint t) {
    precise float sum = 0;
    for (uint i = t; i < D; i += ATTEND_THREADS)
        sum = fma(x[i], x[i], sum);
    sums[t] = sum;
    barrier();
    for (uint half_n = ATTEND_THREADS / 2; half_n > 0; half_n /= 2) {
        if (t < half_n) {
            sum += sums[t + half_n];
            sums[t] = sum;
        }
        barrier();
    }
    precise float mean = sums[0] / float(D);
    return 1.0 / sqrt(mean + p.eps);
}

void rotate(uint t, uint row) {
    for (uint i = t; i < ROTARY / 2; i += ATTEND_THREADS) {
        uint a = IS_NEIGHBOURS != 0 ? 2 * i : i, b = IS_NEIGHBOURS != 0 ? a + 1 : i + ROTARY / 2;
        float c = angles[p.angles_first + row * ROTARY + 2 * i];
        float s = angles[p.angles_first + row * ROTARY + 2 * i + 1];
        float xa = x[a], xb = x[b];
        precise float ya = fma(xa, c, -(xb * s)), yb = fma(xb, c, xa * s);
        x[a] = ya;
        x[b] = yb;
    }
    barrier();
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
shared uint halves[HALVES];

bool is_number(float v) {
    return (floatBitsToUint(v) & 0x7f800000u) != 0x7f800000u;
}

uint scale_half(float scale) {
    uint h = half_of(scale);
    float found = unpackHalf2x16(h).x, lost = scale < 0 ? found - scale : scale - found;
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
    float base = scale <= 65504.0 ? scale : unpackHalf2x16(d).x;
    float factor = base != 0 ? 1.0 / base : 0.0;
    factor = is_number(factor) ? factor : 0.0;
    for (uint i = 0; i < 16; i++) {
        precise float a = x[32 * b + 2 * i] * factor, c = x[32 * b + 2 * i + 1] * factor;
        halves[at + 1 + i] = q8_of(a) | q8_of(c) << 8;
    }
#else
    precise float scale = (-low > high ? low : high) / -8.0;
    d = scale == 0 ? 0 : scale_half(scale);
    float stored = unpackHalf2x16(d).x, factor = stored != 0 ? 1.0 / stored : 0.0;
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
// The first and the last word may hold half a neighbour, which others write now.
#define STORE(cache)                                                                               \
    for (uint b = t; b < D / 32; b += ATTEND_THREADS)                                              \
        encode_block(b);                                                                           \
    barrier();                                                                                     \
    uint first = cache_row * HALVES;                                                               \
    for (uint w = first / 2 + t; w <= (first + HALVES - 1) / 2; w += ATTEND_THREADS) {             \
        bool has_low = 2 * w >= first, has_high = 2 * w + 1 < first + HALVES;                      \
        uint low = has_low ? halves[2 * w - first] : 0;                                            \
        uint high = has_high ? halves[2 * w + 1 - first] << 16 : 0;                                \
        if (has_low && has_high) {                                                                 \
            cache[w] = low | high;                                                                 \
        } else {                                                                                   \
            atomicAnd(cache[w], has_low ? 0xffff0000u : 0x0000ffffu);                              \
            atomicOr(cache[w], low | high);                                                        \
        }                                                                                          \
    }
#endif

void main() {
    uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
    if (row >= io_n_rows())
        return;
    bool is_query = head < HEADS, is_key = !is_query && head < HEADS + KV_HEADS;
    uint column = is_query ? head * p.q_stride
                  : is_key ? p.k_column + (head - HEADS) * D
                           : p.v_column + (head - HEADS - KV_HEADS) * D;
    for (uint i = t; i < D; i += ATTEND_THREADS)
        x[i] = x_in[p.in_first + row * p.in_stride + column + i];
    barrier();
    if (is_query ? HAS_Q_NORM != 0 : is_key && HAS_K_NORM != 0) {
        float factor = norm_factor(t);
        for (uint i = t; i < D; i += ATTEND_THREADS) {
            float w = is_query ? q_norm[p.q_norm_first + i] : k_norm[p.k_norm_first + i];
            precise float y = x[i] * factor * w;
            x[i] = y;
        }
        barrier();
    }
    if ((is_query || is_key) && ROTARY > 0)
        rotate(t, row);
    if (is_query) {
        for (uint i = t; i < D; i += ATTEND_THREADS) {
            precise float y = x[i] * p.scale;
            queries[(row * HEADS + head) * D + i] = y;
        }
        return;
    }
    uint kv_head = (head - HEADS) % KV_HEADS, position = io_row_position(row);
    uint page = pages[p.pages_first + io_row_slot(row) * PAGES + position / IO_PAGE_POSITIONS];
    uint cache_row = (page * KV_HEADS + kv_head) * IO_PAGE_POSITIONS + position % IO_PAGE_POSITIONS;
    if (is_key) {
        STORE(keys)
    } else {
        STORE(values)
    }
}
