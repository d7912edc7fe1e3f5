#!/usr/bin/env python3
"""Makes tests/data/grids.tar.xz: blocks of the types with a grid, and their values by gguf-py.

Needs `pip install gguf`.  For each type grids/NAME.blocks holds blocks in which every entry of the
grid occurs, with scale 1, then random ones; grids/NAME.values their values, f32, bit for bit.

  make_grids.py               writes the archive
  make_grids.py --random N    writes N random blocks a type to build/grids instead, for
                              `SLUICE_TEST_GRIDS=build/grids build/tests quant_grids`; --seed S
"""
import argparse, io, lzma, os, tarfile
import numpy as np
from gguf import quants, GGMLQuantizationType, GGML_QUANT_SIZES

# type: (entries of its grid, where the fp16 scale is; None: spread over the last four words)
TYPES = {"IQ2_XXS": (256, 0), "IQ2_XS": (512, 0), "IQ2_S": (1024, 0), "IQ3_XXS": (256, 0),
         "IQ3_S": (512, 0), "IQ1_S": (2048, 0), "IQ1_M": (0, None)}          # the grid of IQ1_S


def put_scale(blocks, at, half):
    """Replaces the scale of each block by an fp16."""
    halves = np.asarray(half, np.float16).reshape(-1, 1).view(np.uint8)
    if at is not None:
        blocks[:, at:at + 2] = halves
        return
    bits = halves.view(np.uint16)[:, 0]
    for i in range(4):
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15).astype(np.uint8) << 4


def covering(name, entries, size):
    """Blocks that use the entries one after the other."""
    per_block = 64 if name.startswith("IQ3") else 32
    blocks = np.zeros((entries // per_block, size), np.uint8)
    for i in range(entries):
        b, k, low, high = blocks[i // per_block], i % per_block, i & 255, i >> 8
        if name == "IQ2_XXS":
            b[2 + 8 * (k // 4) + k % 4] = low
        elif name == "IQ2_XS":
            b[2 + 2 * k], b[3 + 2 * k] = low, high
        elif name == "IQ2_S":
            b[2 + k] = low
            b[66 + k // 4] |= high << 2 * (k % 4)
        elif name == "IQ3_XXS":
            b[2 + k] = low
        elif name == "IQ3_S":
            b[2 + k] = low
            b[66 + k // 8] |= high << k % 8
        else:
            word = high << 3 * (k % 4)
            b[2 + k] = low
            b[34 + 2 * (k // 4)] |= word & 255
            b[35 + 2 * (k // 4)] |= word >> 8
    return blocks


def random_blocks(rng, count, size, at):
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    put_scale(blocks, at, rng.normal(0, 1, count))
    return blocks


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--random", type=int)
    ap.add_argument("--seed", type=int)
    a = ap.parse_args()
    rng = np.random.default_rng(a.seed or (None if a.random else 1))
    files = {}
    for name, (entries, at) in TYPES.items():
        kind = GGMLQuantizationType[name]
        size = GGML_QUANT_SIZES[kind][1]
        if a.random:
            blocks = random_blocks(rng, a.random, size, at)
        else:
            blocks = covering(name, entries, size)
            put_scale(blocks, at, np.ones(len(blocks)))
            blocks = np.concatenate([blocks, random_blocks(rng, 3, size, at)])
        files[name + ".blocks"] = blocks.tobytes()
        files[name + ".values"] = quants.dequantize(blocks, kind).astype("<f4").tobytes()
    if a.random:
        os.makedirs("build/grids", exist_ok=True)
        for name, data in files.items():
            with open("build/grids/" + name, "wb") as f:
                f.write(data)
        return
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo("grids/" + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with open("tests/data/grids.tar.xz", "wb") as f:
        f.write(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
