#!/usr/bin/env python3
"""Decode and prefill of sluice beside llama.cpp, in turns, on the same threads.

  beside_llama.py SLUICE MODEL.gguf ... [--threads 2] [--rounds 5] [--prompt 128] [--tokens 64]

Each round runs `sluice bench` and the same work by llama.cpp (a prompt of random tokens in one batch; tokens one by
one, from an empty context), so that what else the machine does falls on both. Prints medians and (smallest-largest).
Needs llama-cpp-python, which is llama.cpp built for this machine.
"""
import argparse, json, os, statistics, subprocess, time

import llama_cpp as L


class Llama:
    def __init__(self, path, threads, prompt, tokens):
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(path.encode(), params)
        assert self.model, f"llama.cpp does not open {path}"
        params = L.llama_context_default_params()
        params.n_ctx = max(prompt, tokens) + 64
        params.n_batch = params.n_ubatch = max(512, prompt)
        params.n_threads = params.n_threads_batch = threads
        self.context = L.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp makes no context for {path}"
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.prompt, self.tokens = prompt, tokens

    def decode(self, ids):
        array = (L.llama_token * len(ids))(*ids)  # the batch only points to it
        status = L.llama_decode(self.context, L.llama_batch_get_one(array, len(ids)))
        assert status == 0, f"llama_decode says {status}"
        L.llama_synchronize(self.context)

    def empty(self):
        L.llama_memory_clear(L.llama_get_memory(self.context), True)

    def time(self):
        ids = [(i * 7919 + 13) % self.n_vocab for i in range(max(self.prompt, self.tokens))]
        self.empty()
        began = time.perf_counter()
        self.decode(ids[:self.prompt])
        prefill = self.prompt / (time.perf_counter() - began)
        self.empty()
        began = time.perf_counter()
        for i in range(self.tokens):
            self.decode(ids[i:i + 1])
        return prefill, self.tokens / (time.perf_counter() - began)

    def close(self):
        L.llama_free(self.context)
        L.llama_model_free(self.model)


def sluice(a, path):
    out = subprocess.run([a.sluice, "bench", "-m", path, "-p", str(a.prompt), "-n", str(a.tokens), "-r", "1", "-t",
                          str(a.threads), "--json"], capture_output=True, check=True)
    facts = json.loads(out.stdout)
    return facts["prefill"]["tok_s"], facts["decode"]["tok_s"], facts["decode"]["of_bandwidth"]


def say(values):
    return f"{statistics.median(values):7.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("sluice"), ap.add_argument("models", nargs="+")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--prompt", type=int, default=128)
    ap.add_argument("--tokens", type=int, default=64)
    a = ap.parse_args()
    L.llama_backend_init()
    silence = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(silence, None)
    print(L.llama_print_system_info().decode().strip())
    for path in a.models:
        llama = Llama(path, a.threads, a.prompt, a.tokens)
        llama.time()  # the first warms up
        ours, theirs = [], []
        for _ in range(a.rounds):
            ours.append(sluice(a, path))
            theirs.append(llama.time())
        llama.close()
        print(f"{path}: {a.threads} threads, {a.rounds} rounds, load {os.getloadavg()[0]:.1f}")
        for i, what in enumerate(("prefill", "decode")):
            o, t = [x[i] for x in ours], [x[i] for x in theirs]
            ratios = [x / y for x, y in zip(o, t)]
            print(f"  {what:8s} sluice {say(o)} tok/s   llama.cpp {say(t)} tok/s   ratio {say(ratios)}")
        print(f"  decode is {100 * statistics.median(x[2] for x in ours):.0f} % of the read bandwidth")


if __name__ == "__main__":
    main()
