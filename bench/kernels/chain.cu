/* chain.cu - a whole decode step as one CUDA graph, at true sizes with random weights.
 *
 * usage: chain [-q] [-r ROWS] MODEL[:TYPE] ...      (MODEL of the table below; TYPE q4_k_m, q8_0,
 * bf16) Prints us per step for each kind of edge, after checking that all kinds give the same bits.
 */
#include "persist.cuh"

struct model {
    const char *name;
    int d, layers, interval; /* every interval-th layer is attention; 1: all */
    int h, hkv, dh, gated;   /* attention */
    int hk, hv;              /* delta-net */
    int f, vocab;
};

static const struct model MODELS[] = {
    {"qwen35-0.8b", 1024, 24, 4, 8, 2, 256, 1, 16, 16, 3584, 248320},
    {"qwen35-4b", 2560, 32, 4, 16, 4, 256, 1, 16, 32, 9216, 248320},
    {"qwen35-9b", 4096, 32, 4, 16, 4, 256, 1, 16, 32, 12288, 248320},
    {"qwen35-27b", 5120, 64, 4, 24, 4, 256, 1, 16, 48, 17408, 248320},
    {"smollm2-1.7b", 2048, 24, 1, 32, 32, 64, 0, 0, 0, 8192, 49152},
};

enum file_type { FT_Q4_K_M, FT_Q8_0, FT_BF16, FT_COUNT };
static const char *const FILE_TYPES[] = {"q4_k_m", "q8_0", "bf16"};

static const char *const STAGE_NAMES[] = {"embed", "in",   "mix",  "out",
                                          "up",    "down", "head", "pick"};

struct stage {
    enum stage_kind kind;
    bool is_delta;
    struct project_args p;
    struct delta d;
    struct attend a;
};

struct step {
    const struct model *m;
    enum file_type ft;
    int rows, max_splits;
    struct ends ends;
    std::vector<double> load; /* bytes dealt to each SM so far */
    std::vector<struct stage> stages;
    uint8_t *arena;
    size_t arena_bytes, used;
    float *x[2], *proj, *o, *h, *logits, *table, *norms, *state, *ring, *consts;
    __half *kv;
    int32_t *pos, *token;
    unsigned long long *best;
    size_t state_floats, ring_floats, weight_bytes, state_bytes;
};

static bool more_bits(int i, int n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

static enum weight_type base_type(enum file_type f) {
    return f == FT_Q4_K_M ? WT_Q4_K : f == FT_Q8_0 ? WT_Q8_0 : WT_BF16;
}

static enum weight_type rich_type(enum file_type f, bool more) {
    return f == FT_Q4_K_M && more ? WT_Q6_K : base_type(f);
}

/* ---- random weights, written in the repacked order ---- */

__global__ static void fix_units(uint8_t *w, size_t n, int type, float rms) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; /* one row of one unit */
    if (i >= n * 16)
        return;
    size_t u = i / 16;
    int r = i % 16;
    float f = rms * (1 + 0.3f * hash_unit((uint32_t)i));
    __half *d;
    if (type == WT_Q4_K) {
        d = (__half *)(w + u * 2304 + 2240 + r * 4);
        d[0] = __float2half(f / 190), d[1] = __float2half(f / 190 * 7.5f);
    } else if (type == WT_Q6_K) {
        d = (__half *)(w + u * 3360 + 3328 + r * 2);
        *d = __float2half(f / 1360);
    } else if (type == WT_Q8_0) {
        d = (__half *)(w + u * 4352 + r * 16);
        for (int j = 0; j < 8; j++)
            d[j] = __float2half(f / 74);
    } else {
        uint16_t *b = (uint16_t *)(w + u * 4096 + r * 256);
        for (int j = 0; j < 128; j++)
            b[j] =
                __bfloat16_as_ushort(__float2bfloat16(1.7f * rms * hash_unit(b[j] * 65537u + j)));
    }
}

static struct segment add_segment(struct step *s, enum weight_type t, int n, int k, float *out,
                                  int ldo, bool swiglu) {
    struct segment g = {};
    size_t tiles = swiglu ? (n + 7) / 8 : (n + 15) / 16, bytes = tiles * tile_bytes(t, k);
    CHECK(k % TYPES[t].unit == 0);
    g.w = s->arena + s->used;
    g.out = out, g.type = t, g.n = n, g.ldo = ldo;
    CHECK(s->used + bytes <= s->arena_bytes);
    size_t steps = bytes / unit_bytes(t, TYPES[t].unit);
    fix_units<<<(steps * 16 + 255) / 256, 256>>>((uint8_t *)g.w, steps, t, 1 / sqrtf((float)k));
    CU(cudaGetLastError());
    s->used = (s->used + bytes + 255) & ~(size_t)255;
    return g;
}

/* ---- the plan of a step ---- */

/* The fewest K slices that spread the row tiles evenly, and no slice wider than `widest`. */
static int choose_splits(int tiles, int most, int k, int widest) {
    int best = 1;
    double least = 1e9;
    for (int s = 1; s <= most; s *= 2) {
        int g = SM_COUNT / s;
        double over = (double)((tiles + g - 1) / g) * g * s / SM_COUNT * SM_COUNT / (s * tiles);
        if (over < least - 0.05)
            least = over, best = s;
    }
    while (k > widest * best)
        best++;
    return best;
}

static struct project base_project(struct step *s, int k, enum prologue pro, enum epilogue epi) {
    struct project p = {};
    p.rows = s->rows, p.k = k, p.pro = pro, p.epi = epi, p.parts = 1, p.splits = 1;
    return p;
}

static void push_project(struct step *s, enum stage_kind kind, struct project *p) {
    struct stage st = {};
    st.kind = kind, st.p.p = *p;
    project_plan(&st.p, &s->load);
    *p = st.p.p;
    s->weight_bytes += project_bytes(p);
    s->stages.push_back(st);
}

static void norm_from(struct step *s, struct project *p, int which, int parts) {
    p->x = s->x[which], p->ldx = s->m->d, p->parts = parts, p->norm = s->norms;
}

/* out_proj and down: + residual, from x[from] to x[to]; returns the parts of the result. */
static int push_parts(struct step *s, enum stage_kind kind, struct project *p, enum weight_type t,
                      int from, int parts) {
    p->splits = choose_splits((s->m->d + 15) / 16, s->max_splits, p->k,
                              MAX_SLICE(s->rows == 1 ? 1 : 8, t == WT_BF16));
    p->resid = s->x[from], p->resid_parts = parts;
    p->n_segments = 1;
    p->seg[0] = add_segment(s, t, s->m->d, p->k, s->x[!from], s->m->d, false);
    push_project(s, kind, p);
    return p->splits;
}

static int push_delta_layer(struct step *s, int layer, int parts, int ordinal) {
    const struct model *m = s->m;
    int c = (2 * m->hk + m->hv) * 128, vd = m->hv * 128, ldm = c + vd + 2 * m->hv;
    struct project p = base_project(s, m->d, PRO_NORM, EPI_STORE);
    norm_from(s, &p, 0, parts);
    p.n_segments = 2;
    p.seg[0] =
        add_segment(s, rich_type(s->ft, more_bits(layer, m->layers)), c, m->d, s->proj, ldm, 0);
    p.seg[1] = add_segment(s, base_type(s->ft), vd + 2 * m->hv, m->d, s->proj + c, ldm, 0);
    push_project(s, ST_IN, &p);

    struct stage st = {};
    st.kind = ST_MIX, st.is_delta = true;
    size_t per = (size_t)s->rows * m->hv * 128 * 128, rper = (size_t)s->rows * 4 * c;
    st.d.rows = s->rows, st.d.hk = m->hk, st.d.hv = m->hv, st.d.c = c, st.d.m = s->proj;
    st.d.ldm = ldm, st.d.off_a = c + vd, st.d.off_b = c + vd + m->hv, st.d.ldo = vd;
    st.d.ring = s->ring + ordinal * rper, st.d.s = s->state + ordinal * per, st.d.o = s->o;
    st.d.conv = s->consts, st.d.a_log = s->consts + 4 * c, st.d.dt = st.d.a_log + m->hv;
    st.d.pos = s->pos, st.d.cols = delta_columns(s->rows, m->hv);
    s->state_bytes += per * 8;
    s->stages.push_back(st);

    p = base_project(s, vd, PRO_GATED_NORM, EPI_PARTS);
    p.x = s->o, p.ldx = vd, p.gate = s->proj + c, p.ldg = ldm, p.gate_head = 128, p.head = 128;
    p.norm = s->norms;
    return push_parts(s, ST_OUT, &p, base_type(s->ft), 0, parts);
}

enum { CACHED = 64 };

static int push_attend_layer(struct step *s, int layer, int parts, int ordinal) {
    const struct model *m = s->m;
    int q_head = m->dh * (1 + m->gated), nq = m->h * q_head, nkv = m->hkv * m->dh;
    int ldm = nq + 2 * nkv, vd = m->h * m->dh;
    struct project p = base_project(s, m->d, PRO_NORM, EPI_STORE);
    norm_from(s, &p, 0, parts);
    p.n_segments = 2;
    p.seg[0] = add_segment(s, base_type(s->ft), nq + nkv, m->d, s->proj, ldm, 0);
    p.seg[1] = add_segment(s, rich_type(s->ft, more_bits(layer, m->layers)), nkv, m->d,
                           s->proj + nq + nkv, ldm, 0);
    push_project(s, ST_IN, &p);

    struct stage st = {};
    st.kind = ST_MIX;
    size_t per = (size_t)s->rows * nkv * CACHED;
    st.a.rows = s->rows, st.a.heads = m->h, st.a.kv_heads = m->hkv, st.a.dh = m->dh;
    st.a.len = CACHED, st.a.m = s->proj, st.a.ldm = ldm, st.a.q_head = q_head, st.a.off_k = nq;
    st.a.off_v = nq + nkv, st.a.ldo = vd, st.a.o = s->o;
    st.a.kc = s->kv + 2 * ordinal * per, st.a.vc = st.a.kc + per;
    s->state_bytes += per * 4;
    s->stages.push_back(st);

    p = base_project(s, vd, m->gated ? PRO_SIGMOID_GATE : PRO_PLAIN, EPI_PARTS);
    p.x = s->o, p.ldx = vd, p.gate = s->proj + m->dh, p.ldg = ldm, p.gate_head = q_head;
    p.head = m->dh;
    return push_parts(s, ST_OUT, &p, base_type(s->ft), 0, parts);
}

static int push_ffn(struct step *s, int layer, int parts) {
    const struct model *m = s->m;
    struct project p = base_project(s, m->d, PRO_NORM, EPI_SWIGLU);
    norm_from(s, &p, 1, parts);
    p.n_segments = 1;
    p.seg[0] = add_segment(s, base_type(s->ft), m->f, m->d, s->h, m->f, true);
    push_project(s, ST_UP, &p);
    p = base_project(s, m->f, PRO_PLAIN, EPI_PARTS);
    p.x = s->h, p.ldx = m->f;
    return push_parts(s, ST_DOWN, &p, rich_type(s->ft, more_bits(layer, m->layers)), 1, parts);
}

static void push_simple(struct step *s, enum stage_kind kind) {
    struct stage st = {};
    st.kind = kind;
    s->stages.push_back(st);
}

static void step_plan(struct step *s) {
    const struct model *m = s->m;
    int parts = 1, deltas = 0, attends = 0;
    push_simple(s, ST_EMBED);
    for (int i = 0; i < m->layers; i++) {
        bool attn = (i + 1) % m->interval == 0;
        parts = attn ? push_attend_layer(s, i, parts, attends++)
                     : push_delta_layer(s, i, parts, deltas++);
        parts = push_ffn(s, i, parts);
    }
    struct project p = base_project(s, m->d, PRO_NORM, EPI_STORE);
    norm_from(s, &p, 0, parts);
    p.n_segments = 1;
    p.seg[0] = add_segment(s, rich_type(s->ft, true), m->vocab, m->d, s->logits, m->vocab, false);
    push_project(s, ST_HEAD, &p);
    push_simple(s, ST_PICK);
}

static float *random_device(size_t n, float scale, float base, uint32_t seed) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = base + scale * hash_unit((uint32_t)i + seed * 1000003u);
    return device_copy(v);
}

__global__ static void fill_floats(float *p, size_t n, float scale) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = scale * hash_unit((uint32_t)i);
}

__global__ static void fill_halves(__half *p, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = __float2half(0.5f * hash_unit((uint32_t)i));
}

static void state_reset(struct step *s) {
    if (s->state_floats)
        fill_floats<<<(s->state_floats + 255) / 256, 256>>>(s->state, s->state_floats, 0.1f);
    if (s->ring_floats)
        fill_floats<<<(s->ring_floats + 255) / 256, 256>>>(s->ring, s->ring_floats, 1.0f);
    CU(cudaDeviceSynchronize());
}

static void step_open(struct step *s, uint8_t *arena, size_t arena_bytes) {
    const struct model *m = s->m;
    int c = (2 * m->hk + m->hv) * 128, attn = m->layers / m->interval, lin = m->layers - attn;
    size_t wide = std::max(c + m->hv * 130, m->h * m->dh * 2 + 2 * m->hkv * m->dh) + 64;
    s->arena = arena, s->arena_bytes = arena_bytes;
    for (int i = 0; i < 2; i++)
        s->x[i] = device_alloc<float>((size_t)MAX_PARTS * s->rows * m->d);
    s->proj = device_alloc<float>(s->rows * wide);
    s->o = device_alloc<float>((size_t)s->rows * std::max(m->hv * 128, m->h * m->dh));
    s->h = device_alloc<float>((size_t)s->rows * m->f);
    s->logits = device_alloc<float>((size_t)s->rows * m->vocab);
    s->table = random_device((size_t)16 * m->d, 1, 0, 1);
    s->norms = random_device(m->d, 0.2f, 1, 2);
    s->consts = random_device(4 * c + 2 * m->hv + 8, 0.4f, -0.1f, 3);
    s->state_floats = (size_t)s->rows * lin * m->hv * 128 * 128;
    s->ring_floats = (size_t)s->rows * lin * 4 * c;
    s->state = device_alloc<float>(s->state_floats + 4);
    s->ring = device_alloc<float>(s->ring_floats + 4);
    size_t kv = (size_t)2 * attn * s->rows * m->hkv * m->dh * CACHED;
    s->kv = device_alloc<__half>(kv);
    fill_halves<<<(kv + 255) / 256, 256>>>(s->kv, kv);
    std::vector<int32_t> pos(s->rows), token(s->rows);
    for (int r = 0; r < s->rows; r++)
        pos[r] = 7 + r, token[r] = 3 + r;
    s->pos = device_copy(pos), s->token = device_copy(token);
    s->best = device_alloc<unsigned long long>(s->rows);
    s->ends =
        (struct ends){s->rows, m->d, m->vocab, s->table, s->token, s->x[0], s->logits, s->best};
    s->load.assign(SM_COUNT, 0);
    step_plan(s);
    state_reset(s);
}

static void step_close(struct step *s) {
    void *all[] = {s->x[0],   s->x[1],  s->proj, s->o,  s->h,   s->logits, s->table, s->norms,
                   s->consts, s->state, s->ring, s->kv, s->pos, s->token,  s->best};
    for (void *p : all)
        CU(cudaFree(p));
}

/* ---- recording and running ---- */

struct mode {
    const char *name;
    bool pdl, early, persist;
    int smem_in; /* KB for the first projection of a layer */
    int flight;  /* units in flight a warp */
};

static const struct mode MODES[] = {
    {"plain edges", false, true, false, 0, 2},
    {"PDL, flight 1", true, true, false, 118, 1},
    {"PDL, flight 2", true, true, false, 118, 2},
    {"PDL, late", true, false, false, 118, 2},
    {"persistent, flight 1", false, true, true, 0, 1},
    {"persistent, flight 2", false, true, true, 0, 2},
    {"persistent, flight 4", false, true, true, 0, 4},
};

template <class F> static void prefer_shared(F *fn) {
    CU(cudaFuncSetAttribute(fn, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
}

static void stage_launch(cudaStream_t st, const struct step *s, struct stage g,
                         const struct mode *mo) {
    const struct model *m = s->m;
    if (g.kind == ST_EMBED) {
        launch(st, mo->pdl, embed, (s->rows * m->d + THREADS - 1) / THREADS, THREADS, 0, s->ends);
    } else if (g.kind == ST_PICK) {
        launch(st, mo->pdl, pick, SM_COUNT, THREADS, 0, s->ends);
    } else if (g.kind == ST_MIX && g.is_delta) {
        g.d.early = mo->early;
        delta_launch(st, mo->pdl, &g.d);
    } else if (g.kind == ST_MIX) {
        launch(st, mo->pdl, attend_short, s->rows * m->h, THREADS, 0, g.a);
    } else {
        g.p.p.early = mo->early, g.p.flight = mo->flight;
        project_launch(st, mo->pdl, &g.p, g.kind == ST_IN ? (size_t)mo->smem_in << 10 : 0);
    }
}

/* The stages whose kind is in `kinds` as a program for the persistent kernel. */
struct persistent {
    struct program g;
    persist_fn fn;
};

static struct persistent persist_open(const struct step *s, int kinds, const struct mode *mo) {
    std::vector<struct stage_desc> descs;
    std::vector<struct piece> pieces;
    struct persistent r = {};
    int mask = 0;
    r.g.flight = mo->flight;
    for (const struct stage &g : s->stages) {
        if (!(kinds >> g.kind & 1))
            continue;
        struct stage_desc d = {};
        d.kind = g.kind, d.is_delta = g.is_delta;
        if (g.kind == ST_MIX && g.is_delta)
            d.d = g.d;
        else if (g.kind == ST_MIX)
            d.a = g.a;
        else if (g.kind == ST_EMBED || g.kind == ST_PICK)
            d.e = s->ends;
        else {
            const struct project *p = &g.p.p;
            d.p = *p;
            mask |= project_mask(p);
            for (int i = 0; i < p->n_segments; i++)
                for (int b = 0; b < SM_COUNT; b++)
                    pieces.push_back(piece_of(g.p, i, b / p->splits, b % p->splits));
        }
        d.next_piece = pieces.size() / SM_COUNT;
        descs.push_back(d);
    }
    if (pieces.empty())
        pieces.resize(SM_COUNT); /* without tiles */
    r.g.n_stages = descs.size(), r.g.n_pieces = pieces.size() / SM_COUNT;
    r.g.stages = device_copy(descs), r.g.pieces = device_copy(pieces);
    r.g.counter = device_alloc<uint32_t>(1), r.g.epoch = device_alloc<uint32_t>(1);
    CU(cudaMemset(r.g.counter, 0, 4));
    CU(cudaMemset(r.g.epoch, 0, 4));
    r.fn = persist_prepare(s->rows, mask);
    return r;
}

static void persist_launch(cudaStream_t st, const struct persistent *r) {
    cudaLaunchAttribute at = {};
    at.id = cudaLaunchAttributeCooperative; /* all blocks resident, or an error */
    at.val.cooperative = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(SM_COUNT), c.blockDim = dim3(BLOCK), c.dynamicSmemBytes = PERSIST_SMEM;
    c.stream = st, c.attrs = &at, c.numAttrs = 1;
    CU(cudaLaunchKernelEx(&c, r->fn, r->g));
}

/* One graph of all stages whose kind is in `kinds` (a bit mask). */
static cudaGraphExec_t record(cudaStream_t st, const struct step *s, const struct mode *mo,
                              int kinds) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    struct persistent r = {};
    if (mo->persist)
        r = persist_open(s, kinds, mo); /* its tables are left to the process's end */
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal));
    if (mo->persist) {
        persist_launch(st, &r);
    } else {
        for (const struct stage &g : s->stages)
            if (kinds >> g.kind & 1)
                stage_launch(st, s, g, mo);
    }
    CU(cudaStreamEndCapture(st, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    CU(cudaGraphDestroy(graph));
    CU(cudaGraphUpload(exec, st));
    return exec;
}

static uint64_t fnv(const void *p, size_t n) {
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211ull;
    return h;
}

/* Three steps from the reset state: a hash of logits and delta-net state. */
static uint64_t step_hash(cudaStream_t st, struct step *s, cudaGraphExec_t exec, bool *finite) {
    size_t n = (size_t)s->rows * s->m->vocab;
    state_reset(s);
    CU(cudaMemset(s->logits, 0xff, n * 4));
    for (int i = 0; i < 3; i++)
        CU(cudaGraphLaunch(exec, st));
    CU(cudaStreamSynchronize(st));
    std::vector<float> y = host_copy(s->logits, n), z = host_copy(s->state, s->state_floats);
    *finite = true;
    for (float f : y)
        *finite = *finite && isfinite(f);
    return fnv(y.data(), n * 4) ^ fnv(z.data(), z.size() * 4);
}

static int failures;
static int max_splits = 1, modes = ~0, detail = 0;

static void print_line(const struct step *s, const char *what, struct timing t, double bytes,
                       int stages, double bw) {
    printf("%-13s %-7s rows %d  %-32s %9.1f us +-%4.1f  %7.1f step/s  %6.0f GB/s %5.1f %%  %d "
           "stages, %.2f us each over bytes\n",
           s->m->name, FILE_TYPES[s->ft], s->rows, what, t.us, t.spread_us / 2, 1e6 / t.us,
           bytes / t.us / 1e3, 100 * bytes / t.us / bw, stages, (t.us - bytes / bw) / stages);
    fflush(stdout);
}

static void time_kinds(cudaStream_t st, struct step *s, const struct mode *mo, double bw) {
    printf("%s, one kind of stage at a time:\n", mo->name);
    for (int k = ST_IN; k <= ST_HEAD; k++) {
        double bytes = 0;
        int n = 0;
        for (const struct stage &g : s->stages) {
            if (g.kind != k)
                continue;
            n++;
            if (k != ST_MIX)
                bytes += project_bytes(&g.p.p);
        }
        if (k == ST_MIX)
            bytes = s->state_bytes;
        cudaGraphExec_t e = record(st, s, mo, 1 << k);
        struct timing t = time_launches(st, 5, 20, [&] { CU(cudaGraphLaunch(e, st)); });
        char what[64];
        snprintf(what, sizeof what, "  only %s: %.2f us a stage", STAGE_NAMES[k], t.us / n);
        print_line(s, what, t, bytes, n, bw);
        CU(cudaGraphExecDestroy(e));
    }
}

#ifdef TRACE
/* Where the time of a persistent step goes: medians of the cycles between stamps, by kind. */
static void print_trace(cudaStream_t st, struct step *s, const struct mode *mo) {
    struct persistent r = persist_open(s, ~0, mo);
    int n = s->stages.size();
    r.g.trace = device_alloc<long long>(n * STAMPS);
    for (int i = 0; i < 3; i++)
        persist_launch(st, &r);
    CU(cudaStreamSynchronize(st));
    std::vector<long long> t = host_copy(r.g.trace, n * STAMPS);
    printf("%s, cycles: wait, prologue, sync, eat, sync, finish, arrive; all; waiting for units\n",
           mo->name);
    for (int k = 0; k < 2 * ST_KINDS; k++) {
        std::vector<long long> d[9];
        bool mix = k % ST_KINDS == ST_MIX || k % ST_KINDS == ST_EMBED || k % ST_KINDS == ST_PICK;
        for (int i = 0; i < n; i++) {
            const long long *at = &t[i * STAMPS];
            if (s->stages[i].kind != k % ST_KINDS || s->stages[i].is_delta != k / ST_KINDS)
                continue;
            for (int j = 0; j < 7; j++)
                d[j].push_back(mix ? 0 : at[j + 1] - at[j]);
            d[7].push_back(at[7] - at[0]);
            d[8].push_back(mix ? 0 : at[8]);
        }
        if (d[0].empty())
            continue;
        printf("  %-6s%s", STAGE_NAMES[k % ST_KINDS], k / ST_KINDS ? " (delta)" : "");
        for (int j = 0; j < 9; j++) {
            std::sort(d[j].begin(), d[j].end());
            printf(" %lld", d[j][d[j].size() / 2]);
        }
        printf("\n");
    }
}

#endif

static void print_spread(cudaStream_t st, struct step *s, const struct mode *mo) {
    printf("%s:\n", mo->name);
    uint8_t *where = device_alloc<uint8_t>(s->stages.size() * SM_COUNT);
    struct step c = *s;
    for (size_t i = 0; i < c.stages.size(); i++)
        c.stages[i].p.where = where + i * SM_COUNT;
    cudaGraphExec_t e = record(st, &c, mo, ~0);
    CU(cudaGraphLaunch(e, st));
    CU(cudaStreamSynchronize(st));
    std::vector<uint8_t> w = host_copy(where, s->stages.size() * SM_COUNT);
    int doubled[ST_KINDS] = {}, stages[ST_KINDS] = {};
    for (size_t i = 0; i < s->stages.size(); i++) {
        int kind = s->stages[i].kind, seen[256] = {};
        stages[kind]++;
        for (int b = 0; b < SM_COUNT; b++)
            doubled[kind] += w[i * SM_COUNT + b] < 255 && seen[w[i * SM_COUNT + b]]++;
    }
    for (int k = ST_IN; k <= ST_HEAD; k++)
        if (k != ST_MIX)
            printf("  %s: %d of %d blocks found another of their stage on the SM\n", STAGE_NAMES[k],
                   doubled[k], stages[k] * SM_COUNT);
    CU(cudaGraphExecDestroy(e));
    CU(cudaFree(where));
}

static void run_model(cudaStream_t st, const struct model *m, enum file_type ft, int rows,
                      uint8_t *arena, size_t arena_bytes, double bw) {
    struct step s = {};
    s.m = m, s.ft = ft, s.rows = rows, s.max_splits = max_splits;
    step_open(&s, arena, arena_bytes);
    double bytes = s.weight_bytes + s.state_bytes;
    int n = s.stages.size();
    printf("%s %s rows %d, at most %d slices: weights %.1f MB, state and KV %.1f MB, ideal %.1f us "
           "(%.0f step/s)\n",
           m->name, FILE_TYPES[ft], rows, max_splits, s.weight_bytes / 1e6, s.state_bytes / 1e6,
           bytes / bw, 1e6 * bw / bytes);
    uint64_t first = 0;
    for (const struct mode &mo : MODES) {
        if (!(modes >> (&mo - MODES) & 1))
            continue;
        cudaGraphExec_t e = record(st, &s, &mo, ~0);
        bool finite;
        uint64_t h = step_hash(st, &s, e, &finite);
        if (!first)
            first = h;
        if (h != first || !finite) {
            failures++;
            printf("FAIL %s: %s\n", mo.name,
                   finite ? "bits differ from the first mode" : "not finite");
        }
        struct timing t =
            time_launches(st, 5, bytes > 4e9 ? 20 : 50, [&] { CU(cudaGraphLaunch(e, st)); });
        print_line(&s, mo.name, t, bytes, n, bw);
        CU(cudaGraphExecDestroy(e));
    }
    if (detail) {
        int n = sizeof MODES / sizeof *MODES;
        for (int i = 0; i < n; i++)
            if (detail >> i & 1)
                time_kinds(st, &s, &MODES[i], bw);
        for (int i = 0; i < n; i++) {
            if (!(detail >> i & 1))
                continue;
#ifdef TRACE
            if (MODES[i].persist)
                print_trace(st, &s, &MODES[i]);
#endif
            if (!MODES[i].persist)
                print_spread(st, &s, &MODES[i]);
        }
    }
    step_close(&s);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    size_t arena_bytes = (size_t)18 << 30;
    uint8_t *arena = device_alloc<uint8_t>(arena_bytes);
    cudaStream_t st;
    CU(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    prefer_shared(delta_step<2>), prefer_shared(delta_step<4>), prefer_shared(attend_short);
    prefer_shared(embed), prefer_shared(pick);
    fill_random<<<4096, 256>>>((uint32_t *)arena, arena_bytes / 4, 1);
    double bw = bandwidth_calibrate(arena, (size_t)4 << 30);
    printf("read bandwidth %.0f GB/s\n", bw / 1e3);
    int rows = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-d") && i + 1 < argc)
            detail = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-m") && i + 1 < argc)
            modes = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-s") && i + 1 < argc)
            max_splits = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-r") && i + 1 < argc)
            rows = atoi(argv[++i]);
        else {
            char name[64];
            snprintf(name, sizeof name, "%s", argv[i]);
            char *colon = strchr(name, ':');
            int ft = 0;
            if (colon)
                *colon = 0;
            for (int f = 0; colon && f < FT_COUNT; f++)
                if (!strcmp(colon + 1, FILE_TYPES[f]))
                    ft = f;
            bool found = false;
            for (const struct model &m : MODELS)
                if (!strcmp(m.name, name))
                    run_model(st, &m, (enum file_type)ft, rows, arena, arena_bytes, bw),
                        found = true;
            CHECK(found);
        }
    }
    printf("%s\n", failures ? "CHAIN FAILED" : "chain: all modes agree");
    return failures != 0;
}
