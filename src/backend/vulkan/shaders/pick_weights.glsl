// pick_weights.glsl - from an output's logits to their weights, for pick_weigh.comp and pick.comp.
//
// The shader has io, logits and adjusted, and of its push constants where they begin.
#ifndef PICK_WEIGHTS_GLSL
#define PICK_WEIGHTS_GLSL

uint t, o, n_vocab, flags;
uint output_words[14]; // words of the output, loaded together

// From a logit to its weight.
float scale, shift;
bool is_changed;

float output_float(uint word) {
    return uintBitsToFloat(output_words[word]);
}

float logit_at(uint i) {
    return is_changed ? adjusted[p.adjusted_first + o * p.adjusted_stride + i]
                      : logits[p.logits_first + o * p.logits_stride + i];
}

// By top-k, top-p or min-p.
bool is_cut() {
    return output_words[IO_TOP_K] > 0 || output_float(IO_TOP_P) < 1 || output_float(IO_MIN_P) > 0;
}

void find_output() {
    t = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0; i < 14; i++)
        output_words[i] = io_output(o, i);
    flags = output_words[1];
    n_vocab = output_words[11];
    is_changed = (flags & IO_HAS_MASK) != 0 || output_words[9] > 0 || output_float(IO_REPEAT_PENALTY) != 1 ||
                 output_float(IO_PRESENCE_PENALTY) != 0 || output_float(IO_FREQUENCY_PENALTY) != 0;
}

// False: it is not drawn, but the best, or there is none.
bool find_scale(uvec2 key) {
    float temperature = output_float(IO_TEMPERATURE), best_logit = logit_of(key);
    if ((flags & IO_WANTS_TOKEN) == 0 || !(temperature > 0) || token_of(key) == IO_NOT_FINITE ||
        is_nan(best_logit))
        return false;
    precise float inverse = 1.0 / temperature;
    precise float scaled = best_logit * inverse;
    scale = inverse;
    shift = scaled;
    return true;
}

// ---- weights ----------------------------------------------------------------------------------

// e^x as the CPU has it (vec_exp in cpu/vec.h), so that the same numbers are compared; x is not
// above 0.
float exp_of(float argument) {
    precise float x = max(argument, -87.0);
    precise float shifted = x * 1.44269504 + 12582912.0;
    precise float n = shifted - 12582912.0;
    precise float r = x - n * 0.693359375;
    r = r - n * -2.12194440e-4;
    precise float y = 1.9875691500e-4;
    y = y * r + 1.3981999507e-3;
    y = y * r + 8.3334519073e-3;
    y = y * r + 4.1665795894e-2;
    y = y * r + 1.6666665459e-1;
    y = y * r + 5.0000001201e-1;
    y = y * (r * r) + r;
    y = y + 1.0;
    return y * uintBitsToFloat((floatBitsToUint(shifted) << 23) + 0x3f800000u);
}

// In [0, 1]: the probability over the largest one.
float relative_prob(float x) {
    precise float scaled = x * scale;
    precise float distance = scaled - shift;
    return scaled == shift ? 1.0 : exp_of(distance); // infinities too
}

// In steps of sixteen bits: drivers differ in what a float above 2^31 becomes.
uvec2 weight_of(float x) {
    if (is_nan(x))
        return uvec2(0);
    precise float prob = min(relative_prob(x), 1.0) * 256.0;
    uint upper = uint(prob);
    precise float rest = (prob - float(upper)) * 65536.0;
    uint middle = uint(rest);
    precise float least = (rest - float(middle)) * 65536.0;
    return uvec2(middle << 16 | uint(least), upper);
}

// Candidates that are listed before the cuts are known: those within this of the maximum, e^-8.
#define NEAR 8.0
#define NEAR_PROB 0.0004 // what surely is

bool is_near(float x) {
    precise float distance = shift - x * scale;
    return distance <= NEAR;
}

#endif
