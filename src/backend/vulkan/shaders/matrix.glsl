// matrix.glsl - matrices of 16 x 16 spread over a subgroup of 32: fp16, of which products are made,
// and f32, of which an invocation has ELEMENTS(m) as AT(m, i), all of them at the same places.
//
// The shader has `shared uvec4 tile[]`, in which rows of 16 fp16 values along K begin `stride` vectors
// after each other. -DPLAIN: by plain code, for drivers without such matrices.
#ifdef PLAIN
#include "half.glsl"

struct Halves {
    uint at, stride;
};
struct Floats {
    float of[8];
};
#define ELEMENTS(m) 8
#define AT(m, i) m.of[i]
#define SUBGROUP (gl_LocalInvocationID.x / 32)
#define MY_ROW (gl_LocalInvocationID.x % 32 / 2)
#define MY_COLUMN(i) (gl_LocalInvocationID.x % 2 * 8 + i)

Floats zeros() {
    Floats m;
    for (uint i = 0; i < 8; i++)
        m.of[i] = 0;
    return m;
}

#define load_rows(m, from, by) m.at = from, m.stride = by
#define load_columns(m, from, by) m.at = from, m.stride = by

Floats multiply_add(Halves a, Halves b, Floats c) {
    for (uint i = 0; i < 8; i++)
        for (uint k = 0; k < 8; k++) {
            uint at = a.at + MY_ROW * a.stride + k / 4, to = b.at + MY_COLUMN(i) * b.stride + k / 4;
            vec2 x = unpack_halves(tile[at][k % 4]), y = unpack_halves(tile[to][k % 4]);
            c.of[i] += x.x * y.x + x.y * y.y;
        }
    return c;
}

Floats add(Floats a, Floats b) {
    for (uint i = 0; i < 8; i++)
        a.of[i] += b.of[i];
    return a;
}

#define spread_rows(m, array, first)     \
    for (uint to_ = 0; to_ < 8; to_++)   \
    m.of[to_] = array[first + MY_ROW]
#define spread_columns(m, array, first)  \
    for (uint to_ = 0; to_ < 8; to_++)   \
    m.of[to_] = array[first + MY_COLUMN(to_)]

void store_columns(Floats m, uint to, uint stride) {
    for (uint i = 0; i < 8; i++)
        tile[to + MY_COLUMN(i) * stride + MY_ROW / 4][MY_ROW % 4] = floatBitsToUint(m.of[i]);
}

#else

#define Halves fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define Floats fcoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define ELEMENTS(m) m.length()
#define AT(m, i) m[i]
#define SUBGROUP gl_SubgroupID
#define zeros() Floats(0)
#define load_rows(m, from, by) coopMatLoadNV(m, tile, from, by, false)
#define load_columns(m, from, by) coopMatLoadNV(m, tile, from, by, true)
#define multiply_add(a, b, c) coopMatMulAddNV(a, b, c)
#define add(a, b) ((a) + (b))
// A value for each row, or for each column.
#define spread_rows(m, array, first) coopMatLoadNV(m, array, first, 0, true)
#define spread_columns(m, array, first) coopMatLoadNV(m, array, first, 0, false)
#define store_columns(m, to, stride) coopMatStoreNV(m, tile, to, stride, true)
#endif
