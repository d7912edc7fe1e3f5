#!/usr/bin/env python3
"""The draft block (multi-token prediction) of a GGUF file as a file of its own, and back.

    tools/draft_block.py take MODEL BLOCK      the block's tensors, and the two keys that count blocks
    tools/draft_block.py add TRUNK BLOCK OUT   a file without a block and the block: a file with one

Tensors keep their bytes; the block comes last, as converters write it. The tests make the story model
with a block from the one in models/ and tests/data/mtp.
"""
import struct
import sys

ALIGN = 32
WIDTHS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Values of a block and its bytes, by ggml's number of the type.
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
         10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


class Reader:
    def __init__(self, path):
        self.bytes = open(path, "rb").read()
        self.at = 0

    def number(self, code):
        value, = struct.unpack_from("<" + code, self.bytes, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        n = self.number("Q")
        self.at += n
        return self.bytes[self.at - n:self.at]

    def skip_value(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, n = self.number("I"), self.number("Q")
            for _ in range(n):
                self.skip_value(inner)
        else:
            self.number(WIDTHS[kind])


class File:
    """Keys as (name, bytes of type and value), tensors as (name, dims, type, data), both in order."""

    def __init__(self, path):
        r = Reader(path)
        if r.bytes[:4] != b"GGUF":
            sys.exit(f"{path}: is no GGUF file")
        r.at = 8
        n_tensors, n_keys = r.number("Q"), r.number("Q")
        self.keys, self.tensors, infos = [], [], []
        for _ in range(n_keys):
            name, begin = r.text(), r.at
            r.skip_value(r.number("I"))
            self.keys.append((name, r.bytes[begin:r.at]))
        for _ in range(n_tensors):
            name = r.text()
            dims = [r.number("Q") for _ in range(r.number("I"))]
            infos.append((name, dims, r.number("I"), r.number("Q")))
        base = -(-r.at // ALIGN) * ALIGN
        for name, dims, kind, offset in infos:
            values, size = TYPES[kind]
            n = size
            for d in dims:
                n *= d
            n //= values
            self.tensors.append((name, dims, kind, r.bytes[base + offset:base + offset + n]))

    def number(self, suffix):
        for name, value in self.keys:
            if name.endswith(suffix) and value[:4] == struct.pack("<I", 4):
                return struct.unpack("<I", value[4:])[0]
        sys.exit(f"key *{suffix.decode()} is missing")


def write(path, keys, tensors):
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    for name, value in keys:
        head += [struct.pack("<Q", len(name)), name, value]
    offset = 0
    for name, dims, kind, data in tensors:
        head += [struct.pack("<Q", len(name)), name, struct.pack("<I", len(dims))]
        head += [struct.pack("<Q", d) for d in dims] + [struct.pack("<IQ", kind, offset)]
        offset += -(-len(data) // ALIGN) * ALIGN
    head = b"".join(head)
    with open(path, "wb") as f:
        f.write(head.ljust(-(-len(head) // ALIGN) * ALIGN, b"\0"))
        for *_, data in tensors:
            f.write(data.ljust(-(-len(data) // ALIGN) * ALIGN, b"\0"))


def counts_blocks(name):
    return name.endswith((b".block_count", b".nextn_predict_layers"))


def take(model, out):
    f = File(model)
    first = f.number(b".block_count") - f.number(b".nextn_predict_layers")
    tensors = [t for t in f.tensors if t[0].startswith(b"blk.%d." % first)]
    keys = [k for k in f.keys if counts_blocks(k[0]) or k[0] == b"general.architecture"]
    write(out, keys, tensors)


def add(trunk, block, out):
    f, b = File(trunk), File(block)
    first = b.number(b".block_count") - b.number(b".nextn_predict_layers")
    if f.number(b".block_count") != first:
        sys.exit(f"{block} is for {first} layers, {trunk} has {f.number(b'.block_count')}")
    theirs = dict(b.keys)
    keys = [(name, theirs.get(name, value)) for name, value in f.keys]
    keys += [k for k in b.keys if k[0] not in dict(f.keys)]
    write(out, keys, f.tensors + b.tensors)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "take":
        take(*sys.argv[2:])
    elif len(sys.argv) == 5 and sys.argv[1] == "add":
        add(*sys.argv[2:])
    else:
        sys.exit(__doc__)
