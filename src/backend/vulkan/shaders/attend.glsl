// attend.glsl - ATTEND: how a row's positions are divided, and what its parts are combined by.
//
// A row that sees n positions has parts of attend_part(n) of them, so that their number follows
// from its own length alone. A part is computed 32 positions at a time, its parts are combined in
// order: by attend.comp itself in plans of many rows, by attend_combine.comp in the others. Both
// do the same arithmetic. Products and sums are `precise`, with fma where it is meant: a row has
// the same bits in all of them.
//
// Queries carry log2(e), so that all exponentials are of 2.
#ifndef ATTEND_GLSL
#define ATTEND_GLSL

#define ATTEND_THREADS 128
#define ATTEND_TILE 32
#define ATTEND_NONE (-1e30) // below every score that is seen

// Parts are as long as there are of them; from 65536 positions on there are no more than 256.
uint attend_part(uint n) {
    uint length = ATTEND_TILE;
    while (length * length < n || length * 256 < n)
        length *= 2;
    return length;
}

uint attend_parts(uint n) {
    uint length = attend_part(n);
    return (n + length - 1) / length;
}

#endif
