"""Our ids beside those of Hugging Face tokenizers, on much text and on strings made to differ.

python compare.py [MEGABYTES]   needs `pip install tokenizers`
Every reference folder, and folders made from the vocabulary GGUFs of build/data/tokenizer (with and
without NFC). Exits 1 when an id differs."""
import array
import json
import os
import random
import sys
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

import tools  # noqa: E402

ODD = ("'s 'S 't 'RE 'll 'D '\u017f \u017f \r \n \r\n \t \x0b \x0c \x00 \x1f \x7f \x85 \xa0 \xad \u1680 "
       "\u2000 \u2009 \u200b \u200d \u2028 \u2029 \u202f \u205f \u3000 \ufeff \ufffd 0 1 9 \u0663 \xbd "
       "\u2167 \u2460 \u0301 \u0300 \u0316 \u0345 \u093f \u094d \u0e33 e E A o \u0338 > < = | . , ! # "
       "<think> </think> <|im_start|> <|im_end|> <|endoftext|> <|im_ \u212b \u0958 \u1100 \u1161 \u11a8 "
       "\uac00 \u65e5 \u672c \u3042 \u0410 \u0915 \U0001f680 \U0001f468 \U0001f3fd").split(" ") + [" ", " "]


def strange_text(size):
    """Lines of odd neighbours, and of every character that Python's Unicode version knows.

    Left out are marks younger than Unicode 3.2: the NFC of `tokenizers` is of an old Unicode version that
    does not reorder them, ours is of utf8proc's."""
    rng = random.Random(7)
    known = [c for c in map(chr, range(0x30000)) if unicodedata.category(c) not in ("Cs", "Cn", "Co")
             and unicodedata.combining(c) == unicodedata.ucd_3_2_0.combining(c)]
    parts, total = [], 0
    while total < size:
        line = "".join(rng.choice(ODD) if rng.random() < 0.6 else rng.choice(known)
                       for _ in range(rng.randrange(1, 40)))
        parts.append(line)
        total += len(line.encode()) + 1
    return "\n".join(["\n".join(known), *parts])


def compare(program, name, folder, text, kind):
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    data = text.encode()
    path, ids_path = os.path.join(tools.BUILD, "compare.txt"), os.path.join(tools.BUILD, "compare.ids")
    with open(path, "wb") as f:
        f.write(data)
    tools.run_driver(program, folder, path, ids_path)
    found = array.array("i")
    with open(ids_path, "rb") as f:
        found.frombytes(f.read())
    at = tokens = differing = 0
    for document in tools.documents(data):
        theirs = tokenizer.encode(document.decode(), add_special_tokens=False).ids
        end = found.index(-1, at)
        ours = found[at:end].tolist()
        at = end + 1
        tokens += len(theirs)
        if ours != theirs:
            differing += 1
            i = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            print(f"  differs at {i}: {ours[i - 3:i + 6]} / {theirs[i - 3:i + 6]}"
                  f" {tokenizer.decode(theirs[max(0, i - 5):i + 6])!r}")
    print(f"{name:<26} {kind:<10} {len(data) / 1e6:5.1f} MB {tokens:9d} tokens  "
          f"{'same' if not differing else f'{differing} documents DIFFER'}", flush=True)
    return differing


def stripping_folder(source, folder):
    """A tokenizer.json whose added tokens strip white space or must stand alone."""
    with open(os.path.join(source, "tokenizer.json")) as f:
        root = json.load(f)
    rules = {"<think>": {"lstrip": True, "rstrip": True}, "</think>": {"rstrip": True},
             "<|im_start|>": {"lstrip": True}, "<|im_end|>": {"single_word": True}}
    for token in root["added_tokens"]:
        token.update(rules.get(token["content"], {}))
    top = max(t["id"] for t in root["added_tokens"])
    for i, (content, normalized) in enumerate([("eE", True), ("Ao", False), ("oA", True)]):
        root["added_tokens"].append({"id": top + 1 + i, "content": content, "single_word": True,
                                     "lstrip": i == 1, "rstrip": False, "normalized": normalized,
                                     "special": False})
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(root, f)
    return folder


def main():
    size = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 1_000_000
    program = tools.driver()
    texts = tools.make_texts(size)
    texts["strange"] = strange_text(size)
    data = os.path.join(tools.ROOT, "build", "data")
    folders = {n: os.path.join(data, "reference", n) for n in sorted(os.listdir(os.path.join(data, "reference")))
               if os.path.exists(os.path.join(data, "reference", n, "tokenizer.json"))}
    folders["strip rules"] = stripping_folder(folders["qwen2-a"], os.path.join(tools.BUILD, "strip"))
    for name in ("qwen35-vocab", "ggml-vocab-gpt-2", "ggml-vocab-starcoder"):
        for nfc in ((False, True) if name == "qwen35-vocab" else (False,)):
            label = name + ("+nfc" if nfc else "")
            folders[label] = tools.gguf_to_folder(os.path.join(data, "tokenizer", name + ".gguf"),
                                                  os.path.join(tools.BUILD, label), nfc)
    bad = sum(compare(program, name, folder, text, kind)
              for name, folder in folders.items() for kind, text in texts.items())
    sys.exit(1 if bad else 0)


main()
