#!/usr/bin/env python3
"""test_verbs.py SLUICE [WORD ...] - the verbs that run models, from outside: run, chat, ppl, logits, bench, explain, inspect.

Needs only Python 3.
"""
import array, atexit, fcntl, json, math, os, pty, re, shutil, signal, struct, subprocess, sys, tempfile, termios, time
from pathlib import Path

import suite
from suite import PATIENCE, PROGRAM as SLUICE, ROOT, SHIPPED, Skip, bad, run, wait_until

DATA = Path(os.environ.get("SLUICE_TEST_DATA", ROOT / "build/data"))
REFERENCE = DATA / "reference"
TINY = REFERENCE / "qwen35-dense-a/model-f32.gguf"
TMP = suite.temporary()


def good(*args, **kw):
    code, out, err = run(*args, **kw)
    assert code == 0, f"{args} exits {code}: {err.strip()}"
    return out, err


def processor_seconds(pid):
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def floats(path):
    return array.array("f", Path(path).read_bytes())


def test_run_tells_a_story():
    out, err = good("run", "-n", 12, "--seed", 1)
    assert out.startswith(b"Once upon a time") and out.endswith(b"\n")
    assert len(err.splitlines()) == 2, err
    assert "qwen35" in err and "cpu" in err and "context 2048" in err and "submissions" not in err


def test_run_is_the_same_for_a_seed():
    args = ("run", "-p", "Once upon a time", "-n", 20, "--seed", 5)
    assert good(*args)[0] == good(*args, "-t", 1)[0] != good(*args[:-1], 6)[0]


def test_run_reads_prompts_from_everywhere():
    path = TMP / "prompt"
    path.write_bytes(b"Once upon a time")
    want = good("run", "-p", "Once upon a time", "-n", 8, "--temp", 0)[0]
    assert want == good("run", "-f", path, "-n", 8, "--temp", 0)[0]
    assert want == good("run", "-m", SHIPPED, "-n", 8, "--temp", 0, stdin=b"Once upon a time")[0]


def test_run_stops():
    text = good("run", "-p", "Once upon a time", "-n", 40, "--temp", 0)[0].decode()
    word = text.split()[5]
    assert good("run", "-p", "Once upon a time", "-n", 40, "--temp", 0, "--stop", word,
                "--stop", "no such word")[0].decode().rstrip("\n") == text[:text.index(word)]


def test_run_nothing_evaluates_the_prompt():
    out, err = good("run", "-p", "Once upon a time", "-n", 0)
    assert out == b"" and "prompt 4 tokens" in err


def test_run_refuses():
    bad(1, "empty", "run", "-m", SHIPPED, "-p", "")
    bad(1, "empty", "run", "-m", SHIPPED, stdin=b"")
    bad(1, "-c", "run", "-p", "word " * 100, "-c", 16)
    bad(1, "no/such", "run", "-m", "no/such/model.gguf", "-p", "x")
    bad(1, "no/such", "run", "-f", "no/such/text")
    bad(1, "-c", "run", "-p", "x", "-c", 1 << 24, "-m", "synth:smollm2-1.7b:q4_0", "--kv", "f32")  # 6.6 TB
    bad(2, "--kv", "run", "-p", "x", "--kv", "q7")
    bad(2, "--backend", "run", "-p", "x", "--backend", "abacus")
    bad(2, "--temp", "run", "-p", "x", "--temp", "-1")
    bad(2, "--temp is 1e-38, expected 0, or 1e-06 to 100", "run", "-p", "x", "--temp", "1e-38")
    bad(2, "--top-p", "run", "-p", "x", "--top-p", "2")
    bad(2, "-n", "run", "-p", "x", "-n", "-2")
    bad(2, "--context", "run", "-p", "x", "-c", "-2")
    bad(2, "--stop", "run", "-p", "x", "--stop", "")
    bad(2, "both", "run", "-p", "x", "-f", "y")
    bad(2, "unknown option", "run", "--nonsense")


def test_chat_answers():
    out, err = good("chat", "-p", "Who are you?", "--temp", 0)
    assert b"Sluice" in out, out
    bad(2, "--think", "chat", "--think", "maybe")


def test_chat_saves_loads_forks_and_undoes():
    path = TMP / "talk"
    lines = f"Who are you?\n/save {path}\n/fork\nTell me a story about a fox.\n/back\n/undo\nWho are you?\n/load {path}\n"
    out, err = good("chat", "--temp", 0, "-n", 12, stdin=lines.encode())
    answers = out.decode().splitlines()
    assert answers[0] == answers[-1], answers
    again, err = good("chat", "--temp", 0, "-n", 12, stdin=f"/load {path}\nTell me a story about a fox.\n".encode())
    assert again.decode().splitlines() == answers[1:-1], (again, answers)
    assert "2 messages" in err
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    code, out, err = run("chat", stdin=f"/load {path}\n".encode())
    assert code == 1 and "saved sequence" in err, err
    code, out, err = run("chat", stdin=b"/load /no/such/file\n")
    assert code == 1 and "/no/such/file" in err, err
    code, out, err = run("chat", stdin=b"/undo\n")
    assert code == 1 and "nothing to undo" in err, err


def test_chat_survives_an_interrupt():
    p = subprocess.Popen([SLUICE, "chat", "-m", str(SHIPPED), "--ignore-eos", "-c", "100000", "--temp", "0"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    for question, answer in ((b"Tell me a story about a fox.\n", b"Once"), (b"Who are you?\n", b"Sluice")):
        p.stdin.write(question)
        said = b""
        while answer not in said:
            more = os.read(p.stdout.fileno(), 4096)
            assert more, (question, said)
            said += more
        p.send_signal(signal.SIGINT)
        while b"interrupted" not in (line := p.stderr.readline()):
            assert line, question
    p.communicate(timeout=PATIENCE)
    assert p.returncode == 0


def test_ppl():
    text = TMP / "text"
    text.write_bytes(b"Once upon a time, there was a little fox. He liked to play in the wood. " * 8)
    out, err = good("ppl", "-f", text, "--window", 32, "--json", "--exact")
    figures = json.loads(out)
    n = int(len(good("tokenize", "-m", SHIPPED, stdin=text.read_bytes())[0].split())) // 32
    assert figures["scored"] == n * 31, figures
    assert abs(figures["ppl"] - 2.718281828459045 ** figures["nll"]) < 1e-4
    other = json.loads(good("ppl", "-f", text, "--window", 32, "--json")[0])
    assert abs(other["nll"] - figures["nll"]) < 0.05, (other, figures)
    bad(1, "--window", "ppl", "-f", text, "--window", 4096)
    for more in (("-c", 32), ("--window", 32, "-c", 32)):  # as in llama.cpp
        assert json.loads(good("ppl", "-f", text, "--json", *more)[0]) == other, more
    for context in (31, 33):
        bad(2, f"--context is {context}, expected 32 (--window), or one of them", "ppl", "-f", text, "--window", 32, "-c", context)
    bad(2, "--context is 1, expected 2 to", "ppl", "-f", text, "-c", 1)
    bad(2, "-f", "ppl")
    bad(2, "--window", "ppl", "-f", text, "--window", 1)


def no_constants(word):
    raise ValueError(f"{word} is not JSON")


def test_ppl_of_no_number_is_valid_json():
    text, model = TMP / "text", TMP / "nan.gguf"
    text.write_bytes(b"Once upon a time, there was a little fox. " * 8)
    whole = bytearray((REFERENCE / "llama-a/model-f32.gguf").read_bytes())
    norm = next(t for t in json.loads(good("inspect", REFERENCE / "llama-a/model-f32.gguf", "--json")[0])["tensors"]
                if t["name"] == "output_norm.weight")
    whole[-norm["bytes"]:] = struct.pack("<f", float("nan")) * (norm["bytes"] // 4)
    model.write_bytes(whole)
    for more in ((), ("--json",)):
        code, out, err = run("ppl", "-m", model, "-f", text, "--window", 16, *more)
        assert code == 1 and "finite" in err.splitlines()[-1], (code, err)
        assert b"nan" not in out
        if more and out:
            assert json.loads(out, parse_constant=no_constants)["nll"] is None


def test_ppl_refuses():
    bad(2, "--windows is -1", "ppl", "-f", TMP / "text", "--windows", -1)
    bad(2, "--window is 1", "ppl", "-f", TMP / "text", "--window", 1)


def test_chat_does_not_save_over_the_model():
    model = TMP / "model.gguf"
    model.write_bytes(SHIPPED.read_bytes())
    code, out, err = run("chat", "-m", model, "-n", 4, stdin=f"Hello.\n/save {model}\n".encode())
    assert "is a file of the input" in err and model.read_bytes() == SHIPPED.read_bytes(), err


def test_chat_saves_over_nothing_but_its_own():
    text, config, talk = TMP / "note", TMP / "config.json", TMP / "talk"
    for path in (text, config):
        path.write_text("[1, 2]")
    template = TMP / "own.jinja"
    template.write_text("{{ messages[-1].content }}")
    for path, named in ((text, text), (TMP / "config", config), (template, template)):
        code, out, err = run("chat", "-n", 2, "--chat-template", template, stdin=f"Hello.\n/save {path}\n".encode())
        assert code == 1 and f"{named}: exists" in err and "left as it is" in err, err
    assert text.read_text() == config.read_text() == "[1, 2]" and not (TMP / "config").exists()
    assert template.read_text().startswith("{{")
    talk.write_bytes(b"")
    for _ in range(2):
        good("chat", "-n", 2, stdin=f"Hello.\n/save {talk}\n".encode())


def test_logits():
    folder = REFERENCE / "qwen35-dense-a"
    prompts = [list(map(int, l.split())) for l in (folder / "tokens.txt").read_text().splitlines()]
    out, _ = good("logits", "-m", TINY, "--tokens", folder / "tokens.txt", "-o", TMP / "l", "--layers",
                  "--greedy", 48, "--exact")
    rows, want = floats(TMP / "l"), floats(folder / "logits.bin")
    assert len(rows) == 448 * sum(map(len, prompts))
    at = stored = 0
    for prompt in prompts:
        for t in range(len(prompt)):
            if t % 8 == 0 or t == len(prompt) - 1:
                a, b = rows[(at + t) * 448:(at + t + 1) * 448], want[stored * 448:(stored + 1) * 448]
                assert max(abs(x - y) for x, y in zip(a, b)) < 2e-4
                stored += 1
        at += len(prompt)
    for found, stored in zip(out.decode().splitlines(), (folder / "greedy.txt").read_text().splitlines()):
        assert found.split()[:len(stored.split())] == stored.split()
    layers = floats(str(TMP / "l") + ".layers")
    assert len(layers) == len(prompts) * 6 * 64


def test_logits_refuses():
    (TMP / "ids").write_text("1 2 x\n")
    bad(1, "line 1", "logits", "-m", TINY, "--tokens", TMP / "ids", "-o", TMP / "no")
    (TMP / "ids").write_text("1 2\n3 448\n")
    bad(1, "line 2", "logits", "-m", TINY, "--tokens", TMP / "ids", "-o", TMP / "no")
    (TMP / "ids").write_text("1 2 3 4 5 6\n")
    bad(1, "-c", "logits", "-m", TINY, "--tokens", TMP / "ids", "-o", TMP / "no", "-c", 4)
    assert not (TMP / "no").exists() and not list(TMP.glob(".*")), "something half-written is left"
    bad(1, "no/such", "logits", "-m", TINY, "--tokens", "no/such", "-o", TMP / "no")
    bad(2, "-o", "logits", "-m", TINY, "--tokens", TMP / "ids")


def test_bench():
    out, err = good("bench", "-m", TINY, "-p", 16, "-n", 8, "--depth", 20, "--batch", 2, "--json")
    figures = json.loads(out)
    assert figures["submissions"] == figures["waits"] == figures["steps"] > 0
    assert figures["decode"]["tok_s"] > 0 and figures["prefill"]["tok_s"] > 0 and figures["bandwidth_gb_s"] > 0
    bad(2, "--repeats", "bench", "--repeats", 0)


def test_numbers_say_how_large_they_may_be():
    bad(2, "--tokens is '99999999999', expected a whole number up to 2147483647", "run", "-n", 99999999999)
    bad(2, "--seed is '18446744073709551616', expected a whole number up to 9223372036854775807", "run", "-s", 1 << 64)
    bad(2, "--tokens is '-99999999999', expected a whole number from -2147483648", "run", "-n", -99999999999)
    bad(2, "--tokens is '1e3', expected a whole number", "run", "-n", "1e3")
    bad(2, "--batch is 0, expected 1 to 4096", "inspect", "--batch", 0)
    good("quantize", TINY, TMP / "threads.gguf", "q8_0", "-t", 0, "-q")  # as in the verbs that run a model
    bad(2, "--threads is -1, expected 0 to 1024", "quantize", TINY, TMP / "threads.gguf", "q8_0", "-t", -1)
    bad(2, "--threads is 1025, expected 0 to 1024", "convert", TMP, TMP / "threads.gguf", "-t", 1025)


def test_absurd_numbers_are_refused():
    (TMP / "ids").write_text("1 2 3\n")
    for value in (2147483647, 1 << 24 | 1, -1, -2147483648):
        bad(2, "-p is", "bench", "-m", TINY, "-p", value)
        bad(2, "-n is", "bench", "-m", TINY, "-n", value)
        bad(2, "--depth is", "bench", "-m", TINY, "--depth", value)
        bad(2, "--batch is", "bench", "-m", TINY, "--batch", value)
        bad(2, "--depth is", "explain", "-m", TINY, "--depth", value)
        bad(2, "--rows is", "explain", "-m", TINY, "--rows", value)
        bad(2, "--greedy is", "logits", "-m", TINY, "--tokens", TMP / "ids", "--greedy", value)
    most = 1 << 24
    bad(2, "both 0", "bench", "-m", TINY, "-p", 0, "-n", 0)
    bad(1, "-c", "bench", "-m", TINY, "-p", most, "-n", most, "--depth", most)
    bad(1, "-c", "explain", "-m", TINY, "--depth", most, "--rows", 4096)
    bad(1, "-c", "logits", "-m", TINY, "--tokens", TMP / "ids", "--greedy", most)
    bad(1, "--window", "ppl", "-m", SHIPPED, "-f", TMP / "ids", "--window", 2147483647)


def test_threads_are_as_many_as_processors():
    """Only one of them: the default follows, and more are told."""
    one, given = min(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {one})
    try:
        assert "1 thread\n" in good("run", "-n", 1, "--backend", "cpu")[1].replace(";", "\n")
        line = "sluice: warning: 2 threads (-t) on 1 processor that may be used: "
        for args in (("run", "-n", 1), ("bench", "-p", 4, "-n", 2, "-r", 1), ("quantize", TINY, TMP / "threads.gguf", "q8_0")):
            backend = () if args[0] == "quantize" else ("--backend", "cpu")
            assert line in good(*args, *backend, "-t", 2)[1], args
            assert "-t" not in good(*args, *backend, "-t", 1)[1], args
    finally:
        os.sched_setaffinity(0, given)
    assert "-t" not in good("run", "-n", 1, "-t", 0)[1]


def test_explain():
    plan = json.loads(good("explain", "-m", TINY, "--json")[0])
    assert plan["ops"][0]["op"] == "embed" and plan["ops"][-1]["op"] == "pick"
    assert len([o for o in plan["ops"] if o["layer"] == 0]) == 5
    timed = json.loads(good("explain", "-m", TINY, "--json", "--time", "--html", TMP / "x.html")[0])
    assert all(o["us"] > 0 for o in timed["ops"]) and (TMP / "x.html").stat().st_size > 1000
    assert "project ffn in 0</span>" in (TMP / "x.html").read_text()
    page = good("explain", "-m", DATA / "mtp/stories.gguf", "--backend", "cpu", "--mtp", "1", "--time", "--html", "-")[0].decode()
    colours = re.findall(r"<span>\d+ ([a-z]+)[^<]*</span><i [^>]*,(\S*) \d+%", page)
    assert "hidden" in dict(colours) and all(re.fullmatch("#[0-9a-f]{3,6}", c) for _, c in colours), colours
    assert b"ffn out" in good("explain", "-m", TINY)[0]


def test_inspect_predicts_the_memory():
    for more in ([], ["--kv", "q8_0"], ["--exact"]):
        plan = json.loads(good("inspect", SHIPPED, "--json", "-c", 300, "-t", 1, *more)[0])["memory"]
        found = json.loads(good("run", SHIPPED, "-p", "x", "-n", 1, "-c", 300, "-t", 1, "--json", *more)[0])
        assert found["memory_bytes"] == plan["total"], (found, plan)
        plan = json.loads(good("inspect", SHIPPED, "--json", "-c", 300, "-t", 1, "--draft", 0, *more)[0])["memory"]
        parts = ("weights", "state", "scratch", "io", "packed", "workspace")
        assert plan["total"] == sum(plan[p] for p in parts)
        found = json.loads(good("bench", "-m", SHIPPED, "-c", 300, "-t", 1, "-p", 4, "-n", 2, "-r", 1,
                                "--json", *more)[0])
        assert found["memory_bytes"] == plan["total"], (found, plan)
    bad(2, "--batch", "inspect", SHIPPED, "--batch", -1)


def test_inspect_says_whether_it_fits():
    def facts(*args):
        return json.loads(good("inspect", *args, "--json")[0])
    found = facts(SHIPPED)
    (fit,) = found["fit"]
    assert fit["fits"] and fit["would_fit"] == [] and fit["needs"] == found["memory"]["total"] < fit["free"], fit
    assert fit["backend"] == "cpu" and fit["context"] == 2048 and fit["weights"] < fit["needs"], fit
    line = good("inspect", SHIPPED)[0].decode().splitlines()[3]
    assert re.fullmatch(r"  fits cpu: needs [\d.]+ MB with a context of 2048, [\d.]+ [GT]B are free", line), line
    large = ("synth:smollm2-1.7b:q4_0", "--kv", "f32", "-c", 1 << 24)  # 6.6 TB
    (fit,) = facts(*large)["fit"]
    assert not fit["fits"] and fit["needs"] > 6e12 and fit["would_fit"][0].startswith("-c "), fit
    assert facts(*large[:-2], *fit["would_fit"][0].split())["fit"][0]["fits"], fit
    advice = f"what would fit: {', '.join(fit['would_fit'])}"
    assert advice in good("inspect", *large)[0].decode().splitlines()[3]
    bad(1, advice, "run", "-p", "x", "-m", *large)
    (fit,) = facts(SHIPPED, "--cache-bytes", "1000T")["fit"]
    assert not fit["fits"] and fit["would_fit"][0].startswith("--cache-bytes "), fit


def weights_folder():
    """An empty folder, and whether it is on a disk: weights cannot be in one that is in memory."""
    folder = tempfile.mkdtemp(dir=ROOT / "build")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    code, _, err = run("inspect", SHIPPED, "--backend", "cpu", "--weights-dir", folder)
    assert code == 0 or "is in memory (tmpfs), expected a folder on a disk" in err, err
    return folder, code == 0


def test_weights_on_disk():
    folder, is_on_disk = weights_folder()
    story = ("run", SHIPPED, "-p", "Once upon a time", "--temp", 0, "--backend", "cpu")
    bad(1, "/nonexistent: cannot be used for weights (--weights-dir): No such file", *story, "--weights-dir", "/nonexistent")
    bad(1, "Not a directory", *story, "--weights-dir", SHIPPED)
    if subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, text=True).stdout == "tmpfs\n":
        bad(1, "/dev/shm: is in memory (tmpfs), expected a folder on a disk for weights (--weights-dir)", *story, "--weights-dir", "/dev/shm")
    bad(2, "--weights-dir is '', expected a folder", *story, "--weights-dir", "")
    bad(2, "--weights-bytes needs --weights-dir DIR", *story, "--weights-bytes", "1M")
    if not is_on_disk:
        raise Skip("build/ is in memory")
    plan = json.loads(good("inspect", SHIPPED, "--backend", "cpu", "--json")[0])["memory"]
    for kept in ("0", "5M"):
        where = ("--weights-dir", folder, "--weights-bytes", kept)
        assert good(*story, "-n", 30, *where)[0] == good(*story, "-n", 30)[0], kept
        found = json.loads(good("inspect", SHIPPED, "--backend", "cpu", "--json", *where)[0])
        memory, (fit,) = found["memory"], found["fit"]
        assert memory["packed"] <= (5 << 20 if kept != "0" else 0) and memory["disk"] >= plan["packed"] - memory["packed"], memory
        assert fit["fits"] and fit["needs"] == memory["total"] < plan["total"] and 0 < fit["disk"] < fit["disk_free"], fit
        assert memory["total"] == json.loads(good(*story, "-n", 1, "--json", "--draft", 7, *where)[0])["memory_bytes"]
        line = good("inspect", SHIPPED, "--backend", "cpu", *where)[0].decode().splitlines()[3]
        assert re.search(r"are free; [\d.]+ MB of weights on disk, [\d.]+ [GT]B are free there$", line), line
    assert json.loads(good("inspect", SHIPPED, "--backend", "cpu", "--json", "--weights-dir", folder)[0])["memory"] == plan
    assert os.listdir(folder) == []


def test_weights_on_disk_are_gone_with_the_process():
    folder, is_on_disk = weights_folder()
    if not is_on_disk:
        raise Skip("build/ is in memory")
    p = subprocess.Popen([SLUICE, "run", SHIPPED, "-p", "x", "--ignore-eos", "-n", "2000", "--backend", "cpu",
                          "--weights-dir", folder, "--weights-bytes", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert p.stdout.read(1)
        maps = Path(f"/proc/{p.pid}/maps").read_text()
        assert re.search(rf" r--s .* {re.escape(folder)}/\S+ \(deleted\)$", maps, re.M), maps
        assert os.listdir(folder) == []
    finally:
        p.kill()
        p.wait()
    assert os.listdir(folder) == []


def write_sparse_model(path, least_bytes):
    """A model of at least that size whose weights take no room: a file with a hole."""
    sys.path.insert(0, str(ROOT / "tools"))
    sys.dont_write_bytecode = True
    import synth_gguf as synth
    layer = 8192 * 28672 * 3 * 18 // 32
    model = ("llama", 8192, least_bytes // layer + 1, 8, 8, 64, 28672, 4096, True, 0, 0, 64, 1e4)
    rows, kv = synth.tensors(model, "q4_0"), synth.metadata("large", model, "q4_0")
    at, infos = 0, b""
    for name, dims, t, _ in rows:
        infos += synth.gstr(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, synth.TYPES[t][0], at)
        at += -(-math.prod(dims) // synth.TYPES[t][1] * synth.TYPES[t][2] // 32) * 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(rows), len(kv)) + b"".join(synth.pack_kv(*x) for x in kv)
    path.write_bytes(head + infos)
    os.truncate(path, -(-len(head + infos) // 32) * 32 + at)


def test_a_model_larger_than_memory():
    """What would make it run; and where the disk is too small as well, what that lacks."""
    folder, is_on_disk = weights_folder()
    available = int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) << 10
    path = Path(folder) / "large.gguf"
    small = ("--backend", "cpu", "-c", 256, "--draft", 0)
    write_sparse_model(path, 2 * available + 2 * shutil.disk_usage(folder).free)
    (fit,) = json.loads(good("inspect", path, "--json", *small)[0])["fit"]
    assert not fit["fits"] and fit["would_fit"] == ["--weights-dir DIR"], fit
    bad(1, "are free; what would fit: --weights-dir DIR", "bench", path, "-p", 4, "-n", 1, *small)
    if not is_on_disk:
        raise Skip("build/ is in memory")
    found = json.loads(good("inspect", path, "--json", *small, "--weights-dir", folder)[0])
    memory, (fit,) = found["memory"], found["fit"]
    assert not fit["fits"] and fit["would_fit"] == [] and memory["total"] < fit["free"] and fit["disk"] > fit["disk_free"], fit
    assert memory["packed"] > fit["free"] / 2, memory  # what fits is in memory
    bad(1, "GB of weights (--weights-dir) do not fit, ", "bench", path, "-p", 4, "-n", 1, *small, "--weights-dir", folder)
    os.unlink(path)
    assert os.listdir(folder) == []


def test_inspect_says_what_conversations_may_leave():
    plan = json.loads(good("inspect", SHIPPED, "--json", "--kv-bytes", "4M", "--snapshot-bytes", "10M",
                           "--cache-bytes", "64m", "--cache-dir", TMP / "not made")[0])["memory"]
    assert plan["pages"] == (4 << 20) // plan["page_bytes"] and plan["page_tokens"] == 256, plan
    assert plan["snapshots"] == (10 << 20) // plan["snapshot_bytes"] and plan["snapshot_every"] % 256 == 0, plan
    assert 63 << 20 < plan["cache_bytes"] <= 64 << 20 and plan["cache_dir_bytes"] == 8 << 30, plan
    assert plan["backend"] == "cpu" and plan["context"] == 2048, plan
    assert not (TMP / "not made").exists()
    plan, said = good("inspect", SHIPPED, "--json", "--snapshot-bytes", "1")
    least = json.loads(plan)["memory"]["snapshot_bytes"]
    assert f"(--snapshot-bytes) is 1, and a snapshot takes {least}: none are kept" in said, said
    assert "snapshot" not in good("inspect", SHIPPED, "--snapshot-bytes", least)[1]
    text = good("inspect", SHIPPED, "--cache-bytes", "64M")[0].decode()
    assert "of recurrent state" in text and "\n  host memory " in text, text


def test_bench_replays_a_trace():
    trace = TMP / "trace.txt"
    making = [sys.executable, ROOT / "bench/cache/trace.py", "--context", "600", "--conversations", "4", "--gap", "2"]
    trace.write_bytes(subprocess.run(making, stdout=subprocess.PIPE, check=True).stdout)
    assert subprocess.run(making, stdout=subprocess.PIPE, check=True).stdout == trace.read_bytes()
    replay = lambda reuse: json.loads(good("bench", TINY, "--trace", trace, "--reuse", reuse, "--batch", 3, "--snapshot-bytes", "4M",
                                           "--cache-bytes", "4M", "--json")[0])
    every = replay("all")
    assert every["reused_tokens"] > every["prompt_tokens"] / 3, every
    if "asan" not in SLUICE:
        none, live = replay("none"), replay("live")
        assert none["answers"] == live["answers"] == every["answers"], (none, live, every)
        assert none["reused_tokens"] == 0 and live["reused_tokens"] < every["reused_tokens"], (none, live, every)
        assert none["step"]["rows"] > every["step"]["rows"], (none, every)
    assert every["spilled"] > 0 and every["limits"]["memcpy_gb_s"] > 0 and every["limits"]["write_gb_s"] == 0, every
    assert every["step"]["p50_ms"] <= every["step"]["longest_ms"], every
    part = json.loads(good("bench", TINY, "--trace", trace, "--conversations", 2, "--batch", 3, "--json")[0])
    assert 0 < part["requests"] < every["requests"], (part, every)
    trace.write_bytes(b"# 1 follows from 0\n0 3 t1:5\n1 1 a0:1:2\n1 1 t2:4\n")
    other = json.loads(good("bench", TINY, "--trace", trace, "--batch", 3, "--json")[0])
    assert other["requests"] == 3 and other["prompt_tokens"] == 11, other
    trace.write_bytes(b"7 3 t1:5")
    bad(2, "leaves no request", "bench", TINY, "--trace", trace, "--conversations", 7)
    bad(2, "--conversations is -1", "bench", TINY, "--conversations", -1)
    for line, text in ((b"", "no request"), (b"0 0 t1:5", "line 1: expected"), (b"0 1", "empty"), (b"0 1 x", "part 1"),
                       (b"0 4 t1:5\n0 1 a0:2:3", "line 2: part 1"), (b"0 1 a0:0:1", "part 1")):
        trace.write_bytes(line)
        bad(1, text, "bench", TINY, "--trace", trace)
    bad(2, "--reuse is 'x', expected none, live or all", "bench", TINY, "--trace", "/nowhere", "--reuse", "x")


def test_texts_follow_a_grammar():
    path = TMP / "rules.gbnf"
    path.write_text('root ::= "The " ("fox" | "cat") " said: " [a-z ]{3,20} "."\n')
    for seed in (1, 2):
        out = good("run", "-p", "Once upon a time", "--grammar", path, "--seed", seed, "-q")[0].decode()
        assert re.fullmatch(r"The (fox|cat) said: [a-z ]{3,20}\.\n", out), out
    found = json.loads(good("run", "-p", "Once", "--grammar", path, "--seed", 1, "--json", "--logprobs", 1)[0])
    assert found["end"] == "end" and found["text"].startswith("The ") and len(found["logprobs"]) == found["tokens"], found
    assert found["submissions"] == found["tokens"], found


def test_answers_follow_a_schema():
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
              "required": ["name", "age"], "additionalProperties": False}
    path = TMP / "schema.json"
    path.write_text(json.dumps(schema))
    for given in (path, "  " + json.dumps(schema)):
        for verb in ("run", "chat"):
            out = json.loads(good(verb, "-p", "Who are you?", "--json-schema", given, "--seed", 3, "-q")[0])
            assert set(out) == {"name", "age"} and len(out["name"]) <= 12 and 1 <= out["age"] <= 99, out
    two = good("chat", "--json-schema", path, "--seed", 3, "--json", "-q", stdin=b"Who are you?\nAnd you?\n")[0].splitlines()
    assert len(two) == 2 and all(set(json.loads(json.loads(line)["text"])) == {"name", "age"} for line in two), two


def test_grammars_as_texts():
    for verb in ("run", "chat"):
        assert good(verb, "-p", "a", "--grammar", 'root ::= "yes" | "no"', "-q")[0].strip() in (b"yes", b"no")
        bad(1, "--grammar: grammar, line 1", verb, "-p", "a", "--grammar", 'root ::= "yes', "-q")
        bad(1, "yes: cannot open: No such file or directory; --grammar takes a file or a grammar in GBNF", verb, "-p", "a", "--grammar", "yes", "-q")


def test_grammars_that_are_too_much():
    doubled = lambda n: "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"?\n'
    for verb in ("run", "chat"):
        out = good(verb, "-p", "a", "--grammar", "root ::= r0\n" + doubled(14), "-n", 9, "-q")[0].decode().strip()
        assert set(out) <= {"a"}, out
        for first in ("", '"b" '):  # at once, and when it is asked what comes next
            bad(1, "can be read in too many ways", verb, "-p", "a", "--grammar", f"root ::= {first}r0\n" + doubled(2000), "-q")


def test_grammars_that_are_none():
    path = TMP / "none"
    path.write_text("root = x")
    for verb in ("run", "chat"):
        bad(1, f"{path}: grammar, line 1", verb, "-p", "a", "--grammar", path, "-q")
        bad(1, "/nowhere: cannot open", verb, "-p", "a", "--json-schema", "/nowhere", "-q")
        bad(1, f"{path}: not JSON: line 1", verb, "-p", "a", "--json-schema", path, "-q")
        bad(1, "--json-schema: not JSON", verb, "-p", "a", "--json-schema", "{", "-q")
        bad(1, "--json-schema: schema, at #: type is not one of", verb, "-p", "a", "--json-schema", '{"type": "word"}', "-q")
        bad(2, "--grammar and --json-schema are both given", verb, "-p", "a", "--grammar", path, "--json-schema", "{}")
        bad(2, "--ignore-eos and --json-schema are both given", verb, "-p", "a", "--ignore-eos", "--json-schema", "{}")


def test_sizes_of_the_cache_are_checked():
    bad(2, "--cache-bytes is '10x', expected bytes, such as 512M or 4G", "run", SHIPPED, "--cache-bytes", "10x")
    bad(2, "--cache-bytes is '3 ', expected bytes, such as 512M or 4G", "run", SHIPPED, "--cache-bytes", "3 ")
    bad(2, "--snapshot-bytes is '3MB', expected bytes", "run", SHIPPED, "--snapshot-bytes", "3MB")
    for value in ("", "-1", "K", "4GB", "99999999999G", "99999999999999999999"):
        bad(2, "expected bytes", "run", SHIPPED, "--kv-bytes", value)
    bad(2, "--cache-dir-bytes needs --cache-dir DIR", "run", SHIPPED, "--cache-dir-bytes", "1G")
    bad(2, "--cache-dir is '', expected a folder", "run", SHIPPED, "--cache-dir", "")
    bad(1, "--cache-bytes) needs 109951.163 GB, expected at most", "run", SHIPPED, "-p", "a", "--cache-bytes", "100T")
    bad(1, "--kv-bytes) is 1, expected at least", "run", SHIPPED, "-p", "a", "--kv-bytes", 1)
    bad(1, "--cache-bytes) is 1, expected 0 or at least", "run", SHIPPED, "-p", "a", "--cache-bytes", 1)


def test_run_reads_nothing_twice_with_a_folder():
    folder, prompt = TMP / "kept prompts", "Once upon a time there was a dog. " * 12
    args = ("run", SHIPPED, "--temp", 0, "-n", 4, "--json", "--cache-dir", folder, "-p")
    first, again, longer = (json.loads(good(*args, p)[0]) for p in (prompt, prompt, prompt + "And a cat, too."))
    assert first["prompt_tokens_kept"] == 0 and again["text"] == first["text"], (first, again)
    assert again["prompt_tokens_kept"] == again["prompt_tokens"] - 1, again
    assert longer["prompt_tokens_kept"] >= first["prompt_tokens"] - 2, longer


def test_state_of_another_model_is_not_used():
    """Files that differ in a constant alone, or in the middle of a matrix."""
    folder, saved, prompt = TMP / "two models", TMP / "saved prompt", "Once upon a time there was a dog. " * 12
    ours, key = SHIPPED.read_bytes(), b"layer_norm_rms_epsilon\x06\0\0\0"
    at, middle = ours.index(key) + len(key), len(ours) // 2
    models = {"own": ours, "eps": ours[:at] + struct.pack("<f", 1e-5) + ours[at + 4:], "matrix": ours[:middle] + bytes(4096) + ours[middle + 4096:]}
    for name, data in models.items():
        (TMP / f"{name}.gguf").write_bytes(data)
    keeps = lambda name, *args: json.loads(good("run", TMP / f"{name}.gguf", "--temp", 0, "-n", 4, "--json", "-p", prompt, *args)[0])["prompt_tokens_kept"]
    for args in (("--cache-dir", folder), ("--prompt-cache", saved)):
        assert keeps("own", *args) == 0 and keeps("own", *args) > 0, args
        assert keeps("eps", *args) == 0, args
    assert keeps("matrix", "--cache-dir", folder) == 0


def test_what_the_cache_has_to_say_is_said():
    """A damaged file, and a disk that is full: one line each, and the text is what it would be."""
    folder, prompt = TMP / "damaged", "Once upon a time there was a dog. " * 12
    args = ("run", SHIPPED, "--temp", 0, "-n", 4, "--cache-dir", folder, "-p", prompt)
    text = good(*args)[0]
    for file in folder.glob("*/*.snapshot"):
        file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    out, err = good(*args, "--json")
    assert json.loads(out)["text"].encode() == text.rstrip(b"\n") and "sluice: warning: " in err and "is damaged; it is removed" in err, err
    assert good(*args, "-q")[1] == ""
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", folder], stderr=subprocess.DEVNULL).returncode:
        raise Skip("a small file system cannot be mounted")
    try:
        out, err = good(*args)
        assert out == text and err.count("cannot write to the cache: No space left on device") == 1, err
    finally:
        subprocess.run(["umount", folder], check=True)


def test_devices_lists_what_there_is():
    text = good("devices")[0].decode()
    assert any(line.startswith("cpu: ") for line in text.splitlines()), text
    found = json.loads(good("devices", "--json")[0])
    assert [d["about"] for d in found] == text.splitlines() and "cpu" in (d["backend"] for d in found)
    good("run", "-n", 1, "--backend", "cpu", "--device", "threads")
    bad(1, "--device is 'no-such', expected 0 (cpu: ", "run", "-n", 1, "--backend", "cpu", "--device", "no-such")
    bad(2, "expected auto", "run", "--backend", "abacus", "-n", 1)
    built = good("--version")[0].decode().splitlines()[1].removeprefix("backends:").split()
    if not any(d["backend"] == "cuda" for d in found):
        for args in (("run", "-n", 1), ("inspect", SHIPPED)):
            if "cuda" in built:
                bad(1, "CUDA", *args, "--backend", "cuda")
            else:
                names = " or ".join(", ".join(["auto", *built]).rsplit(", ", 1))
                bad(2, f"--backend is 'cuda', expected {names}: this build has no CUDA", *args, "--backend", "cuda")


def test_imatrix_is_collected_and_used():
    """Counts are the tokens run; quantize takes it, says so in the file, and refuses another model's."""
    text, matrix, plain, weighed = TMP / "text.txt", TMP / "im.gguf", TMP / "plain.gguf", TMP / "weighed.gguf"
    text.write_text("Once upon a time there was a little girl. " * 40)
    out, err = good("imatrix", SHIPPED, "-f", text, "-o", matrix, "--window", 64, "--windows", 2)
    assert not out and "62 tensors, 2 windows of 64 tokens" in err, err
    listed = json.loads(good("inspect", matrix, "--json")[0])
    assert listed["keys"]["general.type"]["value"] == "imatrix" and listed["keys"]["imatrix.chunk_count"]["value"] == 2
    names = {t["name"]: t["dims"] for t in listed["tensors"]}
    assert names["blk.0.ffn_down.weight.in_sum2"] == [1024, 1] and names["blk.0.ffn_down.weight.counts"] == [1, 1], names
    good("quantize", SHIPPED, plain, "q2_k", "-q")
    err = good("quantize", SHIPPED, weighed, "q2_k", "--imatrix", matrix)[1]
    assert "weights for 58 of 58 matrices" in err, err
    assert plain.read_bytes() != weighed.read_bytes()
    keys = json.loads(good("inspect", weighed, "--json")[0])["keys"]
    assert keys["quantize.imatrix.file"]["value"] == str(matrix) and keys["quantize.imatrix.entries_count"]["value"] == 62, keys
    assert "is already quantized (Q4_K, Q6_K); quantizing its" in err.splitlines()[0], err  # every type that is rounded again
    assert "(Q4_K);" in good("quantize", SHIPPED, TMP / "q6_k.gguf", "q6_k")[1]  # but not what stays
    bad(1, "sums and 1 counts for blk.", "quantize", TINY, TMP / "x.gguf", "q4_0", "--imatrix", matrix)
    bad(1, "general.type is 'model', expected 'imatrix'", "quantize", TINY, TMP / "x.gguf", "q4_0", "--imatrix", SHIPPED)
    bad(1, "neither GGUF nor an older", "quantize", TINY, TMP / "x.gguf", "q4_0", "--imatrix", text)
    bad(1, "cannot open", "quantize", TINY, TMP / "x.gguf", "q4_0", "--imatrix", TMP / "no/such/matrix")
    assert not (TMP / "x.gguf").exists()
    bad(1, "tokens, expected at least a window", "imatrix", SHIPPED, "-f", text, "-o", TMP / "y", "--window", 4096)
    bad(2, "-o FILE is missing", "imatrix", SHIPPED, "-f", text)
    bad(2, "-f TEXT is missing", "imatrix", SHIPPED, "-o", TMP / "y")
    bad(2, "--backend is 'cuda'", "imatrix", SHIPPED, "-f", text, "-o", TMP / "y", "--backend", "cuda")
    bad(2, "--context is 64, expected 32 (--window)", "imatrix", SHIPPED, "-f", text, "-o", TMP / "y", "-c", 64, "--window", 32)
    bad(2, "unknown option", "imatrix", SHIPPED, "-f", text, "-o", TMP / "y", "--device", 0)
    bad(1, "is a file of the input", "imatrix", SHIPPED, "-f", text, "-o", SHIPPED, "--window", 64)


def test_imatrix_of_matrices_that_are_regrouped():
    """Products read rows of ssm_in and ssm_ba that were moved when they were loaded."""
    model, matrix = DATA / "reference/qwen3next-a/model-fused.gguf", TMP / "moved.gguf"
    text = TMP / "moved.txt"
    text.write_text("The keeper of the gates walked the bank. " * 40)
    good("imatrix", model, "-f", text, "-o", matrix, "--window", 64, "--windows", 2)
    names = {t["name"]: t["dims"] for t in json.loads(good("inspect", matrix, "--json")[0])["tensors"]}
    for part in ("ssm_in", "ssm_ba", "ssm_out", "ffn_down_shexp"):
        assert names[f"blk.0.{part}.weight.counts"] == [1, 1], names
    assert len([n for n in names if n.endswith(".counts")]) == 2 * 3 + 4 + 3 * 6, sorted(names)
    err = good("quantize", model, TMP / "moved-q4.gguf", "q4_0", "--imatrix", matrix)[1]
    assert "weights for 28 of 29 matrices" in err, err  # not for the head
    good("run", "-m", TMP / "moved-q4.gguf", "-p", "The", "-n", 4, "--backend", "cpu")


def test_drafts_by_the_models_block():
    model = DATA / "mtp/stories.gguf"
    for sampling in (["--temp", "0"], ["--temp", "0.9", "--seed", "4"]):
        texts = [good("run", "-m", model, "-p", "One day", "-n", "60", "--backend", "cpu", *sampling, *mtp)[0]
                 for mtp in (["--draft", "0"], ["--mtp", "0"], ["--mtp", "1"], [], ["--mtp", "8", "--draft", "9"])]
        assert len(set(texts)) == 1, texts
    kept = [json.loads(good("run", "-m", model, "-p", "Once upon a time", "-n", "200", "--temp", "0", "--json",
                            "--backend", "cpu", "--mtp", n)[0])["drafts_kept"] for n in "03"]
    assert kept[1] > kept[0], kept
    out = good("bench", "-m", model, "--backend", "cpu", "-p", "0", "-n", "12", "-r", "1", "--mtp", "2", "--json")[0]
    assert [(d["n"], d["drafted"] > 0) for d in json.loads(out)["drafts"]] == [(1, True), (2, True)], out
    assert b"multi-token prediction" in good("inspect", model)[0]
    assert b"multi-token prediction" not in good("inspect", SHIPPED)[0]
    with_block, without = (json.loads(good("inspect", model, "--json", "--backend", "cpu", "--mtp", n)[0]) for n in "30")
    assert with_block["draft_block"] and with_block["memory"]["total"] > without["memory"]["total"]
    bad(1, "has no block for multi-token prediction", "run", "-m", SHIPPED, "-p", "x", "-n", "1", "--mtp", "2")
    bad(2, "expected 0 to 8", "run", "-m", model, "-p", "x", "-n", "1", "--mtp", "9")
    cache = TMP / "mtp.cache"
    good("run", "-m", model, "-p", "One day", "-n", "2", "--prompt-cache", cache, "--mtp", "0", "--backend", "cpu")
    err = good("run", "-m", model, "-p", "One day", "-n", "2", "--prompt-cache", cache, "--backend", "cpu")[1]
    assert "made with another --mtp; the prompt is processed in full" in err, err


def test_synthetic_models_need_no_file():
    out, err = good("run", "-m", "synth:qwen35-tiny:q4_k_m", "-p", "abc", "-n", 6, "--temp", 0)
    assert out == good("run", "-m", "synth:qwen35-tiny:q4_k_m", "-p", "abc", "-n", 6, "--temp", 0)[0]
    tensors = json.loads(good("inspect", "synth:qwen35-27b:q4_k_m", "--json")[0])["tensors"]
    assert len(tensors) > 800
    tensors = json.loads(good("inspect", "synth:qwen35-tiny:iq2_xs", "--json")[0])["tensors"]
    assert "IQ2_XS" in {t["type"] for t in tensors}
    text = good("inspect", "synth:qwen35-tiny:q4_k_m")[0].decode()
    assert "  synthetic, architecture qwen35\n" in text and "file" not in text.split("keys")[0], text  # both copies are in memory, and said to be
    assert re.search(r"packed .* a second copy", text) and "released" in good("inspect", SHIPPED)[0].decode(), text
    bad(1, "synth", "run", "-m", "synth:no-such-model:q8_0", "-n", 1)
    bad(1, "synth", "run", "-m", "synth:qwen35-tiny:q9_9", "-n", 1)


def test_explain_compares_backends():
    ledger = json.loads(good("explain", "-m", TINY, "--compare", "cpu", "--rows", 3, "--depth", 5, "--json")[0])
    assert len(ledger) > 10 and all(op["largest"] == 0 for op in ledger)
    assert any(op["rms"] > 0 for op in ledger)
    bad(2, "--compare", "explain", "-m", TINY, "--compare", "abacus")


def test_bench_in_bursts():
    found = json.loads(good("bench", "-m", TINY, "-p", 0, "-n", 20, "-r", 1, "--burst", "--json")[0])
    assert found["decode"]["tok_s"] > 0 and found["submissions"] <= found["steps"] == 40


def test_bench_through_the_scheduler():
    found = json.loads(good("bench", "-m", TINY, "-p", 0, "-n", 6, "-r", 1, "--batch", 3, "--scheduler", "--json")[0])
    assert found["steps"] == 24 and found["scheduler"]["tok_s"] > 0 and found["scheduler"]["own_us"] > 0
    out = good("bench", "-m", TINY, "-p", 4, "-n", 6, "-r", 1, "--burst", "--scheduler")[0]
    assert b"of decode" in out
    bad(2, "--depth", "bench", "-m", TINY, "--scheduler", "--depth", 3)
    bad(2, "needs -n 1 or more", "bench", "-m", TINY, "--scheduler", "-n", 0)


# ---- what people see ----------------------------------------------------------------------------

STORY = ("run", "-p", "Once upon a time", "--temp", 0)


def read_to_end(master, until=None, then=None):
    """All that comes; once `until` was seen, calls `then`."""
    seen = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:  # the other side is gone
            break
        if not more:
            break
        seen += more
        if until and until in seen:
            then()
            until = None
    os.close(master)
    return seen


def terminal(*args, columns=80, env=None, until=None, signal_number=signal.SIGINT):
    """Both outputs are one terminal; with `until` the signal is sent once that was seen. (status, output)"""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    p = subprocess.Popen([SLUICE, *map(str, args)], stdin=slave, stdout=slave, stderr=slave,
                         env={**environment, "TERM": "xterm", **(env or {})}, start_new_session=True)
    os.close(slave)
    seen = read_to_end(master, until, lambda: p.send_signal(signal_number))
    return p.wait(timeout=PATIENCE), seen.decode()


def test_levels_of_what_is_said():
    assert len(good(*STORY, "-n", 4)[1].splitlines()) == 2
    assert good(*STORY, "-n", 4, "-q")[1] == "" == good(*STORY, "-n", 4, "--quiet")[1]
    more = good(*STORY, "-n", 4, "-v")[1]
    assert len(more.splitlines()) == 4 and "submissions" in more and "weights" in more and "seed" in more, more
    assert bad(1, "no/such", "run", "-q", "no/such") is None


def test_run_as_json():
    text = good(*STORY, "-n", 9)[0].decode()
    out, err = good(*STORY, "-n", 9, "--json", "--seed", 7)
    assert err == "" and out.count(b"\n") == 1
    found = json.loads(out)
    assert found["text"] + "\n" == text and found["tokens"] == 9 and found["prompt_tokens"] == 4, found
    assert found["end"] == "length" and found["seed"] == 7 and found["context"] == 2048 and found["backend"] == "cpu", found
    assert found["submissions"] == found["waits"] > 0 and found["memory_bytes"] > 0 and "logprobs" not in found
    ends = [("stop", ("--stop", " time")), ("length", ("-n", 0)), ("context", ("-c", 12, "--ignore-eos"))]
    for end, more in ends:
        found = json.loads(good("run", "-p", "Once upon a", "--temp", 0, "--json", *more)[0])
        assert found["end"] == end, (end, found)
    found = json.loads(good("run", "--json", "-n", 3)[0])
    assert found["prompt_tokens"] == 4 and found["tokens"] == 3, found


def test_a_drawn_seed_can_be_given_again():
    first = json.loads(good("run", "-p", "Once", "-n", 12, "--json", "--temp", 2)[0])
    assert json.loads(good("run", "-p", "Once", "-n", 12, "--json", "--temp", 2, "-s", first["seed"])[0])["text"] == first["text"]


def test_lines_never_glue_to_the_text():
    for more in (("-c", 12), ("-n", 5), ("-n", 5, "-v")):
        p = subprocess.run([SLUICE, *map(str, STORY), *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines = p.stdout.decode().splitlines()
        assert p.returncode == 0 and any(line.startswith("prompt 4 tokens") for line in lines), lines
        assert more[0] != "-c" or any(line.startswith("(the context is full") for line in lines), lines
        assert "" not in lines, lines


def test_a_terminal_sees_prompt_and_colour():
    code, seen = terminal(*STORY, "-n", 5)
    assert code == 0 and "Once upon a time," in seen and "\x1b[2m" in seen, seen
    assert seen.index("context 2048") < seen.index("Once upon a time") < seen.index("tok/s"), seen
    assert "Once upon a time" not in good(*STORY, "-n", 5)[0].decode()
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[2m" not in terminal(*STORY, "-n", 1, env=env)[1]
    assert "\x1b" not in terminal(*STORY, "-n", 1, env={"TERM": "dumb"})[1]  # no bar, either
    assert "\x1b[31m" in terminal("run", "--nonsense")[1]


def test_texts_do_not_steer_the_terminal():
    """Neither a model's text nor a prompt from a file sets titles, fills the clipboard or prints over what is there; a pipe gets every byte."""
    evil = "\x1b]0;title\x07\x1b[31mred\r\x08\x7f\u009b"
    rule = "root ::= " + json.dumps(evil + "\t\u00e9\nend", ensure_ascii=False).replace("\\u00", "\\x").replace("\\b", "\\x08") + "\n"
    args = ("--grammar", rule, "-n", 60, "--temp", 0)
    assert good("run", "-p", "x", *args)[0].decode().startswith(evil + "\t\u00e9\n")
    prompt = TMP / "evil.txt"
    prompt.write_text(evil + "!")
    for verb in (("run", "-p", "x"), ("chat", "-p", "x"), ("run", "-f", prompt)):
        seen = terminal(*verb, *args, env={"NO_COLOR": "1"})[1]
        assert "?]0;title??[31mred???" in seen and "\t\u00e9\r\nend" in seen, seen
        assert not re.search("[\x07\x08\x7f\u0080-\u009f]|\x1b(?!\\[K)", seen), seen


def test_bars_fit_narrow_terminals():
    for columns in (8, 20, 50, 200):
        code, seen = terminal(*STORY, "-n", 1, columns=columns, env={"NO_COLOR": "1"})
        bars = [b for b in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen).replace("\n", "\r").split("\r") if b.startswith("loading")]
        assert code == 0 and bars and all(len(b) < columns for b in bars), (columns, bars)
        assert ("[" in bars[0]) == (columns > 50), (columns, bars)
    assert "loading" not in terminal(*STORY, "-n", 1, "-q")[1]


def test_interrupted_text_has_its_figures():
    code, seen = terminal("run", "--ignore-eos", "-c", 100000, until=b"Once upon a time")
    assert code == 130 and "interrupted" in seen and "tok/s" in seen, seen
    p = subprocess.Popen([SLUICE, "run", "--ignore-eos", "--json", "-c", "100000", "-v"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seen = p.stderr.readline() + p.stderr.readline()
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=PATIENCE)
    found = json.loads(out)
    assert p.returncode == 130 and found["end"] == "interrupted", (p.returncode, out, err)
    assert found["tokens"] == 0 or found["prompt_tok_s"] > 0, found  # the prompt was read
    code, seen = terminal("run", "--ignore-eos", "-c", 100000, "--temp", 0, "-p", "Once upon a time", until=b"time, there")
    assert code == 130 and re.search(r"prompt 4 tokens, .*tok/s; \d+ tokens.*, interrupted", seen), seen


def has_threads(p):
    """The engine has its threads: it loads."""
    return len(os.listdir(f"/proc/{p.pid}/task")) > 1


def held_terminal(*args):
    """As terminal(), with the output held back as by Ctrl-S until the signal is sent: loading goes on until then, as
    the program waits to draw its bar. (status, output)"""
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    p = subprocess.Popen([SLUICE, *map(str, args)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    wait_until(lambda: p.poll() is not None or has_threads(p))
    p.send_signal(signal.SIGINT)
    termios.tcflow(slave, termios.TCOON)
    os.close(slave)
    return p.wait(timeout=PATIENCE), read_to_end(master).decode()


def test_interrupted_while_loading():
    model = "synth:qwen35-0.8b:q4_k_m"
    (TMP / "ids").write_text("1 2 3\n")
    (TMP / "template").write_text("{{ messages[0].content }}")
    for args in (("run", "-p", "x", "--prompt-cache", TMP / "left"), ("chat", "--chat-template", TMP / "template"), ("bench",), ("ppl", "-f", ROOT / "docs/style.md"),
                 ("logits", "--tokens", TMP / "ids", "-o", TMP / "left")):
        code, seen = held_terminal(args[0], "-m", model, "-t", 2, *args[1:])
        assert code == 130, (args, code, seen)
        assert seen.endswith("\r\x1b[Ksluice: interrupted while loading\r\n") and seen.count("sluice") == 1, (args, seen)
        assert not list(TMP.glob("*left*")), args
    big = "synth:qwen35-4b:q4_k_m"  # nothing holds it, but it has seconds of loading before it
    p = subprocess.Popen([SLUICE, "run", "-m", big, "-p", "x", "-t", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: has_threads(p))
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=PATIENCE) == (b"", b"sluice: interrupted while loading\n") and p.returncode == 130


def test_interrupted_prompt_ends_at_once():
    p = subprocess.Popen([SLUICE, "run", "-t", "1", "-c", "40000", "-n", "1", "--backend", "cpu"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b"Once upon a time there was a fox. " * 3000)
    p.stdin.close()
    while b"context" not in (line := p.stderr.readline()) or b"warning" in line:
        assert line
    begun = processor_seconds(p.pid)
    wait_until(lambda: processor_seconds(p.pid) > begun + 0.2)  # it reads
    asked = processor_seconds(p.pid)
    p.send_signal(signal.SIGINT)
    err = p.stderr.read().decode()
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    late = used.ru_utime + used.ru_stime - asked
    assert p.returncode == 130 and late < 3, (p.returncode, late)
    assert p.stdout.read() == b"" and "interrupted" in err and " left)" in err and len(err.splitlines()) == 1, err


def test_interrupted_while_nobody_reads():
    """The pipe is full and the program waits in write: it ends all the same, with its figures."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 64)
    except BlockingIOError:
        os.set_blocking(writer, True)
    p = subprocess.Popen([SLUICE, "run", "-m", str(TINY), "-p", "ab", "--ignore-eos"], stdout=writer, stderr=subprocess.PIPE)
    p.stderr.readline()
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    err = p.stderr.read().decode()
    assert p.wait(timeout=PATIENCE) == 130 and "interrupted" in err, (p.returncode, err)
    os.close(reader)
    os.close(writer)


def has_signal(pid, number, field):
    """Whether a process catches (SigCgt) or ignores (SigIgn) a signal."""
    found = re.search(rf"{field}:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
    return int(found, 16) >> number - 1 & 1


def test_signals_end_what_has_no_engine():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        p = subprocess.Popen([SLUICE, "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.3)  # it reads its standard input, or on a busy machine still opens the model
        p.send_signal(number)
        assert p.wait(timeout=PATIENCE) in ((-number, 130) if number == signal.SIGINT else (-number,))
    # Scripts start their background jobs with SIGINT ignored.
    p = subprocess.Popen([SLUICE, "run", "--ignore-eos"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    wait_until(lambda: has_signal(p.pid, signal.SIGINT, "SigCgt"))
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=PATIENCE) in (-signal.SIGINT, 130)
    p = subprocess.Popen(["nohup", SLUICE, "run", "-n", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: has_signal(p.pid, signal.SIGHUP, "SigIgn"))
    time.sleep(0.3)  # for most runs, until it reads its standard input
    p.send_signal(signal.SIGHUP)
    p.communicate(b"", timeout=PATIENCE)
    assert p.returncode == 0


def test_loops_end_by_themselves():
    args = ("run", TINY, "-p", "Once", "-n", 300, "--logit-bias", "65=1000")
    assert "over and over" in good(*args)[1]
    found = json.loads(good(*args, "--json")[0])
    assert found["end"] == "loop" and found["tokens"] == 201, found
    found = json.loads(good(*args, "--json", "--ignore-eos")[0])
    assert found["end"] == "length" and found["tokens"] == 300, found


# ---- names and places ---------------------------------------------------------------------------

def test_the_model_is_a_word_an_option_or_a_variable():
    want = good("run", "-m", TINY, "-p", "ab", "-n", 4, "--temp", 0)[0]
    assert want == good("run", TINY, "-p", "ab", "-n", 4, "--temp", 0)[0]
    assert want == good("run", "-p", "ab", "-n", 4, "--temp", 0, env={"SLUICE_MODEL": str(TINY)})[0]
    assert want != good("run", SHIPPED, "-p", "ab", "-n", 4, "--temp", 0, env={"SLUICE_MODEL": str(TINY)})[0]
    assert want != good("run", "-p", "ab", "-n", 4, "--temp", 0, env={"SLUICE_MODEL": ""})[0]
    bad(1, "no/such", "inspect", env={"SLUICE_MODEL": "no/such"})
    bad(2, "SLUICE_BACKEND is 'gpu', expected auto", "run", "-p", "ab", env={"SLUICE_BACKEND": "gpu"})
    assert want == good("run", TINY, "-p", "ab", "-n", 4, "--temp", 0, "--backend", "cpu", env={"SLUICE_BACKEND": "gpu"})[0]
    bad(1, "empty", "run", env={"SLUICE_MODEL": str(SHIPPED)})  # the story is the shipped model's own
    bad(2, "unexpected argument 'b'", "run", "a", "b")
    for verb in (("explain", TINY, "--json"), ("inspect", TINY), ("tokenize", TINY, "-p", "x")):
        good(*verb)


def test_numbers_may_follow_their_letter():
    assert good("run", "-p", "Once", "-n5", "--temp", 0)[0] == good("run", "-p", "Once", "-n", 5, "--temp", 0)[0]


def test_one_token_has_no_speed():
    assert good("run", "-p", "Once", "-n", 1)[1].endswith("; 1 token\n")


def test_llama_cpp_names_mean_the_same():
    want = good("run", "-p", "Once", "-n", 6, "-c", 64, "--temp", 0.7, "--seed", 3)[0]
    assert want == good("run", "--prompt", "Once", "--n-predict", 6, "--ctx-size", 64, "--temperature", 0.7, "-s", 3)[0]
    assert want == good("run", "--prompt", "Once", "--n_predict=6", "--ctx_size=64", "--temp=0.7", "--seed=3")[0]


def test_piped_prompts_lose_their_newline():
    want = good(*STORY, "-n", 8)[0]
    for text in (b"Once upon a time\n", b"Once upon a time\r\n", b"Once upon a time"):
        assert want == good("run", "--temp", 0, "-n", 8, stdin=text)[0] == good("run", "-f", "-", "--temp", 0, "-n", 8, stdin=text)[0]
    kept = good("run", "--temp", 0, "-n", 8, "--keep-newline", stdin=b"Once upon a time\n")[0]
    assert kept == good("run", "-p", "Once upon a time\n", "--temp", 0, "-n", 8)[0] != want
    assert kept == good("run", "--temp", 0, "-n", 8, stdin=b"Once upon a time\n\n")[0]


# ---- what run can do besides --------------------------------------------------------------------

def test_logit_biases():
    token = good("tokenize", "-p", " fox")[0].decode().strip()
    for spec in (f"{token}=100", f"{token}:100", f"{token}+100", f"{token}=1e2", " fox=100", "' fox'=100", '" fox"+100'):
        assert good("run", "-p", "Once", "-n", 2, "--logit-bias", spec)[0] == b" fox fox\n", spec
    first = json.loads(good(*STORY, "-n", 1, "--json", "--logprobs", 0)[0])["logprobs"][0]["id"]
    for spec in (f"{first}-inf", f"{first}=-inf", f"{first}-1e2", f"{first}:-100"):
        found = json.loads(good(*STORY, "-n", 1, "--json", "--logprobs", 0, "--logit-bias", spec)[0])
        assert found["logprobs"][0]["id"] != first, spec
    both = good("run", "-p", "Once", "-n", 4, "--logit-bias", " fox=100", "--logit-bias", " fox=-100", "-l", "' dog'=50", "--temp", 0)
    assert b" dog dog dog dog" in both[0], both
    for spec in ("", "5", "=5", "fox=", "fox=x", f"{token}=inf", f"{token}=nan", f"{token}=1e9"):
        bad(2, "--logit-bias is", "run", "-p", "x", "--logit-bias", spec)
    bad(2, "8192", "run", "-p", "x", "--logit-bias", "8192=1")
    bad(2, "expected 0 to", "run", "-p", "x", "--logit-bias", "99999999999999999999=1")
    bad(2, "2 tokens", "run", "-p", "x", "--logit-bias", " fox fox=1")


def test_ignore_eos_goes_on():
    prompt = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
    short = json.loads(good("run", "--special", "-p", prompt, "--temp", 0, "--json")[0])
    assert short["end"] == "end" and short["tokens"] < 60, short
    longer = json.loads(good("run", "--special", "-p", prompt, "--temp", 0, "--json", "--ignore-eos", "-n", short["tokens"] + 5)[0])
    assert longer["end"] == "length" and longer["tokens"] == short["tokens"] + 5 and longer["text"].startswith(short["text"])


def test_logprobs():
    found = json.loads(good(*STORY, "-n", 6, "--json", "--logprobs", 3)[0])
    assert "".join(p["token"] for p in found["logprobs"]) == found["text"] and len(found["logprobs"]) == 6
    for p in found["logprobs"]:
        values = [t["logprob"] for t in p["top"]]
        assert len(values) == 3 and values == sorted(values, reverse=True) and all(v <= 1e-6 for v in values), p
        assert p["top"][0]["id"] == p["id"] and p["top"][0]["logprob"] == p["logprob"]
    # Against the raw logits.
    ids = good("tokenize", "-p", "Once upon a time")[0]
    (TMP / "ids").write_bytes(ids)
    good("logits", "--tokens", TMP / "ids", "-o", TMP / "raw")
    row = floats(TMP / "raw")[-8192:]
    total = max(row) + math.log(sum(math.exp(x - max(row)) for x in row))
    for t in found["logprobs"][0]["top"]:
        assert abs(t["logprob"] - (row[t["id"]] - total)) < 1e-3, t
    lines = good(*STORY, "-n", 6, "--logprobs", 1)[1].splitlines()
    assert len(lines) == 8 and lines[1].startswith('","'), lines
    bad(2, "--logprobs", "run", "-p", "x", "--logprobs", 101)
    bad(2, "--logprobs", "run", "-p", "x", "--logprobs", -2)


def test_prompt_cache():
    check_prompt_cache(TINY)


def test_prompt_cache_is_no_pipe():
    bad(2, "--prompt-cache is '-', expected a file", "run", SHIPPED, "-p", "a", "--prompt-cache", "-")


def test_prompt_cache_of_attention_alone():
    check_prompt_cache(REFERENCE / "llama-a/model-f32.gguf")


def check_prompt_cache(model):
    path = TMP / "cache"
    path.unlink(missing_ok=True)
    prompt = "Once upon a time there was a fox who liked the wood"

    def ask(text, *more):
        out, err = good("run", model, "-p", text, "-n", 6, "--temp", 0, "--json", "--prompt-cache", path, *more)
        found = json.loads(out)
        assert found["text"] == json.loads(good("run", model, "-p", text, "-n", 6, "--temp", 0, "--json", *more)[0])["text"]
        return found["prompt_tokens"], found["prompt_tokens_kept"], err

    n, kept, err = ask(prompt)
    assert kept == 0 and err == "" and path.exists()
    before = path.read_bytes()
    assert ask(prompt) == (n, n - 1, "") and path.read_bytes() == before
    assert ask(prompt, "--seed", 5, "--temp", 0.9) == (n, n - 1, "")
    m, kept, err = ask(prompt + " and the lake")
    assert m > n and kept == n - 1 and err == "" and path.read_bytes() != before
    assert ask(prompt + " and the lake") == (m, m - 1, "")
    # A prompt that turns off in the middle: a KV cache is cut back, a recurrent state begins anew.
    m, kept, err = ask(prompt.replace("liked", "loved"))
    assert kept == 0 and "another prompt" in err if model == TINY else 0 < kept < n - 1 and err == "", (kept, err)
    n, kept, err = ask("The dog")
    assert kept == 0 and len(err.splitlines()) == 1 and "another prompt" in err and ask("The dog")[1] == n - 1
    for damage in (b"", path.read_bytes()[:9], path.read_bytes()[:-3]):
        path.write_bytes(damage)
        n, kept, err = ask("The dog")
        assert kept == 0 and len(err.splitlines()) == 1 and "processed in full" in err, (damage[:9], err)
        assert ask("The dog")[1] == n - 1
    for other in (b"a text", b"GGUF"):  # of somebody else: not read, not replaced
        path.write_bytes(other)
        n, kept, err = ask("The dog")
        assert kept == 0 and "left as it is" in err and path.read_bytes() == other, err
    path.unlink()
    n, kept, err = ask("The dog")
    n, kept, err = ask("The dog", "--kv", "f32")
    assert kept == 0 and "processed in full" in err
    out, err = good("run", "-p", "The dog", "-n", 2, "--prompt-cache", TMP / "no/such/folder")
    assert out and "warning" in err and "no/such" in err, err


def test_warnings():
    err = good("run", "-n", 1, "-c", 4096)[1]
    assert "warning" in err.splitlines()[0] and "4096" in err and "2048" in err, err
    assert "warning" in good("run", "-n", 1, "-c", 4096, "--json")[1]
    assert good("run", "-n", 1, "-c", 4096, "-q")[1] == ""
    assert "warning" not in good("run", "-n", 1, "-c", 2048)[1]
    for verb in (("run", "-n", 1), ("inspect",), ("explain",), ("bench",)):
        bad(1, "0 (cpu: ", *verb, "--backend", "cpu", "--device", 3)
    folder = TMP / "no-template"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_bytes((REFERENCE / "llama-a" / name).read_bytes())
    config = json.loads((REFERENCE / "llama-a/tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    first = good("chat", folder, "-p", "Hi", "-n", 2)[1].splitlines()[0]
    assert "warning" in first and "no chat template" in first, first
    assert "warning" not in good("chat", REFERENCE / "llama-a", "-p", "Hi", "-n", 2)[1]


def test_binary_files_are_not_for_terminals():
    (TMP / "ids").write_text("1 2 3\n")
    text = ROOT / "docs/style.md"
    for args in (("quantize", TINY, "-", "q8_0"), ("convert", REFERENCE / "llama-a", "-"), ("logits", "-m", TINY, "--tokens", TMP / "ids", "-o", "-"),
                 ("logits", "-m", TINY, "--tokens", TMP / "ids", "-o", "/dev/stdout"), ("imatrix", TINY, "-f", text, "-o", "-", "--window", 8, "--windows", 1)):
        code, seen = terminal(*args, env={"NO_COLOR": "1"})
        assert code == 2 and seen == f"sluice: {args[0]}: the output is a terminal, expected a file or a pipe\r\n", (args, seen)
    assert "<!doctype html>" in terminal("explain", "-m", TINY, "--time", "--html", "-")[1]  # a text may


def test_logits_of_no_prompt():
    for text in ("", "\n \n"):
        (TMP / "none").write_text(text)
        bad(1, "none: no prompt, expected some", "logits", "-m", TINY, "--tokens", TMP / "none", "-o", TMP / "of-none")
    assert not (TMP / "of-none").exists()


def test_run_notices_a_full_device():
    with open("/dev/full", "wb") as full:
        p = subprocess.run([SLUICE, *map(str, STORY), "-n", "5"], stdout=full, stderr=subprocess.PIPE)
    assert p.returncode == 1 and b"cannot write to standard output: No space left on device" in p.stderr, p.stderr


suite.main(globals())
