#!/usr/bin/env python3
"""conversations.py TRACE MODEL --sluice PATH [--llama PYTHON] [--conversations 6] [--streams 4] [--threads 2] [--context 1024]

The conversations of a trace (bench/cache/trace.py) as texts through /v1/completions, streamed, --streams requests at a time:
`sluice serve` beside llama.cpp's server (PYTHON -m llama_cpp.server), one after the other, with the same file and threads.

A text of the trace becomes as many common words, each a token of most vocabularies; an answer is what that server said, and a
request is sent when the answers that its prompt quotes are there. Greedy. Prints seconds, tokens of prompts and answers a
second, the time to the first token, and the processor time of the server.
"""
import argparse, http.client, json, os, random, socket, statistics, subprocess, sys, threading, time

WORDS = ("the of and to in is you that it he was for on are with as his they be at one have this from or had by hot but some what "
         "there we can out other were all your when up use word how said an each she which do their time if will way about many "
         "then them would write like so these her long make thing see him two has look more day could go come did my sound no "
         "most number who over know water than call first people may down side been now find").split()
TICKS = os.sysconf("SC_CLK_TCK")


class Request:
    def __init__(self, number, line):
        words = line.split()
        self.number, self.conversation, self.most = number, int(words[0]), int(words[1])
        self.parts = words[2:]
        self.needs = {int(w[1:].split(":")[0]) for w in self.parts if w[0] == "a"}

    def prompt(self, answers):
        text = []
        for part in self.parts:
            numbers = [int(n) for n in part[1:].split(":")] if part != "e" else []
            if part == "e":
                text.append("\n")
            elif part[0] == "t":
                text += random.Random(numbers[0]).choices(WORDS, k=numbers[1])
            else:
                said = answers[numbers[0]].split()
                text += said[len(said) * numbers[1] // max(1, numbers[1] + numbers[2]):]
        return " ".join(text)


class Replay:
    """Requests in the trace's order, as soon as the answers they need are there."""

    def __init__(self, requests, port, model):
        self.waiting, self.port, self.model = list(requests), port, model
        self.answers, self.first, self.usage = {}, [], []
        self.changed = threading.Condition()

    def take(self):
        with self.changed:
            while self.waiting:
                for r in self.waiting:
                    if r.needs <= self.answers.keys():
                        self.waiting.remove(r)
                        return r
                self.changed.wait()
        return None

    def ask(self, r):
        body = {"model": self.model, "prompt": r.prompt(self.answers), "max_tokens": r.most, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began, first, text, n, usage = time.perf_counter(), None, "", 0, None
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = c.getresponse()
        if response.status != 200:
            sys.exit(f"conversations: {response.status}: {response.read()[:300]}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event["choices"] and event["choices"][0]["text"]:
                first = first or time.perf_counter() - began
                text += event["choices"][0]["text"]
                n += 1
        c.close()
        with self.changed:
            self.first.append(first or time.perf_counter() - began)
            self.usage.append((len(body["prompt"].split()), n, usage))
            self.answers[r.number] = text
            self.changed.notify_all()

    def work(self):
        while r := self.take():
            self.ask(r)

    def run(self, streams):
        threads = [threading.Thread(target=self.work) for _ in range(streams)]
        began = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return time.perf_counter() - began


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, process):
    for _ in range(600):
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            c.request("GET", "/v1/models")
            if c.getresponse().status == 200:
                return
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("conversations: the server did not start")


def measure(name, command, port, requests, a):
    log = open(os.devnull if not a.verbose else "/dev/stderr", "w")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    wait_for(port, process)
    before = processor_seconds(process.pid)
    replay = Replay(requests, port, os.path.basename(a.model))
    seconds = replay.run(a.streams)
    busy = processor_seconds(process.pid) - before
    process.terminate()
    process.wait()
    prompts, new = sum(u[0] for u in replay.usage), sum(u[1] for u in replay.usage)
    cached = sum((u[2] or {}).get("prompt_tokens_details", {}).get("cached_tokens", 0) for u in replay.usage)
    first = sorted(replay.first)
    print(f"{name:24} {len(requests)} requests, {prompts} words of prompts, {new} tokens of answers: {seconds:7.1f} s  "
          f"{(prompts + new) / seconds:7.1f} tok/s  first {1e3 * statistics.median(first):.0f} / "
          f"{1e3 * first[int(0.99 * (len(first) - 1) + 0.5)]:.0f} ms  {busy:.1f} s of processor time  {cached} cached", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("model")
    p.add_argument("--sluice", help="the program; none: llama.cpp alone")
    p.add_argument("--llama", metavar="PYTHON", help="with llama-cpp-python[server]")
    p.add_argument("--llama-options", default="")
    p.add_argument("--conversations", type=int, default=6)
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    with open(a.trace) as f:
        lines = [line for line in f if not line.startswith("#")]
    requests = [r for r in (Request(i, line) for i, line in enumerate(lines)) if r.conversation < a.conversations]
    if a.sluice:
        port = free_port()
        measure("sluice", [a.sluice, "serve", a.model, "--port", str(port), "-t", str(a.threads), "--batch", str(a.streams), "-c",
                           str(a.context)], port, requests, a)
    if a.llama:
        port = free_port()
        measure(f"llama.cpp {a.llama_options}", [a.llama, "-m", "llama_cpp.server", "--model", a.model, "--port", str(port),
                "--n_threads", str(a.threads), "--n_threads_batch", str(a.threads), "--n_ctx", str(a.context), "--interrupt_requests",
                "False", *a.llama_options.split()], port, requests, a)


main()
