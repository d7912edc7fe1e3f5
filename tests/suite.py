"""suite.py - what the suites in Python share: which tests run, how they are counted, what is printed.

    python3 tests/test_NAME.py PROGRAM [WORD ...] [-WORD ...]

runs the functions test_* of a suite whose names hold one of the words, or all of them, but for those
that hold a word after a dash. A test that fails is a line that begins with FAILED; the last line is
"N passed, N failed", with ", N skipped" if there are any. TIMES=1 prints the time and the processor
time of each test.

    import suite
    ...
    suite.main(globals())
"""
import atexit, os, shutil, signal, subprocess, sys, tempfile, time, traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "models/stories-27m-q4_k_m.gguf"
PROGRAM = os.path.abspath(sys.argv[1])
WORDS = [w for w in sys.argv[2:] if not w.startswith("-")]
LEFT_OUT = [w[1:] for w in sys.argv[2:] if w.startswith("-")]
PATIENCE = 300  # seconds for what comes at once on an idle machine

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where nohup started the tests


class Skip(Exception):
    """What a test raises that cannot run here; the text says why."""


def temporary():
    """A folder that is removed when the suite ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def use_venv():
    """Starts the suite again in the environment that tools/setup.sh makes, where there is one."""
    python = ROOT / "build/venv-test/bin/python"
    if python.exists() and Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), *sys.argv])


def wait_until(condition, what="what had to come came", every=0.002):
    end = time.time() + PATIENCE
    while not condition():
        assert time.time() < end, f"waited {PATIENCE} s until {what}"
        time.sleep(every)


# ---- the program -----------------------------------------------------------------------------------

def run(*args, stdin=b"", env=None, stdout=subprocess.PIPE):
    """Runs the program with these arguments: exit status, standard output, standard error. stdin: bytes, or a file."""
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    p = subprocess.run([PROGRAM, *map(str, args)], **given, stdout=stdout, stderr=subprocess.PIPE,
                       env={**os.environ, **(env or {})}, timeout=PATIENCE)
    return p.returncode, p.stdout or b"", p.stderr.decode()


def bad(code, fragment, *args, **kw):
    """The program exits with that code and says one line, with that fragment in it."""
    got, out, err = run(*args, **kw)
    assert got == code, f"{args} exits {got}, expected {code}: {err.strip()}"
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("sluice: "), f"{args} says {err!r}, expected one line"
    assert fragment in lines[0], f"{args} says {lines[0]!r}, expected {fragment!r} in it"
    assert not out, f"{args} prints {out[:80]!r} although it fails"


# ---- the tests -------------------------------------------------------------------------------------

def is_wanted(name):
    return (not WORDS or any(w in name for w in WORDS)) and not any(w in name for w in LEFT_OUT)


def reason(e):
    """The line of the suite that an exception came from, and what it says."""
    frames = traceback.extract_tb(e.__traceback__)
    line = [f for f in frames if f.filename == sys.modules["__main__"].__file__][-1:] or frames[-1:]
    return f"(line {line[0].lineno}): {str(e) or f'{type(e).__name__}: {line[0].line}'}"


class Results:
    """Counts. A suite that is not a list of functions uses it by itself."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def fail(self, text):
        self.failed += 1
        print(f"FAILED {text}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"{name}: skipped: {why}")

    def run(self, test, *args):
        """Whether it did not fail."""
        name, failed, started, before = test.__name__, self.failed, time.time(), sum(os.times()[:4])
        try:
            test(*args)
            self.passed += 1
        except Skip as e:
            self.skip(name, e)
        except Exception as e:
            self.fail(f"{name} {reason(e)}")
        if os.environ.get("TIMES"):
            print(f"{time.time() - started:6.2f} s, {sum(os.times()[:4]) - before:6.2f} s of a processor: {name}")
        return self.failed == failed

    def end(self):
        """Prints the last line; returns the exit status."""
        print(f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else ""))
        return int(self.failed > 0 or self.passed + self.skipped == 0)  # nothing run is no success


def run_all(names):
    """Runs the functions test_* among these names, in their order."""
    results = Results()
    for name, test in list(names.items()):
        if name.startswith("test_") and is_wanted(name):
            results.run(test)
    return results


def main(names):
    sys.exit(run_all(names).end())
