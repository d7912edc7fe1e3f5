/* test_weights_dir.c - weights on disk: the same bits as in memory, a file that leaves nothing, and
 * what is said where it cannot be. */
#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/filemap.h"
#include "engine/engine.h"
#include "random_model.h"
#include "sluice.h"
#include "test.h"

/* A folder for weights; NULL, and the test is skipped, where tests have none on a disk. */
static const char *folder_on_disk(void) {
    const char *folder = test_temporary("weights");
    uint64_t room;
    struct err err;
    EXPECT(mkdir(folder, 0700) == 0 || errno == EEXIST);
    if (filemap_room(folder, "weights", &room, &err) == SLUICE_OK)
        return folder;
    EXPECT(strstr(err.text, "is in memory") != NULL);
    test_skip("%s", err.text);
    return NULL;
}

static int names_in(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n - 2; /* . and .. */
}

/* ---- the same bits ------------------------------------------------------------------------ */

enum { PROMPT = 40, STEPS = 6 };

/* Logits of a prompt and of greedy steps after it: (STEPS, n_logits). */
static float *logits_of(sluice_model *model, const struct sluice_engine_options *o,
                        struct sluice_memory *memory) {
    struct sluice_facts facts;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    int32_t tokens[PROMPT];
    sluice_model_facts(model, &facts);
    float *out = calloc(STEPS * (size_t)facts.n_logits, sizeof *out);
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)facts.n_tokens);
    if (sluice_engine_open(&engine, model, o))
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(engine));
    else if (sluice_seq_open(&seq, engine) || sluice_seq_want(seq, SLUICE_WANT_LOGITS))
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(engine));
    if (o->weights_dir)
        EXPECT_INT(names_in(o->weights_dir), 0); /* while it runs, too */
    for (int step = 0; seq && step < STEPS; step++) {
        const float *row = NULL;
        uint32_t rows = 1;
        EXPECT_INT(sluice_seq_feed(seq, tokens, step ? 1 : PROMPT), SLUICE_OK);
        while (rows)
            EXPECT_INT(sluice_engine_step(engine, &rows), SLUICE_OK);
        EXPECT_INT(sluice_seq_logits(seq, &row, &rows), SLUICE_OK);
        memcpy(out + step * facts.n_logits, row, (size_t)facts.n_logits * sizeof *row);
        for (int32_t t = tokens[0] = 0; t < facts.n_tokens; t++)
            tokens[0] = row[t] > row[tokens[0]] ? t : tokens[0];
    }
    sluice_engine_memory(engine, memory);
    sluice_engine_close(engine);
    return out;
}

static void expect_same_bits(const struct random_model *m, const char *folder) {
    const char *path = test_temporary("on disk.gguf");
    sluice_model *model = NULL;
    struct sluice_facts facts;
    struct sluice_memory all, some;
    struct err err;
    EXPECT_INT(random_model_write(m, path, &err), SLUICE_OK);
    EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
    sluice_model_facts(model, &facts);
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = "cpu";
    o.context = 64;
    o.threads = 2;
    float *expected = logits_of(model, &o, &all);
    bool packs = cpu_features() != 0; /* else all is used where the file is mapped */
    EXPECT(all.disk == 0 && (all.packed > 0) == packs);
    o.weights_dir = folder;
    /* All in memory as it fits, all on disk, and something between. */
    const uint64_t kept[] = {0, 1, all.packed / 2};
    for (int i = 0; i < 3; i++) {
        o.weights_bytes = kept[i];
        float *found = logits_of(model, &o, &some);
        EXPECT(memcmp(found, expected, STEPS * (size_t)facts.n_logits * sizeof *found) == 0);
        EXPECT(i == 0 ? some.disk == 0 : some.disk + some.packed >= all.packed);
        EXPECT(kept[i] == 0 || some.packed <= kept[i]);
        EXPECT(some.total == all.total - (all.packed - some.packed) - (all.weights - some.weights));
        free(found);
        EXPECT_INT(names_in(folder), 0);
    }
    EXPECT(m->experts || !packs || some.packed > 0);
    free(expected);
    sluice_model_close(model);
    unlink(path);
}

TEST(weights_on_disk_same_bits) {
    const char *folder = folder_on_disk();
    struct random_model dense = {.seed = 9,
                                 .arch = "qwen35",
                                 .hidden = 256,
                                 .layers = 4,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_width = 64,
                                 .ffn = 768,
                                 .vocab = 3000,
                                 .key_heads = 2,
                                 .value_heads = 4,
                                 .key_width = 64,
                                 .value_width = 64,
                                 .type = DT_Q4_K};
    struct random_model experts = dense;
    experts.arch = "qwen35moe";
    experts.ffn = experts.shared = 256;
    experts.experts = 16;
    experts.used = 3;
    struct random_model odd = random_moe(3);
    odd.type = DT_Q8_0;
    for (int i = 0; folder && i < 3; i++)
        expect_same_bits(i == 0 ? &dense : i == 1 ? &experts : &odd, folder);
    if (folder)
        rmdir(folder);
}

/* ---- memory that does not hold the model -------------------------------------------------- */

/* Weights of this type where they do not all fit. */
static void expect_fit(enum dtype type, const char *folder) {
    const char *path = test_temporary("larger.gguf");
    const struct random_model m = {.seed = 4,
                                   .arch = "llama",
                                   .hidden = 512,
                                   .layers = 6,
                                   .heads = 8,
                                   .kv_heads = 2,
                                   .head_width = 64,
                                   .ffn = 2048,
                                   .vocab = 2048,
                                   .type = type};
    struct sluice_engine_options o = sluice_engine_options_default();
    struct sluice_memory all, some;
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    struct err err;
    o.backend = "cpu";
    o.context = 64;
    o.prefill = 8;
    o.threads = 1;
    EXPECT_INT(random_model_write(&m, path, &err), SLUICE_OK);
    EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
    float *expected = logits_of(model, &o, &all);
    o.memory_limit = all.total - (all.packed + all.weights) / 2;
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_MEMORY);
    EXPECT(strstr(sluice_engine_error(engine), "what would fit: --weights-dir DIR") != NULL);
    sluice_engine_close(engine);
    o.weights_dir = folder;
    float *found = logits_of(model, &o, &some);
    EXPECT(memcmp(found, expected, STEPS * (size_t)m.vocab * sizeof *found) == 0);
    EXPECT(some.total <= o.memory_limit && some.disk > 0);
    EXPECT(all.packed == 0 || some.packed > all.packed / 4);
    /* Even then a rest has to be in memory. */
    o.memory_limit = all.total - all.packed - all.weights;
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_MEMORY);
    EXPECT(strstr(sluice_engine_error(engine), "--weights-dir") == NULL);
    sluice_engine_close(engine);
    free(found);
    free(expected);
    sluice_model_close(model);
    unlink(path);
}

/* BF16 is used where the file is mapped, and packed nowhere. */
TEST(weights_on_disk_fit_where_memory_does_not) {
    const char *folder = folder_on_disk();
    if (!folder)
        return;
    expect_fit(DT_Q8_0, folder);
    expect_fit(DT_BF16, folder);
    rmdir(folder);
}

/* What is not packed is on disk where its file is mapped. */
static bool is_on_disk(const sluice_engine *engine) {
    return engine->predicted.disk > 0 || engine->predicted.paged > 0;
}

/* Many answers: their memory gets smaller before weights go to disk, as without the folder; where
 * weights have to go there, the answers' memory is a small part of what is free. */
static void expect_shrunk(sluice_model *model, const char *folder, bool may_batch_less) {
    struct sluice_engine_options o = sluice_engine_options_default(), one;
    sluice_engine *engine, *smaller;
    struct sluice_memory whole, single;
    struct err err;
    int n_on_disk = 0, n_in_memory = 0;
    o.backend = "cpu";
    o.context = 4096;
    o.prefill = 8;
    o.threads = 1;
    o.batch = o.sequences = 16;
    one = o;
    one.batch = one.sequences = 1;
    EXPECT_INT(engine_prepare(&engine, model, &one, false, &err), SLUICE_OK);
    single = engine_memory_of(engine, &engine->predicted);
    engine_close(engine);
    EXPECT_INT(engine_prepare(&engine, model, &o, false, &err), SLUICE_OK);
    whole = engine_memory_of(engine, &engine->predicted);
    engine_close(engine);
    for (int step = 0; step < 12; step++) {
        uint64_t limit = single.total / 2 + (whole.total - single.total / 2) * (uint64_t)step / 11;
        struct sluice_engine_options without = o, with = o;
        without.memory_limit = with.memory_limit = limit * 8 / 7 + 8;
        with.weights_dir = folder;
        EXPECT_INT(engine_prepare(&engine, model, &with, false, &err), SLUICE_OK);
        bool is_short = fit_is_short(engine, &with);
        bool fits = fit_shrink(engine, &without, may_batch_less);
        if (is_short)
            EXPECT(fit_shrink(engine, &with, may_batch_less) || limit < single.total);
        engine_close(engine);
        if (sluice_engine_open(&smaller, model, &with)) {
            EXPECT(limit < single.total);
        } else if (!is_short) {
            EXPECT(!is_on_disk(smaller) && with.kv_bytes == 0 && with.batch == 16);
        } else if (fits) {
            EXPECT(with.kv_bytes == without.kv_bytes && with.batch == without.batch);
            EXPECT(!is_on_disk(smaller));
            n_in_memory++;
        } else {
            uint64_t share = with.memory_limit / 8, page = smaller->state.layout.page_bytes;
            EXPECT(smaller->setup.n_pages == smaller->setup.pages_per_seq ||
                   smaller->setup.n_pages * page <= share);
            EXPECT(may_batch_less || with.batch == 16);
            n_on_disk += is_on_disk(smaller);
        }
        sluice_engine_close(smaller);
    }
    EXPECT(n_on_disk > 0 && n_in_memory > 0);
}

TEST(weights_on_disk_come_after_a_smaller_cache) {
    const char *folder = folder_on_disk(), *path = test_temporary("many.gguf");
    const struct random_model m = {.seed = 4,
                                   .arch = "qwen35",
                                   .hidden = 512,
                                   .layers = 4,
                                   .heads = 8,
                                   .kv_heads = 2,
                                   .head_width = 64,
                                   .ffn = 2048,
                                   .vocab = 2048,
                                   .key_heads = 4,
                                   .value_heads = 4,
                                   .key_width = 64,
                                   .value_width = 64,
                                   .type = DT_Q8_0};
    sluice_model *model = NULL;
    struct err err;
    if (!folder)
        return;
    EXPECT_INT(random_model_write(&m, path, &err), SLUICE_OK);
    EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
    expect_shrunk(model, folder, false);
    expect_shrunk(model, folder, true);
    /* What was asked for stays in memory, and no more. */
    struct sluice_engine_options o = sluice_engine_options_default();
    sluice_engine *engine;
    o.backend = "cpu";
    o.context = 1024;
    o.weights_dir = folder;
    o.weights_bytes = 1;
    EXPECT_INT(engine_prepare(&engine, model, &o, false, &err), SLUICE_OK);
    EXPECT(is_on_disk(engine) == (cpu_features() != 0) && !fit_is_short(engine, &o));
    engine_close(engine);
    sluice_model_close(model);
    unlink(path);
    rmdir(folder);
}

/* ---- disks -------------------------------------------------------------------------------- */

/* For whatever it is to be used: the caller says that. */
TEST(weights_on_disk_say_what_is_wrong_with_the_folder) {
    const char *folder = folder_on_disk(), *file = "models/stories-27m-q4_k_m.gguf";
    struct filemap map;
    struct err err;
    uint64_t room = 0;
    EXPECT_INT(filemap_make(&map, "/nonexistent", "notes", 1 << 20, &err), SLUICE_ERR_IO);
    EXPECT_STR(err.text, "/nonexistent: cannot be used for notes: No such file or directory");
    EXPECT_INT(filemap_make(&map, file, "notes", 1 << 20, &err), SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "Not a directory") != NULL);
    struct statfs fs;
    if (statfs("/dev/shm", &fs) == 0 && fs.f_type == TMPFS_MAGIC) {
        EXPECT_INT(filemap_make(&map, "/dev/shm", "notes", 1 << 20, &err), SLUICE_ERR_IO);
        EXPECT_STR(err.text,
                   "/dev/shm: is in memory (tmpfs), expected a folder on a disk for notes");
    }
    filemap_close(&map);
    if (!folder)
        return;
    EXPECT_INT(filemap_room(folder, "notes", &room, &err), SLUICE_OK);
    EXPECT_INT(filemap_make(&map, folder, "notes", room + (1ull << 40), &err), SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "GB of notes do not fit, ") != NULL);
    filemap_close(&map);
    if (geteuid() != 0) {
        EXPECT_INT(chmod(folder, 0500), 0);
        EXPECT_INT(filemap_make(&map, folder, "notes", 1 << 20, &err), SLUICE_ERR_IO);
        EXPECT(strstr(err.text, "Permission denied") != NULL);
    }
    EXPECT_INT(names_in(folder), 0);
    rmdir(folder);
}

/* Writing is refused by a limit in place of a disk, with the same codes. */
TEST(weights_on_disk_writing_may_fail) {
    enum { BYTES = 1 << 20 };
    const char *folder = folder_on_disk();
    struct rlimit old, low;
    struct filemap map;
    struct err err;
    static char zeros[BYTES];
    if (!folder)
        return;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    EXPECT_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = BYTES / 2;
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &low), 0);
    EXPECT_INT(filemap_make(&map, folder, "weights", BYTES, &err), SLUICE_ERR_IO);
    EXPECT(strstr(err.text, "File too large") != NULL);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_INT(filemap_make(&map, folder, "weights", BYTES, &err), SLUICE_OK);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &low), 0);
    memset(zeros, 7, BYTES);
    EXPECT_INT(filemap_write(&map, zeros, BYTES, 0), EFBIG);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_INT(filemap_write(&map, zeros, BYTES - 1, 1), 0);
    EXPECT_INT(filemap_settle(&map, 0, BYTES), 0);
    EXPECT(map.data[1] == 7 && map.data[BYTES - 1] == 7);
    filemap_close(&map);
    signal(SIGXFSZ, handler);
    EXPECT_INT(names_in(folder), 0);
    rmdir(folder);
}
