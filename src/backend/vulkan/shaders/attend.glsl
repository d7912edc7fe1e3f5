// attend.glsl - ATTEND: how a row's positions are divided, and what its parts are combined by.
//
// A row that sees n positions has parts of attend_part(n) of them, so that their number follows
// from its own length alone. A part is computed 32 positions at a time, its parts are combined in
// order: by attend.comp itself in plans of many rows, by attend_combine.comp in the others. Both
// do the same arithmetic. Products and sums are `precise`, with fma where it is meant: a row has
// the same bits in all of them.
//
// Queries carry log2(e), so that all exponentials are of 2. Over an F16 cache queries, before that,
// and softmax weights are F16 values, as on the CPU (docs/design.md#numerics).
#ifndef ATTEND_GLSL
#define ATTEND_GLSL

#define ATTEND_THREADS 128
#define ATTEND_TILE 32
#define ATTEND_NONE (-1e30) // below every score that is seen
#define LOG2_E 1.44269504

// A part has about as many positions as there are parts, 32 at least; from 65536 positions on there
// are no more than 256 parts. 2^attend_bits(n) is the length of a part of n positions.
uint attend_bits(uint n) {
    uint width = uint(findMSB(n - 1) + 1);
    return max(5u, max((width + 1) / 2, width < 8 ? 0 : width - 8));
}

// The F16 value nearest to v, even where two are as near, for 0 <= v <= 65504 and NaN: 2^13 times v's
// power of two has its last bit where the F16 has it.
float nearest_f16(float v) {
    uint power = max(floatBitsToUint(v) & 0x7f800000u, 113u << 23);
    float m = uintBitsToFloat(power + (13u << 23));
    precise float y = (v + m) - m;
    return y;
}

uint attend_part(uint n) {
    return 1u << attend_bits(n);
}

uint attend_parts(uint n) {
    uint bits = attend_bits(n);
    return (n + (1u << bits) - 1) >> bits;
}

#endif
