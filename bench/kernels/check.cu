/* check.cu - every kernel against a plain CPU reference, on small odd shapes. Exit 1 on failure. */
#include "mix.cuh"

static int failures;

static void report(const char *what, double err, double limit) {
    bool ok = err <= limit; /* NaN fails */
    if (!ok)
        failures++;
    printf("%s %-58s rel err %.2e (limit %.0e)\n", ok ? "ok  " : "FAIL", what, err, limit);
}

static float half_to_float(uint16_t h) {
    return __half2float(__ushort_as_half(h));
}

static uint16_t float_to_half(float f) {
    return __half_as_ushort(__float2half(f));
}

/* ---- random file blocks and their decoding ---- */

static void put_half(uint8_t *p, float f) {
    uint16_t h = float_to_half(f);
    memcpy(p, &h, 2);
}

static std::vector<uint8_t> random_rows(enum weight_type t, int n, int k, uint32_t seed) {
    const struct type_info *ti = &TYPES[t];
    size_t blocks = (size_t)n * (k / ti->block);
    std::vector<uint8_t> v(blocks * ti->block_bytes);
    for (size_t i = 0; i < v.size(); i++)
        v[i] = hash32((uint32_t)i + seed * 77777u);
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *p = &v[b * ti->block_bytes];
        float f = 1.0f + 0.5f * hash_unit((uint32_t)b + seed);
        if (t == WT_Q4_K)
            put_half(p, f * 1e-4f), put_half(p + 2, f * 7e-4f);
        if (t == WT_Q6_K)
            put_half(p + 208, f * (b % 2 ? 1e-5f : -1e-5f));
        if (t == WT_Q8_0)
            put_half(p, f * 1e-4f);
        if (t == WT_BF16) {
            __nv_bfloat16 h = __float2bfloat16(0.02f * hash_unit((uint32_t)b * 3 + seed));
            memcpy(p, &h, 2);
        }
    }
    return v;
}

/* Sub-block of 32 columns against 32 int8 activations with scale `as`; f64 sums. */
static double dot_sub(enum weight_type t, const uint8_t *row, int sub, const int8_t *a, double as) {
    const uint8_t *b = row + (size_t)(32 * sub / TYPES[t].block) * TYPES[t].block_bytes;
    int s = sub % 8;
    double sum = 0;
    if (t == WT_Q8_0) {
        for (int i = 0; i < 32; i++)
            sum += (double)(int8_t)b[2 + i] * a[i];
        uint16_t h;
        memcpy(&h, b, 2);
        return sum * half_to_float(h) * as;
    }
    if (t == WT_Q6_K) {
        uint16_t h;
        memcpy(&h, b + 208, 2);
        for (int i = 32 * s; i < 32 * s + 32; i++)
            sum += (double)(int8_t)b[192 + i / 16] * (q6_k_quant(b, i) - 32) * a[i - 32 * s];
        return sum * half_to_float(h) * as;
    }
    const uint8_t *S = b + 4;
    int sc = s < 4 ? S[s] & 63 : (S[s + 4] & 15) | (S[s - 4] >> 6) << 4;
    int mn = s < 4 ? S[s + 4] & 63 : (S[s + 4] >> 4) | (S[s] >> 6) << 4;
    uint16_t d, dmin;
    memcpy(&d, b, 2), memcpy(&dmin, b + 2, 2);
    double asum = 0;
    for (int i = 0; i < 32; i++) {
        int byte = b[16 + 32 * (s / 2) + i];
        sum += (double)(s % 2 ? byte >> 4 : byte & 15) * a[i];
        asum += a[i];
    }
    return as * ((double)half_to_float(d) * sc * sum - (double)half_to_float(dmin) * mn * asum);
}

static double dot_row(enum weight_type t, const uint8_t *row, int k, const float *x) {
    double sum = 0;
    if (t == WT_BF16) {
        for (int i = 0; i < k; i++) {
            __nv_bfloat16 w;
            memcpy(&w, row + 2 * i, 2);
            sum += (double)__bfloat162float(w) * __bfloat162float(__float2bfloat16(x[i]));
        }
        return sum;
    }
    for (int s = 0; s < k / 32; s++) {
        float m = 0;
        int8_t a[32];
        for (int i = 0; i < 32; i++)
            m = fmaxf(m, fabsf(x[32 * s + i]));
        float id = m > 0 ? (1.0f / m) * 127.0f : 0;
        for (int i = 0; i < 32; i++)
            a[i] = (int8_t)(fmaf(x[32 * s + i], id, MAGIC) - MAGIC);
        sum += dot_sub(t, row, s, a, m * (1.0f / 127.0f));
    }
    return sum;
}

/* ---- PROJECT ---- */

static double rel_err(const std::vector<float> &got, const std::vector<double> &want) {
    double e = 0, n = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double d = got[i] - want[i];
        e += d * d, n += want[i] * want[i];
    }
    return sqrt(e / n); /* NaN where anything was left unwritten */
}

struct project_case {
    enum weight_type type;
    int n, k, splits;
    enum prologue pro;
    enum epilogue epi;
};

static std::vector<float> prologue_ref(const struct project_case *c, const std::vector<float> &x,
                                       const std::vector<float> &gate,
                                       const std::vector<float> &w) {
    std::vector<float> y(x);
    int head = c->pro == PRO_NORM ? c->k : 128;
    for (size_t h = 0; h < x.size() / head && c->pro != PRO_PLAIN; h++) {
        double ss = 0;
        for (int i = 0; i < head; i++)
            ss += (double)x[h * head + i] * x[h * head + i];
        double inv = 1 / sqrt(ss / head + 1e-6);
        for (int i = 0; i < head; i++) {
            double g = gate[h * head + i], sg = 1 / (1 + exp(-g)), v = x[h * head + i];
            if (c->pro == PRO_NORM)
                v *= inv * w[i];
            if (c->pro == PRO_GATED_NORM)
                v *= inv * w[i] * g * sg;
            if (c->pro == PRO_SIGMOID_GATE)
                v *= sg;
            y[h * head + i] = (float)v;
        }
    }
    return y;
}

/* Runs the first `rows` rows of the case; returns (parts added up) the output, rows x n. */
static std::vector<float> project_run(const struct project_case *c, int rows, const uint8_t *w,
                                      const float *x, const float *gate, const float *norm,
                                      const float *resid) {
    struct project_args a = {};
    struct project &p = a.p;
    p.rows = rows, p.k = c->k, p.splits = c->splits, p.pro = c->pro, p.epi = c->epi;
    p.x = x, p.ldx = c->k, p.parts = 1, p.gate = gate, p.ldg = c->k, p.head = 128,
    p.gate_head = 128;
    p.norm = norm, p.resid = resid, p.resid_parts = 1, p.early = 1, p.n_segments = 1;
    p.seg[0].w = w, p.seg[0].type = c->type, p.seg[0].n = c->n, p.seg[0].ldo = c->n;
    float *out = device_alloc<float>((size_t)4 * rows * c->n);
    p.seg[0].out = out;
    project_plan(&a, NULL);
    project_launch(0, false, &a, 0);
    CU(cudaDeviceSynchronize());
    std::vector<float> all = host_copy(out, (size_t)p.splits * rows * c->n);
    std::vector<float> y(all.begin(), all.begin() + (size_t)rows * c->n);
    for (int s = 1; s < p.splits && c->epi == EPI_PARTS; s++)
        for (size_t i = 0; i < y.size(); i++)
            y[i] += all[s * y.size() + i];
    CU(cudaFree(out));
    return y;
}

static std::vector<double> project_ref(const struct project_case *c,
                                       const std::vector<uint8_t> &file,
                                       const std::vector<float> &act,
                                       const std::vector<float> &resid) {
    size_t row_bytes = (size_t)(c->k / TYPES[c->type].block) * TYPES[c->type].block_bytes;
    std::vector<double> y;
    for (int r = 0; r < MAX_ROWS; r++)
        for (int n = 0; n < c->n; n++) {
            const float *x = &act[(size_t)r * c->k];
            double v = dot_row(c->type, &file[n * row_bytes], c->k, x);
            if (c->epi == EPI_SWIGLU)
                v = v / (1 + exp(-v)) * dot_row(c->type, &file[(n + c->n) * row_bytes], c->k, x);
            if (c->epi == EPI_PARTS)
                v += resid[(size_t)r * c->n + n];
            y.push_back(v);
        }
    return y;
}

static void check_project(const struct project_case *c) {
    static const char *pro[] = {"plain", "norm", "gated", "sigmoid"},
                      *epi[] = {"store", "parts", "swiglu"};
    int wn = c->epi == EPI_SWIGLU ? 2 * c->n : c->n;
    std::vector<uint8_t> file = random_rows(c->type, wn, c->k, c->n + c->k);
    int tiles = c->epi == EPI_SWIGLU ? (c->n + 7) / 8 : (c->n + 15) / 16;
    std::vector<uint8_t> packed(tiles * tile_bytes(c->type, c->k));
    int splits = c->splits, slice = slice_columns(c->k, TYPES[c->type].unit, &splits);
    tiles_pack(c->type, packed.data(), file.data(), c->n, c->k, slice, c->epi == EPI_SWIGLU);
    std::vector<float> x(MAX_ROWS * c->k), gate(x.size()), norm(c->k), resid(MAX_ROWS * c->n);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = 3 * hash_unit(i + 5), gate[i] = 4 * hash_unit(i + 9);
    for (int i = 0; i < c->k; i++)
        norm[i] = 1 + 0.5f * hash_unit(i);
    for (size_t i = 0; i < resid.size(); i++)
        resid[i] = 0.1f * hash_unit(i + 31);
    uint8_t *dw = device_copy(packed);
    float *dx = device_copy(x), *dg = device_copy(gate), *dn = device_copy(norm),
          *dr = device_copy(resid);
    std::vector<double> want = project_ref(c, file, prologue_ref(c, x, gate, norm), resid);
    std::vector<float> all;
    int counts[] = {8, 1, 2, 3, 5};
    for (int rows : counts) {
        std::vector<float> y = project_run(c, rows, dw, dx, dg, dn, dr);
        char what[128];
        snprintf(what, sizeof what, "project_%s n %d k %d /%d %s %s rows %d", TYPES[c->type].name,
                 c->n, c->k, c->splits, pro[c->pro], epi[c->epi], rows);
        if (rows == 8)
            all = y;
        report(what, rel_err(y, std::vector<double>(want.begin(), want.begin() + y.size())),
               c->pro == PRO_PLAIN ? 2e-5 : 3e-3);
        if (memcmp(y.data(), all.data(), y.size() * 4)) {
            failures++;
            printf("FAIL %s: bits differ from the 8-row call\n", what);
        }
    }
    cudaFree(dw), cudaFree(dx), cudaFree(dg), cudaFree(dn), cudaFree(dr);
}

/* ---- DELTA ---- */

struct delta_host {
    std::vector<float> m, ring, conv, a_log, dt, s, o;
};

static void delta_ref(const struct delta *d, struct delta_host *h, int row, int pos) {
    int kd = d->hk * 128;
    const float *m = &h->m[(size_t)row * d->ldm];
    float *ring = &h->ring[(size_t)row * 4 * d->c];
    std::vector<double> y(d->c);
    for (int c = 0; c < d->c; c++) {
        ring[(size_t)(pos & 3) * d->c + c] = m[c];
        double v = 0;
        for (int j = 0; j < 4; j++)
            v += (double)h->conv[j * d->c + c] * ring[(size_t)((pos + 1 + j) & 3) * d->c + c];
        y[c] = v / (1 + exp(-v));
    }
    for (int v = 0; v < d->hv; v++) {
        const double *q = &y[v % d->hk * 128], *k = q + kd, *val = &y[2 * kd + v * 128];
        double nq = 0, nk = 0, kq = 0;
        for (int i = 0; i < 128; i++)
            nq += q[i] * q[i], nk += k[i] * k[i], kq += k[i] * q[i];
        nq = 1 / sqrt(nq + 1e-6) / sqrt(128.0), nk = 1 / sqrt(nk + 1e-6);
        double e = exp(h->a_log[v] * log1p(exp(m[d->off_a + v] + h->dt[v])));
        double beta = 1 / (1 + exp(-m[d->off_b + v]));
        for (int j = 0; j < 128; j++) {
            float *S = &h->s[(((size_t)row * d->hv + v) * 128 + j) * 128];
            double sk = 0, sq = 0;
            for (int i = 0; i < 128; i++)
                sk += S[i] * k[i] * nk, sq += S[i] * q[i] * nq;
            double dl = beta * (val[j] - e * sk);
            h->o[(size_t)row * d->ldo + v * 128 + j] = (float)(e * sq + dl * kq * nq * nk);
            for (int i = 0; i < 128; i++)
                S[i] = (float)(e * S[i] + dl * k[i] * nk);
        }
    }
}

static std::vector<float> random_floats(size_t n, float scale, uint32_t seed) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = scale * hash_unit((uint32_t)i + seed * 1000003u);
    return v;
}

static double rel_err_f(const std::vector<float> &a, const std::vector<float> &b) {
    return rel_err(a, std::vector<double>(b.begin(), b.end()));
}

static void check_delta(int rows, int hk, int hv) {
    struct delta d = {};
    struct delta_host h;
    d.rows = rows, d.hk = hk, d.hv = hv, d.c = (2 * hk + hv) * 128, d.early = 1;
    d.cols = delta_columns(rows, hv);
    d.ldm = d.c + hv * 128 + 2 * hv, d.off_a = d.c + hv * 128, d.off_b = d.off_a + hv;
    d.ldo = hv * 128;
    h.ring = random_floats((size_t)rows * 4 * d.c, 1, 1), h.conv = random_floats(4 * d.c, 0.5f, 2);
    h.a_log = random_floats(hv, 0.5f, 3), h.dt = random_floats(hv, 1, 4);
    for (float &a : h.a_log)
        a -= 0.6f;
    h.s = random_floats((size_t)rows * hv * 128 * 128, 0.3f, 5);
    h.o.resize((size_t)rows * d.ldo);
    d.ring = device_copy(h.ring), d.conv = device_copy(h.conv), d.s = device_copy(h.s);
    d.a_log = device_copy(h.a_log), d.dt = device_copy(h.dt);
    d.o = device_alloc<float>(h.o.size());
    for (int step = 0; step < 3; step++) {
        std::vector<int32_t> pos(rows);
        for (int r = 0; r < rows; r++)
            pos[r] = 5 + step + 2 * r;
        h.m = random_floats((size_t)rows * d.ldm, 1, 40 + step);
        d.m = device_copy(h.m), d.pos = device_copy(pos);
        delta_launch(0, false, &d);
        CU(cudaDeviceSynchronize());
        for (int r = 0; r < rows; r++)
            delta_ref(&d, &h, r, pos[r]);
    }
    char what[96];
    snprintf(what, sizeof what, "delta_step rows %d hk %d hv %d, output after 3 steps", rows, hk,
             hv);
    report(what, rel_err_f(host_copy(d.o, h.o.size()), h.o), 2e-5);
    report("  state", rel_err_f(host_copy(d.s, h.s.size()), h.s), 2e-5);
    report("  conv ring", rel_err_f(host_copy(d.ring, h.ring.size()), h.ring), 0);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    static const struct project_case cases[] = {
        {WT_Q4_K, 64, 512, 1, PRO_PLAIN, EPI_STORE},
        {WT_Q4_K, 2565, 768, 1, PRO_PLAIN, EPI_STORE},
        {WT_Q4_K, 4101, 2560, 1, PRO_NORM, EPI_STORE},
        {WT_Q4_K, 200, 9216, 4, PRO_PLAIN, EPI_PARTS},
        {WT_Q4_K, 2560, 4096, 4, PRO_GATED_NORM, EPI_PARTS},
        {WT_Q4_K, 1003, 2560, 1, PRO_NORM, EPI_SWIGLU},
        {WT_Q4_K, 60000, 512, 1, PRO_PLAIN, EPI_STORE}, /* many units a warp: the ring wraps */
        {WT_Q6_K, 37, 256, 1, PRO_PLAIN, EPI_STORE},
        {WT_Q6_K, 2565, 1024, 1, PRO_PLAIN, EPI_STORE},
        {WT_Q6_K, 2560, 2304, 4, PRO_PLAIN, EPI_PARTS},
        {WT_Q8_0, 37, 32, 1, PRO_PLAIN, EPI_STORE},
        {WT_Q8_0, 1000, 576, 1, PRO_NORM, EPI_STORE},
        {WT_Q8_0, 577, 1568, 2, PRO_PLAIN, EPI_PARTS},
        {WT_Q8_0, 1003, 1024, 1, PRO_SIGMOID_GATE, EPI_SWIGLU},
        {WT_BF16, 37, 32, 1, PRO_PLAIN, EPI_STORE},
        {WT_BF16, 1000, 576, 1, PRO_PLAIN, EPI_STORE},
        {WT_BF16, 577, 1104, 2, PRO_PLAIN, EPI_PARTS},
        {WT_BF16, 1003, 1024, 1, PRO_NORM, EPI_SWIGLU},
    };
    for (const struct project_case &c : cases)
        check_project(&c);
    check_delta(1, 16, 32);
    check_delta(3, 16, 16);
    check_delta(2, 2, 6);
    printf("%s: %d failures\n", failures ? "CHECKS FAILED" : "all checks passed", failures);
    return failures != 0;
}
