/* convert.c - the verb convert: a Hugging Face folder to GGUF. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "cmd/output.h"
#include "cmd/progress.h"
#include "file/folder.h"
#include "file/gguf_write.h"
#include "model/arch.h"
#include "model/mixture.h"
#include "model/recode.h"
#include "text/tokenizer_keys.h"

struct conversion {
    const struct hub *hub;
    const struct mixture *mixture;
    struct mixture_file file;
    uint32_t *types; /* of each tensor */
    struct gguf_writer *out;
    struct pool *pool;
    struct progress progress;
    uint64_t done_bytes, file_bytes;
};

static uint64_t rows_of(const struct hub_tensor *t) {
    return t->dims[1] * t->dims[2] * t->dims[3];
}

/* The mixture that keeps the folder's number format: that of its embedding. */
static const struct mixture *mixture_of_folder(const struct hub *hub) {
    for (uint32_t i = 0; i < hub->n_tensors; i++)
        if (strcmp(hub->tensors[i].name, "token_embd.weight") == 0)
            return mixture_find(dtype_name((uint32_t)hub->tensors[i].sources[0]->type));
    return mixture_find("BF16");
}

static int choose_types(struct conversion *j, struct err *err) {
    const struct hub *h = j->hub;
    j->types = calloc(h->n_tensors + 1, sizeof *j->types);
    if (!j->types)
        return err_memory(err, "the list of types");
    j->file.n_layers = h->n_layers + h->n_mtp;
    j->file.gqa = h->n_kv_heads ? h->n_heads / h->n_kv_heads : 1;
    for (uint32_t i = 0; i < h->n_tensors; i++) {
        j->file.has_output |= strcmp(h->tensors[i].name, "output.weight") == 0;
        j->file.n_values += mixture_counts_as_value(str_of(h->tensors[i].name));
    }
    uint32_t index = 0; /* the hub lists its tensors in layer order */
    for (uint32_t i = 0; i < h->n_tensors; i++) {
        const struct hub_tensor *t = &h->tensors[i];
        struct str name = str_of(t->name);
        j->types[i] = mixture_keeps(name, t->n_dims, t->dims)
                          ? DT_F32
                          : mixture_type(j->mixture, &j->file, name, t->dims[0], index);
        index += mixture_counts_as_value(name);
    }
    return SLUICE_OK;
}

static int write_general(struct conversion *j, const char *name, struct err *err) {
    int status = hub_write_keys(j->hub, j->out, err);
    if (!status)
        status = gguf_write_str(j->out, "general.type", STR("model"), err);
    if (!status)
        status = gguf_write_str(j->out, "general.name", str_of(name), err);
    if (!status)
        status = gguf_write_u32(j->out, "general.file_type", mixture_file_type(j->mixture), err);
    if (!status)
        status = gguf_write_u32(j->out, "general.quantization_version", 2, err);
    if (!status)
        status = tokenizer_write_keys(j->out, j->hub->folder, j->hub->vocab, err);
    return status;
}

struct tensor_source {
    const struct hub *hub;
    const struct hub_tensor *tensor;
};

static void read_rows(const void *source, uint64_t first, uint64_t count, float *out) {
    const struct tensor_source *s = source;
    hub_read_rows(s->hub, s->tensor, first, count, out);
}

static int write_bytes(void *sink, const void *bytes, uint64_t size, struct err *err) {
    struct conversion *j = sink;
    j->done_bytes += size;
    progress_update(&j->progress, j->done_bytes);
    return gguf_write_data(j->out, bytes, size, err);
}

/* An input larger than memory passes through it tensor by tensor. */
static void release_sources(const struct hub *hub, const struct hub_tensor *t) {
    const struct safetensors *w = hub->folder->weights;
    for (uint32_t i = 0; i < t->n_sources; i++)
        filemap_release(w->shards, w->n_shards, t->sources[i]->data, t->sources[i]->bytes);
}

static int write_tensors(struct conversion *j, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < j->hub->n_tensors; i++) {
        const struct hub_tensor *t = &j->hub->tensors[i];
        status = gguf_write_tensor(j->out, str_of(t->name), (enum dtype)j->types[i], t->dims,
                                   t->n_dims, err);
    }
    j->file_bytes = gguf_writer_size(j->out);
    progress_start(&j->progress, "convert", j->file_bytes);
    for (uint32_t i = 0; !status && i < j->hub->n_tensors; i++) {
        struct tensor_source source = {j->hub, &j->hub->tensors[i]};
        status = recode_tensor(
            &(struct recode){
                .name = source.tensor->name,
                .width = source.tensor->dims[0],
                .rows = rows_of(source.tensor),
                .to = (enum dtype)j->types[i],
                .read = read_rows,
                .source = &source,
                .write = write_bytes,
                .sink = j,
            },
            j->pool, err);
        release_sources(j->hub, source.tensor);
    }
    progress_end(&j->progress);
    return status;
}

static int write_file(struct conversion *j, const char *path, const char *name, struct err *err) {
    int status = gguf_writer_open(&j->out, path, 0, err);
    if (status)
        return status;
    status = write_general(j, name, err);
    if (!status)
        status = write_tensors(j, err);
    if (status)
        gguf_writer_abort(j->out);
    else
        status = gguf_writer_close(j->out, err);
    return status;
}

/* The folder's own name, for general.name. */
static const char *name_of_folder(const char *path, char *buffer, size_t size) {
    char *real = realpath(path, NULL);
    snprintf(buffer, size, "%s", real ? real : path);
    free(real);
    return basename(buffer);
}

/* Without its draft block if that is not whole: nothing could draft with it. */
static int open_hub(struct hub **out, const struct folder *folder, bool with_mtp, struct err *err) {
    char missing[HUB_NAME];
    int status = hub_open(out, folder, with_mtp, err);
    if (status || !hub_draft_lacks(*out, missing))
        return status;
    warn("%s: the block for multi-token prediction is left out: it has no %s", folder->path,
         missing);
    hub_close(*out);
    return hub_open(out, folder, false, err);
}

static int convert(const char *from, const char *to, const struct mixture *mixture, int threads,
                   bool with_mtp, const char *name, struct err *err) {
    struct folder *folder = NULL;
    struct hub *hub = NULL;
    struct conversion j = {0};
    char buffer[4096];
    double started = seconds_now();
    const char *replaced = output_replaces(to), *path = output_path(to);
    int status = folder_open(&folder, from, true, err);
    if (status)
        hint_of_folder(err, from);
    else
        status = folder_protect(folder, path, err);
    if (!status)
        status = open_hub(&hub, folder, with_mtp, err);
    if (!status) {
        j.hub = hub;
        j.mixture = mixture ? mixture : mixture_of_folder(hub);
        status = choose_types(&j, err);
    }
    if (!status)
        status = pool_open(&j.pool, threads, err);
    if (!status)
        status =
            write_file(&j, path, name ? name : name_of_folder(from, buffer, sizeof buffer), err);
    if (!status)
        say(SAY_NORMAL, "%s: %s, %s, %u tensors, %s, %.1f s%s%s", to, hub->arch->name,
            mixture_name(j.mixture), hub->n_tensors, human_bytes(j.file_bytes),
            seconds_now() - started,
            hub->n_skipped ? " (a vision tower or draft block was left out)" : "", replaced);
    free(j.types);
    pool_close(j.pool);
    hub_close(hub);
    folder_close(folder);
    return status;
}

int cmd_convert(int argc, char **argv) {
    int threads = 0;
    const char *type = NULL, *name = NULL;
    bool no_mtp = false;
    const struct opt opts[] = {
        {"--type", 0, OPT_STRING, &type, "TYPE",
         "format of the matrices; default: as in the folder"},
        {"--name", 0, OPT_STRING, &name, "NAME", "general.name; default: the folder's name"},
        {"--no-mtp", 0, OPT_FLAG, &no_mtp, NULL, "leave out the multi-token prediction block"},
        {"--threads", 't', OPT_INT, &threads, "N", "threads; 0 (default): one per processor"},
    };
    char types[ARCH_LIST], about[384 + sizeof types];
    snprintf(about, sizeof about,
             "Converts a Hugging Face folder (config.json, safetensors, tokenizer.json) to one "
             "GGUF file.\n"
             "Its model_type may be %s.\nTYPE is one of:\n%s.",
             arch_model_types(types), mixture_names());
    const struct usage usage = {
        .verb = "convert",
        .synopsis = "HF_DIR OUT.gguf [--type TYPE] [options]",
        .about = about,
        .example = "sluice convert Qwen3.5-0.8B qwen35-0.8b-q8_0.gguf --type q8_0",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .min_words = 2,
        .max_words = 2,
    };
    const char *words[2];
    int exit = opts_parse(&usage, argc, argv, words);
    if (exit == OPTS_GO_ON)
        exit = output_check_binary("convert", words[1]);
    if (exit != OPTS_GO_ON)
        return exit;
    const struct mixture *mixture = NULL;
    if (type && (exit = find_written_type("convert", "--type", type, &mixture)) != OPTS_GO_ON)
        return exit;
    if ((exit = threads_check("convert", &threads)) != OPTS_GO_ON)
        return exit;
    struct err err = {0};
    return convert(words[0], words[1], mixture, threads, !no_mtp, name, &err) ? fail(&err) : 0;
}
