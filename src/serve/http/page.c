/* page.c - the files of page/, which are part of the program, and their paths.
 *
 * They come with a policy that lets a browser load and ask nothing but this server: no script or
 * style in the page's text, nothing from elsewhere, no frame around it. */
#include "serve/http/exchange.h"

/* The bytes of a file of page/, from its symbol to the symbol's end. */
#define EMBED(symbol, file)                                                                        \
    extern const char symbol[], symbol##_end[];                                                    \
    __asm__(".pushsection .rodata\n.global " #symbol "\n.global " #symbol "_end\n" #symbol         \
            ":\n.incbin \"src/serve/http/page/" file "\"\n" #symbol                                \
            "_end:\n.byte 0\n.popsection\n")

EMBED(page_index_html, "index.html");
EMBED(page_css, "page.css");

static void reply(struct exchange *x, const char *type, const char *at, const char *end) {
    x->has_page_policy = true;
    exchange_reply_text(x, 200, type, (struct str){at, (size_t)(end - at)});
}

void page_index(struct exchange *x) {
    reply(x, "text/html; charset=utf-8", page_index_html, page_index_html_end);
}

void page_style(struct exchange *x) {
    reply(x, "text/css; charset=utf-8", page_css, page_css_end);
}
