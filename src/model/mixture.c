/* mixture.c - which number format each tensor of a file gets. */
#include "model/mixture.h"

enum rule {
    RULE_PLAIN,  /* every tensor the base type */
    RULE_HEAD,   /* only the head gets more bits */
    RULE_SMALL,  /* _S: a few more tensors at the front */
    RULE_MEDIUM, /* _M: half of the value and down projections Q6_K */
    RULE_2,      /* Q2_K: value, output and down projections get more */
    RULE_2_S,    /* Q2_K_S: the down projections at the front get more */
    RULE_3_M,    /* Q3_K_M: as Q2_K, with Q4_K and a few Q5_K */
    RULE_3_L,    /* Q3_K_L: with Q5_K */
};

struct mixture {
    const char *name;
    enum dtype base;
    enum rule rule;
    uint32_t file_type;
};

/* clang-format off */
static const struct mixture mixtures[] = {
    {"F32",    DT_F32,  RULE_PLAIN,   0},
    {"F16",    DT_F16,  RULE_PLAIN,   1},
    {"BF16",   DT_BF16, RULE_PLAIN,  32},
    {"Q8_0",   DT_Q8_0, RULE_PLAIN,   7},
    {"Q6_K",   DT_Q6_K, RULE_HEAD,   18},
    {"Q5_K_M", DT_Q5_K, RULE_MEDIUM, 17},
    {"Q5_K_S", DT_Q5_K, RULE_HEAD,   16},
    {"Q4_K_M", DT_Q4_K, RULE_MEDIUM, 15},
    {"Q4_K_S", DT_Q4_K, RULE_SMALL,  14},
    {"Q3_K_L", DT_Q3_K, RULE_3_L,    13},
    {"Q3_K_M", DT_Q3_K, RULE_3_M,    12},
    {"Q3_K_S", DT_Q3_K, RULE_HEAD,   11},
    {"Q2_K",   DT_Q2_K, RULE_2,      10},
    {"Q2_K_S", DT_Q2_K, RULE_2_S,    21},
    {"Q5_1",   DT_Q5_1, RULE_HEAD,    9},
    {"Q5_0",   DT_Q5_0, RULE_HEAD,    8},
    {"Q4_1",   DT_Q4_1, RULE_HEAD,    3},
    {"Q4_0",   DT_Q4_0, RULE_HEAD,    2},
    /* Only read: for synthetic models. */
    {"IQ1_S",   DT_IQ1_S,   RULE_HEAD, 24},
    {"IQ1_M",   DT_IQ1_M,   RULE_HEAD, 31},
    {"IQ2_XXS", DT_IQ2_XXS, RULE_HEAD, 19},
    {"IQ2_XS",  DT_IQ2_XS,  RULE_HEAD, 20},
    {"IQ2_S",   DT_IQ2_S,   RULE_HEAD, 28},
    {"IQ3_XXS", DT_IQ3_XXS, RULE_HEAD, 23},
    {"IQ3_S",   DT_IQ3_S,   RULE_HEAD, 26},
};
/* clang-format on */

/* What llama-quantize takes for the _M of a format. */
static const char *const without_size[][2] = {
    {"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}};

const struct mixture *mixture_find(const char *name) {
    for (size_t i = 0; i < sizeof without_size / sizeof *without_size; i++)
        if (str_is_caseless(str_of(name), without_size[i][0]))
            name = without_size[i][1];
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        if (str_is_caseless(str_of(name), mixtures[i].name))
            return &mixtures[i];
    return NULL;
}

const char *mixture_name(const struct mixture *m) {
    return m->name;
}

const char *mixture_names(void) {
    return "F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q4_K_M Q4_K_S Q3_K_L Q3_K_M Q3_K_S Q2_K Q2_K_S "
           "Q5_1 Q5_0 Q4_1 Q4_0";
}

const char *mixture_read_names(void) {
    return "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S";
}

bool mixture_is_written(const struct mixture *m) {
    return dtype_info(m->base)->encode != NULL;
}

uint32_t mixture_file_type(const struct mixture *m) {
    return m->file_type;
}

const struct mixture *mixture_of_file_type(uint32_t file_type) {
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        if (mixtures[i].file_type == file_type)
            return &mixtures[i];
    return NULL;
}

bool mixture_is_quantized(const struct mixture *m) {
    return m->base != DT_F32 && m->base != DT_F16 && m->base != DT_BF16;
}

bool block_index(struct str name, uint32_t *index) {
    if (!str_starts(name, "blk."))
        return false;
    uint32_t n = 0;
    size_t i = 4;
    for (; i < name.len && name.at[i] >= '0' && name.at[i] <= '9' && i < 10; i++)
        n = n * 10 + (uint32_t)(name.at[i] - '0');
    if (i == 4 || i >= name.len || name.at[i] != '.')
        return false;
    *index = n;
    return true;
}

/* "blk.3.attn_v.weight" is "attn_v.weight" of its block. */
static bool is_part(struct str name, const char *part) {
    uint32_t block;
    size_t n = strlen(part);
    return block_index(name, &block) && str_ends(name, part) && name.at[name.len - n - 1] == '.';
}

bool mixture_counts_as_value(struct str name) {
    return is_part(name, "attn_v.weight") || is_part(name, "attn_qkv.weight");
}

bool mixture_keeps(struct str name, uint32_t n_dims, const uint64_t *dims) {
    bool is_vector = n_dims < 2 || (dims[1] == 1 && (n_dims < 3 || dims[2] == 1));
    return is_vector || !str_ends(name, ".weight") || str_contains(name, "_norm.weight") ||
           str_contains(name, "ssm_conv1d") || str_contains(name, "ffn_gate_inp");
}

/* The first and last eighth of the layers and every third between. */
static bool gets_more_bits(uint32_t i, uint32_t n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* Attention values: few rows where query heads share them, and every head reads them. */
static enum dtype value_type(const struct mixture *m, const struct mixture_file *file,
                             uint32_t index) {
    switch (m->rule) {
    case RULE_MEDIUM:
        return gets_more_bits(index, file->n_values) ? DT_Q6_K : m->base;
    case RULE_SMALL:
        return index < 4 ? DT_Q5_K : m->base;
    case RULE_2:
        return file->gqa >= 4 ? DT_Q4_K : DT_Q3_K;
    case RULE_2_S:
        return file->gqa >= 4 ? DT_Q4_K : m->base;
    case RULE_3_M:
        return index < 2 ? DT_Q5_K : DT_Q4_K;
    case RULE_3_L:
        return DT_Q5_K;
    default:
        return m->base;
    }
}

static enum dtype down_type(const struct mixture *m, uint32_t layer, uint32_t n_layers) {
    switch (m->rule) {
    case RULE_MEDIUM:
        return gets_more_bits(layer, n_layers) ? DT_Q6_K : m->base;
    case RULE_SMALL:
        return layer < n_layers / 8 ? DT_Q5_K : m->base;
    case RULE_2:
        return DT_Q3_K;
    case RULE_2_S:
        return layer < n_layers / 8 ? DT_Q4_K : m->base;
    case RULE_3_M:
        return layer < n_layers / 16 ? DT_Q5_K : DT_Q4_K;
    case RULE_3_L:
        return DT_Q5_K;
    default:
        return m->base;
    }
}

static enum dtype attention_out_type(const struct mixture *m) {
    return m->rule == RULE_2     ? DT_Q3_K
           : m->rule == RULE_3_M ? DT_Q4_K
           : m->rule == RULE_3_L ? DT_Q5_K
                                 : m->base;
}

static enum dtype wanted_type(const struct mixture *m, const struct mixture_file *file,
                              struct str name, uint32_t value_index) {
    bool is_lm_head =
        str_is(name, "output.weight") || (str_is(name, "token_embd.weight") && !file->has_output);
    if (m->rule == RULE_PLAIN)
        return m->base;
    if (is_lm_head)
        return DT_Q6_K;
    uint32_t layer = 0;
    block_index(name, &layer);
    if (mixture_counts_as_value(name))
        return value_type(m, file, value_index);
    if (is_part(name, "ffn_down.weight") || is_part(name, "ffn_down_exps.weight") ||
        is_part(name, "ffn_down_shexp.weight"))
        return down_type(m, layer, file->n_layers);
    if (is_part(name, "attn_output.weight"))
        return attention_out_type(m);
    return m->base;
}

/* A row that is not a multiple of a type's block gets the next type that fits. */
static enum dtype fit_row(enum dtype type, uint64_t row_values) {
    if (row_values % 256 != 0) {
        type = type == DT_Q4_K ? DT_Q5_0 : type == DT_Q5_K ? DT_Q5_1 : type;
        type = type == DT_Q6_K ? DT_Q8_0 : type;
        type = dtype_info(type)->block_values == 256 ? DT_Q4_0 : type; /* fewer bits than Q4_K */
    }
    return row_values % dtype_info(type)->block_values == 0 ? type : DT_F16;
}

enum dtype mixture_type(const struct mixture *m, const struct mixture_file *file, struct str name,
                        uint64_t row_values, uint32_t value_index) {
    return fit_row(wanted_type(m, file, name, value_index), row_values);
}
