// io.glsl - the IO block as shaders read it; see src/plan/io.h.
//
// Every shader's push constants begin with the words where IO's parts are. A shader says
//     layout(push_constant) uniform Push { IO_AT; uint mine; float eps; } p;
//     layout(binding = 0) readonly buffer Io { uint io[]; };
// and takes the parts by the macros below.
#ifndef IO_GLSL
#define IO_GLSL

#define IO_AT                                                                                      \
    uint io_rows, io_segments, io_to, io_outputs, io_changes, io_biases, io_masks, io_keeps, io_stage

#define IO_PAGE_POSITIONS 256
#define IO_BURST 8
#define IO_NO_CELL 0xffffffffu
#define IO_NOT_FINITE (-2)

#define IO_WANTS_LOGITS 1u
#define IO_WANTS_TOKEN 2u
#define IO_DRAFTED 4u
#define IO_HAS_MASK 8u
#define IO_KEEPS_MASK 16u

#define io_n_rows() io[0]
#define io_n_segments() io[1]
#define io_n_outputs() io[2]
#define io_n_changes() io[3]
#define io_n_ends() io[8]
#define io_spare_cell() io[9]
#define io_end(i) int(io[10 + (i)])
#define io_n_drafts() io[15]

#define io_row_token(r) int(io[p.io_rows + 4 * (r)])
#define io_row_position(r) io[p.io_rows + 4 * (r) + 1]
#define io_row_slot(r) io[p.io_rows + 4 * (r) + 2]
#define io_row_segment(r) io[p.io_rows + 4 * (r) + 3]

#define io_segment_cell(s) io[p.io_segments + 4 * (s)]
#define io_segment_first_row(s) io[p.io_segments + 4 * (s) + 1]
#define io_segment_n_rows(s) io[p.io_segments + 4 * (s) + 2]
#define io_segment_first_position(s) io[p.io_segments + 4 * (s) + 3]

#define io_to_cell(r) io[p.io_to + (r)]

// Word `w` of output o, as in struct io_output; those that are floats by output_float.
#define io_output(o, w) io[p.io_outputs + 16 * (o) + (w)]
#define io_output_row(o) io_output(o, 0)
#define io_output_flags(o) io_output(o, 1)
#define IO_TEMPERATURE 2
#define IO_TOP_P 3
#define IO_MIN_P 4
#define IO_TOP_K 5
#define IO_REPEAT_PENALTY 6
#define IO_PRESENCE_PENALTY 7
#define IO_FREQUENCY_PENALTY 8
#define io_output_n_bias(o) io_output(o, 9)
#define io_output_first_bias(o) io_output(o, 10)
#define io_output_n_vocab(o) io_output(o, 11)
#define io_output_seed(o) uvec2(io_output(o, 12), io_output(o, 13))
#define io_output_token(o) io_output(o, 14)
#define io_output_is_over(o) io_output(o, 15)

#endif
