/* bench.c - the verb bench: speed beside the limit measured in the same run.
 *
 * Prefill: a prompt is processed. Decode: several sequences generate together. Both begin at the
 * given depth: a sequence of that length is made once and forked for every repeat. Reported are the
 * median of the repeats and their spread: (largest - smallest) / median. A single sequence also
 * copies its logits to the host at every token; several only the token picked. With --scheduler the
 * same tokens are generated once more, by requests through the scheduler; with --mtp some with
 * drafts by the model's own block: bench_drafts.h. With --trace requests of a file are replayed
 * instead: bench_trace.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/size.h"
#include "cmd/bench_drafts.h"
#include "cmd/bench_scheduler.h"
#include "cmd/bench_trace.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "cmd/progress.h"
#include "model/synth.h"

enum {
    MAX_REPEATS = 100,
    COMMON_TOKENS = 50000, /* the first ones: such as texts consist of */
};

struct bench {
    struct common common;
    int n_prompt, n_new, depth, repeats;
    bool is_burst, has_scheduler;
    const char *trace_path, *reuse; /* NULL: not given */
    int conversations;              /* of the trace; 0: all */
    struct trace *trace;
    sluice_model *model;
    sluice_engine *engine;
    sluice_seq *base; /* of the length `depth`; NULL when that is 0 */
    double own_us;    /* the scheduler's own time per submission in its last run: the median */
    int32_t *prompt;  /* random tokens: max(depth, n_prompt) */
};

/* Tokens per second over the repeats. */
struct figure {
    double median, spread, gb_s;
    double cores; /* processors of the host that were busy, on average */
};

/* What a run measured; a median of 0: not asked for. */
struct measured {
    struct figure prefill, decode, scheduled;
    struct bench_drafts drafts[MAX_MTP]; /* of 1, 2 ... tokens each */
    double bandwidth;
    struct sluice_counters counters;
};

static struct figure figure_of(double *rates, int n) {
    qsort(rates, (size_t)n, sizeof *rates, compare_doubles);
    double median = n % 2 ? rates[n / 2] : (rates[n / 2 - 1] + rates[n / 2]) / 2;
    return (struct figure){.median = median, .spread = (rates[n - 1] - rates[0]) / median};
}

/* ---- what is measured --------------------------------------------------------------------- */

static int begin(struct bench *b, sluice_seq **seq) {
    struct sluice_sampling best = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    int status = b->base ? sluice_seq_fork(seq, b->base) : sluice_seq_open(seq, b->engine);
    if (!status)
        status = sluice_seq_set_sampling(*seq, &best);
    return status ? fail_engine(b->engine) : 0;
}

static int time_prefill(struct bench *b, double *rate) {
    sluice_seq *seq;
    int exit = begin(b, &seq);
    if (exit)
        return exit;
    if (sluice_seq_feed(seq, b->prompt, (size_t)b->n_prompt))
        return fail_engine(b->engine);
    double started = seconds_now();
    exit = common_work_off(b->engine, NULL, 0);
    *rate = b->n_prompt / (seconds_now() - started);
    sluice_seq_close(seq);
    return exit;
}

static int time_decode(struct bench *b, double *rate) {
    int batch = b->common.batch, exit = 0;
    sluice_seq **seqs = calloc((size_t)batch, sizeof *seqs);
    if (!seqs)
        return complain(EXIT_WORLD, "out of memory for %d sequences", batch);
    for (int i = 0; !exit && i < batch; i++) {
        exit = begin(b, &seqs[i]);
        if (!exit && batch == 1 && !b->is_burst)
            sluice_seq_want(seqs[i], SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS);
        if (!exit && sluice_seq_feed(seqs[i], b->prompt + i % 2, 1))
            exit = fail_engine(b->engine);
    }
    double started = seconds_now();
    for (uint32_t n = 0, steps; !exit && n < (uint32_t)b->n_new; n += steps) {
        uint32_t max_steps = b->is_burst ? (uint32_t)b->n_new - n : 1;
        if (sluice_engine_burst(b->engine, max_steps, &steps))
            exit = fail_engine(b->engine);
        for (int i = 0; !exit && n + steps < (uint32_t)b->n_new && i < batch; i++) {
            int32_t token = sluice_seq_token(seqs[i]);
            if (sluice_seq_feed(seqs[i], &token, 1))
                exit = fail_engine(b->engine);
        }
    }
    *rate = (double)b->n_new * batch / (seconds_now() - started);
    for (int i = 0; i < batch; i++)
        sluice_seq_close(seqs[i]);
    free(seqs);
    return exit;
}

static int time_scheduler(struct bench *b, double *rate) {
    struct bench_scheduler run = {
        .model = b->model,
        .engine = b->engine,
        .prompt = b->prompt,
        .n_requests = (uint32_t)b->common.batch,
        .n_new = (uint32_t)b->n_new,
        .is_single = !b->is_burst,
    };
    int exit = bench_scheduler(&run);
    *rate = run.rate;
    b->own_us = 1e6 * run.own_seconds;
    return exit;
}

/* Passes with drafts, of as many tokens as --mtp says and of fewer. */
static int time_drafts(struct bench *b, struct bench_drafts *drafts) {
    int batch = b->common.batch, exit = 0;
    sluice_seq **seqs = calloc((size_t)batch, sizeof *seqs);
    if (!seqs)
        return complain(EXIT_WORLD, "out of memory for %d sequences", batch);
    for (int n = 1; !exit && n <= b->common.mtp; n++) {
        for (int i = 0; !exit && i < batch; i++) {
            exit = begin(b, &seqs[i]);
            if (!exit && sluice_seq_feed(seqs[i], b->prompt + i % 2, 1))
                exit = fail_engine(b->engine);
        }
        drafts[n - 1] =
            (struct bench_drafts){.engine = b->engine,
                                  .seqs = seqs,
                                  .n_seqs = (uint32_t)batch,
                                  .n_drafts = (uint32_t)n,
                                  .n_common = synth_is(b->common.model) ? COMMON_TOKENS : 0,
                                  .n_passes = max_u32((uint32_t)(b->n_new / (n + 1)), 1)};
        if (!exit)
            exit = bench_drafts(&drafts[n - 1]);
        for (int i = 0; i < batch; i++)
            sluice_seq_close(seqs[i]);
    }
    free(seqs);
    return exit;
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int repeat(struct bench *b, int (*once)(struct bench *, double *), struct figure *f) {
    double rates[MAX_REPEATS], ignored;
    int exit = once(b, &ignored); /* the first warms up */
    double started = seconds_now(), busy = processor_seconds();
    for (int i = 0; !exit && i < b->repeats; i++)
        exit = once(b, &rates[i]);
    if (exit)
        return exit;
    *f = figure_of(rates, b->repeats);
    f->cores = (processor_seconds() - busy) / (seconds_now() - started);
    return 0;
}

/* ---- what is said ------------------------------------------------------------------------- */

/* How many numbers of drafts are timed: 1, 2 ... */
static int drafts_of(const struct bench *b) {
    return b->n_new ? b->common.mtp : 0;
}

static void print_drafts(const struct bench_drafts *d) {
    printf("drafts %u: %.3f ms, the step %.3f ms; %.1f tok/s if all are right, %.1f if 4 of 5 are; "
           "%llu of %llu were here\n",
           d->n_drafts, 1e3 * d->draft_seconds, 1e3 * d->step_seconds, bench_drafts_rate(d, 1),
           bench_drafts_rate(d, 0.8), (unsigned long long)d->kept, (unsigned long long)d->drafted);
}

static void print_json(const struct bench *b, const struct measured *f) {
    const struct figure *prefill = &f->prefill, *decode = &f->decode, *scheduled = &f->scheduled;
    const struct sluice_counters *c = &f->counters;
    struct sluice_memory memory;
    sluice_engine_memory(b->engine, &memory);
    printf("{\"threads\": %d, \"depth\": %d, \"batch\": %d, \"repeats\": %d, "
           "\"bandwidth_gb_s\": %.3f",
           b->common.threads ? b->common.threads : cpu_count(), b->depth, b->common.batch,
           b->repeats, f->bandwidth);
    if (b->n_prompt)
        printf(", \"prefill\": {\"tokens\": %d, \"tok_s\": %.3f, \"spread\": %.4f}", b->n_prompt,
               prefill->median, prefill->spread);
    if (b->n_new)
        printf(", \"decode\": {\"tokens\": %d, \"tok_s\": %.3f, \"spread\": %.4f, "
               "\"gb_s\": %.3f, \"of_bandwidth\": %.4f, \"host_cores\": %.3f}",
               b->n_new, decode->median, decode->spread, decode->gb_s,
               f->bandwidth > 0 ? decode->gb_s / f->bandwidth : 0, decode->cores);
    if (b->has_scheduler)
        printf(", \"scheduler\": {\"tok_s\": %.3f, \"spread\": %.4f, \"of_decode\": %.4f, "
               "\"own_us\": %.2f}",
               scheduled->median, scheduled->spread, scheduled->median / decode->median, b->own_us);
    for (int i = 0; i < drafts_of(b); i++)
        printf("%s{\"n\": %d, \"draft_ms\": %.4f, \"step_ms\": %.4f, \"drafted\": %llu, \"kept\": "
               "%llu}%s",
               i ? ", " : ", \"drafts\": [", i + 1, 1e3 * f->drafts[i].draft_seconds,
               1e3 * f->drafts[i].step_seconds, (unsigned long long)f->drafts[i].drafted,
               (unsigned long long)f->drafts[i].kept, i + 1 == drafts_of(b) ? "]" : "");
    printf(", \"steps\": %llu, \"submissions\": %llu, \"waits\": %llu, \"host_copies\": %llu, "
           "\"drafted\": %llu, \"drafts_kept\": %llu, \"memory_bytes\": %llu}\n",
           (unsigned long long)c->steps, (unsigned long long)c->submissions,
           (unsigned long long)c->waits, (unsigned long long)c->host_copies,
           (unsigned long long)c->drafted, (unsigned long long)c->drafts_kept,
           (unsigned long long)memory.total);
}

static void print_text(const struct bench *b, const struct measured *f) {
    const struct figure *prefill = &f->prefill, *decode = &f->decode, *scheduled = &f->scheduled;
    const struct sluice_counters *c = &f->counters;
    printf("read bandwidth      %8.2f GB/s\n", f->bandwidth);
    if (b->n_prompt)
        printf("prefill %5d at %-5d %8.2f tok/s  spread %4.1f %%\n", b->n_prompt, b->depth,
               prefill->median, 100 * prefill->spread);
    if (b->n_new)
        printf("decode %3d x %-4d at %-5d %6.2f tok/s  spread %4.1f %%  %.2f GB/s, %.0f %% of the "
               "bandwidth, %.0f %% of a processor\n",
               b->common.batch, b->n_new, b->depth, decode->median, 100 * decode->spread,
               decode->gb_s, f->bandwidth > 0 ? 100 * decode->gb_s / f->bandwidth : 0,
               100 * decode->cores);
    if (b->has_scheduler)
        printf(
            "scheduler           %8.2f tok/s  spread %4.1f %%  %.1f %% of decode, %.1f us of its "
            "own a submission\n",
            scheduled->median, 100 * scheduled->spread, 100 * scheduled->median / decode->median,
            b->own_us);
    for (int i = 0; i < drafts_of(b); i++)
        print_drafts(&f->drafts[i]);
    printf("%llu steps, %llu submissions, %llu waits, %llu host copies, %llu of %llu drafts kept\n",
           (unsigned long long)c->steps, (unsigned long long)c->submissions,
           (unsigned long long)c->waits, (unsigned long long)c->host_copies,
           (unsigned long long)c->drafts_kept, (unsigned long long)c->drafted);
}

/* ---- the verb ----------------------------------------------------------------------------- */

static int make_base(struct bench *b) {
    if (b->depth == 0)
        return 0;
    if (sluice_seq_open(&b->base, b->engine) ||
        sluice_seq_feed(b->base, b->prompt, (size_t)b->depth))
        return fail_engine(b->engine);
    return common_work_off(b->engine, "depth", (uint64_t)b->depth);
}

static int run(struct bench *b) {
    struct measured f = {.bandwidth = common_limit(b->engine, b->common.threads)};
    int exit = make_base(b);
    if (!exit && b->n_prompt)
        exit = repeat(b, time_prefill, &f.prefill);
    if (!exit && b->n_new)
        exit = repeat(b, time_decode, &f.decode);
    if (!exit && b->has_scheduler)
        exit = repeat(b, time_scheduler, &f.scheduled);
    if (!exit && drafts_of(b))
        exit = time_drafts(b, f.drafts);
    if (exit)
        return exit;
    uint32_t batch = (uint32_t)b->common.batch, depth = (uint32_t)(b->depth + b->n_new / 2);
    f.decode.gb_s =
        f.decode.median / batch * (double)common_step_bytes(b->engine, batch, depth) / 1e9;
    sluice_engine_counters(b->engine, &f.counters);
    (b->common.as_json ? print_json : print_text)(b, &f);
    return 0;
}

/* The same tokens in every run. */
static int make_prompt(struct bench *b) {
    struct sluice_facts facts;
    size_t n = (size_t)(b->depth > b->n_prompt ? b->depth : b->n_prompt) + 2;
    uint64_t x = 1;
    sluice_model_facts(b->model, &facts);
    int32_t n_tokens = facts.n_tokens < COMMON_TOKENS ? facts.n_tokens : COMMON_TOKENS;
    b->prompt = malloc(n * sizeof *b->prompt);
    for (size_t i = 0; b->prompt && i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        b->prompt[i] = (int32_t)((x >> 33) % (uint64_t)n_tokens);
    }
    return b->prompt ? 0 : complain(EXIT_WORLD, "out of memory for a prompt");
}

static int check(const struct bench *b) {
    int exit;
    if ((exit = check_range("bench", "-p", b->n_prompt, 0, MAX_TOKENS)) != OPTS_GO_ON ||
        (exit = check_range("bench", "-n", b->n_new, 0, MAX_TOKENS)) != OPTS_GO_ON ||
        (exit = check_range("bench", "--depth", b->depth, 0, MAX_TOKENS)) != OPTS_GO_ON ||
        (exit = check_range("bench", "--conversations", b->conversations, 0, MAX_TOKENS)) !=
            OPTS_GO_ON ||
        (exit = check_range("bench", "--repeats", b->repeats, 1, MAX_REPEATS)) != OPTS_GO_ON)
        return exit;
    if (b->common.mtp > 0 && b->common.batch > 256 / b->common.mtp)
        return complain(EXIT_USAGE, "bench: --mtp %d is given for --batch %d, expected at most %d",
                        b->common.mtp, b->common.batch, 256 / b->common.mtp);
    if (b->n_prompt == 0 && b->n_new == 0)
        return complain(EXIT_USAGE, "bench: -p and -n are both 0, expected one of them to be more");
    if (b->has_scheduler && (b->depth > 0 || b->n_new == 0))
        return complain(EXIT_USAGE,
                        b->depth > 0
                            ? "bench: --scheduler and --depth are both given, expected one of them"
                            : "bench: --scheduler needs -n 1 or more");
    if (!b->trace_path && (b->reuse || b->conversations))
        return complain(EXIT_USAGE, "bench: %s needs --trace FILE",
                        b->reuse ? "--reuse" : "--conversations");
    enum trace_reuse ignored;
    if (b->reuse && !trace_reuse_find(b->reuse, &ignored))
        return complain(EXIT_USAGE, "bench: --reuse is '%s', expected none, live or all", b->reuse);
    return common_check(&b->common, "bench");
}

static int replay(struct bench *b) {
    struct bench_trace run = {
        .model = b->model,
        .engine = b->engine,
        .trace = b->trace,
        .has_bursts = b->is_burst,
        .as_json = b->common.as_json,
        .cache_dir = b->common.cache_dir,
    };
    trace_reuse_find(b->reuse ? b->reuse : "all", &run.reuse);
    return bench_trace(&run);
}

/* The engine as the command line and the trace want it. */
static struct sluice_engine_options options_of(const struct bench *b) {
    struct sluice_engine_options o = common_engine(&b->common);
    o.sequences += b->depth > 0;
    o.block_drafts = (uint32_t)b->common.mtp;
    o.drafts = max_u32(o.drafts, (uint32_t)(b->common.batch * b->common.mtp));
    if (b->common.context >= 0)
        return o;
    o.context = b->trace ? (int64_t)trace_longest(b->trace)
                         : b->depth + (b->n_prompt > b->n_new ? b->n_prompt : b->n_new) + 1;
    return o;
}

int cmd_bench(int argc, char **argv) {
    struct bench b = {.common = common_default(), .n_prompt = 512, .n_new = 128, .repeats = 5};
    struct err err = {0};
    struct opt opts[MAX_COMMON_OPTS + 10] = {
        {"--prompt", 'p', OPT_INT, &b.n_prompt, "N",
         "tokens in the prompt; 0: no prefill; default: 512"},
        {"--tokens", 'n', OPT_INT, &b.n_new, "N", "tokens to generate; 0: no decode; default: 128"},
        {"--depth", 0, OPT_INT, &b.depth, "N", "tokens already in the context; default: 0"},
        {"--batch", 0, OPT_INT, &b.common.batch, "N",
         "sequences that generate together; default: 1"},
        {"--burst", 0, OPT_FLAG, &b.is_burst, NULL,
         "several tokens per submission, where the backend can"},
        {"--scheduler", 0, OPT_FLAG, &b.has_scheduler, NULL,
         "also generate the tokens through the scheduler of serve, with drafts (--draft)"},
        {"--trace", 0, OPT_STRING, &b.trace_path, "FILE",
         "replay the requests of FILE (bench/cache/), --batch of them at a time"},
        {"--reuse", 0, OPT_STRING, &b.reuse, "WHAT",
         "with --trace: what requests reuse: none, live (what runs now), all (default)"},
        {"--conversations", 0, OPT_INT, &b.conversations, "N",
         "with --trace: only the first N conversations; default: all"},
        {"--repeats", 'r', OPT_INT, &b.repeats, "N", "repeats of each measurement; default: 5"},
    };
    const struct usage usage = {
        .verb = "bench",
        .synopsis = "[MODEL] [-p 512] [-n 128] [--depth D] [--batch B] [options]",
        .about =
            "Measures how fast prompts are processed and tokens generated, and, in the same run "
            "with the same\nthreads, the memory bandwidth that limits it.",
        .example = "sluice bench -m model.gguf -p 512 -n 128 --json",
        .opts = opts,
        .n_opts =
            common_opts(opts, 10, &b.common, WITH_ENGINE | WITH_CACHE | WITH_DRAFT | WITH_JSON),
        .model = &b.common.model,
    };
    b.common.mtp = 0;
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = check(&b);
    if (exit != OPTS_GO_ON)
        return exit;
    exit = common_open_model(&b.common, &b.model);
    if (!exit)
        exit = make_prompt(&b);
    if (!exit && b.trace_path && trace_read(&b.trace, b.trace_path, &err))
        exit = fail(&err);
    if (!exit && b.trace && b.conversations && !trace_cut(b.trace, (uint32_t)b.conversations))
        exit = complain(EXIT_USAGE, "bench: --conversations %d leaves no request of %s",
                        b.conversations, b.trace_path);
    if (!exit) {
        struct sluice_engine_options o = options_of(&b);
        exit = common_open_engine(b.model, &o, false, &b.engine);
    }
    if (!exit) {
        common_announce(&b.common, b.model, b.engine);
        exit = b.trace ? replay(&b) : run(&b);
    }
    free(b.prompt);
    trace_free(b.trace);
    sluice_engine_close(b.engine);
    sluice_model_close(b.model);
    return exit;
}
