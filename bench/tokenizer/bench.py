"""Encoding speed beside Hugging Face tokenizers, both on one thread, the same text and vocabulary.

python bench.py [GGUF] [ROUNDS]   needs `pip install tokenizers`
CPU time, since other programs may run beside; rounds are interleaved; the table gives the median and
the range."""
import array
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

import tools  # noqa: E402


def hf_round(tokenizer, texts):
    begin = time.process_time()
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    return time.process_time() - begin, ids


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else f"{tools.ROOT}/build/data/tokenizer/qwen35-vocab.gguf"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    program = tools.driver()
    folder = tools.gguf_to_folder(model, os.path.join(tools.BUILD, "folder"))
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    texts = tools.make_texts(3_400_000)
    texts["all"] = "".join(texts.values())
    print(f"{'text':<10} {'MB':>5} {'B/token':>7} {'sluice MB/s':>22} {'tokenizers MB/s':>22} {'ratio':>6}  ids")
    for name, text in texts.items():
        path, ids_path = os.path.join(tools.BUILD, name + ".txt"), os.path.join(tools.BUILD, name + ".ids")
        data = text.encode()
        with open(path, "wb") as f:
            f.write(data)
        docs = [d.decode() for d in tools.documents(data)]
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(tools.run_driver(program, model, path, ids_path))
            seconds, ids = hf_round(tokenizer, docs)
            theirs.append(seconds)
        expected = array.array("i")
        for document in ids:
            expected.extend(document)
            expected.append(-1)
        found = array.array("i")
        with open(ids_path, "rb") as f:
            found.frombytes(f.read())
        size = len(data) / 1e6

        def cell(seconds):
            speeds = sorted(size / s for s in seconds)
            return f"{statistics.median(speeds):8.1f} ({speeds[0]:.1f}-{speeds[-1]:.1f})"

        ratio = statistics.median(theirs) / statistics.median(ours)
        same = "same" if found == expected else "DIFFERENT"
        n_tokens = len(expected) - len(docs)
        print(f"{name:<10} {size:5.1f} {len(data) / n_tokens:7.2f} {cell(ours):>22} {cell(theirs):>22} {ratio:6.1f}  {same}",
              flush=True)


main()
