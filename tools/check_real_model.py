#!/usr/bin/env python3
"""Mean negative log-likelihood of a text: sluice beside transformers in f32 on the dequantized file.

  check_real_model.py SLUICE MODEL.gguf TEXT [--windows N]

By the definition of `sluice ppl`: the text tokenised without BOS, cut into windows of 512, each from
an empty state, tokens 2..512 scored. Also compares greedy answers while the two best logits are 0.05
apart. Needs torch, transformers and gguf; a check to run by hand.
"""
import argparse, json, subprocess, tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("sluice"), ap.add_argument("model", type=Path), ap.add_argument("text", type=Path)
    ap.add_argument("--windows", type=int, default=8)
    ap.add_argument("--greedy", type=int, default=48)
    a = ap.parse_args()
    ids = subprocess.run([a.sluice, "tokenize", "-m", a.model], input=a.text.read_bytes(), capture_output=True, check=True)
    ids = [int(i) for i in ids.stdout.split()][:a.windows * 512]
    n = len(ids) // 512
    text = subprocess.run([a.sluice, "detokenize", "-m", a.model], input=" ".join(map(str, ids[:n * 512])).encode(),
                          capture_output=True, check=True).stdout
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(a.model.parent, gguf_file=a.model.name, dtype=torch.float32).eval()
    total = 0.0
    for w in range(n):
        x = torch.tensor([ids[w * 512:(w + 1) * 512]])
        logp = torch.log_softmax(model(x).logits[0, :-1].double(), -1)
        total -= logp[torch.arange(511), x[0, 1:]].sum().item()
    theirs = total / (n * 511)
    with tempfile.TemporaryDirectory() as d:
        path = Path(d) / "text.txt"
        path.write_bytes(text)
        for flags in (["--exact"], []):
            out = subprocess.run([a.sluice, "ppl", "-m", a.model, "-f", path, "--json", *flags], capture_output=True, check=True)
            facts = json.loads(out.stdout)
            print(f"{' '.join(flags) or 'default':8s} nll {facts['nll']:.6f}, transformers f32 {theirs:.6f}, "
                  f"difference {facts['nll'] - theirs:+.2e}, {facts['scored']} tokens (expected {n * 511})")
        prompts = [ids[i * 100:i * 100 + 40] for i in range(4)]
        Path(d, "p.txt").write_text("\n".join(" ".join(map(str, p)) for p in prompts) + "\n")
        out = subprocess.run([a.sluice, "logits", "-m", a.model, "--tokens", f"{d}/p.txt", "--greedy", str(a.greedy), "--exact"],
                             capture_output=True, check=True)
        for p, line in zip(prompts, out.stdout.decode().splitlines()):
            seq, alike = list(p), 0
            for token in map(int, line.split()):
                logits = model(torch.tensor([seq])).logits[0, -1]
                best = torch.topk(logits, 2)
                if best.values[0] - best.values[1] < 0.05:
                    break
                assert best.indices[0] == token, f"token {alike} is {token}, transformers says {best.indices[0].item()}"
                seq.append(token)
                alike += 1
            print(f"greedy: {alike} tokens alike, then the two best are within 0.05 or the answer ends")


if __name__ == "__main__":
    main()
