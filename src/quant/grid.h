/* grid.h - what the types with a codebook share: IQ1, IQ2 and IQ3.
 *
 * Such a type stores the index of eight values (IQ3: of four) in a table, the grid. Its values are
 * multiples of a few levels, 3 in IQ1 and IQ2, 8 in IQ3; IQ2 and IQ3 store signs apart. The grids
 * were found by their author, by counting which groups real weights are nearest to: they follow
 * from no rule and are facts of the format. An entry here holds the numbers of the levels, 2 bits
 * each (3 in IQ3), the first value lowest; so every grid is a list of ascending numbers. */
#ifndef QUANT_GRID_H
#define QUANT_GRID_H

#include "quant/f16.h"

/* Four numbers of 2 bits to four bytes. */
QUANT_FN uint32_t grid_spread_2(uint32_t code) {
    uint32_t w = (code | code << 12) & 0x000f000f;
    return (w | w << 6) & 0x03030303;
}

/* Four numbers of 3 bits to four bytes. */
QUANT_FN uint32_t grid_spread_3(uint32_t code) {
    uint32_t w = (code | code << 10) & 0x003f003f;
    return (w | w << 5) & 0x07070707;
}

/* Four bytes of 1..127; those whose sign bit (0..3) is set are negated: int8. */
QUANT_FN uint32_t grid_negate(uint32_t w, uint32_t signs) {
    uint32_t ones = (signs & 15) * 0x00204081u & 0x01010101u; /* bit i to byte i */
    return (w ^ ones * 255) + ones;                           /* no byte carries into the next */
}

/* Seven sign bits, and an eighth that makes the number of minus signs even. */
QUANT_FN uint32_t grid_signs(uint32_t seven) {
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | (odd & 1) << 7;
}

#endif
