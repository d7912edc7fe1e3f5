// half.glsl - two f16 of a word as floats.
#ifndef HALF_GLSL
#define HALF_GLSL

// Set where the driver's own conversion is broken: host/pipelines.c.
layout(constant_id = 100) const uint CONVERTS_HALVES = 0;

// Infinities and NaN keep their bits, subnormals become normal.
float half_value(uint h) {
    uint magnitude = (h & 0x7fff) << 13;
    uint bits = magnitude >= 0x0f800000 ? magnitude | 0x7f800000
                                        : floatBitsToUint(uintBitsToFloat(magnitude) * 5.192296858534828e33);
    return uintBitsToFloat(bits | (h & 0x8000) << 16);
}

vec2 unpack_halves(uint word) {
    if (CONVERTS_HALVES == 0)
        return unpackHalf2x16(word);
    return vec2(half_value(word), half_value(word >> 16));
}

#endif
