#!/usr/bin/env python3
"""overhead.py [--sluice PATH] [--model M] [--streams 1,16,64] [--tokens 128] [--rounds 3] [--options "..."]

What the server costs: tokens a second of N streams through /v1/completions beside `sluice bench --batch N` of the same
program, the time to the first token, and the processor time of a server that nobody asks anything.

Nothing is drafted, so that both sides run the same steps. In each pair a stream's prompt is one token, as in bench.
--options go to both (--backend cuda, -t 2 ...). --apart N: requests that arrive while others are answered, with prompts of
N tokens. --no-burst: bench and server run one step a submission.
"""
import argparse, json, os, re, subprocess, sys, time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A server on a free port; `seconds` is its processor time so far."""

    def __init__(self, a, streams):
        options = [*a.options.split(), *(["--no-burst"] if a.no_burst else [])]
        self.process = subprocess.Popen(
            [a.sluice, "serve", a.model, "--port", "0", "--batch", str(streams), "--draft", "0", "-c", str(a.context), *options],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"listening on http://[^:]*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                return
        sys.exit(f"overhead: the server did not start: {self.process.wait()}")

    @property
    def seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            words = f.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def load(self, a, streams, *more):
        before = self.seconds
        out = subprocess.run([f"{ROOT}/build/bench/serve/load", "--port", str(self.port), "--streams", str(streams), "--rounds",
                              str(a.rounds), "--tokens", str(a.tokens), "--words", str(a.words), "--fields", a.fields, *more],
                             capture_output=True, text=True)
        if out.returncode:
            sys.exit(out.stderr)
        return json.loads(out.stdout) | {"server_seconds": self.seconds - before}

    def close(self):
        self.process.terminate()
        self.process.wait()


def bench(a, streams):
    out = subprocess.run([a.sluice, "bench", a.model, "-p", "0", "-n", str(a.tokens), "-r", str(a.rounds), "--batch",
                          str(streams), "-c", str(a.context), "--json", *([] if a.no_burst else ["--burst"]),
                          *a.options.split()], capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    return json.loads(out.stdout)["decode"]


def beside_bench(a, server, streams):
    raw, one = bench(a, streams), server.load(a, streams)
    print(f"{streams:4} streams  bench {raw['tok_s']:9.1f}  server {one['tok_s']:9.1f} tok/s "
          f"({100 * one['tok_s'] / raw['tok_s']:.1f} %)  first {one['first_p50_ms']:.1f} / {one['first_p99_ms']:.1f} ms"
          f"  between {one['between_p50_ms']:.2f} / {one['between_p99_ms']:.2f} ms"
          f"  processor: bench {1e6 * raw['host_cores'] / raw['tok_s']:.1f}, server "
          f"{1e6 * one['server_seconds'] / one['served']:.1f}, client {1e6 * one['client_seconds'] / one['tokens']:.1f} us a token",
          flush=True)


def apart(a, server, streams):
    one = server.load(a, streams, "--apart", "--prompt", str(a.apart))
    print(f"{streams:4} apart    {one['tok_s']:9.1f} tok/s  first {one['first_p50_ms']:.1f} / {one['first_p99_ms']:.1f} ms"
          f"  between {one['between_p50_ms']:.2f} / {one['between_p99_ms']:.2f} ms", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default="build/sluice")
    p.add_argument("--model", default="models/stories-27m-q4_k_m.gguf")
    p.add_argument("--streams", default="1,16,64")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--words", type=int, default=256, help="prompts are of tokens below this number")
    p.add_argument("--apart", type=int, default=0, metavar="N")
    p.add_argument("--no-burst", action="store_true")
    p.add_argument("--idle", type=float, default=0, metavar="SECONDS")
    p.add_argument("--fields", default="", help="""further fields of requests, e.g. '"grammar": "..."'""")
    p.add_argument("--options", default="")
    a = p.parse_args()
    streams = [int(n) for n in a.streams.split(",")]
    server = Server(a, max(streams))
    for n in streams:
        beside_bench(a, server, n) if not a.apart else apart(a, server, n)
    if a.idle:
        before = server.seconds
        time.sleep(a.idle)
        print(f"idle: {server.seconds - before:.2f} s of processor time in {a.idle:.0f} s")
    server.close()


main()
