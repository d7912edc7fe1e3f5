// last.glsl - the last workgroup of several to be done, by a counter: it sees what the others wrote
// to buffers that are `coherent`. The shader has `counters`, words that are 0 between dispatches.
#ifndef LAST_GLSL
#define LAST_GLSL
#include "barrier.glsl"

shared uint n_done;

// Whether this workgroup is the last of n to come here. All threads call it.
bool is_last(uint thread, uint counter, uint n) {
    group_barrier();
    if (thread == 0) { // for all of them: what they wrote is released, what others wrote acquired
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        n_done = atomicAdd(counters[counter], 1u) + 1;
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        if (n_done == n)
            counters[counter] = 0;
    }
    group_barrier();
    return n_done == n;
}

#endif
