/* tokenizer_keys.h - a folder's tokenizer as the keys of a GGUF file. */
#ifndef TEXT_TOKENIZER_KEYS_H
#define TEXT_TOKENIZER_KEYS_H

#include "file/folder.h"
#include "file/gguf_write.h"

/* Writes tokenizer.ggml.* for a vocabulary of `rows` ids, those without a token as padding, and
 * the chat template. A folder without tokenizer.json gives the model "no_vocab". */
int tokenizer_write_keys(struct gguf_writer *w, const struct folder *f, uint32_t rows,
                         struct err *err);

#endif
