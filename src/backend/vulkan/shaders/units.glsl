// units.glsl - units of weights in blocks and of int8 activations, for project.comp and
// project_tile.comp. A unit is two groups of 32 values.
//
// -DDOT: with the instruction for four int8 products. SHARED_UNITS, where defined before: this many
// units of activations are in shared memory (tile_x).
//
// sum += (scale * x.scale) * dot(q, x.q) - minimum * (x.scale * sum(x.q)) for each run of 16 or 32
// values, dot and sum exact. Where 128 activations share a scale, Q4_K, Q5_K and Q6_K multiply with
// the scales and minimums of runs as integers, and there is one such line a unit:
// sum += x.scale * (scale * dot - minimum * least).
#define GRIDS 9
#include "types.glsl"

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot_packed(uint a, uint b, spirv_literal int format);
#define dot4(a, b) dot_packed(a, b, 0)
#else
int dot4(uint a, uint b) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    return sum;
}
#endif

// Where has_integers: scale.x and minimum.x are the block's, whole the scales of runs; of Q4_K and
// Q5_K those of both groups, then their minimums.
struct Unit {
    uint q[16];
    vec4 scale, minimum; // of runs of 16
    ivec4 whole;
};

struct Acts {
    uvec4 q[4];
    vec2 scale;
    ivec4 sum; // of runs of 16
};

bool has_integers() {
    return IS_WIDE != 0 && (TYPE == DT_Q4_K || TYPE == DT_Q5_K || is_q6_k());
}

// The groups of a unit.
uvec2 groups_of(uint u) {
    if (has_integers() && is_q6_k())
        return u / 2 * 4 + (u & 1) + uvec2(0, 2);
    return 2 * u + uvec2(0, 1);
}

// Of units in shared memory: four vectors of quants, then scale and sums of both groups.
#ifdef SHARED_UNITS
shared uvec4 tile_x[SHARED_UNITS * 5];

Acts get_acts(uint at) {
    Acts a;
    [[unroll]] for (uint i = 0; i < 4; i++)
        a.q[i] = tile_x[at + i];
    uvec4 s = tile_x[at + 4];
    a.scale = uintBitsToFloat(s.xz);
    a.sum = ivec4(bitfieldExtract(int(s.y), 0, 16), int(s.y) >> 16,
                  bitfieldExtract(int(s.w), 0, 16), int(s.w) >> 16);
    return a;
}
#else
Acts load_acts(uint row, uint u) {
    Acts a;
    uvec2 g = groups_of(u);
    g.y = min(g.y, K_VALUES / 32 - 1);
    for (uint i = 0; i < 2; i++) {
        a.q[2 * i] = xq[2 * (row + g[i])];
        a.q[2 * i + 1] = xq[2 * (row + g[i]) + 1];
        uvec2 s = xs[row + g[i]];
        a.scale[i] = uintBitsToFloat(s.x);
        a.sum[2 * i] = bitfieldExtract(int(s.y), 0, 16);
        a.sum[2 * i + 1] = int(s.y) >> 16;
    }
    return a;
}
#endif

// Two blocks of Q8_0 are 17 whole words, K being a multiple of 128.
bool has_words_of_q8_0() {
    return IS_WIDE != 0 && TYPE == DT_Q8_0;
}

// A unit as it is in memory: loads that nothing waits for yet. Of most types it is empty.
struct Raw {
    uvec4 v[6];
    uvec3 rest;
};

void load_k(uint row, uint u, out Raw o) {
    const uint vectors = TYPE == DT_Q5_K ? 11 : 9;
    uint at = row / 16 + u / 4 * vectors, qs = at + (vectors - 8) + 2 * (u & 3);
    o.v[0] = WORD4(at);
    o.v[1] = WORD4(qs);
    o.v[2] = WORD4(qs + 1);
    if (TYPE == DT_Q5_K) {
        o.v[3] = WORD4(at + 1);
        o.v[4] = WORD4(at + 2);
    }
}

void unpack_k(Raw raw, uint u, out Unit o) {
    uint r = u & 3;
    vec2 d = unpack_halves(raw.v[0].x);
    uvec2 s = k_scales(raw.v[0], r);
    o.scale.x = d.x;
    o.minimum.x = d.y;
    o.whole = ivec4(s.x & 255, s.x >> 8, s.y & 255, s.y >> 8);
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint low = raw.v[1 + i / 4][i % 4];
        o.q[i] = low & 0x0f0f0f0f;
        o.q[i + 8] = low >> 4 & 0x0f0f0f0f;
        if (TYPE == DT_Q5_K) {
            uint bits = raw.v[3 + i / 4][i % 4] >> 2 * r;
            o.q[i] |= bits << 4 & 0x10101010;
            o.q[i + 8] |= bits << 3 & 0x10101010;
        }
    }
}

// Where the low bits, the high bits, the scales and d of a unit of Q6_K are.
uvec4 places_q6_k(uint row, uint u) {
    uint h = u >> 1 & 1, j = u & 1;
    return places_of_block(row, u / 4) + uvec4(64 * h + 32 * j, 32 * h, 8 * h + 2 * j, 0);
}

// 32 bytes: two vectors of a plane, or at an even place those of the three vectors around them, of
// which the last is in the block.
void load_q6_k(uint row, uint u, out Raw o) {
    const uint vectors = TYPE == Q6_K_PLANES ? 2 : 3;
    uvec4 at = places_q6_k(row, u);
    [[unroll]] for (uint i = 0; i < vectors; i++) {
        o.v[i] = WORD4(at.x / 16 + i);
        o.v[3 + i] = WORD4(at.y / 16 + i);
    }
    o.rest = uvec3(load_u16(at.z), load_u16(at.z + 4), load_u16(at.w));
}

void shift_vectors(uvec4 a, uvec4 b, uvec4 c, uint at, out uint to[8]) {
    uint w[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
    if (TYPE == Q6_K_PLANES)
        at = 0;
    [[unroll]] for (uint i = 0; i < 10; i++)
        w[i] = (at & 8) != 0 ? w[i + 2] : w[i];
    [[unroll]] for (uint i = 0; i < 9; i++)
        w[i] = (at & 4) != 0 ? w[i + 1] : w[i];
    [[unroll]] for (uint i = 0; i < 8; i++)
        to[i] = (at & 2) != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
}

void join_q6_k(uint low[8], uint high[8], uint u, inout Unit o) {
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint bits = high[i] >> 2 * (u & 1);
        o.q[i] = (low[i] & 0x0f0f0f0f) | (bits << 4 & 0x30303030);
        o.q[i + 8] = (low[i] >> 4 & 0x0f0f0f0f) | (bits & 0x30303030);
    }
}

void unpack_q6_k(Raw raw, uint row, uint u, out Unit o) {
    uvec4 at = places_q6_k(row, u);
    uint low[8], high[8];
    shift_vectors(raw.v[0], raw.v[1], raw.v[2], at.x, low);
    shift_vectors(raw.v[3], raw.v[4], raw.v[5], at.y, high);
    o.scale.x = unpack_halves(raw.rest.z).x;
    o.whole = ivec4(bitfieldExtract(int(raw.rest.x), 0, 8), bitfieldExtract(int(raw.rest.x), 8, 8),
                    bitfieldExtract(int(raw.rest.y), 0, 8), bitfieldExtract(int(raw.rest.y), 8, 8));
    join_q6_k(low, high, u, o);
}

// The last vector by words: it may be the buffer's end.
void load_q8_0(uint row, uint u, out Raw o) {
    uint at = row / 4 + 17 * u;
    [[unroll]] for (uint i = 0; i < 4; i++)
        o.v[i] = WORD4(at / 4 + i);
    [[unroll]] for (uint i = 0; i < 4; i++)
        o.v[4][i] = i <= (at & 3) ? WORD(at / 4 * 4 + 16 + i) : 0;
}

void join_q8_0(uint w[17], out Unit o) {
    [[unroll]] for (uint i = 0; i < 8; i++) {
        o.q[i] = w[i] >> 16 | w[i + 1] << 16;
        o.q[i + 8] = w[i + 9];
    }
    o.scale = vec2(unpack_halves(w[0]).x, unpack_halves(w[8]).y).xxyy;
    o.minimum = vec4(0);
}

void unpack_q8_0(Raw raw, uint row, uint u, out Unit o) {
    uint at = row / 4 + 17 * u, w[20], of[17];
    [[unroll]] for (uint i = 0; i < 20; i++)
        w[i] = raw.v[i / 4][i % 4];
    [[unroll]] for (uint i = 0; i < 18; i++)
        w[i] = (at & 2) != 0 ? w[i + 2] : w[i];
    [[unroll]] for (uint i = 0; i < 17; i++)
        of[i] = (at & 1) != 0 ? w[i + 1] : w[i];
    join_q8_0(of, o);
}

void load_raw(uint row, uint u, out Raw o) {
    if (has_words_of_q8_0())
        load_q8_0(row, u, o);
    if (has_integers()) {
        if (is_q6_k())
            load_q6_k(row, u, o);
        else
            load_k(row, u, o);
    }
}

void unpack_unit(Raw raw, uint row, uint u, out Unit o) {
    if (has_words_of_q8_0()) {
        unpack_q8_0(raw, row, u, o);
        return;
    }
    if (has_integers()) {
        if (is_q6_k())
            unpack_q6_k(raw, row, u, o);
        else
            unpack_k(raw, u, o);
        return;
    }
    for (uint i = 0; i < 2; i++) {
        Group g;
        if (2 * u + i < K_VALUES / 32) {
            unpack_group(row, 2 * u + i, g);
        } else { // after the row's end
            for (uint k = 0; k < 8; k++)
                g.q[k] = 0;
            set_scale(0, 0, g);
        }
        for (uint k = 0; k < 8; k++)
            o.q[8 * i + k] = g.q[k];
        for (uint k = 0; k < 2; k++) {
            o.scale[2 * i + k] = g.scale[k];
            o.minimum[2 * i + k] = g.minimum[k];
        }
    }
}

// Of run i of 16 values, added to `before`.
int dot16(Unit w, Acts a, uint i, int before) {
    int total = before + dot4(w.q[4 * i], a.q[i].x);
    total += dot4(w.q[4 * i + 1], a.q[i].y);
    total += dot4(w.q[4 * i + 2], a.q[i].z);
    return total + dot4(w.q[4 * i + 3], a.q[i].w);
}

// The whole sums of a unit, in f32.
float add_term(float scale, float dot, float minimum, float least, float x_scale, float before) {
    precise float term = 0;
    if (is_q6_k()) {
        term = scale * dot;
    } else {
        term = minimum * least;
        term = fma(scale, dot, -term);
    }
    precise float total = fma(x_scale, term, before);
    return total;
}

float add_integers(Unit w, Acts a, float before) {
    int dot = 0, least = 0;
    if (is_q6_k()) {
        [[unroll]] for (uint i = 0; i < 4; i++)
            dot += w.whole[i] * dot16(w, a, i, -32 * a.sum[i]);
    } else {
        dot = w.whole.x * dot16(w, a, 1, dot16(w, a, 0, 0)) +
              w.whole.y * dot16(w, a, 3, dot16(w, a, 2, 0));
        least = w.whole.z * (a.sum.x + a.sum.y) + w.whole.w * (a.sum.z + a.sum.w);
    }
    return add_term(w.scale.x, float(dot), w.minimum.x, float(least), a.scale.x, before);
}

float add_unit(Unit w, Acts a, float before) {
    precise float total = before;
    if (has_integers())
        return add_integers(w, a, before);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        int dot = dot16(w, a, i, 0), least = a.sum[i];
        if (!has_short_runs()) { // of 32
            if (i % 2 != 0)
                continue;
            dot = dot16(w, a, i + 1, dot);
            least += a.sum[i + 1];
        }
        precise float scale = w.scale[i] * a.scale[i / 2];
        total = fma(scale, float(dot), total);
        if (has_minimums()) {
            precise float offset = a.scale[i / 2] * float(least);
            total = fma(-w.minimum[i], offset, total);
        }
    }
    return total;
}
