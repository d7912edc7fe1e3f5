"""What compare.py and bench.py share: texts, documents, the C driver, a tokenizer.json from a GGUF."""
import glob
import gzip
import json
import os
import random
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build", "bench-tokenizer")
DOCUMENT_BYTES = 4 << 10

REGEX = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
              r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                 r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def driver():
    """The path of encode.c's program."""
    os.makedirs(BUILD, exist_ok=True)
    program = os.path.join(ROOT, "build", "bench", "tokenizer", "encode")
    if not os.path.exists(program):
        sys.exit("build/bench/tokenizer/encode is not there: make bench-programs")
    return program


def run_driver(program, model, text_path, ids_path=None):
    """Seconds for one pass over the text."""
    command = [program, model, text_path] + ([ids_path] if ids_path else [])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def documents(data):
    """The text cut as encode.c cuts it."""
    at = 0
    while at < len(data):
        end = len(data)
        if end - at > DOCUMENT_BYTES:
            line = data.find(b"\n", at + DOCUMENT_BYTES)
            end = line + 1 if line >= 0 else end
        yield data[at:end]
        at = end


def read_gguf_keys(path):
    """The keys of a GGUF file as a dict."""
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
               12: "d"}
    with open(path, "rb") as f:
        def take(form):
            return struct.unpack("<" + form, f.read(struct.calcsize("<" + form)))

        def value(kind):
            if kind == 8:
                return f.read(take("Q")[0])
            if kind == 9:
                element, count = take("IQ")
                if element == 8:
                    return [value(8) for _ in range(count)]
                return list(take(f"{count}{scalars[element]}"))
            return take(scalars[kind])[0]

        _, _, _, n_keys = take("IIQQ")
        keys = {}
        for _ in range(n_keys):
            name = value(8).decode()
            keys[name] = value(take("I")[0])
        return keys


def gguf_to_folder(path, folder, nfc=False):
    """Writes the tokenizer.json that says what the GGUF's vocabulary says."""
    keys = {k.removeprefix("tokenizer.ggml."): v for k, v in read_gguf_keys(path).items()}
    tokens = [t.decode() for t in keys["tokens"]]
    types = keys["token_type"]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": types[i] == 3}
             for i in range(len(tokens)) if types[i] in (3, 4)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    pre = keys["pre"].decode()
    if pre in REGEX:
        steps = [{"type": "Split", "pattern": {"Regex": REGEX[pre]}, "behavior": "Isolated",
                  "invert": False}, {**byte_level, "use_regex": False}]
    elif pre in ("smollm", "starcoder"):
        steps = [{"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": True}]
    else:
        steps = [{**byte_level, "use_regex": True}]
    root = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None, "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": pre == "llama-bpe",
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": [m.decode().split(" ", 1) for m in keys["merges"]]},
    }
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(root, f, ensure_ascii=False)
    return folder


def _read(path):
    with open(path, "rb") as f:
        data = f.read()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    return data.decode("utf-8", "ignore")


def _collect(paths, budget, size):
    """About `budget` bytes from files, the first `size` characters of each."""
    random.Random(1).shuffle(paths)
    parts, total = [], 0
    for path in paths:
        if total >= budget:
            break
        try:
            part = _read(path)[:size]
        except (OSError, EOFError):
            continue
        parts.append(part)
        total += len(part.encode())
    return "\n".join(parts).encode()[:budget].decode("utf-8", "ignore")


def _translations(budget):
    """Messages of programs in many languages, out of .mo files."""
    parts, total = [], 0
    paths = sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo"))
    random.Random(2).shuffle(paths)
    for path in paths:
        if total >= budget:
            break
        with open(path, "rb") as f:
            data = f.read()
        if data[:4] != b"\xde\x12\x04\x95":
            continue
        n, _, translated = struct.unpack("<III", data[8:20])
        for i in range(min(n, 60)):
            length, at = struct.unpack("<II", data[translated + 8 * i:translated + 8 * i + 8])
            text = data[at:at + length].replace(b"\0", b"\n").decode("utf-8", "ignore")
            parts.append(text)
            total += len(text.encode()) + 1
    return "\n".join(parts).encode()[:budget].decode("utf-8", "ignore")


def make_texts(bytes_each):
    """{name: text}, from what is on this machine."""
    prose = sorted(glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/share/man/man[1578]/*.gz"))
    code = sorted(glob.glob(f"{os.path.dirname(os.__file__)}/*.py") +
                  glob.glob(f"{os.path.dirname(os.__file__)}/test/*.py") +
                  glob.glob("/usr/include/*.h"))
    return {"english": _collect(prose, bytes_each, 20000), "code": _collect(code, bytes_each, 40000),
            "languages": _translations(bytes_each)}
