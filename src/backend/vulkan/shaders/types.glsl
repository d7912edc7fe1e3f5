// types.glsl - rows of every block type of src/quant, 32 values (a group) at a time. They
// are stored as in the file, or, of Q6_K, in planes.
//
// The shader declares its matrix, and before it includes this
//     WORD(i)   word i of the matrix
//     TYPE      enum dtype: a specialization constant, so that a pipeline keeps the code of one type
//     GRIDS     the binding of vulkan_grids, for the types with a codebook; undefined: without them
//     K_VALUES  values of a row; p.k if it is not defined
#ifndef TYPES_GLSL
#define TYPES_GLSL

#include "half.glsl"

#ifndef K_VALUES
#define K_VALUES p.k
#endif

#define DT_F32 0u
#define DT_F16 1u
#define DT_Q4_0 2u
#define DT_Q4_1 3u
#define DT_Q5_0 6u
#define DT_Q5_1 7u
#define DT_Q8_0 8u
#define DT_Q2_K 10u
#define DT_Q3_K 11u
#define DT_Q4_K 12u
#define DT_Q5_K 13u
#define DT_Q6_K 14u
#define DT_IQ2_XXS 16u
#define DT_IQ2_XS 17u
#define DT_IQ3_XXS 18u
#define DT_IQ1_S 19u
#define DT_IQ4_NL 20u
#define DT_IQ3_S 21u
#define DT_IQ2_S 22u
#define DT_IQ4_XS 23u
#define DT_IQ1_M 29u
#define DT_BF16 30u
#define DT_MXFP4 39u
#define Q6_K_PLANES 64u // VULKAN_Q6_K_PLANES

// y[i] = scale[i / 16] * q[i] - minimum[i / 16]; q: int8, four a word, the first lowest.
struct Group {
    uint q[8];
    vec2 scale, minimum;
};

// ---- bytes of the matrix ------------------------------------------------------------------------

// Blocks of this type begin at whole words.
bool has_whole_words() {
    switch (TYPE) {
    case DT_Q4_1:
    case DT_Q5_1:
    case DT_Q2_K:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_IQ4_XS:
    case DT_IQ1_M:
    case Q6_K_PLANES:
        return true;
    }
    return false;
}

uint load_u8(uint at) {
    return WORD(at >> 2) >> 8 * (at & 3) & 255;
}

// At an even byte.
uint load_u16(uint at) {
    return WORD(at >> 2) >> 8 * (at & 2) & 0xffff;
}

// Of two words only those that hold a wanted byte: the last one may be the buffer's last.
uint load_u32(uint at) {
    uint word = WORD(at >> 2), skew = 8 * (at & 3);
    if (has_whole_words() || skew == 0)
        return word;
    return word >> skew | WORD((at >> 2) + 1) << 32 - skew;
}

float load_half(uint at) {
    return unpack_halves(load_u16(at)).x;
}

// Words of consecutive bytes, n at most 8.
void load_words(uint at, uint n, out uint to[8]) {
    uint first = at >> 2, skew = 8 * (at & 3);
    if (has_whole_words() || skew == 0) {
        for (uint i = 0; i < n; i++)
            to[i] = WORD(first + i);
        return;
    }
    uint word = WORD(first);
    for (uint i = 0; i < n; i++) {
        uint next = WORD(first + i + 1);
        to[i] = word >> skew | next << 32 - skew;
        word = next;
    }
}

// ---- what types share ---------------------------------------------------------------------------

// Four bytes of 0..127, less `bias`.
uint bytes_minus(uint w, uint bias) {
    return (w + (0x80 - bias) * 0x01010101u) ^ 0x80808080u;
}

// Four bytes of 0..15, each replaced by that byte of a table.
uint bytes_lookup(uvec4 table, uint w) {
    uint to = 0;
    for (uint i = 0; i < 4; i++) {
        uint n = w >> 8 * i & 15;
        uint word = n < 8 ? (n < 4 ? table.x : table.y) : (n < 12 ? table.z : table.w);
        to |= (word >> 8 * (n & 3) & 255) << 8 * i;
    }
    return to;
}

// 16 bytes: values 0..15 in the low nibbles, 16..31 in the high ones.
void unpack_nibbles(uint at, inout Group o) {
    uint w[8];
    load_words(at, 4, w);
    for (uint i = 0; i < 4; i++) {
        o.q[i] = w[i] & 0x0f0f0f0f;
        o.q[i + 4] = w[i] >> 4 & 0x0f0f0f0f;
    }
}

void set_scale(float scale, float minimum, inout Group o) {
    o.scale = vec2(scale);
    o.minimum = vec2(minimum);
}

// ---- one block, one group -----------------------------------------------------------------------

uint q5_high_bits(uint bits) {
    return (bits & 15) * 0x02040810u & 0x10101010u;
}

void unpack_q5(uint qh, uint qs, inout Group o) {
    uint high = load_u32(qh);
    unpack_nibbles(qs, o);
    for (uint i = 0; i < 8; i++)
        o.q[i] |= q5_high_bits(high >> 4 * i);
}

uint iq4_lookup(uint nibbles) {
    return bytes_lookup(uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u), nibbles);
}

float mxfp4_scale(uint e) {
    return uintBitsToFloat(e < 2 ? 0x00200000u << e : e - 1 << 23);
}

void unpack_small(uint at, out Group o) {
    if (TYPE == DT_Q8_0) {
        set_scale(load_half(at), 0, o);
        load_words(at + 2, 8, o.q);
    } else if (TYPE == DT_Q4_0) {
        set_scale(load_half(at), 0, o);
        unpack_nibbles(at + 2, o);
        for (uint i = 0; i < 8; i++)
            o.q[i] = bytes_minus(o.q[i], 8);
    } else if (TYPE == DT_Q4_1) {
        vec2 d = unpack_halves(load_u32(at));
        set_scale(d.x, -d.y, o);
        unpack_nibbles(at + 4, o);
    } else if (TYPE == DT_Q5_0) {
        set_scale(load_half(at), 0, o);
        unpack_q5(at + 2, at + 6, o);
        for (uint i = 0; i < 8; i++)
            o.q[i] = bytes_minus(o.q[i], 16);
    } else if (TYPE == DT_Q5_1) {
        vec2 d = unpack_halves(load_u32(at));
        set_scale(d.x, -d.y, o);
        unpack_q5(at + 4, at + 8, o);
    } else if (TYPE == DT_IQ4_NL) {
        set_scale(load_half(at), 0, o);
        unpack_nibbles(at + 2, o);
        for (uint i = 0; i < 8; i++)
            o.q[i] = iq4_lookup(o.q[i]);
    } else { // MXFP4
        set_scale(mxfp4_scale(load_u8(at)), 0, o);
        unpack_nibbles(at + 1, o);
        for (uint i = 0; i < 8; i++)
            o.q[i] = bytes_lookup(uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu), o.q[i]);
    }
}

// ---- blocks of 256 ------------------------------------------------------------------------------

// Scales (x) and minimums (y) of sub-blocks 2r and 2r + 1 of Q4_K and Q5_K: a byte each; `header`
// is the block's first four words.
uvec2 k_scales(uvec4 header, uint r) {
    uint shift = 16 * (r & 1);
    uvec3 w = header.yzw >> shift & 0xffffu;
    if (r < 2)
        return w.xy & 0x3f3f;
    return (uvec2(w.z, w.z >> 4) & 0x0f0f) | (w.xy & 0xc0c0) >> 2;
}

void unpack_k(uint at, uint g, out Group o) {
    uint first = at >> 2;
    uvec4 header = uvec4(WORD(first), WORD(first + 1), WORD(first + 2), WORD(first + 3));
    vec2 d = unpack_halves(header.x);
    uvec2 s = k_scales(header, g / 2) >> 8 * (g & 1) & 255u;
    set_scale(d.x * float(s.x), d.y * float(s.y), o);
    uint qs = first + (TYPE == DT_Q5_K ? 12 : 4) + 8 * (g / 2);
    for (uint i = 0; i < 8; i++) {
        o.q[i] = WORD(qs + i) >> 4 * (g & 1) & 0x0f0f0f0f;
        if (TYPE == DT_Q5_K)
            o.q[i] |= (WORD(first + 4 + i) >> g & 0x01010101) << 4;
    }
}

void unpack_q2_k(uint at, uint g, out Group o) {
    vec2 d = unpack_halves(load_u32(at + 80));
    for (uint i = 0; i < 2; i++) {
        uint s = load_u8(at + 2 * g + i);
        o.scale[i] = d.x * float(s & 15);
        o.minimum[i] = d.y * float(s >> 4);
    }
    load_words(at + 16 + 32 * (g / 4), 8, o.q);
    for (uint i = 0; i < 8; i++)
        o.q[i] = o.q[i] >> 2 * (g & 3) & 0x03030303;
}

void unpack_q3_k(uint at, uint g, out Group o) {
    float d = load_half(at + 108);
    for (uint i = 0; i < 2; i++) {
        uint k = 2 * g + i, low = load_u8(at + 96 + (k & 7)) >> 4 * (k / 8) & 15;
        uint high = load_u8(at + 104 + (k & 3)) >> 2 * (k / 4) & 3;
        o.scale[i] = d * float(int(low | high << 4) - 32);
        o.minimum[i] = 0;
    }
    uint high[8];
    load_words(at, 8, high);
    load_words(at + 32 + 32 * (g / 4), 8, o.q);
    for (uint i = 0; i < 8; i++)
        o.q[i] = bytes_minus((o.q[i] >> 2 * (g & 3) & 0x03030303) | (high[i] >> g & 0x01010101) << 2, 4);
}

int load_i8(uint at) {
    return bitfieldExtract(int(load_u8(at)), 0, 8);
}

bool is_q6_k() {
    return TYPE == DT_Q6_K || TYPE == Q6_K_PLANES;
}

// Where block b of a row has its low bits, its high bits, its scales and d. Blocks of 210 bytes begin
// anywhere; planes, each of one part of all blocks of the row, at whole vectors of 16 bytes.
uvec4 places_of_block(uint row, uint b) {
    uint n = K_VALUES / 256;
    if (TYPE == Q6_K_PLANES)
        return row + uvec4(128 * b, 128 * n + 64 * b, 192 * n + 16 * b, 208 * n + 2 * b);
    return row + 210 * b + uvec4(0, 128, 192, 208);
}

void unpack_q6_k(uvec4 at, uint g, out Group o) {
    float d = load_half(at.w);
    for (uint i = 0; i < 2; i++) {
        o.scale[i] = d * float(load_i8(at.z + 2 * g + i));
        o.minimum[i] = 0;
    }
    uint high[8];
    load_words(at.x + 64 * (g / 4) + 32 * (g & 1), 8, o.q);
    load_words(at.y + 32 * (g / 4), 8, high);
    for (uint i = 0; i < 8; i++) {
        uint low = o.q[i] >> 4 * ((g & 3) / 2) & 0x0f0f0f0f;
        o.q[i] = bytes_minus(low | (high[i] >> 2 * (g & 3) & 0x03030303) << 4, 32);
    }
}

void unpack_iq4_xs(uint at, uint g, out Group o) {
    uint low = load_u8(at + 4 + g / 2) >> 4 * (g & 1) & 15, high = load_u16(at + 2) >> 2 * g & 3;
    set_scale(load_half(at) * float(int(low | high << 4) - 32), 0, o);
    unpack_nibbles(at + 8 + 16 * g, o);
    for (uint i = 0; i < 8; i++)
        o.q[i] = iq4_lookup(o.q[i]);
}

// ---- types with a codebook ----------------------------------------------------------------------

#ifdef GRIDS
layout(binding = GRIDS) readonly buffer Grids { uint grids[]; };

// Where the type's grid begins in vulkan_grids, in entries.
uint grid_first() {
    switch (TYPE) {
    case DT_IQ2_S:
        return 2048;
    case DT_IQ2_XS:
        return 3072;
    case DT_IQ3_S:
        return 3584;
    case DT_IQ2_XXS:
        return 4096;
    case DT_IQ3_XXS:
        return 4352;
    }
    return 0; // IQ1
}

uint grid(uint i) {
    return grids[(grid_first() + i) / 2] >> 16 * (i & 1) & 0xffff;
}

uint grid_spread_2(uint code) {
    uint w = (code | code << 12) & 0x000f000f;
    return (w | w << 6) & 0x03030303;
}

uint grid_spread_3(uint code) {
    uint w = (code | code << 10) & 0x003f003f;
    return (w | w << 5) & 0x07070707;
}

uint grid_negate(uint w, uint signs) {
    uint ones = (signs & 15) * 0x00204081u & 0x01010101u;
    return (w ^ ones * 255) + ones;
}

uint grid_signs(uint seven) {
    return seven | (bitCount(seven) & 1) << 7;
}

void iq2_values(uint code, uint signs, uint i, inout Group o) {
    for (uint k = 0; k < 2; k++) {
        uint level = grid_spread_2(code >> 8 * k & 255);
        uint value = 0x08080808 + (level & 0x01010101) * 17 + (level >> 1 & 0x01010101) * 35;
        o.q[2 * i + k] = grid_negate(value, signs >> 4 * k);
    }
}

void unpack_iq2(uint at, uint g, out Group o) {
    float d = load_half(at);
    o.minimum = vec2(0);
    if (TYPE == DT_IQ2_XXS) {
        uint indices = load_u32(at + 2 + 8 * g), rest = load_u32(at + 6 + 8 * g);
        o.scale = vec2(d * (0.5 + float(rest >> 28)) * 0.25);
        for (uint i = 0; i < 4; i++)
            iq2_values(grid(indices >> 8 * i & 255), grid_signs(rest >> 7 * i & 127), i, o);
        return;
    }
    uint scales = load_u8(at + (TYPE == DT_IQ2_XS ? 66 : 74) + g);
    o.scale = d * (0.5 + vec2(scales & 15, scales >> 4)) * 0.25;
    for (uint i = 0; i < 4; i++) {
        if (TYPE == DT_IQ2_XS) {
            uint q = load_u16(at + 2 + 8 * g + 2 * i);
            iq2_values(grid(q & 511), grid_signs(q >> 9), i, o);
        } else {
            uint index = load_u8(at + 2 + 4 * g + i) | (load_u8(at + 66 + g) >> 2 * i & 3) << 8;
            iq2_values(grid(index), load_u8(at + 34 + 4 * g + i), i, o);
        }
    }
}

void unpack_iq3(uint at, uint g, out Group o) {
    float d = load_half(at);
    if (TYPE == DT_IQ3_XXS) {
        uint rest = load_u32(at + 66 + 4 * g);
        set_scale(d * (0.5 + float(rest >> 28)) * 0.5, 0, o);
        for (uint i = 0; i < 8; i++) {
            uint level = grid_spread_3(grid(load_u8(at + 2 + 8 * g + i)));
            uint value = 0x04040404 + 8 * level + 2 * (level & level >> 1 & level >> 2 & 0x01010101);
            o.q[i] = grid_negate(value, grid_signs(rest >> 7 * (i / 2) & 127) >> 4 * (i & 1));
        }
        return;
    }
    uint scale = load_u8(at + 106 + g / 2) >> 4 * (g & 1) & 15, high = load_u8(at + 66 + g);
    set_scale(d * float(2 * scale + 1), 0, o);
    for (uint i = 0; i < 8; i++) {
        uint index = load_u8(at + 2 + 8 * g + i) | (high >> i & 1) << 8;
        uint value = 0x01010101 + 2 * grid_spread_3(grid(index));
        o.q[i] = grid_negate(value, load_u8(at + 74 + 4 * g + i / 2) >> 4 * (i & 1));
    }
}

void iq1_values(uint index, uint is_down, uint i, inout Group o) {
    uint code = grid(index);
    for (uint k = 0; k < 2; k++)
        o.q[2 * i + k] = bytes_minus(8 * grid_spread_2(code >> 8 * k & 255), 7 + 2 * is_down);
}

void unpack_iq1(uint at, uint g, out Group o) {
    o.minimum = vec2(0);
    if (TYPE == DT_IQ1_S) {
        uint high = load_u16(at + 34 + 2 * g);
        o.scale = vec2(load_half(at) * float(2 * (high >> 12 & 7) + 1) * 0.125);
        for (uint i = 0; i < 4; i++)
            iq1_values(load_u8(at + 2 + 4 * g + i) | (high >> 3 * i & 7) << 8, high >> 15, i, o);
        return;
    }
    uint a = load_u32(at + 48), b = load_u32(at + 52), scales = load_u16(at + 48 + 2 * (g / 2));
    uint d = (a >> 12 & 15) | (a >> 28) << 4 | (b >> 12 & 15) << 8 | (b >> 28) << 12;
    uvec2 s = uvec2(scales >> 6 * (g & 1), scales >> 6 * (g & 1) + 3) & 7u;
    o.scale = unpack_halves(d).x * vec2(2 * s + 1) * 0.125;
    for (uint i = 0; i < 4; i++) {
        uint high = load_u8(at + 32 + 2 * g + i / 2) >> 4 * (i & 1);
        iq1_values(load_u8(at + 4 * g + i) | (high & 7) << 8, high >> 3 & 1, i, o);
    }
}
#endif

// ---- any type -----------------------------------------------------------------------------------

uint block_bytes() {
    switch (TYPE) {
    case DT_Q4_0:
    case DT_IQ4_NL:
        return 18;
    case DT_Q4_1:
        return 20;
    case DT_Q5_0:
        return 22;
    case DT_Q5_1:
        return 24;
    case DT_Q8_0:
        return 34;
    case DT_MXFP4:
        return 17;
    case DT_Q2_K:
        return 84;
    case DT_Q3_K:
    case DT_IQ3_S:
        return 110;
    case DT_Q4_K:
        return 144;
    case DT_Q5_K:
        return 176;
    case DT_Q6_K:
    case Q6_K_PLANES:
        return 210;
    case DT_IQ2_XXS:
        return 66;
    case DT_IQ2_XS:
        return 74;
    case DT_IQ2_S:
        return 82;
    case DT_IQ3_XXS:
        return 98;
    case DT_IQ1_S:
        return 50;
    case DT_IQ1_M:
        return 56;
    case DT_IQ4_XS:
        return 136;
    }
    return 0;
}

// A block is one group.
bool is_small_block() {
    return block_bytes() < 40;
}

// 16 values share a scale, not 32.
bool has_short_runs() {
    switch (TYPE) {
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q6_K:
    case Q6_K_PLANES:
    case DT_IQ2_XS:
    case DT_IQ2_S:
    case DT_IQ1_M:
        return true;
    }
    return false;
}

bool has_minimums() {
    switch (TYPE) {
    case DT_Q4_1:
    case DT_Q5_1:
    case DT_Q2_K:
    case DT_Q4_K:
    case DT_Q5_K:
        return true;
    }
    return false;
}

// Group g of the row that begins at byte `row`.
void unpack_group(uint row, uint g, out Group o) {
    if (is_small_block()) {
        unpack_small(row + g * block_bytes(), o);
        return;
    }
    uint at = row + g / 8 * block_bytes(), in_block = g & 7;
    switch (TYPE) {
    case DT_Q4_K:
    case DT_Q5_K:
        unpack_k(at, in_block, o);
        break;
    case DT_Q2_K:
        unpack_q2_k(at, in_block, o);
        break;
    case DT_Q3_K:
        unpack_q3_k(at, in_block, o);
        break;
    case DT_Q6_K:
    case Q6_K_PLANES:
        unpack_q6_k(places_of_block(row, g / 8), in_block, o);
        break;
    case DT_IQ4_XS:
        unpack_iq4_xs(at, in_block, o);
        break;
#ifdef GRIDS
    case DT_IQ2_XXS:
    case DT_IQ2_XS:
    case DT_IQ2_S:
        unpack_iq2(at, in_block, o);
        break;
    case DT_IQ3_XXS:
    case DT_IQ3_S:
        unpack_iq3(at, in_block, o);
        break;
    case DT_IQ1_S:
    case DT_IQ1_M:
        unpack_iq1(at, in_block, o);
        break;
#endif
    }
}

// Value i of a group, rounded after the product and after the difference.
float group_value(Group o, uint i) {
    precise float y = o.scale[i / 16] * float(bitfieldExtract(int(o.q[i / 4]), int(8 * (i & 3)), 8));
    y = y - o.minimum[i / 16];
    return y;
}

#endif
