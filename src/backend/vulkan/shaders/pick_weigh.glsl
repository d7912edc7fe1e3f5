// pick_weigh.glsl - the weight of a chunk of an output that is drawn, and a list of its tokens near
// the best where something is cut.
//
// The shader has best, list and sums (pick_weigh.comp), and of its push constants where they begin.
#ifndef PICK_WEIGH_GLSL
#define PICK_WEIGH_GLSL

shared uint n_here, list_from;

// With top-k, up to as many as there are chunks: the key of the k-th best chunk's best. At least
// k tokens have that or a larger one, and few more; 0: not known.
shared uvec2 least_listed;

void find_least_listed(uvec2 own, uint n_chunks) {
    uint n_larger = 0, k = output_words[IO_TOP_K];
    barrier();
    if (t < n_chunks)
        keys[t] = own;
    if (t == 0)
        least_listed = uvec2(0);
    barrier();
    if (k == 0 || k > n_chunks || t >= n_chunks)
        return;
    for (uint i = 0; i < n_chunks; i++)
        n_larger += less64(own, keys[i]) ? 1 : 0;
    if (n_larger == k - 1)
        least_listed = own;
}

bool is_listed(float x, uint i) {
    if (least_listed.y == 0)
        return is_near(x);
    return !is_nan(x) && !less64(key_of(x, i), least_listed);
}

// This thread's logits of the chunk, loaded together: number k is k * THREADS after the first.
const uint OF_CHUNK = (CHUNK + THREADS - 1) / THREADS;
float own_logits[OF_CHUNK];

// n: of this thread's that are.
void list_near(uint begin, uint end, uint n, uint n_chunks) {
    uint n_all = (n_chunks + 1) * 2, at = 0;
    if (n > 0)
        at = atomicAdd(n_here, n);
    barrier();
    if (t == 0 && n_here > 0)
        list_from = atomicAdd(sums[o * n_all + n_all - 2], n_here);
    barrier();
    at += p.order_first + o * p.order_stride + list_from;
    if (n == 0)
        return;
    [[unroll]] for (uint k = 0; k < OF_CHUNK; k++) {
        uint i = begin + k * THREADS + t;
        if (i < end && is_listed(own_logits[k], i))
            list[at++] = key_of(own_logits[k], i);
    }
}

void weigh(uint chunk, uint n_chunks) {
    if ((flags & IO_WANTS_TOKEN) == 0 || !(output_float(IO_TEMPERATURE) > 0))
        return;
    uint begin = chunk * CHUNK, end = clamp(n_vocab, begin, begin + CHUNK), n = 0;
    [[unroll]] for (uint k = 0; k < OF_CHUNK; k++)
        own_logits[k] = logit_at(min(begin + k * THREADS + t, n_vocab - 1));
    uvec2 key = uvec2(0), sum = uvec2(0);
    for (uint i = t; i < n_chunks; i += THREADS)
        key = max64(key, best[o * n_chunks + i]);
    if (t == 0)
        n_here = 0;
    uvec2 own = key;
    if (!find_scale(largest(key)))
        return;
    find_least_listed(own, n_chunks);
    barrier();
    [[unroll]] for (uint k = 0; k < OF_CHUNK; k++) {
        uint i = begin + k * THREADS + t;
        if (i < end) {
            sum = add64(sum, weight_of(own_logits[k]));
            n += is_listed(own_logits[k], i) ? 1 : 0;
        }
    }
    sum = sum_of(sum);
    if (t == 0) {
        uint at = (o * (n_chunks + 1) + chunk) * 2;
        sums[at] = sum.x;
        sums[at + 1] = sum.y;
    }
    if (is_cut())
        list_near(begin, end, n, n_chunks);
}

#endif
