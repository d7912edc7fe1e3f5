// stage.glsl - stages of a step that follow each other without a barrier of the command buffer.
//
// A dispatch starts while the stage before it still runs, loads what that does not write (weights,
// recurrent states, keys and values), waits until all workgroups of that stage are done, by a
// counter, and reads what they wrote from buffers that are `coherent`. When it is done, it is
// counted itself. Workgroups start in the order of their dispatches, so that the one which is waited
// for is running: where that is not so the wait ends, and PICK gives IO_STAGE_FAILED for a token.
//
// p.io_stage: the number of the stage's counter << 16, and the workgroups of the stage before it; if
// they are 0 a barrier came before. 0: neither waits nor counts. The shader has `counters`.
// -DNO_STAGE: only whether one has failed.
#ifndef STAGE_GLSL
#define STAGE_GLSL

#define STAGE_COUNTER(i) (256 + 32 * (i)) // host/vulkan.h
#define STAGE_FAILED STAGE_COUNTER(0)     // is no stage's; once set, it stays
#define IO_STAGE_FAILED (-3)              // host/step.c

#ifndef NO_STAGE
#include "barrier.glsl"

#define STAGE_POLLS 1048576u // a second or so

#define STAGE_COUNT(i) atomicLoad(counters[STAGE_COUNTER(i)], gl_ScopeDevice, 0, 0)

// All threads call it.
void wait_for_stage() {
    uint n = p.io_stage & 0xffff, before = (p.io_stage >> 16) - 1;
    if (n == 0)
        return;
    if (gl_LocalInvocationIndex == 0) {
        uint count, polls = 0;
        do {
            count = STAGE_COUNT(before);
            if (++polls % 4096 == 0 && (polls == STAGE_POLLS || STAGE_COUNT(0) != 0))
                break;
        } while (count < n);
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        if (count < n)
            counters[STAGE_FAILED] = 1;
    }
    group_barrier();
}

// All threads call it, when this workgroup is done.
void end_stage() {
    if (p.io_stage == 0)
        return;
    group_barrier();
    if (gl_LocalInvocationIndex == 0) {
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        atomicAdd(counters[STAGE_COUNTER(p.io_stage >> 16)], 1u);
    }
}
#endif

#endif
