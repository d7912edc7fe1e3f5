/* figures.h - what an answer took: a line for people, members of a JSON object for programs. */
#ifndef CMD_FIGURES_H
#define CMD_FIGURES_H

#include <jansson.h>

#include "base/str.h"
#include "cmd/generate.h"

struct figures {
    sluice_engine *engine;
    const struct generate *out; /* all zeros when it was not reached */
    size_t n_prompt, n_cached;  /* tokens; those of them that were cached */
    size_t n_left;              /* those still waiting: it was interrupted */
    double prompt_seconds;
    uint64_t seed;
};

/* "prompt 4 tokens, 226.1 tok/s; 30 tokens, 133.9 tok/s"; with -v a second line. */
void figures_say(const struct figures *f);

/* One object with the text and all figures; the caller owns it. */
json_t *figures_json(const struct figures *f, struct str text);

#endif
