// quantize.comp - activation rows for products: the prologue, then int8, f32 or both.
//
// Workgroup (x, y) has values 4 T x ... 4 T (x + 1) - 1 of row y, four a thread; where it needs the
// norm of the whole row it reads all of it.
//   q  round(x / scale), scale = largest magnitude of GROUP values / 127 (act_quantize)
//   s  for every 32 values (a group): scale; sums of the quants of both halves, 16 bits each
// The norm of a row is a factor of its scales: quants are those of the row without it.
// IS_TILED: a group of 64 rows, then the next group of these rows; else row after row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint PROLOGUE = 0; // enum prologue
layout(constant_id = 2) const uint GROUP = 32;   // 32 or 128 values; 0: no int8
layout(constant_id = 3) const uint HAS_F32 = 0;
layout(constant_id = 4) const uint IS_HEAD = 0;
layout(constant_id = 5) const uint HAS_VECTORS = 0;
layout(constant_id = 6) const uint IS_TILED = 0;
layout(constant_id = 7) const uint SUBGROUP = 0; // threads of a subgroup

layout(push_constant) uniform Push {
    IO_AT;
    uint k, in_first, in_stride, norm_first, gate_first, gate_row_stride, head_width, gate_stride;
    uint f32_stride;
    float eps;
} p;
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer In { float x[]; };
layout(binding = 1) readonly buffer In4 { vec4 x4[]; };
layout(binding = 2) readonly buffer Norm { float norm[]; };
layout(binding = 2) readonly buffer Norm4 { vec4 norm4[]; };
layout(binding = 3) readonly buffer Gate { float gate[]; };
layout(binding = 3) readonly buffer Gate4 { vec4 gate4[]; };
layout(binding = 4) writeonly buffer Q { uint q[]; };
layout(binding = 5) writeonly buffer S { uvec2 s[]; };
layout(binding = 6) writeonly buffer F { float y[]; };

const uint T = gl_WorkGroupSize.x;
#include "prologue.glsl"

void quantize(vec4 v, uint i, float factor) {
    float before;
    uint halves, word = quantized(v, GROUP, before, halves);
    precise float scale = before * factor;
    if (i >= p.k)
        return;
    uint row = gl_WorkGroupID.y, groups = p.k / 32, g = row * groups + i / 32;
    if (IS_TILED != 0)
        g = (row / 64 * groups + i / 32) * 64 + row % 64;
    q[8 * g + i / 4 % 8] = word;
    if (i % 32 == 0)
        s[g] = uvec2(floatBitsToUint(scale), halves);
}

void main() {
    uint to = gl_WorkGroupID.y;
    if (to >= (IS_HEAD != 0 ? io_n_outputs() : io_n_rows()))
        return;
    uint row = IS_HEAD != 0 ? io_output_row(to) : to;
    row_at = p.in_first + row * p.in_stride;
    gate_at = p.gate_first + row * p.gate_row_stride;
    uint first = 4 * T * gl_WorkGroupID.x, i = first + 4 * thread(), first_head = 0;
    float factor = PROLOGUE == PROLOGUE_NORM ? norm_of_row(p.k) : 1;
    if (PROLOGUE == PROLOGUE_GATED_NORM) {
        first_head = first / p.head_width;
        norms_of_heads(first_head, (min(first + 4 * T, p.k) + p.head_width - 1) / p.head_width);
    }
    vec4 v = vec4(0);
    if (i < p.k)
        values(i, p.k, first_head, v);
    for (uint b = 0; b < 4; b++)
        if (HAS_F32 != 0 && i + b < p.k) {
            precise float whole = v[b] * factor;
            y[to * p.f32_stride + i + b] = whole;
        }
    if (GROUP != 0)
        quantize(v, i, factor);
}
