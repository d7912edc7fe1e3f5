/* test_quant.c - number formats: decode against golden blocks and against the formulas written out
 * once more, quantizers against bounds and against simpler ones, activations, the table. */
#include <ctype.h>
#include <float.h>

#include "formats.h"
#include "quant/bf16.h"
#include "quant/encode.h"
#include "quant/f16.h"
#include "quant/quant.h"
#include "test.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Numbers that are the same everywhere: integers and exact f32 arithmetic. */
static uint64_t seed;

static uint32_t random_bits(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float uniform(void) { /* -1..1 */
    return (float)(int32_t)(random_bits() >> 7) * 0x1p-24f - 1.0f;
}

static float gaussian(void) {
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += uniform();
    return sum * 0.5f;
}

static float heavy(int i) {
    (void)i;
    float u = uniform();
    return gaussian() / (u * u + 0.05f);
}

/* clang-format off */
static float spread_even(int i)  { (void)i; return uniform(); }
static float spread_bell(int i)  { (void)i; return 0.02f * gaussian(); }
static float positive(int i)     { (void)i; float g = gaussian(); return g < 0 ? -g : g; }
static float negative(int i)     { (void)i; float g = gaussian(); return g < 0 ? g : -g; }
static float lifted(int i)       { (void)i; return 10.0f + uniform(); }
static float constant_up(int i)  { (void)i; return 0.37f; }
static float constant_down(int i){ (void)i; return -0.37f; }
static float zeros(int i)        { (void)i; return 0; }
static float minus_zeros(int i)  { (void)i; return -0.0f; }
static float outlier(int i)      { return i % 256 == 77 ? 30.0f : 0.1f * gaussian(); }
static float lone(int i)         { return i % 256 == 200 ? -3.0f : 0; }
static float ladder(int i)       { return gaussian() * (float)(1 << (i / 32 % 8)); }
static float small(int i)        { (void)i; return 1e-6f * gaussian(); }
static float tiny(int i)         { (void)i; return 1e-7f * gaussian(); }
static float vanishing(int i)    { (void)i; return 1e-30f * gaussian(); }
static float subnormal(int i)    { (void)i; return 1e-42f * gaussian(); }
static float big(int i)          { (void)i; return 1e5f * uniform(); }
static float huge_bell(int i)    { (void)i; return 1e20f * gaussian(); }
static float limits(int i)       { return i % 3 ? FLT_MAX : -FLT_MAX; }
static float abyss(int i)        { return i % 32 < 31 ? FLT_MAX : 1e-45f; }
static float mixed_sizes(int i)  { return i / 32 % 2 ? 1e-35f * gaussian() : 1e30f * gaussian(); }
/* clang-format on */

/* The `is_ordinary` ones are within what every type can express, so errors are bounded. */
static const struct shape {
    const char *name;
    float (*at)(int i);
    bool is_ordinary;
} shapes[] = {
    {"even", spread_even, true},
    {"bell", spread_bell, true},
    {"heavy", heavy, true},
    {"positive", positive, true},
    {"negative", negative, true},
    {"lifted", lifted, true},
    {"constant up", constant_up, true},
    {"constant down", constant_down, true},
    {"zeros", zeros, true},
    {"minus zeros", minus_zeros, true},
    {"outlier", outlier, true},
    {"lone", lone, true},
    {"ladder", ladder, true},
    {"small", small, true},
    {"tiny", tiny, true},
    {"vanishing", vanishing, true},
    {"subnormal", subnormal, true},
    {"big", big, false},
    {"huge", huge_bell, false},
    {"limits", limits, false},
    {"abyss", abyss, false},
    {"mixed sizes", mixed_sizes, false},
};

static void fill(float *x, int n, const struct shape *shape) {
    seed = 2024;
    for (int i = 0; i < n; i++)
        x[i] = shape->at(i);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* clang-format off */
static const struct { uint32_t id; const char *name; uint32_t values, bytes; } known[] = {
    {0, "F32", 1, 4}, {1, "F16", 1, 2}, {2, "Q4_0", 32, 18}, {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22}, {7, "Q5_1", 32, 24}, {8, "Q8_0", 32, 34}, {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84}, {11, "Q3_K", 256, 110}, {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210}, {15, "Q8_K", 256, 292}, {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18}, {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1}, {25, "I16", 1, 2}, {26, "I32", 1, 4},
    {27, "I64", 1, 8}, {28, "F64", 1, 8}, {29, "IQ1_M", 256, 56}, {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54}, {35, "TQ2_0", 256, 66}, {39, "MXFP4", 32, 17}, {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18}, {42, "Q2_0", 64, 18},
};
/* clang-format on */

TEST(quant_table_has_every_type) {
    int found = 0;
    for (uint32_t id = 0; id < 1000; id++)
        found += dtype_info(id) != NULL;
    EXPECT_INT(found, COUNT(known));
    for (int i = 0; i < COUNT(known); i++) {
        const struct dtype_info *info = dtype_info(known[i].id);
        if (!info) {
            test_fail(__FILE__, __LINE__, "%s is missing", known[i].name);
            continue;
        }
        EXPECT_STR(info->name, known[i].name);
        EXPECT_STR(dtype_name(known[i].id), known[i].name);
        EXPECT_INT(info->block_values, known[i].values);
        EXPECT_INT(info->block_bytes, known[i].bytes);
        EXPECT(!info->encode || info->decode);
    }
}

TEST(quant_table_has_holes) {
    static const uint32_t holes[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, DT_COUNT, UINT32_MAX};
    for (int i = 0; i < COUNT(holes); i++) {
        EXPECT(dtype_info(holes[i]) == NULL);
        EXPECT_STR(dtype_name(holes[i]), "unknown");
        uint64_t bytes;
        EXPECT(!dtype_bytes((enum dtype)holes[i], 0, &bytes));
    }
}

TEST(quant_types_are_found_by_name) {
    enum dtype type;
    for (int i = 0; i < COUNT(known); i++) {
        char low[16] = {0};
        for (int k = 0; known[i].name[k]; k++)
            low[k] = (char)tolower(known[i].name[k]);
        EXPECT(dtype_find(str_of(known[i].name), &type) && type == (enum dtype)known[i].id);
        EXPECT(dtype_find(str_of(low), &type) && type == (enum dtype)known[i].id);
    }
    static const struct str wrong[] = {
        {"", 0}, {"Q4", 2}, {"Q4_K_M", 6}, {"Q4_K\0", 5}, {"\0", 1}, {" Q4_K", 5}, {"unknown", 7},
    };
    for (int i = 0; i < COUNT(wrong); i++)
        EXPECT(!dtype_find(wrong[i], &type));
    EXPECT(dtype_find((struct str){"q4_kx", 4}, &type) && type == DT_Q4_K); /* not terminated */
}

TEST(quant_bytes_are_checked) {
    static const struct {
        enum dtype type;
        uint64_t n;
        bool is_fine;
        uint64_t bytes;
    } cases[] = {
        {DT_F32, 0, true, 0},
        {DT_F32, 3, true, 12},
        {DT_Q8_0, 64, true, 68},
        {DT_Q8_0, 33, false, 0},
        {DT_Q4_K, 512, true, 288},
        {DT_Q4_K, 32, false, 0},
        {DT_Q4_K, 255, false, 0},
        {DT_F32, UINT64_MAX / 4, true, UINT64_MAX - 3},
        {DT_F32, UINT64_MAX / 4 + 1, false, 0},
        {DT_Q8_1, UINT64_MAX - 31, false, 0},
        {DT_Q4_0, UINT64_MAX - 31, true, (UINT64_MAX - 31) / 32 * 18},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        uint64_t bytes = 0;
        EXPECT_INT(dtype_bytes(cases[i].type, cases[i].n, &bytes), cases[i].is_fine);
        if (cases[i].is_fine)
            EXPECT(bytes == cases[i].bytes);
    }
}

/* ---- fp16 ------------------------------------------------------------------------------------ */

static bool same(float a, float b) {
    return (isnan(a) && isnan(b)) || f32_bits(a) == f32_bits(b);
}

TEST(quant_f16_decodes_all_patterns) {
    int wrong = 0;
    for (int h = 0; h < 65536; h++)
        wrong += !same(f16_to_f32((uint16_t)h), (float)half_value(h));
    EXPECT_INT(wrong, 0);
}

TEST(quant_f16_round_trips_all_patterns) {
    int wrong = 0;
    for (int h = 0; h < 65536; h++) {
        uint16_t back = f16_from_f32(f16_to_f32((uint16_t)h));
        wrong += isnan(half_value(h)) ? !isnan(half_value(back)) : back != h;
    }
    EXPECT_INT(wrong, 0);
}

/* Between every two neighbours: the middle goes to the even one, its neighbours to the nearest. */
TEST(quant_f16_rounds_half_to_even) {
    int wrong = 0;
    for (int h = 0; h < 0x7bff; h++) {
        float middle = (float)((half_value(h) + half_value(h + 1)) / 2);
        int even = h + (h & 1);
        wrong += f16_from_f32(middle) != even;
        wrong += f16_from_f32(-middle) != (even | 0x8000);
        wrong += f16_from_f32(nextafterf(middle, 0)) != h;
        wrong += f16_from_f32(nextafterf(middle, INFINITY)) != h + 1;
    }
    EXPECT_INT(wrong, 0);
}

TEST(quant_f16_at_the_ends) {
    static const struct {
        float x;
        int plain, clamped;
    } cases[] = {
        {65504, 0x7bff, 0x7bff},
        {65519.996f, 0x7bff, 0x7bff},
        {65520, 0x7c00, 0x7bff},
        {-65520, 0xfc00, 0xfbff},
        {1e30f, 0x7c00, 0x7bff},
        {FLT_MAX, 0x7c00, 0x7bff},
        {-FLT_MAX, 0xfc00, 0xfbff},
        {0x1p-25f, 0, 0},
        {0x1.000002p-25f, 1, 1},
        {-0x1p-25f, 0x8000, 0x8000},
        {1e-45f, 0, 0},
        {-0.0f, 0x8000, 0x8000},
        {0x1.ffcp-15f, 0x400, 0x400},
        {1, 0x3c00, 0x3c00},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        EXPECT_INT(f16_from_f32(cases[i].x), cases[i].plain);
        EXPECT_INT(f16_from_f32_clamped(cases[i].x), cases[i].clamped);
    }
    EXPECT(isnan(half_value(f16_from_f32(NAN))));
    EXPECT(isnan(half_value(f16_from_f32(f32_from_bits(0x7f800001)))));
    EXPECT(isnan(half_value(f16_from_f32_clamped(-NAN))));
}

TEST(quant_bf16_converts) {
    int wrong = 0;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = f32_from_bits(b << 16);
        wrong += !same(bf16_to_f32((uint16_t)b), x);
        uint16_t back = bf16_from_f32(x);
        wrong += isnan(x) ? !isnan(bf16_to_f32(back)) : back != b;
        if ((b & 0x7fff) < 0x7f80) { /* ties and their neighbours */
            wrong += bf16_from_f32(f32_from_bits(b << 16 | 0x8000)) != b + (b & 1);
            wrong += bf16_from_f32(f32_from_bits(b << 16 | 0x7fff)) != b;
            wrong += bf16_from_f32(f32_from_bits(b << 16 | 0x8001)) != b + 1;
        }
    }
    EXPECT_INT(wrong, 0);
    EXPECT(bf16_to_f32(0x3fc0) == 1.5f && bf16_to_f32(0xbf80) == -1.0f);
    EXPECT_INT(bf16_from_f32(FLT_MAX), 0x7f80);
    EXPECT_INT(bf16_from_f32_clamped(FLT_MAX), 0x7f7f);
    EXPECT_INT(bf16_from_f32_clamped(-FLT_MAX), 0xff7f);
    EXPECT_INT(bf16_from_f32_clamped(INFINITY), 0x7f80);
    EXPECT(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7f800001)))));
}

/* ---- golden blocks --------------------------------------------------------------------------- */

/* Byte k is 37k + 11; then d = 0.5 at d_at and m or dmin = 0.25 at m_at. */
static const struct golden {
    enum dtype type;
    int d_at, m_at;
    struct {
        int i;
        double y;
    } some[11];
    double sum;
} goldens[] = {
    /* clang-format off */
    {DT_Q4_0, 0, NO_FP16, {{0, -1.5}, {1, 1}, {2, 3.5}, {15, -4}, {16, -1.5}, {17, -0.5}, {31, 0}}, -10.5},
    {DT_Q4_1, 0, 2, {{0, 7.75}, {1, 2.25}, {2, 4.75}, {15, 5.25}, {16, 4.75}, {17, 6.25}, {31, 6.25}}, 130.5},
    {DT_Q5_0, 0, NO_FP16, {{0, 4.5}, {1, -1}, {2, 1.5}, {15, -6}, {16, 7}, {17, 0}, {31, 0.5}}, 7.5},
    {DT_Q5_1, 0, 2, {{0, 9.75}, {1, 12.25}, {2, 14.75}, {15, 15.25}, {16, 9.75}, {17, 2.75}, {31, 2.75}}, 260.5},
    {DT_Q8_0, 0, NO_FP16, {{0, 42.5}, {1, 61}, {2, -48.5}, {15, -64}, {16, -45.5}, {17, -27}, {31, -24}}, -88},
    {DT_IQ4_NL, 0, NO_FP16, {{0, -17.5}, {1, 12.5}, {2, 56.5}, {15, -63.5}, {16, -17.5}, {17, -5}, {31, 0.5}}, -128.5},
    {DT_Q4_K, 0, 2, {{0, 157.75}, {1, -12.75}, {31, 80.25}, {32, 4}, {63, 20}, {64, 210.25}, {127, 40.5}, {128, 211.5}, {129, -3}, {200, 69.25}, {255, 24.25}}, 27220},
    {DT_Q5_K, 0, 2, {{0, 405.75}, {1, -12.75}, {31, 80.25}, {32, 56}, {63, 40}, {64, 210.25}, {127, -1.5}, {128, 523.5}, {129, -3}, {200, 69.25}, {255, 54.25}}, 58108},
    {DT_Q6_K, 208, NO_FP16, {{0, -715.5}, {1, 848}, {31, -48}, {32, 115.5}, {63, -290}, {64, -1520}, {127, 750}, {128, -175.5}, {129, 208}, {200, 544.5}, {255, -30}}, 2306},
    {DT_Q2_K, 80, 82, {{0, 16.5}, {1, 0}, {31, -0.75}, {32, 3.75}, {63, 3.25}, {64, 5.25}, {127, 21}, {128, 3.75}, {129, -0.75}, {200, 4}, {255, 2.25}}, 1029.5},
    {DT_Q3_K, 108, NO_FP16, {{0, 40.5}, {1, -54}, {31, 32}, {32, -11}, {63, 5}, {64, 17}, {127, 36}, {128, 1}, {129, 0}, {200, 12.5}, {255, 21}}, 479},
    /* clang-format on */
};

static void golden_block(const struct golden *g, uint8_t *b) {
    for (int k = 0; k < 292; k++)
        b[k] = (uint8_t)(37 * k + 11);
    format_put_half(b, g->d_at, 0x3800);
    format_put_half(b, g->m_at, 0x3400);
}

TEST(quant_golden_blocks) {
    for (int k = 0; k < COUNT(goldens); k++) {
        const struct golden *g = &goldens[k];
        const struct dtype_info *info = dtype_info(g->type);
        uint8_t b[292];
        float y[256];
        double sum = 0;
        golden_block(g, b);
        info->decode(b, y, info->block_values);
        for (uint32_t i = 0; i < info->block_values; i++)
            sum += y[i];
        for (int i = 0; i < COUNT(g->some); i++) {
            if (i > 0 && g->some[i].i == 0)
                break;
            if (y[g->some[i].i] != g->some[i].y)
                test_fail(__FILE__, __LINE__, "%s[%d] is %g, expected %g", info->name, g->some[i].i,
                          y[g->some[i].i], g->some[i].y);
        }
        EXPECT_NEAR(sum, g->sum, 0);
    }
}

/* Blocks in hex, with values at 0, 1, 15, 16, 17, 31 and the last two. */
static const struct {
    enum dtype type;
    const char *hex;
    double y[8], sum;
} hex_goldens[] = {
    {DT_IQ4_XS,
     "6622b8abeeab14cef599cc052535d5cec0ad06783f60ec83760457a17c472a49ed10c2fa0a67ce0d8f0226478576"
     "2462c423399232b39168ce358d21b527970bb48a4200a5627b0c90b818268101caff5536e4307fa901a76df710c0"
     "4edc083cbdb5404808b9586fbf8a6343304464f943287f2d2133cee5d95535cc78861fd80e7fa01dd0a17464",
     {7.87307739, -2.92428589, 14.6214294, -25.4187927, -2.92428589, -0.224945068, -1.49963379,
      -3.29919434},
     -822.986526},
    {DT_MXFP4,
     "7a97c6a0adc1367e7e3976aa6b833bad34",
     {0.1875, 0.125, 0.0625, -0.015625, -0.0625, 0.046875, -0.03125, 0.046875},
     0.71875},
};

TEST(quant_hex_golden_blocks) {
    for (int k = 0; k < COUNT(hex_goldens); k++) {
        const struct dtype_info *info = dtype_info(hex_goldens[k].type);
        uint8_t b[136];
        float y[256];
        double sum = 0;
        EXPECT_INT(strlen(hex_goldens[k].hex), 2 * info->block_bytes);
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            char two[3] = {hex_goldens[k].hex[2 * i], hex_goldens[k].hex[2 * i + 1], 0};
            b[i] = (uint8_t)strtol(two, NULL, 16);
        }
        info->decode(b, y, info->block_values);
        const int at[8] = {
            0, 1, 15, 16, 17, 31, (int)info->block_values - 2, (int)info->block_values - 1};
        for (int i = 0; i < 8; i++)
            EXPECT_NEAR(y[at[i]], hex_goldens[k].y[i], 1e-8 + 1e-7 * fabs(hex_goldens[k].y[i]));
        for (uint32_t i = 0; i < info->block_values; i++)
            sum += y[i];
        EXPECT_NEAR(sum, hex_goldens[k].sum, 1e-5);
    }
}

/* ---- the formulas once more ------------------------------------------------------------------ */

/* Compares one block, at an odd address, with the formulas. */
static void expect_decoded(enum dtype type, const uint8_t *block) {
    const struct dtype_info *info = dtype_info(type);
    uint8_t odd[293] __attribute__((aligned(16)));
    float y[256];
    memcpy(odd + 1, block, info->block_bytes);
    info->decode(odd + 1, y, info->block_values);
    for (int i = 0; i < (int)info->block_values; i++) {
        struct element e = format_of(type)->element(block, i);
        double exact = e.scale * e.number - e.minimum;
        double slack = 0x1p-23 * (fabs(e.scale * e.number) + fabs(e.minimum));
        bool is_fine =
            isfinite((float)exact) ? fabs(y[i] - exact) <= slack : same(y[i], (float)exact);
        if (!is_fine)
            test_fail(__FILE__, __LINE__, "%s[%d] is %.9g, expected %.9g", info->name, i, y[i],
                      exact);
    }
}

TEST(quant_every_block_type_has_a_formula) {
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    if (!format_of(DT_##NAME))                                                                     \
        test_fail(__FILE__, __LINE__, "tests/formats.h has no " #NAME);
#include "quant/types.def"
}

TEST(quant_decodes_every_byte_value_everywhere) {
    for (int k = 0; k < COUNT(formats); k++) {
        for (int v = 0; v < 256; v++) {
            uint8_t b[292];
            memset(b, v, sizeof b);
            format_put_half(b, formats[k].d_at, 0x2e66);
            format_put_half(b, formats[k].m_at, 0x2cd1);
            expect_decoded(formats[k].type, b);
        }
    }
}

TEST(quant_decodes_random_blocks) {
    /* Smallest and largest subnormal, normal, zero, infinity, NaN, and their negatives. */
    static const uint16_t special[] = {0,      1,      0x3ff,  0x400,  0x7bff, 0x7c00,
                                       0x7e01, 0x8000, 0x8001, 0xfbff, 0xfc00, 0x3c00};
    seed = 5;
    for (int k = 0; k < COUNT(formats); k++) {
        for (int round = 0; round < 600; round++) {
            uint8_t b[292];
            for (int i = 0; i < COUNT(b); i++)
                b[i] = (uint8_t)random_bits();
            if (round < 144) {
                format_put_half(b, formats[k].d_at, special[round % 12]);
                format_put_half(b, formats[k].m_at, special[round / 12]);
            }
            expect_decoded(formats[k].type, b);
        }
    }
}

TEST(quant_decodes_rows_of_floats) {
    uint8_t odd[2 * 100 + 1];
    float y[100];
    for (int i = 0; i < 100; i++) {
        uint16_t bits = (uint16_t)(653 * i);
        memcpy(odd + 1 + 2 * i, &bits, 2);
    }
    dtype_info(DT_F16)->decode(odd + 1, y, 100);
    for (int i = 0; i < 100; i++)
        EXPECT(same(y[i], (float)half_value(653 * i & 0xffff)));
    dtype_info(DT_BF16)->decode(odd + 1, y, 100);
    for (uint32_t i = 0; i < 100; i++)
        EXPECT(same(y[i], f32_from_bits((653 * i & 0xffff) << 16)));
    dtype_info(DT_F32)->decode(odd + 1, y, 50);
    EXPECT(memcmp(odd + 1, y, 200) == 0);
}

/* ---- grids against gguf-py ------------------------------------------------------------------- */

/* Blocks and their values, bit for bit, as tools/make_grids.py wrote them: of tests/data, or of the
 * folder SLUICE_TEST_GRIDS. */
static void expect_reference(enum dtype type, const char *folder) {
    const struct dtype_info *info = dtype_info(type);
    char path[512];
    size_t n_bytes = 0, value_bytes = 0;
    snprintf(path, sizeof path, "%s/%s.blocks", folder, info->name);
    char *blocks = test_read_file(path, &n_bytes);
    snprintf(path, sizeof path, "%s/%s.values", folder, info->name);
    char *values = test_read_file(path, &value_bytes);
    size_t n = n_bytes / info->block_bytes * info->block_values;
    float *found = calloc(n + 1, sizeof *found);
    EXPECT(n > 0 && n * sizeof *found == value_bytes);
    if (blocks && values && n * sizeof *found == value_bytes) {
        info->decode(blocks, found, n);
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++)
            wrong += memcmp(&found[i], values + i * sizeof *found, sizeof *found) != 0;
        if (wrong)
            test_fail(__FILE__, __LINE__, "%s: %zu of %zu values differ", info->name, wrong, n);
    }
    free(found);
    free(values);
    free(blocks);
}

TEST(quant_grids_match_the_reference) {
    static const enum dtype types[] = {DT_IQ2_XXS, DT_IQ2_XS, DT_IQ2_S, DT_IQ3_XXS,
                                       DT_IQ3_S,   DT_IQ1_S,  DT_IQ1_M};
    const char *folder = getenv("SLUICE_TEST_GRIDS");
    for (int k = 0; k < COUNT(types); k++)
        expect_reference(types[k], folder ? folder : test_data("grids"));
}

/* ---- quantizers ------------------------------------------------------------------------------ */

enum { N = 256 * 40 };
static float x[N], y[N];
static uint8_t coded[N * 4 + 1];

/* The largest error of a value, as a part of its block's largest magnitude; and the absolute error
 * that half scales, of which the smallest is 2^-24, may add. */
static const struct {
    enum dtype type;
    double part, floor;
} encodable[] = {
    {DT_F32, 0, 0},
    {DT_F16, 0x1p-11, 0x1p-25},
    {DT_BF16, 0x1p-8, 0x1p-134},
    {DT_Q8_0, 0.5 / 127 * 1.001 + 0x1p-11, 127 * 0x1p-25}, /* rounds against the f32 scale */
    {DT_Q4_0, 1.0 / 8 * 1.004, 0x1p-24},
    {DT_Q4_1, 1.0 / 15 * 1.01, 0x1p-24},
    {DT_Q5_0, 1.0 / 16 * 1.01, 0x1p-24},
    {DT_Q5_1, 1.0 / 31 * 1.02, 0x1p-24},
    {DT_Q2_K, 0.5, 0x1p-24},
    {DT_Q3_K, 0.25, 0x1p-24},
    {DT_Q4_K, 0.09, 0x1p-24},
    {DT_Q5_K, 0.05, 0x1p-24},
    {DT_Q6_K, 0.02, 0x1p-24},
};

static void encode_and_decode(enum dtype type) {
    const struct dtype_info *info = dtype_info(type);
    memset(coded, 0xa5, sizeof coded);
    info->encode(x, coded + 1, N);
    info->decode(coded + 1, y, N);
}

static double worst_part(int values, double floor) {
    double worst = 0;
    for (int at = 0; at < N; at += values) {
        double top = 0, error = 0;
        for (int i = at; i < at + values; i++) {
            top = fmax(top, fabs(x[i]));
            error = fmax(error, fabs((double)x[i] - y[i]));
        }
        if (error > floor)
            worst = fmax(worst, (error - floor) / top);
    }
    return worst;
}

TEST(quant_errors_are_bounded) {
    for (int s = 0; s < COUNT(shapes); s++) {
        fill(x, N, &shapes[s]);
        for (int k = 0; shapes[s].is_ordinary && k < COUNT(encodable); k++) {
            encode_and_decode(encodable[k].type);
            const struct dtype_info *info = dtype_info(encodable[k].type);
            double worst = worst_part((int)info->block_values, encodable[k].floor);
            if (!(worst <= encodable[k].part))
                test_fail(__FILE__, __LINE__, "%s of %s: error %g of the largest, expected %g",
                          info->name, shapes[s].name, worst, encodable[k].part);
        }
    }
}

/* Whatever finite numbers come in, finite numbers go out. */
TEST(quant_results_are_finite) {
    for (int s = 0; s < COUNT(shapes); s++) {
        fill(x, N, &shapes[s]);
        for (int k = 0; k < COUNT(encodable); k++) {
            encode_and_decode(encodable[k].type);
            for (int i = 0; i < N; i++)
                if (!isfinite(y[i]))
                    test_fail(__FILE__, __LINE__, "%s of %s: [%d] is %g for %g",
                              dtype_name(encodable[k].type), shapes[s].name, i, y[i], x[i]);
        }
    }
}

TEST(quant_huge_values_end_at_the_types_end) {
    static const struct {
        enum dtype type;
        float least;
    } ends[] = {
        {DT_F16, 65504},         {DT_BF16, 3e38f},       {DT_Q8_0, 65504 * 127},
        {DT_Q4_0, 65504 * 7},    {DT_Q4_1, 65504 * 14},  {DT_Q5_0, 65504 * 15},
        {DT_Q5_1, 65504 * 30},   {DT_Q4_K, 65504 * 900}, {DT_Q5_K, 65504 * 1900},
        {DT_Q6_K, 65504 * 3900}, {DT_Q2_K, 65504 * 40},  {DT_Q3_K, 65504 * 120},
    };
    for (int k = 0; k < COUNT(ends); k++) {
        for (int i = 0; i < N; i++)
            x[i] = 3.4e38f;
        encode_and_decode(ends[k].type);
        for (int i = 0; i < N; i++)
            if (!(y[i] >= ends[k].least))
                test_fail(__FILE__, __LINE__, "%s: [%d] is %g, expected at least %g",
                          dtype_name(ends[k].type), i, y[i], ends[k].least);
    }
}

TEST(quant_zeros_stay_zero) {
    memset(x, 0, sizeof x);
    for (int k = 0; k < COUNT(encodable); k++) {
        encode_and_decode(encodable[k].type);
        int wrong = 0;
        for (int i = 0; i < N; i++)
            wrong += f32_bits(y[i]) != 0;
        EXPECT_INT(wrong, 0);
    }
}

/* What a type can express exactly comes back exactly. */
TEST(quant_grid_values_come_back) {
    static const struct {
        enum dtype type;
        int low, high;
    } grids[] = {
        {DT_Q8_0, -127, 127}, {DT_Q4_0, -8, 7},    {DT_Q4_1, -3, 12},
        {DT_Q5_0, -16, 15},   {DT_Q5_1, 5, 36},    {DT_Q3_K, -4, 3},
        {DT_Q6_K, -32, 31},   {DT_F16, -500, 500}, {DT_BF16, -100, 100},
    };
    for (int k = 0; k < COUNT(grids); k++) {
        int span = grids[k].high - grids[k].low + 1;
        for (int i = 0; i < N; i++) /* the ends in every 16, the rest scattered */
            x[i] = 0.25f * (float)(i % 16 == 0   ? grids[k].low
                                   : i % 16 == 7 ? grids[k].high
                                                 : grids[k].low + i * 37 % span);
        encode_and_decode(grids[k].type);
        int wrong = 0;
        for (int i = 0; i < N; i++)
            wrong += x[i] != y[i];
        if (wrong)
            test_fail(__FILE__, __LINE__, "%s: %d values differ", dtype_name(grids[k].type), wrong);
    }
}

TEST(quant_scales_round_away_where_halves_are_coarse) {
    EXPECT_INT(f16_from_scale(0), 0);
    EXPECT_INT(f16_from_scale(-0.0f), 0);
    EXPECT_INT(f16_from_scale(1e-30f), 1);
    EXPECT_INT(f16_from_scale(-1e-30f), 0x8001);
    EXPECT_INT(f16_from_scale(0x1p-24f), 1);
    EXPECT_INT(f16_from_scale(0x1.1p-24f), 2);
    EXPECT_INT(f16_from_scale(0x1.0002p0f), 0x3c00);
    EXPECT_INT(f16_from_scale(-1e10f), 0xfbff);
}

/* ---- search against the plain rule ----------------------------------------------------------- */

static float nearest_half(float v) {
    return f16_to_f32(f16_from_f32(v));
}

/* Q2_K, Q4_K and Q5_K by the plain rule: scale and minimum from the range. Decoded at once. */
static void plain_with_minimum(const float *in, float *out, float codes) {
    int n = codes == 3 ? 16 : 32;
    float scale[16], min[16], top_scale = 0, top_min = 0, most = codes == 3 ? 15 : 63;
    for (int s = 0; s < 256 / n; s++) {
        float lo = 0, hi = in[n * s];
        for (int i = 0; i < n; i++) {
            lo = fminf(lo, in[n * s + i]);
            hi = fmaxf(hi, in[n * s + i]);
        }
        scale[s] = (hi - lo) / codes;
        min[s] = -lo;
        top_scale = fmaxf(top_scale, scale[s]);
        top_min = fmaxf(top_min, min[s]);
    }
    float d = nearest_half(top_scale / most), dmin = nearest_half(top_min / most);
    for (int s = 0; s < 256 / n; s++) {
        float step = d * rintf(scale[s] / d), m = dmin > 0 ? dmin * rintf(min[s] / dmin) : 0;
        for (int i = n * s; i < n * s + n; i++) {
            float q = step > 0 ? rintf((in[i] + m) / step) : 0;
            out[i] = step * fminf(fmaxf(q, 0), codes) - m;
        }
    }
}

/* Q3_K and Q6_K by the plain rule: the extreme value is -codes steps. Decoded at once. */
static void plain_signed(const float *in, float *out, float codes) {
    float scale[16], top = 0, most = codes == 4 ? 32 : 128;
    for (int k = 0; k < 16; k++) {
        float extreme = 0;
        for (int i = 16 * k; i < 16 * k + 16; i++)
            extreme = fabsf(in[i]) > fabsf(extreme) ? in[i] : extreme;
        scale[k] = extreme / -codes;
        top = fabsf(scale[k]) > fabsf(top) ? scale[k] : top;
    }
    float d = nearest_half(top / -most);
    for (int k = 0; k < 16; k++) {
        float step = d * fminf(rintf(scale[k] / d), most - 1);
        for (int i = 16 * k; i < 16 * k + 16; i++)
            out[i] = step * (step != 0 ? fminf(fmaxf(rintf(in[i] / step), -codes), codes - 1) : 0);
    }
}

/* Root mean square error over that of the values; weights 1, or 1 + |x| / rms of the sub-block. */
static double relative_error(const float *out, int sub_block, bool is_weighted) {
    double error = 0, all = 0;
    for (int at = 0; at < N; at += sub_block) {
        double squares = 0;
        for (int i = at; i < at + sub_block; i++)
            squares += (double)x[i] * x[i];
        for (int i = at; i < at + sub_block; i++) {
            double w = is_weighted ? 1 + fabs(x[i]) / sqrt(squares / sub_block) : 1;
            error += w * ((double)x[i] - out[i]) * ((double)x[i] - out[i]);
            all += w * (double)x[i] * x[i];
        }
    }
    return sqrt(error / all);
}

static const struct {
    enum dtype type;
    void (*plain)(const float *in, float *out, float codes);
    float codes;
    int sub_block;
    double bell, even, heavy, positive; /* our error is at most this part of the plain one's */
} searches[] = {
    {DT_Q4_K, plain_with_minimum, 15, 32, 0.91, 0.90, 0.92, 0.94},
    {DT_Q5_K, plain_with_minimum, 31, 32, 0.92, 0.91, 0.93, 0.93},
    {DT_Q2_K, plain_with_minimum, 3, 16, 0.87, 0.81, 0.84, 0.92},
    {DT_Q3_K, plain_signed, 4, 16, 0.94, 0.89, 0.96, 0.93},
    {DT_Q6_K, plain_signed, 32, 16, 0.91, 0.88, 0.96, 0.91},
};

TEST(quant_search_beats_the_plain_rule) {
    static float plain[N];
    for (int k = 0; k < COUNT(searches); k++) {
        const struct {
            struct shape shape;
            double most;
        } cases[] = {
            {{"bell", spread_bell, true}, searches[k].bell},
            {{"even", spread_even, true}, searches[k].even},
            {{"heavy", heavy, true}, searches[k].heavy},
            {{"positive", positive, true}, searches[k].positive},
        };
        for (int c = 0; c < COUNT(cases); c++) {
            fill(x, N, &cases[c].shape);
            encode_and_decode(searches[k].type);
            for (int at = 0; at < N; at += 256)
                searches[k].plain(x + at, plain + at, searches[k].codes);
            for (int weighted = 0; weighted < 2; weighted++) {
                double ours = relative_error(y, searches[k].sub_block, weighted);
                double theirs = relative_error(plain, searches[k].sub_block, weighted);
                if (!(ours <= cases[c].most * theirs))
                    test_fail(__FILE__, __LINE__, "%s of %s: %g of the plain error, expected %g",
                              dtype_name(searches[k].type), cases[c].shape.name, ours / theirs,
                              cases[c].most);
            }
        }
    }
}

/* ---- weights of errors -------------------------------------------------------------------- */

static double weighted_error(const float *w) {
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += w[i] * ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sum;
}

/* With weights, the error that they weigh is less than without, by at least this part. */
static const struct {
    enum dtype type;
    double part;
} weighed[] = {
    {DT_Q4_0, 0.8}, {DT_Q4_1, 0.9},  {DT_Q5_0, 0.85}, {DT_Q5_1, 0.9}, {DT_Q2_K, 0.75},
    {DT_Q3_K, 0.8}, {DT_Q4_K, 0.85}, {DT_Q5_K, 0.9},  {DT_Q6_K, 0.9},
};

TEST(quant_weights_lower_the_weighted_error) {
    static float w[N];
    static uint8_t plain[sizeof coded];
    seed = 77;
    for (int i = 0; i < N; i++) { /* a few columns count a hundred times as much as most */
        w[i] = 0.1f + 0.2f * (uniform() + 1);
        w[i] *= random_bits() % 16 == 0 ? 40 : 1;
    }
    fill(x, N, &(struct shape){"bell", spread_bell, true});
    for (int k = 0; k < COUNT(weighed); k++) {
        const struct dtype_info *info = dtype_info(weighed[k].type);
        size_t bytes = (size_t)N / info->block_values * info->block_bytes;
        encode_and_decode(weighed[k].type);
        double before = weighted_error(w);
        memcpy(plain, coded + 1, bytes);
        info->encode_weighted(x, NULL, coded + 1, N);
        EXPECT(memcmp(plain, coded + 1, bytes) == 0);
        info->encode_weighted(x, w, coded + 1, N);
        info->decode(coded + 1, y, N);
        if (!(weighted_error(w) <= weighed[k].part * before))
            test_fail(__FILE__, __LINE__, "%s: %g of the error without weights, expected %g",
                      info->name, weighted_error(w) / before, weighed[k].part);
    }
    EXPECT(!dtype_info(DT_F16)->encode_weighted);
}

/* Whatever the values, with weights far apart: finite numbers come out. */
TEST(quant_weights_leave_results_finite) {
    static float w[N];
    for (int i = 0; i < N; i++)
        w[i] = i % 7 == 0 ? 1e-4f : i % 31 == 0 ? 1e4f : 1;
    for (int s = 0; s < COUNT(shapes); s++) {
        fill(x, N, &shapes[s]);
        for (int k = 0; k < COUNT(weighed); k++) {
            const struct dtype_info *info = dtype_info(weighed[k].type);
            info->encode_weighted(x, w, coded, N);
            info->decode(coded, y, N);
            for (int i = 0; i < N; i++)
                if (!isfinite(y[i]))
                    test_fail(__FILE__, __LINE__, "%s of %s: [%d] is %g for %g", info->name,
                              shapes[s].name, i, y[i], x[i]);
        }
    }
}

/* ---- the same bits everywhere ---------------------------------------------------------------- */

static uint64_t hash(const uint8_t *bytes, size_t n, uint64_t h) {
    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

/* All shapes, encoded: these sums came out of gcc and clang, with and without optimisation. */
static const struct {
    enum dtype type;
    uint64_t sum;
} fingerprints[] = {
    {DT_Q8_0, 0xdc682a52139bb124u}, {DT_Q4_0, 0x3a3dea39c17a6055u}, {DT_Q4_1, 0xf24a106a243aeb8du},
    {DT_Q5_0, 0x15b9ff138cf42960u}, {DT_Q5_1, 0x4ef296f4b42b26ebu}, {DT_Q4_K, 0xcec8233b496672ffu},
    {DT_Q5_K, 0x9f2dfd7bcd3e6dd1u}, {DT_Q2_K, 0xeaf1691d29a5a5f3u}, {DT_Q3_K, 0x71364aaf55b3f2f0u},
    {DT_Q6_K, 0x80a377bf826f012au},
};

TEST(quant_encodes_the_same_bits_everywhere) {
    for (int k = 0; k < COUNT(fingerprints); k++) {
        const struct dtype_info *info = dtype_info(fingerprints[k].type);
        size_t bytes = (size_t)N / info->block_values * info->block_bytes;
        uint64_t sum = 0xcbf29ce484222325u;
        for (int s = 0; s < COUNT(shapes); s++) {
            fill(x, N, &shapes[s]);
            info->encode(x, coded, N);
            sum = hash(coded, bytes, sum);
        }
        if (sum != fingerprints[k].sum)
            test_fail(__FILE__, __LINE__, "%s: 0x%016llx, expected 0x%016llx", info->name,
                      (unsigned long long)sum, (unsigned long long)fingerprints[k].sum);
    }
}

/* A block's bytes depend on its values alone: not on its address, nor on what stands around it. */
TEST(quant_blocks_are_independent) {
    static uint8_t one_by_one[N * 4 + 2];
    fill(x, N, &shapes[2]);
    for (int k = 0; k < COUNT(encodable); k++) {
        const struct dtype_info *info = dtype_info(encodable[k].type);
        uint32_t blocks = N / info->block_values;
        memset(coded, 0, sizeof coded);
        memset(one_by_one, 0xff, sizeof one_by_one);
        info->encode(x, coded, N);
        for (uint32_t b = blocks; b-- > 0;)
            info->encode(x + b * info->block_values, one_by_one + 1 + b * info->block_bytes,
                         info->block_values);
        EXPECT(memcmp(coded, one_by_one + 1, (size_t)blocks * info->block_bytes) == 0);
        EXPECT_INT(one_by_one[1 + (size_t)blocks * info->block_bytes], 0xff); /* no byte beyond */
        EXPECT_INT(one_by_one[0], 0xff);
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

TEST(quant_act_rounds_half_to_even) {
    static const struct {
        float x;
        int q;
    } cases[] = {
        {127, 127},   {0.5f, 0},     {-0.5f, 0},  {1.5f, 2},  {-1.5f, -2},     {2.5f, 2},
        {-2.5f, -2},  {3.5f, 4},     {0.49f, 0},  {0.51f, 1}, {-126.5f, -126}, {126.5f, 126},
        {-127, -127}, {125.5f, 126}, {1e-40f, 0}, {-0.0f, 0},
    };
    float in[32] = {0}, scale;
    int8_t q[32];
    int32_t sum, expected = 0;
    for (int i = 0; i < COUNT(cases); i++) {
        in[31 - i] = cases[i].x;
        expected += cases[i].q;
    }
    act_quantize(in, 32, 32, q, &scale, &sum);
    EXPECT(scale == 1.0f);
    for (int i = 0; i < COUNT(cases); i++)
        EXPECT_INT(q[31 - i], cases[i].q);
    EXPECT_INT(sum, expected);
}

/* Values [first, first + n), which share a scale. */
static void check_act_group(int first, int n, const int8_t *q, const float *scale,
                            const int32_t *sum) {
    float top = 0;
    for (int i = first; i < first + n; i++)
        top = fmaxf(top, fabsf(x[i]));
    float d = top / 127 < FLT_MIN ? 0 : top / 127;
    for (int g = first / 32; g < (first + n) / 32; g++) {
        int32_t total = 0;
        EXPECT(scale[g] == d);
        for (int i = 32 * g; i < 32 * g + 32; i++) {
            EXPECT_INT(q[i], d > 0 ? rintf(x[i] * (1 / d)) : 0);
            total += q[i];
        }
        EXPECT_INT(sum[g], total);
    }
}

/* The last group may be a short one: 32, 64 and 96 values after whole ones, or alone. */
TEST(quant_act_follows_its_rule) {
    static const int lengths[] = {N, N - 32, N - 64, N - 96, 96, 32, 0};
    for (int c = 0; c < COUNT(shapes) * COUNT(lengths) * 2; c++) {
        static int8_t q[N];
        float scale[N / 32 + 1];
        int32_t sum[N / 32 + 1];
        int n = lengths[c / 2 % COUNT(lengths)], group = c % 2 ? 128 : 32;
        fill(x, N, &shapes[c / 2 / COUNT(lengths)]);
        scale[n / 32] = -3;
        sum[n / 32] = 1234;
        act_quantize(x, (size_t)n, (uint32_t)group, q, scale, sum);
        for (int first = 0; first < n; first += group)
            check_act_group(first, n - first < group ? n - first : group, q, scale, sum);
        EXPECT(scale[n / 32] == -3 && sum[n / 32] == 1234); /* nothing beyond */
    }
}

TEST(quant_act_at_the_ends) {
    static const struct {
        float top, scale;
        int q;
    } cases[] = {
        {0, 0, 0},
        {1e-45f, 0, 0},
        {FLT_MIN, 0, 0},
        {126.9f * FLT_MIN, 0, 0}, /* the scale would be subnormal */
        {127 * FLT_MIN, FLT_MIN, 127},
        {FLT_MAX, FLT_MAX / 127, 127},
        {-FLT_MAX, FLT_MAX / 127, -127},
        {-1e-30f, 1e-30f / 127, -127},
        {INFINITY, INFINITY, 0},
        {-INFINITY, INFINITY, 0},
        {NAN, NAN, 0},
    };
    for (int i = 0; i < COUNT(cases) * 5; i++) { /* alone, and in each quarter of 128 values */
        int quarter = i % 5, n = quarter < 4 ? 128 : 32, at = 13 + (quarter < 4 ? 32 * quarter : 0);
        float in[128] = {0}, scale[4], top = cases[i / 5].top;
        int8_t q[128];
        int32_t sum[4];
        in[at] = top;
        in[2] = isfinite(top) ? 0 : 5.0f;
        act_quantize(in, (size_t)n, (uint32_t)n, q, scale, sum);
        for (int g = 0; g < n / 32; g++) {
            EXPECT(same(scale[g], cases[i / 5].scale));
            EXPECT_INT(sum[g], g == at / 32 ? cases[i / 5].q : 0);
        }
        EXPECT_INT(q[at], cases[i / 5].q);
        EXPECT_INT(q[2], 0);
    }
}

/* What one group of 128 holds does not reach the next. */
TEST(quant_act_groups_are_apart) {
    float in[256], scale[8];
    int8_t q[256];
    int32_t sum[8];
    for (int i = 0; i < 256; i++)
        in[i] = i < 128 ? 1 : 2;
    in[5] = NAN;
    act_quantize(in, 256, 128, q, scale, sum);
    EXPECT(isnan(scale[0]) && isnan(scale[3]));
    EXPECT(scale[4] == 2 / 127.0f && scale[7] == 2 / 127.0f);
    EXPECT_INT(sum[4], 32 * 127);
}

/* The golden Q4_K block times 3 sin(0.1 i): exactly 17648.719; with 8-bit activations nearly. */
TEST(quant_dot_product_of_the_golden_block) {
    const struct golden *g = NULL;
    for (int k = 0; k < COUNT(goldens); k++)
        g = goldens[k].type == DT_Q4_K ? &goldens[k] : g;
    uint8_t b[292];
    float w[256], a[256], scale[8];
    int8_t q[256];
    int32_t sum[8];
    double exact = 0, whole = 0;
    golden_block(g, b);
    dtype_info(DT_Q4_K)->decode(b, w, 256);
    for (int i = 0; i < 256; i++) {
        a[i] = 3 * sinf(0.1f * (float)i);
        exact += (double)w[i] * a[i];
    }
    act_quantize(a, 256, 128, q, scale, sum);
    for (int s = 0; s < 8; s++) {
        double dot = 0;
        struct element e = {0};
        for (int i = 32 * s; i < 32 * s + 32; i++) {
            e = q4_k_element(b, i);
            dot += e.number * q[i];
        }
        whole += scale[s] * (e.scale * dot - e.minimum * sum[s]);
    }
    EXPECT_NEAR(exact, 17648.719, 0.01);
    EXPECT_NEAR(whole, 17648.719, 0.002 * 17648.719);
}
