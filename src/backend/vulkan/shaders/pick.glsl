// pick.glsl - what the shaders of PICK share: 64-bit numbers as two words, keys, and the end of a
// step. What is picked is defined in cpu/pick.c.
//
// Keys order as (logit, then lower token first). Weights are e^((x - max) / temperature) as fixed
// point of 40 binary places: sums are exact, and so do not depend on the order of adding.
#ifndef PICK_GLSL
#define PICK_GLSL

// ---- 64 bits: x is the lower word -------------------------------------------------------------

uvec2 add64(uvec2 a, uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + (low < a.x ? 1u : 0u));
}

uvec2 sub64(uvec2 a, uvec2 b) {
    return uvec2(a.x - b.x, a.y - b.y - (a.x < b.x ? 1u : 0u));
}

bool less64(uvec2 a, uvec2 b) {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

uvec2 max64(uvec2 a, uvec2 b) {
    return less64(a, b) ? b : a;
}

uvec2 min64(uvec2 a, uvec2 b) {
    return less64(b, a) ? b : a;
}

uvec2 shift_right64(uvec2 a, uint n) {
    if (n == 0)
        return a;
    return n < 32 ? uvec2(a.x >> n | a.y << (32 - n), a.y >> n)
                  : uvec2(n < 64 ? a.y >> (n - 32) : 0, 0);
}

uvec2 shift_left64(uvec2 a, uint n) {
    if (n == 0)
        return a;
    return n < 32 ? uvec2(a.x << n, a.y << n | a.x >> (32 - n))
                  : uvec2(0, n < 64 ? a.x << (n - 32) : 0);
}

uvec2 mul64(uvec2 a, uvec2 b) {
    uint high, low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}

// The upper 64 bits of the product; has_rest: whether the lower ones are not all zero.
uvec2 mul_high64(uvec2 a, uvec2 b, out bool has_rest) {
    uint h00, l00, h01, l01, h10, l10, h11, l11;
    umulExtended(a.x, b.x, h00, l00);
    umulExtended(a.x, b.y, h01, l01);
    umulExtended(a.y, b.x, h10, l10);
    umulExtended(a.y, b.y, h11, l11);
    uvec2 middle = add64(add64(uvec2(h00, 0), uvec2(l01, 0)), uvec2(l10, 0));
    has_rest = (l00 | middle.x) != 0;
    return add64(add64(uvec2(l11, h11), uvec2(h01, 0)), add64(uvec2(h10, 0), uvec2(middle.y, 0)));
}

// A function that combines the values of all threads, in any order: by shuffles, then those of the
// subgroups in `keys`.
#define REDUCE(name, combine)                                                                      \
    uvec2 name(uvec2 x) {                                                                          \
        for (uint apart = 1; apart < gl_SubgroupSize; apart *= 2)                                  \
            x = combine(x, subgroupShuffleXor(x, apart));                                          \
        barrier();                                                                                 \
        if (gl_SubgroupInvocationID == 0)                                                          \
            keys[gl_SubgroupID] = x;                                                               \
        barrier();                                                                                 \
        x = keys[0];                                                                               \
        for (uint i = 1; i < gl_NumSubgroups; i++)                                                 \
            x = combine(x, keys[i]);                                                               \
        return x;                                                                                  \
    }

// ---- keys -------------------------------------------------------------------------------------

// Above every logit's: one of them is NaN or infinite.
#define KEY_NOT_FINITE uvec2(0xffffffffu)

bool is_nan(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool is_finite(float x) {
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

uvec2 key_of(float x, uint i) {
    uint bits = floatBitsToUint(x);
    return uvec2(~i, bits >> 31 != 0 ? ~bits : bits | 0x80000000u);
}

float logit_of(uvec2 key) {
    return uintBitsToFloat(key.y >> 31 != 0 ? key.y & 0x7fffffffu : ~key.y);
}

int token_of(uvec2 key) {
    return key.y == 0xffffffffu ? IO_NOT_FINITE : int(~key.x);
}

// For argmax both zeros are equal and NaN, which a bias may have made, is below all; but if the
// first logit is NaN token 0 wins.
uvec2 argmax_key(float x, uint i) {
    if (is_nan(x))
        return i != 0 ? uvec2(~i, 0) : uvec2(0xffffffffu, 0xfffffffeu);
    return key_of(floatBitsToUint(x) == 0x80000000u ? 0.0 : x, i);
}

#endif
