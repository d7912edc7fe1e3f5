/* devices.c - the verb devices: what there is to run models on. */
#include <jansson.h>
#include <stdio.h>

#include "backend/backend.h"
#include "cmd/cmd.h"
#include "cmd/opts.h"

static void add_devices(const struct backend_kind *kind, json_t *list, bool as_json) {
    char line[256];
    for (int i = 0; kind->device_line(i, line, sizeof line); i++) {
        if (!as_json)
            puts(line);
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:s}", "backend", kind->name, "device", i, "about", line));
    }
}

int cmd_devices(int argc, char **argv) {
    bool as_json = false;
    struct opt opts[] = {{"--json", 0, OPT_FLAG, &as_json, NULL, "print a JSON array"}};
    const struct usage usage = {
        .verb = "devices",
        .synopsis = "[--json]",
        .about = "Lists the devices of every backend, the default first. The other verbs choose "
                 "one with\n"
                 "--backend and --device.",
        .example = "sluice devices",
        .opts = opts,
        .n_opts = 1,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit != OPTS_GO_ON)
        return exit;
    json_t *list = json_array();
    const struct backend_kind *first = backend_find("auto");
    if (first)
        add_devices(first, list, as_json);
    for (int k = 0; backend_at(k); k++)
        if (backend_at(k) != first)
            add_devices(backend_at(k), list, as_json);
    if (as_json) {
        json_dumpf(list, stdout, JSON_INDENT(1));
        putchar('\n');
    }
    json_decref(list);
    return 0;
}
