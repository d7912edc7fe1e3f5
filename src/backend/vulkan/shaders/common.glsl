// common.glsl - sums over a workgroup of any size up to 1024, in one order whatever the subgroups.
#ifndef COMMON_GLSL
#define COMMON_GLSL

// Before any use of gl_WorkGroupSize: glslc takes it for 1 until then.
layout(local_size_x_id = 0) in;

shared float group_values[1024];

// The sum of all threads' values, to all of them: a tree, each thread adding the one half the
// threads after it. All threads call it; there are a power of two of them.
float group_sum(float v) {
    uint thread = gl_LocalInvocationID.x;
    barrier(); // the last call's reads
    group_values[thread] = v;
    barrier();
    for (uint n = gl_WorkGroupSize.x / 2; n > 0; n /= 2) {
        if (thread < n)
            group_values[thread] += group_values[thread + n];
        barrier();
    }
    return group_values[0];
}

#endif
