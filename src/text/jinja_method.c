/* jinja_method.c - the methods of texts, lists and dicts: one row each.
 *
 * Methods that would change a list or dict are known, but refused, as the sandbox does. */
#include <utf8proc.h>

#include "text/jinja_eval.h"

static struct str self_text(const struct call *call) {
    return call->self.string->text;
}

static bool is_none(struct value v) {
    return v.type == VALUE_MISSING || v.type == VALUE_NONE;
}

/* ---- texts ---- */

static bool strip(struct render *render, const struct call *call, bool left, bool right,
                  struct value *out) {
    struct str chars = {0};
    if (!is_none(call->args[0]) && !jinja_text_arg(render, call->args[0], &chars))
        return false;
    struct str stripped;
    return jinja_strip(render, self_text(call), chars, left, right, &stripped) &&
           jinja_string(render, stripped, out);
}

static bool str_strip(struct render *render, const struct call *call, struct value *out) {
    return strip(render, call, true, true, out);
}

static bool str_lstrip(struct render *render, const struct call *call, struct value *out) {
    return strip(render, call, true, false, out);
}

static bool str_rstrip(struct render *render, const struct call *call, struct value *out) {
    return strip(render, call, false, true, out);
}

static bool str_upper(struct render *render, const struct call *call, struct value *out) {
    return jinja_change_case(render, self_text(call), CASE_UPPER, out);
}

static bool str_lower(struct render *render, const struct call *call, struct value *out) {
    return jinja_change_case(render, self_text(call), CASE_LOWER, out);
}

static bool str_title(struct render *render, const struct call *call, struct value *out) {
    return jinja_change_case(render, self_text(call), CASE_TITLE, out);
}

static bool str_capitalize(struct render *render, const struct call *call, struct value *out) {
    return jinja_change_case(render, self_text(call), CASE_CAPITALIZE, out);
}

/* The byte at which the white space before the end of s begins, or that after it ends. */
static struct str first_word(struct str s) {
    size_t at = 0;
    for (uint32_t c; at < s.len;) {
        size_t n = utf8_decode(str_skip(s, at), &c);
        if (jinja_is_space(c))
            break;
        at += n;
    }
    return (struct str){s.at, at};
}

static struct str last_word(struct str s) {
    size_t at = s.len;
    for (uint32_t c; at > 0;) {
        size_t begin = at - 1;
        while (begin > 0 && (s.at[begin] & 0xC0) == 0x80)
            begin--;
        utf8_decode(str_skip(s, begin), &c);
        if (jinja_is_space(c))
            break;
        at = begin;
    }
    return str_skip(s, at);
}

static bool push_text(struct render *render, struct value list, size_t *capacity, struct str text) {
    struct value item;
    return jinja_string(render, text, &item) && jinja_push(render, list.seq, capacity, item);
}

/* Words between white space; from the right they come last first. */
static bool split_words(struct render *render, struct str s, int64_t max, bool from_right,
                        struct value list) {
    size_t capacity = 0;
    if (!jinja_charge(render, 2 * JINJA_CHAR * s.len))
        return false;
    for (;; max -= max > 0) {
        s = jinja_trim(s, !from_right, from_right);
        if (s.len == 0)
            return true;
        struct str word = from_right ? last_word(s) : first_word(s);
        if (max == 0) {
            /* The rest keeps its inner space, not that at its outer end. */
            s = jinja_trim(s, false, from_right);
            return push_text(render, list, &capacity, s);
        }
        if (!push_text(render, list, &capacity, word))
            return false;
        s = from_right ? (struct str){s.at, s.len - word.len} : str_skip(s, word.len);
    }
}

static bool split_at(struct render *render, struct str s, struct str sep, int64_t max,
                     bool from_right, struct value list) {
    size_t capacity = 0;
    for (;; max -= max > 0) {
        const char *found = NULL;
        if (max != 0 && s.len > 0 && !jinja_find(render, s, sep, from_right, &found))
            return false;
        if (!found)
            return push_text(render, list, &capacity, s);
        struct str left = {s.at, (size_t)(found - s.at)}, right = str_skip(s, left.len + sep.len);
        if (!push_text(render, list, &capacity, from_right ? right : left))
            return false;
        s = from_right ? left : right;
    }
}

static bool split(struct render *render, const struct call *call, bool from_right,
                  struct value *out) {
    struct str sep, s = self_text(call);
    int64_t max;
    if (!jinja_int_arg(render, call->args[1], -1, &max) || !jinja_seq(render, SEQ_LIST, 0, out) ||
        !jinja_work(render, 0))
        return false;
    if (is_none(call->args[0])) {
        if (!split_words(render, s, max < 0 ? -1 : max, from_right, *out))
            return false;
    } else {
        if (!jinja_text_arg(render, call->args[0], &sep))
            return false;
        if (sep.len == 0)
            return jinja_fail(render, "empty separator");
        if (!split_at(render, s, sep, max < 0 ? -1 : max, from_right, *out))
            return false;
    }
    struct seq *seq = out->seq;
    for (size_t i = 0; from_right && i < seq->count / 2; i++) {
        struct value swapped = seq->items[i];
        seq->items[i] = seq->items[seq->count - 1 - i];
        seq->items[seq->count - 1 - i] = swapped;
    }
    return true;
}

static bool str_split(struct render *render, const struct call *call, struct value *out) {
    return split(render, call, false, out);
}

static bool str_rsplit(struct render *render, const struct call *call, struct value *out) {
    return split(render, call, true, out);
}

static bool str_splitlines(struct render *render, const struct call *call, struct value *out) {
    return jinja_split_lines(render, self_text(call), jinja_truth(call->args[0]), out);
}

/* The part of a text that optional start and end arguments leave; *begin is its first
 * character's number. False (without error): start is after the end. */
static bool narrow(struct render *render, const struct call *call, bool *is_there, struct str *out,
                   int64_t *begin) {
    int64_t count = (int64_t)call->self.string->chars, end = count;
    *begin = 0;
    if ((!is_none(call->args[1]) && !jinja_int_arg(render, call->args[1], 0, begin)) ||
        (!is_none(call->args[2]) && !jinja_int_arg(render, call->args[2], 0, &end)))
        return false;
    *begin = *begin < 0 ? (*begin < -count ? 0 : *begin + count) : *begin;
    end = end < 0 ? (end < -count ? 0 : end + count) : end < count ? end : count;
    *is_there = *begin <= end;
    if (*is_there)
        *out = jinja_cut(call->self.string, (size_t)*begin, (size_t)end);
    bool is_ascii = call->self.string->chars == self_text(call).len; /* cut without counting */
    return jinja_charge(render, is_ascii ? 0 : 4 * self_text(call).len);
}

static bool begins_or_ends(struct str text, struct str with, bool at_end) {
    if (with.len > text.len)
        return false;
    const char *at = at_end ? text.at + text.len - with.len : text.at;
    return with.len == 0 || memcmp(at, with.at, with.len) == 0;
}

/* The first argument may be a tuple of texts, any of which will do. */
static bool has_affix(struct render *render, const struct call *call, bool at_end,
                      struct value *out) {
    struct str text, with;
    int64_t begin;
    bool is_there, holds = false;
    struct value first = call->args[0], *items = &first;
    size_t count = 1;
    if (!narrow(render, call, &is_there, &text, &begin))
        return false;
    if (first.type == VALUE_SEQ && first.seq->kind == SEQ_TUPLE) {
        items = first.seq->items;
        count = first.seq->count;
    }
    for (size_t i = 0; i < count; i++) {
        if (!jinja_text_arg(render, items[i], &with) || !jinja_work(render, with.len / 4))
            return false;
        holds |= is_there && begins_or_ends(text, with, at_end);
    }
    *out = value_bool(holds);
    return true;
}

static bool str_startswith(struct render *render, const struct call *call, struct value *out) {
    return has_affix(render, call, false, out);
}

static bool str_endswith(struct render *render, const struct call *call, struct value *out) {
    return has_affix(render, call, true, out);
}

static bool find(struct render *render, const struct call *call, bool from_right, bool must_be,
                 struct value *out) {
    struct str text, what;
    int64_t begin;
    bool is_there;
    const char *found = NULL;
    if (!jinja_text_arg(render, call->args[0], &what) ||
        !narrow(render, call, &is_there, &text, &begin))
        return false;
    if (is_there && !jinja_find(render, text, what, from_right, &found))
        return false;
    if (!found && must_be)
        return jinja_fail(render, "substring not found");
    *out = value_int(-1);
    struct str before = {text.at, found ? (size_t)(found - text.at) : 0};
    if (found)
        out->integer = begin + (int64_t)jinja_count_chars(before);
    return jinja_charge(render, before.len);
}

static bool str_find(struct render *render, const struct call *call, struct value *out) {
    return find(render, call, false, false, out);
}

static bool str_rfind(struct render *render, const struct call *call, struct value *out) {
    return find(render, call, true, false, out);
}

static bool str_index(struct render *render, const struct call *call, struct value *out) {
    return find(render, call, false, true, out);
}

static bool str_rindex(struct render *render, const struct call *call, struct value *out) {
    return find(render, call, true, true, out);
}

static bool str_count(struct render *render, const struct call *call, struct value *out) {
    struct str text, what;
    int64_t begin, count = 0;
    bool is_there;
    if (!jinja_text_arg(render, call->args[0], &what) ||
        !narrow(render, call, &is_there, &text, &begin))
        return false;
    if (is_there && what.len == 0) {
        count = (int64_t)jinja_count_chars(text) + 1;
        if (!jinja_charge(render, text.len))
            return false;
    }
    while (is_there && what.len > 0) {
        const char *found;
        if (!jinja_find(render, text, what, false, &found))
            return false;
        if (!found)
            break;
        count++;
        text = str_skip(text, (size_t)(found - text.at) + what.len);
    }
    *out = value_int(count);
    return true;
}

static bool str_replace(struct render *render, const struct call *call, struct value *out) {
    struct str old, new;
    int64_t count;
    return jinja_text_arg(render, call->args[0], &old) &&
           jinja_text_arg(render, call->args[1], &new) &&
           jinja_int_arg(render, call->args[2], -1, &count) &&
           jinja_replace(render, self_text(call), old, new, count, out);
}

static bool str_join(struct render *render, const struct call *call, struct value *out) {
    struct value *items;
    size_t count, mark = render->out->len;
    struct str item;
    if (!jinja_iterate(render, call->args[0], &items, &count))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!jinja_text_arg(render, items[i], &item) ||
            (i > 0 && !jinja_put(render, self_text(call))) || !jinja_put(render, item))
            return false;
    return jinja_take(render, mark, out);
}

static bool str_removeprefix(struct render *render, const struct call *call, struct value *out) {
    struct str affix, s = self_text(call);
    if (!jinja_text_arg(render, call->args[0], &affix))
        return false;
    return jinja_string(render, begins_or_ends(s, affix, false) ? str_skip(s, affix.len) : s, out);
}

static bool str_removesuffix(struct render *render, const struct call *call, struct value *out) {
    struct str affix, s = self_text(call);
    if (!jinja_text_arg(render, call->args[0], &affix))
        return false;
    s.len -= begins_or_ends(s, affix, true) ? affix.len : 0;
    return jinja_string(render, s, out);
}

static bool put_times(struct render *render, struct str text, int64_t times) {
    return jinja_put_times(render, text, times > 0 ? (uint64_t)times : 0);
}

static bool str_zfill(struct render *render, const struct call *call, struct value *out) {
    struct str s = self_text(call);
    int64_t width;
    size_t mark = render->out->len;
    if (!jinja_int_arg(render, call->args[0], 0, &width))
        return false;
    bool has_sign = s.len > 0 && (s.at[0] == '-' || s.at[0] == '+');
    return jinja_put(render, (struct str){s.at, has_sign}) &&
           put_times(render, STR("0"), width - (int64_t)call->self.string->chars) &&
           jinja_put(render, str_skip(s, has_sign)) && jinja_take(render, mark, out);
}

/* Padding on the left for rjust, on the right for ljust, on both sides for center. */
static bool justify(struct render *render, const struct call *call, bool left, bool right,
                    struct value *out) {
    struct str fill = STR(" ");
    int64_t width, have = (int64_t)call->self.string->chars;
    size_t mark = render->out->len;
    if (!jinja_int_arg(render, call->args[0], 0, &width) ||
        (call->args[1].type != VALUE_MISSING && !jinja_text_arg(render, call->args[1], &fill)))
        return false;
    if (jinja_count_chars(fill) != 1)
        return jinja_fail(render, "The fill character must be exactly one character long");
    int64_t padding = width > have ? width - have : 0, before = left ? padding : 0;
    if (left && right) /* Python's rounding: to the left when both are odd */
        before = padding / 2 + (padding & width & 1);
    return put_times(render, fill, before) && jinja_put(render, self_text(call)) &&
           put_times(render, fill, padding - before) && jinja_take(render, mark, out);
}

static bool str_ljust(struct render *render, const struct call *call, struct value *out) {
    return justify(render, call, false, true, out);
}

static bool str_rjust(struct render *render, const struct call *call, struct value *out) {
    return justify(render, call, true, false, out);
}

static bool str_center(struct render *render, const struct call *call, struct value *out) {
    return justify(render, call, true, true, out);
}

static bool partition(struct render *render, const struct call *call, bool from_right,
                      struct value *out) {
    struct str sep, s = self_text(call);
    if (!jinja_text_arg(render, call->args[0], &sep))
        return false;
    if (sep.len == 0)
        return jinja_fail(render, "empty separator");
    const char *found;
    if (!jinja_find(render, s, sep, from_right, &found))
        return false;
    struct str parts[3] = {from_right ? STR("") : s, STR(""), from_right ? s : STR("")};
    if (found) {
        parts[0] = (struct str){s.at, (size_t)(found - s.at)};
        parts[1] = sep;
        parts[2] = str_skip(s, parts[0].len + sep.len);
    }
    if (!jinja_seq(render, SEQ_TUPLE, 3, out))
        return false;
    for (int i = 0; i < 3; i++)
        if (!jinja_string(render, parts[i], &out->seq->items[i]))
            return false;
    return true;
}

static bool str_partition(struct render *render, const struct call *call, struct value *out) {
    return partition(render, call, false, out);
}

static bool str_rpartition(struct render *render, const struct call *call, struct value *out) {
    return partition(render, call, true, out);
}

/* ---- what texts are made of ---- */

static bool is_letter(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static bool is_digit(uint32_t c) { /* superscripts and subscripts are digits too */
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}

static bool is_numeric(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static bool is_alnum(uint32_t c) {
    return is_letter(c) || is_numeric(c);
}

static bool is_made_of(struct render *render, const struct call *call, bool (*is)(uint32_t),
                       struct value *out) {
    struct str s = self_text(call);
    bool holds = s.len > 0;
    for (uint32_t c; s.len > 0 && holds; holds = is(c))
        if (!jinja_next_char(render, &s, &c))
            return false;
    *out = value_bool(holds);
    return true;
}

#define MADE_OF(name, is)                                                                          \
    static bool str_##name(struct render *render, const struct call *call, struct value *out) {    \
        return is_made_of(render, call, is, out);                                                  \
    }
MADE_OF(isalpha, is_letter)
MADE_OF(isalnum, is_alnum)
MADE_OF(isdigit, is_digit)
MADE_OF(isdecimal, is_decimal)
MADE_OF(isnumeric, is_numeric)
MADE_OF(isspace, jinja_is_space)

static bool ask_test(struct render *render, const struct call *call, const char *test,
                     struct value *out) {
    return jinja_call_builtin(render, jinja_test_find(str_of(test)), call->self, call->all, out);
}

static bool str_islower(struct render *render, const struct call *call, struct value *out) {
    return ask_test(render, call, "lower", out);
}

static bool str_isupper(struct render *render, const struct call *call, struct value *out) {
    return ask_test(render, call, "upper", out);
}

/* ---- "{} {0} {name}".format() ---- */

struct numbering {
    size_t next;
    bool is_automatic, is_manual;
};

/* The value of one replacement field. */
static bool format_field(struct render *render, const struct args *args, struct str field,
                         struct numbering *n, struct value *out) {
    int64_t index;
    bool is_too_big;
    for (size_t i = 0; i < field.len; i++)
        if (memchr(".[!:{", field.at[i], 5))
            return jinja_fail(render, "the format field '%.*s' is not supported", STR_ARG(field));
    bool is_numbered = field.len > 0 && field.at[0] >= '0' && field.at[0] <= '9';
    n->is_automatic |= field.len == 0;
    n->is_manual |= is_numbered;
    if (n->is_automatic && n->is_manual)
        return jinja_fail(render, "cannot mix automatic and manual field numbers");
    if (field.len == 0)
        index = (int64_t)n->next++;
    else if (!is_numbered || !jinja_parse_int(field, 10, &index, &is_too_big)) {
        if (!jinja_charge(render, JINJA_CHAR * args->n_named))
            return false;
        for (size_t i = 0; i < args->n_named; i++)
            if (str_equal(args->named[i].name, field))
                return *out = args->named[i].value, true;
        return jinja_fail(render, "the format field '%.*s' is missing", STR_ARG(field));
    }
    if (index < 0 || (uint64_t)index >= args->count)
        return jinja_fail(render, "the format field %lld is missing", (long long)index);
    *out = args->at[index];
    return true;
}

static bool str_format(struct render *render, const struct call *call, struct value *out) {
    struct str s = self_text(call);
    size_t mark = render->out->len;
    struct numbering numbering = {0};
    while (s.len > 0) {
        char c = s.at[0];
        if ((c == '{' || c == '}') && s.len > 1 && s.at[1] == c) {
            if (!jinja_put(render, (struct str){s.at, 1}))
                return false;
            s = str_skip(s, 2);
        } else if (c == '{') {
            const char *end = memchr(s.at, '}', s.len);
            struct value value;
            if (!end)
                return jinja_fail(render, "expected '}' before end of string");
            struct str field = {s.at + 1, (size_t)(end - s.at) - 1};
            if (!format_field(render, call->all, field, &numbering, &value) ||
                !jinja_put_str(render, value))
                return false;
            s = str_skip(s, field.len + 2);
        } else if (c == '}') {
            return jinja_fail(render, "Single '}' encountered in format string");
        } else {
            if (!jinja_put(render, (struct str){s.at, 1}))
                return false;
            s = str_skip(s, 1);
        }
    }
    return jinja_take(render, mark, out);
}

/* ---- lists and dicts ---- */

static bool list_index(struct render *render, const struct call *call, struct value *out) {
    for (size_t i = 0; i < call->self.seq->count; i++) {
        bool same;
        if (!jinja_equal(render, call->self.seq->items[i], call->args[0], &same))
            return false;
        if (same)
            return *out = value_int((int64_t)i), true;
    }
    return jinja_fail(render, "the value is not in the list");
}

static bool list_count(struct render *render, const struct call *call, struct value *out) {
    int64_t count = 0;
    for (size_t i = 0; i < call->self.seq->count; i++) {
        bool same;
        if (!jinja_equal(render, call->self.seq->items[i], call->args[0], &same))
            return false;
        count += same;
    }
    *out = value_int(count);
    return true;
}

/* Nothing can change either of them, so a copy is as good as the same. */
static bool any_copy(struct render *render, const struct call *call, struct value *out) {
    (void)render;
    *out = call->self;
    return true;
}

static bool dict_get(struct render *render, const struct call *call, struct value *out) {
    const struct value *found;
    if (!jinja_hashable(render, call->args[0]) ||
        !jinja_dict_get(render, call->self.dict, call->args[0], &found))
        return false;
    *out = found ? *found : call->args[1].type == VALUE_MISSING ? value_none() : call->args[1];
    return true;
}

static bool dict_items(struct render *render, const struct call *call, struct value *out) {
    return jinja_dict_view(render, call->self.dict, SEQ_ITEMS, out);
}

static bool dict_keys(struct render *render, const struct call *call, struct value *out) {
    return jinja_dict_view(render, call->self.dict, SEQ_KEYS, out);
}

static bool dict_values(struct render *render, const struct call *call, struct value *out) {
    return jinja_dict_view(render, call->self.dict, SEQ_VALUES, out);
}

/* ---- the tables ---- */

/* clang-format off */
static const struct builtin str_methods[] = {
    {"capitalize", "", str_capitalize, PAYS_ITSELF},
    {"center", "width / fillchar", str_center, PAYS_ITSELF},
    {"count", "sub / start end", str_count, PAYS_ITSELF},
    {"endswith", "suffix / start end", str_endswith, PAYS_ITSELF},
    {"find", "sub / start end", str_find, PAYS_ITSELF}, {"format", "*", str_format, PAYS_BY_SIZE},
    {"index", "sub / start end", str_index, PAYS_ITSELF}, {"isalnum", "", str_isalnum, PAYS_ITSELF},
    {"isalpha", "", str_isalpha, PAYS_ITSELF}, {"isdecimal", "", str_isdecimal, PAYS_ITSELF},
    {"isdigit", "", str_isdigit, PAYS_ITSELF}, {"islower", "", str_islower, PAYS_ITSELF},
    {"isnumeric", "", str_isnumeric, PAYS_ITSELF}, {"isspace", "", str_isspace, PAYS_ITSELF},
    {"isupper", "", str_isupper, PAYS_ITSELF}, {"join", "iterable", str_join, PAYS_ITSELF},
    {"ljust", "width / fillchar", str_ljust, PAYS_ITSELF}, {"lower", "", str_lower, PAYS_ITSELF},
    {"lstrip", "/ chars", str_lstrip, PAYS_ITSELF},
    {"partition", "sep", str_partition, PAYS_ITSELF},
    {"removeprefix", "prefix", str_removeprefix, PAYS_BY_SIZE},
    {"removesuffix", "suffix", str_removesuffix, PAYS_BY_SIZE},
    {"replace", "old new / count", str_replace, PAYS_ITSELF},
    {"rfind", "sub / start end", str_rfind, PAYS_ITSELF},
    {"rindex", "sub / start end", str_rindex, PAYS_ITSELF},
    {"rjust", "width / fillchar", str_rjust, PAYS_ITSELF},
    {"rpartition", "sep", str_rpartition, PAYS_ITSELF},
    {"rsplit", "/ sep maxsplit", str_rsplit, PAYS_ITSELF},
    {"rstrip", "/ chars", str_rstrip, PAYS_ITSELF},
    {"split", "/ sep maxsplit", str_split, PAYS_ITSELF},
    {"splitlines", "/ keepends", str_splitlines, PAYS_ITSELF},
    {"startswith", "prefix / start end", str_startswith, PAYS_ITSELF},
    {"strip", "/ chars", str_strip, PAYS_ITSELF}, {"title", "", str_title, PAYS_ITSELF},
    {"upper", "", str_upper, PAYS_ITSELF}, {"zfill", "width", str_zfill, PAYS_ITSELF}, {0},
};
static const struct builtin list_methods[] = {
    {"count", "value", list_count, PAYS_ITSELF}, {"index", "value", list_index, PAYS_ITSELF},
    {"copy", "", any_copy, PAYS_ITSELF}, {"append", "", NULL, PAYS_BY_SIZE},
    {"clear", "", NULL, PAYS_BY_SIZE}, {"extend", "", NULL, PAYS_BY_SIZE},
    {"insert", "", NULL, PAYS_BY_SIZE}, {"pop", "", NULL, PAYS_BY_SIZE},
    {"remove", "", NULL, PAYS_BY_SIZE}, {"reverse", "", NULL, PAYS_BY_SIZE},
    {"sort", "", NULL, PAYS_BY_SIZE}, {0},
};
static const struct builtin tuple_methods[] = { /* and ranges' */
    {"count", "value", list_count, PAYS_ITSELF}, {"index", "value", list_index, PAYS_ITSELF}, {0},
};
static const struct builtin dict_methods[] = {
    {"get", "key / default", dict_get, PAYS_ITSELF}, {"items", "", dict_items, PAYS_ITSELF},
    {"keys", "", dict_keys, PAYS_ITSELF}, {"values", "", dict_values, PAYS_ITSELF},
    {"copy", "", any_copy, PAYS_ITSELF}, {"clear", "", NULL, PAYS_BY_SIZE},
    {"pop", "", NULL, PAYS_BY_SIZE}, {"popitem", "", NULL, PAYS_BY_SIZE},
    {"setdefault", "", NULL, PAYS_BY_SIZE}, {"update", "", NULL, PAYS_BY_SIZE}, {0},
};
/* clang-format on */

static const struct builtin *find_row(const struct builtin *rows, struct str name) {
    for (; rows->name; rows++)
        if (str_is(name, rows->name))
            return rows;
    return NULL;
}

const struct builtin *jinja_method_find(struct value self, struct str name) {
    if (self.type == VALUE_STRING)
        return find_row(str_methods, name);
    if (self.type == VALUE_DICT)
        return find_row(dict_methods, name);
    if (self.type != VALUE_SEQ || self.seq->kind > SEQ_RANGE)
        return NULL;
    return find_row(self.seq->kind == SEQ_LIST ? list_methods : tuple_methods, name);
}
