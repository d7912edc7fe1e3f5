/* figures.c - what an answer took: a line for people, members of a JSON object for programs. */
#include "cmd/figures.h"

#include "cmd/cmd.h"
#include "cmd/open.h"
#include "engine/engine.h"

static double per_second(size_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0;
}

static double prompt_rate(const struct figures *f) {
    return per_second(f->n_prompt - f->n_cached - f->n_left, f->prompt_seconds);
}

/* The first token comes with the prompt. */
static double rate(const struct figures *f) {
    return per_second(f->out->n_new > 0 ? f->out->n_new - 1 : 0, f->out->seconds);
}

void figures_say(const struct figures *f) {
    struct sluice_counters c;
    uint32_t depth;
    char parts[48] = "", speed[32] = "";
    sluice_engine_counters(f->engine, &c);
    sluice_seq_tokens(f->out->seq, NULL, &depth, NULL);
    uint64_t bytes = common_step_bytes(f->engine, 1, depth);
    if (f->n_left)
        snprintf(parts, sizeof parts, " (%zu left)", f->n_left);
    else if (f->n_cached)
        snprintf(parts, sizeof parts, " (%zu kept)", f->n_cached);
    if (rate(f) > 0)
        snprintf(speed, sizeof speed, ", %.1f tok/s", rate(f));
    say(SAY_NORMAL, "prompt %zu token%s%s, %.1f tok/s; %zu token%s%s%s", f->n_prompt,
        f->n_prompt == 1 ? "" : "s", parts, prompt_rate(f), f->out->n_new,
        f->out->n_new == 1 ? "" : "s", speed,
        f->out->end == GENERATE_INTERRUPTED ? ", interrupted" : "");
    say(SAY_ALL,
        "%s a token, %.2f GB/s; %llu submissions, %llu waits; %llu of %llu drafts kept; seed %llu",
        human_bytes(bytes), rate(f) * (double)bytes / 1e9, (unsigned long long)c.submissions,
        (unsigned long long)c.waits, (unsigned long long)c.drafts_kept,
        (unsigned long long)c.drafted, (unsigned long long)f->seed);
}

json_t *figures_json(const struct figures *f, struct str text) {
    static const char *const ends[] = {
        [GENERATE_END_TOKEN] = "end",     [GENERATE_STOP_STRING] = "stop",
        [GENERATE_MAX_TOKENS] = "length", [GENERATE_INTERRUPTED] = "interrupted",
        [GENERATE_LOOP] = "loop",         [GENERATE_CONTEXT_FULL] = "context",
        [GENERATE_FAILED] = "failed",
    };
    struct sluice_counters c;
    struct sluice_choice choice;
    struct sluice_memory memory;
    sluice_engine_counters(f->engine, &c);
    sluice_engine_choice(f->engine, &choice);
    sluice_engine_memory(f->engine, &memory);
    return json_pack(
        "{s:o, s:s, s:I, s:f, s:I, s:I, s:f, s:I, s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, "
        "s:I}",
        "text", json_text(text), "end", ends[f->out->end], "tokens", (json_int_t)f->out->n_new,
        "tok_s", rate(f), "prompt_tokens", (json_int_t)f->n_prompt, "prompt_tokens_kept",
        (json_int_t)f->n_cached, "prompt_tok_s", prompt_rate(f), "seed", (json_int_t)f->seed,
        "model", json_text(str_of(f->engine->model->model->path)), "backend", choice.backend,
        "device", choice.device, "context", (json_int_t)choice.context, "memory_bytes",
        (json_int_t)memory.total, "submissions", (json_int_t)c.submissions, "drafted",
        (json_int_t)c.drafted, "drafts_kept", (json_int_t)c.drafts_kept, "waits",
        (json_int_t)c.waits);
}
