/* chain.comp - a stage of dispatch.c's chains: nothing, one word a workgroup, or a stream of bytes.
 *
 * Constant 1: 0 nothing; 1 each workgroup's first thread reads a word of every buffer that the stage
 * before wrote, and writes one; 2 the same after a stream of `n` 16-byte words from the last buffer;
 * 3 as 2, `stages` times in one dispatch, with a barrier of all workgroups in between; 4 and 5: as 1,
 * after 512 and 4096 instructions, for the time that it takes to fetch them.
 *
 * 8 more: without barriers of the command buffer. A stage waits for a counter to which the workgroups
 * of the one before it add one each when they are done. 9: as 1; 10, 12, 13: as 2, 4 and 5, whose
 * stream and instructions come before the wait; 11, 14, 15: the same after it. */
#version 450
#extension GL_KHR_memory_scope_semantics : enable
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ALL_KINDS = 0;
layout(constant_id = 2) const uint SALT = 0; // makes a second pipeline another program
const uint KIND = ALL_KINDS & 7;
const bool COUNTS = ALL_KINDS > 7;

layout(push_constant) uniform Push {
    uint n, first, stages, turn, rest[28];
} p;
layout(binding = 0) coherent buffer Words { uint words[]; };
layout(binding = 1) readonly buffer Stream { uvec4 stream[]; };
#if BINDS == 10
layout(binding = 2) readonly buffer B2 { uint b2[]; };
layout(binding = 3) readonly buffer B3 { uint b3[]; };
layout(binding = 4) readonly buffer B4 { uint b4[]; };
layout(binding = 5) readonly buffer B5 { uint b5[]; };
layout(binding = 6) readonly buffer B6 { uint b6[]; };
layout(binding = 7) readonly buffer B7 { uint b7[]; };
layout(binding = 8) readonly buffer B8 { uint b8[]; };
layout(binding = 9) readonly buffer B9 { uint b9[]; };
#endif

uint read_stream(uint first) {
    uvec4 sum = uvec4(0);
    uint total = gl_NumWorkGroups.x * gl_WorkGroupSize.x, i = gl_GlobalInvocationID.x;
    for (; i + 3 * total < p.n; i += 4 * total) {
        uvec4 a = stream[first + i], b = stream[first + i + total],
              c = stream[first + i + 2 * total], d = stream[first + i + 3 * total];
        sum ^= a ^ b ^ c ^ d;
    }
    for (; i < p.n; i += total)
        sum ^= stream[first + i];
    return sum.x ^ sum.y ^ sum.z ^ sum.w;
}

void exchange(uint value, uint turn) {
    uint group = gl_WorkGroupID.x;
    if (gl_LocalInvocationID.x > 0 && value != 0x12345678u)
        return;
    value ^= words[(group + 1) % gl_NumWorkGroups.x + 4096 * (turn & 1)];
#if BINDS == 10
    value ^= b2[group] ^ b3[group] ^ b4[group] ^ b5[group] ^ b6[group] ^ b7[group] ^ b8[group] ^
             b9[group];
#endif
    words[group + 4096 * ((turn & 1) ^ 1)] = value + 1 + SALT;
}

// Multiplications and additions, one after the other, whose constants are all different.
#define STEP(n) x[(n) & 3] = x[(n) & 3] * (1.0 + float((n) + 5000 * SALT) * 1e-7) + 0.5;
#define STEPS_8(n) STEP(n) STEP(n + 1) STEP(n + 2) STEP(n + 3) STEP(n + 4) STEP(n + 5) STEP(n + 6) STEP(n + 7)
#define STEPS_64(n)                                                                                \
    STEPS_8(n) STEPS_8(n + 8) STEPS_8(n + 16) STEPS_8(n + 24) STEPS_8(n + 32) STEPS_8(n + 40)      \
    STEPS_8(n + 48) STEPS_8(n + 56)
#define STEPS_512(n)                                                                               \
    STEPS_64(n) STEPS_64(n + 64) STEPS_64(n + 128) STEPS_64(n + 192) STEPS_64(n + 256)             \
    STEPS_64(n + 320) STEPS_64(n + 384) STEPS_64(n + 448)

uint compute() {
    float x[4];
    for (uint i = 0; i < 4; i++)
        x[i] = float(p.turn + i * gl_LocalInvocationID.x);
    STEPS_512(0)
    if (KIND == 5 || KIND == 7) {
        STEPS_512(512) STEPS_512(1024) STEPS_512(1536) STEPS_512(2048) STEPS_512(2560)
        STEPS_512(3072) STEPS_512(3584)
    }
    return floatBitsToUint(x[0] + x[1] + x[2] + x[3]);
}

#define COUNTER(turn) words[16384 + 64 * (turn)]

void wait_for_stage() {
    if (gl_LocalInvocationID.x == 0 && p.turn > 0) {
        while (atomicLoad(COUNTER(p.turn - 1), gl_ScopeDevice, 0, 0) < gl_NumWorkGroups.x)
            ;
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
    }
    barrier();
}

void end_stage() {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        atomicAdd(COUNTER(p.turn), 1u);
    }
}

void counted() {
    uint value = 0;
    if (KIND == 2)
        value = read_stream(p.first);
    if (KIND == 4 || KIND == 5)
        value = compute();
    wait_for_stage();
    if (KIND == 3)
        value = read_stream(p.first);
    if (KIND == 6 || KIND == 7)
        value = compute();
    exchange(value, p.turn);
    end_stage();
}

void main() {
    if (COUNTS) {
        counted();
        return;
    }
    if (KIND >= 4)
        exchange(compute(), p.turn);
    if (KIND == 0 && SALT == 1 && p.n == 1)
        words[0] = 1;
    if (KIND == 1)
        exchange(0, p.turn);
    if (KIND == 2)
        exchange(read_stream(p.first), p.turn);
    if (KIND == 3) {
        for (uint s = 0; s < p.stages; s++) {
            exchange(read_stream(p.first + s * p.n), s);
            memoryBarrierBuffer();
            barrier();
            if (gl_LocalInvocationID.x == 0) {
                atomicAdd(words[8192], 1u);
                while (atomicAdd(words[8192], 0u) < (s + 1) * gl_NumWorkGroups.x)
                    ;
                memoryBarrierBuffer();
            }
            barrier();
        }
    }
}
