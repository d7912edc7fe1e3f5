#!/usr/bin/env python3
"""Decode and prefill of sluice beside llama.cpp, in turns, on the same threads.

  beside_llama.py SLUICE MODEL.gguf ... [--threads 2] [--rounds 5] [--prompt 128] [--tokens 64] [--depth 0] [--user-time]

Each round runs `sluice bench` and the same work by llama.cpp (a prompt of random tokens in one batch; tokens one by
one; from an empty context, or after --depth tokens), so that what else the machine does falls on both. Prints medians
and (smallest-largest). Needs llama-cpp-python, which is llama.cpp built for this machine.

--user-time is for machines that are never quiet: one thread, and user time of the process instead of seconds. Those of
sluice are the difference of two runs, since loading counts as well (each run does its work twice).
"""
import argparse, json, os, resource, statistics, subprocess, time

import llama_cpp as L


class Llama:
    def __init__(self, path, threads, prompt, tokens, depth, clock):
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(path.encode(), params)
        assert self.model, f"llama.cpp does not open {path}"
        params = L.llama_context_default_params()
        params.n_ctx = depth + max(prompt, tokens) + 64
        params.n_batch = params.n_ubatch = max(512, prompt)
        params.n_threads = params.n_threads_batch = threads
        self.context = L.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp makes no context for {path}"
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.prompt, self.tokens, self.depth, self.clock = prompt, tokens, depth, clock
        for first in range(0, depth, 512):
            self.decode(self.ids(min(512, depth - first)))

    def ids(self, n):
        return [(i * 7919 + 13) % self.n_vocab for i in range(n)]

    def decode(self, ids):
        array = (L.llama_token * len(ids))(*ids)  # the batch only points to it
        status = L.llama_decode(self.context, L.llama_batch_get_one(array, len(ids)))
        assert status == 0, f"llama_decode says {status}"
        L.llama_synchronize(self.context)

    def go_back(self):
        memory = L.llama_get_memory(self.context)
        if self.depth == 0:
            L.llama_memory_clear(memory, True)
        else:
            assert L.llama_memory_seq_rm(memory, 0, self.depth, -1), "llama.cpp can't take tokens of this model back"

    def time(self):
        ids = self.ids(max(self.prompt, self.tokens))
        self.go_back()
        began = self.clock()
        self.decode(ids[:self.prompt])
        prefill = self.prompt / (self.clock() - began)
        self.go_back()
        began = self.clock()
        for i in range(self.tokens):
            self.decode(ids[i:i + 1])
        return prefill, self.tokens / (self.clock() - began)

    def close(self):
        L.llama_free(self.context)
        L.llama_model_free(self.model)


def bench(a, path, prompt, tokens):
    depth = ["--depth", str(a.depth), "-c", str(a.depth + prompt + tokens + 64)] if a.depth else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = subprocess.run([a.sluice, "bench", "-m", path, "-p", str(prompt), "-n", str(tokens), "-r", "1", "-t",
                          str(a.threads), "--json"] + depth, capture_output=True, check=True)
    return json.loads(out.stdout), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def sluice(a, path):
    if not a.user_time:
        facts, _ = bench(a, path, a.prompt, a.tokens)
        return facts["prefill"]["tok_s"], facts["decode"]["tok_s"], facts["decode"]["of_bandwidth"]
    facts, least = bench(a, path, 16, 4)
    prefill = bench(a, path, 16 + a.prompt, 4)[1] - least
    decode = bench(a, path, 16, 4 + a.tokens)[1] - least
    return 2 * a.prompt / prefill, 2 * a.tokens / decode, facts["decode"]["of_bandwidth"]


def say(values):
    return f"{statistics.median(values):7.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("sluice"), ap.add_argument("models", nargs="+")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--prompt", type=int, default=128)
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--depth", type=int, default=0)
    ap.add_argument("--user-time", action="store_true")
    a = ap.parse_args()
    if a.user_time:
        a.threads = 1
    L.llama_backend_init()
    silence = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(silence, None)
    print(L.llama_print_system_info().decode().strip())
    for path in a.models:
        llama = Llama(path, a.threads, a.prompt, a.tokens, a.depth,
                      time.process_time if a.user_time else time.perf_counter)
        llama.time()  # the first warms up
        ours, theirs = [], []
        for _ in range(a.rounds):
            ours.append(sluice(a, path))
            theirs.append(llama.time())
        llama.close()
        print(f"{path}: depth {a.depth}, {a.threads} threads, {a.rounds} rounds, load {os.getloadavg()[0]:.1f}")
        for i, what in enumerate(("prefill", "decode")):
            o, t = [x[i] for x in ours], [x[i] for x in theirs]
            ratios = [x / y for x, y in zip(o, t)]
            print(f"  {what:8s} sluice {say(o)} tok/s   llama.cpp {say(t)} tok/s   ratio {say(ratios)}")
        if not a.user_time:
            print(f"  decode is {100 * statistics.median(x[2] for x in ours):.0f} % of the read bandwidth")


if __name__ == "__main__":
    main()
