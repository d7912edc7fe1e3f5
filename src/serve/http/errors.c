/* errors.c - errors in the shape that each API's clients read. */
#include <string.h>

#include "serve/http/routes.h"

typedef json_t *error_fn(int status, const char *message, const char *param);

static json_t *openai_error(int status, const char *message, const char *param) {
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    const char *code = status == 401                                  ? "invalid_api_key"
                       : strstr(message, "maximum context length is") ? "context_length_exceeded"
                       : strstr(message, "previous_response_id") && strstr(message, "not kept")
                           ? "previous_response_not_found"
                           : NULL;
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message, "type", type,
                     "param", param, "code", code);
}

static json_t *anthropic_error(int status, const char *message, const char *param) {
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 413 ? "request_too_large"
                       : status == 429 ? "rate_limit_error"
                       : status == 503 ? "overloaded_error"
                       : status >= 500 ? "api_error"
                                       : "invalid_request_error";
    /* This code makes a client send the whole conversation again, without the field. */
    bool is_thread = status == 400 && param && strcmp(param, "thread") == 0;
    json_t *details =
        is_thread ? json_pack("{s:s}", "error_code", "thread_unsupported_request") : NULL;
    return json_pack("{s:s, s:{s:s, s:s, s:o*}}", "type", "error", "error", "type", type, "message",
                     message, "details", details);
}

static json_t *ollama_error(int status, const char *message, const char *param) {
    (void)status;
    (void)param;
    return json_pack("{s:s}", "error", message);
}

json_t *api_error(enum api api, int status, const char *message, const char *param) {
    static error_fn *const errors[API_COUNT] = {
        [API_OPENAI] = openai_error,
        [API_ANTHROPIC] = anthropic_error,
        [API_OLLAMA] = ollama_error,
    };
    return errors[api](status, message, param);
}
