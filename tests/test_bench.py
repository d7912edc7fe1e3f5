#!/usr/bin/env python3
"""test_bench.py - the programs of bench/ still run. What they measure is not looked at.

    python3 tests/test_bench.py build/sluice [WORD ...]   (tests/suite.py)
"""
import struct, subprocess, sys, tempfile
from pathlib import Path

from suite import PATIENCE, PROGRAM, ROOT, SHIPPED, main

BENCH = ROOT / "build/bench"


def output(*words):
    p = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, timeout=PATIENCE)
    assert p.returncode == 0, (words, p.returncode, p.stderr)
    return p.stdout.decode()


def test_kernels_of_the_cpu():
    lines = output(BENCH / "cpu/kernels", "-m", 1, "-r", 1, "q8_0").splitlines()
    assert lines[1].startswith("kernel ") and lines[2].startswith("q8_0 "), lines
    lines = output(BENCH / "cpu/attend", "-m", 64, "-r", 1).splitlines()
    assert lines[1].startswith("kernel ") and lines[2].startswith("attend "), lines


def test_tokenizer():
    text = b"Once upon a time, there was a <s> that said: 12345 \xc3\xa9t\xc3\xa9s.\n"
    with tempfile.TemporaryDirectory() as d:
        Path(d, "text").write_bytes(text)
        output(BENCH / "tokenizer/encode", SHIPPED, f"{d}/text", f"{d}/ids")
        ids = [n for n, in struct.iter_unpack("<i", Path(d, "ids").read_bytes())]
        expected = output(PROGRAM, "tokenize", SHIPPED, "-f", f"{d}/text", "--special").split()
    assert ids == [int(n) for n in expected] + [-1], ids


def test_load_on_a_server():
    line = output(sys.executable, "bench/serve/overhead.py", "--streams", 1, "--tokens", 4, "--rounds", 1, "--options", "-t 1")
    assert line.startswith("   1 streams  bench ") and " tok/s (" in line, line


main(globals())
