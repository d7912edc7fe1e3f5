/* generate.c - a program that generates text.  generate MODEL PROMPT */
#include <sluice.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    sluice_text *text = NULL;
    int32_t tokens[1024];
    const char *at;
    size_t n;
    if (argc < 3)
        return fprintf(stderr, "usage: generate MODEL PROMPT\n"), 2;
    if (sluice_model_open(&model, argv[1]) || sluice_engine_open(&engine, model, NULL) ||
        sluice_seq_open(&seq, engine) || sluice_text_open(&text, model, NULL, 0) ||
        sluice_encode(model, argv[2], strlen(argv[2]), SLUICE_ENCODE_BOS, tokens, 1024, &n) ||
        sluice_seq_feed(seq, tokens, n))
        return fprintf(stderr, "%s %s\n", sluice_model_error(model), sluice_engine_error(engine)),
               1;
    while (!sluice_seq_next(seq, tokens) && !sluice_token_is_end(model, tokens[0]) &&
           !sluice_text_push(text, tokens[0], &at, &n))
        printf("%.*s", (int)n, at);
    sluice_text_close(text);
    sluice_engine_close(engine);
    sluice_model_close(model);
}
