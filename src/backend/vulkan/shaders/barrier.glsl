// barrier.glsl - a barrier of the workgroup, for buffers too.
#ifndef BARRIER_GLSL
#define BARRIER_GLSL

void group_barrier() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup,
                   gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

#endif
