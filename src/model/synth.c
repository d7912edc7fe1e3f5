/* synth.c - models without a file. tools/synth_gguf.py writes the same as files, without a
 * vocabulary: here every byte of a text is a token, and the others are numbers. */
#include "model/synth.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/locale.h"
#include "file/gguf_write.h"
#include "model/mixture.h"
#include "quant/random.h"

#define PREFIX "synth:"

/* A mixture of experts has `ffn` values in each, and experts above 0; shared 0: none of them. */
struct shape {
    const char *name, *arch;
    uint32_t hidden, layers, heads, kv_heads, head_width, ffn, vocab;
    bool is_tied;
    uint32_t key_heads, value_heads; /* of the delta-net; 0: none */
    uint32_t rotary;
    float rope_base;
    uint32_t experts, used, shared;
};

enum { DELTA_WIDTH = 128, CONV_WIDTH = 4 };

/* clang-format off */
static const struct shape shapes[] = {
    {"qwen35-tiny",    "qwen35",     256,  8,  4,  2,  64,   768,   4096, true,   2,  4,  16, 1e7f, 0, 0, 0},
    {"qwen35-0.8b",    "qwen35",    1024, 24,  8,  2, 256,  3584, 248320, true,  16, 16,  64, 1e7f, 0, 0, 0},
    {"qwen35-2b",      "qwen35",    2048, 24,  8,  2, 256,  6144, 248320, true,  16, 16,  64, 1e7f, 0, 0, 0},
    {"qwen35-4b",      "qwen35",    2560, 32, 16,  4, 256,  9216, 248320, true,  16, 32,  64, 1e7f, 0, 0, 0},
    {"qwen35-9b",      "qwen35",    4096, 32, 16,  4, 256, 12288, 248320, false, 16, 32,  64, 1e7f, 0, 0, 0},
    {"qwen35-27b",     "qwen35",    5120, 64, 24,  4, 256, 17408, 248320, false, 16, 48,  64, 1e7f, 0, 0, 0},
    {"qwen35-35b-a3b", "qwen35moe", 2048, 40, 16,  2, 256,   512, 248320, false, 16, 32,  64, 1e7f, 256, 8, 512},
    {"qwen3-30b-a3b",  "qwen3moe",  2048, 48, 32,  4, 128,   768, 151936, false,  0,  0, 128, 1e7f, 128, 8, 0},
    {"qwen3next-80b-a3b", "qwen3next", 2048, 48, 16, 2, 256, 512, 151936, false, 16, 32, 64, 1e7f, 512, 10, 512},
    {"smollm2-135m",   "llama",      576, 30,  9,  3,  64,  1536,  49152, true,   0,  0,  64, 1e5f, 0, 0, 0},
    {"smollm2-360m",   "llama",      960, 32, 15,  5,  64,  2560,  49152, true,   0,  0,  64, 1e5f, 0, 0, 0},
    {"smollm2-1.7b",   "llama",     2048, 24, 32, 32,  64,  8192,  49152, true,   0,  0,  64, 1.3e5f, 0, 0, 0},
    {"llama-8b",       "llama",     4096, 32, 32,  8, 128, 14336, 128256, false,  0,  0, 128, 5e5f, 0, 0, 0},
};
/* clang-format on */

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static bool is_qwen3(const struct shape *s) {
    return strncmp(s->arch, "qwen3", 5) == 0;
}

static bool is_next(const struct shape *s) {
    return strcmp(s->arch, "qwen3next") == 0;
}

/* What is being written; after a failure the other calls do nothing. */
struct maker {
    const struct shape *shape;
    bool has_draft_block; /* the name ends in "-mtp" */
    const struct mixture *mixture;
    struct mixture_file file;
    struct gguf_writer *writer;
    struct synth *synth;
    bool writes_vectors; /* which of the two are written now */
    uint32_t n_values, n_tensors, capacity;
    int status;
    struct err *err;
};

/* ---- tensors ------------------------------------------------------------------------------ */

static void add_tensor(struct maker *m, const char *name, enum dtype type, const uint64_t *dims,
                       float fill) {
    uint32_t n_dims = dims[2] ? 3 : dims[1] ? 2 : 1;
    if (m->status)
        return;
    if (!random_has(type)) {
        m->status = err_set(m->err, SLUICE_ERR_UNSUPPORTED, "there are no random blocks of %s",
                            dtype_name(type));
        return;
    }
    if (m->n_tensors == m->capacity) {
        uint32_t capacity = m->capacity ? 2 * m->capacity : 256;
        float *more = arena_array(&m->synth->arena, capacity, sizeof *more);
        if (!more) {
            m->status = err_memory(m->err, "the table of tensors");
            return;
        }
        if (m->n_tensors)
            memcpy(more, m->synth->fills, m->n_tensors * sizeof *more);
        m->synth->fills = more;
        m->capacity = capacity;
    }
    m->synth->fills[m->n_tensors++] = fill;
    m->status = gguf_write_tensor(m->writer, str_of(name), type, dims, n_dims, m->err);
}

/* A matrix (n, k), or e of them; layer below 0: of no layer. */
static void add_matrix(struct maker *m, int layer, const char *part, uint64_t k, uint64_t n,
                       uint64_t e) {
    char name[GGUF_MAX_NAME + 1];
    if (m->writes_vectors)
        return;
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", part);
    else
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, part);
    enum dtype type = mixture_type(m->mixture, &m->file, str_of(name), k, m->n_values);
    m->n_values += mixture_counts_as_value(str_of(name));
    add_tensor(m, name, type, (uint64_t[]){k, n, e}, NAN);
}

/* n values, or rows of that width; all of them `fill`, unless that is NAN. */
static void add_vector(struct maker *m, int layer, const char *part, uint64_t width, uint64_t n,
                       float fill) {
    char name[GGUF_MAX_NAME + 1];
    if (!m->writes_vectors)
        return;
    if (layer < 0)
        snprintf(name, sizeof name, "%s", part);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, part);
    add_tensor(m, name, DT_F32, (uint64_t[]){width, n, 0}, fill);
}

static void add_delta(struct maker *m, int i) {
    const struct shape *s = m->shape;
    uint32_t inner = s->value_heads * DELTA_WIDTH;
    uint32_t channels = 2 * s->key_heads * DELTA_WIDTH + inner;
    add_matrix(m, i, "attn_qkv", s->hidden, channels, 0);
    add_matrix(m, i, "attn_gate", s->hidden, inner, 0);
    add_vector(m, i, "ssm_conv1d.weight", CONV_WIDTH, channels, NAN);
    add_vector(m, i, "ssm_dt.bias", s->value_heads, 0, 0.5f);
    add_vector(m, i, "ssm_a", s->value_heads, 0, -1);
    if (is_next(s)) {
        add_matrix(m, i, "ssm_ba", s->hidden, 2 * s->value_heads, 0);
    } else {
        add_matrix(m, i, "ssm_beta", s->hidden, s->value_heads, 0);
        add_matrix(m, i, "ssm_alpha", s->hidden, s->value_heads, 0);
    }
    add_vector(m, i, "ssm_norm.weight", DELTA_WIDTH, 0, 1);
    add_matrix(m, i, "ssm_out", inner, s->hidden, 0);
}

static void add_attention(struct maker *m, int i) {
    const struct shape *s = m->shape;
    bool is_gated = s->key_heads > 0;
    uint32_t width = s->heads * s->head_width;
    add_matrix(m, i, "attn_q", s->hidden, is_gated ? 2 * width : width, 0);
    add_matrix(m, i, "attn_k", s->hidden, s->kv_heads * s->head_width, 0);
    add_matrix(m, i, "attn_v", s->hidden, s->kv_heads * s->head_width, 0);
    add_matrix(m, i, "attn_output", width, s->hidden, 0);
    if (is_qwen3(s)) {
        add_vector(m, i, "attn_q_norm.weight", s->head_width, 0, 1);
        add_vector(m, i, "attn_k_norm.weight", s->head_width, 0, 1);
    }
}

static void add_ffn(struct maker *m, int i) {
    const struct shape *s = m->shape;
    if (!s->experts) {
        add_matrix(m, i, "ffn_gate", s->hidden, s->ffn, 0);
        add_matrix(m, i, "ffn_up", s->hidden, s->ffn, 0);
        add_matrix(m, i, "ffn_down", s->ffn, s->hidden, 0);
        return;
    }
    add_vector(m, i, "ffn_gate_inp.weight", s->hidden, s->experts, NAN);
    add_matrix(m, i, "ffn_gate_exps", s->hidden, s->ffn, s->experts);
    add_matrix(m, i, "ffn_up_exps", s->hidden, s->ffn, s->experts);
    add_matrix(m, i, "ffn_down_exps", s->ffn, s->hidden, s->experts);
    if (!s->shared)
        return;
    add_vector(m, i, "ffn_gate_inp_shexp.weight", s->hidden, 0, NAN);
    add_matrix(m, i, "ffn_gate_shexp", s->hidden, s->shared, 0);
    add_matrix(m, i, "ffn_up_shexp", s->hidden, s->shared, 0);
    add_matrix(m, i, "ffn_down_shexp", s->shared, s->hidden, 0);
}

static void add_layer(struct maker *m, int i, bool is_recurrent) {
    const struct shape *s = m->shape;
    add_vector(m, i, "attn_norm.weight", s->hidden, 0, 1);
    add_vector(m, i, s->key_heads ? "post_attention_norm.weight" : "ffn_norm.weight", s->hidden, 0,
               1);
    if (is_recurrent)
        add_delta(m, i);
    else
        add_attention(m, i);
    add_ffn(m, i);
}

static void add_draft_block(struct maker *m) {
    const struct shape *s = m->shape;
    int i = (int)s->layers;
    add_layer(m, i, false);
    add_matrix(m, i, "nextn.eh_proj", 2 * s->hidden, s->hidden, 0);
    add_vector(m, i, "nextn.enorm.weight", s->hidden, 0, 1);
    add_vector(m, i, "nextn.hnorm.weight", s->hidden, 0, 1);
    add_vector(m, i, "nextn.shared_head_norm.weight", s->hidden, 0, 1);
}

static void add_tensors(struct maker *m) {
    const struct shape *s = m->shape;
    bool is_hybrid = s->key_heads > 0;
    m->n_values = 0;
    add_matrix(m, -1, "token_embd", s->hidden, s->vocab, 0);
    add_vector(m, -1, "output_norm.weight", s->hidden, 0, 1);
    if (!s->is_tied)
        add_matrix(m, -1, "output", s->hidden, s->vocab, 0);
    for (int i = 0; i < (int)s->layers; i++)
        add_layer(m, i, is_hybrid && (i + 1) % 4);
    if (m->has_draft_block)
        add_draft_block(m);
}

/* ---- keys --------------------------------------------------------------------------------- */

static void add_number(struct maker *m, const char *name, uint32_t value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", m->shape->arch, name);
    if (!m->status)
        m->status = gguf_write_u32(m->writer, full, value, m->err);
}

static void add_float(struct maker *m, const char *name, float value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", m->shape->arch, name);
    if (!m->status)
        m->status = gguf_write_f32(m->writer, full, value, m->err);
}

static void add_text(struct maker *m, const char *name, const char *value) {
    if (!m->status)
        m->status = gguf_write_str(m->writer, name, str_of(value), m->err);
}

static void add_delta_keys(struct maker *m) {
    const struct shape *s = m->shape;
    char name[96];
    snprintf(name, sizeof name, "%s.rope.dimension_sections", s->arch);
    if (!m->status && !is_next(s))
        m->status = gguf_write_i32s(m->writer, name, (int32_t[]){11, 11, 10, 0}, 4, m->err);
    add_number(m, "full_attention_interval", 4);
    add_number(m, "ssm.conv_kernel", CONV_WIDTH);
    add_number(m, "ssm.inner_size", s->value_heads * DELTA_WIDTH);
    add_number(m, "ssm.state_size", DELTA_WIDTH);
    add_number(m, "ssm.time_step_rank", s->value_heads);
    add_number(m, "ssm.group_count", s->key_heads);
}

static void add_config(struct maker *m) {
    const struct shape *s = m->shape;
    bool is_hybrid = s->key_heads > 0;
    char name[64];
    snprintf(name, sizeof name, "%s-synthetic", s->name);
    add_text(m, "general.architecture", s->arch);
    add_text(m, "general.name", name);
    add_number(m, "vocab_size", s->vocab);
    add_number(m, "context_length", is_qwen3(s) ? 262144 : 8192);
    add_number(m, "embedding_length", s->hidden);
    add_number(m, "block_count", s->layers + m->has_draft_block);
    if (m->has_draft_block)
        add_number(m, "nextn_predict_layers", 1);
    add_number(m, "attention.head_count", s->heads);
    add_number(m, "attention.head_count_kv", s->kv_heads);
    add_number(m, "attention.key_length", s->head_width);
    add_number(m, "attention.value_length", s->head_width);
    add_float(m, "attention.layer_norm_rms_epsilon", is_qwen3(s) ? 1e-6f : 1e-5f);
    add_number(m, "rope.dimension_count", s->rotary);
    add_float(m, "rope.freq_base", s->rope_base);
    if (s->experts) {
        add_number(m, "expert_count", s->experts);
        add_number(m, "expert_used_count", s->used);
        add_number(m, "expert_feed_forward_length", s->ffn);
        if (s->shared)
            add_number(m, "expert_shared_feed_forward_length", s->shared);
    } else {
        add_number(m, "feed_forward_length", s->ffn);
    }
    if (is_hybrid)
        add_delta_keys(m);
}

/* Unknown, begin, a token for every byte, then numbers. None ends a text. */
static struct str token_text(struct arena *arena, uint32_t i, int32_t *type) {
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6, FIRST_BYTE = 2 };
    char text[24];
    bool is_byte = i >= FIRST_BYTE && i < FIRST_BYTE + 256;
    *type = i == 0 ? UNKNOWN : i == 1 ? CONTROL : is_byte ? BYTE : NORMAL;
    if (i < FIRST_BYTE)
        snprintf(text, sizeof text, "%s", i ? "<s>" : "<unk>");
    else
        snprintf(text, sizeof text, is_byte ? "<0x%02X>" : "\xE2\x96\x81%u",
                 is_byte ? i - FIRST_BYTE : i);
    const char *copy = arena_strdup(arena, str_of(text));
    return copy ? str_of(copy) : (struct str){0};
}

static void add_vocabulary(struct maker *m) {
    struct arena arena = {0};
    uint32_t n = m->shape->vocab;
    struct str *texts = arena_array(&arena, n, sizeof *texts);
    int32_t *types = arena_array(&arena, n, sizeof *types);
    float *scores = arena_array(&arena, n, sizeof *scores);
    bool is_there = texts && types && scores;
    for (uint32_t i = 0; is_there && i < n; i++) {
        texts[i] = token_text(&arena, i, &types[i]);
        is_there = texts[i].at != NULL;
    }
    if (!m->status && !is_there)
        m->status = err_memory(m->err, "the vocabulary");
    add_text(m, "tokenizer.ggml.model", "llama");
    if (!m->status)
        m->status = gguf_write_strs(m->writer, "tokenizer.ggml.tokens", texts, n, m->err);
    if (!m->status)
        m->status = gguf_write_i32s(m->writer, "tokenizer.ggml.token_type", types, n, m->err);
    if (!m->status)
        m->status = gguf_write_f32s(m->writer, "tokenizer.ggml.scores", scores, n, m->err);
    if (!m->status)
        m->status = gguf_write_u32(m->writer, "tokenizer.ggml.eos_token_id", UINT32_MAX, m->err);
    arena_free(&arena);
}

/* ---- opening ------------------------------------------------------------------------------ */

bool synth_is(const char *path) {
    return strncmp(path, PREFIX, strlen(PREFIX)) == 0;
}

static int find_shape(const char *path, struct maker *m, struct err *err) {
    struct str rest = str_skip(str_of(path), strlen(PREFIX));
    const char *colon = memchr(rest.at, ':', rest.len);
    struct str name = {rest.at, colon ? (size_t)(colon - rest.at) : rest.len};
    char names[256] = "";
    m->has_draft_block = str_ends(name, "-mtp");
    if (m->has_draft_block)
        name.len -= strlen("-mtp");
    for (size_t i = 0, used = 0; i < N_SHAPES; i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, " %s", shapes[i].name);
        if (str_equal(name, str_of(shapes[i].name)))
            m->shape = &shapes[i];
    }
    m->mixture = colon ? mixture_find(colon + 1) : NULL;
    if (!m->shape || (m->has_draft_block && !m->shape->key_heads))
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s: the model is '%.*s', expected one of%s; "
                       "those of qwen35 and qwen3next may end in -mtp",
                       path, STR_ARG(name), names);
    if (!m->mixture)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%s: the type is '%s', expected one of %s %s",
                       path, colon ? colon + 1 : "", mixture_names(), mixture_read_names());
    m->file = (struct mixture_file){.n_layers = m->shape->layers,
                                    .has_output = !m->shape->is_tied,
                                    .n_values = m->shape->layers,
                                    .gqa = m->shape->heads / m->shape->kv_heads};
    return SLUICE_OK;
}

/* Reserves addresses for the whole file; only the header is filled in. */
static int place_header(struct synth *s, struct gguf_writer *w, struct err *err) {
    void *header = NULL;
    size_t size = 0;
    int status = gguf_writer_header(w, &header, &size, err);
    if (status)
        return status;
    uint64_t bytes = gguf_writer_size(w);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(header);
        return err_set(err, SLUICE_ERR_MEMORY, "cannot reserve %llu bytes: %s",
                       (unsigned long long)bytes, locale_error(errno));
    }
    memcpy(base, header, size);
    free(header);
    s->map = (struct filemap){.data = base, .size = bytes, .fd = -1};
    return gguf_parse(&s->file, base, bytes, err);
}

static int make(struct maker *m, struct err *err) {
    int status = gguf_writer_open(&m->writer, NULL, 0, err);
    if (status)
        return status;
    add_config(m);
    add_vocabulary(m);
    add_tensors(m);
    uint32_t n_matrices = m->n_tensors;
    m->writes_vectors = true;
    add_tensors(m);
    status = m->status ? m->status : place_header(m->synth, m->writer, err);
    gguf_writer_abort(m->writer);
    if (!status)
        m->synth->made = (uint64_t)(m->synth->file->tensors[n_matrices].data - m->synth->map.data);
    return status;
}

int synth_open(struct synth **out, const char *path, struct err *err) {
    *out = NULL;
    struct maker m = {.err = err, .synth = calloc(1, sizeof *m.synth)};
    if (!m.synth)
        return err_memory(err, path);
    int status = find_shape(path, &m, err);
    if (!status && (status = make(&m, err)))
        err_prefix(err, "%s", path);
    if (!status && !(m.synth->file->path = arena_strdup(&m.synth->arena, str_of(path))))
        status = err_memory(err, path);
    if (status)
        synth_close(m.synth);
    else
        *out = m.synth;
    return status;
}

void synth_close(struct synth *s) {
    if (!s)
        return;
    gguf_close(s->file);
    if (s->map.data)
        munmap((void *)s->map.data, s->map.size);
    arena_free(&s->arena);
    free(s);
}

/* ---- weights ------------------------------------------------------------------------------ */

static void fill_tensor(const struct tensor *t, uint64_t at, float fill, uint8_t *out) {
    uint32_t step = dtype_info((uint32_t)t->type)->block_bytes;
    if (isnan(fill))
        for (uint64_t i = 0; i < t->bytes; i += step)
            random_block((uint32_t)t->type, at + i, out + i);
    else
        for (uint64_t i = 0; i < t->n_values; i++)
            memcpy(out + i * sizeof fill, &fill, sizeof fill);
}

static void fill_tensors(const struct synth *s, uint8_t *file, bool vectors) {
    for (uint32_t i = 0; i < s->file->n_tensors; i++) {
        const struct tensor *t = &s->file->tensors[i];
        uint64_t at = (uint64_t)(t->data - s->map.data);
        if ((at >= s->made) == vectors)
            fill_tensor(t, at, s->fills[i], file + at);
    }
}

void synth_fill_matrices(const struct synth *s, uint8_t *file) {
    fill_tensors(s, file, false);
}

void synth_fill_vectors(const struct synth *s, uint8_t *file) {
    fill_tensors(s, file, true);
}
