#!/usr/bin/env python3
"""Loads from shared memory that nothing waits for before a stage is given away.

    tools/pending_loads.py build/cuda/NAME.fatbin ...

Bulk copies and arrivals at an mbarrier overtake loads that wait in their queue (docs/lab/cuda.md, "A stage
released too early"). For every such instruction of every kernel: the loads before it whose scoreboard no
instruction in between has waited for. In the order of addresses, so a branch may hide one or show one too many,
and not all are loads from a stage: a list to read, not a verdict. Needs cuobjdump."""
import re
import subprocess
import sys

LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/")
UPPER = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
GIVES_AWAY = re.compile(r"UBLKCP\.S\.G|SYNCS\.ARRIVE")
LOAD = re.compile(r"\bLDSM?[. ]")
QUEUED = re.compile(r"\b(LDSM?|SHFL)[. ]")  # arrive in order


def instructions(fatbin):
    """(kernel, address, text, scoreboard it sets or 7, set of scoreboards it waits for)"""
    sass = subprocess.run(["cuobjdump", "-sass", fatbin], check=True, capture_output=True, text=True).stdout
    lines, kernel = sass.split("\n"), None
    for line, following in zip(lines, lines[1:]):
        if "Function :" in line:
            kernel = line.split()[-1]
        found, upper = LINE.match(line), UPPER.match(following)
        if found and upper:
            control = int(upper[1], 16) >> 41
            waits = {i for i in range(6) if control >> 11 + i & 1}
            yield kernel, found[1], found[2].strip(), control >> 5 & 7, waits


def main():
    for fatbin in sys.argv[1:]:
        pending, last = [], None
        for kernel, address, text, sets, waits in instructions(fatbin):
            if kernel != last:
                pending, last = [], kernel
            # With one of them all before it are there.
            for i in range(len(pending), 0, -1):
                if pending[i - 1][0] in waits:
                    pending = pending[i:]
                    break
            loads = [load for _, load in pending if LOAD.search(load)]
            if GIVES_AWAY.search(text) and loads:
                print(f"{kernel} {address} {text}: {len(loads)} before it, the last {loads[-1]}")
            if QUEUED.search(text) and not text.startswith("@!PT"):
                pending.append((sets, f"{address} {text}"))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
