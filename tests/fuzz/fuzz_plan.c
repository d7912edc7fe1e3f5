/* fuzz_plan.c - models of any hyperparameters, as their architectures write plans: no operand of a
 * plan leaves its region, and no op needs more of one than the operand has.
 *
 * The model is a GGUF file of which only the header is there, in a file without blocks: widths of
 * gigabytes cost nothing. What is checked here is counted in 128 bits, apart from plan's own
 * arithmetic. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/backend.h"
#include "model/model.h"
#include "plan/io.h"
#include "random_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

typedef unsigned __int128 wide;

/* ---- from bytes to a model ---------------------------------------------------------------- */

struct input {
    const uint8_t *at, *end;
};

/* A number of any size: a shift, then its bits. 0 when the bytes are used up. */
static uint32_t take(struct input *in) {
    uint32_t bits = 0;
    if (in->end - in->at < 5)
        return 0;
    memcpy(&bits, in->at + 1, sizeof bits);
    bits >>= in->at[0] % 32;
    in->at += 5;
    return bits;
}

static struct random_model take_model(struct input *in) {
    static const char *const archs[] = {"llama",  "qwen2",     "qwen3",    "qwen3moe",
                                        "qwen35", "qwen35moe", "qwen3next"};
    enum { N_ARCHS = sizeof archs / sizeof *archs };
    uint32_t kind = take(in);
    const struct dtype_info *type = dtype_info(kind / N_ARCHS % DT_COUNT);
    struct random_model m = {.arch = archs[kind % N_ARCHS], .type = DT_COUNT};
    if (type && type->decode && type->block_values > 1) /* else any of those that are written */
        m.type = (enum dtype)(kind / N_ARCHS % DT_COUNT);
    m.seed = take(in);
    bool is_next = strcmp(m.arch, "qwen3next") == 0;
    bool is_hybrid = strncmp(m.arch, "qwen35", 6) == 0 || is_next;
    m.layers = 1 + take(in) % 4;
    m.hidden = take(in);
    m.kv_heads = take(in);
    m.heads = m.kv_heads * (1 + take(in) % 8);
    m.head_width = take(in);
    m.vocab = take(in);
    m.ffn = take(in);
    m.key_heads = is_hybrid ? take(in) : 0;
    m.value_heads = m.key_heads * (1 + take(in) % 4);
    m.key_width = take(in);
    m.value_width = take(in);
    m.is_fused = is_next && take(in) % 2;
    if (strstr(m.arch, "moe") || is_next) {
        m.experts = take(in);
        m.used = take(in);
        m.shared = is_hybrid ? take(in) : 0;
    }
    return m;
}

static struct plan_options take_options(struct input *in, const struct config *c) {
    static const enum dtype kv_types[] = {DT_F32, DT_F16, DT_Q8_0, DT_Q4_0};
    struct plan_options o = {.max_rows = 1 + take(in) % 4096, .n_vocab = c->n_vocab};
    o.max_outputs = 1 + take(in) % o.max_rows;
    o.n_slots = 1 + take(in) % (UINT32_MAX - 1);
    o.n_cells = 1 + take(in) % (UINT32_MAX - 1);
    o.n_pages = 1 + take(in) % (UINT32_MAX - 1);
    o.pages_per_seq = 1 + take(in) % (UINT32_MAX - 1);
    o.kv_type = kv_types[take(in) % 4];
    if (c->head_width % dtype_info(o.kv_type)->block_values != 0)
        o.kv_type = DT_F16; /* the engine refuses such a cache by name */
    if (take(in) % 2) {
        o.n_taps = c->n_layers + 2;
        o.tap_width = c->hidden;
    }
    return o;
}

static bool write_header(const struct random_model *m, int fd) {
    struct gguf_writer *w = NULL;
    void *header = NULL;
    size_t size = 0;
    bool is_there = !gguf_writer_open(&w, NULL, 0, NULL) && !random_model_describe(m, w, NULL) &&
                    !gguf_writer_header(w, &header, &size, NULL) &&
                    gguf_writer_size(w) < 1ull << 44 && write(fd, header, size) == (ssize_t)size &&
                    ftruncate(fd, (off_t)gguf_writer_size(w)) == 0;
    gguf_writer_abort(w);
    free(header);
    return is_there;
}

/* ---- what a plan's ops touch -------------------------------------------------------------- */

static wide row_bytes(const struct operand *o, uint32_t n) {
    const struct dtype_info *type = dtype_info(o->type);
    CHECK(type && n % type->block_values == 0);
    return (wide)n / type->block_values * type->block_bytes;
}

static void check_operand(const struct plan *plan, const struct model *m, const struct operand *o) {
    wide last = (((wide)o->dims[3] * o->dims[2] - 1) * o->plane + o->dims[1] - 1);
    wide end = o->offset + last * row_bytes(o, o->stride) + row_bytes(o, o->dims[0]);
    CHECK(o->region < REGION_COUNT && end <= plan->bytes[o->region]);
    CHECK(o->region != REGION_WEIGHTS || end <= m->weights->bytes);
}

/* Heads of `width` values, `stride` apart, from column `first` of a row on. */
static void check_heads(const struct operand *row, uint32_t first, uint32_t heads, uint32_t stride,
                        uint32_t width) {
    CHECK((wide)first + ((wide)heads - 1) * stride + width <= row->dims[0]);
}

static void check_project(const struct op_project *p) {
    for (uint32_t i = 0; i < p->n_segments; i++) {
        CHECK(p->segments[i].weight.dims[0] == p->in.dims[0]);
        CHECK((wide)p->segments[i].column + p->segments[i].weight.dims[1] <= p->out.dims[0]);
    }
    if (p->gate.n_dims)
        check_heads(&p->gate, 0, p->in.dims[0] / p->head_width, p->gate_stride, p->head_width);
}

static void check_delta(const struct op_delta *d) {
    wide values = (wide)d->value_heads * d->value_width;
    wide channels = 2 * (wide)d->key_heads * d->key_width + values;
    CHECK(channels <= d->in.dims[0] && channels == d->window.dims[0] && values == d->out.dims[0]);
    check_heads(&d->in, d->beta_column, d->value_heads, 1, 1);
    check_heads(&d->in, d->alpha_column, d->value_heads, 1, 1);
    CHECK(channels <= d->conv.dims[1] && d->state.dims[3] == d->window.dims[2]);
}

static void check_attend(const struct op_attend *a) {
    check_heads(&a->in, 0, a->heads, a->q_stride, a->head_width);
    check_heads(&a->in, a->k_column, a->kv_heads, a->head_width, a->head_width);
    check_heads(&a->in, a->v_column, a->kv_heads, a->head_width, a->head_width);
    CHECK((wide)a->heads * a->head_width <= a->out.dims[0]);
}

static void check_hidden(const struct operand *hidden, const struct operand *choice, uint32_t ffn,
                         uint32_t shared) {
    CHECK(((wide)choice->dims[0] - 1) * ffn + shared <= hidden->dims[0]);
}

static void check_op(const struct op *op) {
    const struct op_experts_in *in = &op->experts_in;
    const struct op_experts_out *out = &op->experts_out;
    if (op->kind == OP_PROJECT)
        check_project(&op->project);
    if (op->kind == OP_DELTA)
        check_delta(&op->delta);
    if (op->kind == OP_ATTEND)
        check_attend(&op->attend);
    if (op->kind == OP_EXPERTS_IN)
        check_hidden(&in->hidden, &in->choice, in->gate.dims[1],
                     in->shared_gate.n_dims ? in->shared_gate.dims[1] : 0);
    if (op->kind == OP_EXPERTS_OUT)
        check_hidden(&out->hidden, &out->choice, out->down.dims[0],
                     out->shared_down.n_dims ? out->shared_down.dims[0] : 0);
}

static void check_plan(struct plan *plan, const struct model *m) {
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct operand_ref refs[MAX_OPERANDS];
        uint32_t n = op_operands(&plan->ops[i], refs);
        for (uint32_t k = 0; k < n; k++)
            check_operand(plan, m, refs[k].at);
        check_op(&plan->ops[i]);
    }
}

/* What the CPU would take is a number, or an error. */
static void check_predict(struct plan *plan) {
    static struct backend *b;
    struct backend_memory memory;
    struct err err = {0};
    if (!b)
        CHECK(!backend_cpu.open(&b, &(struct backend_options){.threads = 1}, &err));
    int status = backend_cpu.predict(b, &plan, 1, &memory, &err);
    CHECK(status ? err.text[0] : memory.workspace > 0 && memory.state == plan->bytes[REGION_STATE]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct input in = {bytes, bytes + size};
    struct random_model described = take_model(&in);
    struct model *m = NULL;
    struct plan *plan = NULL;
    struct err err = {0};
    char path[32];
    int fd = memfd_create("plan", MFD_CLOEXEC);
    CHECK(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write_header(&described, fd) && !model_open(&m, path, &err)) {
        struct plan_options options = take_options(&in, &m->config);
        int status = model_plan(&plan, m, &options, &err);
        CHECK(status ? !plan && err.text[0] : plan != NULL);
        if (plan) {
            check_plan(plan, m);
            check_predict(plan);
        }
    }
    plan_free(plan);
    model_close(m);
    close(fd);
    return 0;
}
