#!/usr/bin/env python3
"""test_server.py SLUICE [WORDS] - `sluice serve` from outside: the clients people use, and abuse.

Runs in the environment that tools/setup.sh makes (build/venv-test); without its clients the tests
that need them are skipped. All connections stay on this machine. SECONDS sets how long the load lasts.
"""
import asyncio, atexit, contextlib, gzip, http.client, json, os, random, re, resource, shutil, signal, socket, stat, struct, subprocess, sys, tempfile, threading, time
from pathlib import Path

import suite
from suite import PATIENCE, PROGRAM as SLUICE, ROOT, SHIPPED, Skip

suite.use_venv()
try:
    import anthropic, ollama, openai
except ImportError:
    anthropic = ollama = openai = None

TMP = suite.temporary()
SECONDS = float(os.environ.get("SECONDS", 5))
CONTEXT, LONG = 32000, 31000  # an answer that takes minutes: it runs until it is ended
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


def wait_until(condition, what):
    suite.wait_until(condition, what, every=0.02)  # a condition may be a request


# ---- servers ---------------------------------------------------------------------------------------

class Server:
    """A server of its own; kill it with stop()."""

    def __init__(self, *args, **env):
        self.log = tempfile.TemporaryFile(dir=TMP)
        self.process = subprocess.Popen([SLUICE, "serve", *([] if "-m" in args else ["-m", str(SHIPPED)]),
                                         *([] if "--unix" in args else ["--port", "0"]), *map(str, args)],
                                        stderr=self.log, stdin=subprocess.DEVNULL,
                                        env={**os.environ, "NO_COLOR": "1", **env})
        end = time.time() + PATIENCE
        while b"listening on " not in self.text():
            assert self.process.poll() is None and time.time() < end, self.text().decode()
            time.sleep(0.02)
        self.address = re.search(rb"listening on (\S+)", self.text())[1].decode()
        found = re.search(r"http://(.+):(\d+)", self.address)
        self.host, self.port = (found[1].strip("[]"), int(found[2])) if found else (None, None)
        self.state_bytes = 0

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self, number=signal.SIGTERM, seconds=PATIENCE):
        self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()

    def connect(self, timeout=PATIENCE):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers={}):
        """Status, headers and body, as JSON where it is."""
        with contextlib.closing(self.connect()) as c:
            c.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers)
            r = c.getresponse()
            text = r.read()
        is_json = r.getheader("Content-Type", "").startswith("application/json")
        return r.status, r.headers, json.loads(text) if is_json and text else text.decode()

    def chat(self, messages=FOX, path="/v1/chat/completions", **fields):
        status, _, body = self.request("POST", path, {"messages": messages, "max_tokens": 8, "temperature": 0, **fields})
        assert status == 200, body
        return body

    def raw(self, bytes_, wait=PATIENCE):
        """What comes back for these bytes, until the server closes or says nothing for so long."""
        with socket.create_connection((self.host, self.port), timeout=PATIENCE) as s:
            got = b""
            try:
                s.sendall(bytes_)
                s.settimeout(wait)
                while more := s.recv(65536):
                    got += more
            except (socket.timeout, ConnectionError):
                pass
            return got

    def raw_or_none(self, bytes_):
        """b"" too where nobody listens."""
        try:
            return self.raw(bytes_)
        except OSError:
            return b""

    def metric(self, name):
        text = self.request("GET", "/metrics")[2]
        return float(re.search(rf"^sluice_{re.escape(name)} (\S+)$", text, re.M)[1])

    def wait_for(self, name, value):
        wait_until(lambda: self.metric(name) == value, f"{name} is {value}")

    def resident_bytes(self):
        """Memory in use but for the engine's state: that is allocated once, and in use as soon as it was touched."""
        text = Path(f"/proc/{self.process.pid}/smaps").read_text()
        maps = [(int(size) << 10, int(rss) << 10) for size, rss in re.findall(r"^Size:\s+(\d+) kB$.*?^Rss:\s+(\d+) kB$", text, re.M | re.S)]
        state_bytes, state = max(maps)
        assert state_bytes >= self.state_bytes, f"the state's mapping has {state_bytes} bytes, expected {self.state_bytes} or more"
        return sum(rss for _, rss in maps) - state

    def heap_used(self):
        """Memory that was allocated and not freed, while nobody asks for anything else. The least of some readings: what libmicrohttpd has for
        a connection is freed some time after that is closed."""
        self.wait_until_idle()
        self.wait_for("connections", 1)
        self.wait_for("requests_active", 1)
        readings = []
        for _ in range(20):
            readings.append(int(self.metric("heap_used_bytes")))
            time.sleep(0.05)
        return min(readings)

    def n_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def n_threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def wait_until_idle(self):
        wait_until(lambda: not self.metric("answers_running") and not self.metric("answers_waiting"), "no answer runs")


shared = None


def server():
    """The one that most tests use: it must survive them all."""
    global shared
    if not shared:
        shared = Server("--batch", 8, "--queue", 64, "--idle", 30, "-c", 512)
        atexit.register(shared.process.kill)
    assert shared.process.poll() is None, f"the server ended: {shared.text().decode()}"
    return shared


@contextlib.contextmanager
def own(*args, **env):
    s = Server(*args, **env)
    try:
        yield s
        assert s.process.poll() is None, f"the server ended: {s.text().decode()}"
    finally:
        code = s.stop()
    assert code == 0, f"exits {code}: {s.text().decode()}"


@contextlib.contextmanager
def limited(limits, *args):
    """A server of its own whose process is under such limits (ulimit)."""
    global SLUICE
    path, binary = TMP / "limited", SLUICE
    path.write_text(f'#!/bin/sh\nulimit {limits}\nexec "{binary}" "$@"\n')
    path.chmod(0o755)
    try:
        SLUICE = str(path)
        s = own(*args)
        server = s.__enter__()
    finally:
        SLUICE = binary
    try:
        yield server
    except BaseException:
        if not s.__exit__(*sys.exc_info()):
            raise
    else:
        s.__exit__(None, None, None)


def events(response):
    """The events of a stream: data as JSON."""
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def stream(s, path, body):
    c = s.connect()
    c.request("POST", path, json.dumps(body))
    r = c.getresponse()
    assert r.status == 200 and r.getheader("X-Accel-Buffering") == "no", (r.headers, r.read())
    return c, r


# ---- the OpenAI API --------------------------------------------------------------------------------

def openai_client(s, **kw):
    if not openai:
        raise Skip("the openai client is not installed")
    return openai.OpenAI(base_url=f"{s.address}/v1", api_key=kw.pop("api_key", "none"), max_retries=0, timeout=PATIENCE, **kw)


def test_openai_chat():
    c = openai_client(server())
    r = c.chat.completions.create(model="any", messages=FOX, max_tokens=12, temperature=0)
    assert r.choices[0].message.content.startswith("Once upon a time") and r.choices[0].finish_reason == "length", r
    assert r.usage.completion_tokens == 12 and r.usage.total_tokens == r.usage.prompt_tokens + 12, r.usage
    again = c.chat.completions.create(model="any", messages=FOX, max_tokens=12, temperature=0)
    assert again.choices[0].message.content == r.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0, again.usage
    assert [m.id for m in c.models.list()] == [SHIPPED.stem] and c.models.retrieve(SHIPPED.stem).id == SHIPPED.stem
    status, _, body = server().request("GET", "/v1/models/gpt/9")
    assert status == 404 and "there is no model gpt/9" in body["error"]["message"], body


def test_openai_streams_what_it_would_answer():
    c = openai_client(server())
    args = dict(model="any", messages=FOX, max_tokens=30, temperature=0.7, seed=5, n=3)
    whole = c.chat.completions.create(**args)
    texts, ends, usage = ["", "", ""], [None] * 3, None
    for chunk in c.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [x.message.content for x in whole.choices] and len(set(texts)) == 3, texts
    assert ends == ["length"] * 3 and usage.completion_tokens == 90, usage


def test_usage_of_every_chunk():
    """As vLLM has it: tokens so far, and what of the prompt was known."""
    s = server()
    s.chat(max_tokens=4)
    c, r = stream(s, "/v1/chat/completions", {"messages": FOX, "max_tokens": 9, "temperature": 0, "stream": True, "ignore_eos": True,
                                              "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    usages = [e["usage"] for e in events(r)]
    counts = [u["completion_tokens"] for u in usages]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 9 and len(set(counts)) > 3, counts
    # Without the second option it is in the last event alone, which has no text: strands' LlamaCppModel reads no text beside it, not even beside null.
    c, r = stream(s, "/v1/chat/completions", {"messages": FOX, "max_tokens": 3, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}})
    all_events = list(events(r))
    assert ["usage" in e for e in all_events] == [False] * (len(all_events) - 1) + [True] and all_events[-1]["choices"] == [], all_events
    cached = {u["prompt_tokens_details"]["cached_tokens"] for u in usages[1:]}
    assert len(cached) == 1 and min(cached) > 0 and all(u["prompt_tokens"] == usages[0]["prompt_tokens"] for u in usages), usages


def test_openai_parts_roles_and_ends():
    c = openai_client(server())
    parts = [{"role": "developer", "content": "You tell stories."},
             {"role": "user", "content": [{"type": "text", "text": "Tell me a story "}, {"type": "text", "text": "about a fox."}]}]
    plain = [{"role": "system", "content": "You tell stories."}, FOX[0]]
    a, b = (c.chat.completions.create(model="m", messages=m, temperature=0, max_completion_tokens=8) for m in (parts, plain))
    assert a.choices[0].message.content == b.choices[0].message.content
    assert a.usage.prompt_tokens == b.usage.prompt_tokens
    few = c.chat.completions.create(model="m", messages=FOX, temperature=0, extra_body={"n_predict": 3})  # llama.cpp's name
    assert few.usage.completion_tokens == 3 and few.choices[0].finish_reason == "length", few
    r = c.chat.completions.create(model="m", messages=[{"role": "user", "content": "Who are you?"}], temperature=0)
    assert r.choices[0].finish_reason == "stop" and r.usage.completion_tokens < 100, r


def test_openai_stop_texts():
    c = openai_client(server())
    args = dict(model="m", messages=FOX, max_tokens=60, temperature=0)
    whole = c.chat.completions.create(**args).choices[0].message.content
    stop = whole[20:24]
    for streamed in (False, True):
        r = c.chat.completions.create(**args, stop=["never there", stop], stream=streamed)
        if streamed:
            chunks = [x.choices[0] for x in r]
            text, end = "".join(x.delta.content or "" for x in chunks), chunks[-1].finish_reason
        else:
            text, end = r.choices[0].message.content, r.choices[0].finish_reason
        assert text == whole[:whole.index(stop)] and end == "stop", (text, end)


def test_logprobs_end_with_the_text():
    s = server()
    for stop in ("e upon", " a t", "Once", "time,"):
        whole = s.chat(max_tokens=20, logprobs=True, stop=[stop])["choices"][0]
        told = whole["logprobs"]["content"]
        text = "".join(t["token"] for t in told)
        assert text.startswith(whole["message"]["content"]) and len(text) - len(told[-1]["token"] if told else "") <= len(whole["message"]["content"]), whole
        c, r = stream(s, CHAT, {"messages": FOX, "temperature": 0, "max_tokens": 20, "logprobs": True, "stop": [stop], "stream": True})
        assert sum((e["choices"][0]["logprobs"]["content"] for e in events(r)), []) == told, stop


def test_a_text_that_is_held_back_has_no_logprobs_yet():
    """The first " t" gives the one before it free, and is then part of the stop text itself."""
    s = server()
    stop, format, tell = [" the end"], mouth(" the the end"), {"logprobs": True}
    chat, text = {"messages": FOX, "stop": stop, **format}, {"prompt": "x", "stop": stop, "logprobs": 0, **format}
    respond = {"input": "x", "stop": stop, "include": ["message.output_text.logprobs"], **format}
    ollama_chat = {"messages": FOX, "grammar": format["grammar"], "options": {"stop": stop, "temperature": 0}, **tell}

    def tokens(entries):
        return [t["token"] for t in entries or []]

    for path, body, of_whole, of_event in (
            ("/v1/chat/completions", {**chat, **tell}, lambda r: tokens(r["choices"][0]["logprobs"]["content"]), lambda e: tokens(e["choices"][0]["logprobs"]["content"])),
            ("/v1/completions", text, lambda r: r["choices"][0]["logprobs"]["tokens"], lambda e: e["choices"][0]["logprobs"]["tokens"]),
            ("/v1/responses", respond, lambda r: tokens(r["output"][0]["content"][0]["logprobs"]), lambda e: tokens(e["logprobs"]) if e["type"].endswith("text.delta") else []),
            ("/completion", {"prompt": "x", "stop": stop, "n_probs": 1, **format}, lambda r: tokens(r["completion_probabilities"]), lambda e: tokens(e.get("completion_probabilities"))),
            ("/api/chat", ollama_chat, lambda r: tokens(r.get("logprobs")), lambda e: tokens(e.get("logprobs")))):
        whole = of_whole(s.request("POST", path, {**body, "stream": False})[2])
        streamed = s.request("POST", path, {**body, "stream": True})[2]
        lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith(("data: {", "{"))]
        assert "".join(whole) == " the" and sum((of_event(json.loads(line)) for line in lines), []) == whole, (path, whole, streamed)


def test_openai_logprobs():
    c = openai_client(server())
    args = dict(model="m", messages=FOX, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    r = c.chat.completions.create(**args).choices[0]
    assert "".join(t.token for t in r.logprobs.content) == r.message.content and len(r.logprobs.content) == 6
    for t in r.logprobs.content:
        assert len(t.top_logprobs) == 3 and t.top_logprobs[0].token == t.token and t.top_logprobs[0].logprob == t.logprob <= 0
        assert t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob >= t.top_logprobs[2].logprob
        assert bytes(t.bytes).decode() == t.token
    chunks = [x.choices[0] for x in c.chat.completions.create(**args, stream=True)]
    told = [t for x in chunks if x.logprobs for t in x.logprobs.content]
    assert [(t.token, t.logprob) for t in told] == [(t.token, t.logprob) for t in r.logprobs.content]


def test_openai_seed_bias_and_penalties():
    s = server()
    args = dict(max_tokens=20, temperature=1.0)
    text = lambda **kw: s.chat(**{**args, **kw})["choices"][0]["message"]["content"]
    assert text(seed=1) == text(seed=1) != text(seed=2)
    first = s.chat(max_tokens=1, logprobs=True)["choices"][0]
    ids = json.loads(subprocess.run([SLUICE, "tokenize", "-m", str(SHIPPED), "-p", first["message"]["content"], "--json"],
                                    stdout=subprocess.PIPE, check=True).stdout)
    assert s.chat(max_tokens=1, logit_bias={str(ids[0]): -100})["choices"][0]["message"]["content"] != first["message"]["content"]
    assert text(temperature=0, presence_penalty=2, frequency_penalty=2) != text(temperature=0)


def test_openai_errors():
    c = openai_client(server())
    for fields, words in ((dict(temperature="hot"), "temperature is a string"), (dict(n=0), "n is 0, expected 1 to 16"),
                          (dict(n=1000), "n is 1000, expected 1 to 16"), (dict(n=3 * 10**9), "n is 3000000000, expected 1 to 16"), (dict(max_tokens=0), "max_tokens is 0"),
                          (dict(stop=[3]), "stop is a number"), (dict(logit_bias={"x": 1}), "logit_bias has the key 'x'"),
                          (dict(messages=[]), "messages is empty"), (dict(messages=[{"role": 3}]), "messages[0].role is a number"),
                          (dict(messages=[{"role": "", "content": "x"}]), "messages[0].role is '', expected system, developer, user"),
                          (dict(messages=[FOX[0], {"role": "robot", "content": "x"}]), "messages[1].role is 'robot'"),
                          (dict(messages=[{"role": "user", "text": "x"}]), "messages[0].content is missing, expected a string or an array of parts"),
                          (dict(messages=[{"role": "system", "content": None}, FOX[0]]), "messages[0].content is null, expected"),
                          (dict(logit_bias={"+1": 1}), "the key '+1'"), (dict(logit_bias={" 1": 1}), "the key ' 1'"), (dict(logit_bias={"01": 1}), "the key '01'"),
                          (dict(logit_bias={"8192": 1}), "the key '8192', expected a token id, 0 to 8191"),
                          (dict(modalities=["text", "audio"], audio={"voice": "x", "format": "wav"}), "modalities has audio, expected text alone"),
                          (dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]), "image_url"),
                          (dict(top_logprobs=99, logprobs=True), "top_logprobs is 99"), (dict(top_logprobs=2), "top_logprobs is 2, expected logprobs true"),
                          (dict(functions=[{"name": "f"}]), "functions is not supported, expected tools"),
                          (dict(function_call="auto"), "function_call is not supported, expected tool_choice"),
                          (dict(tools=[{"type": "function"}]), "tools[0] has no function"), (dict(tool_choice="required"), "tools is missing"),
                          (dict(response_format={"type": "json_object"}, extra_body={"grammar": 'root ::= "x"'}), "another format is given too, expected one of them"),
                          (dict(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]),
                           "messages[0].tool_calls[0].function.arguments is a number"),
                          (dict(messages=[{"role": "user", "content": "fox " * 3000}]), "expected at most 511")):
        try:
            c.chat.completions.create(**{"model": "m", "messages": FOX, **fields})
            assert False, f"{fields} is taken"
        except openai.BadRequestError as e:
            assert words in e.body["message"], (fields, e.body)
            assert e.body["type"] == "invalid_request_error"
            if "messages" not in fields or fields["messages"] == []:
                assert e.body["param"] in fields, e.body
    try:
        c.chat.completions.create(model="m", messages=[{"role": "user", "content": "fox " * 3000}])
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded", e.body


def test_numbers_that_are_too_large():
    for number, most in (("18446744073709551615", "9223372036854775807"), ("-9223372036854775809", "9223372036854775807"), ("1" * 60, "9223372036854775807"),
                         ("1e999", "1.8e308")):
        status, _, body = server().request("POST", CHAT, '{"messages": [],\n "seed": %s, "n": 1}' % number)
        assert status == 400 and f"the number {number[:40]} in line 2 is too large, expected at most {most}" in body["error"]["message"], body


def test_request_lines_in_absolute_form():
    """As a proxy would be asked (RFC 9112): its name counts, not that of Host."""
    s = server()
    ask = lambda target, host="localhost": s.raw(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()).split(b"\r\n")[0]
    for target in (f"http://{s.host}:{s.port}/v1/models", "HTTP://localhost/v1/models?x=1", "http://localhost", "https://localhost/health"):
        assert b" 200 " in ask(target), (target, ask(target))
    assert b" 200 " in ask("http://localhost/v1/models", "evil.example")
    for target in ("http://evil.example/v1/models", "http://evil.example"):
        assert b" 403 " in ask(target), (target, ask(target))
    for target in ("http://localhost/nothing", "ftp://localhost/v1/models"):
        assert b" 404 " in ask(target), (target, ask(target))
    assert b"there is no *: all paths begin with /\"" in s.raw(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b" 403 " in ask("http:///v1/models"), ask("http:///v1/models")


def test_fields_that_all_calls_have():
    s = server()
    for path, body in ((CHAT, {"messages": FOX}), ("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"}), ("/v1/embeddings", {"input": "x"}),
                       ("/v1/messages", {"messages": FOX, "max_tokens": 1}), ("/api/chat", {"messages": FOX}), ("/api/generate", {"prompt": "x"})):
        status, _, answer = s.request("POST", path, {**body, "model": 3})
        assert status == 400 and "model is a number, expected a string" in json.dumps(answer), (path, answer)
        status, _, answer = s.request("POST", path, json.dumps({**body, "seed": 0})[:-2] + "9" * 30 + "}")
        assert status == 400 and "in line 1 is too large" in json.dumps(answer), (path, answer)
    for body, words in (({"suffix": "x"}, "suffix is not supported"), ({"template": "x"}, "template is not supported"), ({"context": [1]}, "context is not supported"),
                        ({"images": 3}, "images is a number"), ({"suffix": 3}, "suffix is a number")):
        status, _, answer = s.request("POST", "/api/generate", {"prompt": "x", **body})
        assert status == 400 and words in answer["error"], (body, answer)
    status, _, answer = s.request("POST", "/v1/completions", {"prompt": "x", "best_of": 3, "n": 2})
    assert status == 400 and "best_of is 3, expected n, which is 2" in answer["error"]["message"] and answer["error"]["param"] == "best_of", answer
    assert s.request("POST", "/v1/completions", {"prompt": "x", "best_of": 2, "n": 2, "max_tokens": 1})[0] == 200
    status, _, answer = s.request("POST", "/v1/completions", {"prompt": "x", "snapshot": "y"})
    assert status == 400 and answer["error"]["param"] == "snapshot", answer


def test_unknown_fields_are_ignored():
    assert server().chat(user="me", metadata={"a": [1]}, store=True, service_tier="auto", temperature=None)["choices"]


def test_next_turn_continues_from_what_was_sampled():
    s = server()
    first = s.chat(max_tokens=40, temperature=0.9, seed=3)
    said = first["choices"][0]["message"]
    messages = FOX + [said, {"role": "user", "content": "And then?"}]
    cached = s.chat(messages)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["total_tokens"] - 2, (cached, first["usage"])


def test_weights_on_disk():
    """The same texts, of a folder in which nothing is seen."""
    texts = [[{"role": "user", "content": f"A story about {what}"}] for what in ("a fox", "a hen", "a cow", "a cat")]
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        tried = subprocess.run([SLUICE, "inspect", SHIPPED, "--backend", "cpu", "--weights-dir", folder], capture_output=True, text=True)
        if tried.returncode:
            raise Skip(tried.stderr.strip())
        with own("--backend", "cpu", "--weights-dir", folder, "--weights-bytes", 0, "-c", 512) as s:
            for text in texts:
                found, expected = (one.chat(text, max_tokens=20)["choices"][0]["message"] for one in (s, server()))
                assert found == expected, (found, expected)
            assert os.listdir(folder) == []


def test_next_turns_of_templates_that_end_in_their_own_ways():
    """Phi's end a conversation that nobody continues with one end token more, others with one less: nothing is lost or said twice in the next turn."""
    message = "{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    ask = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    for template in ("{% for m in messages %}" + message + "{{ '<|im_end|>\n' }}{% endfor %}" + ask + "{% else %}{{ eos_token }}{% endif %}",
                     "{% for m in messages %}" + message + "{% if not loop.last or m.role != 'assistant' %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}" + ask + "{% endif %}"):
        with own("--chat-template", template) as s:
            turns, want = [], ""
            for question in ("A fox?", "A dog?", "A cat?"):
                turns.append({"role": "user", "content": question})
                want += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
                tokens = s.request("POST", "/tokenize", {"messages": turns})[2]["tokens"]
                text = s.request("POST", "/detokenize", {"tokens": tokens})[2]["content"]
                assert text == want, (template, text)
                r = s.chat(turns, **mouth("Once there was one."), max_tokens=20)
                assert r["usage"]["prompt_tokens"] == len(tokens), r
                turns.append(r["choices"][0]["message"])
                want += "Once there was one.<|im_end|>\n"


def test_templates_have_room_where_stacks_are_small():
    """As musl's are: a template that never ends is an error, also where `ulimit -s` is 128."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if messages|length > 1 %}{% set n = namespace() %}{% set n.n = n %}{{ n }}{% endif %}"
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (128 << 10, before[1]))
    try:
        small = own("--chat-template", template)
        s = small.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)
    with contextlib.ExitStack() as stack:
        stack.push(small.__exit__)
        for path in ("/tokenize", "/apply-template", "/v1/chat/completions"):
            status, _, body = s.request("POST", path, {"messages": FOX * 2})
            assert status == 400 and "nested deeper than" in json.dumps(body), (path, status, body)
        assert s.chat(FOX)["choices"]


def test_a_next_turn_is_of_the_same_names():
    """What was sampled is of one conversation: another's, with the same texts and other names, must not get it."""
    # It takes tools, or results of tools would be a user's, without a name.
    template = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.name or m.tool_call_id or m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    with own("--chat-template", template) as s:
        for role, field in (("user", "name"), ("tool", "name"), ("tool", "tool_call_id")):
            first = {"role": role, "content": "A fox", field: "Alice"}
            said = s.chat([first], max_tokens=8, temperature=0)["choices"][0]["message"]["content"]
            rest = [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
            for name in ("Alice", "Bob"):
                tokens = s.request("POST", "/tokenize", {"messages": [{**first, field: name}] + rest})[2]["tokens"]
                text = s.request("POST", "/detokenize", {"tokens": tokens})[2]["content"]
                assert text.startswith(name + ":"), (role, field, text)


def test_formats():
    s = server()
    c = openai_client(s)
    text = lambda **kw: c.chat.completions.create(model="m", messages=FOX, **kw).choices[0]
    r = c.chat.completions.create(model="m", messages=FOX, n=4, temperature=1.5, extra_body={"grammar": 'root ::= "yes" | "no"'})
    assert all(x.message.content in ("yes", "no") and x.finish_reason == "stop" for x in r.choices), r
    short = 'root ::= "{\\"a\\": " [0-9]{1,3} "}"'
    r = text(temperature=1, extra_body={"grammar": short}, stop=["}"], logprobs=True)
    assert re.fullmatch(r'\{"a": \d{1,3}', r.message.content), r
    for i in range(3):
        r = text(temperature=1.5, seed=i, max_tokens=150, response_format={"type": "json_object"})
        if r.finish_reason == "stop":
            assert isinstance(json.loads(r.message.content), dict)
        else:
            assert r.message.content.startswith("{")
    # As llama.cpp's server takes a schema: beside the type.
    one = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
    for kind in ("json_object", "json_schema"):
        r = text(temperature=1, response_format={"type": kind, "schema": one})
        assert json.loads(r.message.content) == {"a": 7}, r
    # And in a field of its own, in all calls.
    assert json.loads(text(temperature=1, extra_body={"json_schema": one}).message.content) == {"a": 7}
    r = c.completions.create(model="m", prompt="A fox", temperature=1, max_tokens=64, extra_body={"json_schema": one})
    assert json.loads(r.choices[0].text) == {"a": 7}, r
    assert s.request("POST", "/v1/chat/completions", {"messages": FOX, "json_schema": one, "grammar": 'root ::= "a"'})[2]["error"]["param"] == "json_schema"
    # What one answer may take is shared by all of a request.
    many_ways = {"messages": FOX, "grammar": 'root ::= s\ns ::= "a" s s "b"? | "a" s "c"? s | "a"', "max_tokens": 120, "temperature": 0}
    got = [s.request("POST", "/v1/chat/completions", {**many_ways, "n": n}) for n in (1, 8)]
    assert got[0][0] == 200 and got[1][0] == 400 and "with a token of each" in got[1][2]["error"]["message"], got
    doubled = lambda n, first: f"root ::= {first}r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"?'
    r = text(extra_body={"grammar": doubled(14, "")}, max_tokens=20)
    assert set(r.message.content) <= {"a"}, r
    _, _, events = s.request("POST", "/v1/chat/completions", {"messages": FOX, "grammar": doubled(2000, '"b" '), "stream": True})
    assert "can be read in too many ways" in str(events), events
    for fields, words in ((dict(grammar="root ::= x"), "rule x"), (dict(grammar=doubled(2000, "")), "can be read in too many ways"),
                          (dict(grammar=doubled(2000, '"b" ')), "more than 1048576 steps"), (dict(response_format={"type": "xml"}), "response_format.type is 'xml'"),
                          (dict(response_format={"type": "json_schema"}), "has no schema"), (dict(response_format=3), "response_format is a number"),
                          (dict(response_format={"type": "json_schema", "json_schema": {"schema": {"enum": ["a\0b"]}}}), "a text has a zero byte, which is not supported"),
                          (dict(logit_bias={"5": 1e9}), "logit_bias of 5 is 1e+09, expected -1000 to 1000"),
                          (dict(tool_choice="a" * 3000), f"tool_choice is {'a' * 40}, expected none")):
        status, _, body = s.request("POST", "/v1/chat/completions", {"messages": FOX, **fields})
        assert status == 400 and words in body["error"]["message"], body


def test_formats_of_vllms_clients():
    """Its fields of both kinds do what response_format and grammar do; what is not supported is refused, not ignored."""
    s = server()
    one = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
    odd = ['"', "\\", "a\\nb", "x\ny [z] # |", "é漢", "a", "ab"]
    paths = {"/v1/chat/completions": lambda kw: s.chat(**kw)["choices"][0]["message"]["content"],
             "/v1/completions": lambda kw: s.request("POST", "/v1/completions", {"prompt": "A fox", "max_tokens": 64, **kw})[2]["choices"][0]["text"]}
    both = lambda kind, value: ({"guided_regex": None, f"guided_{kind}": value, "guided_decoding_backend": "xgrammar"},
                                {"structured_outputs": {"regex": None, kind: value, "disable_fallback": False}})
    for path, said in paths.items():
        answer = lambda fields, **kw: said({**fields, "temperature": 1, "max_tokens": 64, **kw})
        for fields in (*both("json", one), *both("json", json.dumps(one))):
            assert json.loads(answer(fields)) == {"a": 7}, (path, fields)
        for fields in both("choice", ["yes", "no"]):
            assert {answer(fields, seed=i) for i in range(8)} <= {"yes", "no"}, (path, fields)
        for text in odd:
            for fields in both("choice", [text]):
                assert answer(fields) == text, (path, fields)
        for fields in both("grammar", 'root ::= "<" [0-9]{2} ">"'):
            assert re.fullmatch(r"<\d\d>", answer(fields)), (path, fields)
        for regex in (r"(^[+-]?(0|[1-9][0-9]{,3})$)", r"(?:é\.|x\ y|漢{2})", r"\w{3,5}?-[^\d\s]\D"):
            for fields in both("regex", regex):
                assert {bool(re.fullmatch(regex, answer(fields, seed=i))) for i in range(4)} == {True}, (path, fields)
        for fields in ({**both("choice", ["yes"])[0], **both("choice", ["yes"])[1]},):  # clients that do not know the version
            assert answer(fields) == "yes", (path, fields)
        for fields in both("json_object", True):
            assert answer(fields, max_tokens=3).startswith("{"), (path, fields)
        # Not asked for.
        free = answer({}, temperature=0)
        for fields in ({"structured_outputs": True}, {"structured_outputs": None}, {"structured_outputs": {}}, *both("json", None), *both("json_object", False)):
            assert answer(fields, temperature=0) == free, (path, fields)
        for fields, field, words in (({"guided_regex": r"(a)\1"}, "guided_regex", r"guided_regex: regular expression: at character 5: \1 is not supported: it refers back"),
                                     ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs", "structured_outputs: regular expression: at character 4: groups that look ahead or behind"),
                                     ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structured_outputs.structural_tag is not supported, expected json, json_object, choice, regex or grammar"),
                                     ({"guided_json": one, "guided_whitespace_pattern": "[ ]?"}, "guided_whitespace_pattern", "guided_whitespace_pattern is not supported"),
                                     ({"guided_json": "{"}, "guided_json", "guided_json is a text that is no JSON object, expected a schema"),
                                     ({"guided_json": "[" * (2 << 20)}, "guided_json", "guided_json has 2097152 bytes, expected at most 1048576"),
                                     ({"structured_outputs": {"json": 3}}, "structured_outputs", "structured_outputs.json is a number, expected a schema"),
                                     ({"guided_json": {"type": "nonsense"}}, "guided_json", "guided_json: "),
                                     ({"guided_choice": []}, "guided_choice", "guided_choice is empty, expected an array of strings"),
                                     ({"guided_choice": "a"}, "guided_choice", "guided_choice is a string, expected an array of strings"),
                                     ({"guided_choice": ["a", 3]}, "guided_choice", "guided_choice has a number, expected strings"),
                                     ({"guided_choice": ["a\0b"]}, "guided_choice", "guided_choice has a zero byte"),
                                     ({"guided_grammar": "start: \"a\""}, "guided_grammar", "grammar, line 1: "),
                                     ({"guided_grammar": 3}, "guided_grammar", "guided_grammar is a number, expected a string"),
                                     ({"guided_regex": 3}, "guided_regex", "guided_regex is a number, expected a string"),
                                     ({"guided_regex": "a\0b"}, "guided_regex", "a zero byte"),
                                     ({"guided_regex": "a", "structured_outputs": {"choice": ["b"]}}, "structured_outputs", "another format is given too, expected one of them"),
                                     ({"guided_json_object": "x"}, "guided_json_object", "guided_json_object is a string, expected true or false"),
                                     ({"guided_choice": ["a"], "structured_outputs": {"choice": ["b"]}}, "structured_outputs", "another format is given too, expected one of them"),
                                     ({"structured_outputs": {"json": one, "choice": ["a"]}}, "structured_outputs", "another format is given too, expected one of them"),
                                     ({"guided_json": one, "response_format": {"type": "json_object"}}, "response_format", "another format is given too")):
            status, _, body = s.request("POST", path, {"messages": FOX, "prompt": "x", **fields})
            assert status == 400 and words in body["error"]["message"] and body["error"]["param"] == field, (fields, body)


def test_ignore_eos_with_formats():
    """No end is sampled where a format may go on; where it cannot, the answer ends, and no token is counted for it."""
    s = server()
    answer = lambda **kw: s.chat(**{"max_tokens": 30, "temperature": 1, "seed": 1, "ignore_eos": True, **kw})
    for fields, regex in (({"grammar": "root ::= [a-z]+"}, "[a-z]+"), ({"grammar": 'root ::= "ab"*'}, "(ab)*a?"), ({"guided_regex": "a?[b-d]*"}, "a?[b-d]*")):
        for free in (answer(**fields), answer(**fields, temperature=0)):
            text = free["choices"][0]["message"]["content"]
            assert free["choices"][0]["finish_reason"] == "length" and free["usage"]["completion_tokens"] == 30, free
            assert re.fullmatch(regex, text) and len(text) >= 30, free
    for fields, n in (({"grammar": 'root ::= "ab"? "c"?'}, 3), ({"guided_choice": ["a", "ab"]}, 2), ({"grammar": 'root ::= ""'}, 0)):
        bound = answer(**fields)
        said = bound["choices"][0]
        assert said["finish_reason"] == "stop" and len(said["message"]["content"] or "") == n, (fields, bound)
        assert bound["usage"]["completion_tokens"] <= n, (fields, bound)
    assert json.loads(answer(json_schema={"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]})["choices"][0]["message"]["content"]) == {"a": 7}


# The story model calls no tools by itself: a grammar puts words into its mouth.
WEATHER = {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
FORMS = {"hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>',
         "qwen35": "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
         "llama": '{"name": "weather", "parameters": {"city": "Rome", "days": 3}}'}
RIGHT = {"city": "Rome", "days": 3}


def mouth(text):
    return {"grammar": "root ::= " + json.dumps(text), "temperature": 0}


def test_tools_openai():
    c = openai_client(server())
    tools = [{"type": "function", "function": WEATHER}]
    args = dict(model="m", messages=FOX, tools=tools)
    for name, form in FORMS.items():
        said = "Let me look.\n" if name != "llama" else ""
        r = c.chat.completions.create(**args, extra_body=mouth(said + form)).choices[0]
        assert r.finish_reason == "tool_calls" and (r.message.content or "") == said.strip(), (name, r)
        call = r.message.tool_calls[0]
        assert call.function.name == "weather" and json.loads(call.function.arguments) == RIGHT and call.id, (name, call)
        parts, text, ends = {}, "", []
        for chunk in c.chat.completions.create(**args, stream=True, extra_body=mouth(said + form)):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            ends.append(chunk.choices[0].finish_reason)
            for t in delta.tool_calls or []:
                parts[t.index] = parts.get(t.index, "") + t.function.arguments
        assert text == said.strip() and json.loads(parts[0]) == RIGHT and ends[-1] == "tool_calls", (name, text, parts)
        # the next turn begins with the tokens of the call, however the template writes it
        turns = FOX + [r.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        again = c.chat.completions.create(**{**args, "messages": turns}, max_tokens=2)
        assert again.usage.prompt_tokens_details.cached_tokens > 30, (name, again.usage)
    both = FORMS["hermes"] + "\n" + FORMS["qwen35"]
    assert len(c.chat.completions.create(**args, extra_body=mouth(both)).choices[0].message.tool_calls) == 2
    assert len(c.chat.completions.create(**args, parallel_tool_calls=False, extra_body=mouth(both)).choices[0].message.tool_calls) == 1
    broken = FORMS["hermes"].replace("}}", "}")
    for extra in (dict(tool_choice="none"), {}):
        text = FORMS["hermes"] if extra else broken
        r = c.chat.completions.create(**args, **extra, extra_body=mouth(text)).choices[0]
        assert r.message.content == text and not r.message.tool_calls and r.finish_reason == "stop", r


def test_tools_that_are_required():
    s = server()
    c = openai_client(s)
    other = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": False}}
    days = {"name": "days", "parameters": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
                                          "additionalProperties": False}}
    tools = [{"type": "function", "function": f} for f in (other, days)]
    right = lambda name, a: a in ({"zone": "UTC"}, {"zone": "CET"}) if name == "clock" else 1 <= a["n"] <= 9 and len(a) == 1
    for choice, names in (("required", ("clock", "days")), ({"type": "function", "function": {"name": "days"}}, ("days",))):
        for streamed in (False, True):
            r = c.chat.completions.create(model="m", messages=FOX, tools=tools, tool_choice=choice, stream=streamed, temperature=1.2, seed=4, max_tokens=300)
            chunks = list(r) if streamed else None
            calls = [t for x in chunks for t in x.choices[0].delta.tool_calls or []] if streamed else r.choices[0].message.tool_calls
            end = chunks[-1].choices[0].finish_reason if streamed else r.choices[0].finish_reason
            assert len(calls) == 1 and calls[0].function.name in names and end == "tool_calls", calls
            assert right(calls[0].function.name, json.loads(calls[0].function.arguments)), calls
    for choice, words in (({"type": "function", "function": {"name": "no"}}, "no, which is not among the tools"), ({"type": "allowed_tools"}, "allows no tools"),
                          ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "no"}]}, "allows no, which is not among the tools"),
                          ({"type": "allowed_tools", "mode": "auto", "tools": [5]}, "allows a number, which"),
                          ({"type": "allowed_tools", "mode": "off", "tools": [{"name": "days"}]}, "mode is off, expected auto or required")):
        status, _, body = s.request("POST", "/v1/chat/completions", {"messages": FOX, "tools": tools, "tool_choice": choice})
        assert status == 400 and words in body["error"]["message"], body
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "days"}}]}
    for seed in range(3):
        r = c.chat.completions.create(model="m", messages=FOX, tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, seed=seed, max_tokens=300)
        assert r.choices[0].message.tool_calls[0].function.name == "days", r
        r = c.responses.create(model="m", input=FOX, tools=[{"type": "function", **f} for f in (other, days)], max_output_tokens=300, temperature=1.2,
                               tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]})
        assert r.output[0].name == "clock", r
    with own("--chat-template", ROOT / "tests/data/templates/qwen35.jinja", "-c", 1024) as told:
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "days"}, {"name": "days"}]}
        first, only = (told.chat(tools=tools, **kw)["usage"] for kw in ({}, {"tool_choice": allowed}))  # what is cached of the prompt stays
        assert first["prompt_tokens"] == only["prompt_tokens"] == only["prompt_tokens_details"]["cached_tokens"] + 1, (first, only)
        for name, is_call in (("days", True), ("clock", False), ("no", False)):
            for text in (f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>', f"<tool_call><function={name}></function></tool_call>",
                         f'<tool_call>{{"name": "{name}", "arguments": {{}}}}'):
                message = told.chat(tools=tools, tool_choice=allowed, **mouth(text), enable_thinking=False, max_tokens=60)["choices"][0]["message"]
                assert bool(message.get("tool_calls")) == is_call and (is_call or message["content"] == text), message
        required = told.chat(tools=tools, tool_choice={**allowed, "mode": "required"}, max_tokens=300)
        assert required["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "days", required
    status, _, body = s.request("POST", "/v1/chat/completions", {"messages": FOX, "tools": [{"type": "custom", "custom": {"name": "x"}}]})
    assert status == 400 and body["error"]["message"] == "tools[0].type is custom, expected function", body
    tool = {"name": "clock", "input_schema": other["parameters"]}
    r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=250, tools=[tool], tool_choice={"type": "any"}, **COLD)
    assert r.stop_reason == "tool_use" and right("clock", r.content[-1].input), r


def test_a_required_call_beside_a_format():
    """The call is what comes; the format is one of texts. It is checked all the same."""
    s = server()
    days = {"name": "days", "parameters": {"type": "object", "properties": {"n": {"enum": [3]}}, "required": ["n"], "additionalProperties": False}}
    tools, schema = [{"type": "function", "function": days}], {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
    formats = ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    for choice in ("required", {"type": "function", "function": {"name": "days"}}):
        for format in formats:
            message = s.chat(tools=tools, tool_choice=choice, response_format=format, max_tokens=100)["choices"][0]["message"]
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"n": 3} and not message["content"], message
    assert json.loads(s.chat(tools=tools, response_format=formats[1], max_tokens=100)["choices"][0]["message"]["content"]) == {"a": 7}
    status, _, r = s.request("POST", "/v1/responses", {"input": "x", "tools": [{"type": "function", **days}], "tool_choice": "required", "max_output_tokens": 100,
                                                       "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}})
    assert status == 200 and [o["type"] for o in r["output"]] == ["function_call"] and json.loads(r["output"][0]["arguments"]) == {"n": 3}, r
    status, _, r = s.request("POST", "/v1/messages", {"messages": FOX, "tools": [{"name": "days", "input_schema": days["parameters"]}], "tool_choice": {"type": "any"},
                                                      "max_tokens": 100, "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert status == 200 and r["stop_reason"] == "tool_use" and r["content"][-1]["input"] == {"n": 3}, r
    for fields, words in ((dict(grammar='root ::= "x"'), "tool_choice: another format is given too"),
                          (dict(response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}}), "response_format: ")):
        status, _, body = s.request("POST", CHAT, {"messages": FOX, "tools": tools, "tool_choice": "required", **fields})
        assert status == 400 and words in body["error"]["message"], body


def test_calls_in_the_form_of_before_tools():
    """As histories have them that were kept: a call, which is rendered as such, and no empty message."""
    s = server()
    function, result = {"name": "weather", "arguments": '{"city": "Rome"}'}, {"role": "function", "name": "weather", "content": "sunny"}
    prompt = lambda *turns: s.request("POST", "/apply-template", {"messages": [*FOX, *turns], "tools": [{"type": "function", "function": WEATHER}]})[2]
    new = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
    template = "{% if tools %}tools\n{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}\n{% endfor %}"
    with own("--chat-template", template) as s:
        told = prompt(new, result)
        assert "assistant:[weather Rome]tool:sunny" in told["prompt"], told
        for old in ({"role": "assistant", "content": None, "function_call": function}, {"role": "assistant", "function_call": function, "tool_calls": []},
                    {"role": "assistant", "content": "", "function_call": {**function, "arguments": {"city": "Rome"}}, "tool_calls": None}):
            assert prompt(old, result) == told, old
        assert prompt({**new, "function_call": {"name": "other", "arguments": "{}"}}, result) == told
        assert prompt({"role": "assistant", "content": "x", "function_call": None}) == prompt({"role": "assistant", "content": "x"})
        for call, words in ((3, "messages[1].function_call is a number, expected an object with a name"), ({"arguments": "{}"}, "messages[1].function_call is without a name"),
                            ({"name": "f", "arguments": 3}, "messages[1].function_call.arguments is a number")):
            assert words in prompt({"role": "assistant", "function_call": call})["error"]["message"], call


def test_calls_without_arguments():
    """A call of a function without parameters, as models write them and histories keep them."""
    with own("--chat-template", ROOT / "tests/data/templates/qwen35.jinja") as s:
        def prompt(**function):
            call = {"id": "c", "type": "function", "function": {"name": "now", **function}}
            status, _, body = s.request("POST", "/apply-template", {"messages": [*FOX, {"role": "assistant", "content": "", "tool_calls": [call]}]})
            return body["prompt"] if status == 200 else body["error"]["message"]
        right = prompt(arguments="{}")
        assert "<function=now>\n</function>" in right, right
        for none in ({}, {"arguments": ""}, {"arguments": " \n"}, {"arguments": None}, {"arguments": {}}):
            assert prompt(**none) == right, (none, prompt(**none))
        assert "tool_calls[0].function.arguments is an array, expected a string" in prompt(arguments=[])
        item = {"type": "function_call", "call_id": "c", "name": "now", "arguments": ""}
        asked = {"input": [*FOX, item, {"type": "function_call_output", "call_id": "c", "output": "3"}], "max_output_tokens": 2}
        assert s.request("POST", "/v1/responses", asked)[0] == 200
    status, _, body = server().request("POST", CHAT, {"messages": [{"role": "user", "content": [{"text": "x"}]}]})
    assert status == 400 and body["error"]["message"] == "messages[0].content has a part that is without a type, expected an object with a type", body


def test_tools_for_templates_that_know_none():
    """SmolLM2's template ignores tools, and writes neither calls nor where a result belongs: they are text then."""
    tools = [{"type": "function", "function": WEATHER}]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    results = [{"role": "tool", "tool_call_id": "c1", "content": "sunny"}, {"role": "tool", "tool_call_id": "c2", "content": "rain"}]
    with own("--chat-template", ROOT / "tests/data/templates/smollm2.jinja", "-c", 1024) as s:
        def prompt(messages, **fields):
            status, _, body = s.request("POST", "/tokenize", {"messages": messages, **fields})
            assert status == 200, body
            return s.request("POST", "/detokenize", {"tokens": body["tokens"]})[2]["content"]
        plain = prompt(FOX)
        listed = prompt(FOX, tools=tools)
        assert "<tools>" not in plain and '<tools>\n{"type":"function","function":{"name":"weather"' in listed and "small assistant" not in listed, listed
        own_system = prompt([{"role": "system", "content": "Be kind."}, *FOX], tools=tools)
        assert "Be kind.\n\n" in own_system and own_system.count("system") == 1 and "<tools>" in own_system, own_system
        # what comes after a call: the call as the model wrote it, and all results in one message
        after = prompt([*FOX, {"role": "assistant", "content": None, "tool_calls": [call, call]}, *results], tools=tools)
        assert after.count('<tool_call>\n{"name":"weather","arguments":{"city":"Rome"}}\n</tool_call>') == 2, after
        assert "user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response>" in after and "tool\nsunny" not in after, after
        assert s.chat(tools=tools, tool_choice="none")["usage"]["prompt_tokens"] == s.chat()["usage"]["prompt_tokens"]
        r = s.chat(tools=tools, tool_choice="required", max_tokens=200, temperature=0)
        assert r["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather", r
        turns = [*FOX, r["choices"][0]["message"], {**results[0], "tool_call_id": r["choices"][0]["message"]["tool_calls"][0]["id"]}]
        usage = s.chat(turns, tools=tools, max_tokens=2)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= r["usage"]["total_tokens"] - 2, (r["usage"], usage)


# Says how many tools there are, and no more: a context of 512 has no space for 150.
COUNTS_TOOLS = "{% if tools %}{{ tools | length }} tools\n{% endif %}{% for m in messages %}{{ m.content }}\n{% endfor %}"


def test_numbers_of_calls_are_exact():
    """To the last digit, in all APIs and where conversations are kept."""
    s = server()
    numbers = {"price": 0.1, "account": 1234567890.55, "place": 48.13715412345, "far": 1e300, "count": 123456789012345678}
    call, parameters = {"name": "pay", "arguments": numbers}, {"type": "object", "properties": {"account": {"maximum": 1234567890.55}}}
    body = {"messages": FOX, "max_tokens": 300, "grammar": "root ::= " + json.dumps(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")}
    plain, owned = [{"type": "function", "function": {"name": "pay", "parameters": parameters}}], [{"name": "pay", "input_schema": parameters}]
    told = s.request("POST", "/v1/chat/completions", {**body, "tools": plain})[2]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert told == json.dumps(numbers, separators=(",", ":")).replace("1e+300", "1e300"), told
    assert s.request("POST", "/v1/messages", {**body, "tools": owned})[2]["content"][0]["input"] == numbers
    for is_streamed in False, True:
        text = s.request("POST", "/api/chat", {**body, "tools": plain, "stream": is_streamed, "options": {"num_predict": 300}})[2]
        lines = [json.loads(line) for line in text.splitlines()] if is_streamed else [text]
        assert [c["function"]["arguments"] for line in lines for c in line["message"].get("tool_calls", [])] == [numbers], text
    said = FOX + [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}]
    kept = s.request("POST", "/v1/snapshots", {"id": "numbers", "messages": said, "tools": plain})[0], s.request("GET", "/v1/snapshots/numbers")[2]
    assert kept[0] == 200 and kept[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == numbers and kept[1]["tools"] == plain, kept
    assert s.request("DELETE", "/v1/snapshots/numbers")[0] == 200
    r = s.request("POST", "/v1/responses", {"input": "x", "max_output_tokens": 1, "metadata": numbers, "tools": [{"type": "function", **plain[0]["function"]}]})[2]
    for told in r, s.request("GET", f"/v1/responses/{r['id']}")[2]:
        assert told["metadata"] == numbers and told["tools"][0]["parameters"] == parameters, told
    prompt = s.request("POST", "/apply-template", {"messages": said, "tools": plain})[2]["prompt"]
    assert prompt.count("1234567890.55") == 2 and "48.13715412345" in prompt, prompt


def test_many_tools():
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {"enum": [i]}}, "required": ["a"],
                                                                                "additionalProperties": False}}} for i in range(150)]
    with own("--chat-template", COUNTS_TOOLS, "-c", 512) as s:
        calls = openai_client(s).chat.completions.create(model="m", messages=FOX, tools=tools, tool_choice="required", max_tokens=100, temperature=1.5, n=4).choices
    whole = [x.message.tool_calls[0].function for x in calls if x.message.tool_calls]
    assert whole and all(json.loads(f.arguments) == {"a": int(f.name[1:])} for f in whole), calls


def test_as_many_allowed_tools_as_tools():
    """Compared by hash: each with each would be 10^10 names, which takes minutes."""
    s, n = server(), 100_000
    name = lambda i: "same_beginning_of_all_names_" + str(i)
    tools = [{"type": "function", "function": {"name": name(i)}} for i in range(n)]
    allowed = [{"type": "function", "name": name(i)} for i in reversed(range(n))]
    status, _, body = s.request("POST", CHAT, {"messages": FOX, "tools": tools, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [*allowed, {"name": "other"}]}})
    assert status == 400 and "tool_choice allows other, which is not among the tools" in body["error"]["message"], body


def test_schemas():
    s = server()
    schema = {"type": "object", "properties": {"kind": {"enum": ["fox", "cat"]}, "age": {"type": "integer", "minimum": 0, "maximum": 20}},
              "required": ["kind", "age"], "additionalProperties": False}
    good = lambda text: json.loads(text)["kind"] in ("fox", "cat") and 0 <= json.loads(text)["age"] <= 20
    r = openai_client(s).chat.completions.create(model="m", messages=FOX, n=3, temperature=1.3, max_tokens=400, seed=1,
                                                 response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert all(good(x.message.content) and x.finish_reason == "stop" for x in r.choices), r
    assert good(ollama_client(s).chat(model="m", messages=FOX, format=schema).message.content)
    r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=250,
                                            extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert good(r.content[0].text), r
    status, _, body = s.request("POST", "/v1/chat/completions", {"messages": FOX, "response_format": {
        "type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}})
    assert status == 400 and body["error"]["param"] == "response_format", body


def test_tools_anthropic_and_ollama():
    s = server()
    c = anthropic_client(s)
    tool = {"name": "weather", "description": "x", "input_schema": WEATHER["parameters"]}
    args = dict(model="m", messages=FOX, max_tokens=200, tools=[tool], extra_body=mouth("Look.\n" + FORMS["qwen35"]))
    r = c.messages.create(**args)
    assert [b.type for b in r.content] == ["text", "tool_use"] and r.stop_reason == "tool_use", r
    assert r.content[1].input == RIGHT and r.content[1].name == "weather" and r.content[0].text == "Look."
    with c.messages.stream(**args) as stream_:
        last = stream_.get_final_message()
    assert [b.type for b in last.content] == ["text", "tool_use"] and last.content[1].input == RIGHT and last.stop_reason == "tool_use"
    turns = FOX + [{"role": "assistant", "content": [b.to_dict() for b in r.content]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": r.content[1].id, "content": [{"type": "text", "text": "sunny"}]}]}]
    again = c.messages.create(model="m", messages=turns, max_tokens=2, tools=[tool])
    assert again.usage.cache_read_input_tokens > 30, again.usage
    for streamed in (False, True):
        status, _, body = s.request("POST", "/api/chat", {"messages": FOX, "tools": [{"type": "function", "function": WEATHER}], "stream": streamed,
                                                         **mouth(FORMS["hermes"])})
        lines = [json.loads(x) for x in body.splitlines()] if streamed else [body]
        calls = [t for x in lines for t in x["message"].get("tool_calls", [])]
        assert calls == [{"function": {"name": "weather", "arguments": RIGHT}}], lines


def test_openai_completions():
    c = openai_client(server())
    r = c.completions.create(model="m", prompt="Once upon a time", max_tokens=10, temperature=0)
    assert r.choices[0].text.startswith(",") and r.usage.completion_tokens == 10 and r.choices[0].finish_reason == "length", r
    ids = server().request("POST", "/tokenize", {"content": "Once upon a time"})[2]["tokens"]
    several = c.completions.create(model="m", prompt=["Once upon a time", "The fox"], n=2, max_tokens=10, temperature=0)
    assert [x.index for x in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == r.choices[0].text != several.choices[2].text
    assert c.completions.create(model="m", prompt=ids, max_tokens=10, temperature=0).choices[0].text == r.choices[0].text
    assert c.completions.create(model="m", prompt=[ids], max_tokens=10, temperature=0).choices[0].text == r.choices[0].text
    echo = c.completions.create(model="m", prompt="Once upon a time", echo=True, max_tokens=10, temperature=0)
    assert echo.choices[0].text == "Once upon a time" + r.choices[0].text
    streamed = c.completions.create(model="m", prompt="Once upon a time", max_tokens=10, temperature=0, stream=True, echo=True)
    assert "".join(x.choices[0].text for x in streamed) == echo.choices[0].text
    lp = c.completions.create(model="m", prompt="Once upon a time", max_tokens=4, temperature=0, logprobs=2).choices[0]
    assert "".join(lp.logprobs.tokens) == lp.text and lp.logprobs.text_offset[0] == 0 and len(lp.logprobs.top_logprobs[0]) == 2
    limits = [c.completions.create(model="m", prompt="Once upon a time", stop=["\n"], temperature=0, **most) for most in ({}, {"max_tokens": -1})]
    assert [x.choices[0].finish_reason for x in limits] == ["length", "stop"] and server().chat(max_tokens=-1, stop=["."])["choices"][0]["finish_reason"] == "stop", limits
    for n in (0, 1):  # the token that was sampled is always among them
        lp = c.completions.create(model="m", prompt="Once", max_tokens=1, logprobs=n, extra_body={"grammar": 'root ::= "z"'}).choices[0].logprobs
        assert len(lp.top_logprobs[0]) == n + 1 and lp.top_logprobs[0]["z"] == lp.token_logprobs[0], lp
    for prompt, words in (("", "no tokens"), ([], "prompt is empty"), ({}, "prompt is an object"), ([[]], "prompt has an empty array"),
                          ([["x"]], "prompt has a token that is a string"), ([[[1]]], "prompt has a token that is an array"),
                          ([99999999], "outside the vocabulary"), ([1, "x", {}], "a token that is an object"), (["x", 1.5], "prompt has a number")):
        status, _, body = server().request("POST", "/v1/completions", {"prompt": prompt})
        assert status == 400 and words in body["error"]["message"], (prompt, body)


def test_prompts_of_tokens_and_texts():
    """As llama.cpp's server takes them: control tokens are parsed in texts, BOS is added before a first text alone."""
    s = server()
    ids = lambda text: s.request("POST", "/tokenize", {"content": text, "parse_special": True})[2]["tokens"]
    parts = [ids("Once"), " upon", ids(" a"), " time<|im_end|>"]
    mixed = [x for part in parts for x in (part if isinstance(part, list) else [part])]
    whole = [x for part in parts for x in (part if isinstance(part, list) else ids(part))]
    for prompt, same in ((mixed, whole), ([" upon", *mixed], ids(" upon") + whole), ([mixed, "fox"], [whole, "fox"]), ([["fox", 5], [5]], [ids("fox") + [5], [5]])):
        given, expected = (s.request("POST", "/v1/completions", {"prompt": p, "max_tokens": 8, "temperature": 0, "echo": True})[2] for p in (prompt, same))
        assert given["choices"] == expected["choices"] and given["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"], (given, expected)
    status, _, body = s.request("POST", "/v1/completions", {"prompt": [5, "fox " * 100000]})
    assert status == 400 and "the prompt is too long" in body["error"]["message"], body


def test_echo_with_logprobs():
    s = server()
    c = openai_client(s)
    start = s.request("POST", "/tokenize", {"content": "Once upon a time", "bos": True})[2]["tokens"]
    made = c.completions.create(model="m", prompt=start, max_tokens=10, temperature=0, logprobs=3).choices[0]
    ids = s.request("POST", "/tokenize", {"content": "Once upon a time" + made.text, "bos": True})[2]["tokens"]
    assert len(ids) == len(start) + 10
    for given in (ids, "Once upon a time" + made.text):
        r = c.completions.create(model="m", prompt=given, max_tokens=0, echo=True, logprobs=3)
        told, n = r.choices[0].logprobs, len(ids)
        assert r.choices[0].text == "Once upon a time" + made.text and r.usage.completion_tokens == r.timings["predicted_n"] == 0, r
        assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == n
        assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
        assert told.token_logprobs[-10:] == made.logprobs.token_logprobs and told.tokens[-10:] == made.logprobs.tokens  # bit for bit
        assert told.top_logprobs[-10:] == made.logprobs.top_logprobs and told.text_offset[0] == 0
        for token, at in zip(told.tokens, told.text_offset):
            assert r.choices[0].text[at:].startswith(token), (token, at)
    r = c.completions.create(model="m", prompt="\u6f22\u5b57 fox", max_tokens=0, echo=True, logprobs=0).choices[0]
    assert r.text[r.logprobs.text_offset[-1]:] == r.logprobs.tokens[-1], r  # characters, not bytes
    silent = dict(model="m", prompt=ids, max_tokens=0, echo=True, n=3)
    assert [x.text for x in c.completions.create(**silent).choices] == ["Once upon a time" + made.text] * 3
    args = dict(model="m", prompt=[ids[:7], ids], n=2, max_tokens=3, temperature=0, echo=True, logprobs=1)
    whole = c.completions.create(**args)
    assert [len(x.logprobs.tokens) for x in whole.choices] == [10, 10, len(ids) + 3, len(ids) + 3]
    assert whole.choices[2].logprobs == whole.choices[3].logprobs and whole.choices[2].logprobs.token_logprobs[-13:-3] == made.logprobs.token_logprobs
    texts, tokens, values, offsets = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)], [[] for _ in range(4)]
    for chunk in c.completions.create(**args, stream=True):
        for x in chunk.choices:
            texts[x.index] += x.text
            tokens[x.index] += x.logprobs.tokens
            values[x.index] += x.logprobs.token_logprobs
            offsets[x.index] += x.logprobs.text_offset
    for x in whole.choices:
        i = x.index
        assert (texts[i], tokens[i], values[i], offsets[i]) == (x.text, x.logprobs.tokens, x.logprobs.token_logprobs, x.logprobs.text_offset), x


def test_long_echoes_in_streams():
    """Written in the background: the same log probabilities as in one piece, in the right order, also beside other answers and where the client goes away."""
    with own("-c", 2048) as s:
        body = {"prompt": [[(i * k) % 3000 + 300 for i in range(1500)] for k in (1, 2)], "max_tokens": 30, "ignore_eos": True, "temperature": 0, "echo": True, "logprobs": 20}
        other, r = stream(s, "/v1/chat/completions", {"messages": FOX, "stream": True, "ignore_eos": True, "max_tokens": 1500, "temperature": 0})
        status, _, whole = s.request("POST", "/v1/completions", body)
        assert status == 200, whole
        status, _, text = s.request("POST", "/v1/completions", {**body, "stream": True})
        texts, told = [""] * 2, [{}, {}]
        for line in text.splitlines():
            for x in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
                texts[x["index"]] += x["text"]
                for key, values in (x["logprobs"] or {}).items():
                    told[x["index"]].setdefault(key, []).extend(values)
        assert text.endswith("data: [DONE]\n\n"), text[-200:]
        for x in whole["choices"]:
            assert texts[x["index"]] == x["text"] and told[x["index"]] == x["logprobs"], x["index"]
        gone, _ = stream(s, "/v1/completions", {**body, "stream": True})
        gone.sock.shutdown(socket.SHUT_RDWR)
        gone.close()
        assert r.read().rstrip().endswith(b"data: [DONE]")
        other.close()
        s.wait_until_idle()


def test_echo_of_more_than_there_is_memory_for():
    """A few MB of tokens would come back as gigabytes."""
    with own("--queue", 2000) as s:
        for more in ({"prompt": [[300] * 2000] * 60, "logprobs": 20}, {"prompt": [[300] * 2000] * 40, "logprobs": 1, "n": 16}):
            status, _, body = s.request("POST", "/v1/completions", {"max_tokens": 0, "echo": True, **more})
            assert status == 400 and "log probabilities of prompts are asked for, expected at most 2097152: fewer prompts" in body["error"]["message"], body
            assert body["error"]["param"] == "logprobs", body
        assert s.request("POST", "/v1/completions", {"max_tokens": 0, "echo": True, "prompt": [[300] * 20] * 60, "logprobs": 20})[0] == 200


def test_logprobs_of_parts_of_characters():
    r = openai_client(server()).chat.completions.create(model="m", messages=FOX, logprobs=True, top_logprobs=1, extra_body={"grammar": 'root ::= "a\U0001f98a漢"'})
    told = r.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in told) == "a\U0001f98a漢".encode() and len(told) > 3, told


def test_tools_whose_parameters_refer_to_themselves():
    with own("--chat-template", COUNTS_TOOLS, "-c", 512) as s:
        c = openai_client(s)
        parameters = {"$defs": {"zone": {"enum": ["UTC", "CET"]}, "pair": {"type": "object", "properties": {"a": {"$ref": "#/$defs/zone"}}, "required": ["a"],
                                                                          "additionalProperties": False}},
                      "type": "object", "properties": {"p": {"$ref": "#/$defs/pair"}}, "required": ["p"], "additionalProperties": False}
        other = {**parameters, "$defs": {**parameters["$defs"], "zone": {"enum": ["EST"]}}}
        tools = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in (("clock", parameters), ("watch", other))]
        right = lambda call: json.loads(call.function.arguments)["p"]["a"] in (("UTC", "CET") if call.function.name == "clock" else ("EST",))
        for choice in ("required", {"type": "function", "function": {"name": "watch"}}, {"type": "function", "function": {"name": "clock"}}):
            r = c.chat.completions.create(model="m", messages=FOX, tools=tools, tool_choice=choice, max_tokens=100).choices[0].message
            assert right(r.tool_calls[0]), r
        tool = {"name": "clock", "input_schema": parameters}
        r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=100, tools=[tool], tool_choice={"type": "any"})
        assert r.content[-1].input["p"]["a"] in ("UTC", "CET"), r
        lost = {"type": "object", "properties": {"x": {"$ref": "#/$defs/no"}}}
        status, _, body = s.request("POST", "/v1/chat/completions", {"messages": FOX, "tool_choice": "required",
                                                                    "tools": [{"type": "function", "function": {"name": "f", "parameters": lost}}]})
        assert status == 400 and "leads to no schema" in body["error"]["message"], body


def test_llama_completion():
    """What llama.cpp's own clients send and read."""
    s = server()
    ask = lambda **fields: s.request("POST", "/completion", {"prompt": "Once upon a time", "temperature": 0, "n_predict": 8, **fields})
    status, _, whole = ask()
    usual = s.request("POST", "/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8})[2]
    assert status == 200 and whole["content"] == usual["choices"][0]["text"] and whole["stop"] is True, whole
    assert whole["stop_type"] == "limit" and whole["tokens_predicted"] == 8 and whole["tokens_evaluated"] == usual["usage"]["prompt_tokens"], whole
    assert whole["timings"]["predicted_n"] == 8 and whole["timings"]["predicted_per_token_ms"] > 0 and whole["tokens"] == [], whole

    assert whole["prompt"] == "Once upon a time" and whole["tokens_cached"] == whole["tokens_evaluated"] + 7, whole
    assert whole["has_new_line"] is False and ask(grammar='root ::= "a\\nb"')[2]["has_new_line"] is True
    again = ask()[2]
    assert again["tokens_cached"] == whole["tokens_cached"] and ask(prompt="<|im_end|> é")[2]["prompt"] == "<|im_end|> é", again

    def chunks_of(**fields):
        _, r = stream(s, "/completion", {"prompt": "Once upon a time", "temperature": 0, "n_predict": 8, "stream": True, **fields})
        return [json.loads(line[6:]) for line in r.read().decode().split("\n\n") if line]

    chunks = chunks_of(n_probs=2)
    assert "".join(c["content"] for c in chunks) == whole["content"] and [c["stop"] for c in chunks] == [False] * (len(chunks) - 1) + [True], chunks
    ids = sum((c["tokens"] for c in chunks), [])
    assert s.request("POST", "/detokenize", {"tokens": ids})[2]["content"] == whole["content"], ids
    assert ask(return_tokens=True)[2]["tokens"] == sum((c["tokens"] for c in chunks_of()), []) == ids
    # a stop text that begins inside of a token whose text was held back, and ends in the next one
    held = chunks_of(grammar='root ::= "aaab"', stop=["aab"], n_probs=1)
    assert "".join(c["content"] for c in held) == "a" and sum(len(c["tokens"]) for c in held) == held[-1]["tokens_predicted"], held
    probs = sum((c.get("completion_probabilities", []) for c in chunks), [])
    assert [p["id"] for p in probs] == ids and all(p["top_logprobs"][0]["id"] == p["id"] and len(p["top_logprobs"]) == 2 for p in probs), probs
    word = whole["content"].split()[2]
    stopped = ask(stop=[word])[2]
    assert stopped["stop_type"] == "word" and stopped["stopping_word"] == word and stopped["content"] == whole["content"].split(word)[0], stopped
    assert all(r["tokens_cached"] == r["tokens_evaluated"] + r["tokens_predicted"] - 1 for r in (ask(stop=stop, n_predict=60)[2] for stop in "aeinst"))
    assert ask(stop=[f"Speaker {i}:" for i in range(63)] + [word])[2]["stopping_word"] == word
    many = ask(n_probs=100)[2]["completion_probabilities"][0]["top_logprobs"]
    assert len({p["id"] for p in many}) == 100 and many == sorted(many, key=lambda p: -p["logprob"]), many
    assert ask(temperature=-1, repeat_penalty=0)[2]["content"] == whole["content"]  # off
    only = ask(n_predict=0)[2]
    assert only["content"] == "" and only["tokens_predicted"] == 0 and only["stop_type"] == "limit" and only["tokens_cached"] == only["tokens_evaluated"], only
    assert ask(n_predict=0, stream=True)[2].count('"stop":true') == 1
    several = ask(prompt=["Once", [1, 2, 3]], n_predict=2)[2]
    assert several[0]["prompt"] == "Once" and several[1]["tokens_cached"] == 4, several
    assert [x["index"] for x in several] == [0, 1] and [x["tokens_evaluated"] for x in several] == [1, 3], several
    for field in ("n", "n_cmpl"):
        several = ask(temperature=1.5, seed=7, **{field: 3})[2]
        assert [x["index"] for x in several] == [0, 1, 2] and several[0]["content"] == ask(temperature=1.5, seed=7)[2]["content"], several
        again = [ask(temperature=1.5, seed=x["generation_settings"]["seed"])[2]["content"] for x in several]
        assert again == [x["content"] for x in several], (again, several)
    drawn = {x["generation_settings"]["seed"]: x["content"] for x in (ask(temperature=1.5, **given)[2] for given in ({}, {"seed": -1}, {"seed": 2**32 - 1}))}
    assert len(drawn) == 3 and all(0 <= seed < 2**31 and ask(temperature=1.5, seed=seed)[2]["content"] == text for seed, text in drawn.items()), drawn
    assert ask(temperature=1.5, seed=7)[2]["content"] == ask(temperature=1.5, seed=7)[2]["content"]
    number = ask(json_schema={"type": "integer", "minimum": 10, "maximum": 99}, grammar="", n_predict=-1)[2]
    assert number["content"].strip().isdigit() and number["stop_type"] == "eos", number
    named = ask(response_fields=["content", "timings/predicted_n", "generation_settings/temperature", "timings/no", "", "/"])[2]
    assert named == {"content": whole["content"], "timings/predicted_n": 8, "generation_settings/temperature": 0}, named
    first = s.request("POST", "/detokenize", {"tokens": ids[:1]})[2]["content"]
    for never in ([[ids[0], False]], [[ids[0], -100]], [[first, False]], {str(ids[0]): False}):
        assert ask(logit_bias=never, return_tokens=True)[2]["tokens"][0] != ids[0], never
    assert ask(logit_bias=[])[2]["content"] == whole["content"]
    for fields, words in ((dict(logit_bias=[3]), "logit_bias has a number at place 0, expected [token, bias]"),
                          (dict(response_fields=["content", 3]), "response_fields has a number, expected strings"),
                          (dict(logit_bias=[[8192, 1]]), "logit_bias has another id at place 0"), (dict(logit_bias=[[5]]), "logit_bias of 5 is missing"),
                          (dict(prompt=None), "prompt is null, expected a text"), (dict(n_predict=-3), "n_predict is -3, expected -2 or more"),
                          (dict(n_probs=101), "n_probs is 101, expected 0 to 100"), (dict(repeat_penalty=-1), "repeat_penalty is -1, expected"), (dict(stop=["x"] * 65), "stop has 65 texts, expected at most 64"), (dict(json_schema="x"), "json_schema is a string, expected an object"),
                          (dict(grammar='root ::= "x"', json_schema={}), "another format is given too"), (dict(image_data=[{"data": "aGk=", "id": 1}]), "images are not supported"), (dict(prompt="fox " * 3000), "maximum context length is 512")):
        status, _, body = ask(**fields)
        assert status == 400 and words in body["error"]["message"], (fields, body)


def test_llama_completion_of_lines():
    """Limits of editors: how long an answer may take, and how far its lines are indented."""
    s = server()

    def said(words, **fields):  # whole and streamed
        body = {"prompt": "Once", "temperature": 0, "n_predict": 100, "grammar": f"root ::= {json.dumps(words)}", "n_probs": 1, **fields}
        whole = s.request("POST", "/completion", body)[2]
        _, r = stream(s, "/completion", {**body, "stream": True})
        chunks = [json.loads(line[6:]) for line in r.read().decode().split("\n\n") if line]
        assert "".join(c["content"] for c in chunks) == whole["content"] and chunks[-1]["stop_type"] == whole["stop_type"], (whole, chunks)
        of_chunks = sum((c.get("completion_probabilities", []) for c in chunks), [])
        assert "".join(p["token"] for p in of_chunks).startswith(whole["content"]) and of_chunks == whole["completion_probabilities"], (whole, chunks)
        return whole["content"], whole["stop_type"]

    words = "a\n  b\n\t c\n d\n  e"
    assert said(words, n_indent=2) == ("a\n  b\n\t c\n", "limit")
    assert said(words, n_indent=1) == said(words, n_indent=0) == said(words) == (words, "eos")
    assert said(words, n_indent=3) == said("a\n\n   b", n_indent=3) == ("a\n", "limit")
    assert said("a\n  ", n_indent=3) == ("a\n  ", "eos") and said("a", n_indent=3) == ("a", "eos")
    assert said(words, n_indent=2, stop=["b"]) == ("a\n  ", "word")
    for ms in (1, -1, 100000):
        r = s.request("POST", "/completion", {"prompt": "Once", "n_predict": 60, "t_max_predict_ms": ms, "grammar": 'root ::= ("a" | "\\n"){200}',
                                              "logit_bias": [["\n", 5]]})[2]
        assert r["stop_type"] == "limit" and (r["content"].endswith("\n") and r["tokens_predicted"] < 60 if ms == 1 else r["tokens_predicted"] == 60), r
    r = s.request("POST", "/completion", {"prompt": "Once", "n_predict": 60, "t_max_predict_ms": 1, "grammar": 'root ::= "a"{200}'})[2]
    assert r["tokens_predicted"] == 60, r
    for fields, words in ((dict(n_indent=-1), "n_indent is -1, expected 0 or more"), (dict(t_max_predict_ms="x"), "t_max_predict_ms is a string, expected a whole number")):
        status, _, body = s.request("POST", "/completion", {"prompt": "Once", **fields})
        assert status == 400 and words in body["error"]["message"], (fields, body)


def test_llama_props_and_template():
    s = server()
    props = s.request("GET", "/props")[2]
    assert props["default_generation_settings"]["n_ctx"] == 512 and props["total_slots"] >= 1 and props["eos_token"] == "<|im_end|>", props
    assert props["chat_template"] == s.request("POST", "/api/show", {"model": "m"})[2]["template"] and props["model_alias"] == SHIPPED.stem
    turns = [{"role": "user", "content": "Hi <|im_end|> there"}]
    prompt = s.request("POST", "/apply-template", {"messages": turns})[2]["prompt"]
    assert prompt == "<|im_start|>user\nHi <|im_end|> there<|im_end|>\n<|im_start|>assistant\n", prompt
    assert s.request("POST", "/apply-template", {})[0] == 400
    with own("--api-key", "secret") as other:
        assert other.request("GET", "/props")[0] == other.request("POST", "/completion", {"prompt": "a"})[0] == 401


def test_tokenize_and_back():
    s = server()
    for text in ("Once upon a time", "", "é ü 漢字 \U0001f98a", "a\0b", "<|im_end|>"):
        if text:
            ids = s.request("POST", "/tokenize", {"content": text})[2]["tokens"]
            assert s.request("POST", "/detokenize", {"tokens": ids})[2]["content"] == text
    assert s.request("POST", "/tokenize", {"content": "<|im_end|>"})[2] == {"tokens": [2], "count": 1}
    for field in ("special", "parse_special"):
        assert s.request("POST", "/tokenize", {"content": "<|im_end|>", field: True})[2]["count"] == 1
        assert s.request("POST", "/tokenize", {"content": "<|im_end|>", field: False})[2]["count"] > 1
    assert [s.request("POST", "/detokenize", {"tokens": [2], **more})[2]["content"] for more in ({}, {"special": False})] == ["<|im_end|>", ""]
    pieces = s.request("POST", "/tokenize", {"content": "<|im_end|> fox é", "with_pieces": True})[2]["tokens"]
    assert [p["piece"] for p in pieces[:2]] == ["<|im_end|>", " fox"] and pieces[0]["id"] == 2, pieces
    assert b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces) == "<|im_end|> fox é".encode(), pieces
    assert s.request("POST", "/tokenize", {"messages": FOX})[2]["count"] == s.chat()["usage"]["prompt_tokens"]
    assert s.request("POST", "/tokenize", {"content": ""})[2] == {"tokens": [], "count": 0}
    long = s.request("POST", "/tokenize", {"content": "A fox. " * 1000})[2]  # longer than the context
    assert len(long["tokens"]) == long["count"] > 1000 and s.request("POST", "/detokenize", {"tokens": long["tokens"]})[2]["content"] == "A fox. " * 1000
    assert s.request("POST", "/tokenize", {"content": 3})[0] == 400 and s.request("POST", "/detokenize", {"tokens": [-1]})[0] == 400
    assert s.request("POST", "/detokenize", {"tokens": []})[2] == {"content": ""}


# ---- the OpenAI API's responses -------------------------------------------------------------------

TOLD = ["response.created", "response.in_progress"]
MESSAGE = ["response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.done",
           "response.content_part.done", "response.output_item.done"]
CALL = ["response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done"]
TOOL = {"type": "function", "strict": False, **WEATHER}


def once(words):
    """The words without repetitions of the one before."""
    return [w for i, w in enumerate(words) if i == 0 or w != words[i - 1]]


def test_responses():
    s = server()
    c = openai_client(s)
    args = dict(model="m", input=FOX[0]["content"], max_output_tokens=12, temperature=0, metadata={"a": "b"})
    r = c.responses.create(**args)
    right = s.chat(max_tokens=12)
    assert r.output_text == right["choices"][0]["message"]["content"] and r.status == "incomplete", r
    assert r.incomplete_details.reason == "max_output_tokens" and r.metadata == {"a": "b"} and r.model == SHIPPED.stem
    assert r.usage.input_tokens == right["usage"]["prompt_tokens"] and r.usage.output_tokens == 12
    assert c.responses.create(**args).usage.input_tokens_details.cached_tokens > 0
    assert c.responses.input_tokens.count(model="m", input=args["input"]).input_tokens == r.usage.input_tokens
    r = c.responses.create(model="m", input="Who are you?", temperature=0)
    assert r.status == "completed" and r.incomplete_details is None and r.error is None, r
    plain = [{"role": "system", "content": "You tell\n\nstories."}, FOX[0]]
    right = s.chat(plain)["choices"][0]["message"]["content"]
    for given in (dict(instructions="You tell\n\nstories.", input=FOX), dict(input=plain), dict(instructions="You tell", input=[{"role": "developer",
                  "content": "stories."}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": FOX[0]["content"]}]}])):
        assert c.responses.create(model="m", max_output_tokens=8, temperature=0, **given).output_text == right, given


def test_responses_stream():
    c = openai_client(server())
    args = dict(model="m", input=FOX, max_output_tokens=20, temperature=0.7, top_p=0.9, extra_body={"seed": 5})
    whole = c.responses.create(**args)
    told = list(c.responses.create(**args, stream=True))
    assert once([e.type for e in told]) == TOLD + MESSAGE + ["response.incomplete"], [e.type for e in told]
    assert [e.sequence_number for e in told] == list(range(len(told)))
    assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == whole.output_text == told[-1].response.output_text
    assert told[-1].response.usage.output_tokens == 20 and told[0].response.status == "in_progress" and not told[0].response.output
    with c.responses.stream(**args) as stream_:
        texts = [e.snapshot for e in stream_ if e.type == "response.output_text.delta"]
    assert texts[-1] == whole.output_text
    with c.responses.stream(model="m", input="Who are you?", temperature=0) as stream_:
        last = stream_.get_final_response()
    assert last.status == "completed" and last.output_text == c.responses.create(model="m", input="Who are you?", temperature=0).output_text
    told = list(c.responses.create(**args, stream=True, include=["message.output_text.logprobs"], top_logprobs=2))
    part = told[-1].response.output[0].content[0]
    assert "".join(t.token for t in part.logprobs) == part.text == whole.output_text and len(part.logprobs[0].top_logprobs) == 2, part
    assert [t.token for e in told if e.type == "response.output_text.delta" for t in e.logprobs] == [t.token for t in part.logprobs]


def test_responses_tools():
    c = openai_client(server())
    args = dict(model="m", input=FOX, tools=[TOOL])
    r = c.responses.create(**args, extra_body=mouth("Let me look.\n" + FORMS["qwen35"]))
    assert [o.type for o in r.output] == ["message", "function_call"] and r.output_text == "Let me look." and r.status == "completed", r
    call = r.output[1]
    assert call.name == "weather" and json.loads(call.arguments) == RIGHT and call.call_id, call
    told = list(c.responses.create(**args, stream=True, extra_body=mouth("Let me look.\n" + FORMS["qwen35"])))
    assert once([e.type for e in told]) == TOLD + MESSAGE + CALL + ["response.completed"], [e.type for e in told]
    assert [e.output_index for e in told if e.type == "response.output_item.done"] == [0, 1]
    assert json.loads(told[-1].response.output[1].arguments) == RIGHT
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = c.responses.create(model="m", tools=[TOOL], input=FOX + [o.to_dict() for o in r.output] + [result], max_output_tokens=2)
    kept = c.responses.create(model="m", tools=[TOOL], input=[result], previous_response_id=r.id, max_output_tokens=2)
    assert again.usage.input_tokens_details.cached_tokens > 30 and again.usage.input_tokens == kept.usage.input_tokens, (again.usage, kept.usage)
    for choice in ("required", {"type": "function", "name": "weather"}):
        strict = {**TOOL, "parameters": {**WEATHER["parameters"], "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
                                         "required": ["days"], "additionalProperties": False}}
        r = c.responses.create(model="m", input=FOX, tools=[strict], tool_choice=choice, max_output_tokens=200)
        assert [o.type for o in r.output] == ["function_call"] and 1 <= json.loads(r.output[0].arguments)["days"] <= 9, r
    r = c.responses.create(**args, tool_choice="none", extra_body=mouth(FORMS["hermes"]))
    assert r.output_text == FORMS["hermes"], r
    # two turns' items of one assistant
    turns = [FOX[0], {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
             {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
             {"type": "function_call", "call_id": "2", "name": "weather", "arguments": "no JSON"},
             {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "sunny"}]},
             {"type": "function_call_output", "call_id": "2", "output": "rain"}]
    assert c.responses.create(model="m", tools=[TOOL], input=turns, max_output_tokens=2).usage.output_tokens > 0


def test_responses_formats():
    import pydantic

    class Animal(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        age: int = pydantic.Field(ge=1, le=20)
        wild: bool

    c = openai_client(server())
    r = c.responses.parse(model="m", input=FOX, text_format=Animal, max_output_tokens=200)
    assert 1 <= r.output_parsed.age <= 20 and isinstance(r.output_parsed.wild, bool), r
    with c.responses.stream(model="m", input=FOX, text_format=Animal, max_output_tokens=200) as stream_:
        assert 1 <= stream_.get_final_response().output_parsed.age <= 20
    r = c.responses.create(model="m", input=FOX, text={"format": {"type": "json_object"}}, max_output_tokens=20)
    assert r.output_text.startswith("{"), r


def test_responses_are_stored():
    s = server()
    c = openai_client(s)
    first = c.responses.create(model="m", input=FOX, instructions="Be kind.", max_output_tokens=10, temperature=0)
    assert c.responses.retrieve(first.id).to_dict() == first.to_dict()
    args = dict(model="m", input="And then?", instructions="Be kind.", max_output_tokens=10, temperature=0)
    second = c.responses.create(**args, previous_response_id=first.id)
    turns = [{"role": "system", "content": "Be kind."}, FOX[0], {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And then?"}]
    right = s.chat(turns, max_tokens=10)
    assert second.output_text == right["choices"][0]["message"]["content"] and second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2, (first.usage, second.usage)
    third = c.responses.create(**{**args, "input": "Go on."}, previous_response_id=second.id, stream=True)
    third = list(third)[-1].response
    assert third.usage.input_tokens > second.usage.input_tokens and c.responses.retrieve(third.id).output_text == third.output_text
    c.responses.delete(first.id)
    unstored = c.responses.create(**args, store=False)
    for id in (first.id, unstored.id, "resp_never"):
        try:
            c.responses.retrieve(id)
            assert False, f"{id} is there"
        except openai.NotFoundError as e:
            assert "no response" in e.body["message"]
        try:
            c.responses.create(**args, previous_response_id=id)
            assert False, f"{id} is taken"
        except openai.BadRequestError as e:
            assert e.code == "previous_response_not_found" and e.param == "previous_response_id", e.body
    for path in ("/v1/responses/..%2f..%2fetc", "/v1/responses/", "/v1/responses/a.b", "/v1/responses/" + "a" * 65, "/v1/responses/a/b"):
        assert s.request("GET", path)[0] == 404, path


def test_responses_input_items():
    s = server()
    c = openai_client(s)
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'}
    given = [{"role": "user", "content": "Rome?"}, {"role": "assistant", "content": "I look."}, call, {"type": "function_call_output", "call_id": "c1", "output": "wet"}]
    first = c.responses.create(model="m", input=given, max_output_tokens=8, temperature=0, instructions="Be kind.")
    second = c.responses.create(model="m", input="And \U0001f98a?", max_output_tokens=8, previous_response_id=first.id)
    kinds = ["message", "message", "function_call", "function_call_output", "message", "message"]
    for limit in (None, 1, 2, 6, 100):  # the client asks for page after page
        items = list(c.responses.input_items.list(second.id, order="asc", **({"limit": limit} if limit else {})))
        assert [i.type for i in items] == kinds and len({i.id for i in items}) == 6, items
        assert [(i.role, i.content[0].type, i.content[0].text) for i in items if i.type == "message"] == [
            ("user", "input_text", "Rome?"), ("assistant", "output_text", "I look."), ("assistant", "output_text", first.output_text),
            ("user", "input_text", "And \U0001f98a?")], items
        assert [i.content[0].to_dict().get("annotations") for i in items if i.type == "message"] == [None, [], [], None], items
        assert (items[2].name, items[2].arguments, items[2].call_id, items[3].output, items[3].call_id) == ("weather", '{"city":"Rome"}', "c1", "wet", "c1")
        assert [i.id for i in c.responses.input_items.list(second.id, **({"limit": limit} if limit else {}))] == [i.id for i in items][::-1]
    status, _, body = s.request("GET", f"/v1/responses/{first.id}?stream=true")
    assert status == 400 and "stream is true, expected false" in body["error"]["message"], body
    path = f"/v1/responses/{first.id}/input_items"
    assert len(s.request("GET", path)[2]["data"]) == 4 and not s.request("GET", path)[2]["has_more"]
    for query, words in (("limit=0", "limit is 0, expected 1 to 100"), ("limit=x", "limit is x"), ("limit=101", "limit is 101"), ("limit=" + "9" * 50, "limit is ?"),
                         ("order=up", "order is up"), ("after=msg_1", "after is msg_1, expected the id of an item"), ("after=" + "%ff" * 200, "after is ?")):
        status, _, body = s.request("GET", f"{path}?{query}")
        assert status == 400 and words in body["error"]["message"], body
    assert s.request("GET", "/v1/responses/resp_never/input_items")[0] == 404 and s.request("POST", path, {})[0] == 405


def test_responses_tell_logprobs_of_the_text():
    """Not those of a call between two texts, with either of them."""
    call = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    body = {"input": "x", "tools": [TOOL], "include": ["message.output_text.logprobs"], **mouth(f"Hi.{call} Bye.")}
    s = server()
    r = s.request("POST", "/v1/responses", body)[2]
    texts = [part for item in r["output"] if item["type"] == "message" for part in item["content"]]
    assert [t["text"] for t in texts] == ["Hi.", " Bye."] == ["".join(t["token"] for t in part["logprobs"]) for part in texts], texts
    lines = s.request("POST", "/v1/responses", {**body, "stream": True})[2].splitlines()
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    deltas = [t["token"] for e in told if e["type"] == "response.output_text.delta" for t in e["logprobs"]]
    assert "".join(deltas) == "Hi. Bye.", deltas


def test_responses_errors():
    s = server()
    for fields, words, param in (({}, "input is missing", "input"), ({"input": []}, "input is empty", "input"), ({"input": [3]}, "input[0] is a number", "input"),
                                 ({"input": [{"type": "computer_call"}]}, "input[0] is of type computer_call", "input"),
                                 ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "type input_image", "input"),
                                 ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]: a function_call has no", "input"),
                                 ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type is web_search", "tools"),
                                 ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type is 'xml'", "text"),
                                 ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": "no"}}}}, "text: ", "text"),
                                 ({"input": "x", "background": True}, "background is true", "background"),
                                 ({"input": "x", "conversation": "conv_1"}, "conversation is not supported", "conversation"),
                                 ({"input": "x", "metadata": 3}, "metadata is a number", "metadata"), ({"input": "x", "instructions": []}, "instructions is an array", "instructions"),
                                 ({"input": "x", "max_output_tokens": 0}, "max_output_tokens is 0", "max_output_tokens"),
                                 ({"input": [{"role": "robot", "content": "x"}], "instructions": "y"}, "input[0].role is 'robot'", "input"),
                                 ({"input": "x", "include": [3]}, "include has a number", "include"), ({"input": "x", "truncation": 3}, "truncation is a number", "truncation"),
                                 ({"input": "x", "stream_options": 3}, "stream_options is a number", "stream_options"),
                                 ({"input": "x", "top_logprobs": 3}, "top_logprobs is 3, expected include", "top_logprobs"),
                                 ({"input": "fox " * 3000}, "expected at most 511", None)):
        status, _, body = s.request("POST", "/v1/responses", fields)
        assert status == 400 and words in body["error"]["message"] and body["error"]["param"] == param, (fields, body)
    told = s.request("POST", "/v1/responses", {"input": "x", "max_output_tokens": 1, "temperature": 0.7})[2]
    assert told["temperature"] == 0.7 and told["top_p"] == 0.95, told  # not 0.699999988


def model_with(path, *words):
    """The story model, some of whose tokens are these words."""
    data = bytearray(SHIPPED.read_bytes())

    def array(name):  # where its values begin, and how many there are
        at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        return at + 16, struct.unpack_from("<Q", data, at + 8)[0]

    at, n = array(b"tokenizer.ggml.tokens")
    types, _ = array(b"tokenizer.ggml.token_type")
    places = {}
    for i in range(n):
        length, = struct.unpack_from("<Q", data, at)
        places.setdefault(length, []).append((i, at + 8))
        at += 8 + length
    for word in words:
        i, place = places[len(word)].pop()
        data[place:place + len(word)] = word
        struct.pack_into("<i", data, types + 4 * i, 4)  # defined by the user: never made of pieces
    path.write_bytes(data)
    return path


def thinking_model():
    """Has <think>, </think> and <tool_call>, and a template that begins to think."""
    path, template = model_with(TMP / "thinks.gguf", b"<think>", b"</think>", b"<tool_call>"), TMP / "thinks.jinja"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                        "<|im_start|>assistant\n<think>\n")
    return ["-m", path, "--chat-template", template]


def test_the_middle_of_a_text():
    """`suffix`, which editors send: the model's own tokens around both texts."""
    tags = b"<|fim_prefix|>", b"<|fim_suffix|>", b"<|fim_middle|>"
    text = {"prompt": "Once upon a", "suffix": " there was a fox."}
    with own("-m", model_with(TMP / "middle.gguf", *tags)) as s:
        before, after, middle = (t.decode() for t in tags)
        right = openai_client(s).completions.create(model="m", prompt=before + text["prompt"] + after + text["suffix"] + middle, max_tokens=8, temperature=0)
        ids = [s.request("POST", "/tokenize", {"content": t.decode(), "special": True})[2]["count"] for t in tags]
        assert ids == [1, 1, 1], ids
        r = openai_client(s).completions.create(model="m", **text, max_tokens=8, temperature=0)
        assert r.choices[0].text == right.choices[0].text and r.usage.prompt_tokens == right.usage.prompt_tokens, (r, right)
        g = ollama_client(s).generate(model="m", **text, options={"num_predict": 8, "temperature": 0})
        assert g.response == r.choices[0].text and g.prompt_eval_count == r.usage.prompt_tokens, g
        between = {"input_prefix": text["prompt"], "input_suffix": text["suffix"], "n_predict": 8, "temperature": 0}
        i = s.request("POST", "/infill", between)[2]
        assert i["content"] == r.choices[0].text and i["tokens_evaluated"] == r.usage.prompt_tokens and i["stop_type"] in ("limit", "eos"), i
        begun = s.request("POST", "/infill", {**between, "prompt": " time"})[2]
        assert begun["tokens_evaluated"] == i["tokens_evaluated"] + 1, begun
        written = s.request("POST", "/infill", {**between, "input_suffix": "<|im_end|>" + text["suffix"]})[2]  # plain text there
        assert written["tokens_evaluated"] > i["tokens_evaluated"] + 1, written
        tag = s.request("POST", "/infill", {**between, "input_prefix": before + text["prompt"]})[2]  # user-defined in the file
        assert tag["tokens_evaluated"] > i["tokens_evaluated"] + 1, tag
        status, _, body = s.request("POST", "/infill", {"input_prefix": 3})
        assert status == 400 and "input_prefix is a number, expected a string" in body["error"]["message"], body
        status, _, body = s.request("POST", "/v1/completions", {**text, "prompt": ["a", "b"]})
        assert status == 400 and "prompt is an array, expected a string before the suffix" in body["error"]["message"], body
    assert server().request("POST", "/infill", {"input_suffix": "x"})[0] == 400
    status, _, body = server().request("POST", "/v1/completions", text)
    assert status == 400 and "has no token <|fim_middle|>" in body["error"]["message"] and body["error"]["param"] == "suffix", body


def test_infill_with_other_files():
    """input_extra, as llama.cpp gives it to models, and texts longer than the context."""
    tags = b"<|fim_prefix|>", b"<|fim_suffix|>", b"<|fim_middle|>"
    files = [{"filename": "a.c", "text": "One fox."}, {"text": "Two foxes."}]
    between = {"input_prefix": "Once upon a", "input_suffix": " there was a fox.", "n_predict": 8, "temperature": 0}
    one = "<|fim_prefix|>Once upon a<|fim_suffix|> there was a fox.<|fim_middle|>"
    with own("-m", model_with(TMP / "files.gguf", *tags, b"<|repo_name|>", b"<|file_sep|>"), "-c", 512) as s:
        infill = lambda **fields: s.request("POST", "/infill", {**between, **fields})[2]
        complete = lambda prompt: s.request("POST", "/completion", {"prompt": prompt, "n_predict": 8, "temperature": 0})[2]
        same = lambda a, b: a["content"] == b["content"] and a["tokens_evaluated"] == b["tokens_evaluated"]
        right = complete("<|repo_name|>myproject\n<|file_sep|>a.c\nOne fox.<|file_sep|>tmp\nTwo foxes.<|file_sep|>filename\n" + one)
        assert same(infill(input_extra=files), right), (infill(input_extra=files), right)
        assert same(infill(input_extra=[]), complete(one)) and same(infill(input_extra=None), complete(one))
        many = infill(input_extra=[{"filename": f"{i}.c", "text": "A fox. " * 20} for i in range(30)])
        assert 300 < many["tokens_evaluated"] <= 512 - 8, many  # the last of them
        words = "It was a fox. " * 300
        long = infill(input_prefix="Gone. " + words, input_suffix=words + "Gone.", prompt=" time", input_extra=files)
        assert long["tokens_evaluated"] >= 512 - 8 - 1, long
        for fields in ({"input_prefix": words}, {"input_suffix": words}):
            assert infill(**fields)["tokens_evaluated"] >= 512 - 8 - 1, fields  # no room is left unused
        assert infill(input_prefix=words, n_predict=-1)["tokens_predicted"] > 0
        assert infill(input_prefix=words)["content"] == infill(input_prefix="Other. " + words)["content"]  # its end is kept
        status, _, body = s.request("POST", "/infill", {**between, "prompt": words})
        assert status == 400 and "context length is 512" in body["error"]["message"], body
        for extra, said in (({}, "input_extra is an object, expected an array"), (["a"], "input_extra has a string at place 0, expected objects"),
                            ([files[0], {"filename": "a"}], "input_extra[1].text is missing, expected a string"),
                            ([{"text": "", "filename": 3}], "input_extra[0].filename is a number, expected a string")):
            status, _, body = s.request("POST", "/infill", {**between, "input_extra": extra})
            assert status == 400 and body["error"]["message"] == said, (body, said)
    with own("-m", model_with(TMP / "snippets.gguf", *tags)) as s:
        a = s.request("POST", "/infill", {**between, "input_extra": files})[2]
        pieces = "\n\n--- snippet ---\n\n", "One fox.", "\n\n--- snippet ---\n\n", "Two foxes.", one
        ids = sum((s.request("POST", "/tokenize", {"content": piece})[2]["tokens"] for piece in pieces), [])
        b = s.request("POST", "/completion", {"prompt": ids, "n_predict": 8, "temperature": 0})[2]
        assert a["content"] == b["content"] and a["tokens_evaluated"] == len(ids), (a, b)


def test_infill_of_an_editor():
    """What llama.vim sends: the other files alone first, of which nothing is wanted but that they are cached; then the gap, at every key."""
    tags = b"<|fim_prefix|>", b"<|fim_suffix|>", b"<|fim_middle|>", b"<|repo_name|>", b"<|file_sep|>"
    files = [{"text": "One fox. " * 20, "time": 1.5, "filename": f"{i}.c"} for i in range(3)]
    first = {"id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": files, "prompt": "", "n_predict": 0, "temperature": 0.0, "stream": False,
             "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}
    names = ["content", "truncated", "tokens_cached", *(f"timings/{of}_{what}" for of in ("prompt", "predicted") for what in ("n", "ms", "per_token_ms", "per_second"))]
    with own("-m", model_with(TMP / "editor.gguf", *tags), "-c", 1024) as s:
        assert s.request("POST", "/infill", first)[2] == {}
        gap = {**first, "input_prefix": "A fox.\n" * 20, "input_suffix": "\nThe end." * 8, "n_predict": 16, "n_indent": 0, "top_k": 40, "top_p": 0.99,
               "samplers": ["top_k", "top_p", "infill"], "t_max_predict_ms": 500, "stop": [], "response_fields": [*names, "timings/cache_n"]}
        one, two = (s.request("POST", "/infill", {**gap, "prompt": prompt})[2] for prompt in ("Once", "Once upon"))
        assert set(one) == set(gap["response_fields"]) and one["content"] and one["truncated"] is False, one
        assert one["timings/cache_n"] > 150 and two["timings/prompt_n"] < 5 and one["tokens_cached"] > one["timings/cache_n"] + one["timings/prompt_n"], (one, two)


def test_thinking():
    with own(*thinking_model()) as s:
        extra = {"thinking_budget": 6, **mouth("Hi.")}
        chat = s.chat(**extra, max_tokens=40)
        thought, usage = chat["choices"][0]["message"]["reasoning_content"], chat["usage"]
        assert thought and chat["choices"][0]["message"]["content"] == "Hi." and usage["completion_tokens_details"]["reasoning_tokens"] >= 6, chat
        r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=40, thinking={"type": "enabled", "budget_tokens": 6}, extra_body=mouth("Hi."))
        assert [b.type for b in r.content] == ["thinking", "text"] and r.content[0].thinking == thought, r
        cut = dict(model="m", messages=FOX, max_tokens=3, thinking={"type": "enabled", "budget_tokens": 6})
        with anthropic_client(s).messages.stream(**cut) as stream:  # before the answer began
            blocks = [b.type for b in stream.get_final_message().content]
        assert blocks == [b.type for b in anthropic_client(s).messages.create(**cut).content] == ["thinking"], blocks
        told = s.chat(**extra, max_tokens=40, logprobs=True)
        assert "".join(t["token"] for t in told["choices"][0]["logprobs"]["content"]) == "Hi.", told
        long = {**extra, **mouth(" Hi there\n you")}
        told = s.chat(**long, max_tokens=40, logprobs=True)["choices"][0]
        assert "".join(t["token"] for t in told["logprobs"]["content"]) == " Hi there\n you" and told["message"]["content"] == "Hi there\n you", told
        assert s.chat(**long, max_tokens=40, stop=[" Hi there\n y"])["choices"][0]["message"]["content"] == ""
        assert s.chat(**long, max_tokens=40, stop=[" Hi there\n x"])["choices"][0]["message"]["content"] == "Hi there\n you"
        for stops in ([thought[2:5], "i."], [">", "\n", "i."]):  # they are for the answer, not for what is thought before it
            message = s.chat(**extra, max_tokens=40, stop=stops)["choices"][0]["message"]
            assert message["reasoning_content"] == thought and message["content"] == "H", (stops, message)
            r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=40, thinking={"type": "enabled", "budget_tokens": 6}, stop_sequences=stops,
                                                    extra_body=mouth("Hi."))
            assert r.content[1].text == "H" and r.stop_reason == "stop_sequence" and r.stop_sequence == "i.", r
        c = openai_client(s)
        args = dict(model="m", input=FOX, reasoning={"effort": "low"}, max_output_tokens=40, extra_body=extra)
        r = c.responses.create(**args)
        assert [o.type for o in r.output] == ["reasoning", "message"] and r.output_text == "Hi." and r.reasoning.effort == "low", r
        assert r.output[0].content[0].text == thought and r.usage.output_tokens_details.reasoning_tokens >= 6, r
        told = list(c.responses.create(**args, stream=True))
        assert once([e.type for e in told]) == TOLD + [e.replace("output_text", "reasoning_text") for e in MESSAGE] + MESSAGE + ["response.completed"]
        assert "".join(e.delta for e in told if e.type == "response.reasoning_text.delta") == thought
        again = c.responses.create(**{**args, "input": "And?"}, previous_response_id=r.id)
        assert again.usage.input_tokens_details.cached_tokens >= r.usage.total_tokens - 2, (r.usage, again.usage)


def test_thinking_that_is_cut_is_one_answer():
    """In its times, in what is counted, and at the end of the context."""
    with own(*thinking_model(), "-c", 1024) as s:
        t = s.chat(thinking_budget=200, max_tokens=220, ignore_eos=True)["timings"]
        assert t["prompt_ms"] > 0 and t["predicted_ms"] > 0 and t["predicted_per_second"] > 0 and t["predicted_n"] == 220, t
        s.wait_until_idle()
        names = "requests_total", "answers_total", "first_token_seconds_count", "answer_seconds_count"
        assert [s.metric(n) for n in names] == [1, 1, 1, 1], [s.metric(n) for n in names]
        said = [{"role": "user", "content": "fox" + " a" * 900}]
        missing = 1014 - s.chat(said, max_tokens=1)["usage"]["prompt_tokens"]
        for n in range(missing, missing + 9):
            r = s.chat([{"role": "user", "content": said[0]["content"] + " a" * n}], thinking_budget=6, max_tokens=100, ignore_eos=True)
            assert r["choices"][0]["finish_reason"] == "length", (r["usage"], r)


def test_a_format_leaves_tools_to_the_model():
    """With response_format and tools the model may call one instead of an answer in that format; a grammar is kept to."""
    with own(*thinking_model()) as s:
        call, = s.request("POST", "/tokenize", {"content": "<tool_call>", "special": True})[2]["tokens"]
        tools = [{"type": "function", "function": WEATHER}]
        wanted = {"logit_bias": {str(call): 100}, "thinking_budget": 0, "max_tokens": 12}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        said = lambda **kw: s.chat(**wanted, **kw)["choices"][0]["message"]["content"]
        for format_ in ({"type": "json_object"}, schema):
            assert said(response_format=format_, tools=tools).startswith("<tool_call>"), format_
            assert said(response_format=format_).startswith("{") and said(response_format=format_, tools=tools, tool_choice="none").startswith("{"), format_
            plain = s.chat(**{**wanted, "logit_bias": {}}, response_format=format_, tools=tools)["choices"][0]["message"]["content"]
            assert plain.startswith("{"), plain  # a tool is not called as such
        assert said(grammar='root ::= "x" | "y"', tools=tools) in ("x", "y")
        assert said(tools=tools).startswith("<tool_call>") and "<tool_call>" not in said(tools=tools, tool_choice="none")
        biased = s.request("POST", "/api/chat", {"messages": FOX, "stream": False, "format": SCHEMA, "tools": tools, "thinking_budget": 0,
                                                 "options": {"logit_bias": wanted["logit_bias"], "num_predict": 60}, "think": False})[2]
        assert biased["message"]["content"].startswith("<tool_call>"), biased


def test_thinking_with_real_templates():
    """Qwen3.5's template begins to think, Qwen3's leaves that to the model: on, off, with a budget, streamed, and in the next turn, in all APIs."""
    model = thinking_model()[1]
    for name in ("qwen35", "qwen3"):
        with own("-m", model, "--chat-template", ROOT / f"tests/data/templates/{name}.jinja", "-c", 1024) as s:
            think, = s.request("POST", "/tokenize", {"content": "<think>", "parse_special": True})[2]["tokens"][-1:]
            opens = {} if name == "qwen35" else {"logit_bias": {str(think): 100}}  # the model's part
            extra = {**mouth("Hi."), **opens, "thinking_budget": 6}
            plain = s.chat(**mouth("Hi."), reasoning_effort="none")
            for fields in ({"reasoning_effort": "none"}, {"enable_thinking": True}, {"tools": [{"type": "function", "function": WEATHER}]}):
                assert s.request("POST", "/tokenize", {"messages": FOX, **fields})[2]["count"] == s.chat(**fields)["usage"]["prompt_tokens"], fields
            ways = [s.chat(**mouth("Hi."), **off) for off in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}})]
            for chat in (plain, *ways):
                message = chat["choices"][0]["message"]
                assert message["content"] == "Hi." and not message.get("reasoning_content") and chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"], chat
            chat = s.chat(**extra, max_tokens=40)
            message, usage = chat["choices"][0]["message"], chat["usage"]
            thought = message["reasoning_content"]
            assert thought and message["content"] == "Hi." and 6 <= usage["completion_tokens_details"]["reasoning_tokens"] <= 12, chat
            for turn in (message, {"role": "assistant", "content": "Hi."}):  # templates strip what was thought; clients may too
                usage_2 = s.chat([*FOX, turn, {"role": "user", "content": "And?"}], max_tokens=4)["usage"]
                assert usage_2["prompt_tokens_details"]["cached_tokens"] >= usage["total_tokens"] - 2, (usage, usage_2)
            for switch in ({"enable_thinking": False}, {"reasoning_effort": "none"}, {"enable_thinking": True}, {"chat_template_kwargs": {"mood": 1}}):
                turns = [*FOX, message, {"role": "user", "content": "And?"}]  # the turns before stay as they were
                usage_2 = s.chat(turns, max_tokens=4, **switch)["usage"]
                assert usage_2["prompt_tokens_details"]["cached_tokens"] >= usage["total_tokens"] - 2, (switch, usage, usage_2)
            at_once = s.chat(**{**extra, "thinking_budget": 0}, max_tokens=40)["choices"][0]["message"]
            assert at_once["content"] == "Hi." and len(at_once.get("reasoning_content") or "") < len(thought), at_once
            for stop in (">", "><", "think", "\n<think>"):  # stop texts are looked for in the answer alone
                chunks = openai_client(s).chat.completions.create(model="m", messages=FOX, max_tokens=40, stream=True, stop=stop, logprobs=True, extra_body=extra)
                choices = [c.choices[0] for c in chunks]
                assert "".join(c.delta.content or "" for c in choices) == "Hi.", (stop, choices)
                assert "".join(t.token for c in choices for t in c.logprobs.content) == "Hi.", (stop, choices)
            pieces = [c.choices[0].delta.model_dump() for c in openai_client(s).chat.completions.create(
                model="m", messages=FOX, max_tokens=40, stream=True, reasoning_effort="high", extra_body=extra)]
            assert "".join(p.get("reasoning_content") or "" for p in pieces) == thought and "".join(p["content"] or "" for p in pieces) == "Hi.", pieces
            r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=40, thinking={"type": "enabled", "budget_tokens": 6},
                                                    extra_body={**mouth("Hi."), **opens})
            assert [b.type for b in r.content] == ["thinking", "text"] and r.content[0].thinking == thought and r.content[1].text == "Hi.", r
            r = anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=40, extra_body=mouth("Hi."))
            assert [b.type for b in r.content] == ["text"], r
            hi, like = mouth("Hi.")["grammar"], {**opens, "temperature": 0, "num_predict": 40}
            said = s.request("POST", "/api/chat", {"messages": FOX, "stream": False, "think": True, "thinking_budget": 6, "grammar": hi, "options": like})[2]["message"]
            assert said["content"] == "Hi." and said["thinking"] == thought, said
            said = s.request("POST", "/api/chat", {"messages": FOX, "stream": False, "think": False, **mouth("Hi.")})[2]["message"]
            assert said["content"] == "Hi." and "thinking" not in said, said
            tool = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"], "additionalProperties": False}}
            fields = {"tools": [{"type": "function", "function": tool}]}
            forced = s.chat(**fields, tool_choice="required", temperature=0, max_tokens=200)  # and then the model is free to answer
            message, usage = forced["choices"][0]["message"], forced["usage"]
            turns = [*FOX, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "noon"}]
            for choice in ("auto", "required", "none"):
                usage_2 = s.chat(turns, **fields, tool_choice=choice, max_tokens=4)["usage"]
                assert usage_2["prompt_tokens_details"]["cached_tokens"] >= usage["total_tokens"] - 2, (name, choice, usage, usage_2)


def test_other_variables_are_no_replay():
    """What was read with a variable that the template writes is not taken for what another value gives."""
    template = "{{ mood or 'glad' }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    with own("--chat-template", template) as s:
        moods = [{}, {"chat_template_kwargs": {"mood": "sad"}}]
        answer = s.chat(**mouth("Hi."))["choices"][0]["message"]
        turns = [*FOX, answer, {"role": "user", "content": "And?"}]
        for fields, mood in zip(moods, ("glad", "sad")):
            tokens = s.request("POST", "/tokenize", {"messages": turns, **fields})[2]["tokens"]
            text = s.request("POST", "/detokenize", {"tokens": tokens})[2]["content"]
            assert text.strip().startswith(mood) and "Hi." in text, text
        used = [s.chat(turns, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"] for fields in moods]
        assert used[0] > 8 > used[1], used


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def test_embeddings_of_texts():
    s = server()
    c = openai_client(s)
    texts = ["The cat sat on the mat.", "Once upon a time", "x"]
    r = c.embeddings.create(model="m", input=texts)  # base64 on the wire
    plain = c.embeddings.create(model="m", input=texts, encoding_format="float")
    assert [d.index for d in r.data] == [0, 1, 2] and len(r.data[0].embedding) == 512 and r.model == SHIPPED.stem
    for a, b in zip(r.data, plain.data):
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-7, (a.embedding[:3], b.embedding[:3])
        assert abs(sum(x * x for x in a.embedding) - 1) < 1e-5
    assert cosine(r.data[0].embedding, r.data[1].embedding) < 0.999
    ids = [s.request("POST", "/tokenize", {"content": t, "bos": True})[2]["tokens"] for t in texts]
    assert r.usage.prompt_tokens == r.usage.total_tokens == sum(map(len, ids)), r.usage
    assert [d.embedding for d in c.embeddings.create(model="m", input=ids).data] == [d.embedding for d in r.data]
    many = c.embeddings.create(model="m", input=texts * 300).data  # more than run and wait at once, as some clients send
    assert [d.index for d in many] == list(range(900)) and all(cosine(many[i].embedding, r.data[i % 3].embedding) > 0.99999 for i in range(0, 900, 7))
    for path, body in (("/v1/embeddings", {"input": ["x"] * 2049}), ("/v1/completions", {"prompt": ["x"] * 2049}), ("/v1/completions", {"prompt": ["x"] * 1025, "n": 2})):
        status, _, answer = s.request("POST", path, {**body, "max_tokens": 1})
        assert status == 400 and "expected at most 2048" in answer["error"]["message"], answer
    for given in (texts[1], ids[1]):
        assert c.embeddings.create(model="m", input=given).data[0].embedding == r.data[1].embedding, given
    short = c.embeddings.create(model="m", input=texts[0], dimensions=100).data[0].embedding
    assert len(short) == 100 and abs(cosine(short, r.data[0].embedding[:100]) - 1) < 1e-6 and abs(sum(x * x for x in short) - 1) < 1e-5
    o = ollama_client(s)
    e = o.embed(model="m", input=texts)
    assert [list(v) for v in e.embeddings] == [d.embedding for d in plain.data] and e.prompt_eval_count == r.usage.prompt_tokens
    assert list(o.embeddings(model="m", prompt=texts[1]).embedding) == plain.data[1].embedding
    for fields, words, param in (({}, "input is missing", "input"), ({"input": []}, "input is empty", "input"), ({"input": ""}, "no tokens", "input"),
                                 ({"input": ["a", 3.5]}, "input has a number", "input"), ({"input": "x", "dimensions": 513}, "dimensions is 513", "dimensions"),
                                 ({"input": "x", "dimensions": 0}, "dimensions is 0", "dimensions"),
                                 ({"input": "x", "encoding_format": "hex"}, "encoding_format is 'hex'", "encoding_format"),
                                 ({"input": "fox " * 3000}, "expected at most 511", "input"), ({"input": [["x"]]}, "input has a token that is a string", "input"),
                                 ({"input": [[[1]]]}, "input has a token that is an array", "input"), ({"input": [99999999]}, "outside the vocabulary", "input")):
        status, _, body = s.request("POST", "/v1/embeddings", fields)
        assert status == 400 and words in body["error"]["message"] and body["error"]["param"] == param, (fields, body)


def pooling_model(kind):
    """The story model with a pooling_type, which takes the place of general.type."""
    path, data = TMP / f"pools{kind}.gguf", SHIPPED.read_bytes()
    text = lambda s: struct.pack("<Q", len(s)) + s
    entry = lambda key, value: text(key) + struct.pack("<I", 8) + text(value)
    old = entry(b"general.type", b"model") + entry(b"general.name", b"Sluice Stories")
    new = text(b"qwen35.pooling_type") + struct.pack("<II", 4, kind)
    new += entry(b"general.name", b"x" * (len(old) - len(new) - len(entry(b"general.name", b""))))
    assert data.count(old) == 1 and len(new) == len(old)
    path.write_bytes(data.replace(old, new))
    return path


def test_embeddings_pool_as_the_model_says():
    ask = lambda s: s.request("POST", "/v1/embeddings", {"input": ["Once upon a time", "x"]})
    last = [d["embedding"] for d in ask(server())[2]["data"]]
    with own("-m", pooling_model(1)) as s:
        mean = [d["embedding"] for d in ask(s)[2]["data"]]
        assert cosine(mean[0], last[0]) < 0.999 and mean[1] == last[1] and abs(sum(x * x for x in mean[0]) - 1) < 1e-5
        assert [d["embedding"] for d in ask(s)[2]["data"]] == mean
    with own("-m", pooling_model(2)) as s:
        status, _, body = ask(s)
        assert status == 400 and "pooling_type is 2" in body["error"]["message"], body


# ---- the Anthropic API -----------------------------------------------------------------------------

COLD = {"extra_body": {"temperature": 0}}  # not every version of the client has a name for it


def anthropic_client(s):
    if not anthropic:
        raise Skip("the anthropic client is not installed")
    return anthropic.Anthropic(base_url=s.address, api_key="none", max_retries=0, timeout=PATIENCE)


def test_anthropic_messages():
    s = server()
    c = anthropic_client(s)
    args = dict(model="any", messages=FOX, max_tokens=12, **COLD)
    r = c.messages.create(**args)
    right = s.chat(max_tokens=12)
    assert r.content[0].type == "text" and r.content[0].text == right["choices"][0]["message"]["content"]
    assert r.stop_reason == "max_tokens" and r.usage.output_tokens == 12 and r.role == "assistant"
    assert r.usage.input_tokens + r.usage.cache_read_input_tokens == right["usage"]["prompt_tokens"]
    with c.messages.stream(**args) as stream_:
        text = "".join(stream_.text_stream)
        last = stream_.get_final_message()
    assert text == r.content[0].text == last.content[0].text and last.stop_reason == "max_tokens" and last.usage.output_tokens == 12
    kinds = [e.type for e in c.messages.create(**args, stream=True)]
    assert kinds[:3] == ["message_start", "content_block_start", "content_block_delta"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    model = c.models.retrieve(SHIPPED.stem)
    assert [m.id for m in c.models.list()] == [SHIPPED.stem] and model.type == "model" and model.display_name and model.created_at.year > 2000, model
    assert getattr(model, "lifecycle", None) == "active", model  # required since version 2 of the client
    n = c.messages.count_tokens(model="any", messages=FOX).input_tokens
    assert n == right["usage"]["prompt_tokens"]


def test_anthropic_blocks_system_and_stops():
    s = server()
    c = anthropic_client(s)
    plain = c.messages.create(model="m", system="You tell stories.", messages=FOX, max_tokens=8, **COLD)
    blocks = c.messages.create(model="m", system=[{"type": "text", "text": "You tell stories."}], max_tokens=8, **COLD,
                               messages=[{"role": "user", "content": [{"type": "text", "text": FOX[0]["content"]}]}])
    assert plain.content[0].text == blocks.content[0].text
    stop = plain.content[0].text[6:10]
    r = c.messages.create(model="m", system="You tell stories.", messages=FOX, max_tokens=30, **COLD, stop_sequences=["zzz", stop])
    assert r.stop_reason == "stop_sequence" and r.stop_sequence == stop and r.content[0].text == plain.content[0].text[:6], r
    turns = [FOX[0], {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Once."},
                                                       {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}, {"type": "text", "text": "Go on."}]}]
    tools = [{"name": "f", "description": "what", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    assert c.messages.create(model="m", messages=turns, tools=tools, max_tokens=4).usage.output_tokens > 0


def test_answers_that_are_begun():
    """A conversation that ends with an answer's beginning is gone on with, and only what is new is told."""
    s, begun = server(), [*FOX, {"role": "assistant", "content": "Once upon a time, there was a bear"}]
    say = lambda messages: anthropic_client(s).messages.create(model="m", messages=messages, max_tokens=12, extra_body={"temperature": 0})
    r = say(begun)
    prompt = sum((s.request("POST", "/tokenize", body)[2]["tokens"] for body in ({"messages": FOX}, {"content": begun[-1]["content"]})), [])
    right = s.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0})[2]["choices"][0]["text"]
    assert r.content[0].text == right, (r, right)
    chat = s.chat(begun, max_tokens=12, continue_final_message=True)
    assert chat["choices"][0]["message"]["content"] == right and chat["usage"]["prompt_tokens"] == r.usage.input_tokens + r.usage.cache_read_input_tokens, chat
    assert s.chat(begun, max_tokens=12)["usage"]["prompt_tokens"] > chat["usage"]["prompt_tokens"]  # a further answer, unless asked for
    whole = [*FOX, {"role": "assistant", "content": begun[-1]["content"] + right}, {"role": "user", "content": "And?"}]
    n = chat["usage"]["total_tokens"]
    assert s.chat(whole)["usage"]["prompt_tokens_details"]["cached_tokens"] >= n - 1
    assert s.request("POST", "/v1/snapshots", {"id": "fox", "messages": FOX})[0] == 200
    later = s.chat(begun[1:], max_tokens=12, continue_final_message=True, snapshot="fox")
    assert later["choices"] == chat["choices"] and later["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"], (later, chat)
    o = ollama_client(s).chat(model="m", messages=begun, options={"num_predict": 12, "temperature": 0})  # as Ollama's templates have it
    assert o.message.content == right and o.prompt_eval_count == chat["usage"]["prompt_tokens"], o
    count = lambda path, **body: s.request("POST", path, body)[2]
    for body in ({"messages": begun}, {"messages": begun[1:], "snapshot": "fox"}):
        told = count("/tokenize", continue_final_message=True, **body)
        assert told["count"] == chat["usage"]["prompt_tokens"] == count("/v1/messages/count_tokens", **body)["input_tokens"], (body, told)
    alone = s.chat(begun[1:], max_tokens=12, continue_final_message=True)
    head = count("/tokenize", content="<|im_start|>assistant\n", special=True)["tokens"]
    assert alone["usage"]["prompt_tokens"] == len(head) + len(prompt) - count("/tokenize", messages=FOX)["count"], alone["usage"]
    for path, body in (("/tokenize", {"messages": FOX}), ("/v1/messages/count_tokens", {"messages": FOX}), ("/v1/responses/input_tokens", {"input": "x"})):
        status, _, answer = s.request("POST", path, {**body, "snapshot": "never"})
        assert status == 400 and "no snapshot never" in json.dumps(answer), (path, answer)
    assert s.request("DELETE", "/v1/snapshots/fox")[0] == 200


def test_anthropic_errors():
    c = anthropic_client(server())
    for fields, words in ((dict(extra_body={"temperature": "hot"}), "temperature is a string"), (dict(max_tokens=0), "max_tokens is 0"),
                          (dict(messages=[{"role": "user", "content": "fox " * 3000}]), "prompt is too long"),
                          (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), "type image"),
                          (dict(messages=[{"role": "robot", "content": "x"}]), "role is 'robot'"), (dict(messages=[]), "messages is empty"),
                          (dict(messages=[{"content": "x"}]), "messages[0].role is missing, expected user or assistant"),
                          (dict(tools=[{"name": "x"}]), "tools[0]"), (dict(stop_sequences=3), "stop_sequences is a number")):
        try:
            c.messages.create(**{"model": "m", "messages": FOX, "max_tokens": 5, **fields})
            assert False, f"{fields} is taken"
        except anthropic.BadRequestError as e:
            assert words in e.body["error"]["message"] and e.body["error"]["type"] == "invalid_request_error", (fields, e.body)
    with own("--api-key", "k") as s:
        try:
            anthropic_client(s).messages.create(model="m", messages=FOX, max_tokens=5)
            assert False, "another key is taken"
        except anthropic.AuthenticationError as e:
            assert e.body["error"]["type"] == "authentication_error"
    assert server().request("GET", "/v1/messages/nothing")[2]["type"] == "error"
    _, headers, body = server().request("POST", "/v1/messages", {"messages": FOX, "max_tokens": 1})
    assert body["id"] == "msg_" + headers["request-id"], headers
    with own("--prefix", "/llm") as s:
        assert s.request("GET", "/llm/v1/messages/nothing")[2]["type"] == "error" and isinstance(s.request("GET", "/llm/api/nothing")[2]["error"], str)
        assert s.request("GET", "/v1/messages/nothing")[0] == 404


def test_anthropic_threads():
    """A turn that names the last instead of bringing it along is not answered without it: clients send all of the conversation then."""
    s = server()
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        for path in "/v1/messages", "/v1/messages/count_tokens":
            status, _, body = s.request("POST", path, {"messages": FOX, "max_tokens": 5, "thread": thread})
            assert status == 400 and body["error"]["details"] == {"error_code": "thread_unsupported_request"}, body
    assert s.request("POST", "/v1/messages", {"messages": FOX, "max_tokens": 5, "thread": None})[0] == 200
    if not hasattr(anthropic, "beta_tool"):
        raise Skip("the client runs no tools")

    @anthropic.beta_tool
    def look(x: bool) -> str:  # a number may have as many digits as there are tokens
        """Look at x."""
        return "Nothing."

    with own("-c", 2048) as s:
        runner = anthropic_client(s).beta.messages.tool_runner(model="m", messages=FOX, max_tokens=200, tools=[look], max_iterations=3, tool_choice={"type": "any"})
        turns = [m.usage for m in runner]
    prompts = [u.input_tokens + u.cache_read_input_tokens for u in turns]
    assert len(turns) == 3 and all(b > a + 8 for a, b in zip(prompts, prompts[1:])), prompts


# ---- the Ollama API --------------------------------------------------------------------------------

def ollama_client(s):
    if not ollama:
        raise Skip("the ollama client is not installed")
    return ollama.Client(host=s.address, timeout=PATIENCE)


def test_ollama_chat_and_generate():
    s = server()
    c = ollama_client(s)
    options = {"temperature": 0, "num_predict": 10}
    right = s.chat(max_tokens=10)["choices"][0]["message"]["content"]
    r = c.chat(model="any", messages=FOX, options=options)
    assert r.message.content == right and r.done and r.done_reason == "length" and r.eval_count == 10 and r.total_duration > 0
    parts = list(c.chat(model="any", messages=FOX, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == right and parts[-1].done and parts[-1].eval_count == 10
    g = c.generate(model="any", prompt=FOX[0]["content"], options=options)
    assert g.response == right and g.done
    counts = [s.request("POST", "/api/generate", {"prompt": "fox", "system": system, "stream": False, "options": options})[2]["prompt_eval_count"]
              for system in (None, "", "Be kind.")]
    assert counts[0] == counts[1] < counts[2], counts  # clients send "" for no system message
    parts = list(c.generate(model="any", prompt="Once upon a time", raw=True, options=options, stream=True))
    assert "".join(p.response for p in parts).startswith(",")
    assert c.generate(model="any").done_reason == "load"
    stopped = c.chat(model="any", messages=FOX, options={**options, "stop": [right[5:8]]})
    assert stopped.message.content == right[:5] and stopped.done_reason == "stop"


def test_ollama_models_and_errors():
    s = server()
    c = ollama_client(s)
    assert c.list().models[0].model == SHIPPED.stem and c.list().models[0].details.family == "qwen35"
    shown = c.show("any")
    assert shown.modelinfo["general.architecture"] == "qwen35" and "completion" in shown.capabilities
    assert c.ps().models[0].model == SHIPPED.stem
    listed, details = c.list().models[0], c.list().models[0].details
    assert abs(listed.size / SHIPPED.stat().st_size - 1) < 0.05 and details.quantization_level == "Q4_K_M" and details.parameter_size == "26.8M", listed
    running = c.ps().models[0]
    assert running.size == s.metric("device_memory_bytes") and running.size_vram == 0, running  # nothing of it on a GPU
    # Ollama's own program shows 12 digits, and says "Stopping..." of what has expired
    assert re.fullmatch("[0-9a-f]{64}", listed.digest) and listed.digest == running.digest and running.expires_at.year > 2200, running
    assert shown.template == json.loads(subprocess.run([SLUICE, "inspect", SHIPPED, "--json", "--full"], stdout=subprocess.PIPE,
                                                       check=True).stdout)["keys"]["tokenizer.chat_template"]["value"], shown
    assert "tools" not in shown.capabilities, shown  # the story model's template does not mention them
    with own("-m", SHIPPED, "--chat-template", ROOT / "tests/data/templates/qwen3.jinja") as other:
        shown = ollama_client(other).show("any")
        assert "tools" in shown.capabilities and shown.template == (ROOT / "tests/data/templates/qwen3.jinja").read_text()
    status, _, body = s.request("GET", "/v1/models/no", headers={"anthropic-version": "2023-06-01"})
    assert status == 404 and body["type"] == "error" and "there is no model no" in body["error"]["message"], body
    listed = anthropic_client(s).models.list()
    assert listed.first_id == listed.last_id == SHIPPED.stem and listed.data[0].max_input_tokens == 512, listed
    version = s.request("GET", "/api/version")[2]  # VS Code's Copilot takes 0.6.4 and later
    assert [int(part) for part in version["version"].split(".")] >= [0, 6, 4] and version["sluice"], version
    info = s.request("POST", "/api/show", {"model": "x"})[2]["model_info"]  # what it shows, and how much it may send
    assert info["general.basename"] == SHIPPED.stem and info[f"{info['general.architecture']}.context_length"] == 512, info
    for body, words in (({"messages": FOX, "options": {"temperature": "hot"}}, "options.temperature is a string"),
                        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
                        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role is 'robot'"), ({"messages": "x"}, "messages is a string")):
        status, _, answer = s.request("POST", "/api/chat", {"model": "m", **body})
        assert status == 400 and words in answer["error"], answer
    try:
        c.chat(model="m", messages=FOX, options={"top_p": 7})
        assert False, "top_p 7 is taken"
    except ollama.ResponseError as e:
        assert e.status_code == 400 and "top_p" in e.error


def test_ollama_loads_a_model():
    """Its clients do that by asking for nothing: nothing is generated."""
    s = server()
    before = s.metric("answers_total")
    post = lambda path, **body: s.request("POST", path, {"model": "m", **body})[::2]
    for path, body in (("/api/generate", {}), ("/api/generate", {"prompt": ""}), ("/api/generate", {"prompt": "", "stream": False, "system": "x", "suffix": "", "keep_alive": "5m"}),
                       ("/api/chat", {}), ("/api/chat", {"messages": []})):
        status, answer = post(path, **body)
        assert status == 200 and answer["done"] is True and answer["done_reason"] == "load", (path, body, answer)
    for body in ({}, {"input": ""}, {"input": []}):
        assert post("/api/embed", **body)[1]["embeddings"] == [], body
    assert post("/api/embeddings", prompt="") == (200, {"embedding": []})
    assert post("/v1/embeddings", input="")[0] == post("/v1/embeddings", input=[])[0] == post("/api/embed", input=[""])[0] == 400
    assert s.metric("answers_total") == before


def test_ollama_logprobs():
    s = server()
    right = s.chat(max_tokens=5, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    body = {"model": "m", "messages": FOX, "prompt": FOX[0]["content"], "logprobs": True, "top_logprobs": 2, "options": {"temperature": 0, "num_predict": 5}}
    for path in ("/api/chat", "/api/generate"):
        assert s.request("POST", path, {**body, "stream": False})[2]["logprobs"] == right
        lines = [json.loads(line) for line in s.request("POST", path, body)[2].splitlines()]
        assert sum((line.get("logprobs", []) for line in lines), []) == right, lines
        assert "logprobs" not in s.request("POST", path, {**body, "stream": False, "logprobs": False, "top_logprobs": 0})[2]
        status, _, answer = s.request("POST", path, {**body, "logprobs": False})
        assert status == 400 and "top_logprobs is 2, expected logprobs true" in answer["error"], answer


# ---- snapshots -------------------------------------------------------------------------------------

def test_memory_that_is_short():
    """Defaults are made smaller until they fit; what was asked for is not."""
    with own("-c", 1_000_000, "--batch", 512) as s:
        told = [x for x in s.text().decode().splitlines() if x.startswith("memory is short: ")]
        assert len(told) == 1 and re.search(r"share a KV cache of \d+ tokens, not 1000000 each", told[0]), s.text()
        assert s.chat(FOX, max_tokens=3)["usage"]["completion_tokens"] == 3


def test_snapshots():
    folder = TMP / "kept"
    turns = [FOX[0]]
    with own("--cache-dir", folder, "-c", 1024, "--cache-dir-bytes", "64M") as s:
        post = lambda path, body=None: s.request("POST", path, body)
        said = s.chat(turns, max_tokens=80, temperature=0.9, seed=3)
        turns.append(said["choices"][0]["message"])
        status, _, saved = post("/v1/snapshots", {"id": "fox-1", "messages": turns})
        assert status == 200 and saved["id"] == "fox-1" and saved["tokens"] >= said["usage"]["total_tokens"] - 1 and saved["messages"] == 2, saved
        right = s.chat(turns + [{"role": "user", "content": "And then?"}])
        went_on = s.chat([{"role": "user", "content": "And then?"}], snapshot="fox-1")
        assert went_on["choices"] == right["choices"] and went_on["usage"]["prompt_tokens"] == right["usage"]["prompt_tokens"], (went_on, right)
        status, _, forked = post("/v1/snapshots/fox-1/fork", {"id": "fox-2"})
        assert status == 200 and forked == {**saved, "id": "fox-2"}, forked
        made = post("/v1/snapshots/fox-1/fork")[2]["id"]
        assert s.request("GET", f"/v1/snapshots/{made}")[2]["messages"] == s.request("GET", "/v1/snapshots/fox-2")[2]["messages"]
        assert s.request("DELETE", f"/v1/snapshots/{made}")[2]["deleted"] and s.request("GET", f"/v1/snapshots/{made}")[0] == 404
        assert {x["id"] for x in s.request("GET", "/v1/snapshots")[2]["data"]} == {"fox-1", "fox-2"}
        assert s.request("DELETE", "/v1/snapshots/fox-1")[0] == 200 and not (folder / "snapshots/fox-1.json").exists()
        kept = folder / "snapshots/fox-2.json"
        assert kept.stat().st_mode & 0o077 == 0 and (folder / "snapshots").stat().st_mode & 0o077 == 0
    (folder / "snapshots/no id.json").write_text("{}")
    (folder / "snapshots/damaged.json").write_text('{"messages": [')
    (folder / "snapshots/hostile.json").write_text('{"messages": [3], "tokens": ["x", -1], "covers": 99, "tools": [4]}')
    (folder / "snapshots/link.json").symlink_to("/etc/passwd")
    with own("--cache-dir", folder, "-c", 1024, "--cache-dir-bytes", "64M") as s:  # another process
        assert [x["id"] for x in s.request("GET", "/v1/snapshots")[2]["data"] if x["id"].startswith("fox")] == ["fox-2"]
        status, _, back = s.request("POST", "/v1/snapshots/fox-2/restore")
        assert status == 200 and back["cached_tokens"] > 60 and back["from"]["disk"] == back["cached_tokens"], back
        again = s.chat([{"role": "user", "content": "And then?"}], snapshot="fox-2")
        assert again["choices"] == right["choices"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] >= saved["tokens"] - 1, again
        c = anthropic_client(s).messages.create(model="m", max_tokens=8, messages=[{"role": "user", "content": "And then?"}],
                                                extra_body={"snapshot": "fox-2", "temperature": 0})
        assert c.content[0].text == right["choices"][0]["message"]["content"]
        ask = lambda **more: s.request("POST", "/v1/responses", {"input": "And then?", "temperature": 0, "max_output_tokens": 8, **more})[2]
        first = ask(snapshot="fox-2")
        assert first["output"][0]["content"][0]["text"] == c.content[0].text, first
        assert first["usage"]["input_tokens_details"]["cached_tokens"] >= saved["tokens"] - 1, first["usage"]
        second = ask(previous_response_id=first["id"])  # the snapshot is part of the conversation
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 8, (first["usage"], second["usage"])
        told = ask(snapshot="fox-2", instructions="Be brief.")
        assert told["usage"]["input_tokens"] > first["usage"]["input_tokens"], (first["usage"], told["usage"])
        for method, path, body, status, words in (
                ("GET", "/v1/snapshots/damaged", None, 404, "no snapshot damaged"), ("POST", "/v1/snapshots/hostile/restore", {}, 400, "messages[0] is a number"),
                ("GET", "/v1/snapshots/link", None, 404, "no snapshot"), ("GET", "/v1/snapshots/..%2ffox-2", None, 404, "there is no"),
                ("POST", "/v1/snapshots/never/fork", {}, 404, "no snapshot never"), ("POST", "/v1/snapshots/fox-2/fork", {"id": "../x"}, 400, "id is '../x'"),
                ("POST", "/v1/snapshots", {"id": "a/b", "messages": turns}, 400, "id is 'a/b'"), ("POST", "/v1/snapshots", {"id": "x"}, 400, "messages is missing"),
                ("POST", "/v1/snapshots", {"id": "", "messages": turns}, 400, "id is ''"), ("DELETE", "/v1/snapshots", None, 405, "takes POST, GET, HEAD, not DELETE"),
                ("POST", "/v1/chat/completions", {"messages": turns, "snapshot": "../../etc/passwd"}, 400, "no snapshot"),
                ("POST", "/v1/chat/completions", {"messages": turns, "snapshot": 3}, 400, "snapshot is a number"),
                ("POST", "/v1/responses", {"input": "x", "snapshot": "fox-3"}, 400, "no snapshot fox-3"),
                ("POST", "/v1/responses", {"input": "x", "snapshot": "fox-2", "previous_response_id": "resp_1"}, 400, "expected one")):
            found, _, answer = s.request(method, path, body)
            assert found == status and words in json.dumps(answer), (path, found, answer)
        long = [{"role": "user", "content": "x" * 1_500_000}]  # a sixteenth of the folder is for snapshots
        codes = [s.request("POST", "/v1/snapshots", {"id": f"big{i}", "messages": long})[0] for i in (1, 2, 1, 3)]
        assert codes == [200, 200, 200, 507], codes
    s = server()  # in memory
    assert s.request("POST", "/v1/snapshots", {"id": "here", "messages": turns})[0] == 200
    assert s.chat([{"role": "user", "content": "And then?"}], snapshot="here")["usage"]["prompt_tokens"] == right["usage"]["prompt_tokens"]
    assert [x["id"] for x in s.request("GET", "/v1/snapshots")[2]["data"]] == ["here"] and s.request("DELETE", "/v1/snapshots/here")[0] == 200


def test_snapshots_of_deep_calls():
    """What is saved can be read back: jansson reads 2048 levels, and a call's arguments are inside of six."""
    s = server()
    said = lambda arguments: FOX + [{"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]}]
    deep = lambda levels: '{"x":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"
    raw = lambda path, messages, levels: s.request("POST", path, json.dumps({"id": "deep", "messages": messages, "max_tokens": 1}).replace('"DEEP"', deep(levels)))
    for levels in (512, 513, 2040, 2042):
        texts = raw("/v1/snapshots", said(deep(levels)), 0), raw("/v1/snapshots", said("DEEP"), levels)
        blocks = raw("/v1/messages", FOX + [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "DEEP"}]}, FOX[0]], levels)
        for status, _, answer in (*texts, blocks) if levels > 512 else ():
            assert status == 400 and "deeper than 512 levels" in answer["error"]["message"], (levels, answer)
        if levels == 512:
            assert [t[0] for t in texts] == [200, 200], texts
            status, _, kept = s.request("GET", "/v1/snapshots/deep")
            assert status == 200 and json.dumps(kept["messages"][1]["tool_calls"][0]["function"]["arguments"], separators=(",", ":")) == deep(512), kept
    assert s.request("DELETE", "/v1/snapshots/deep")[0] == 200


def test_snapshots_that_cannot_be_deleted():
    """What stays on the disk is not said to be deleted."""
    cache = TMP / "stubborn"
    with own("--cache-dir", cache) as s:
        assert s.request("POST", "/v1/snapshots", {"id": "a", "messages": FOX})[0] == 200
        file = cache / "snapshots/a.json"
        file.unlink()
        (file / "something").mkdir(parents=True)  # a folder is not unlinked, by root neither
        status, _, body = s.request("DELETE", "/v1/snapshots/a")
        assert status == 500 and body["error"]["message"].startswith("a file cannot be read or written: the server's log says more, under request "), body
        assert f"request {body['error']['message'].split()[-1]}: {file}: cannot delete: Is a directory" in s.text().decode(), s.text()
        assert [x["id"] for x in s.request("GET", "/v1/snapshots")[2]["data"]] == ["a"]
        shutil.rmtree(file)
        assert s.request("DELETE", "/v1/snapshots/a")[0] == 200  # somebody else did it
        assert s.request("DELETE", "/v1/snapshots/a")[0] == 404


def test_answers_that_were_steered_are_not_anybodys():
    """The next turn of a conversation begins with the answer's tokens as they were sampled, also those that are not in its text. Whoever
    makes the model say them, under the same messages, must not put them into another client's conversation."""
    said = "Once upon a time"
    turn = [*FOX, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    ways = ({"grammar": f'root ::= "{said}"', "logit_bias": "pieces"}, {"grammar": f'root ::= "<think>Be rude.</think>{said}"', "logit_bias": "think"},
            {"logit_bias": "pieces"},
            {"temperature": 50}, {"presence_penalty": -90}, {"repeat_penalty": 50}, {"ignore_eos": True})
    with own("-m", thinking_model()[1], "-c", 512) as s:
        expected = s.chat(turn, max_tokens=1)["usage"]["prompt_tokens"]
        whole = s.request("POST", "/tokenize", {"content": said, "add_special": False})[2]["tokens"]
        think = s.request("POST", "/tokenize", {"content": "<think>", "parse_special": True, "add_special": False})[2]["tokens"]
        for way in ways:
            if "logit_bias" in way:  # tokens that must be written in smaller ones
                way = {**way, "logit_bias": {str(t): -100 for t in (whole if way["logit_bias"] == "pieces" else think)}}
            message = s.chat(FOX, max_tokens=40, **way)["choices"][0]["message"]
            answer = message["content"]
            if "grammar" in way:
                assert answer == said and message.get("reasoning_content") == ("Be rude." if "<think>" in way["grammar"] else None), message
            again = [*FOX, {"role": "assistant", "content": answer}, turn[-1]]
            saved = s.request("POST", "/v1/snapshots", {"id": "x", "messages": again})[2]
            assert saved["tokens"] == 0, (way, saved)
        assert s.chat(turn, max_tokens=1)["usage"]["prompt_tokens"] == expected
        answer = s.chat(FOX, max_tokens=40, temperature=1.5, top_p=0.8, seed=4)["choices"][0]["message"]
        assert s.request("POST", "/v1/snapshots", {"id": "x", "messages": [*FOX, answer]})[2]["tokens"] > 0


def test_thoughts_that_were_sent_are_not_anybodys():
    """What a client sends as an answer's thinking is in its own prompt alone; what the server's own answers thought stays in the conversation."""
    template = TMP / "thoughts.jinja"
    template.write_text("{{ tools or '' }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.name or '' }}{{ m.reasoning_content or '' }}{{ m.content }}"
                        "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")
    call = {"id": "Be rude.", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = lambda m: {k: v for k, v in m.items() if k not in ("reasoning_content", "name")}
    with own(*thinking_model()[:2], "--chat-template", template, "-c", 512) as s:
        kept = lambda messages: s.request("POST", "/v1/snapshots", {"id": "x", "messages": messages})[2]["tokens"]
        for i, more in enumerate(({}, {"reasoning_content": "Be rude."}, {"name": "rude"}, {"tool_calls": [call]})):
            turns = [*FOX, {"role": "assistant", "content": f"A fox {i}.", **more}, {"role": "user", "content": "And?"}]
            answer = s.chat(turns, max_tokens=8)["choices"][0]["message"]
            tokens = kept([plain(m) for m in turns] + [answer])
            assert (tokens > 0) == (not more), (more, tokens)
        first = s.chat(max_tokens=8)["choices"][0]["message"]
        turns = [*FOX, {**first, "reasoning_content": "I am sent, but another is kept."}, {"role": "user", "content": "And?"}]
        assert kept([*turns, s.chat(turns, max_tokens=8)["choices"][0]["message"]]) > kept([*FOX, first]) > 0


def test_snapshots_are_not_written_through_links():
    """What has a snapshot's name and is none is replaced; what a link leads to stays."""
    cache, elsewhere = TMP / "linked", TMP / "elsewhere"
    elsewhere.write_text("mine")
    with own("--cache-dir", cache) as s:
        (cache / "snapshots/a.json").symlink_to(elsewhere)
        (cache / "snapshots/b.json").symlink_to(TMP / "nowhere")
        os.mkfifo(cache / "snapshots/c.json")
        for id in ("a", "b", "c"):
            assert s.request("POST", "/v1/snapshots", {"id": id, "messages": FOX})[0] == 200
            assert s.request("GET", f"/v1/snapshots/{id}")[2]["messages"] == FOX
            st = os.lstat(cache / f"snapshots/{id}.json")
            assert stat.S_ISREG(st.st_mode) and st.st_mode & 0o077 == 0, st
        assert elsewhere.read_text() == "mine" and not (TMP / "nowhere").exists()


def test_errors_of_files_go_to_the_log():
    """They name paths, which a client has no business with: it gets the id under which the log has them."""
    folder = TMP / "secret folder"
    folder.mkdir()
    model = folder / "damaged.gguf"
    whole = bytearray(SHIPPED.read_bytes())
    whole[len(whole) // 2:len(whole) // 2 + 4096] = b"\xff" * 4096  # inside of a matrix, NaN in all formats
    model.write_bytes(whole)
    (folder / "cache").mkdir()
    with own("-m", model, "--cache-dir", folder / "cache") as s:
        failures = []
        for path, body in (("/v1/chat/completions", {"messages": FOX}), ("/v1/messages", {"messages": FOX, "max_tokens": 2}), ("/api/chat", {"messages": FOX}),
                           ("/completion", {"prompt": "x"}), ("/v1/responses", {"input": "x"})):
            for streamed in (False, True):
                status, headers, answer = s.request("POST", path, {**body, "stream": streamed})
                assert status == (200 if streamed else 500), (path, status, answer)
                failures.append((headers["X-Request-Id"] or headers["request-id"], str(answer), "are NaN or infinite"))
        shutil.rmtree(folder / "cache/snapshots")
        (folder / "cache/snapshots").write_text("in the way")
        status, headers, answer = s.request("POST", "/v1/snapshots", {"id": "x", "messages": FOX})
        assert status == 500, answer
        failures.append((headers["X-Request-Id"], str(answer), "x.json"))
        for id, answer, words in failures:
            assert f"under request {id}" in answer and "secret folder" not in answer, answer
            told = [line for line in s.text().decode().splitlines() if f"request {id}: " in line]
            assert len(told) == 1 and str(folder) in told[0] and words in told[0], s.text()


def test_snapshots_whose_folder_is_deleted():
    with tempfile.TemporaryDirectory() as folder:
        with own("--cache-dir", folder + "/cache") as s:
            for gone in ("/cache", "/cache/snapshots"):
                for id in ("one", "two"):
                    assert s.request("POST", "/v1/snapshots", {"id": id, "messages": FOX})[0] == 200
                shutil.rmtree(folder + gone)
                assert s.request("GET", "/v1/snapshots/one")[0] == 404
                assert s.request("POST", "/v1/snapshots", {"id": "two", "messages": FOX})[0] == 200
                assert s.request("GET", "/v1/snapshots/two")[2]["messages"] == FOX
                assert [x["id"] for x in s.request("GET", "/v1/snapshots")[2]["data"]] == ["two"]


# ---- paths, keys, origins --------------------------------------------------------------------------

def test_names_of_any_bytes():
    """A file's name need not be UTF-8: one name in all replies, and a server that is healthy."""
    model = TMP / os.fsdecode(b"caf\xe9 \n\xff.gguf")
    model.symlink_to(SHIPPED)
    for args in (("-m", model), ("--name", os.fsdecode(b"caf\xe9 \n\xff"))):
        with own(*args) as s:
            status, _, health = s.request("GET", "/health")
            assert status == 200 and health["model"] == "caf? ??" == s.request("GET", "/v1/models")[2]["data"][0]["id"] == s.chat()["model"], health
            assert s.request("GET", "/v1/models/caf%3F%20%3F%3F")[0] == 200


def test_a_line_is_an_event():
    """Nothing that a name holds begins a line of its own: whoever reads the log would take it for ours."""
    folder = TMP / "two\nsluice: listening on evil\r\x1b[2J"
    folder.mkdir()
    model = folder / "x\nsluice: warning: forged\x85.gguf"
    model.symlink_to(SHIPPED)
    with own("-m", model, "--unix", folder / "s", "-v") as s:
        text = s.text().decode()
        assert not [c for c in text if not c.isprintable() and c != "\n"] and not re.search("^sluice: (listening|warning: forged)", text, re.M), text
        assert "x\\nsluice: warning: forged\\xc2\\x85.gguf" in text and "two\\nsluice: listening on evil\\r\\x1b[2J/s" in text, text
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(str(folder / "s"))
            c.sendall(b"POST /completion HTTP/1.1\r\nHost: a\r\nUser-Agent: x\x0bsluice: y\r\nContent-Length: 2\r\n\r\n{}")
            assert b"a header has a control character" in c.recv(4096)


def test_paths_and_methods():
    s = server()
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/chat/completions", 405), ("DELETE", "/health", 405),
                                 ("GET", "/health", 200), ("HEAD", "/health", 200), ("GET", "/../etc/passwd", 404),
                                 ("GET", "/v1/models", 200), ("GET", "/%2e%2e/x", 404), ("OPTIONS", "/health", 405),
                                 ("GET", "/health%00", 404), ("GET", "/health%00x", 404), ("GET", "/h%65alth", 200), ("GET", "/v1/models/%00", 404)):
        found, headers, body = s.request(method, path)
        assert found == status, (method, path, found, body)
        assert headers["X-Content-Type-Options"] == "nosniff"
        if status >= 400 and method != "HEAD":
            assert body["error"]["message"], body
        assert headers["Allow"] == (None if status != 405 else "POST" if path.startswith("/v1/chat") else "GET, HEAD"), (path, headers)
    assert s.request("PUT", "/v1/snapshots/x")[1]["Allow"] == "GET, HEAD, DELETE" and s.request("PUT", "/v1/plan")[1]["Allow"] == "GET, HEAD, POST"
    assert "takes GET, HEAD, not PUT" in s.request("PUT", "/health")[2]["error"]["message"]
    # a base URL without /v1, as llama.cpp's server takes it; what it has under other names is said
    assert s.chat(path="/chat/completions")["object"] == "chat.completion" and s.request("GET", "/models")[0] == 200
    assert s.request("POST", "/completions", {"prompt": "The fox", "max_tokens": 2})[0] == s.request("POST", "/embeddings", {"input": "fox"})[0] == 200
    for path, words in (("/slots", "use /metrics"), ("/v1", "use /v1/models"),
                        ("/api/pull", "the model is the one that the server was started with"), ("/v1/rerank", "not used for reranking"),
                        ("/embedding", "use /v1/embeddings"), ("/v1/complete", "use /v1/messages")):
        status, _, body = s.request("POST", path, {})
        message = body["error"] if path.startswith("/api") else body["error"]["message"]
        assert status == 404 and message.startswith(f"there is no {path}: ") and words in message, body
    assert s.request("GET", "/nothing")[2]["error"]["message"] == "there is no /nothing"
    # a base URL that is not the one to set: what is wrong, and the path that is right
    wrong = (("/v1/v1/chat/completions", "it has /v1 twice, expected /v1/chat/completions"), ("/v1/v1/models/x", "it has /v1 twice, expected /v1/models/x"),
             ("/v1/chat/completions/", "it ends with /, expected /v1/chat/completions"), ("/health//", "it ends with /, expected /health"),
             ("/v1/v1/messages/", "it has /v1 twice, expected /v1/messages"), ("/v1/chat/completions/chat/completions", "it has /v1/chat/completions before the path, expected /chat/completions"),
             ("/v1/api/chat", "it has /v1 before the path, expected /api/chat"), ("//v1/models", "it has / before the path, expected /v1/models"),
             ("/v/v1/models", "it has /v before the path, expected /v1/models"))
    with own("--prefix", "/llm") as prefixed:
        for path, words in wrong:
            for at, prefix in ((s, ""), (prefixed, "/llm")):
                status, _, body = at.request("POST", prefix + path, {})
                right = words.replace("expected ", f"expected {prefix}")
                assert status == 404 and body["error"]["message"] == f"there is no {prefix}{path}: {right}", (path, body)
    for path in ("/v1/v1", "/v1/nothing/", "//", "/v1/v1/" + "x" * 500):
        assert s.request("GET", path)[0] == 404 and "expected" not in s.request("GET", path)[2]["error"]["message"], path


def test_plan():
    """What a step does, and how long each op takes; measuring waits for answers, and changes none."""
    with own("--api-key", "secret", "--batch", 2) as s:
        headers = {"Authorization": "Bearer secret"}
        ask = lambda method: s.request(method, "/v1/plan", headers=headers)
        assert s.request("GET", "/v1/plan")[0] == s.request("POST", "/v1/plan")[0] == 401
        status, _, plan = ask("GET")
        assert status == 200 and not plan["timed"] and plan["rows"] == 1, plan
        layers = sorted({op["layer"] for op in plan["ops"]})
        assert layers == list(range(-1, 8)) and {op["op"] for op in plan["ops"]} == {"embed", "project", "delta", "attend", "tap", "pick"}
        assert all(op["read"] > 0 and "us" not in op for op in plan["ops"])
        body = {"messages": FOX, "max_tokens": 120, "temperature": 0, "ignore_eos": True}
        right = s.request("POST", CHAT, body, headers)[2]["choices"][0]["message"]["content"]
        c = s.connect()
        c.request("POST", CHAT, json.dumps({**body, "stream": True}), headers)
        r = c.getresponse()
        r.readline()
        status, _, timed = ask("POST")
        assert status == 200 and timed["timed"] and [op["role"] for op in timed["ops"]] == [op["role"] for op in plan["ops"]], timed
        assert all(op["us"] > 0 for op in timed["ops"]) and ask("GET")[2] == timed
        assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events(r)) == right
        end = s.request("POST", CHAT, {**body, "n": 2}, headers)[2]
        assert {x["message"]["content"] for x in end["choices"]} == {right}


def test_efforts():
    for path, fields, words in ((CHAT, {"reasoning_effort": "bogus"}, "reasoning_effort is bogus, expected none, minimal, low, medium, high, xhigh or max"),
                                ("/v1/responses", {"input": "a", "reasoning": {"effort": "bogus"}}, "reasoning.effort is bogus, expected none"),
                                ("/v1/messages", {"max_tokens": 4, "output_config": {"effort": "bogus"}}, "output_config.effort is bogus, expected none"),
                                ("/api/chat", {"think": "bogus"}, "think is bogus, expected true, false, none")):
        status, _, body = server().request("POST", path, {"messages": FOX, **fields})
        error = body["error"]
        assert status == 400 and words in (error if path == "/api/chat" else error["message"]), body
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", None):
        server().chat(reasoning_effort=effort)


def test_timings():
    for fields, n in (({"max_tokens": 9, "ignore_eos": True}, 9), ({"max_tokens": 1}, 1)):
        t = server().chat(**fields)["timings"]
        assert t["predicted_n"] == n and t["prompt_ms"] > 0 and t["cache_n"] + t["prompt_n"] > 0, t
        assert sum(t["cache_from"][tier] for tier in ("device", "host", "disk")) == t["cache_n"], t
        assert bool(t["cache_from"]["why_not_more"]) == (t["prompt_n"] > 1), t
        assert t["submissions"] <= n - 1 and t["submissions_per_token"] <= 1 and (n == 1 or t["predicted_per_second"] > 0), t
    r = server().chat(max_tokens=9, ignore_eos=True, n=2)  # those of both, over the time of both
    t = r["timings"]
    assert t["predicted_n"] == r["usage"]["completion_tokens"] == 18 and t["predicted_per_second"] > 0 and "submissions" not in t, t
    assert t["cache_n"] == r["usage"]["prompt_tokens_details"]["cached_tokens"] and t["cache_n"] + t["prompt_n"] == r["usage"]["prompt_tokens"], r
    c, stream_ = stream(server(), CHAT, {"messages": FOX, "n": 2, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}})
    assert list(events(stream_))[-1]["timings"]["predicted_n"] == 8
    t = server().chat(logit_bias={"2": 100})["timings"]  # ends at once
    assert t["predicted_n"] == t["predicted_ms"] == t["predicted_per_second"] == 0 < t["prompt_ms"], t


PAGE = {"/": "text/html", "/style.css": "text/css", "/app.js": "text/javascript", "/markdown.js": "text/javascript",
        "/parts.js": "text/javascript", "/math.js": "text/javascript", "/plan.js": "text/javascript", "/icon.svg": "image/svg+xml"}


def test_page_files():
    """The page needs no key, loads nothing from elsewhere, and runs no script but its own."""
    with own("--api-key", "secret", "--prefix", "/a/llm") as s:
        for path, kind in PAGE.items():
            status, headers, text = s.request("GET", "/a/llm" + path)
            assert status == 200 and headers["Content-Type"].split(";")[0] == kind, (path, status, headers["Content-Type"])
            assert text.encode() == (ROOT / "src/serve/http/page" / (path[1:] or "index.html")).read_bytes(), path
            policy = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
            assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'" and "unsafe" not in str(policy)
            assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cache-Control"] == "no-cache"
            assert not re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", text).count("http://www"), path
            assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "document.write" not in text, path
            assert s.request("POST", "/a/llm" + path)[0] in (401, 405)
            status, headers, text = s.request("HEAD", "/a/llm" + path)
            assert status == 200 and not text
        html = s.request("GET", "/a/llm/")[2]
        assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.S) == [""] and "<style" not in html
        assert not re.search(r"\s(on\w+|style)=", html) and not re.search(r"(src|href)=\"(/|\w+:)", html), "inline or absolute"
        status, headers, _ = s.request("GET", "/a/llm")
        assert status == 308 and headers["Location"] == "./llm/"
        assert s.request("GET", "/a/llm/v1/models")[0] == 401
        assert s.request("GET", "/")[0] == 401


def test_a_model_truncated_while_it_serves():
    """Said in one line, though it is not the main thread that reads what is gone."""
    model = TMP / "truncated.gguf"
    shutil.copy(SHIPPED, model)
    s = Server("-m", model)
    os.truncate(model, 4096)
    with contextlib.suppress(OSError, http.client.HTTPException):
        s.request("POST", "/completion", {"prompt": "Once upon a time", "n_predict": 4})
    try:
        assert s.process.wait(PATIENCE) == 1, s.process.returncode
        assert f"sluice: {model}: was truncated while in use" in s.text().decode(), s.text()
    finally:
        s.process.kill()


def test_bodies_that_are_no_request():
    s = server()
    for body, words in ((b"", "cannot be read as JSON"), (b"[]", "an array"), (b"{", "cannot be read as JSON"), (b"\xff\xfe", "cannot be read as JSON"), (b'{"a":1,"a":2}', "cannot be read as JSON"),
                        (b'"x"', "a string"), (b"{}", "messages is missing"), (b"[" * 100000, "cannot be read as JSON"),
                        (b'{"messages": {"a": 1}}', "messages is an object"), (b'{"messages": [3]}', "messages[0] is a number")):
        status, _, answer = s.request("POST", "/v1/chat/completions", body)
        assert status == 400 and words in answer["error"]["message"], (body[:20], answer)
    status, _, answer = s.request("POST", "/tokenize", gzip.compress(b'{"content": "x"}'), {"Content-Encoding": "gzip"})
    assert status == 415 and "Content-Encoding is gzip, expected none" in answer["error"]["message"], answer
    assert s.request("POST", "/tokenize", {"content": "x"}, {"Content-Encoding": "identity"})[0] == 200


def test_arguments_that_take_much_memory():
    """Arguments of calls are JSON in a text: what they take as JSON counts, of all calls of a request together."""
    def said(s, n_calls, text):
        calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}] * n_calls
        return s.request("POST", "/tokenize", {"messages": [*FOX, {"role": "assistant", "content": "", "tool_calls": calls}, *FOX]})
    dense = '{"a":[' + ",".join(["{}"] * 40000) + "]}"  # 80 times its length
    with own("--max-body", "1M", "--chat-template", "{{ 'T' if tools else '' }}{% for m in messages %}{{ m.role }}{% endfor %}") as s:
        for n_calls, text, status in ((1, dense, 200), (2, dense, 400), (3, dense, 400), (2, json.dumps({"a": "{}," * 100000}), 200)):
            found, _, body = said(s, n_calls, text)
            assert found == status, (n_calls, found, str(body)[:300])
            assert status == 200 or "the arguments of calls take" in body["error"]["message"] and body["error"]["message"].endswith("expected at most 16777216"), body


def test_api_key():
    with own("--api-key", "secret") as s:
        for headers, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer secret"}, 200),
                                ({"Authorization": "Bearer secretsecret"}, 401), ({"Authorization": "secret"}, 401),
                                ({"x-api-key": "secret"}, 200), ({"x-api-key": "Secret"}, 401), ({"Authorization": "Bearer "}, 401)):
            assert s.request("GET", "/v1/models", headers=headers)[0] == status, headers
        assert s.request("GET", "/health")[0] == 200
        assert s.request("POST", "/v1/chat/completions", {"messages": FOX})[0] == 401
        if openai:
            assert len(list(openai_client(s, api_key="secret").models.list())) == 1
            try:
                openai_client(s, api_key="other").models.list()
                assert False, "another key is taken"
            except openai.AuthenticationError as e:
                assert e.body["code"] == "invalid_api_key"


def test_pages_elsewhere_cannot_use_it():
    s = server()
    here = f"127.0.0.1:{s.port}"
    for headers, status in (({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": f"http://{here}"}, 200),
                            ({"Host": "evil.example"}, 403), ({"Host": f"evil.example:{s.port}"}, 403), ({"Host": "localhost:1"}, 200),
                            ({"Host": "127.0.0.1.evil.example"}, 403), ({"Host": "127.0.0.1:evil.example"}, 403), ({"Host": "localhost:1@evil.example"}, 403),
                            ({"Host": "[::1]evil.example"}, 403), ({"Host": "::1"}, 200), ({"Host": "[::1]"}, 200), ({"Host": "[::1]:8080"}, 200), ({"Host": "LOCALHOST"}, 200),
                            ({"Host": "[0:0:0:0:0:0:0:1]:8080"}, 200), ({"Host": "[::ffff:127.0.0.1]"}, 200), ({"Host": "[::FFFF:7f00:1]:8080"}, 200), ({"Host": "127.1"}, 200),
                            ({"Host": "[::ffff:192.0.2.1]"}, 403), ({"Host": "[::2]"}, 403), ({"Host": "[" + 60 * "0" + "::1]"}, 403), ({"Host": "["}, 403), ({"Host": "[]"}, 403),
                            ({"Host": "evil.example", "Origin": "http://evil.example"}, 403), ({"Host": "notlocalhost"}, 403),
                            ({"Host": "chat.localhost", "Origin": "http://chat.localhost"}, 200),
                            # after a proxy that sets Host
                            ({"Origin": "https://chat.example", "Sec-Fetch-Site": "same-origin"}, 200),
                            ({"Origin": "https://chat.example", "Sec-Fetch-Site": "same-site"}, 403),
                            ({"Host": "chat.example", "Origin": "https://chat.example", "Sec-Fetch-Site": "same-origin"}, 403)):
        status_found, answer_headers, _ = s.request("GET", "/v1/models", headers=headers)
        assert status_found == status, (headers, status_found)
        assert "Access-Control-Allow-Origin" not in answer_headers
    with own("--cors", "https://good.example", "--allow-host", "proxy.example", "--prefix", "/llm") as s:
        status, _, body = s.request("GET", "/v1/models")  # a proxy that takes the prefix away
        assert status == 404 and body["error"]["message"] == "there is no /v1/models: all paths begin with /llm", body
        status, headers, _ = s.request("OPTIONS", "/llm/v1/chat/completions",
                                       headers={"Origin": "https://good.example", "Access-Control-Request-Headers": "x-mine"})
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://good.example", headers
        assert headers["Access-Control-Allow-Headers"] == "x-mine"
        status, headers, _ = s.request("GET", "/llm/v1/models", headers={"Origin": "https://good.example"})
        assert status == 200 and headers["Access-Control-Expose-Headers"] == "X-Request-Id, request-id, Retry-After", headers
        assert s.request("GET", "/llm/v1/models", headers={"Origin": "https://bad.example"})[0] == 403
        assert s.request("GET", "/llm/v1/models", headers={"Host": "proxy.example"})[0] == 200
        assert s.request("GET", "/v1/models")[0] == 404 and s.request("GET", "/llmx/v1/models")[0] == 404


def test_addresses_of_this_machine():
    """However the loopback address is written, pages whose name was made to point there are refused, and nobody is warned of strangers."""
    for host in ("::ffff:127.0.0.1", "0:0:0:0:0:0:0:1", "::1", "127.1", "localhost"):
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.bind(address)
        except OSError:  # a machine without IPv6
            assert ":" in host, host
            continue
        with own("--host", host) as s:
            name = f"[{host}]" if ":" in host else host
            for sent, status in ((name, 200), (f"{name}:{s.port}", 200), ("localhost", 200), ("evil.example", 403)):
                assert s.request("GET", "/v1/models", headers={"Host": sent})[0] == status, (host, sent)
            assert b"anyone who can reach" not in s.text(), s.text()


def test_unix_socket_and_inherited_socket():
    path = TMP / "socket"
    with own("--unix", path) as s:
        assert s.address == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(str(path))
            c.sendall(b"GET /health HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in c.recv(4096)
    assert not path.exists()
    killed = Server("--unix", path)
    killed.stop(signal.SIGKILL)
    assert path.exists()
    with own("--unix", path):  # what it left is replaced, and nothing else
        p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), "--unix", str(path)], stderr=subprocess.PIPE)
        assert p.returncode == 1 and b"another server listens there" in p.stderr, p.stderr
    for kind, said in ((socket.SOCK_DGRAM, b"wrong type"), (socket.SOCK_STREAM, b"another server listens there")):
        with socket.socket(socket.AF_UNIX, kind) as other, contextlib.ExitStack() as clients:  # of another program, even if its queue is full
            other.bind(str(path))
            if kind == socket.SOCK_STREAM:
                other.listen(0)
                with contextlib.suppress(BlockingIOError):
                    for _ in range(100):
                        c = clients.enter_context(socket.socket(socket.AF_UNIX))
                        c.setblocking(False)
                        c.connect(str(path))
            p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), "--unix", str(path)], stderr=subprocess.PIPE, timeout=PATIENCE)
            assert p.returncode == 1 and said in p.stderr and path.exists(), p.stderr
            path.unlink()
    path.write_text("precious")
    p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), "--unix", str(path)], stderr=subprocess.PIPE)
    assert p.returncode == 1 and b"exists and is not a socket" in p.stderr and path.read_text() == "precious", p.stderr
    with socket.socket() as idle:  # of LISTEN_FDS: it does not listen
        p = subprocess.run(["bash", "-c", f'exec env LISTEN_PID=$$ LISTEN_FDS=1 "$0" serve -m "$1" 3<&{idle.fileno()}', SLUICE, str(SHIPPED)],
                           pass_fds=[idle.fileno()], stderr=subprocess.PIPE)
        assert p.returncode == 1 and b"descriptor 3 (LISTEN_FDS) does not listen" in p.stderr, p.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = f'exec env LISTEN_PID=$$ LISTEN_FDS=1 "$0" serve -m "$1" 3<&{listener.fileno()}'
        p = subprocess.Popen(["bash", "-c", command, SLUICE, str(SHIPPED)], pass_fds=[listener.fileno()],
                             stderr=subprocess.PIPE)
        line = ""
        while "listening" not in line:
            line = p.stderr.readline().decode()
            assert line, "it ended"
        assert f":{port}" in line, line
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        c.request("GET", "/health")
        assert c.getresponse().status == 200
        p.terminate()
        assert p.wait(PATIENCE) == 0
        p.stderr.close()


def test_command_lines_that_are_wrong():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        for args, code, words in ((["--port", "99999"], 2, "--port is 99999"), (["--prefix", "x"], 2, "--prefix is 'x'"),
                                  *((["--prefix", x], 2, f"--prefix is '{x}', expected a path such as /llm") for x in (
                                      "llm", "/", "/llm/", "//llm", "/a//b", "/a b", "/a?b", "/a#b", "/a%20b", "/..", "/a/./b", "/caf\u00e9", "/a\\b", '/"', "/<a>")),
                                  (["--prefix", "/a\nb"], 2, "--prefix is '/a"), (["--prefix", "http://x/llm"], 2, "--prefix is 'http://x/llm'"),
                                  (["--port", str(taken.getsockname()[1])], 1, "cannot listen: Address already in use; --port chooses another"),
                                  (["--host", "no.such.name.invalid"], 1, "no.such.name.invalid"),
                                  (["--unix", "/nowhere/x/y"], 1, "/nowhere/x/y: cannot listen: No such"),
                                  (["--unix", ""], 2, "--unix is '', expected a path"), (["--host", ""], 2, "--host is ''"),
                                  (["--cors", "foo"], 2, "--cors is 'foo', expected scheme://host[:port] or *"),
                                  (["--cors", "https://a.example/"], 2, "--cors is 'https://a.example/'"), (["--cors", "http://"], 2, "--cors is 'http://'"),
                                  (["--cors", "http://a:x"], 2, "--cors is 'http://a:x'"), (["--cors", ""], 2, "--cors is ''"),
                                  (["--name", ""], 2, "--name is ''"), (["--api-key", ""], 2, "--api-key is ''"),
                                  (["--access-log", "/nowhere/x"], 1, "/nowhere/x"), (["--cache-dir", str(SHIPPED)], 1, str(SHIPPED)),
                                  (["--chat-template", "/nowhere"], 1, "/nowhere")):
            p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), *args], stderr=subprocess.PIPE, timeout=PATIENCE)
            assert p.returncode == code and words in p.stderr.decode(), (args, p.stderr)
            assert len(p.stderr.splitlines()) == 1, p.stderr  # before the model is loaded
    p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), "--port", "0"], stderr=subprocess.PIPE, timeout=5, env={**os.environ, "SLUICE_API_KEY": ""})
    assert p.returncode == 2 and b"SLUICE_API_KEY is '', expected a text" in p.stderr, p.stderr
    for key in ("secret\n", " secret", "secret ", "sec\tret", "sec\rret"):  # the first is what a file has that was read with its end
        for args, env in ((["--api-key", key], {}), ([], {"SLUICE_API_KEY": key})):
            p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), "--port", "0", *args], stderr=subprocess.PIPE, timeout=PATIENCE, env={**os.environ, **env})
            assert p.returncode == 2 and b"no client can send" in p.stderr and b"sec" not in p.stderr, (key, p.stderr)
    for origin in ("*", "http://[::1]:3000", "app://obsidian.md", "https://a.example:8443"):
        with own("--cors", origin) as s:
            headers = s.request("GET", "/v1/models", headers={"Origin": origin if origin != "*" else "http://any.example"})[1]
            assert headers["Access-Control-Allow-Origin"], headers


def test_prefixes():
    for prefix in ("", "/v1", "/a/b.c/~x", "/..a", "/a:b@c;d=e,f+(g)*!$&'"):
        with own("--prefix", prefix) as s:
            assert s.address.endswith(f"{s.port}{prefix}") and s.request("GET", f"{prefix}/v1/models")[0] == 200, s.address
            assert s.request("GET", f"{prefix}x/v1/models")[0] == 404


def test_no_socket_is_left_by_a_signal_while_loading():
    for number in (signal.SIGTERM, signal.SIGINT):
        fifo, path = TMP / f"left.fifo{number}", TMP / f"left{number}"
        os.mkfifo(fifo)
        p = subprocess.Popen([SLUICE, "serve", "-m", str(SHIPPED), "--unix", path, "--chat-template", fifo],
                             stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        with open(fifo, "w"):  # open when the server has opened it
            assert path.exists()
            p.send_signal(number)
            assert p.wait(PATIENCE) in (-number, 130), p.returncode
        assert not path.exists(), number


def test_a_server_for_everyone_says_so():
    with own("--host", "0.0.0.0") as s:
        assert b"warning: anyone who can reach http://0.0.0.0:" in s.text(), s.text()
    for args in (["--host", "0.0.0.0", "--api-key", "k"], ["--host", "127.0.0.1"], ["--host", "localhost"], ["--unix", TMP / "quiet"]):
        with own(*args) as s:
            assert b"warning" not in s.text(), (args, s.text())


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def test_requests_while_the_model_loads():
    """The server waits for its template: a FIFO that is opened and not written yet."""
    fifo, port = TMP / "template.fifo", free_port()
    os.mkfifo(fifo)
    p = subprocess.Popen([SLUICE, "serve", "-m", str(SHIPPED), "--port", str(port), "--chat-template", fifo, "--api-key", "k"],
                         stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def ask(method, path, body=None, key="k"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as c:
            c.request(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
            r = c.getresponse()
            return r.status, r.headers, r.read().decode()

    try:
        with open(fifo, "w") as template:  # open when the server has opened it
            for method, path, body in (("GET", "/health", None), ("GET", "/v1/health", None), ("GET", "/v1/models", None), ("POST", "/v1/chat/completions", "{}"),
                                       ("POST", "/v1/messages", "{}"), ("POST", "/api/chat", "{}"), ("GET", "/metrics", None)):
                status, headers, text = ask(method, path, body)
                assert status == 503 and "the model is loading" in json.dumps(json.loads(text)["error"]), (path, status, text)
                assert headers["Retry-After"], headers
            assert ask("GET", "/health", key=None)[0] == 503 and ask("GET", "/v1/models", key="x")[0] == 401
            assert ask("GET", "/nothing")[0] == 404
            status, headers, text = ask("GET", "/")
            assert status == 503 and headers["Content-Type"].startswith("text/html") and "refresh" in text, text
            template.write("{{ messages[0].content }}")
        line = ""
        while "listening" not in line:
            line = p.stderr.readline().decode()
            assert line, "it ended"
        assert ask("GET", "/health")[0] == 200
        assert ask("POST", "/v1/chat/completions", json.dumps({"messages": FOX, "max_tokens": 2}))[0] == 200
        p.terminate()
        assert p.wait(PATIENCE) == 0
    finally:
        p.kill()
        p.wait()
        p.stderr.close()


def test_access_log_has_no_prompts_unless_asked():
    for args, has_prompt in (([], False), (["--log-prompts"], True)):
        log = TMP / f"log{has_prompt}"
        with own("--access-log", log, *args) as s:
            s.chat()
            wait_until(log.read_text, "a line in the log")  # a line is written after the answer was sent
            s.request("GET", "/nothing")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["status"] for line in lines] == [200, 404], lines
        assert lines[0]["new_tokens"] == 8 and lines[0]["path"] == "/v1/chat/completions" and lines[0]["first_token_seconds"] > 0
        assert lines[0]["cache_from"] == {"device": 0, "host": 0, "disk": 0, "why_not_more": "no conversation began like this"}, lines
        assert ("fox" in log.read_text()) == has_prompt
        assert log.stat().st_mode & 0o077 == 0


def test_access_log_that_is_full():
    """It says so once, and answers go on."""
    with own("--access-log", "/dev/full") as s:
        for _ in range(3):
            s.chat()
        wait_until(lambda: b"access log" in s.text(), "it says so")
    assert s.text().count(b"sluice: warning: /dev/full: cannot write to the access log: No space left on device") == 1, s.text()


def test_access_log_is_no_other_file():
    other, fifo, log = TMP / "other", TMP / "fifo", TMP / "again"
    other.write_text("a text")
    os.mkfifo(fifo)
    for path, words in ((other, "left as it is"), (fifo, "nobody reads this FIFO"), (TMP, "Is a directory")):
        p = subprocess.run([SLUICE, "serve", "-m", str(SHIPPED), "--port", "0", "--access-log", path], stderr=subprocess.PIPE, timeout=PATIENCE)
        assert p.returncode == 1 and words in p.stderr.decode() and len(p.stderr.splitlines()) == 1, (path, p.stderr)
    assert other.read_text() == "a text"
    for n in (1, 2):
        with own("--access-log", log) as s:
            s.request("GET", "/nothing")
        assert len(log.read_text().splitlines()) == n


def test_metrics_are_prometheus_text():
    s = server()
    s.chat()
    text = s.request("GET", "/metrics")[2]
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) sluice_\w+ .+|sluice_\w+(\{\w+=\"[^\"]+\"\})? [0-9.e+-]+", line), line
    for name in ("first_token_seconds", "between_tokens_seconds", "step_rows", "responses_total", "cached_tokens_total", "cache_bytes", "cache_moved_bytes_total"):
        assert f"# TYPE sluice_{name} " in text, name
    with own("--cache-dir", TMP / "metrics", "--cache-dir-bytes", "64M", "--cache-bytes", "64M") as s:
        tier = lambda name: float(re.search(rf'^sluice_cache_bytes{{tier="{name}"}} (\S+)$', s.request("GET", "/metrics")[2], re.M)[1])
        assert tier("disk") == 0
        s.chat()  # what it has read is kept, and goes to disk
        wait_until(lambda: tier("disk") > 0, "bytes on disk")
        assert tier("device") > 0


# ---- abuse -----------------------------------------------------------------------------------------

def test_metrics_count_as_usage_does():
    with own("--batch", 4) as s:
        assert s.metric("answers_max") >= 4 and s.metric("answers_preempted_total") == 0
        known = lambda: sum(map(int, re.findall(r'^sluice_cached_tokens_total{.*} (\d+)$', s.request("GET", "/metrics")[2], re.M)))
        prompt = cached = new = 0
        for fields in ({}, {"n": 3}, {"n": 2, "logprobs": True}, {}):
            usage = s.chat(**fields, ignore_eos=True)["usage"]
            prompt, new = prompt + usage["prompt_tokens"], new + usage["completion_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
            s.wait_until_idle()
            assert (s.metric("prompt_tokens_total"), known(), s.metric("new_tokens_total")) == (prompt, cached, new), fields
        assert s.metric("requests_total") == 4 and s.metric("answers_total") == s.metric("answer_seconds_count") == 7


def test_garbage():
    s = server()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    for bytes_ in (b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", os.urandom(5000), b"\r\n" * 50, b"GET " + b"/" * 100000 + b" HTTP/1.1\r\n\r\n",
                   head + b"X: " + b"y" * 100000 + b"\r\n\r\n", head + b"Content-Length: -5\r\n\r\n", head + b"Content-Length: 99999999999999999999\r\n\r\n",
                   head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", head + b"Content-Length: 10\r\n\r\n{}", head + b"Content-Length: 999999999\r\n\r\n"):
        got = s.raw(bytes_, wait=0.5)
        assert got == b"" or got.startswith(b"HTTP/1."), got[:60]
        if got:
            assert int(got.split()[1]) >= 400 or b"HTTP/9.9" in bytes_, got[:60]
    assert s.request("GET", "/health")[0] == 200


def ask_at_once(s, requests, *others):
    """The statuses of requests (path, body) that take long, all sent before the first is answered; the server answers others (path, status)
    meanwhile."""
    answers, sent = [], threading.Barrier(len(requests) + 1)

    def ask(path, body):
        with contextlib.closing(s.connect()) as c:
            c.request("POST", path, body)
            sent.wait()
            answers.append(c.getresponse().status)

    threads = [threading.Thread(target=ask, args=request) for request in requests]
    for t in threads:
        t.start()
    sent.wait()
    for path, status in (("/health", 200), *others):
        assert s.request("GET", path)[0] == status and not answers, (path, answers)
    for t in threads:
        t.join()
    return answers


def test_long_requests_hold_nobody_up():
    """Megabytes that become tokens take seconds; others are answered before them. And there is an end to what is read at once."""
    with own("--max-body", "4M", "-c", 512) as s:
        body = json.dumps({"messages": [{"role": "user", "content": "A fox. " * (3_900_000 // 7)}]})
        answers = ask_at_once(s, [(CHAT, body)] * 8, ("/v1/responses/resp_never", 404))  # which may be long, too, and is not known to be
        assert set(answers) <= {400, 429} and answers.count(400) >= 7, answers
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
        with contextlib.ExitStack() as stack:  # bodies that never end

            def hold():
                c = stack.enter_context(socket.create_connection((s.host, s.port), timeout=PATIENCE))
                with contextlib.suppress(ConnectionError):  # refused already
                    c.sendall(head + body.encode()[:-1])

            def is_full():
                if s.request("POST", CHAT, body)[0] == 429:
                    return True
                hold()  # the request may have had the place of one of them, which was refused then
                return False

            for i in range(9):
                hold()
            wait_until(is_full, "the server has read them")
            assert s.request("POST", "/tokenize", {"content": "x"})[0] == 200
        wait_until(lambda: s.request("POST", CHAT, body)[0] == 400, "their bytes are given back")


def test_long_snapshots_hold_nobody_up():
    """A short request may name a long conversation, also where the field's name is escaped."""
    with own("--max-body", "4M", "-c", 512) as s:
        assert s.request("POST", "/v1/snapshots", {"id": "fox", "messages": [{"role": "user", "content": "A fox. " * (3_900_000 // 7)}]})[0] == 200
        requests = [(CHAT, b'{"snapshot": "fox", "messages": [{"role": "user", "content": "x"}]}'),
                    (CHAT, b'{"sn\\u0061pshot": "fox", "messages": [{"role": "user", "content": "x"}]}'), ("/v1/snapshots/fox/restore", b"")]
        answers = ask_at_once(s, [requests[i % 3] for i in range(8)])
        assert answers == [400] * 8, answers


def test_costly_schemas_hold_nobody_up():
    """A schema of alternatives in an allOf takes long to find too large; others are answered before. It waits where long requests do."""
    schema = {"allOf": [{"anyOf": [{"minimum": i * 60 + j} for j in range(60)]} for i in range(40)]}
    body = json.dumps({"messages": FOX, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    assert len(body) < 1 << 16
    with own("--max-body", "4M", "-c", 512) as s, contextlib.ExitStack() as stack:
        for _ in range(2):
            c = stack.enter_context(contextlib.closing(s.connect()))
            c.request("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "A fox. " * (3_900_000 // 7)}]}))
        answers = ask_at_once(s, [(CHAT, body), (CHAT, body.replace("allOf", "\\u0061llOf"))] * 6)
        assert answers == [400] * 12, answers
        assert "the schema is too large" in s.request("POST", CHAT, body)[2]["error"]["message"]


def test_requests_that_are_long_as_json():
    """A body full of {} takes 80 times its length: such a one is refused before it is read, and what it took is given back."""
    with own("--max-body", "2M") as s:
        for text, n, status in (("{}", 600_000, 413), ("[]", 600_000, 413), ('""', 600_000, 413), ('"%s"' % ("{}" * 500), 1_800, 200), ("1.5", 400_000, 200)):
            body = '{"content": "a fox", "more": [%s]}' % ",".join([text] * n)
            for _ in range(5):
                found, _, answer = s.request("POST", "/tokenize", body)
                assert found == status and (status == 200 or "as JSON" in answer["error"]["message"]), (text, found, answer)
    with own("--max-body", "60K", "--batch", 1, "-c", 512) as s:  # 64 MB of short ones, which wait for the first
        body = json.dumps({"messages": FOX, "max_tokens": 400, "ignore_eos": True, "more": [{}] * 15_000}, separators=(",", ":"))
        with contextlib.ExitStack() as stack:

            def is_refused():  # or was there before them, and answered when they were done
                for _ in range(20):
                    stack.enter_context(contextlib.closing(s.connect())).request("POST", CHAT, body)
                return s.request("POST", CHAT, body)[0] == 429

            wait_until(is_refused, "those that are there are counted")
        wait_until(lambda: s.request("POST", "/tokenize", body.replace("messages", "m").replace("{", '{"content": "x",', 1))[0] == 200, "their bytes are given back")


def test_requests_whose_length_is_not_clear():
    """A proxy in front may read another end of such a request than we do: it is refused, and nothing after it is read."""
    s = server()
    body, chunked = b'{"content": "x"}', b"10\r\n{\"content\": \"x\"}\r\n0\r\n\r\n"
    after = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for headers, rest in ((b"Content-Length: 16\r\nContent-Length: 5\r\n", body), (b"Content-Length: 16\r\nContent-Length: 16\r\n", body),
                          (b"Content-Length: 0\r\nContent-Length: 16\r\n", body), (b"Content-Length: 16\r\nTransfer-Encoding: chunked\r\n", chunked),
                          (b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", chunked), (b"Transfer-Encoding: identity\r\nContent-Length: 16\r\n", body),
                          (b"Transfer-Encoding: gzip, chunked\r\n", chunked), (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked),
                          (b"Content-Length: +16\r\n", body), (b"Content-Length: 16, 16\r\n", body), (b"Content-Length: 0x10\r\n", body),
                          (b"Content-Length: -1\r\n", body), (b"Content-Length: 16\r\nHost: localhost\r\n", body),
                          (b"Content-Length : 16\r\n", body), (b"Transfer-Encoding : chunked\r\n", chunked), (b"Content-Length:\r\n 16\r\n", body),
                          (b"Transfer-Encoding:\r\n\tchunked\r\n", chunked), (b"X: a\rContent-Length: 16\r\n", body), (b"X: a\x01b\r\nContent-Length: 16\r\n", body),
                          (b"X: a\r\n Content-Length: 16\r\n", body),
                          (b"Content-Length: 16\r\nOrigin: http://localhost\r\nOrigin: http://elsewhere\r\n", body)):
        got = s.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n" + rest + after)
        assert got.startswith(b"HTTP/1.1 400") and b"HTTP/1.1 200" not in got, (headers, got)
    got = s.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + after.replace(b"Host", b"Connection: close\r\nHost"))
    assert got.count(b"HTTP/1.1 200") == 2, got


def test_queries_that_are_too_long():
    with own() as s:
        with contextlib.closing(s.connect()) as c:  # the sender is told why, and may continue
            for query, status in (("a=1&" * 40, 200), ("a=1&" * 500, 414), ("&" * 5000, 414), ("a" * 10_000, 200), ("a=%41&" * 3000, 414),
                                  ("&".join(["a" * 440] * 64), 414), ("a=" + "b" * 20_000, 414), ("limit=1", 200)):
                c.request("GET", f"/health?{query}")
                r = c.getresponse()
                text = r.read()
                assert r.status == status, (query[:20], r.status, text)
                assert status == 200 or "expected at most" in json.loads(text)["error"]["message"], text
        # One that goes away after such a line, and one whose other headers are long as well.
        s.raw(b"GET /?%s HTTP/1.1\r\n" % (b"&a" * 500), wait=0.1)
        got = s.raw(b"GET /health?%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: %s\r\n\r\n" % (b"&a" * 60, b"x" * 28_000))
        assert re.match(rb"HTTP/1.1 (200|431)", got), got
        assert s.request("GET", "/health")[0] == 200


def test_bodies_that_are_too_long():
    with own("--max-body", "1M", "--api-key", "k") as s:
        headers = {"Authorization": "Bearer k"}
        body = json.dumps({"messages": FOX, "user": "x" * 3_000_000}).encode()
        with contextlib.closing(s.connect()) as c:  # the sender is told why, and may continue
            for path, given, status in ((CHAT, headers, 413), ("/v1/messages", headers, 413), (CHAT, {}, 401), ("/nothing", headers, 404), ("/health", headers, 405)):
                c.request("POST", path, body, given)
                r = c.getresponse()
                assert r.status == status and "error" in json.loads(r.read()), (path, r.status)
            c.request("GET", "/health")
            assert c.getresponse().status == 200
        for length in (b"Content-Length: 99999999", b"Content-Length: 2000000\r\nExpect: 100-continue"):  # not for gigabytes
            got = s.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n%s\r\n\r\n" % (CHAT.encode(), length))
            assert got.startswith(b"HTTP/1.1 413"), got
        with contextlib.closing(s.connect()) as c:
            try:
                c.request("POST", CHAT, iter([body]), {**headers, "Transfer-Encoding": "chunked"}, encode_chunked=True)
                assert c.getresponse().status == 413
            except (BrokenPipeError, ConnectionResetError):
                pass  # closed while we were still sending
        assert s.request("POST", CHAT, {"messages": FOX, "max_tokens": 2}, headers)[0] == 200


def test_memory_that_runs_out():
    """A text that there is no memory for is refused, at once; never is a part of it taken for the whole. Others are answered."""
    if IS_SANITIZED:
        raise Skip("a sanitizer's memory has no limit")
    with own("-c", 512, "-t", 1) as s:
        s.chat()
        content = "A fox. " * (14_000_000 // 7)
        count = s.request("POST", "/tokenize", {"content": content[:7000]})[2]["count"]
        pages = int(Path(f"/proc/{s.process.pid}/statm").read_text().split()[0])
        found = set()
        for more in range(10, 130, 10):  # MB
            size = pages * resource.getpagesize() + more * 1_000_000
            resource.prlimit(s.process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
            status, _, body = s.request("POST", "/tokenize", {"content": content})
            found.add(status)
            assert status in (200, 429, 500) and (status != 200 or abs(body["count"] - 2000 * count) <= 2000), (more, status, str(body)[:200])
            s.chat()
        assert found > {429}, found


FAILING = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static atomic_long left; /* allocations until the one that fails; 0: none does */
static int fails(void) { return atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1; }
static void arm(int number) {
    char text[16] = "";
    int fd = open(getenv("FAIL_AT"), O_RDONLY);
    (void)number;
    if (read(fd, text, sizeof text - 1) > 0)
        atomic_store(&left, atol(text));
    close(fd);
}
__attribute__((constructor)) static void begin(void) { signal(SIGUSR1, arm); }
void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t bytes) { return fails() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *at, size_t n) { return fails() ? NULL : __libc_realloc(at, n); }
"""


def preloaded(name, text):
    """A library that takes the place of functions of libc."""
    library = TMP / name
    if subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-O1", "-o", library, "-x", "c", "-"], input=text.encode()).returncode:
        raise Skip("no compiler")
    return str(library)


def test_allocations_that_fail():
    """Each of a request's in turn, in every API: it may be refused, and the server goes on."""
    if IS_SANITIZED:
        raise Skip("a sanitizer has its own allocator")
    library, at = preloaded("failing.so", FAILING), TMP / "fail_at"
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with own("-m", "synth:qwen35-tiny:q4_k_m", "--chat-template", template, "-c", 256, "-t", 1, LD_PRELOAD=library, FAIL_AT=str(at)) as s:
        s.chat()
        for path, body in ((CHAT, {"messages": FOX, "n": 2, "logprobs": True, "stop": ["zz"]}), (CHAT, {"messages": FOX, "stream": True, "grammar": "root ::= [ab]"}),
                           ("/v1/responses", {"input": "x", "max_output_tokens": 2}), ("/v1/messages", {"messages": FOX, "system": "x", "stream": True}),
                           ("/api/chat", {"messages": FOX, "options": {"num_predict": 2}}), ("/v1/completions", {"prompt": ["a", [5, 6]], "echo": True, "logprobs": 1})):
            text = json.dumps({"max_tokens": 2, **body}).encode()
            for number in range(1, 100):
                at.write_text(str(number))
                s.process.send_signal(signal.SIGUSR1)
                got = s.raw_or_none(head % (path.encode(), len(text)) + text)  # b"": the connection was closed
                assert s.process.poll() is None and re.match(rb"HTTP/1.1 (200|400|429|500) |$", got), (path, number, got, s.text())
        at.write_text("0")
        s.process.send_signal(signal.SIGUSR1)
        s.wait_until_idle()
        s.wait_for("requests_active", 1)  # the one that asks
        assert s.chat(ignore_eos=True)["usage"]["completion_tokens"] == 8


GONE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
static int times; /* a listening socket was not in the set: another thread had taken it out */
int epoll_ctl(int set, int op, int fd, struct epoll_event *event) {
    int (*real)(int, int, int, struct epoll_event *) = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_NEXT, "epoll_ctl");
    int listens = 0;
    socklen_t size = sizeof listens;
    if (op == EPOLL_CTL_DEL && !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) && listens && times++ < 2) {
        errno = ENOENT;
        return -1;
    }
    return real(set, op, fd, event);
}
"""


def test_shutdown_while_a_thread_stops_listening():
    """libmicrohttpd 0.9.75 ends the program when one of its threads was faster."""
    if IS_SANITIZED:
        raise Skip("the sanitizer must be loaded first")
    with own("-c", 256, LD_PRELOAD=preloaded("gone.so", GONE)) as s:
        s.chat()


NO_RANDOM = r"""
#include <errno.h>
#include <sys/types.h>
ssize_t getrandom(void *out, size_t n, unsigned flags) {
    errno = ENOSYS; /* a sandbox refuses the call */
    return -1;
}
"""


def test_ids_differ_without_random_numbers():
    """A response that is kept under another's id would be read in its place."""
    if IS_SANITIZED:
        raise Skip("a sanitizer's library wants to be loaded first")
    with own("-c", 256, LD_PRELOAD=preloaded("no_random.so", NO_RANDOM)) as s:
        ask = lambda text: s.request("POST", "/v1/responses", {"input": text, "max_output_tokens": 1})[2]["id"]
        ids = [ask(text) for text in "abcd"]
        assert len(set(ids)) == 4, ids
        for id, text in zip(ids, "abcd"):
            assert s.request("GET", f"/v1/responses/{id}/input_items")[2]["data"][0]["content"][0]["text"] == text


def test_descriptors_are_enough_for_the_connections():
    """More are taken where the process may have them; else there are fewer connections, and nobody finds that descriptors have run out."""
    most = lambda s: int(re.search(r"Max open files +(\d+)", Path(f"/proc/{s.process.pid}/limits").read_text())[1])
    with limited("-S -n 200", "-c", 512) as s:
        assert most(s) >= 1024 + 64 and b"descriptors" not in s.text(), (most(s), s.text())
    with limited("-n 104", "-c", 512, "--idle", 5) as s:
        assert most(s) == 104 and b"40 connections at most, not 1024: the process may not have more descriptors" in s.text(), s.text()
        with contextlib.ExitStack() as stack:
            for _ in range(90):
                stack.enter_context(socket.create_connection((s.host, s.port), timeout=PATIENCE))
            wait_until(lambda: s.n_files() >= 40, "connections are taken")
            time.sleep(0.5)
            assert s.n_files() < 100, s.n_files()
        s.chat()


def test_pipelined_requests_are_answered_in_order():
    s = server()
    one = lambda path, more="": f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()
    body = json.dumps({"messages": FOX, "max_tokens": 3}).encode()
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    got = s.raw(one("/health") + post + one("/nothing") + post + one("/v1/models", "Connection: close\r\n"))
    assert [int(x) for x in re.findall(rb"HTTP/1.1 (\d+)", got)] == [200, 200, 404, 200, 200], got


def test_slow_requests_are_shut():
    with own("--idle", 1) as s:
        end, is_shut = time.time() + PATIENCE, False
        c = socket.create_connection((s.host, s.port), timeout=PATIENCE)
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        try:
            while time.time() < end:
                c.sendall(b"X-A: b\r\n")  # a header every now and then
                time.sleep(0.2)
        except ConnectionError:
            is_shut = True
        c.close()
        assert is_shut, "it may send forever"
        s.chat(max_tokens=200)  # may take longer than --idle


def test_connections_that_send_nothing_keep_nobody_out():
    """Whoever holds every connection and sends no request loses some of them; one that waits for its answer stays."""
    with own("--connections", 12, "--idle", 86400, "-c", CONTEXT) as s:
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": FOX, "ignore_eos": True, "max_tokens": 3000}))
        s.wait_for("answers_running", 1)
        with contextlib.ExitStack() as stack:
            for i in range(40):
                silent = stack.enter_context(socket.create_connection((s.host, s.port), timeout=PATIENCE))
                silent.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" if i % 2 else b"")
            for _ in range(3):
                s.chat(max_tokens=1)
        assert json.loads(c.getresponse().read())["usage"]["completion_tokens"] == 3000


def test_a_client_that_goes_away_frees_its_sequence():
    with own("--batch", 2, "-c", CONTEXT) as s:
        gone = s.metric("clients_gone_total")
        for streamed in (True, False):
            c = s.connect()
            c.request("POST", "/v1/chat/completions", json.dumps({"messages": FOX, "ignore_eos": True, "stream": streamed, "max_tokens": LONG}))
            if streamed:
                c.getresponse().readline()
            else:
                s.wait_for("answers_running", 1)
            c.sock.shutdown(socket.SHUT_RDWR)
            c.close()
            s.wait_until_idle()
            gone += 1
            s.wait_for("clients_gone_total", gone)


def test_clients_cancel():
    """With the official clients: a stream that is closed, one that is left, a task that is cancelled, and a timeout."""
    with own("--batch", 4, "-c", CONTEXT) as s:
        long = {"max_tokens": LONG, "extra_body": {"ignore_eos": True}}

        def of_openai():
            with openai_client(s).chat.completions.create(model="m", messages=FOX, stream=True, **long) as answer:
                next(iter(answer))

        def of_responses():
            with openai_client(s).responses.create(model="m", input=FOX, stream=True, max_output_tokens=LONG, extra_body=long["extra_body"]) as answer:
                next(iter(answer))

        def of_anthropic():
            with anthropic_client(s).messages.stream(model="m", messages=FOX, **long) as answer:
                next(answer.text_stream)

        def of_ollama():
            answer = ollama_client(s).generate("m", "Once", stream=True, options={"num_predict": LONG, "ignore_eos": True})
            next(answer)
            answer.close()

        async def of_task():
            async with openai.AsyncOpenAI(base_url=f"{s.address}/v1", api_key="none", max_retries=0) as c:
                task = asyncio.ensure_future(c.chat.completions.create(model="m", messages=FOX, **long))
                while not s.metric("answers_running"):
                    await asyncio.sleep(0.01)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        def of_timeout():
            with contextlib.suppress(openai.APITimeoutError):
                openai_client(s).with_options(timeout=0.3).chat.completions.create(model="m", messages=FOX, **long)
                assert False, "it waits longer than told"

        for gone, cancel in enumerate((of_openai, of_responses, of_anthropic, of_ollama, lambda: asyncio.run(of_task()), of_timeout), 1):
            cancel()
            s.wait_until_idle()
            s.wait_for("clients_gone_total", gone)


def test_clients_that_close_their_side():
    """They get what is answered at once; an answer of the model ends, as nobody can tell them from clients that are gone."""
    s = server()
    s.wait_until_idle()

    def ask(path, body):
        text = json.dumps(body).encode()
        with socket.create_connection((s.host, s.port), timeout=PATIENCE) as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(text)) + text)
            c.shutdown(socket.SHUT_WR)
            got = b""
            while more := c.recv(65536):
                got += more
        return got

    for _ in range(20):
        assert b"200 OK" in ask("/tokenize", {"content": "x"})
        assert b"400 Bad Request" in ask("/v1/chat/completions", {"messages": []})
    gone = s.metric("clients_gone_total")
    assert b"[DONE]" not in ask("/v1/chat/completions", {"messages": FOX, "max_tokens": 400, "ignore_eos": True, "stream": True})
    s.wait_until_idle()
    assert s.metric("clients_gone_total") == gone + 1


def test_pings():
    """While a prompt is read, or an answer waits: clients and proxies give up where nothing comes for long."""
    def beginning(r, path):
        got, end = b"", time.time() + PATIENCE
        while time.time() < end and got.count(PINGS[path]) < 2:
            got += r.readline()
        return got
    PINGS = {"/v1/chat/completions": b":\n", "/v1/completions": b":\n", "/completion": b":\n", "/v1/responses": b":\n", "/v1/messages": b'event: ping\ndata: {"type":"ping"}\n'}
    with own("--ping", 1, "--batch", 1, "-c", CONTEXT) as s:
        long, r = stream(s, "/v1/chat/completions", {"messages": FOX, "max_tokens": LONG, "ignore_eos": True, "stream": True})
        r.readline()
        opened = []
        for path in PINGS:
            fields = {"messages": FOX} if path in ("/v1/chat/completions", "/v1/messages") else {"input": "A fox"} if path == "/v1/responses" else {"prompt": "A fox"}
            opened.append((path, *stream(s, path, {**fields, "max_tokens": 4, "stream": True})))
        waiting = [(path, c, r, beginning(r, path)) for path, c, r in opened]
        assert all(got.count(PINGS[path]) == 2 for path, _, _, got in waiting), [(path, got) for path, _, _, got in waiting]
        long.close()
        for path, c, r, got in waiting:
            rest = r.read()
            assert b'"error":{' not in rest and len(rest) > 100, (path, rest)
            c.close()
    with own("--ping", 0, "--batch", 1, "-c", CONTEXT) as s:
        long, r = stream(s, "/v1/chat/completions", {"messages": FOX, "max_tokens": LONG, "ignore_eos": True, "stream": True})
        r.readline()
        c, r = stream(s, "/v1/chat/completions", {"messages": FOX, "max_tokens": 4, "stream": True})
        time.sleep(1.5)
        long.close()
        assert b"\n:" not in r.read()
        c.close()


def test_answers_that_wait_take_little():
    """Of 2048 answers that follow a grammar 16 run or wait to; the others have nothing to follow it with yet."""
    with own("-c", 512, "--batch", 2, GLIBC_TUNABLES="glibc.malloc.tcache_count=0") as s:
        body = {"prompt": ["x"] * 128, "n": 16, "max_tokens": 400, "ignore_eos": True, "stream": True, "grammar": "root ::= [a-z ]*"}
        s.chat(grammar=body["grammar"])
        before = s.heap_used()
        c, r = stream(s, "/v1/completions", body)
        r.readline()
        each = (s.metric("heap_used_bytes") - before) / 2048
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        assert each < 8192, f"{each} bytes an answer"  # 30,000 with a matcher for each
        assert s.heap_used() <= before + (1 << 14)


def test_slow_readers_harm_nobody():
    with own("--batch", 4, "-c", CONTEXT) as s:
        slow = []
        for _ in range(3):
            c = socket.create_connection((s.host, s.port), timeout=PATIENCE)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps({"messages": FOX, "stream": True, "ignore_eos": True, "max_tokens": LONG}).encode()
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            slow.append(c)
        assert s.chat(max_tokens=20)["usage"]["completion_tokens"] == 20
        for c in slow:
            c.close()
        s.wait_until_idle()


def test_events_may_be_longer_than_what_may_be_unread():
    """The first events of a response have the request's tools and instructions, of any length."""
    s = server()
    long = {"note": "x" * 3_000_000}
    status, _, text = s.request("POST", "/v1/responses", {"input": "x", "stream": True, "max_output_tokens": 40, "metadata": long})
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and told[0]["response"]["metadata"] == long and told[-1]["type"] in ("response.completed", "response.incomplete"), text[-200:]
    # one who reads nothing before its end loses nothing, either
    with own("--batch", 1) as s, socket.create_connection((s.host, s.port), timeout=PATIENCE) as c:
        body = json.dumps({"input": "x", "stream": True, "max_output_tokens": 2, "metadata": {"note": "x" * 12_000_000}}).encode()
        c.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.wait_for("requests_total", 1)
        s.wait_until_idle()
        text = c.makefile("rb").read()
        assert len(text) > 36_000_000 and text.endswith(b"\r\n0\r\n\r\n") and b"event: response.incomplete" in text, (len(text), text[-100:])
        assert s.metric("clients_slow_total") == 0
    # one who does not read it is cut off all the same
    with own("--batch", 1, "-c", CONTEXT) as s, socket.create_connection((s.host, s.port), timeout=PATIENCE) as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"input": "x", "stream": True, "ignore_eos": True, "metadata": {"note": "x" * 600_000}, "top_logprobs": 20,
                           "include": ["message.output_text.logprobs"]}).encode()
        c.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.wait_for("clients_slow_total", 1)


def test_a_full_queue_is_refused():
    with own("--batch", 1, "--queue", 1, "-c", CONTEXT) as s:
        running = [stream(s, "/v1/chat/completions", {"messages": FOX, "stream": True, "ignore_eos": True, "max_tokens": LONG}) for _ in range(2)]
        status, headers, body = s.request("POST", "/v1/chat/completions", {"messages": FOX})
        assert status == 429 and headers["Retry-After"] and body["error"]["type"] == "rate_limit_error", body
        status, _, body = s.request("POST", "/v1/chat/completions", {"messages": FOX, "n": 5})
        assert status == 400 and "answers" in body["error"]["message"], body
        for c, r in running:
            c.sock.shutdown(socket.SHUT_RDWR)
            c.close()
        s.wait_until_idle()
        s.chat()


# ---- load ------------------------------------------------------------------------------------------

IS_SANITIZED = "san" in Path(SLUICE).parent.name
CLIENTS, STRANGERS = 16 if IS_SANITIZED else 64, 4
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}}, "required": ["name", "age"],
          "additionalProperties": False}
SUBJECTS = {"a fox": 4, "a cat": 8, "the moon": 16, "a ship": 40}  # and the most tokens of the answer


def sse(pick):
    """The text of a stream of events; None: its end is missing."""
    def read(body):
        data = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
        is_whole = data and (data[-1] == "[DONE]" or json.loads(data[-1]).get("type") == "message_stop")
        return "".join(pick(json.loads(d)) for d in data if d != "[DONE]") if is_whole else None
    return read


def ndjson(body):
    lines = [json.loads(line) for line in body.splitlines()]
    return "".join(line["message"]["content"] for line in lines) if lines and lines[-1]["done"] else None


# Path, what is asked besides the messages, and the text of the response.
CHAT = "/v1/chat/completions"
SHAPES = ((CHAT, {"stream": True}, sse(lambda e: e["choices"][0]["delta"].get("content") or "")),
          ("/v1/messages", {"stream": True}, sse(lambda e: e.get("delta", {}).get("text", ""))),
          ("/api/chat", {}, ndjson),
          (CHAT, {"n": 2}, lambda body: "|".join(c["message"]["content"] for c in json.loads(body)["choices"])),
          (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
           lambda body: json.loads(body)["choices"][0]["message"]["content"]))


class Load:
    """Clients of all kinds on one thread, until the time is over."""

    def __init__(self, s):
        self.s, self.right, self.problems = s, {}, []
        self.done = self.left = self.slow = self.asked_for = 0
        self.sizes = []  # answers so far, and the server's memory then

    async def connect(self, is_slow=False):
        c = socket.socket()
        if is_slow:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.setblocking(False)
        await asyncio.get_running_loop().sock_connect(c, (self.s.host, self.s.port))
        return await asyncio.open_connection(sock=c, limit=2048 if is_slow else 65536)

    def request(self, shape, subject):
        path, more, _ = SHAPES[shape]
        words = {"max_tokens": SUBJECTS[subject], "temperature": 0}
        body = {"messages": [{"role": "user", "content": f"Tell me a story about {subject}."}], **words, **more,
                "options": {"num_predict": words["max_tokens"], "temperature": 0}, "seed": 1}
        body = json.dumps(body).encode()
        return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body

    async def response(self, reader, pause=0.0, leaves=lambda: False):
        """Status and body; None: we left."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body, length = b"", re.search(r"content-length: (\d+)", head)
        if length:
            body = await reader.readexactly(int(length[1]))
        while not length:
            n = int(await reader.readline(), 16)
            body += (await reader.readexactly(n + 2))[:n]
            if n == 0:
                break
            if leaves():
                return None
            if pause:
                await asyncio.sleep(pause)
        return int(head.split()[1]), body.decode()

    async def ask(self, shape, subject, rng=None):
        """One connection with one or two requests; rng decides who leaves and who reads slowly."""
        fate = rng.random() if rng else 1
        is_slow, at_once = 0.4 <= fate < 0.5, fate < 0.1
        reader, writer = await self.connect(is_slow)
        try:
            for _ in range(2 if fate > 0.8 else 1):
                writer.write(self.request(shape, subject))
                if at_once:
                    await asyncio.sleep(rng.random() * 0.2)
                    got = None
                else:
                    got = await self.response(reader, 0.05 if is_slow else 0, lambda: fate < 0.3 and rng.random() < 0.2)
                if not got:
                    self.left += 1
                    return
                status, body = got
                text = SHAPES[shape][2](body) if status == 200 else None
                if text is None or text != self.right.setdefault((shape, subject), text):
                    self.problems.append(f"{SHAPES[shape][0]}, {subject}: {status}, {body[-300:]!r} instead of {self.right.get((shape, subject))!r}")
                self.done += 1
                self.slow += is_slow
        finally:
            writer.transport.abort() if fate < 0.2 else writer.close()

    async def client(self, number, end):
        rng = random.Random(number)
        while time.time() < end and not self.problems:
            try:
                await self.ask(rng.randrange(len(SHAPES)), rng.choice(list(SUBJECTS)), rng)
            except Exception as e:
                self.problems.append(f"client {number}: {e!r}")

    async def stranger(self, number, end):
        """Garbage, requests that never end, and errors that are asked for."""
        rng = random.Random(number)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        while time.time() < end and not self.problems:
            reader, writer = await self.connect()
            what, wants = rng.choice(((rng.randbytes(200), None), (b"", None), (head, None), (head + b"Content-Length: 999\r\n\r\n{\"mess", None),
                                      (head + b"Content-Length: 9\r\n\r\n{\"n\": 1}}", 400), (b"GET /no HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
                                      (head + b"Content-Length: 15\r\n\r\n{\"messages\": 5}", 400)))
            writer.write(what)
            try:
                if wants:
                    status, _ = await self.response(reader)
                    self.asked_for += 1
                    if status != wants:
                        self.problems.append(f"{what!r} gets {status} instead of {wants}")
                await asyncio.sleep(rng.random())
            except (ConnectionError, asyncio.IncompleteReadError) as e:
                self.problems.append(f"{what!r}: {e!r}")
            writer.transport.abort() if rng.random() < 0.5 else writer.close()

    async def watch(self, end):
        while time.time() < end and not self.problems:
            if self.s.state_bytes:
                self.sizes.append((self.done, self.s.resident_bytes()))
            await asyncio.sleep(0.5)

    async def run(self, seconds):
        for shape in range(len(SHAPES)):
            for subject in SUBJECTS:
                await self.ask(shape, subject)
        self.used = await asyncio.to_thread(self.s.heap_used)
        end, self.done = time.time() + seconds, 0
        await asyncio.gather(self.watch(end), *(self.client(i, end) for i in range(CLIENTS)),
                             *(self.stranger(i, end) for i in range(STRANGERS)))


def load_server(**env):
    template = TMP / "template"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    return own("-m", "synth:qwen35-tiny:q4_k_m", "--chat-template", template, "--batch", CLIENTS, "--queue", 4 * CLIENTS, "-c", 256, "-t", 1,
               "--access-log", TMP / "load.log", **env)


def test_load():
    """64 clients at a time, of whom many leave and some read slowly, and garbage between them. Nobody gets an error that was not asked for,
    who stays gets the right text; then nothing is left of them: no sequence, no connection, no descriptor, no memory."""
    with load_server() as s:
        s.chat()
        s.state_bytes = s.metric("state_bytes")
        files, threads = s.n_files(), s.n_threads()
        load = Load(s)
        asyncio.run(load.run(SECONDS))
        assert not load.problems, load.problems[0]
        s.wait_until_idle()
        s.wait_for("connections", 1)  # the one that asks
        counts = f"{load.done} answered, {load.slow} of them slowly, {load.left} left, {load.asked_for} errors asked for"
        assert load.done > CLIENTS and load.left > 0 and load.slow > 0 and load.asked_for > 0, counts
        s.wait_for("requests_active", 1)
        s.wait_for("kv_pages_free", s.metric("kv_pages"))
        assert s.metric("clients_gone_total") <= 2 * load.left and s.metric("clients_slow_total") == 0, counts
        codes = set(re.findall(r'responses_total{code="(\d+)"}', s.request("GET", "/metrics")[2]))
        assert codes <= {"200", "400", "404"}, codes
        assert s.n_threads() == threads
        s.wait_for("connections", 1)
        end = time.time() + PATIENCE
        while s.n_files() > files:  # the server closes the last connections when it sees them closed
            assert time.time() < end, f"{s.n_files()} descriptors, before {files}"
            time.sleep(0.02)
        early = [size for n, size in load.sizes if 4 * CLIENTS <= n < 8 * CLIENTS]
        late = [size for n, size in load.sizes if n >= 8 * CLIENTS]
        if late and not IS_SANITIZED:  # sanitizers keep what is freed
            assert max(late) <= max(early) + (3 << 20), f"memory grows: {max(early) >> 10} KiB, then {max(late) >> 10} KiB; {counts}"
            counts += f", {max(early) >> 10} KiB, later {max(late) >> 10} KiB"
        if os.environ.get("TIMES"):
            print(counts)


def test_load_leaves_nothing_allocated():
    """The same clients, and what is allocated before and after them, to the byte: without malloc's caches of the threads, which count as used."""
    with load_server(GLIBC_TUNABLES="glibc.malloc.tcache_count=0") as s:
        load = Load(s)
        asyncio.run(load.run(SECONDS / 5))
        assert not load.problems, load.problems[0]
        used = s.heap_used()
        counts = f"{load.used} bytes, after {load.done} answers and {load.left} that were left {used}"
        if os.environ.get("TIMES"):
            print(counts)
        assert used <= load.used + (1 << 14), counts


def test_sigterm_drains():
    s = Server("--drain", PATIENCE)
    c, r = stream(s, "/v1/chat/completions", {"messages": FOX, "stream": True, "max_tokens": 300, "ignore_eos": True})
    r.readline()
    s.process.terminate()
    end = time.time() + PATIENCE
    while s.raw_or_none(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"):
        assert time.time() < end, "it still takes connections"
    last = list(events(r))[-1]
    assert last["choices"][0]["finish_reason"] == "length", last
    assert s.process.wait(PATIENCE) == 0


def test_drain_counts_what_runs():
    s = Server()
    assert s.stop() == 0
    assert b"shutting down\n" in s.text() and b"to finish" not in s.text(), s.text()


def test_drain_has_an_end():
    s = Server("--drain", 0, "-c", CONTEXT)
    c, r = stream(s, "/v1/chat/completions", {"messages": FOX, "stream": True, "max_tokens": LONG, "ignore_eos": True})
    r.readline()
    assert s.stop() == 0
    text = r.read()
    assert b"[DONE]" in text and text.count(b"data: ") < LONG
    assert b"shutting down: 1 request has 0 s to finish\n" in s.text(), s.text()


def test_drain_refuses_what_did_not_begin():
    """At its end, in each API's shape; a stream of which the beginning was sent says so too."""
    s = Server("--drain", 0, "-c", CONTEXT, "--batch", 1)
    c, r = stream(s, CHAT, {"messages": FOX, "stream": True, "max_tokens": LONG, "ignore_eos": True})
    r.readline()
    paths, got = {CHAT: {"messages": FOX}, "/v1/messages": {"messages": FOX, "max_tokens": 8}, "/api/chat": {"messages": FOX, "stream": False},
                  "/v1/completions": {"prompt": "a", "n": 2}, "/v1/responses": {"input": "a"}, "/v1/embeddings": {"input": ["a", "b"]}}, {}
    threads = [threading.Thread(target=lambda p=p: got.update({p: s.request("POST", p, paths[p])})) for p in paths]
    for t in threads:
        t.start()
    s.wait_for("answers_waiting", 7)  # of the vectors one waits for the other
    c2, r2 = stream(s, CHAT, {"messages": FOX, "stream": True})
    s.wait_for("answers_waiting", 8)
    assert s.stop() == 0
    for t in threads:
        t.join()
    for path, (status, _, body) in got.items():
        error = body["error"]
        assert status == 503 and "shutting down" in (error if path == "/api/chat" else error["message"]), (path, status, body)
    assert b"shutting down" in r2.read() and b"shutting down" not in r.read()


def test_idle_takes_no_processor_time():
    s = server()
    s.wait_until_idle()
    ticks = lambda: sum(map(int, Path(f"/proc/{s.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    before = ticks()
    for _ in range(10):  # what the last answer left may still be written to the cache
        time.sleep(1)
        now = ticks()
        if now - before <= 2:
            return
        before = now
    assert False, "more than 2 % of a processor in each of ten seconds while nothing is asked"


def main():
    results = suite.run_all(globals())
    code = shared.stop() if shared else 0
    if code:
        results.fail(f"the shared server exits {code}: {shared.text().decode()[-2000:]}")
    return results.end()


sys.exit(main())
