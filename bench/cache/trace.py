#!/usr/bin/env python3
"""trace.py [--context N] [--conversations N] [--seed S] [--chat TURNS] [--gap G] > FILE

Writes a trace for `sluice bench --trace`: requests as agents and people send them, deterministic by seed. The format
is in src/cmd/bench_trace.h. Lengths scale with the context.

What conversations are made of, each drawn by chance:
  - one of eight system prompts, some far more popular than others
  - questions, and answers that call a tool, whose result (often long) comes with the next request
  - a clock: a line with the time right before the newest question, another one in every request
  - thinking: an answer's first part is stripped from it in later requests
  - the last question edited, the same request sent again, a branch from a turn in the middle
Conversations come back after pauses, so many are under way at a time.

--chat TURNS: a single conversation of this many turns that fills the context instead.
"""
import argparse
import random


class Trace:
    def __init__(self):
        self.lines, self.lengths, self.next_text = [], [], 1000

    def text(self, n):
        self.next_text += 1
        return ("t", self.next_text, 0, n)

    def request(self, conversation, new, parts):
        """Returns the number of the request."""
        words = ["e" if p[0] == "e" else f"t{p[1]}:{p[3]}" if p[0] == "t" else f"a{p[1]}:{p[2]}:{p[3]}" for p in parts]
        self.lines.append(f"{conversation} {new} {' '.join(words)}")
        self.lengths.append(new)
        return len(self.lines) - 1


END = ("e", 0, 0, 1)


def length(parts):
    return sum(p[3] for p in parts)


class Conversation:
    """Yields after every request; `trace` gets them in the order of arrival."""

    def __init__(self, trace, number, rng, context, system):
        self.trace, self.number, self.rng, self.context = trace, number, rng, context
        self.head = [("t", system[0], 0, system[1]), END]
        self.thinks, self.has_clock = rng.random() < 0.5, rng.random() < 0.3
        self.turns_left = rng.randint(2, 8)
        self.turns = []  # lists of parts: question, answer, tool results ...

    def scaled(self, low, high):
        """Lengths of texts are spread evenly by their logarithm."""
        n = low * (high / low) ** self.rng.random() * self.context
        return max(4, int(n))

    def send(self, turn, new):
        """Asks for an answer after the turns and the begun one, and appends it."""
        clock = [self.trace.text(12)] if self.has_clock else []
        history = self.head + sum(self.turns, [])
        prompt = history + clock + turn + [("t", 1, 0, 3)]
        if length(prompt) + new > self.context:
            return None
        return self.trace.request(self.number, new, prompt)

    def steps(self):
        rng = self.rng
        while self.turns_left > 0:
            self.turns_left -= 1
            turn = [self.trace.text(self.scaled(0.005, 0.06)), END]
            for _ in range(rng.choice((0, 0, 0, 1, 2)) + 1):
                new = self.scaled(0.005, 0.03)
                number = self.send(turn, new)
                if number is None:
                    return
                yield
                first = new // 2 if self.thinks else 0
                turn = turn + [("t", 1, 0, 3), ("a", number, first, new - first), END,
                               self.trace.text(self.scaled(0.01, 0.12)), END]
            turn = turn[:-2]  # the last answer called no tool
            kind = rng.random()
            if kind < 0.10:  # the question is edited: what came of it is gone
                self.turns_left += 1
            elif kind < 0.15:  # the same request again
                if self.send(turn[:2], new) is None:
                    return
                yield
                self.turns.append(turn)
            else:
                self.turns.append(turn)
            if self.turns and rng.random() < 0.10:  # a branch from the middle
                del self.turns[rng.randrange(len(self.turns)):]


def agents(args):
    rng, trace = random.Random(args.seed), Trace()
    systems = [(i + 2, int(args.context * rng.uniform(0.03, 0.2))) for i in range(8)]
    weights = [1 / (i + 1) for i in range(8)]
    waiting = [Conversation(trace, i, random.Random(rng.random()), args.context, rng.choices(systems, weights)[0]).steps()
               for i in range(args.conversations)]
    under_way = []
    while waiting or under_way:
        while waiting and len(under_way) < args.gap:
            under_way.append(waiting.pop(0))
        conversation = rng.choice(under_way)
        try:
            next(conversation)
        except StopIteration:
            under_way.remove(conversation)
    return trace


def chat(args):
    """Turns of the same length; the last one's prompt fills the context but for its answer."""
    trace = Trace()
    new = 32
    question = (args.context - 200) // args.chat - new - 6
    parts = [("t", 2, 0, 64), END]
    for _ in range(args.chat):
        parts = parts + [trace.text(question), END]
        number = trace.request(0, new, parts + [("t", 1, 0, 3)])
        parts = parts + [("t", 1, 0, 3), ("a", number, 0, new), END]
    return trace


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--context", type=int, default=16384)
    p.add_argument("--conversations", type=int, default=200)
    p.add_argument("--gap", type=int, default=40, help="conversations that are under way at a time")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--chat", type=int, default=0)
    args = p.parse_args()
    trace = chat(args) if args.chat else agents(args)
    print(f"# {args}")
    print("\n".join(trace.lines))


main()
