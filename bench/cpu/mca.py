"""What llvm-mca says of the inner loops of the ARM kernels: cycles of a turn, and the busiest pipes.

    make CUDA=0 CROSS=aarch64-linux-gnu build/aarch64-linux-gnu/tests
    python3 bench/cpu/mca.py build/aarch64-linux-gnu/obj/src/backend/cpu/kernels_neon_sdot.o 'add_(one|eight)_q4_0' --cpu neoverse-n1

A prediction from LLVM's model of the processor, with all loads in L1; not a measurement. LLVM lets a
Neoverse N1 begin three operations a cycle where it can begin four instructions: --dispatch 4 agrees with
what was measured there (docs/lab/cpu.md). Innermost loops only; those of fewer than eight instructions are left out."""

import argparse
import re
import subprocess

TURNS = 200


def functions(path, objdump):
    """Instructions of each function: [(address, text)]."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    found, code = {}, []
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            code = found[head[1]] = []
        elif row := re.match(r"\s*([0-9a-f]+):\t(.+)$", line):
            code.append((int(row[1], 16), row[2].split("//")[0].strip()))
    return found


def inner_loops(code):
    """First and last instruction of loops that have none in them."""
    index = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for i, (address, text) in enumerate(code):
        jump = re.match(r"(?:b\.\w+|b|cbn?z|tbn?z)\s.*?([0-9a-f]+) <", text)
        if jump and int(jump[1], 16) <= address and int(jump[1], 16) in index:
            loops.append((index[int(jump[1], 16)], i))
    return [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def predicted(tool, cpu, dispatch, code):
    """Cycles of a turn, and how many of them each pipe is busy."""
    text = "\n".join(re.sub(r"\b[0-9a-f]+ <[^>]+>", "1f", t) for _, t in code) + "\n1:\n"
    options = ["-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm,+fullfp16", f"-iterations={TURNS}"]
    options += [f"-dispatch={dispatch}"] if dispatch else []
    out = subprocess.run([tool, *options], input=text, capture_output=True, text=True, check=True).stdout
    cycles = int(re.search(r"Total Cycles:\s+(\d+)", out)[1]) / TURNS
    names = re.findall(r"^\[[\d.]+\]\s+-\s+(.+)$", out, re.M)
    busy = re.search(r"Resource pressure per iteration:\n.*\n(.*)\n", out)[1].split()
    pipes = {re.sub(r".*Unit", "", name.strip()): float(b) for name, b in zip(names, busy) if b != "-"}
    return cycles, sorted(pipes.items(), key=lambda p: -p[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("object", help="an object file for aarch64")
    parser.add_argument("functions", help="a pattern of their names")
    parser.add_argument("--cpu", nargs="+", default=["neoverse-n1", "neoverse-v1"])
    parser.add_argument("--dispatch", type=int, help="operations that may begin in a cycle; default: the model's")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    parser.add_argument("--mca", default="llvm-mca")
    args = parser.parse_args()
    for name, code in functions(args.object, args.objdump).items():
        if not re.fullmatch(args.functions, name):
            continue
        for first, last in inner_loops(code):
            loop = code[first : last + 1]
            if len(loop) < 8:
                continue
            print(f"{name}: {len(loop)} instructions")
            for cpu in args.cpu:
                cycles, pipes = predicted(args.mca, cpu, args.dispatch, loop)
                print(f"    {cpu:12} {cycles:6.1f} cycles; " + ", ".join(f"{p} {b:.1f}" for p, b in pipes[:5]))


main()
