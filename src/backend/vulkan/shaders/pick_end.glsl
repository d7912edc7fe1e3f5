// pick_end.glsl - the end of a step, by one workgroup when all tokens are picked: the step's tokens
// are added to the counts and, in a burst, IO moves on to the next step.
//
// The shader has io, io_now, host and counts, and of its push constants counts_first, counts_stride,
// burst and step.
#ifndef PICK_END_GLSL
#define PICK_END_GLSL

// Whether output i's row is kept: it holds no draft, or all drafts up to it are right.
bool is_kept(uint i) {
    for (; (io_output_flags(i) & IO_DRAFTED) != 0; i--)
        if (io_row_token(io_output_row(i)) != int(io_now[p.io_outputs + 16 * (i - 1) + 14]))
            return false;
    return true;
}

// Counts saturate, and so are the same in any order. Two of them share a word.
void count_token(uint slot, uint token) {
    uint i = p.counts_first + slot * p.counts_stride + token, shift = i % 2 * 16;
    uint seen = counts[i / 2], was;
    do {
        was = seen;
        if ((was >> shift & 0xffffu) == 0xffffu)
            break;
        seen = atomicCompSwap(counts[i / 2], was, was + (1u << shift));
    } while (seen != was);
}

void count_tokens(uint t, uint threads) {
    for (uint row = t; row < io_n_rows(); row += threads) {
        bool is_counted = true;
        if (io_n_drafts() > 0) {
            for (uint i = 0; i < io_n_outputs(); i++)
                if (io_output_row(i) == row)
                    is_counted = is_kept(i);
        }
        if (p.step > 0 && io_output_is_over(row) != 0) // in a burst row r is output r
            is_counted = false;
        if (is_counted)
            count_token(io_row_slot(row), io[p.io_rows + 4 * row]);
    }
}

// Whether the sequence of output i goes no further in this burst.
bool is_last(uint i, int token) {
    const uint WORDS = (VOCAB + 127) / 128 * 4;
    bool is_one = (io_output_flags(i) & IO_KEEPS_MASK) != 0 && token >= 0 &&
                  (host[p.io_keeps + i * WORDS + uint(token) / 32] >> uint(token) % 32 & 1u) == 0;
    for (uint k = 0; k < io_n_ends(); k++)
        is_one = is_one || token == io_end(k);
    return is_one;
}

// Every sequence goes on from the token that was picked for it; where there is none, from any: the
// host drops the burst. It goes on from the cell that this step stored to, which in a burst of drafts
// is not the one it began with. After a token that ends an answer, or its mask, its recurrent state
// stays as it is, and all that follows is dropped.
void advance(uint t, uint threads) {
    for (uint i = t; i < io_n_outputs(); i += threads) {
        int token = int(io_now[p.io_outputs + 16 * i + 14]);
        uint row = io_output_row(i), segment = io_row_segment(row), spare = io_spare_cell();
        host[p.burst + i * IO_BURST + p.step] = uint(token);
        io_now[p.io_rows + 4 * row] = uint(max(token, 0));
        io_now[p.io_rows + 4 * row + 1]++;
        io_now[p.io_segments + 4 * segment] = io_now[p.io_to + row];
        io_now[p.io_segments + 4 * segment + 3]++;
        if (!is_last(i, token))
            continue;
        io_now[p.io_outputs + 16 * i + 15] = 1;
        if (spare != IO_NO_CELL) {
            io_now[p.io_segments + 4 * segment] = spare;
            io_now[p.io_to + row] = spare;
        }
    }
}

void end_step(uint t, uint threads) {
    if (HAS_COUNTS != 0)
        count_tokens(t, threads);
    barrier();
    if (p.burst != 0)
        advance(t, threads);
}

#endif
