/* fuzz_request.c - any bytes as the body of a request: the first byte chooses the path.
 *
 * The body is read, its messages are rendered and encoded, its grammar is compiled; then it is
 * refused, as no request may have an answer here: the engine is not what is tested. */
#include <stdio.h>

#include "serve/http/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static route_fn *const handlers[] = {openai_chat,          openai_complete,      anthropic_messages,
                                     anthropic_count,      ollama_chat,          ollama_generate,
                                     llama_tokenize,       llama_detokenize,     openai_respond,
                                     openai_respond_count, openai_embed,         ollama_embed,
                                     snapshot_save,        snapshot_fork,        snapshot_restore,
                                     llama_complete,       llama_apply_template, llama_infill};

static struct server server;
static sluice_model *model;

static void close_all(void) {
    store_close(server.replay);
    store_close(server.responses);
    snapshots_close(server.snapshots);
    formats_close(server.model.formats);
    sluice_model_close(model);
}

static void open_or_die(void) {
    static const char stored[] = "{\"response\":{\"id\":\"resp_a\"},\"turns\":[{\"role\":\"user\","
                                 "\"content\":\"Hi\"},{\"role\":"
                                 "\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{"
                                 "\"name\":\"f\",\"arguments\":{}}}]"
                                 "}]}";
    static const char snapshot[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
        "\"Hello\"}],\"tokens\":[1,2,3,2],\"covers\":2,\"vocabulary\":\"0\"}";
    if (sluice_model_open(&model, "models/stories-27m-q4_k_m.gguf")) {
        fprintf(stderr, "%s\n", sluice_model_error(model));
        abort();
    }
    server.options = server_options_default();
    server.options.max_answers = 0;
    server.model =
        (struct ask_model){.name = "model", .context = 512, .max_answers = 16, .has_hidden = true};
    ask_model_fill(&server.model, model);
    server.model.formats = formats_open(model, FORMATS_BYTES);
    server.replay = store_open(1 << 20);
    server.responses = store_open(1 << 20);
    store_put(server.responses, hash128_of("resp_a", 6), stored, sizeof stored - 1);
    struct err err;
    if (snapshots_open(&server.snapshots, NULL, 1 << 20, &err) ||
        snapshots_put(server.snapshots, "a", str_of(snapshot), &err))
        abort();
    atexit(close_all);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (!model)
        open_or_die();
    if (size == 0)
        return 0;
    struct exchange *x = exchange_open(&server, NULL, "POST", "/v1/messages");
    strcpy(x->name, "a");
    buffer_add(&x->body, (const char *)bytes + 1, size - 1);
    handlers[bytes[0] % (sizeof handlers / sizeof *handlers)](x);
    if (x->reply != REPLY_WHOLE || x->status < 200 || x->status >= 600)
        abort();
    json_t *reply = json_loadb(x->out.at, x->out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!reply)
        abort(); /* every answer is JSON */
    json_decref(reply);
    exchange_release(x);
    return 0;
}
