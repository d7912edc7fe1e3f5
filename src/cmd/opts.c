/* opts.c - command lines: one table per verb, which is also its help. */
#include "cmd/opts.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- help --------------------------------------------------------------------------------- */

static void print_row(const struct opt *o) {
    char left[64];
    if (o->letter && strlen(o->name) > 2)
        snprintf(left, sizeof left, "-%c, %s %s", o->letter, o->name,
                 o->placeholder ? o->placeholder : "");
    else
        snprintf(left, sizeof left, "%s %s", o->name, o->placeholder ? o->placeholder : "");
    printf("  %-26s %s\n", left, o->help);
}

static const struct opt everywhere[] = {
    {"--verbose", 'v', OPT_VERBOSE, NULL, NULL, "print more: memory, submissions, seed"},
    {"--quiet", 'q', OPT_QUIET, NULL, NULL, "print nothing but errors"},
    {"--help", 'h', OPT_HELP, NULL, NULL, "print this help"},
};
enum { N_EVERYWHERE = sizeof everywhere / sizeof *everywhere };

static void print_help(const struct usage *u) {
    printf("usage: sluice %s %s\n\n%s\n\n", u->verb, u->synopsis, u->about);
    for (int i = 0; i < u->n_opts; i++)
        print_row(&u->opts[i]);
    for (int i = 0; i < N_EVERYWHERE; i++)
        print_row(&everywhere[i]);
    printf("\nexample: %s\n", u->example);
}

/* ---- names -------------------------------------------------------------------------------- */

/* What llama.cpp calls our options. */
static const struct {
    const char *theirs, *ours;
    enum opt_kind kind; /* --tokens is a number here and a file there */
} aliases[] = {
    {"--n-predict", "--tokens", OPT_INT},
    {"--predict", "--tokens", OPT_INT},
    {"--max-tokens", "--tokens", OPT_INT},
    {"--num-predict", "--tokens", OPT_INT},
    {"--num-ctx", "--context", OPT_INT},
    {"--ctx-size", "--context", OPT_INT},
    {"--temperature", "--temp", OPT_FLOAT},
    {"--repetition-penalty", "--repeat-penalty", OPT_FLOAT},
    {"-s", "--seed", OPT_INT64},
    {"-l", "--logit-bias", OPT_LIST},
    {"--chat-template-file", "--chat-template", OPT_STRING},
    {"--grammar-file", "--grammar", OPT_STRING},
    {"--json-schema-file", "--json-schema", OPT_STRING},
    {"-jf", "--json-schema", OPT_STRING},
    {"-j", "--json-schema", OPT_STRING},
    {"--reverse-prompt", "--stop", OPT_LIST},
    {"-r", "--stop", OPT_LIST},
    {"--parallel", "--batch", OPT_INT},
    {"-np", "--batch", OPT_INT},
    {"--alias", "--name", OPT_STRING},
    {"-a", "--name", OPT_STRING},
    {"--api-prefix", "--prefix", OPT_STRING},
    {"--sse-ping-interval", "--ping", OPT_INT},
    {"--embedding", "--embeddings", OPT_FLAG},
    {"--chunks", "--windows", OPT_INT},
    {"--outtype", "--type", OPT_STRING},
    {"--model-name", "--name", OPT_STRING},
    {"--system-prompt", "--system", OPT_STRING},
    {"-sys", "--system", OPT_STRING},
    {"--n-prompt", "--prompt", OPT_INT},
    {"--n-gen", "--tokens", OPT_INT},
    {"--n-depth", "--depth", OPT_INT},
    {"-d", "--depth", OPT_INT},
    {"--repetitions", "--repeats", OPT_INT},
};
enum { N_ALIASES = sizeof aliases / sizeof *aliases };

/* Options of llama.cpp that mean something else here, or are not needed. Names are separated by
 * spaces; a * at the end of one matches any rest. */
static const struct {
    const char *theirs, *answer;
} answers[] = {
    /* clang-format off */
    {"-ngl --n-gpu-layers --gpu-layers", "all layers run on one device; choose it with --backend and --device"},
    {"-mg --main-gpu -sm --split-mode -ts --tensor-split -dev", "the model runs on one device; choose it with --device N"},
    {"-ot --override-tensor -ncmoe --n-cpu-moe -cmoe --cpu-moe -nkvo --no-kv-offload", "the whole model runs on one device; leave it out"},
    {"-ctk -ctv --cache-type-k --cache-type-v", "use --kv TYPE, for keys and values alike"},
    {"-fa --flash-attn", "attention is always fused; leave it out"},
    {"-b --batch-size -ub --ubatch-size", "the batch size is chosen automatically; leave it out"},
    {"-tb --threads-batch", "use -t N, for prompts and answers alike"},
    {"-C --cpu-mask -Cr --cpu-range --numa", "use taskset or numactl"},
    {"--no-mmap --mmap", "files are mapped (SLUICE_NO_MMAP=1 in the environment reads them instead); for a model larger than memory there is --weights-dir"},
    {"--mlock", "memory is not locked; leave it out, and turn swap off if weights must stay"},
    {"--no-warmup --warmup --check-tensors --perf --no-perf --no-op-offload --no-repack --swa-full --defrag-thold -dt --cache-reuse --simple-io -kvu --kv-unified --no-kv-unified --direct-io -dio --no-host", "there is no need for it here; leave it out"},
    {"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo --offline", "models are not downloaded; give a GGUF file or a folder with -m"},
    {"-md --model-draft --draft-* -devd -ngld -cd", "there are no draft models; --draft N guesses from the text itself, --mtp N by the model's own block"},
    {"--lora* --control-vector* --mmproj* -mm --image --audio", "adapters, images and audio are not supported"},
    {"--rope-* --yarn-* --override-kv", "it is read from the model's file; leave it out"},
    {"--samplers --sampler-seq --sampling-seq --typical --typical-p --mirostat* --dry-* --xtc-* --dynatemp-* --top-nsigma --top-n-sigma", "there is no such sampler; use --temp, --top-k, --top-p, --min-p or the penalties"},
    {"--repeat-last-n", "penalties count the whole text; leave it out"},
    {"-e --escape --no-escape", "text is taken as it is; bash writes newlines as $'one\\ntwo'"},
    {"-sp", "control tokens are not printed; leave it out"},
    {"--in-prefix* --in-suffix -bf --binary-file", "the chat template formats messages; see --chat-template"},
    {"-sysf --system-prompt-file", "use --system \"$(cat FILE)\""},
    {"--jinja --no-jinja", "the model's template is always used; leave it out"},
    {"-co --color", "colour is automatic on terminals; NO_COLOR=1 turns it off"},
    {"--no-display-prompt", "only terminals show the prompt; leave it out"},
    {"--display-prompt", "terminals show the prompt; leave it out"},
    {"--log-disable", "use -q"},
    {"-lv --verbosity --log-verbosity --verbose-prompt", "use -v"},
    {"-cnv --conversation -i --interactive -if --interactive-first", "use `sluice chat`"},
    {"-mli --multiline-input", "in `sluice chat` end a line with \\ or Alt-Enter, or paste"},
    {"-no-cnv --no-conversation", "use `sluice run`"},
    {"-st --single-turn", "use `sluice chat -p TEXT`"},
    {"--keep --context-shift --no-context-shift", "`sluice chat --full drop|stop` says what happens when the context is full"},
    {"--reasoning-budget --reasoning-format -rea --reasoning", "use `sluice chat --think on|off`; requests to `sluice serve` say it themselves"},
    {"-cb --cont-batching --metrics --webui --cache-prompt", "it is always on; leave it out"},
    {"-fit --fit -fitt --fit-target -fitc --fit-ctx", "`sluice inspect` says what fits; `sluice serve` takes what fits"},
    {"--list-devices", "use `sluice devices`"},
    {"--rerank --reranking", "there is no /rerank"},
    {"-nocb --no-cont-batching --no-webui --no-cache-prompt", "it cannot be turned off; leave it out"},
    {"--slots --no-slots --props", "there is no /slots, and /props is read only; /metrics has the figures"},
    {"--api-key-file", "use SLUICE_API_KEY=\"$(cat FILE)\" in the environment"},
    {"--ssl-*", "put a reverse proxy in front, for TLS"},
    {"-to --timeout", "use --idle SECONDS"},
    {"--slot-save-path", "use --cache-dir DIR"},
    {"--pooling", "it is read from the model's file; leave it out"},
    {"--allow-requantize", "it is allowed, with a warning; leave it out"},
    {"--outfile", "the output file is the second argument"},
    {"--system -sys --system-prompt --think --chat-template --chat-template-file --full", "use `sluice chat`"},
    {"--host --port --api-key --alias -a --embedding --embeddings", "use `sluice serve`"},
    {"--batch -np --parallel", "bench, serve and inspect have it"},
    {"--gpu --cpu --cuda", "use --backend NAME; `sluice devices` lists them"},
    {"--stream --no-stream", "text is printed as it is generated; leave it out"},
    {"--version", "use `sluice --version`"},
    {"-o --output", "use --json, or > FILE"},
    /* clang-format on */
};

/* Whether a list of names contains the word. */
static bool is_listed(const char *names, const char *word) {
    for (size_t n; *names; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        bool is_prefix = names[n - 1] == '*';
        if (strncmp(names, word, n - is_prefix) == 0 && (is_prefix || word[n] == 0))
            return true;
    }
    return false;
}

static bool is_name(const struct opt *o, const char *word) {
    return strcmp(o->name, word) == 0 ||
           (o->letter && word[0] == '-' && word[1] == o->letter && word[2] == 0);
}

/* This verb's option for alias k; NULL: none. */
static const struct opt *aliased(const struct usage *u, int k) {
    for (int i = 0; i < u->n_opts; i++)
        if (u->opts[i].kind == aliases[k].kind && is_name(&u->opts[i], aliases[k].ours))
            return &u->opts[i];
    return NULL;
}

static const struct opt *find(const struct usage *u, const char *word) {
    for (int i = 0; i < u->n_opts; i++)
        if (is_name(&u->opts[i], word))
            return &u->opts[i];
    for (int i = 0; i < N_EVERYWHERE; i++)
        if (is_name(&everywhere[i], word))
            return &everywhere[i];
    for (int k = 0; k < N_ALIASES; k++)
        if (strcmp(word, aliases[k].theirs) == 0)
            return aliased(u, k);
    return NULL;
}

const char *opts_ours(const char *theirs) {
    for (int k = 0; k < N_ALIASES; k++)
        if (strcmp(theirs, aliases[k].theirs) == 0)
            return aliases[k].ours;
    return NULL;
}

int opts_distance(const char *a, const char *b) {
    enum { LONGEST = 40 };
    int rows[3][LONGEST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= m; j++)
        last[j] = j;
    for (int i = 1; i <= n; i++) {
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            row[j] = is_swap && before[j - 2] + 1 < best ? before[j - 2] + 1 : best;
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[m];
}

const char *opts_nearest(const char *word, const char *const *names, int n) {
    size_t dashes = strspn(word, "-/"), len = strlen(word + dashes);
    const char *nearest = NULL;
    int nearest_distance = len <= 5 ? 2 : len <= 8 ? 3 : 4; /* one more than counts as near */
    for (int i = 0; i < n; i++) {
        const char *name = names[i] + strspn(names[i], "-/");
        bool is_beginning = len >= 3 && strncmp(name, word + dashes, len) == 0;
        int d = is_beginning ? 1 : opts_distance(word + dashes, name);
        if (d < nearest_distance && d < (int)len) {
            nearest = names[i];
            nearest_distance = d;
        }
    }
    return nearest;
}

static int unknown(const struct usage *u, const char *word) {
    enum { MAX_NAMES = 64 };
    const char *names[MAX_NAMES + N_EVERYWHERE + N_ALIASES];
    int n = 0;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (is_listed(answers[i].theirs, word))
            return complain(EXIT_USAGE, "%s: unknown option '%s': %s", u->verb, word,
                            answers[i].answer);
    for (int i = 0; i < u->n_opts && n < MAX_NAMES; i++)
        names[n++] = u->opts[i].name;
    for (int i = 0; i < N_EVERYWHERE; i++)
        names[n++] = everywhere[i].name;
    for (int k = 0; k < N_ALIASES; k++)
        if (aliased(u, k))
            names[n++] = aliases[k].theirs;
    const char *nearest = opts_nearest(word, names, n);
    if (nearest)
        return complain(EXIT_USAGE, "%s: unknown option '%s'; did you mean %s?", u->verb, word,
                        nearest);
    return complain(EXIT_USAGE, "%s: unknown option '%s'; see sluice help %s", u->verb, word,
                    u->verb);
}

/* ---- values ------------------------------------------------------------------------------- */

static bool parse_int(const char *text, int64_t min, int64_t max, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return *text != 0 && *end == 0 && !errno && v >= min && v <= max;
}

static bool set_int(const struct opt *o, const char *text) {
    int64_t v;
    if (!parse_int(text, INT_MIN, INT_MAX, &v))
        return false;
    *(int *)o->value = (int)v;
    return true;
}

/* Bytes: a whole number, then nothing or K, M, G or T, each 1024 times the one before. */
static bool set_size(const struct opt *o, const char *text) {
    static const char units[] = "KMGTkmgt";
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || errno)
        return false;
    const char *unit = *end ? strchr(units, *end) : NULL;
    unsigned shift = unit ? 10 * (unsigned)((unit - units) % 4 + 1) : 0;
    if ((*end && !unit) || (unit && end[1]) || v > (UINT64_MAX - 1) >> shift)
        return false;
    *(uint64_t *)o->value = (uint64_t)v << shift;
    return true;
}

static bool set_float(const struct opt *o, const char *text) {
    char *end;
    float v = strtof(text, &end);
    if (*text == 0 || *end != 0 || !isfinite(v))
        return false;
    *(float *)o->value = v;
    return true;
}

static bool add_to_list(const struct opt *o, const char *text) {
    struct opt_list *list = o->value;
    if (list->n == sizeof list->at / sizeof *list->at)
        return false;
    list->at[list->n++] = text;
    return true;
}

/* No whole number, or one that is too large. */
static int refuse_int(const struct usage *u, const struct opt *o, const char *text) {
    bool is_negative = text[0] == '-', is_short = o->kind == OPT_INT;
    size_t n = strspn(text + is_negative, "0123456789");
    char range[48] = "";
    if (n > 0 && !text[is_negative + n] && is_negative)
        snprintf(range, sizeof range, " from %lld", is_short ? INT_MIN : (long long)INT64_MIN);
    else if (n > 0 && !text[n])
        snprintf(range, sizeof range, " up to %lld", is_short ? INT_MAX : (long long)INT64_MAX);
    return complain(EXIT_USAGE, "%s: %s is '%s', expected a whole number%s", u->verb, o->name, text,
                    range);
}

static int set_value(const struct usage *u, const struct opt *o, const char *text) {
    if (o->kind == OPT_STRING)
        *(const char **)o->value = text;
    else if ((o->kind == OPT_INT && !set_int(o, text)) ||
             (o->kind == OPT_INT64 && !parse_int(text, INT64_MIN, INT64_MAX, o->value)))
        return refuse_int(u, o, text);
    else if (o->kind == OPT_SIZE && !set_size(o, text))
        return complain(EXIT_USAGE, "%s: %s is '%s', expected bytes, such as 512M or 4G", u->verb,
                        o->name, text);
    else if (o->kind == OPT_FLOAT && !set_float(o, text))
        return complain(EXIT_USAGE, "%s: %s is '%s', expected a number", u->verb, o->name, text);
    else if (o->kind == OPT_LIST && !add_to_list(o, text))
        return complain(EXIT_USAGE, "%s: %s is given more than 64 times", u->verb, o->name);
    return OPTS_GO_ON;
}

/* ---- the line ----------------------------------------------------------------------------- */

static int take_word(const struct usage *u, const char **words, int *n_words, const char *word) {
    if (*n_words < u->max_words) {
        words[(*n_words)++] = word;
        return OPTS_GO_ON;
    }
    if (!u->model)
        return complain(EXIT_USAGE, "%s: unexpected argument '%s'; see sluice help %s", u->verb,
                        word, u->verb);
    if (*u->model && find(u, "--prompt") && find(u, "--prompt")->kind == OPT_STRING)
        return complain(EXIT_USAGE,
                        "%s: unexpected argument '%s': the model is '%s', and a prompt goes after "
                        "-p",
                        u->verb, word, *u->model);
    if (*u->model)
        return complain(EXIT_USAGE,
                        "%s: unexpected argument '%s': the model is '%s'; see sluice help %s",
                        u->verb, word, *u->model, u->verb);
    *u->model = word;
    return OPTS_GO_ON;
}

/* Options without a value. */
static int set_switch(const struct usage *u, const struct opt *o) {
    if (o->kind == OPT_HELP) {
        print_help(u);
        return 0;
    }
    if (o->kind == OPT_FLAG)
        *(bool *)o->value = true;
    else
        say_set_level(o->kind == OPT_VERBOSE ? SAY_ALL : SAY_NOTHING);
    return OPTS_GO_ON;
}

/* The option's name as we spell it: its first `length` bytes, with dashes. */
static void name_of(const char *word, size_t length, char *name, size_t size) {
    snprintf(name, size, "%.*s", (int)length, word);
    for (char *c = name; word[1] == '-' && *c; c++)
        *c = *c == '_' ? '-' : *c;
}

/* The value within the word, after =, or a number after the letter (-n128); NULL: none. */
static const char *attached_value(const char *word, size_t *name_length) {
    const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    bool has_number =
        word[1] != '-' && word[2] && strspn(word + 2, "0123456789.") == strlen(word + 2);
    *name_length = equals ? (size_t)(equals - word) : has_number ? 2 : strlen(word);
    return equals ? equals + 1 : has_number ? word + 2 : NULL;
}

/* The option at argv[*i], whose value may be the next word. */
static int take_option(const struct usage *u, int argc, char **argv, int *i) {
    size_t name_length;
    const char *value = attached_value(argv[*i], &name_length);
    char name[64];
    name_of(argv[*i], name_length, name, sizeof name);
    const struct opt *o = find(u, name);
    if (!o)
        return unknown(u, value ? name : argv[*i]);
    if (o->kind < OPT_INT && value)
        return complain(EXIT_USAGE, "%s: %s takes no value, found '%s'", u->verb, o->name, value);
    if (o->kind < OPT_INT)
        return set_switch(u, o);
    if (!value && *i + 1 == argc)
        return complain(EXIT_USAGE, "%s: %s needs a value (%s)", u->verb, o->name, o->placeholder);
    return set_value(u, o, value ? value : argv[++*i]);
}

int opts_parse(const struct usage *u, int argc, char **argv, const char **words) {
    int n_words = 0, status = OPTS_GO_ON;
    const char *model_word = NULL;
    bool only_words = false;
    for (int i = 0; i < u->max_words; i++)
        words[i] = NULL;
    for (int i = 1; i < argc && status == OPTS_GO_ON; i++) {
        bool is_word = only_words || argv[i][0] != '-' || argv[i][1] == 0;
        if (is_word)
            status = take_word(u, words, &n_words, argv[i]);
        else if (strcmp(argv[i], "--") == 0)
            only_words = true;
        else
            status = take_option(u, argc, argv, &i);
        if (is_word && u->model && *u->model == argv[i])
            model_word = argv[i];
    }
    if (status == OPTS_GO_ON && model_word && strcmp(model_word, *u->model) != 0)
        return complain(EXIT_USAGE,
                        "%s: the model is '%s' and, after -m, '%s'; expected one of them", u->verb,
                        model_word, *u->model);
    if (status == OPTS_GO_ON && n_words < u->min_words)
        return complain(EXIT_USAGE, "%s: missing argument; usage: sluice %s %s", u->verb, u->verb,
                        u->synopsis);
    return status;
}

int opts_set(const char *who, const struct opt *opt, const char *text) {
    return set_value(&(struct usage){.verb = who}, opt, text);
}
