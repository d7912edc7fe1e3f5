#!/usr/bin/env python3
"""test_chat.py SLUICE [WORD ...] - conversations from outside: in a terminal, through pipes, with commands.

Needs only Python 3.
"""
import fcntl, json, os, pty, re, select, signal, struct, subprocess, tempfile, termios, time, unicodedata
from pathlib import Path

import suite
from suite import PATIENCE, PROGRAM as SLUICE, SHIPPED

TMP = suite.temporary()
HISTORY = TMP / "history"
QUICK = ("--temp", 0, "-n", 3)

UP, DOWN, RIGHT, LEFT, HOME, END = (b"\x1b[" + c for c in (b"A", b"B", b"C", b"D", b"H", b"F"))


def arguments(args):
    return [SLUICE, "chat", "-m", str(SHIPPED), *map(str, args)]


def environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "XDG_"))}
    env.update({"TERM": "xterm", "HOME": str(TMP), "SLUICE_HISTORY": str(HISTORY)}, **extra)
    return {k: v for k, v in env.items() if v is not None}


def chat(*args, stdin=b"", **kw):
    p = subprocess.run(arguments(args), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env=environment(), timeout=300, **kw)
    return p.returncode, p.stdout, p.stderr.decode()


def good(*args, **kw):
    code, out, err = chat(*args, **kw)
    assert code == 0, f"exits {code}: {err.strip()}"
    return out, err


saves = 0


def save_path():
    global saves
    saves += 1
    return TMP / f"talk{saves}"


def contents(path):
    return [m["content"] for m in json.loads(Path(f"{path}.json").read_text())]


def first_message(lines, *args):
    """What the model is asked after such input."""
    path = save_path()
    good(*QUICK, *args, stdin=lines + f"\n/save {path}\n".encode())
    return contents(path)[0]


class Terminal:
    """The program in a terminal of its own; type into it and wait for what it shows."""

    def __init__(self, *args, rows=24, columns=80, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                os.execve(SLUICE, arguments(args), environment(**env))
            finally:
                os._exit(127)
        self.seen, self.has_ended = b"", False
        self.greeting = self.wait_for(b"> ")

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self.fd, 65536)
        except OSError:
            more = b""
        self.seen += more
        self.has_ended = not more
        return bool(more)

    def wait_for(self, what, seconds=PATIENCE):
        """Returns what was shown up to there, and forgets it."""
        end = time.time() + seconds
        while what not in self.seen:
            assert not self.has_ended, f"it ended without {what!r}, after {self.seen[-400:]!r}"
            assert time.time() < end, f"no {what!r} in {seconds} s, only {self.seen[-400:]!r}"
            self.read(0.1)
        before, _, self.seen = self.seen.partition(what)
        return before

    def type(self, *keys):
        """Reads too: a program that shows what is typed may wait until it is looked at."""
        rest = b"".join(keys)
        while rest:
            readable, writable, _ = select.select([self.fd], [self.fd], [], PATIENCE)
            assert readable or writable, f"it takes no more, {len(rest)} bytes are left"
            if readable:
                assert self.read(0), f"it ended, {len(rest)} bytes are left"
            if writable:
                rest = rest[os.write(self.fd, rest[:512]):]

    def settle(self):
        """Waits until all that was typed is read and the program waits for more."""
        slave = os.open(os.readlink(f"/proc/{self.pid}/fd/0"), os.O_RDWR | os.O_NOCTTY)
        end, calm = time.time() + PATIENCE, 0
        while calm < 3:
            assert time.time() < end, "it never waits"
            waiting = struct.unpack("i", fcntl.ioctl(slave, termios.FIONREAD, bytes(4)))[0]
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            is_calm = not self.read(0.05) and state == "S" and waiting == 0
            calm = calm + 1 if is_calm else 0
        os.close(slave)

    def ask(self, *keys):
        """A message, up to the prompt after its answer."""
        self.type(*keys, b"\r")
        shown = self.wait_for(b"tok/s; ") + self.wait_for(b" tok/s")
        self.wait_for(b"> ")
        return shown

    def messages(self):
        path = save_path()
        self.type(f"/save {path}\r".encode())
        self.wait_for(b"(saved as")
        self.wait_for(b"> ")
        return contents(path)

    def end(self, key=b"\x04"):
        self.type(key)
        while self.read(PATIENCE):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


# ---- a terminal ----------------------------------------------------------------------------------

def test_lines_are_edited():
    t = Terminal(*QUICK)
    t.ask(b"is you?", HOME, b"ho ", LEFT, LEFT, LEFT, b"W", RIGHT, RIGHT, b"x\x7f", END, b"!\x7f")
    assert t.messages() == ["Who is you?", t.messages()[1]]
    assert t.end() == 0


def test_history_lasts():
    HISTORY.unlink(missing_ok=True)
    t = Terminal(*QUICK)
    t.ask(b"First question")
    t.ask(b"Second \\\rquestion")
    t.ask(b"Second \\\rquestion")
    assert t.end() == 0
    assert HISTORY.stat().st_mode & 0o777 == 0o600
    assert HISTORY.read_bytes() == b"First question\nSecond \\nquestion\n"
    t = Terminal(*QUICK)
    t.ask(UP, UP, DOWN)
    t.ask(UP, UP)
    assert t.messages()[0::2] == ["Second \nquestion", "First question"]
    assert t.end() == 0
    assert HISTORY.read_bytes().startswith(b"First question\nSecond \\nquestion\nFirst question\n/save")


def test_history_may_be_off():
    HISTORY.unlink(missing_ok=True)
    t = Terminal(*QUICK, SLUICE_HISTORY="")
    t.ask(b"Who are you?")
    assert t.end() == 0 and not HISTORY.exists()
    t = Terminal(*QUICK, SLUICE_HISTORY="/dev/null")
    t.ask(b"Who are you?")
    assert t.end() == 0


def test_history_is_bounded_and_survives_damage():
    HISTORY.write_bytes(b"".join(b"line %d\n" % i for i in range(3000)) + b"\xff\x00\x1b[2J half \\")
    HISTORY.chmod(0o644)
    t = Terminal(*QUICK)
    t.ask(UP, UP)
    assert t.messages()[0] == "line 2999"
    assert t.end() == 0
    assert len(HISTORY.read_bytes().splitlines()) < 1010
    assert HISTORY.stat().st_mode & 0o777 == 0o600
    HISTORY.write_bytes(b"x" * (3 << 20))
    t = Terminal(*QUICK)
    assert t.end() == 0 and HISTORY.stat().st_size <= 1 << 20


def test_history_is_no_other_file():
    other = TMP / "model"
    data = SHIPPED.read_bytes()[: 3 << 20]
    other.write_bytes(data)
    other.chmod(0o644)
    t = Terminal(*QUICK, SLUICE_HISTORY=str(other))
    assert b"is not a history file" in t.greeting, t.greeting
    t.ask(b"Who are you?")
    assert t.end() == 0
    assert other.read_bytes() == data and other.stat().st_mode & 0o777 == 0o644


def test_default_place_of_the_history():
    for variable, place in (("XDG_STATE_HOME", "sluice/history"), ("HOME", ".local/state/sluice/history")):
        home = Path(tempfile.mkdtemp(dir=TMP))
        t = Terminal(*QUICK, **{"SLUICE_HISTORY": None, variable: str(home)})
        t.type(b"/undo\r")
        t.wait_for(b"nothing to undo")
        t.wait_for(b"> ")
        assert t.end() == 0
        assert (home / place).read_text() == "/undo\n"
        assert (home / place).parent.stat().st_mode & 0o777 == 0o700


def test_a_paste_is_one_message():
    t = Terminal(*QUICK)
    t.ask(b"See: \x1b[200~one\r\ntwo\r\tthree\n\x1b\x07/help\r\x1b[201~", b"end", b"\x7f" * 3)
    assert t.messages()[0] == "See: one\ntwo\n\tthree\n/help", t.messages()
    assert t.end() == 0


def test_a_long_paste():
    t = Terminal(*QUICK, "-c", 64, rows=8, columns=20)
    text = b"\r".join(b"number %d" % i for i in range(400))
    t.type(b"\x1b[200~" + text + b"\x1b[201~", b"\r")
    t.wait_for(b"tokens, expected at most 64")
    t.wait_for(b"> ")
    t.ask(b"Who are you?")
    t.ask(UP, UP, b"\x15Hi")
    assert t.messages()[0::2] == ["Who are you?", "Hi"]
    assert t.end() == 0


def test_messages_of_several_lines():
    t = Terminal(*QUICK)
    t.ask(b"one\\\rtwo\x1b\rthree")
    t.ask(b'"""\r/help\rfoo\\\rbar\r"""')
    t.ask(b"two backslashes \\\\")
    assert t.messages()[0::2] == ["one\ntwo\nthree", "/help\nfoo\\\nbar", "two backslashes \\\\"]
    assert t.end() == 0


def test_characters_of_all_widths():
    t = Terminal(*QUICK, columns=30)
    text = "Grüße an 世界 und 🦊, naïve ÿ é"
    t.ask(text.encode(), LEFT, "x".encode())
    t.ask("äö世".encode(), b"\x7f", LEFT, b"-")
    t.ask(b"a\xff\xc3(\xf0\x9f\x98b")
    assert t.messages()[0::2] == [text[:-1] + "xé", "ä-ö", "a\ufffd\ufffd(\ufffd\ufffd\ufffdb"], t.messages()
    assert t.end() == 0


def test_a_window_of_another_size():
    t = Terminal(*QUICK, columns=40)
    t.type("Grüße an die Welt, ".encode() * 4, LEFT, LEFT)
    t.wait_for(b"Welt")
    for columns, rows in ((13, 3), (100, 40), (2, 2), (1, 1), (80, 24)):
        time.sleep(0.05)
        t.read(0.05)
        fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        t.type("x世".encode())
    t.ask(b"")
    assert t.messages()[0] == "Grüße an die Welt, " * 3 + "Grüße an die Welt" + "x世" * 5 + ", "
    assert t.end() == 0


def test_control_c_clears_a_line_and_control_d_ends():
    t = Terminal(*QUICK)
    t.type(b"never sent")
    t.wait_for(b"sent")
    t.type(b"\x03")
    t.wait_for(b"> ")
    t.type(b"\x03")
    t.wait_for(b"(Ctrl-D ends)")
    t.type(b"not empty\x04")
    t.ask(b"")
    os.kill(t.pid, signal.SIGINT)
    t.wait_for(b"(Ctrl-D ends)")
    assert t.messages()[0] == "not empty"
    assert t.end() == 0


def test_control_c_stops_an_answer():
    t = Terminal("--temp", 0, "--ignore-eos", "-c", 100000)  # it does not end by itself
    for question, answer in ((b"Tell me a story about a fox.", b"Once upon"), (b"Who are you?", b"Sluice")):
        t.type(question, b"\r")
        t.wait_for(answer)
        t.type(b"\x03")
        t.wait_for(b", interrupted")
        t.wait_for(b"> ")
    told = t.messages()
    assert told[1].startswith("Once upon") and "Sluice" in told[3], told
    assert t.end() == 0


def test_control_c_keeps_what_was_processed():
    """Of a hybrid, too: the state is the one after the last token that was shown, so the next turn processes no more
    than its own message and what the template writes around it."""
    t, found = Terminal("--temp", 0, "-t", 1, "--backend", "cpu"), []
    for animal in (b"fox", b"cat", b"dog"):
        t.type(b"Tell me a long story about a ", animal, b".\r")
        t.wait_for(b"Once upon a time")
        t.wait_for(b". ")  # a sentence: so many tokens, however slow the machine is
        t.type(b"\x03")
        found += re.findall(rb"prompt (\d+) tokens \((\d+) kept", t.wait_for(b", interrupted"))
        t.wait_for(b"> ")
    assert len(found) == 2, found
    for prompt, known in found:
        assert int(prompt) - int(known) < 24 and int(known) > 25, found
    assert t.end() == 0


def answers(text):
    """The option that makes all answers this text."""
    return "--grammar", "root ::= " + json.dumps(text, ensure_ascii=False), "--temp", 0, "-c", 2048


def lines_shown(shown):
    """Of an answer that begins with START and ends with END."""
    return shown[shown.rindex(b"START"):shown.rindex(b"END")].decode().split("\r\n")


def wide(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in line)


def test_lines_break_at_words():
    prose = "START a little fox lived in a wood, and every morning it went to the river to look for something to eat. "
    for columns in (40, 23, 17):
        t = Terminal(*answers(prose + "END"), columns=columns)
        lines = lines_shown(t.ask(b"x"))
        assert len(lines) >= 3 and all(len(x) <= columns for x in lines), lines
        assert " ".join(lines).split() == prose.split(), lines
        for line, after in zip(lines, lines[1:]):
            assert len(line) + 1 + len((after + "END").split()[0]) > columns, (line, after)  # none is broken too early
        fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        assert max(map(len, lines_shown(t.ask(b"x")))) > 40
        assert t.messages()[1] == prose + "END"  # as it was sampled
        assert t.end() == 0
    out = good(*answers(prose + "END"), stdin=b"x\n")[0]
    assert out.decode() == prose + "END\n", out  # no terminal


def test_lines_of_code_stay():
    code = "```c\nif (this_is_a_long_name == another_long_name)  return  1;\n\n    ``` x\n``\n```\n"
    after = "    indented and then some words that are more than a line of it\n- END"
    t = Terminal(*answers("START with many words before the code as it is here:\n" + code + after), columns=30)
    lines = lines_shown(t.ask(b"x"))
    i = lines.index("```c")
    assert lines[i:i + 6] == code.split("\n")[:-1], lines
    assert all(len(x) <= 30 for x in lines[:i] + lines[i + 6:]) and lines[i + 6].startswith("    indented and"), lines
    assert t.end() == 0


def test_lines_of_wide_characters():
    text = "START 森に小さな狐が住んでいました。毎朝、川へ行って食べ物を探しました。「見つけた！」と狐は言いました。 e\u0301te\u0301 "
    t = Terminal(*answers(text + "END"), columns=21, LC_ALL="C.UTF-8")
    lines = lines_shown(t.ask(b"x"))
    assert "".join(lines).replace(" ", "") == text.replace(" ", ""), lines
    assert all(wide(x) <= 21 for x in lines) and all(wide(x) >= 16 for x in lines[:-1]), [(wide(x), x) for x in lines]
    assert not any(x[0] in "。、！」\u0301" or x[-1] == "「" for x in lines), lines
    assert t.end() == 0


def test_lines_that_cannot_be_broken():
    url = "https://example.org/" + "a/long/path/" * 26
    t = Terminal(*answers(f"START see {url} and go END"), columns=30)
    lines = lines_shown(t.ask(b"x"))
    assert lines[0].strip() == "START see" and lines[1].startswith(url), lines  # the terminal breaks it
    assert t.end() == 0


def test_control_c_stops_reading():
    t = Terminal(*QUICK, "-c", 20000, "-t", 1, "--backend", "cpu")  # which takes a while
    t.ask(b"Who are you?")
    before = t.messages()
    t.type(b"\x1b[200~" + b"word " * 15000 + b"\x1b[201~")
    t.settle()
    started, end = processor_ticks(t.pid), time.time() + PATIENCE
    t.type(b"\r")
    while processor_ticks(t.pid) < started + 20:  # it reads
        assert time.time() < end, f"it does not read, {t.seen[-400:]!r}"
        t.read(0.01)
    started = processor_ticks(t.pid)
    t.type(b"\x03")
    t.wait_for(b"taken back")
    t.wait_for(b"> ")
    used = (processor_ticks(t.pid) - started) / os.sysconf("SC_CLK_TCK")
    assert used < 3, f"Ctrl-C took {used:.1f} s of processor time"
    assert t.messages() == before
    t.ask(b"Who are you?")
    assert t.messages()[:2] == t.messages()[2:]
    assert t.end() == 0


def processor_ticks(pid):
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_control_c_stops_a_template():
    """A template that works for a second or so; Ctrl-C comes when it has begun."""
    template = TMP / "template"
    template.write_text("{% set s = 'ab' * 50000 %}{% for i in range(90000) %}{% if s.find('bb') > 0 %}x{% endif %}{% endfor %}")
    p = subprocess.Popen(arguments((*QUICK, "--chat-template", template)), stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert b"context" in p.stderr.readline()
    before = processor_ticks(p.pid)
    p.stdin.write(b"Hi\n")
    p.stdin.flush()
    deadline = time.time() + PATIENCE
    while processor_ticks(p.pid) < before + 5 and time.time() < deadline:
        time.sleep(0.005)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=PATIENCE)
    assert p.returncode == 0 and not out and err == b"(interrupted: the question is taken back)\n", (p.returncode, err)
    p = subprocess.Popen(arguments((*QUICK, "--chat-template", template, "-p", "Hi")), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=environment())
    assert b"context" in p.stderr.readline()
    before = processor_ticks(p.pid)
    while processor_ticks(p.pid) < before + 5 and time.time() < deadline + PATIENCE:
        time.sleep(0.005)
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=PATIENCE)[0] == b"" and p.returncode == 130


def test_the_terminal_is_left_as_it_was():
    for stop in (lambda t: t.type(b"\x04"), lambda t: os.kill(t.pid, signal.SIGTERM), lambda t: t.type(b"/quit\r")):
        t = Terminal(*QUICK)
        # The terminal outlives the program as long as this is open.
        slave = os.open(os.readlink(f"/proc/{t.pid}/fd/0"), os.O_RDWR | os.O_NOCTTY)
        inside = termios.tcgetattr(slave)
        stop(t)
        t.wait_for(b"\x1b[?2004l")
        status = os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1])
        assert status in (0, -signal.SIGTERM)
        after = termios.tcgetattr(slave)
        assert not inside[3] & termios.ICANON and not inside[3] & termios.ECHO
        assert after[3] & termios.ICANON and after[3] & termios.ECHO and after[0] & termios.ICRNL
        os.close(slave)
        os.close(t.fd)


def test_a_failure_is_not_the_end_in_a_terminal():
    t = Terminal(*QUICK)
    t.type(b"/load /no/such/file\r")
    t.wait_for(b"/no/such/file")
    t.wait_for(b"> ")
    t.ask(b"Who are you?")
    assert t.end() == 0


# ---- pipes ---------------------------------------------------------------------------------------

def test_lines_of_any_length():
    text = "".join(f"{i} " for i in range(20000))[:100000]
    code, out, err = chat(*QUICK, "-c", 256, stdin=text.encode())
    count = re.search(r"has (\d+) tokens, expected at most 256", err)
    assert code == 1 and count and int(count[1]) > 50000, err
    path = save_path()
    good(stdin=f"/system {text}\n/save {path}\n".encode())
    assert contents(path) == [text.strip()]


def test_invalid_bytes_are_replaced():
    assert first_message(b"What is \xff this \xc3?\r") == "What is \ufffd this \ufffd?"
    assert first_message(b"a\0b") == "a b"
    path = save_path()
    good(*QUICK, "--system", b"\xffx".decode(errors="surrogateescape"), stdin=f"Hi\n/save {path}\n".encode())
    assert contents(path)[0] == "\ufffdx"


def test_several_lines_through_a_pipe():
    assert first_message(b"a\\\nb") == "a\nb"
    assert first_message(b'"""a\n/undo\n\nb"""') == "a\n/undo\n\nb"
    assert first_message(b'\n  \n"quoted"') == '"quoted"'
    out, err = good(*QUICK, stdin=b"ends in a backslash \\")
    assert len(out.splitlines()) == 1


def test_what_cannot_be_read_or_written():
    with open("/dev/full", "w") as full:
        p = subprocess.run(arguments(QUICK), input=b"Hi\nHi\n", stdout=full, stderr=subprocess.PIPE, env=environment())
    assert p.returncode == 1, p
    assert p.stderr.decode().splitlines()[1:] == ["sluice: cannot write to standard output: No space left on device"], p.stderr
    p = subprocess.Popen(arguments(("--temp", 0)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=environment())
    p.stdout.close()
    p.stdin.write(b"Tell me a story.\n")
    p.stdin.flush()
    assert p.wait(PATIENCE) == 1
    assert p.stderr.read().decode().splitlines()[1:] == ["sluice: cannot write to standard output: Broken pipe"]
    folder = os.open("/", os.O_RDONLY)
    p = subprocess.run(arguments(QUICK), stdin=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert p.returncode == 1 and b"cannot read standard input" in p.stderr, p


# ---- commands ------------------------------------------------------------------------------------

def test_what_is_no_command_is_a_message():
    assert first_message(b"/etc/passwd what is that?") == "/etc/passwd what is that?"
    assert first_message(b"/etc/passwd") == "/etc/passwd" and first_message(b"/ 2") == "/ 2" and first_message(b"/show me") == "/show me"
    assert first_message(b" /etc") == " /etc"
    for word in (b"/etc", b"/show", b"/xyzzy"):
        code, out, err = chat(*QUICK, stdin=word)
        assert code == 1 and not out and "/help lists the commands" in err, err
    assert first_message(b"/hepl me, what is this?") == "/hepl me, what is this?"
    assert first_message(b" /help") == " /help"
    for word, meant in ((b"/hepl", "/help"), (b"/regenerte", "/regenerate"), (b"/sett", "/set"), (b"/Undo", "/undo"), (b"/rgenrate", "/regenerate"),
                        (b"/hepl\n", "/help"), (b"/systm You are a pirate.", "/system"), (b"/sve x", "/save"), (b"/sytem", "/system"),
                        (b"/reg", "/regenerate"), (b"/sys You are a pirate.", "/system")):
        code, out, err = chat(*QUICK, stdin=word)
        assert code == 1 and not out and f"did you mean {meant}?" in err, err
    code, out, err = chat(*QUICK, stdin=b"/undo it all")
    assert code == 1 and not out and "/undo" in err, err
    for word in (b"/bye", b"/exit", b"/q", b"/quit"):
        assert not good(*QUICK, stdin=word + b"\nHello\n")[0]
    assert "/regenerate" in good(*QUICK, stdin=b"/?")[1]
    assert "cleared" in good(*QUICK, stdin=b"/reset")[1]


def test_files_are_no_pipes():
    for command in ("/save", "/load"):
        code, out, err = chat(*QUICK, stdin=command.encode() + b" -\n", cwd=TMP)
        assert code == 1 and f"{command} - is not standard output or input, expected a file" in err, err
    assert not list(TMP.glob("-*")), list(TMP.glob("-*"))


def test_help_lists_the_commands():
    out, err = good(stdin=b"/help\n")
    for name in "help system set regenerate save load fork undo clear back quit".split():
        assert f"\n  /{name} " in err, name
    assert '"""' in err and "Ctrl-C" in err


def test_settings():
    out, err = good(stdin=b"/set temp 0.5\n/set n 7\n/set --top-k=40\n/set seed 12\n/set\n")
    assert good(stdin=b"/set temperature 0.5\n/set n_predict 7\n/set top_k 40\n/set seed 12\n/set\n") == (out, err)
    assert good(stdin=b"/set parameter temperature 0.5\n/set parameter num_predict 7\n/set top-k 40\n/set seed 12\n/set\n") == (out, err)
    values = dict(re.findall(r"^  (\S+) +(\S+)", err, re.M))
    assert values["temp"] == "0.5" and values["tokens"] == "7" and values["top-k"] == "40", values
    assert values["seed"] == "12" and values["top-p"] == "0.95", values
    assert "default" not in err and max(map(len, err.splitlines())) < 90, err
    for line, fragment in ((b"/set temp hot", "hot"), (b"/set temp -1", "-1"), (b"/set tempo 1", "did you mean temp?"), (b"/set xyz 1", "/set lists"), (b"/set system x", "/system TEXT"),
                           (b"/set n", "number"), (b"/set n -2", "-2"), (b"/set top-p 2", "2")):
        code, out, err = chat(stdin=line + b"\n/set\n")
        assert code == 1 and fragment in err.splitlines()[1] and len(err.splitlines()) == 2, err
    out, err = good(stdin=b"/set n 2\n/set temp 0\nHi\n/set n 4\nHi\n")
    assert " 2 tokens," in err and " 4 tokens," in err, err


def test_system_messages():
    path = save_path()
    good(*QUICK, "--system", "One.", stdin=f"Hi\n/system Two.\n/system\n/clear\nHo\n/save {path}\n".encode())
    assert contents(path)[:2] == ["Two.", "Ho"]
    good(*QUICK, "--system", "One.", stdin=f'Hi\n/system ""\n/save {path}\n'.encode())
    assert contents(path)[0] == "Hi"


def test_regenerate():
    question = b"Tell me a story about a fox.\n"
    args = ("-n", 30, "--seed", 5)
    out, err = good(*args, stdin=question + b"/regenerate\n/undo\n")
    first, second = re.split("\n(?=Once)", out.decode(), 1)
    assert first != second and "0 messages" in err, out
    assert good("-n", 30, "--seed", 6, stdin=question)[0].decode() == second
    code, out, err = chat(stdin=b"/regenerate\n")
    assert code == 1 and "no question" in err


def test_templates_from_files():
    template = TMP / "template"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                        "<|im_start|>assistant\nOnce upon a cold")
    out, err = good(*QUICK, "--chat-template", template, "-p", "Tell me a story.")
    assert not out.startswith(b"Once"), out
    template.write_text("{% if %}")
    code, out, err = chat("--chat-template", template, "-p", "Hi")
    assert code == 1 and len(err.splitlines()) == 1 and "template" in err, err
    code, out, err = chat("--chat-template", TMP / "none", "-p", "Hi")
    assert code == 1 and len(err.splitlines()) == 1 and "none" in err, err


def test_templates_as_texts():
    out, err = good(*QUICK, "--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}", "-p", "Once upon a time", "--temp", "0")
    assert out, err
    code, out, err = chat("--chat-template", "{% if %}", "-p", "Hi")
    assert code == 1 and len(err.splitlines()) == 1 and "--chat-template: " in err, err
    code, out, err = chat("--chat-template", "chatml", "-p", "Hi")
    assert code == 1 and "chatml: cannot open: No such file or directory; --chat-template takes a file or the text of a Jinja template" in err, err


def test_json_and_quiet():
    out, err = good(*QUICK, "--json", stdin=b"Hi\nHo\n")
    first, second = map(json.loads, out.splitlines())
    assert first["tokens"] == 3 and first["end"] == "length" and not err, (out, err)
    out, err = good(*QUICK, "-q", stdin=b"Hi\n/fork\n/help\n")
    assert "/regenerate" in err and "tok/s" not in err and "fork 1" not in err, err
    with open("/dev/full", "w") as full:
        p = subprocess.run(arguments((*QUICK, "--json")), input=b"Hi\nHi\n", stdout=full, stderr=subprocess.PIPE, env=environment())
    assert p.returncode == 1 and p.stderr.count(b"\n") == 1, p


# ---- a full context ------------------------------------------------------------------------------

def roles(path):
    return [m["role"] for m in json.loads(Path(f"{path}.json").read_text())]


def test_old_turns_are_dropped():
    path = save_path()
    lines = b"Who are you?\n" * 10
    out, err = good("--temp", 0, "-c", 96, "-n", 8, "--system", "Be kind.", stdin=lines + f"/save {path}\n".encode())
    assert len(out.splitlines()) == 10 and "(the context is full: the oldest turn" in err, err
    kept = roles(path)
    assert kept[0] == "system" and kept[1:] == ["user", "assistant"] * (len(kept) // 2) and 3 <= len(kept) < 13, kept
    assert "(the context is full;" not in err
    assert "(the context is full; -c makes it larger)" in good("--temp", 0, "-c", 32, stdin=b"Tell me a story.\n")[1]


def test_an_answer_goes_on_when_old_turns_are_dropped():
    path = save_path()
    args = ("--temp", 0, "-c", 128, "-n", 100)
    lines = b"Who are you?\nHow are you?\nTell me a story about a fox.\n"
    out, err = good(*args, stdin=lines + f"/save {path}\n".encode())
    assert "(the context is full: the oldest turn" in err, err
    assert re.findall(r"; (\d+) tokens", err)[-1] == "100" and "(stopped after 100 tokens: -n)" in err, err
    assert roles(path) == ["user", "assistant"] and "\ufffd" not in out.decode()
    code, out, err = chat(*args, "--full", "stop", stdin=lines + b"Hi\n")
    assert code == 1 and "(the context is full; /undo or /clear)" in err, err
    assert re.search(r"the conversation has \d+ tokens, expected at most 128", err.splitlines()[-1]), err


def test_a_loop_ends_an_answer():
    out, err = good("--temp", 0, "--logit-bias", "300=1000", stdin=b"Hi\n")
    assert "(stopped: the same tokens over and over)" in err, err


def test_a_saved_file_has_no_word_of_what_was_taken_back():
    path, plain = TMP / "trimmed", TMP / "never"
    good(*QUICK, stdin=f"A secret name\n/clear\n/save {path}\n".encode())
    good(*QUICK, stdin=f"/save {plain}\n".encode())
    count = lambda file: int.from_bytes(file.read_bytes()[32:36], "little")  # of tokens
    assert count(path) <= count(plain) + 1, (count(path), count(plain))
    good(*QUICK, stdin=f"Hi\n/save {plain}\n".encode())
    good(*QUICK, stdin=f"Hi\nA secret name that is longer than a template's words\n/undo\n/save {path}\n".encode())
    assert count(path) <= count(plain) + 6, (count(path), count(plain))  # what every turn begins with
    good(*QUICK, stdin=f"/load {path}\nHo\n".encode())


def test_full_is_drop_or_stop():
    code, out, err = chat("--full", "maybe")
    assert code == 2 and "--full is 'maybe', expected drop or stop" in err


def kept(args, stdin):
    """Tokens of each prompt, and how many of them were known; and the texts."""
    out, _ = good(*QUICK, "--json", *args, stdin=stdin)
    answers = [json.loads(line) for line in out.splitlines()]
    return [(a["prompt_tokens"], a["prompt_tokens_kept"]) for a in answers], [a["text"] for a in answers]


def test_a_folder_keeps_what_was_read():
    folder, path = TMP / "cache", save_path()
    args = ("--cache-dir", folder, "--system", "You tell stories of animals, and you tell them well.")
    talk = b"Tell me of a fox.\nAnd of a cat?\n"
    first, texts = kept(args, talk + f"/save {path}\n".encode())
    assert first[0][1] == 0, first
    again, same = kept(args, talk)
    assert same == texts and all(k == n - 1 for n, k in again), again
    other, _ = kept(args, b"What is a bird?\n")
    assert other[0][1] > 10, other  # the system message, which another conversation read
    for name in (path, f"{path}.json"):  # either of the two files
        loaded, _ = kept(args, f"/load {name}\nAnd of a dog?\n".encode())
        assert loaded[0][1] >= again[-1][0], (name, loaded)
    for file in folder.rglob("*.snapshot"):
        file.write_bytes(file.read_bytes()[:100])
    damaged, same = kept(args, talk)
    assert same == texts and damaged[0][1] == 0, damaged


suite.main(globals())
