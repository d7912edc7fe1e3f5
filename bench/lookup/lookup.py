#!/usr/bin/env python3
"""lookup.py - what prompt lookup is worth on text that repeats itself.

    bench/lookup/lookup.py MODEL [--drafts 3,7,15] [--repeats 5] [-- options of `sluice run`]

Each task is run with --draft 0 and with each of --drafts, greedily; the texts must be the same. The
model's own output is the material, so that any model has tasks that it can do:

  edit      its text, a changed name in it, and the text once more from the beginning
  summary   its text, then the first words of every sentence, as a list, to be gone on with
  refrain   the same sentence over and over
  story     a text that does not repeat itself: nothing should be lost
"""
import argparse
import json
import os
import subprocess
import sys

SLUICE = os.environ.get("SLUICE", "build/sluice")
OPENING = "Once upon a time, there was a little girl named Lily."


def run(model, prompt, n, draft, options):
    command = [SLUICE, "run", model, "-f", "-", "-n", str(n), "--temp", "0", "--ignore-eos",
               "--draft", str(draft), "--json", "-q", *options]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def tasks(model, options):
    text = OPENING + run(model, OPENING, 160, 0, options)["text"]
    edited = text.replace("Lily", "Anna")
    sentences = [s.strip() for s in text.split(".") if s.strip()]
    notes = "".join(f"- {s}.\n" for s in sentences[:4])
    return {
        "edit": text + "\n\n" + edited + "\n\n" + text[:60],
        "summary": text + "\n\n" + notes + text + "\n\n- ",
        "refrain": (OPENING + "\n") * 8,
        "story": "One day, a small brown dog",
    }


def best_of(runs):
    return max(runs, key=lambda r: r["tok_s"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--drafts", default="3,7,15", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--repeats", default=5, type=int)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1:]
    model = args.model
    print(f"{'task':8} {'draft':>5} {'tok/s':>8} {'x':>5} {'tokens a submission':>20} {'kept':>10}")
    for name, prompt in tasks(model, options).items():
        runs = {draft: [] for draft in (0, *args.drafts)}
        for _ in range(args.repeats):  # in turn, as machines have moods
            for draft in runs:
                runs[draft].append(run(model, prompt, 200, draft, options))
        base = best_of(runs[0])
        for draft in runs:
            best = best_of(runs[draft])
            if best["text"] != base["text"]:
                sys.exit(f"{name}: another text with --draft {draft} than without")
            per = best["tokens"] / max(1, best["submissions"])
            kept = f"{best['drafts_kept']}/{best['drafted']}"
            print(f"{name:8} {draft:5} {best['tok_s']:8.1f} {best['tok_s'] / base['tok_s']:5.2f} "
                  f"{per:20.2f} {kept:>10}")


if __name__ == "__main__":
    main()
