/* fuzz_api.c - bytes as calls of the engine's API, against the model in api_oracle.h.
 *
 * The first byte chooses between a hybrid and a plain transformer. */
#include "../api_oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void oracle_differs(int line, const char *what) {
    fprintf(stderr, "api_oracle.h:%d: %s\n", line, what);
    abort();
}

static void open_or_die(struct oracle *o, const char *name) {
    const char *folder = getenv("SLUICE_TEST_DATA");
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "build/data", name);
    if (!oracle_open(o, path)) {
        fprintf(stderr, "%s%s\n", sluice_model_error(o->model), sluice_engine_error(o->engine));
        abort();
    }
}

static struct oracle oracles[2];

static void close_all(void) {
    oracle_close(&oracles[0]);
    oracle_close(&oracles[1]);
}

/* Sequences are checked against fresh ones that are fed from the start, so a run's time grows
 * faster than its bytes. */
enum { MAX_BYTES = 1024 };

/* Opened once: opening takes longer than a run. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (!oracles[0].engine) {
        open_or_die(&oracles[0], "reference/qwen35-dense-a/model-f32.gguf");
        open_or_die(&oracles[1], "reference/llama-a/model-f32.gguf");
        atexit(close_all);
    }
    if (size > 0)
        oracle_run(&oracles[bytes[0] % 2], bytes + 1, size < MAX_BYTES ? size - 1 : MAX_BYTES - 1);
    return 0;
}
