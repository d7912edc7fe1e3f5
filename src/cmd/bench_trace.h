/* bench_trace.h - a trace of conversations, for bench: requests that follow from each other.
 *
 * A text file, one request per line, in order of arrival; bench/cache/trace.py writes such files.
 * Lines that begin with # are comments.
 *
 *   CONVERSATION NEW PART ...
 *
 * CONVERSATION is a number: a request waits until the one before it in the same conversation has
 * ended, and those whose answers it repeats. NEW is how many tokens are generated. The parts make
 * up the prompt:
 *
 *   tSEED:N          N tokens of the text with that seed
 *   aREQUEST:FROM:N  N tokens of the answer to an earlier request (the first is 0), from FROM on
 *   e                the token that ends a turn */
#ifndef CMD_BENCH_TRACE_H
#define CMD_BENCH_TRACE_H

#include "base/err.h"
#include "sluice.h"

struct trace;

/* Errors name the line. */
int trace_read(struct trace **out, const char *path, struct err *err);
void trace_free(struct trace *t);              /* takes NULL */
uint32_t trace_longest(const struct trace *t); /* tokens of the longest prompt and its answer */

/* Leaves out all conversations but the first this many; returns the requests left.
 */
uint32_t trace_cut(struct trace *t, uint32_t conversations);

enum trace_reuse {
    REUSE_NONE, /* every request processes all of its prompt */
    REUSE_LIVE, /* running sequences share common prefixes */
    REUSE_ALL,  /* everything that is cached */
};
/* By name; false: unknown. */
bool trace_reuse_find(const char *name, enum trace_reuse *out);

struct bench_trace {
    const sluice_model *model;
    sluice_engine *engine;
    struct trace *trace;
    enum trace_reuse reuse;
    bool has_bursts, as_json;
    const char *cache_dir; /* NULL: there is none */
};

/* Replays the trace once and prints what it took. 0, or the exit status after one line. */
int bench_trace(const struct bench_trace *b);

#endif
