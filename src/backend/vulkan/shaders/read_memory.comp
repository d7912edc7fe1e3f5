#version 450
// read_memory.comp - reads n times 16 bytes, to see how fast that is. The sum is never written: the
// host fills the memory with zeros, but the compiler does not know.
layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push { uint n; } p;

layout(binding = 0) buffer Memory { uvec4 memory[]; };

void main() {
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x, i = gl_GlobalInvocationID.x;
    uvec4 sum = uvec4(0);
    for (; i + 3 * step < p.n; i += 4 * step)
        sum |= memory[i] | memory[i + step] | memory[i + 2 * step] | memory[i + 3 * step];
    for (; i < p.n; i += step)
        sum |= memory[i];
    if ((sum.x | sum.y | sum.z | sum.w) == 0x12345678u)
        memory[0] = sum;
}
