/* quantize.c - the verb quantize: a GGUF file in another number format. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "cmd/output.h"
#include "cmd/progress.h"
#include "file/gguf_write.h"
#include "model/imatrix.h"
#include "model/mixture.h"
#include "model/recode.h"

enum { MAX_LAYERS = 1024 };

struct quantization {
    const struct gguf *in;
    const struct mixture *mixture;
    struct mixture_file file;
    uint32_t values_before[MAX_LAYERS + 1];
    uint32_t *types; /* of each tensor of the new file */
    struct gguf_writer *out;
    struct pool *pool;
    struct progress progress;
    const struct imatrix *imatrix; /* NULL: none */
    const char *imatrix_path;
    uint32_t n_quantized, n_weighed; /* tensors; of them those with an entry in it */
    uint64_t read_bytes, written_bytes;
};

/* ---- what each tensor becomes ------------------------------------------------------------- */

/* Query heads that share a KV head; 1 for a file that does not say it in two plain numbers. */
static uint32_t count_gqa(const struct gguf *in, struct str arch) {
    char key[128];
    uint32_t heads = 0, kv_heads = 0;
    struct err ignored = {0};
    snprintf(key, sizeof key, "%.*s.attention.head_count", STR_ARG(arch));
    bool is_known = gguf_get_u32(in, key, &heads, &ignored) > 0;
    snprintf(key, sizeof key, "%.*s.attention.head_count_kv", STR_ARG(arch));
    is_known &= gguf_get_u32(in, key, &kv_heads, &ignored) > 0;
    return is_known && kv_heads ? heads / kv_heads : 1;
}

static int count_layers(struct quantization *j, struct err *err) {
    struct str arch = {0};
    int got = gguf_get_str(j->in, "general.architecture", &arch, err);
    if (got < 0)
        return got;
    char key[128];
    snprintf(key, sizeof key, "%.*s.block_count", STR_ARG(arch));
    got = gguf_get_u32(j->in, key, &j->file.n_layers, err);
    if (got < 0)
        return got;
    if (j->file.n_layers > MAX_LAYERS)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: %s is %u, expected at most %d", j->in->path,
                       key, j->file.n_layers, MAX_LAYERS);
    j->file.gqa = count_gqa(j->in, arch);
    return SLUICE_OK;
}

/* For each layer, how many attention-value tensors are in the layers before it. */
static void count_values(struct quantization *j) {
    uint32_t layer;
    for (uint32_t i = 0; i < j->in->n_tensors; i++) {
        struct str name = j->in->tensors[i].name;
        if (mixture_counts_as_value(name) && block_index(name, &layer) && layer < MAX_LAYERS)
            j->values_before[layer + 1]++;
    }
    for (layer = 0; layer < MAX_LAYERS; layer++)
        j->values_before[layer + 1] += j->values_before[layer];
    j->file.n_values = j->values_before[MAX_LAYERS];
}

static int choose_type(struct quantization *j, uint32_t i, struct err *err) {
    const struct tensor *t = &j->in->tensors[i];
    uint32_t layer = 0, index = 0;
    j->types[i] = (uint32_t)t->type;
    if (mixture_keeps(t->name, t->n_dims, t->dims))
        return SLUICE_OK;
    if (block_index(t->name, &layer) && layer < MAX_LAYERS)
        index = j->values_before[layer];
    j->types[i] = mixture_type(j->mixture, &j->file, t->name, t->dims[0], index);
    if (j->types[i] != (uint32_t)t->type && !dtype_info((uint32_t)t->type)->decode)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s: tensor %.*s is %s, which cannot be decoded here", j->in->path,
                       STR_ARG(t->name), t->type_name);
    return SLUICE_OK;
}

static int choose_types(struct quantization *j, struct err *err) {
    int status = count_layers(j, err);
    j->file.has_output = gguf_tensor(j->in, "output.weight") != NULL;
    count_values(j);
    j->types = calloc(j->in->n_tensors + 1, sizeof *j->types);
    if (!j->types)
        return err_memory(err, "the list of types");
    for (uint32_t i = 0; !status && i < j->in->n_tensors; i++)
        status = choose_type(j, i, err);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Where the weights came from, under the usual key names. */
static int write_imatrix_keys(struct quantization *j, struct err *err) {
    const struct imatrix *m = j->imatrix;
    int status = gguf_write_str(j->out, "quantize.imatrix.file", str_of(j->imatrix_path), err);
    if (!status && m->dataset.len)
        status = gguf_write_str(j->out, "quantize.imatrix.dataset", m->dataset, err);
    if (!status)
        status = gguf_write_u32(j->out, "quantize.imatrix.entries_count", m->n_entries, err);
    if (!status && m->n_chunks)
        status = gguf_write_u32(j->out, "quantize.imatrix.chunks_count", m->n_chunks, err);
    return status;
}

static int write_keys(struct quantization *j, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < j->in->n_keys; i++)
        if (!str_starts(j->in->keys[i].name, "split."))
            status = gguf_write_key(j->out, &j->in->keys[i], err);
    if (!status)
        status = gguf_write_u32(j->out, "general.file_type", mixture_file_type(j->mixture), err);
    if (!status && mixture_is_quantized(j->mixture))
        status = gguf_write_u32(j->out, "general.quantization_version", 2, err);
    return status || !j->imatrix ? status : write_imatrix_keys(j, err);
}

static bool is_quantized(uint32_t type) {
    return dtype_info(type)->block_values > 1;
}

static void read_rows(const void *source, uint64_t first, uint64_t count, float *out) {
    const struct tensor *t = source;
    const struct dtype_info *type = dtype_info((uint32_t)t->type);
    uint64_t row_bytes = t->dims[0] / type->block_values * type->block_bytes;
    type->decode(t->data + first * row_bytes, out, count * t->dims[0]);
}

static int write_bytes(void *sink, const void *bytes, uint64_t size, struct err *err) {
    return gguf_write_data(sink, bytes, size, err);
}

/* Importance weights are used by the types that search for scales. */
static int recode(struct quantization *j, const struct tensor *t, enum dtype to, struct err *err) {
    char name[128];
    float *weights = NULL;
    uint64_t n_weights = 0;
    int status = SLUICE_OK;
    snprintf(name, sizeof name, "%.*s", STR_ARG(t->name));
    if (j->imatrix && is_quantized(to))
        status = imatrix_weights(j->imatrix, t, &weights, &n_weights, err);
    if (status)
        return err_prefix(err, "%s", j->imatrix_path);
    j->n_quantized += is_quantized(to);
    j->n_weighed += weights != NULL;
    status = recode_tensor(
        &(struct recode){
            .name = name,
            .width = t->dims[0],
            .rows = t->n_values / t->dims[0],
            .to = to,
            .weights = weights,
            .n_weights = n_weights,
            .read = read_rows,
            .source = t,
            .write = write_bytes,
            .sink = j->out,
        },
        j->pool, err);
    free(weights);
    if (status && status != SLUICE_ERR_IO) /* a failed write names its file itself */
        err_prefix(err, "%s", j->in->path);
    return status;
}

static int write_tensor(struct quantization *j, uint32_t i, struct err *err) {
    const struct tensor *t = &j->in->tensors[i];
    int status = j->types[i] == (uint32_t)t->type ? gguf_write_data(j->out, t->data, t->bytes, err)
                                                  : recode(j, t, (enum dtype)j->types[i], err);
    filemap_release(j->in->parts, j->in->n_parts, t->data, t->bytes);
    j->read_bytes += t->bytes;
    progress_update(&j->progress, j->read_bytes);
    return status;
}

/* Requantizing rounds twice. */
static void warn_of_second_time(const struct quantization *j) {
    bool is_changed[DT_COUNT] = {0};
    char names[DT_COUNT * 12];
    size_t n = 0;
    for (uint32_t i = 0; i < j->in->n_tensors; i++) {
        uint32_t from = (uint32_t)j->in->tensors[i].type, to = j->types[i];
        if (from != to && is_quantized(from) && is_quantized(to))
            is_changed[from] = true;
    }
    for (uint32_t type = 0; type < DT_COUNT; type++)
        if (is_changed[type])
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "",
                                  dtype_info(type)->name);
    if (n)
        warn("%s is already quantized (%s); quantizing its F16, BF16 or F32 original would be "
             "better",
             j->in->path, names);
}

static int write_file(struct quantization *j, const char *path, struct err *err) {
    int status = gguf_writer_open(&j->out, path, j->in->alignment, err);
    if (status)
        return status;
    warn_of_second_time(j);
    status = write_keys(j, err);
    uint64_t total = 0;
    for (uint32_t i = 0; !status && i < j->in->n_tensors; i++) {
        const struct tensor *t = &j->in->tensors[i];
        total += t->bytes;
        status =
            gguf_write_tensor(j->out, t->name, (enum dtype)j->types[i], t->dims, t->n_dims, err);
    }
    progress_start(&j->progress, "quantize", total);
    for (uint32_t i = 0; !status && i < j->in->n_tensors; i++)
        status = write_tensor(j, i, err);
    progress_end(&j->progress);
    j->written_bytes = gguf_writer_size(j->out);
    if (status)
        gguf_writer_abort(j->out);
    else
        status = gguf_writer_close(j->out, err);
    return status;
}

static void report(const struct quantization *j, const char *path, const char *replaced,
                   double seconds) {
    say(SAY_NORMAL, "%s: %s, %s from %s, %.1f s, %.2f GB/s%s", path, mixture_name(j->mixture),
        human_bytes(j->written_bytes), human_bytes(j->in->file_bytes), seconds,
        (double)j->read_bytes / 1e9 / seconds, replaced);
    if (j->imatrix)
        say(SAY_NORMAL, "%s: weights for %u of %u matrices", j->imatrix_path, j->n_weighed,
            j->n_quantized);
}

/* Opens what is read, none of which may be written. */
static int open_inputs(const char *from, const char *output, const char *imatrix_path,
                       struct gguf **in, struct imatrix **imatrix, struct err *err) {
    int status = gguf_open(in, from, err);
    if (!status)
        status = filemap_protect((*in)->parts, (*in)->n_parts, output, err);
    if (!status && imatrix_path)
        status = imatrix_open(imatrix, imatrix_path, err);
    if (!status && imatrix_path)
        status = filemap_protect_path(imatrix_path, output, err);
    return status;
}

/* The job has its mixture and the path of the importance matrix. */
static int quantize(struct quantization *j, const char *from, const char *to, int threads,
                    struct err *err) {
    struct gguf *in = NULL;
    struct imatrix *imatrix = NULL;
    double started = seconds_now();
    const char *replaced = output_replaces(to), *path = output_path(to);
    int status = open_inputs(from, path, j->imatrix_path, &in, &imatrix, err);
    j->in = in;
    j->imatrix = imatrix;
    if (!status)
        status = choose_types(j, err);
    if (!status)
        status = pool_open(&j->pool, threads, err);
    if (!status)
        status = write_file(j, path, err);
    if (!status)
        report(j, to, replaced, seconds_now() - started);
    pool_close(j->pool);
    free(j->types);
    imatrix_close(imatrix);
    gguf_close(in);
    return status;
}

int cmd_quantize(int argc, char **argv) {
    int threads = 0;
    const char *imatrix_path = NULL;
    const struct opt opts[] = {
        {"--imatrix", 0, OPT_STRING, &imatrix_path, "FILE",
         "weigh errors by an importance matrix (sluice imatrix; GGUF or the older .dat)"},
        {"--threads", 't', OPT_INT, &threads, "N", "threads; 0 (default): one per processor"},
    };
    char about[256];
    snprintf(about, sizeof about,
             "Writes the model IN (GGUF) to OUT with its matrices in the format TYPE, one of:\n%s.",
             mixture_names());
    const struct usage usage = {
        .verb = "quantize",
        .synopsis = "IN OUT TYPE [--imatrix FILE] [-t N]",
        .about = about,
        .example = "sluice quantize model-f32.gguf model-q4_k_m.gguf q4_k_m",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .min_words = 3,
        .max_words = 3,
    };
    const char *words[3];
    int exit = opts_parse(&usage, argc, argv, words);
    if (exit == OPTS_GO_ON)
        exit = output_check_binary("quantize", words[1]);
    if (exit != OPTS_GO_ON)
        return exit;
    struct quantization j = {.imatrix_path = imatrix_path};
    struct err err = {0};
    if ((exit = find_written_type("quantize", "type", words[2], &j.mixture)) != OPTS_GO_ON ||
        (exit = threads_check("quantize", &threads)) != OPTS_GO_ON)
        return exit;
    return quantize(&j, words[0], words[1], threads, &err) ? fail(&err) : 0;
}
