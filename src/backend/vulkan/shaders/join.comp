#version 450
// join.comp - JOIN: a workgroup a row, the embedding's norm in the left half, in the right one that of
// the hidden state one position earlier.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 3) const uint HAS_X = 0; // or every row is its segment's only one

layout(push_constant) uniform Push {
    IO_AT;
    uint embed_first, embed_stride, x_first, x_stride, state_first, state_stride, out_first, out_stride;
    float eps;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly coherent buffer Embed { float embed[]; };
layout(binding = 2) readonly coherent buffer X { float x[]; };
layout(binding = 3) readonly buffer State { float state[]; }; // (cells, D)
layout(binding = 4) readonly buffer Norm { float norm[]; };
layout(binding = 5) readonly buffer EmbedNorm { float embed_norm[]; };
layout(binding = 6) readonly buffer StateNorm { float state_norm[]; };
layout(binding = 7) writeonly coherent buffer Out { float result[]; };
layout(binding = 8) coherent buffer Counters { uint counters[]; };

#include "hidden.glsl"
#include "stage.glsl"

float left[EACH], right[EACH];
float left_weight[EACH], right_weight[EACH];

// What no stage of this step writes before.
void load_cell(uint row, bool is_first) {
    uint at = is_first ? p.state_first + io_segment_cell(io_row_segment(row)) * p.state_stride : 0;
    EACH_VALUE(k) {
        left_weight[k] = VALUE(embed_norm, 0, k);
        right_weight[k] = VALUE(state_norm, 0, k);
        right[k] = is_first ? VALUE(state, at, k) : 0;
    }
}

void load_rows(uint row, bool is_first) {
    uint at = p.embed_first + row * p.embed_stride;
    EACH_VALUE(k)
        left[k] = VALUE(embed, at, k);
    if (HAS_X == 0 || is_first)
        return;
    at = p.x_first + (row - 1) * p.x_stride;
    EACH_VALUE(k)
        right[k] = VALUE(x, at, k);
}

// The hidden state after the row before, as HIDDEN stores it.
void make_hidden() {
    float squares = 0;
    EACH_VALUE(k)
        squares = fma(right[k], right[k], squares);
    float factor = norm_factor(squares);
    EACH_VALUE(k)
        right[k] = normed(right[k], factor, VALUE(norm, 0, k));
}

void main() {
    uint row = gl_WorkGroupID.x;
    bool is_in = row < io_n_rows();
    bool is_first = is_in && (HAS_X == 0 || row == io_segment_first_row(io_row_segment(row)));
    if (is_in)
        load_cell(row, is_first);
    wait_for_stage();
    if (is_in) {
        load_rows(row, is_first);
        if (HAS_X != 0 && !is_first)
            make_hidden();
        float left_squares = 0, right_squares = 0;
        EACH_VALUE(k) {
            left_squares = fma(left[k], left[k], left_squares);
            right_squares = fma(right[k], right[k], right_squares);
        }
        float left_factor = norm_factor(left_squares), right_factor = norm_factor(right_squares);
        uint to = p.out_first + row * p.out_stride;
        EACH_VALUE(k) {
            if (column(k) >= WIDTH)
                continue;
            result[to + column(k)] = normed(left[k], left_factor, left_weight[k]);
            result[to + WIDTH + column(k)] = normed(right[k], right_factor, right_weight[k]);
        }
    }
    end_stage();
}
