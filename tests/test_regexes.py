"""test_regexes.py WALK - regular expressions against Python's: what is written matches, what matches is taken.

For random expressions, and those that clients send, the program WALK (tests/walk/walk.c) makes
answers by the masks: re.fullmatch must take each. Texts made here, most of which match, must be
taken by the masks exactly where re.fullmatch takes them."""
import json, random, re, subprocess

import suite

rng = random.Random(11)
# Every kind of character; \r, which Python's . is and others' is not, is left out.
LETTERS = "abcXY09_ -.\n\t{}]é€\U0001f600"
FLAGS = (re.ASCII, 0)


def ask(questions):
    lines = "".join(json.dumps(q) + "\n" for q in questions)
    done = subprocess.run([suite.PROGRAM], input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert done.returncode == 0 and len(answers) == len(questions), (done.returncode, done.stderr[-500:], len(answers))
    return answers


def matches(regex, text):
    """Whether it does with every meaning of \\w and \\d, and whether with any."""
    found = [re.fullmatch(regex, text, flags) is not None for flags in FLAGS]
    return all(found), any(found)


# ---- random expressions -------------------------------------------------------------------------
# A node is (its text, a function that makes a text which it probably matches).


def literal():
    c = rng.choice(LETTERS)
    return (re.escape(c) if c not in "{}]" or rng.random() < 0.5 else c), lambda: c


def one_class():
    members, texts = [], []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.3:
            low, high = rng.choice([("a", "c"), ("0", "9"), ("A", "Z"), ("à", "ü"), (" ", "/")])
            members.append(f"{low}-{high}")
            texts += [low, high]
        elif rng.random() < 0.3:
            members.append(rng.choice([r"\d", r"\w", r"\s", r"\S", r"\D", r"\W"]))
            texts += list("0a -é")
        else:
            c = rng.choice(LETTERS)
            members.append(c if c in "{}.abcXYé" else re.escape(c))
            texts.append(c)
    if rng.random() < 0.2:
        members.insert(0, "]")
        texts.append("]")
    if rng.random() < 0.2:
        members.append("-")
        texts.append("-")
    sign = "^" if rng.random() < 0.3 else ""
    return f"[{sign}{''.join(members)}]", lambda: rng.choice(texts if not sign else LETTERS)


def atom(depth, is_repeated):
    kind = rng.random()
    if kind < 0.45 or depth > 3:
        return literal()
    if kind < 0.6:
        return one_class()
    if kind < 0.7:
        name = rng.choice([".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])
        texts = {".": LETTERS, r"\d": "09", r"\w": "aX_é", r"\s": " \n\t", r"\D": "a é", r"\W": " é-", r"\S": "a-é€"}[name]
        return name, lambda: rng.choice(texts)
    opening = rng.choice(["(", "(?:", "(?P<n%d>" % rng.randrange(10**9)])
    inside, make = choice(depth + 1, may_repeat=not is_repeated)
    return f"{opening}{inside})", make


def repeated(depth, may_repeat):
    """Not inside of another repetition: re takes exponential time for these."""
    is_repeated = may_repeat and rng.random() < 0.4
    one, make = atom(depth, is_repeated or not may_repeat)
    if not is_repeated:
        return one, make
    low, more = rng.randint(0, 3), rng.randint(0, 3)
    text, low, high = rng.choice([("*", 0, 3), ("+", 1, 3), ("?", 0, 1), (f"{{{low}}}", low, low), (f"{{{low},}}", low, low + 2),
                                  (f"{{{low},{low + more}}}", low, low + more), (f"{{,{more}}}", 0, more)])
    lazy = "?" if rng.random() < 0.2 else ""
    return f"{one}{text}{lazy}", lambda: "".join(make() for _ in range(rng.randint(low, high)))


def choice(depth, start="", end="", may_repeat=True):
    ways = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        parts = [repeated(depth, may_repeat) for _ in range(rng.randint(0 if depth else 1, 3))]
        text = "".join(part[0] for part in parts)
        ways.append((rng.choice(["", start]) + text + rng.choice(["", end]), [part[1] for part in parts]))
    return "|".join(text for text, _ in ways), lambda: "".join(make() for make in rng.choice(ways)[1])


def whole():
    """Also with anchors, in a group or not, where they change nothing."""
    text, make = choice(0, "^", "$")
    return rng.choice([text, text, f"({text})", f"^({text})$", f"(?:(^{text}$))" if "|" not in text else text]), make


def changed(text):
    at = rng.randint(0, len(text))
    return rng.choice([text[:at] + rng.choice(LETTERS) + text[at:], text[:at] + text[at + 1:], text[:at], text + text[at:]])


def test_random_ones_match_what_python_says():
    questions = []
    while len(questions) < 600:
        regex, make = whole()
        tries = [make() for _ in range(6)]
        tries += [changed(t) for t in tries] + [""]
        questions.append({"regex": regex, "seed": len(questions) + 1, "walks": 6, "tries": [t for t in tries if len(t) < 25]})
    n_walks = n_taken = n_refused = 0
    for q, a in zip(questions, ask(questions)):
        regex = q["regex"]
        if "never ends" in a.get("error", ""):  # such as [^\\s\\S]
            assert not any(matches(regex, text)[1] for text in q["tries"]), (regex, a)
            continue
        assert "walks" in a, (regex, a)
        for text in a["walks"]:
            assert text is None or matches(regex, text)[0], (regex, text)
            n_walks += text is not None
        is_plain = not re.search(r"\\[dwDW]", regex)  # which mean ASCII alone
        for text, is_taken in zip(q["tries"], a["tries"]):
            every, some = matches(regex, text)
            assert every or not is_taken, (regex, text)
            if is_plain or text.isascii():
                assert is_taken == some, (regex, text, is_taken)
            n_taken += is_taken
            n_refused += not is_taken
    assert n_walks > 3000 and n_taken > 2000 and n_refused > 2000, (n_walks, n_taken, n_refused)


# ---- those that clients send --------------------------------------------------------------------

INTEGER = r"[+-]?(0|[1-9][0-9]*)"
SENT = {INTEGER: ["0", "-12", "+7"], rf"({INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?)": ["1.5e-3"], r'("[^"]*")': ['"ab\n"'],
        r"(a\ b|c\.d|(3))": ["a b", "c.d", "3"], r"(^a{2,}$)": ["aaa"], r"\[(\d+)(,\ (\d+))*\]": ["[1, 22]"],
        r"((\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]))": ["2026-11-19"], r"((True|False))": ["True"],
        r"\{(\"a\":\d)?\}": ["{}", '{"a":1}'], r"((\r\n|\r|\n))": ["\r\n"], r"(?:[\x01-\x08\x0b\x21\x23-\x5b\x5d-\x7f]|\\[\x01-\x09])*": ["!a"],
        r"(?P<year>\d{4})": ["1999"], "a{b}{,2}c{": ["a{b}}c{", "a{bc{"], "": [""], "^": [""], "()$": [""], "(a|)*": ["aa"], "x{,}": ["", "xx"],
        "(?:müde|mürrisch|matt)": ["mürrisch"], r"\u00e9\x41": ["éA"], "a??b*?c+?": ["abbc"], "^(a|^b$)$": ["b"], "[]a]+[^]b]": ["]ac"],
        "[a-c-]+": ["a-"], "(" * 60 + "a" + ")" * 60: ["a"], "|".join(f"{i:04}" for i in range(3000)): ["0000", "2999"]}
REFUSED = {r"(a)\1": r"at character 5: \1 is not supported: it refers back", "(?P<n>a)(?P=n)": "at character 11: groups that refer back",
           "(?=a)b": "at character 3: groups that look ahead or behind", "a(?<!b)": "groups that look ahead or behind",
           "(?i)a": "a group begins with ( or (?: or (?P<name>", "(?>a)": "a group begins with ( or", r"\bword": r"\b is not supported",
           "a^b": "at character 3: ^ and $ are supported where nothing can precede or follow", "(a$)b": "where nothing can precede", "(^a)*": "where nothing can precede",
           "é*+": "at character 3: a repetition of nothing", "a++": "a repetition of nothing", "*a": "a repetition of nothing", "(a": "a group without its end",
           "a)": "a ) without its (", "[a": "a class without its end", "[]": "a class without its end", "[b-a]": "a range from a greater to a lesser character",
           "a{3,2}": "a repetition that is not", "a\\": "a backslash at the end", "a\0b": "a zero byte", "(" * 70 + ")" * 70: "groups in more than 64 groups",
           r"[^\s\S]": "never ends", "a" * (1 << 20) + "b": "a regular expression of 1048577 bytes, expected at most 1048576"}


def test_those_that_clients_send_are_taken():
    questions = [{"regex": regex, "seed": 1, "walks": 10, "tries": tries} for regex, tries in SENT.items()]
    for q, a in zip(questions, ask(questions)):
        assert "walks" in a and None not in a["walks"], (q["regex"][:200], a)
        assert all(re.fullmatch(q["regex"], text) for text in a["walks"]), (q["regex"][:200], a["walks"])
        assert all(re.fullmatch(q["regex"], text) for text in q["tries"]) and all(a["tries"]), (q, a["tries"])


def test_others_are_refused_by_one_line():
    for (regex, words), a in zip(REFUSED.items(), ask([{"regex": regex, "walks": 0, "tries": []} for regex in REFUSED])):
        assert words in a.get("error", "") and "regular expression" in a["error"], (regex[:100], a)


def test_long_ones_cost_little():
    """Words share their beginnings; nothing is copied for each character of a long text."""
    words = [f"{i * 7919 % 20011:05}" for i in range(20000)]
    long = "".join(rng.choice("abc d") for _ in range(100000))
    for regex, text in ((f"({'|'.join(words)})", words[77]), (re.escape(long), long), (f"(?:{'[a-d ]' * 3000})", long[:3000]), ("(a{1000}){1000}", None)):
        a, = ask([{"regex": regex, "seed": 1, "walks": 0, "tries": [text] if text else []}])
        assert a.get("tries") == ([True] if text else []) and a["ms"] < 2000, a


suite.main(globals())
