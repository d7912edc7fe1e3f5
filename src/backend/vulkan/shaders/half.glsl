// half.glsl - two f16 of a word as floats.
#ifndef HALF_GLSL
#define HALF_GLSL

// Set where the driver's own conversion is broken: host/pipelines.c.
layout(constant_id = 100) const uint CONVERTS_HALVES = 0;

// Infinities and NaN keep their bits. No float is subnormal: a driver may read such as 0.
float half_value(uint h) {
    uint magnitude = (h & 0x7fff) << 13, bits = magnitude + 0x38000000; // bias 15 to 127
    if (magnitude >= 0x0f800000)
        bits = magnitude | 0x7f800000;
    else if (magnitude < 0x00800000)
        bits = floatBitsToUint(float(h & 0x3ff) * 5.9604644775390625e-8); // 2^-24
    return uintBitsToFloat(bits | (h & 0x8000) << 16);
}

vec2 unpack_halves(uint word) {
    if (CONVERTS_HALVES == 0)
        return unpackHalf2x16(word);
    return vec2(half_value(word), half_value(word >> 16));
}

#endif
