#version 450
// hidden.comp - HIDDEN: a workgroup a row, whose norm goes to the cell that IO names, if it names one.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#include "io.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    IO_AT;
    uint x_first, x_stride, state_first, state_stride;
    float eps;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly coherent buffer X { float x[]; };
layout(binding = 2) readonly buffer Norm { float norm[]; };
layout(binding = 3) writeonly buffer State { float state[]; }; // (cells, D)
layout(binding = 4) coherent buffer Counters { uint counters[]; };

#include "hidden.glsl"
#include "stage.glsl"

float values[EACH], weight[EACH];

void main() {
    uint row = gl_WorkGroupID.x, cell = row < io_n_rows() ? io_to_cell(row) : IO_NO_CELL;
    EACH_VALUE(k)
        weight[k] = VALUE(norm, 0, k);
    wait_for_stage();
    if (cell != IO_NO_CELL) {
        uint from = p.x_first + row * p.x_stride, to = p.state_first + cell * p.state_stride;
        float squares = 0;
        EACH_VALUE(k)
            values[k] = VALUE(x, from, k);
        EACH_VALUE(k)
            squares = fma(values[k], values[k], squares);
        float factor = norm_factor(squares);
        EACH_VALUE(k)
            if (column(k) < WIDTH)
                state[to + column(k)] = normed(values[k], factor, weight[k]);
    }
    end_stage();
}
