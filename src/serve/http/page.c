/* page.c - the chat page: the files of src/serve/http/page, embedded in the program.
 *
 * The page is not secret and needs no API key; its requests do. */
#include <stdio.h>

#include "serve/http/internal.h"

/* .incbin works with every assembler. Paths are relative to the repository's root, where make runs.
 */
#define EMBED(name, path)                                                                          \
    __asm__(".section .rodata\n"                                                                   \
            ".globl page_" #name "\n.globl page_" #name "_end\n"                                   \
            "page_" #name ":\n.incbin \"" path "\"\npage_" #name "_end:\n.byte 0\n.previous");     \
    __attribute__((visibility("hidden"))) extern const char page_##name[], page_##name##_end[]

EMBED(html, "src/serve/http/page/index.html");
EMBED(style, "src/serve/http/page/style.css");
EMBED(app, "src/serve/http/page/app.js");
EMBED(markdown, "src/serve/http/page/markdown.js");
EMBED(math, "src/serve/http/page/math.js");
EMBED(parts, "src/serve/http/page/parts.js");
EMBED(plan, "src/serve/http/page/plan.js");
EMBED(icon, "src/serve/http/page/icon.svg");

struct file {
    const char *path, *type, *begin, *end;
};

static const struct file files[] = {
    {"/", "text/html; charset=utf-8", page_html, page_html_end},
    {"/style.css", "text/css; charset=utf-8", page_style, page_style_end},
    {"/app.js", "text/javascript; charset=utf-8", page_app, page_app_end},
    {"/markdown.js", "text/javascript; charset=utf-8", page_markdown, page_markdown_end},
    {"/math.js", "text/javascript; charset=utf-8", page_math, page_math_end},
    {"/parts.js", "text/javascript; charset=utf-8", page_parts, page_parts_end},
    {"/plan.js", "text/javascript; charset=utf-8", page_plan, page_plan_end},
    {"/icon.svg", "image/svg+xml", page_icon, page_icon_end},
};

/* The page's links are relative: "/llm" without its slash would lose the prefix. */
static bool redirect_to_folder(struct exchange *x) {
    const char *last = strrchr(x->path, '/');
    if (last && last[1] == 0)
        return false;
    if (asprintf(&x->location, "./%s/", last ? last + 1 : "") < 0) {
        x->location = NULL;
        exchange_refuse(x, 500, NULL, "out of memory for a redirection");
        return true;
    }
    exchange_reply_body(x, 308, "text/plain", STR(""));
    return true;
}

void page_file(struct exchange *x) {
    const char *path = x->route->path;
    if (strcmp(path, "/") == 0 && redirect_to_folder(x))
        return;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const struct file *f = &files[i];
        if (strcmp(path, f->path) != 0)
            continue;
        x->has_page_policy = true;
        exchange_reply_body(x, 200, f->type, (struct str){f->begin, (size_t)(f->end - f->begin)});
    }
}
