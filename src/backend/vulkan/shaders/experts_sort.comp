// experts_sort.comp - pairs (row, place) by expert, in tiles of ROWS pairs that have the same one: its
// number, then row * used + place of each, ~0 where there is none. A workgroup an expert; the order
// within an expert is any.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 1;
layout(constant_id = 2) const uint ROWS = 16;

layout(push_constant) uniform Push {
    IO_AT;
    uint used, choice_first, choice_stride, n_tiles;
} p;
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Choice { uint choice[]; };
layout(binding = 2) writeonly buffer Tiles { uint tiles[]; };

const uint T = gl_WorkGroupSize.x;
shared uint counts[EXPERTS];
shared uint first, next; // tile of this expert; pair of it

uint tiles_of(uint pairs) {
    return (pairs + ROWS - 1) / ROWS;
}

uint expert_of(uint pair) {
    uint row = pair / p.used;
    return choice[p.choice_first + row * p.choice_stride + pair - row * p.used];
}

void main() {
    uint tid = gl_LocalInvocationID.x, mine = gl_WorkGroupID.x, n = io_n_rows() * p.used;
    for (uint e = tid; e < EXPERTS; e += T)
        counts[e] = 0;
    if (tid == 0)
        first = next = 0;
    barrier();
    for (uint i = tid; i < n; i += T)
        atomicAdd(counts[expert_of(i)], 1);
    barrier();
    for (uint e = tid; e < mine; e += T)
        atomicAdd(first, tiles_of(counts[e]));
    barrier();
    uint last = first + tiles_of(counts[mine]);
    for (uint t = first + tid; t < (mine == EXPERTS - 1 ? p.n_tiles : last); t += T)
        tiles[t * (ROWS + 1)] = t < last ? mine : ~0u;
    for (uint i = counts[mine] + tid; i < (last - first) * ROWS; i += T)
        tiles[(first + i / ROWS) * (ROWS + 1) + 1 + i % ROWS] = ~0u;
    for (uint i = tid; i < n; i += T)
        if (expert_of(i) == mine) {
            uint to = atomicAdd(next, 1);
            tiles[(first + to / ROWS) * (ROWS + 1) + 1 + to % ROWS] = i;
        }
}
