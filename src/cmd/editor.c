/* editor.c - messages from standard input: with a line editor in a terminal, as plain lines
 * elsewhere.
 *
 * The editor is libedit; characters, signals and pastes are ours.
 * (1) The terminal is in libedit's mode only within el_wgets. Signals that end or stop the program
 *     there restore it first; the handler only writes the signal's number into a pipe, because
 *     libedit cannot be called from it, and any thread may be the one that is interrupted.
 * (2) Its screen is never resized under a line that is being edited: libedit would keep a cursor
 *     outside of the smaller screen. The line is ended at the next key and edited again.
 * (3) Enter reaches libedit as LF when the message is complete, and as CR, which is bound to a line
 *     break, when it is not. */
#include "cmd/editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "cmd/history.h"
#include "cmd/lines.h"

enum { REPLACEMENT = 0xFFFD };

/* The signals that matter while a line is edited. */
static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

struct editor {
    char *text; /* the message handed out last */
    size_t len, capacity;
    struct lines lines; /* when it is no terminal */

    EditLine *el; /* NULL: no terminal */
    HistoryW *past;
    FILE *out;
    struct history history;
    struct sigaction before[N_SIGNALS];
    int wake; /* the reading end of the signals' pipe */
    unsigned char bytes[4];
    size_t n_bytes; /* of a character that is not complete */
    bool knows_paste, is_pasting, has_new_size;
    enum stop { GOES_ON, IS_CANCELLED, IS_RESIZED } stop; /* why el_wgets is to end */
    wchar_t *kept; /* the line to go on with after a resize; NULL: none */
    int kept_cursor;
    int failure; /* errno of reading; 0: none */
};

/* The writing end; -1: none. */
static int wake_fd = -1;

/* ---- text --------------------------------------------------------------------------------- */

static int append(struct editor *e, const char *at, size_t len, struct err *err) {
    if (!array_grow(&e->text, e->len + len, &e->capacity, 1))
        return err_memory(err, "a message");
    if (len > 0)
        memcpy(e->text + e->len, at, len);
    e->len += len;
    return SLUICE_OK;
}

static int append_wide(struct editor *e, const wchar_t *at, size_t n, struct err *err) {
    int status = SLUICE_OK;
    for (size_t i = 0; !status && i < n; i++) {
        char bytes[4];
        status = append(e, bytes, utf8_put((uint32_t)at[i], bytes), err);
    }
    return status;
}

/* The first character of some bytes, or the replacement for one byte that begins none. */
static size_t next_character(struct str s, wchar_t *out) {
    uint32_t c;
    size_t n = utf8_decode(s, &c);
    *out = n && c ? (wchar_t)c : REPLACEMENT;
    return n ? n : 1;
}

/* Malloced and terminated; NULL when memory ran out. */
static wchar_t *widen(struct str s) {
    wchar_t *out = malloc((s.len + 1) * sizeof *out);
    size_t n = 0;
    while (out && s.len > 0)
        s = str_skip(s, next_character(s, &out[n++]));
    if (out)
        out[n] = 0;
    return out;
}

/* ---- messages ----------------------------------------------------------------------------- */

static const char quotes[] = "\"\"\"";
enum { QUOTES = 3 };

static struct str trim_end(struct str s) {
    while (s.len > 0 && strchr(" \t\r\n", s.at[s.len - 1]) && s.at[s.len - 1])
        s.len--;
    return s;
}

static bool is_open_block(struct str s) {
    struct str used = trim_end(s);
    return str_starts(s, quotes) && (used.len < 2 * QUOTES || !str_ends(used, quotes));
}

/* An odd number of backslashes at the end. */
static bool ends_in_backslash(struct str s) {
    size_t n = 0;
    while (n < s.len && s.at[s.len - 1 - n] == '\\')
        n++;
    return n % 2 == 1;
}

static bool is_complete(struct str s) {
    return !is_open_block(s) && !ends_in_backslash(s);
}

static struct message finish(struct str s) {
    struct message m = {.text = s, .is_block = str_starts(s, quotes) && !is_open_block(s)};
    if (m.is_block) {
        m.text = trim_end(s);
        m.text = (struct str){m.text.at + QUOTES, m.text.len - 2 * QUOTES};
        if (str_starts(m.text, "\n"))
            m.text = str_skip(m.text, 1);
    }
    while (str_ends(m.text, "\n"))
        m.text.len--;
    return m;
}

/* ---- plainly ------------------------------------------------------------------------------ */

static int read_lines(struct editor *e, struct err *err) {
    struct str line;
    int found = lines_next(&e->lines, &line, err);
    for (int status = found; status > 0;) {
        status = append(e, line.at, line.len, err);
        struct str so_far = {e->text, e->len};
        if (status || is_complete(so_far))
            return status ? status : 1;
        bool is_block = is_open_block(so_far);
        status = lines_next(&e->lines, &line, err);
        if (status < 0)
            return status;
        e->len -= !is_block && status > 0;
        if (status > 0 && append(e, "\n", 1, err))
            return err->code;
    }
    return found;
}

/* ---- signals ------------------------------------------------------------------------------ */

static void note_signal(int number) {
    int kept = errno;
    char byte = (char)number;
    ssize_t ignored = write(wake_fd, &byte, 1); /* a full pipe wakes it anyway */
    (void)ignored;
    errno = kept;
}

static void take_signal(struct editor *e, int i) {
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signals[i], NULL, &e->before[i]);
    if (e->before[i].sa_handler != SIG_IGN) /* nohup */
        sigaction(signals[i], &action, NULL);
}

static void show_paste_marks(const struct editor *e, bool on) {
    if (e->knows_paste)
        fprintf(e->out, "\033[?2004%c", on ? 'h' : 'l');
    fflush(e->out);
}

static void begin_editing(struct editor *e) {
    for (int i = 0; i < N_SIGNALS; i++)
        take_signal(e, i);
    el_wset(e->el, EL_PREP_TERM, 1); /* before the prompt: what is typed from then on is for us */
    show_paste_marks(e, true);
}

static void end_editing(struct editor *e) {
    show_paste_marks(e, false);
    el_wset(e->el, EL_PREP_TERM, 0);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &e->before[i], NULL);
}

/* Restores the terminal, then lets the signal take its default effect. */
static void pass_on(struct editor *e, int number) {
    end_editing(e);
    raise(number);
    begin_editing(e);
    el_wset(e->el, EL_REFRESH);
}

static void handle_signal(struct editor *e, int number) {
    if (number == SIGINT) {
        e->stop = IS_CANCELLED;
    } else if (number == SIGWINCH) {
        e->has_new_size = true;
    } else if (number == SIGCONT) { /* another program had the terminal */
        end_editing(e);
        begin_editing(e);
        el_wset(e->el, EL_REFRESH);
    } else {
        pass_on(e, number);
    }
}

/* ---- characters --------------------------------------------------------------------------- */

static struct editor *editor_of(EditLine *el) {
    void *e;
    el_wget(el, EL_CLIENTDATA, &e);
    return e;
}

/* The line as it stands, in e->text. */
static struct str edited(struct editor *e) {
    struct err ignored;
    const LineInfoW *line = el_wline(e->el);
    e->len = 0;
    append_wide(e, line->buffer, (size_t)(line->lastchar - line->buffer), &ignored);
    return (struct str){e->text, e->len};
}

/* One more byte; 1, 0 at the end, -1 on failure. Signals are handled meanwhile. */
static int read_byte(struct editor *e) {
    while (e->stop == GOES_ON) {
        struct pollfd fds[] = {{.fd = 0, .events = POLLIN}, {.fd = e->wake, .events = POLLIN}};
        char number;
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return -1;
        if (fds[1].revents && read(e->wake, &number, 1) == 1) {
            handle_signal(e, number);
        } else if (fds[0].revents && e->has_new_size && !e->is_pasting && e->n_bytes == 0) {
            e->stop = IS_RESIZED;
        } else if (fds[0].revents) {
            ssize_t n = read(0, e->bytes + e->n_bytes, 1);
            e->n_bytes += n > 0;
            if (n >= 0 || (errno != EINTR && errno != EAGAIN))
                return (int)n;
        }
    }
    return 1;
}

/* Bytes that a character beginning with this one has. */
static size_t expected_bytes(unsigned char first) {
    return first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 1;
}

static bool is_continuation(unsigned char c) {
    return (c & 0xC0) == 0x80;
}

/* The next character from the terminal. What is invalid becomes the replacement character. A zero
 * byte, which is also what the kernel makes of a Ctrl-D typed during an answer, is left out. */
static int read_character(struct editor *e, wchar_t *out) {
    while (e->n_bytes == 0 || (e->n_bytes < expected_bytes(e->bytes[0]) &&
                               (e->n_bytes == 1 || is_continuation(e->bytes[e->n_bytes - 1])))) {
        int n = read_byte(e);
        if (n <= 0) {
            e->failure = n < 0 ? errno : 0;
            return n;
        }
        if (e->stop != GOES_ON) {
            e->n_bytes = 0;
            return 1;
        }
        e->n_bytes -= e->n_bytes == 1 && e->bytes[0] == 0;
    }
    size_t n = next_character((struct str){(const char *)e->bytes, e->n_bytes}, out);
    memmove(e->bytes, e->bytes + n, e->n_bytes -= n);
    return 1;
}

/* Keeps the line as it is, to be edited again. */
static void keep_line(struct editor *e) {
    const LineInfoW *line = el_wline(e->el);
    size_t n = (size_t)(line->lastchar - line->buffer);
    e->kept = malloc((n + 1) * sizeof *e->kept);
    if (!e->kept)
        return;
    wmemcpy(e->kept, line->buffer, n);
    e->kept[n] = 0;
    e->kept_cursor = (int)(line->cursor - line->lastchar);
}

enum { KEY_RESTORE = 0x1C }; /* Ctrl-backslash, which the terminal makes a signal of */

/* What libedit reads from. */
static int read_key(EditLine *el, wchar_t *key) {
    struct editor *e = editor_of(el);
    enum stop before = e->stop;
    if (e->kept && before == GOES_ON) {
        *key = KEY_RESTORE;
        return 1;
    }
    int n = read_character(e, key);
    if (e->stop == IS_RESIZED && before == GOES_ON)
        keep_line(e);
    if (e->stop != GOES_ON)
        *key = L'\n'; /* there is nothing else to read until the line ends */
    else if (n == 1 && !e->is_pasting && (*key == L'\n' || *key == L'\r'))
        *key = is_complete(edited(e)) ? L'\n' : L'\r';
    return n;
}

/* ---- keys --------------------------------------------------------------------------------- */

static unsigned char insert_break(EditLine *el, int unused) {
    (void)unused;
    return el_winsertstr(el, L"\n") ? CC_ERROR : CC_REFRESH;
}

/* Enter within a message that is not complete. */
static unsigned char continue_line(EditLine *el, int unused) {
    struct editor *e = editor_of(el);
    const LineInfoW *line = el_wline(el);
    el_cursor(el, (int)(line->lastchar - line->cursor));
    if (!is_open_block(edited(e)))
        el_deletestr(el, 1); /* the backslash */
    return insert_break(el, unused);
}

/* Inserts what a terminal says was pasted: line breaks are part of it, other control characters
 * are not. */
static unsigned char insert_pasted(EditLine *el, int unused) {
    static const wchar_t end[] = L"\033[201~";
    enum { END = sizeof end / sizeof *end - 1 };
    struct editor *e = editor_of(el);
    wchar_t *text = NULL, c;
    size_t n = 0, capacity = 0, matched = 0;
    bool was_return = false;
    (void)unused;
    e->is_pasting = true;
    while (matched < END && el_wgetc(el, &c) == 1 && e->stop == GOES_ON) {
        matched = c == end[matched] ? matched + 1 : c == end[0];
        if (!array_grow(&text, n + 1, &capacity, sizeof *text)) /* and for the zero */
            break;
        bool is_second = was_return && c == L'\n';
        was_return = c == L'\r';
        if (c == L'\r' || (c == L'\n' && !is_second))
            text[n++] = L'\n';
        else if (c == L'\t' || (c >= 0x20 && c != 0x7F))
            text[n++] = c;
    }
    e->is_pasting = false;
    if (matched == END)
        n -= END - 1; /* its escape was left out */
    if (text)
        text[n] = 0;
    bool is_good = n == 0 || el_winsertstr(el, text) == 0;
    free(text);
    return is_good ? CC_REFRESH : CC_ERROR;
}

static unsigned char insert_kept(EditLine *el, int unused) {
    struct editor *e = editor_of(el);
    (void)unused;
    if (e->kept && e->kept[0] && el_winsertstr(el, e->kept) == 0)
        el_cursor(el, e->kept_cursor);
    free(e->kept);
    e->kept = NULL;
    return CC_REFRESH;
}

static wchar_t *prompt(EditLine *el) {
    static wchar_t text[] = L"> ";
    (void)el;
    return text;
}

static void bind_keys(EditLine *el) {
    static const wchar_t *const keys[][2] = {
        {L"^M", L"sluice-continue"},         {L"\\e^M", L"sluice-break"},
        {L"\\e^J", L"sluice-break"},         {L"\\e[200~", L"sluice-paste"},
        {L"^\\", L"sluice-restore"},         {L"^R", L"em-inc-search-prev"},
        {L"\\e[1;5D", L"ed-prev-word"},      {L"\\e[1;5C", L"em-next-word"},
        {L"\\e[1;3D", L"ed-prev-word"},      {L"\\e[1;3C", L"em-next-word"},
        {L"\\e[3~", L"ed-delete-next-char"}, {L"\\e[H", L"ed-move-to-beg"},
        {L"\\e[F", L"ed-move-to-end"},       {L"\\e[1~", L"ed-move-to-beg"},
        {L"\\e[4~", L"ed-move-to-end"},      {L"\\e[5~", L"ed-prev-history"},
        {L"\\e[6~", L"ed-next-history"},
    };
    el_wset(el, EL_EDITOR, L"emacs");
    el_wset(el, EL_ADDFN, L"sluice-continue", L"Go on in the next line", continue_line);
    el_wset(el, EL_ADDFN, L"sluice-break", L"Insert a line break", insert_break);
    el_wset(el, EL_ADDFN, L"sluice-restore", L"Go on after a resize", insert_kept);
    el_wset(el, EL_ADDFN, L"sluice-paste", L"Insert what is pasted", insert_pasted);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        el_wset(el, EL_BIND, keys[i][0], keys[i][1], NULL);
    /* CR and LF as they are: CRLF in a paste is one line break. */
    el_wset(el, EL_SETTY, L"-d", L"-icrnl", L"-inlcr", NULL);
}

/* ---- history ------------------------------------------------------------------------------ */

static void remember(void *user, struct str entry) {
    struct editor *e = user;
    HistEventW event;
    wchar_t *wide = widen(entry);
    if (wide && wide[0])
        history_w(e->past, &event, H_ENTER, wide);
    free(wide);
}

/* Adds an entry to the history, also for later runs; the same one twice in a row counts once. */
static void keep(struct editor *e, struct str entry) {
    HistEventW event;
    struct err err;
    wchar_t *wide = widen(entry);
    bool is_new = wide && wide[0] &&
                  (history_w(e->past, &event, H_FIRST) < 0 || wcscmp(event.str, wide) != 0);
    if (is_new && history_w(e->past, &event, H_ENTER, wide) >= 0 &&
        history_append(&e->history, entry, &err)) {
        fprintf(e->out, "(the history is not kept: %s)\n", err.text);
        history_close(&e->history);
    }
    free(wide);
}

/* ---- a terminal --------------------------------------------------------------------------- */

/* libedit takes widths and classes of characters from the locale, so it must be a UTF-8 one. */
static void choose_locale(void) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static int open_wake(struct editor *e, struct err *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return err_set(err, SLUICE_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    e->wake = ends[0];
    wake_fd = ends[1];
    return SLUICE_OK;
}

static int open_terminal(struct editor *e, int fd, struct err *err) {
    HistEventW event;
    const char *kind = getenv("TERM");
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    e->out = copy < 0 ? NULL : fdopen(copy, "w"); /* stderr itself would write byte by byte */
    if (!e->out)
        return err_set(err, SLUICE_ERR_IO, "cannot open the terminal: %s", strerror(errno));
    choose_locale();
    e->knows_paste = kind && *kind && strcmp(kind, "dumb") != 0;
    e->el = el_init("sluice", stdin, e->out, e->out);
    e->past = history_winit();
    if (!e->el || !e->past)
        return err_memory(err, "the line editor");
    el_wset(e->el, EL_CLIENTDATA, e);
    el_wset(e->el, EL_PROMPT, prompt);
    el_wset(e->el, EL_GETCFN, read_key);
    el_wset(e->el, EL_HIST, history_w, e->past);
    bind_keys(e->el);
    history_w(e->past, &event, H_SETSIZE, HISTORY_ENTRIES);
    history_w(e->past, &event, H_SETUNIQUE, 1);
    history_open(&e->history);
    if (history_read(&e->history, remember, e, err)) {
        fprintf(e->out, "(%s)\n", err->text);
        history_close(&e->history);
    }
    return open_wake(e, err);
}

static int read_terminal(struct editor *e, struct err *err) {
    for (;;) {
        int n;
        e->stop = GOES_ON;
        e->has_new_size = false;
        e->failure = 0;
        begin_editing(e);
        const wchar_t *line = el_wgets(e->el, &n);
        end_editing(e);
        if (e->stop == IS_CANCELLED && n <= 1)
            fputs("(Ctrl-D ends)\n", e->out);
        if (e->stop != GOES_ON)
            continue;
        if (!line) {
            fputc('\n', e->out);
            fflush(e->out);
            return e->failure ? err_set(err, SLUICE_ERR_IO, "cannot read the terminal: %s",
                                        strerror(e->failure))
                              : 0;
        }
        e->len = 0;
        if (append_wide(e, line, (size_t)n, err))
            return err->code;
        struct str entry = {e->text, e->len};
        entry.len -= str_ends(entry, "\n");
        keep(e, entry);
        return 1;
    }
}

/* ---- both --------------------------------------------------------------------------------- */

int editor_open(struct editor **out, struct err *err) {
    struct editor *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e)
        return err_memory(err, "the editor");
    e->wake = -1;
    e->lines.fd = 0;
    int fd = isatty(2) ? 2 : isatty(1) ? 1 : -1;
    if (isatty(0) && fd >= 0 && open_terminal(e, fd, err)) {
        editor_close(e);
        return err->code;
    }
    *out = e;
    return SLUICE_OK;
}

void editor_close(struct editor *e) {
    if (!e)
        return;
    if (e->el)
        el_end(e->el);
    if (e->past)
        history_wend(e->past);
    if (e->out)
        fclose(e->out);
    if (e->wake >= 0) {
        close(e->wake);
        close(wake_fd);
        wake_fd = -1;
    }
    history_close(&e->history);
    free(e->kept);
    lines_free(&e->lines);
    free(e->text);
    free(e);
}

bool editor_is_terminal(const struct editor *e) {
    return e->el;
}

int editor_read(struct editor *e, struct message *out, struct err *err) {
    e->len = 0;
    int status = e->el ? read_terminal(e, err) : read_lines(e, err);
    if (status > 0)
        *out = finish((struct str){e->text, e->len});
    return status;
}
