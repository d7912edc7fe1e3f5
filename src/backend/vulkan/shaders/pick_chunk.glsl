// pick_chunk.glsl - a chunk of a row's logits, EACH of them in a thread's registers: number k is
// first + k * THREADS. For pick_best.comp and pick_rank.comp.
//
// The shader has logits and wanted, and of its push constants where they begin.
#ifndef PICK_CHUNK_GLSL
#define PICK_CHUNK_GLSL

float chunk[EACH];

// Beyond the end some are loaded again.
void load_chunk(uint o, uint first) {
    [[unroll]] for (uint k = 0; k < EACH; k++)
        chunk[k] = logits[p.logits_first + o * p.logits_stride + min(first + k * THREADS, VOCAB - 1)];
}

void give_wanted(uint o, uint first, uint end) {
    [[unroll]] for (uint k = 0; k < EACH; k++)
        if (first + k * THREADS < end)
            wanted[p.wanted_first + o * p.wanted_stride + first + k * THREADS] = chunk[k];
}

// The best key of this thread's before `end`: above all if one of them is not finite.
uvec2 best_of_chunk(uint first, uint end) {
    uvec2 key = uvec2(0);
    bool are_finite = true;
    [[unroll]] for (uint k = 0; k < EACH; k++) {
        uint i = first + k * THREADS;
        are_finite = are_finite && (i >= end || is_finite(chunk[k]));
        key = i < end ? max64(key, argmax_key(chunk[k], i)) : key;
    }
    return are_finite ? key : KEY_NOT_FINITE;
}

shared uint largest_high, largest_low;

// The largest key of all threads.
uvec2 largest(uint thread, uvec2 key) {
    barrier();
    if (thread == 0) {
        largest_high = 0;
        largest_low = 0;
    }
    barrier();
    atomicMax(largest_high, key.y);
    barrier();
    if (key.y == largest_high)
        atomicMax(largest_low, key.x);
    barrier();
    return uvec2(largest_low, largest_high);
}

#endif
