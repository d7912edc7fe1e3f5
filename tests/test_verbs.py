#!/usr/bin/env python3
"""test_verbs.py SLUICE - the verbs that run models, from outside: run, chat, ppl, logits, bench, explain, inspect.

Needs only Python 3. Prints one line for a test that fails, and "N passed, N failed" at the end.
"""
import array, json, os, signal, subprocess, sys, tempfile, time, traceback
from pathlib import Path

SLUICE = os.path.abspath(sys.argv[1])
ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SLUICE_TEST_DATA", ROOT / "build/data"))
REFERENCE = DATA / "reference"
SHIPPED = ROOT / "models/stories-27m-q4_k_m.gguf"
TINY = REFERENCE / "qwen35-dense-a/model-f32.gguf"
TMP = Path(tempfile.mkdtemp())


def run(*args, stdin=b""):
    p = subprocess.run([SLUICE, *map(str, args)], input=stdin, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=300)
    return p.returncode, p.stdout, p.stderr.decode()


def good(*args, **kw):
    code, out, err = run(*args, **kw)
    assert code == 0, f"{args} exits {code}: {err.strip()}"
    return out, err


def bad(code, fragment, *args, **kw):
    """The program exits with that code and says one line, with that fragment in it."""
    got, out, err = run(*args, **kw)
    assert got == code, f"{args} exits {got}, expected {code}: {err.strip()}"
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("sluice: "), f"{args} says {err!r}, expected one line"
    assert fragment in lines[0], f"{args} says {lines[0]!r}, expected {fragment!r} in it"
    assert not out, f"{args} prints {out[:80]!r} although it fails"


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
    bad(1, "-c", "run", "-p", "x", "-c", 1 << 24, "-m", SHIPPED, "--kv", "f32")
    bad(2, "--kv", "run", "-p", "x", "--kv", "q7")
    bad(2, "--backend", "run", "-p", "x", "--backend", "abacus")
    bad(2, "--temp", "run", "-p", "x", "--temp", "-1")
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
    p = subprocess.Popen([SLUICE, "chat", "-m", str(SHIPPED)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b"Tell me a story about a fox.\n")
    p.stdin.flush()
    first = p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(b"Who are you?\n", timeout=120)
    assert p.returncode == 0, err
    assert first and b"Sluice" in out.splitlines()[-1], out
    assert b"interrupted" in err, err


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
    bad(2, "-f", "ppl")
    bad(2, "--window", "ppl", "-f", text, "--window", 1)


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
    bad(2, "something to do", "bench", "-m", TINY, "-p", 0, "-n", 0)
    bad(1, "-c", "bench", "-m", TINY, "-p", most, "-n", most, "--depth", most)
    bad(1, "-c", "explain", "-m", TINY, "--depth", most, "--rows", 4096)
    bad(1, "-c", "logits", "-m", TINY, "--tokens", TMP / "ids", "--greedy", most)
    bad(1, "--window", "ppl", "-m", SHIPPED, "-f", TMP / "ids", "--window", 2147483647)


def test_explain():
    plan = json.loads(good("explain", "-m", TINY, "--json")[0])
    assert plan["ops"][0]["op"] == "embed" and plan["ops"][-1]["op"] == "pick"
    assert len([o for o in plan["ops"] if o["layer"] == 0]) == 5
    timed = json.loads(good("explain", "-m", TINY, "--json", "--time", "--html", TMP / "x.html")[0])
    assert all(o["us"] > 0 for o in timed["ops"]) and (TMP / "x.html").stat().st_size > 1000
    assert b"ffn out" in good("explain", "-m", TINY)[0]


def test_inspect_predicts_the_memory():
    for more in ([], ["--kv", "q8_0"], ["--exact"]):
        plan = json.loads(good("inspect", SHIPPED, "--json", "-c", 300, "-t", 1, *more)[0])["memory"]
        parts = ("weights", "state", "scratch", "io", "packed", "workspace")
        assert plan["total"] == sum(plan[p] for p in parts)
        found = json.loads(good("bench", "-m", SHIPPED, "-c", 300, "-t", 1, "-p", 4, "-n", 2, "-r", 1,
                                "--json", *more)[0])
        assert found["memory_bytes"] == plan["total"], (found, plan)
    bad(2, "--batch", "inspect", SHIPPED, "--batch", -1)


def test_devices_lists_what_there_is():
    text = good("devices")[0].decode()
    assert any(line.startswith("cpu: ") for line in text.splitlines()), text
    found = json.loads(good("devices", "--json")[0])
    assert [d["about"] for d in found] == text.splitlines() and found[-1]["backend"] == "cpu"
    bad(2, "expected auto", "run", "--backend", "abacus", "-n", 1)
    if not any(d["backend"] == "cuda" for d in found) and b"cuda" in Path(SLUICE).read_bytes():
        for args in (("run", "-n", 1), ("inspect", SHIPPED)):
            code, _, err = run(*args, "--backend", "cuda")
            assert code in (1, 2) and len(err.splitlines()) == 1, err


def test_synthetic_models_need_no_file():
    out, err = good("run", "-m", "synth:qwen35-tiny:q4_k_m", "-p", "abc", "-n", 6, "--temp", 0)
    assert out == good("run", "-m", "synth:qwen35-tiny:q4_k_m", "-p", "abc", "-n", 6, "--temp", 0)[0]
    tensors = json.loads(good("inspect", "synth:qwen35-27b:q4_k_m", "--json")[0])["tensors"]
    assert len(tensors) > 800
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


def main():
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (len(sys.argv) > 2 and sys.argv[2] not in name):
            continue
        try:
            test()
            passed += 1
        except Exception as e:
            failed += 1
            line = traceback.extract_tb(e.__traceback__)[-1]
            print(f"{name}: {e or line.line}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
