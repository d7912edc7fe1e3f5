#!/usr/bin/env python3
"""test_page.py SLUICE - the page of `sluice serve` in a real browser: Debian's chromium, driven by selenium.

Without them it is skipped. Screenshots are kept in build/screenshots.
"""
import functools, json, os, re, signal, subprocess, sys, tempfile, time
from pathlib import Path
from shutil import which

import suite
from suite import PATIENCE, PROGRAM as SLUICE, ROOT, SHIPPED

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    suite.use_venv()
    webdriver = None

SHOTS = ROOT / "build/screenshots"
HOSTILE = """# Heading <b>not bold</b>

<script>window.hit = 1</script> and <img src=x onerror="window.hit = 2"> stay text, **bold**, *italic*, `code <i>`.

[good](https://example.com/a_(b)) [bad](javascript:window.hit=3) [data](data:text/html,<script>window.hit=4</script>)
https://example.com/plain. snake_case_word and 2 * 3 * 4

- one
- two
  1. inner
  2. more

| a | b |
|---|---|
| 1 | <svg onload=window.hit=5> |

> quoted

```html
<script>window.hit = 6</script>
```
""" + "> " * 3000 + "deep\n\n" + "*" * 3000 + "_[`" * 1000


class Server:
    def __init__(self, *args):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([SLUICE, "serve", "-m", str(SHIPPED), "--port", "0", *args],
                                        stderr=self.log, stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"})
        end = time.time() + PATIENCE
        while not (found := re.search(rb"listening on (\S+)", self.text())):
            assert self.process.poll() is None and time.time() < end, self.text().decode()
            time.sleep(0.02)
        self.address = found[1].decode()

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert code == 0, f"exits {code}: {self.text().decode()}"


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,860"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(which("chromedriver")))


class Page:
    def __init__(self, driver):
        self.d = driver

    def all(self, css):
        return self.d.find_elements(By.CSS_SELECTOR, css)

    def one(self, css):
        return self.d.find_element(By.CSS_SELECTOR, css)

    def js(self, text, *args):
        return self.d.execute_script(text, *args)

    def wait(self, what, test):
        suite.wait_until(test, what, every=0.05)

    def click(self, css):
        self.js("arguments[0].click()", self.one(css))

    def say(self, text):
        self.one("#input").send_keys(text, Keys.ENTER)

    def is_busy(self):
        return bool(self.all("#send.stop"))

    def answered(self):
        self.wait("an answer ends", lambda: not self.is_busy() and self.all("article.assistant"))

    def set(self, name, value):
        self.js("const e = document.getElementById('settings').elements[arguments[0]]; e.value = arguments[1];"
                "e.dispatchEvent(new Event('input', {bubbles: true}))", name, str(value))

    def shot(self, name):
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.d.save_screenshot(str(SHOTS / f"{name}.png"))

    def check_log(self, but=()):
        bad = [e["message"] for e in self.d.get_log("browser") if e["level"] == "SEVERE" and not any(b in e["message"] for b in but)]
        assert not bad, bad


def check_chat(p):
    p.shot("welcome")
    p.set("max_tokens", 60)
    p.set("temperature", 0)
    p.say("Tell me a story about a fox.")
    p.answered()
    first = p.one("article.assistant .md").text
    assert len(first) > 60, first
    stats = p.one("article.assistant .stats").text
    assert re.match(r"60 tokens · [\d.]+ tok/s · first after [\d.]+ s · \d+ of \d+ prompt tokens cached · cut at the limit$", stats), stats
    p.click("[aria-label='Go on']")
    p.wait("more of it", lambda: not p.is_busy() and len(p.one("article.assistant .md").text) > len(first) + 60)
    assert p.one("article.assistant .md").text.startswith(first) and len(p.all("article")) == 2
    p.say("And then?")
    p.answered()
    stats = p.all("article.assistant .stats")[1].text
    assert int(re.search(r"(\d+) of \d+ prompt", stats)[1]) >= 60, f"the first turn is not found in the cache: {stats}"
    p.shot("chat")


# Answers that take a minute, so that they can be stopped however slow the browser is.
ENDLESS = ("window.own_fetch = window.fetch; window.fetch = (path, o) => window.own_fetch(path,"
           "o && o.body ? {...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true})} : o)")


def check_stop(p):
    p.set("max_tokens", "")
    p.set("system", "You tell long stories.")
    p.js(ENDLESS)
    p.say("A long one")
    p.wait("text comes", lambda: p.all("article.assistant.running .md p"))
    assert p.js("return [...document.querySelectorAll('.running .stats')].every((e) => /tok.s|cached/.test(e.textContent))"), "no figures while it runs"
    p.one("#input").send_keys(Keys.ESCAPE)
    p.answered()
    p.js("window.fetch = window.own_fetch")
    assert p.all("article.assistant .stats")[-1].text.endswith("stopped")
    p.set("max_tokens", 24)
    p.set("system", "")


def check_branches(p):
    p.js("document.querySelectorAll('article.user')[1].querySelector('[aria-label^=Edit]').click()")
    area = p.one("article.editing textarea")
    assert area.get_attribute("value") == "And then?"
    area.send_keys(Keys.CONTROL, "a")
    area.send_keys("Was it a red fox?", Keys.ENTER)
    p.answered()
    assert [e.text for e in p.all("article.user .plain")] == ["Tell me a story about a fox.", "Was it a red fox?"]
    assert p.one("article.user .siblings").text == "2/2"
    p.js("[...document.querySelectorAll('[aria-label=\"Answer again\"]')].pop().click()")
    p.answered()
    assert p.all("article.assistant .siblings")[-1].text == "2/2"
    p.click("#open-panel")
    assert len(p.all("#tree circle")) == 9 and len(p.all("#tree circle.shown")) == 4
    p.shot("branches")
    p.click("article.user .siblings [aria-label='Earlier branch']")
    assert len(p.all("article")) == 6 and p.one("article.user .siblings").text == "1/2"
    p.click("#close-panel")


def check_plan(p):
    """The step: a row a layer, a block an op; by mouse and by keys."""
    p.click("#open-plan")
    p.wait("the step is measured", lambda: "Measured" in p.one("#plan-state").text)
    rows = [e.get_attribute("aria-label") for e in p.all("#plan-rows .row")]
    assert rows[0] == "Embedding" and rows[-2:] == ["Output head", "Sampling"], rows
    assert rows[-3] == "Hidden states" and rows[1:-3] == [f"Layer {i}, {'attention' if i % 4 == 3 else 'recurrent'}" for i in range(8)], rows
    options = p.all("#plan-rows [role=option]")
    assert len(options) == 44 and all("µs" in o.get_attribute("aria-label") or "ms" in o.get_attribute("aria-label") for o in options)
    tiles = p.one("#plan-tiles").text
    assert "tok/s" in tiles and "a token" in tiles and "steps/s" in tiles and "19.1 MB" in tiles, tiles
    assert p.js("return document.activeElement.id") == "plan-rows"
    rows_box = p.one("#plan-rows")
    for keys, words in ((Keys.HOME, "Embedding op 0"), (Keys.ARROW_DOWN, "Mixer, in layer 0"), (Keys.ARROW_RIGHT, "Recurrent state layer 0"),
                        (Keys.ARROW_DOWN * 3, "Attention layer 3"), (Keys.END, "Sampling op 43"), (Keys.ARROW_UP * 3, "Mixer, in layer 7")):
        rows_box.send_keys(keys)
        assert words in p.one("#plan-detail").text.replace("\n", " "), (words, p.one("#plan-detail").text)
    assert p.js("return document.getElementById(arguments[0]).getAttribute('aria-selected')", rows_box.get_attribute("aria-activedescendant")) == "true"
    p.shot("plan")
    p.click("#plan-by [value=bytes]")
    assert "MB" in p.all("#plan-rows [role=option]")[1].get_attribute("aria-label") or "kB" in p.all("#plan-rows [role=option]")[1].get_attribute("aria-label")
    widths = p.js("return [...document.querySelectorAll('#plan-rows .line')].map((e) => e.scrollWidth <= e.clientWidth + 1)")
    assert all(widths), "a row is wider than its scale"
    p.click("#plan-by [value=time]")
    rows_box.send_keys(Keys.ESCAPE)
    # The browser fires a dialog's close event, which moves the focus, in a task of its own.
    p.wait("the panel is closed", lambda: not p.one("#plan-dialog").is_displayed() and p.js("return document.activeElement.id") == "open-plan")
    assert len(p.all("article")) > 0


def check_reload(p):
    before = [e.text for e in p.all("article .body")]
    p.d.refresh()
    p.wait("the conversation is back", lambda: p.all("article"))
    assert [e.text for e in p.all("article .body")] == before
    assert p.one("#chats .open").text == "Tell me a story about a fox."
    assert p.js("return JSON.parse(localStorage['sluice.settings']).max_tokens") == 24
    p.one("body").send_keys(Keys.CONTROL, "k")
    p.set("max_tokens", "")
    p.js(ENDLESS)
    p.say("Not to its end")
    p.wait("text comes", lambda: p.all("article.assistant.running .md p"))
    p.d.refresh()
    p.wait("the beginning is back", lambda: p.all("article.assistant .md p"))
    assert p.one("article.assistant .stats").text.endswith("stopped") and not p.one("article.assistant p.error").is_displayed()
    p.set("max_tokens", 24)
    p.click("#chats li.current [aria-label^=Delete]")
    p.click("#chats .open")


def check_list(p):
    p.one("body").send_keys(Keys.CONTROL, "k")
    assert not p.all("article") and p.js("return document.activeElement.id") == "input"
    p.say("Second")
    p.answered()
    assert len(p.all("#chats li")) == 2
    p.click("#chats li.current [aria-label^=Rename]")
    p.one("#chats input").send_keys("Named <b>so</b>", Keys.ENTER)
    assert p.one("#title").text == "Named <b>so</b>" == p.one("#chats li.current .open").text
    p.click("#chats li.current [aria-label^=Delete]")
    assert len(p.all("#chats li")) == 1
    p.click("#toast button")
    assert len(p.all("#chats li")) == 2


def check_files(p):
    """What is exported comes back, once, also where it is still there; what is no export is refused."""
    p.js("window.saved = []; const own = URL.createObjectURL; URL.createObjectURL = (b) => { b.text().then((t) => saved.push(t)); return own(b); }")
    p.click("#open-panel")
    p.click("#save-markdown")
    p.click("#export")
    p.wait("both are saved", lambda: p.js("return saved.length") == 2)
    text, chats = p.js("return saved")
    shown = p.all("article.user .plain")[0].text
    assert text.startswith(f"# {p.one('#title').text}\n\n## You\n\n{shown}\n\n## Answer\n\n"), text
    kept = p.js("return Object.entries(localStorage).filter(([k]) => k.startsWith('sluice.chat.')).sort()")
    good = {c["id"]: c for c in json.loads(chats)["chats"]}
    assert len(good) == len(kept) == len(p.all("#chats li"))
    loop, lost, wrong = (json.loads(json.dumps([*good.values()][0])) for _ in range(3))
    loop["id"], lost["id"], wrong["id"] = "loop", "lost", "wrong"
    node = next(n for n in loop["nodes"].values() if n["parent"] == "root")
    node["children"] = [node["id"]]
    lost["nodes"]["far"] = {**lost["nodes"]["root"], "id": "far", "children": []}
    wrong["nodes"]["root"]["children"].append("nobody")
    def bring(value):
        file = Path(tempfile.mkdtemp()) / "chats.json"
        file.write_text(value)
        p.js("document.getElementById('toast').replaceChildren()")
        p.one("#import-file").send_keys(str(file))
        p.wait("it is told", lambda: p.one("#toast").text)
        return p.one("#toast").text
    for value in ("no JSON", "[]", '{"chats": [null, 3, {"id": "x"}]}', json.dumps({"chats": [loop, lost, wrong]})):
        assert bring(value) == "chats.json has no conversations that were exported here.", value
    # One in which every message names itself or its parent as the one that is shown, and the root has a parent; and the same conversation,
    # but with two messages in the other order: what is here already stays a tree, and readable.
    one = lambda id, parent, child: {"id": id, "parent": parent, "role": "user", "content": id, "children": child, "pick": child[0] if child else None}
    tree = {"root": {**one("root", None, ["a"]), "role": "root"}, "a": one("a", "root", ["b"]), "b": one("b", "a", [])}
    turned = {"root": {**one("root", None, ["b"]), "role": "root"}, "b": one("b", "root", ["a"]), "a": one("a", "b", ["c"]), "c": one("c", "a", [])}
    circles = json.loads(json.dumps(tree))
    circles["root"].update(parent="a", role="user")
    circles["a"]["pick"], circles["b"]["pick"] = "a", "a"
    file_of = lambda *nodes: json.dumps({"chats": [{"id": f"odd{i}", "title": f"Odd {i}", "at": 9e15, "settings": {}, "nodes": n} for i, n in enumerate(nodes)]})
    assert bring(file_of(tree, circles)) == "Imported: 2 conversations."
    assert bring(file_of(turned)) == "Imported: 1 conversation."
    stays = p.js("return JSON.parse(localStorage['sluice.chat.odd0']).nodes")
    assert {id: (n["parent"], n["children"]) for id, n in stays.items()} == {"root": (None, ["a"]), "a": ("root", ["b", "c"]), "b": ("a", []), "c": ("a", [])}, stays
    for title, shown in (("Odd 0", ["a", "b"]), ("Odd 1", ["a"])):
        p.d.refresh()
        p.wait("the list is there", lambda: [e for e in p.all("#chats .open") if e.text == title])
        p.js("[...document.querySelectorAll('#chats .open')].find((e) => e.textContent === arguments[0]).click()", title)
        p.wait(f"{title} is shown", lambda: [e.text for e in p.all("article.user .plain")] == shown)
    p.click("#open-panel")
    p.wait("the tree is drawn", lambda: p.all("#tree circle.node"))
    p.js("[...document.querySelectorAll('#tree circle.node')].pop().dispatchEvent(new Event('click'))")
    p.wait("its last message is shown", lambda: [e.text for e in p.all("article.user .plain")] == ["a", "b"])
    p.js("localStorage.removeItem('sluice.chat.odd0'); localStorage.removeItem('sluice.chat.odd1')")
    p.d.refresh()
    p.wait("the page is there again", lambda: p.all("#chats li"))
    for i in range(2):
        if i == 1:
            p.js("for (const k of Object.keys(localStorage)) if (k.startsWith('sluice.chat.')) localStorage.removeItem(k)")
            p.d.refresh()
            p.wait("all are gone", lambda: p.all(".welcome"))
        assert bring(chats) == f"Imported: {len(good)} conversations.", p.one("#toast").text
        assert p.js("return Object.entries(localStorage).filter(([k]) => k.startsWith('sluice.chat.')).sort()") == kept
    p.js("document.querySelectorAll('#chats .open')[1].click()")
    p.wait("the first one is shown", lambda: p.all("article.user .plain") and p.all("article.user .plain")[0].text == "Tell me a story about a fox.")
    if p.one("#panel").is_displayed():
        p.click("#close-panel")


def check_hostile_text(p):
    nodes = {"root": {"id": "root", "parent": None, "role": "root", "content": "", "children": ["u"], "pick": "u"},
             "u": {"id": "u", "parent": "root", "role": "user", "content": "<img src=x onerror='window.hit=7'>", "children": ["a"], "pick": "a"},
             "a": {"id": "a", "parent": "u", "role": "assistant", "content": HOSTILE, "thinking": "<script>window.hit=8</script>", "children": [], "pick": None}}
    chat = {"id": "x", "title": "<img src=x onerror='window.hit=9'>", "at": 9e15, "settings": {}, "nodes": nodes}
    p.js("localStorage['sluice.chat.x'] = arguments[0]; localStorage['sluice.current'] = 'x';"
         "localStorage['sluice.chat.y'] = '{\"id\": \"y\", \"nodes\": 5}'; localStorage['sluice.chat.z'] = 'no JSON'", json.dumps(chat))
    p.d.refresh()
    p.wait("the conversation is shown", lambda: p.all("article.assistant .md h1"))
    time.sleep(0.2)
    assert p.js("return window.hit") is None, "text was run"
    assert not p.all("article img, article script, #chats img") and not p.all(".md svg")
    assert p.one(".md h1").text == "Heading <b>not bold</b>"
    text = p.one(".md").text
    assert "<script>window.hit = 1</script>" in text and 'onerror="window.hit = 2"' in text and "snake_case_word and 2 * 3 * 4" in text
    assert [e.get_attribute("href") for e in p.all(".md a")] == ["https://example.com/a_(b)", "https://example.com/plain"]
    assert all("noopener" in e.get_attribute("rel") for e in p.all(".md a"))
    assert p.one(".md strong").text == "bold" and p.one(".md em").text == "italic" and p.one(".md p code").text == "code <i>"
    assert [e.text for e in p.all(".md ul > li > ol > li")] == ["inner", "more"] and len(p.all(".md td")) == 2
    assert p.one(".md pre").text == "<script>window.hit = 6</script>" and p.all(".md .copy")
    assert not p.js("return document.querySelector('.thinking').open")
    p.js("document.getElementById('scroll').scrollTop = 0")
    p.shot("markdown")


def check_long_code(p):
    """The button that copies stays in view, and so does the end when there is less room."""
    code = "```python\n" + "\n".join(f"x_{i} = {i}" for i in range(300)) + "\n```\nThe end."
    nodes = {"root": {"id": "root", "parent": None, "role": "root", "content": "", "children": ["u"], "pick": "u"},
             "u": {"id": "u", "parent": "root", "role": "user", "content": "Count", "children": ["a"], "pick": "a"},
             "a": {"id": "a", "parent": "u", "role": "assistant", "content": code, "children": [], "pick": None}}
    p.js("localStorage['sluice.chat.long'] = arguments[0]; localStorage['sluice.current'] = 'long'",
         json.dumps({"id": "long", "title": "Long", "at": 1, "settings": {}, "nodes": nodes}))
    p.d.refresh()
    p.wait("the conversation is shown", lambda: p.all(".code .copy"))
    is_at_end = lambda: p.js("const s = document.getElementById('scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight < 2")
    p.wait("the end is shown", is_at_end)
    size = p.d.get_window_size()
    p.d.set_window_size(size["width"], size["height"] - 200)
    p.wait("the end is still shown", is_at_end)
    p.js("document.getElementById('scroll').scrollTop = 2000")
    place = p.js("const b = document.querySelector('.code .copy').getBoundingClientRect(), s = document.getElementById('scroll').getBoundingClientRect();"
                 "return [b.top - s.top, s.bottom - b.bottom, document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2).textContent]")
    assert 0 <= place[0] < 60 and place[1] > 0 and place[2] == "Copy", place
    p.d.set_window_size(size["width"], size["height"])
    p.wait("what was read stays", lambda: p.js("return document.getElementById('scroll').scrollTop") == 2000)
    p.shot("long-code")
    p.js("delete localStorage['sluice.chat.long']")


RICH = """مرحبا بالعالم! هذا نص

- البند الأول
- البند الثاني

1. First

   more of it
2. Second

- [ ] open
- [x] done

| Sprache | Größe | Zahl |
|:--------|:-----:|-----:|
| a long cell with many words in it, so that the others are narrow, and then some more words | Größenordnung<br>zwei | 3,456 |

With \\(a_1 * b_2 * c\\) and $x_1 * y * z\\,$ it costs $5 and $10, \\(open:
\\[
x^2
+ \\frac{a}{b} \\\\
- c
\\]
$$\\sum_i i$$

![A fox](https://example.com/fox.png) and x<br/>y <bramble>
"""


def check_rich_text(p):
    nodes = {"root": {"id": "root", "parent": None, "role": "root", "content": "", "children": ["u"], "pick": "u"},
             "u": {"id": "u", "parent": "root", "role": "user", "content": "שלום עולם?", "children": ["a"], "pick": "a"},
             "a": {"id": "a", "parent": "u", "role": "assistant", "content": RICH, "children": [], "pick": None}}
    p.js("localStorage['sluice.chat.r'] = arguments[0]; localStorage['sluice.current'] = 'r'",
         json.dumps({"id": "r", "title": "Rich", "at": 9e15, "settings": {}, "nodes": nodes}))
    p.d.refresh()
    p.wait("the conversation is shown", lambda: p.all("article.assistant .md table"))
    direction = lambda css: p.js("return getComputedStyle(document.querySelector(arguments[0])).direction", css)
    assert [direction(c) for c in (".user .plain", ".md p", ".md ul", ".md ol", ".md th")] == ["rtl", "rtl", "rtl", "ltr", "ltr"]
    assert p.js("return document.getElementById('input').dir") == "auto"
    # a list of another kind is another list
    assert [len(e.find_elements(By.CSS_SELECTOR, ":scope > li")) for e in p.all(".md > ul, .md > ol")] == [2, 2, 2]
    assert [e.text for e in p.all(".md > ul:nth-of-type(2) > li")] == ["☐ open", "☑ done"]
    assert [p.js("return getComputedStyle(arguments[0]).textAlign", e) for e in p.all(".md td")] == ["left", "center", "right"]
    # no word is broken: the cells' lines are as high as their texts have lines
    assert [e.text for e in p.all(".md td")][1:] == ["Größenordnung\nzwei", "3,456"]
    assert p.js("const r = document.createRange(); r.selectNodeContents(document.querySelectorAll('.md td')[2]); return r.getClientRects().length") == 1
    # formulas are laid out, and keep how they were written
    assert p.js("return [...document.querySelectorAll('.md .math annotation')].map((e) => e.textContent)") == ["a_1 * b_2 * c", "x_1 * y * z\\,", "x^2\n+ \\frac{a}{b} \\\\\n- c", "\\sum_i i"]
    assert not p.all(".md .source") and p.one(".md div.math mfrac").size["height"] > 20
    assert "it costs $5 and $10, (open:" in p.one(".md").text
    assert p.one(".md > p:last-child").text == "A fox and x\ny <bramble>" and not p.all(".md img")
    p.shot("rich")
    p.js("localStorage.removeItem('sluice.chat.r')")


FORMULAS = (  # and their elements, without attributes and rows of one
    (r"x'^2_1", "msubsup(x 1 (′ 2))"), (r"\frac12x_{12}^3", "mfrac(1 2) msubsup(x 12 3)"), (r"\sqrt[3]{x+1}", "mroot((x + 1) 3)"),
    (r"\sum_{i=1}^n i", "munderover(∑ (i = 1) n) i"), (r"\int_0^1", "msubsup(∫ 0 1)"), (r"a &= b \\ c", "mtable(mtr(mtd(a) mtd(= b)) mtr(mtd(c)))"),
    (r"\begin{cases} 1 & \text{if } x<y \\ 0 \end{cases}", "{ mtable(mtr(mtd(1) mtd(if\u00a0 x < y)) mtr(mtd(0)))"), (r"\left(\frac ab\right]", "( mfrac(a b) ]"),
    (r"\mathbb{R}^n \mathbf x\mathrm{d}", "msup(ℝ n) 𝐱 d"), (r"\text{<b>x</b> 5\%}", "<b>x</b> 5%"), (r"\boxed{42}", "42"), (r"\not=", "=\u0338"), ("-3.14*2", "− 3.14 ∗ 2"),
    (r"\lim_{x \to 0} f", "munder(lim (x → 0)) f"), (r"\binom nk", "( mfrac(n k) )"), ("größe", "g r ö ß e"), ("", ""),
    *((bad, None) for bad in (r"\ce{H2O}", "a^b^c", "{", "}", r"\frac1", r"\text{x", r"\left(x", r"\begin{matrix}a", r"\begin{a}\end{a}", r"\begin{matrix}a\end{cases}", "x$", "\\",
                              "#", r"\text{$x$}", r"\href{javascript:1}{x}", r"\sqrt[3", "{" * 100 + "}" * 100, r"\bar" * 9000, "x" * 10001)))


def check_formulas(p):
    write = """const rest = ([tex]) => { const m = modules.math(tex, true); return m && text(m.querySelector('semantics').firstChild); };
        const modules = await import('./math.js');
        const text = (e) => { const c = [...e.children].filter((x) => x.localName !== 'mspace'), inner = c.length ? c.map(text).filter((x) => x).join(' ') : e.textContent.replace(/[ \u00a0]$/, '\u00a0');
          return ['mrow', 'mi', 'mo', 'mn', 'mtext'].includes(e.localName) ? (c.length > 1 && e.parentElement.localName !== 'semantics' && !['mrow', 'mtd', 'mtr'].includes(e.parentElement.localName) ? `(${inner})` : inner) : `${e.localName}(${inner})`; };
        return arguments[0].map(rest);"""
    p.d.set_script_timeout(PATIENCE)
    found = p.d.execute_async_script(f"const done = arguments[1], f = async function (a) {{ {write.replace('arguments[0]', 'a')} }}; f(arguments[0]).then(done, (e) => done(String(e)))", FORMULAS)
    assert len(found) == len(FORMULAS), found
    bad = [(tex, right, f) for (tex, right), f in zip(FORMULAS, found) if right != f]
    assert not bad, bad


def check_costly_text(p):
    """A text that a model gets lost in is shown at once: what took the square of its length, or the cube, would take hours here."""
    long = 200_000
    texts = ["# a" + " " * long + "b ## ", "# " + "#" * long + " x", "a|b\n" + " " * long + "x", "a|b\n-" + " " * long + "x", "```" + "a" * long + "`",
             "~" * long + "`", "~~~" + " a" * long + "`", "` " + "a " * long + "b`", "- " + " " * long + "a\u2028b", "a|b\n-|-\n" + "|" * long, "> a\n>\n" * long,
             " " * long + "- a\n" + "- b\n" * long,
             "*a " * long, "__a " * long, "**a *b " * long, "[" * long, "[a](" * long, "\\(a " * long, "$a " * long, "$$a " * long, "$$" + "\\frac" * long + "$$", "\\[\n" * long, "[a] " * long + "](", "`a" * long + "``", "~~a " * long]
    p.d.set_script_timeout(PATIENCE)
    show = ("const done = arguments[arguments.length - 1], into = document.createElement('div');"
            "import('./markdown.js').then((m) => { m.render(into, arguments[0]); done(into.innerHTML); })")
    for text in texts:
        assert p.d.execute_async_script(show, text), text[:20]
    for text, html in (("## a  b ## ", "<h2>a  b</h2>"), ("# ", "<h1></h1>"), ("# #", "<h1></h1>"), ("*a *b*", "<p><em>a *b</em></p>"), ("**a* b**", "<p><strong>a* b</strong></p>"),
                       ("[a [b](https://x.y/) `c", '<p>[a <a href="https://x.y/" rel="noopener noreferrer" target="_blank">b</a> `c</p>'), ("`` a` b `` `c`", "<p><code>a` b</code> <code>c</code></p>"),
                       ("~~~ `", "<p>~~~ `</p>"), ("` a` ` ` ` a `", "<p><code> a</code> <code> </code> <code>a</code></p>"),
                       ("_a __b_ c__ *d*", "<p><em>a __b</em> c__ <em>d</em></p>")):
        assert p.d.execute_async_script(show, text) == html, (text, p.d.execute_async_script(show, text))
    assert "<table>" in p.d.execute_async_script(show, "a|b\n:-: | -\n1|2") and "<table>" not in p.d.execute_async_script(show, "a|b\n-|x")


def check_two_tabs(p):
    """Both ask in the same conversation at the same time: nothing of either is lost."""
    first, address = p.d.current_window_handle, p.d.current_url
    p.one("body").send_keys(Keys.CONTROL, "k")
    p.set("max_tokens", "")
    p.js(ENDLESS)
    p.say("From the first tab")
    key = p.js("return 'sluice.chat.' + localStorage['sluice.current']")
    assert "From the first tab" in (p.js("return localStorage[arguments[0]]", key) or ""), "it is not kept at once"
    p.d.switch_to.new_window("tab")
    second = p.d.current_window_handle
    p.d.get(address)
    p.wait("the conversation is here, too", lambda: p.all("article.user"))
    p.js(ENDLESS)
    p.say("From the second tab")
    p.wait("it begins", p.is_busy)
    p.d.switch_to.window(first)
    p.wait("more of it", lambda: len(p.one("article.assistant .md").text) > 200)
    p.click("#send")
    p.answered()
    text = p.one("article.assistant .md").text
    p.d.switch_to.window(second)
    p.wait("more of it", lambda: len(p.all("article.assistant .md")[-1].text) > 20)
    p.click("#send")
    p.answered()
    p.d.close()
    p.d.switch_to.window(first)
    p.js("window.fetch = window.own_fetch")
    nodes = p.js("return Object.values(JSON.parse(localStorage[arguments[0]]).nodes)", key)
    kept = [n["content"] for n in nodes]
    assert "From the first tab" in kept and "From the second tab" in kept and len(nodes) == 5, kept
    # the second answer may begin as the first: it depends on how much of that it has seen
    assert any(" ".join(k.split()).startswith(" ".join(text.split())[:150]) and len(k) >= len(text) for k in kept), (text, kept)
    assert all(c in [n["id"] for n in nodes] for n in nodes for c in n["children"]) and sorted(len(n["children"]) for n in nodes) == [0, 1, 1, 1, 1], nodes
    p.set("max_tokens", 24)


def check_phone(p):
    p.d.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True})
    p.d.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    p.d.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    p.d.refresh()
    p.wait("the conversation is shown", lambda: p.all("article.assistant .md h1"))
    assert p.js("return document.documentElement.scrollWidth") <= 390, "wider than the phone"
    assert not p.one("#sidebar").is_displayed()
    p.js("document.getElementById('scroll').scrollTop = 0")
    p.shot("phone-dark")
    p.click("#open-plan")
    p.wait("the step is measured", lambda: "Measured" in p.one("#plan-state").text)
    assert p.js("const d = document.getElementById('plan-dialog'); return d.scrollWidth <= 390 && d.clientWidth <= 390"), "wider than the phone"
    p.shot("phone-plan")
    p.click("#plan-close")
    p.click("#open-sidebar")
    p.wait("the list comes", lambda: p.one("#sidebar").is_displayed())
    time.sleep(0.3)
    p.shot("phone-list")
    p.js("document.querySelectorAll('#chats .open')[2].click()")
    p.wait("the list goes", lambda: not p.one("#sidebar").is_displayed())
    p.shot("phone-chat")


def check_names(p):
    """Every control says what it is."""
    bad = p.js("return [...document.querySelectorAll('button, input, select, textarea, summary, [role=button]')]"
               ".filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).map((e) => e.outerHTML)")
    assert not bad, bad


def check_key(driver):
    s = Server("--api-key", "secret", "--prefix", "/llm")
    try:
        p = Page(driver)
        driver.get(s.address)  # with the prefix, without a slash
        p.wait("the key is asked for", lambda: p.one("#key-dialog").is_displayed())
        p.one("#key").send_keys("wrong", Keys.ENTER)
        p.wait("it was wrong", lambda: "wrong" in p.one("#key-hint").text)
        p.shot("key")
        p.one("#key").send_keys("secret", Keys.ENTER)
        p.wait("the dialog goes", lambda: not p.one("#key-dialog").is_displayed())
        p.set("max_tokens", 8)
        p.say("Hello")
        p.answered()
        assert p.one("article.assistant .md").text
        assert p.js("return sessionStorage['sluice.key']") == "secret" and "secret" not in p.js("return JSON.stringify(localStorage)")
        p.check_log(but=("401",))
    finally:
        s.stop()


CHECKS = (check_chat, check_stop, check_branches, check_plan, check_reload, check_list, check_files, check_two_tabs, check_long_code, check_rich_text, check_hostile_text, check_formulas,
          check_costly_text, check_names, check_phone)


def logs_nothing(check):
    """The check, after which the browser has logged no error."""
    @functools.wraps(check)
    def run(p):
        check(p)
        p.check_log()
    return run


def main():
    """Each check continues with the page as the one before it left it: after one that fails there is nothing to say."""
    results = suite.Results()
    if not webdriver or not which("chromium") or not which("chromedriver"):
        results.skip("the page", "chromium, chromium-driver and selenium are needed")
        return results.end()
    s, driver = Server("-c", "32000"), browser()
    page = Page(driver)

    def check_start(p):
        driver.get(s.address)
        p.wait("the page starts", lambda: p.all(".welcome"))

    try:
        if all(results.run(logs_nothing(check), page) for check in (check_start, *CHECKS)):
            results.run(check_key, driver)
        if results.failed:
            page.shot("failed")
        return results.end()
    finally:
        driver.quit()
        s.stop()


sys.exit(main())
