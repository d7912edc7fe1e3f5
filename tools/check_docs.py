#!/usr/bin/env python3
"""check_docs.py - links of the documents lead somewhere, and what they quote is still so.

Every relative link of a Markdown file names a file that is there and, after #, one of its headings, as GitHub names
them. Every docs/*.md that a source file or script mentions is there too. Every line that a block of diff shows of a
file (after `--- FILE`) is one of that file, white space aside, but for "..."; none that it shows as removed is. In code
`make TARGET` names a target of the Makefile, and what looks like a path of this tree is one (docs/spec cites other
programs' files, docs/lab some of older trees). Prints one line for each that is not."""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/:.])(?:src|tests|bench|tools|docs|include|examples)/[\w./-]*\w")
MAKE = re.compile(r"(?:^|&& |; )make ((?:[\w=./-]+ ?)*)")
MENTION = re.compile(r"\bdocs/[\w/.-]+\.md\b")


def files(*patterns):
    """Of the checkout: those that git tracks, and new ones that it does not ignore."""
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=ROOT, text=True)
    return [name for name in names.split("\n") if name and os.path.isfile(os.path.join(ROOT, name))]


def lines_outside_code(path):
    in_code = False
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.startswith("```"):
                in_code = not in_code
            elif not in_code:
                yield number, line


def anchors(path):
    found = set()
    for _, line in lines_outside_code(path):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"[^\w\- ]", "", LINK.sub("]", heading[1]).strip().lower()).replace(" ", "-")
            name, n = text, 0
            while name in found:
                n += 1
                name = f"{text}-{n}"
            found.add(name)
    return found


def check_links(name):
    path = os.path.join(ROOT, name)
    for number, line in lines_outside_code(path):
        for link in LINK.findall(line):
            file, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = os.path.join(os.path.dirname(path), file) if file else path
            if not os.path.exists(target):
                yield f"{name}:{number}: {link}: there is no such file"
            elif anchor and anchor not in anchors(target):
                yield f"{name}:{number}: {link}: there is no such heading"


def diffs(path):
    """Number, file and line of the diff blocks' lines; the file is that of the last `--- FILE`."""
    in_diff, file = False, None
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.startswith("```"):
                in_diff, file = line.strip() == "```diff", None
            elif in_diff and line.startswith("--- "):
                file = line[4:].strip()
            elif in_diff and file:
                yield number, file, line.rstrip("\n")


def check_quotes(name):
    contents = {}
    for number, file, line in diffs(os.path.join(ROOT, name)):
        path = os.path.join(ROOT, file)
        if file not in contents:
            with open(path if os.path.isfile(path) else os.devnull, encoding="utf-8") as f:
                contents[file] = {one.strip() for one in f}
        text = line[1:].strip()
        if text in ("", "..."):
            continue
        if (text in contents[file]) == line.startswith("-"):
            yield f"{name}:{number}: {file} {'still has' if line.startswith('-') else 'has no line'}: {text}"


def targets():
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as f:
        return {name for names in re.findall(r"^([a-z][\w. -]*):(?!=)", f.read(), re.M) for name in names.split()}


def check_code(name):
    """`code` and indented lines. Names with capitals are for the reader to fill in."""
    if name.startswith(("docs/spec/", "docs/lab/")):
        return
    for number, line in lines_outside_code(os.path.join(ROOT, name)):
        for code in re.findall(r"`([^`]+)`", line) + [line.strip()] * line.startswith("    "):
            for path in PATH.findall(code):
                places = path, os.path.join(os.path.dirname(name), path)
                if not re.search("[A-Z]{3}|_$", path) and not any(os.path.exists(os.path.join(ROOT, p)) for p in places):
                    yield f"{name}:{number}: {path}: there is no such file"
            for words in MAKE.findall(code):
                for word in words.split():
                    if re.fullmatch(r"[a-z][\w.-]*", word) and word not in targets():
                        yield f"{name}:{number}: make {word}: the Makefile has no such target"


def check_mentions(name):
    try:
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            text = f.read()
    except UnicodeDecodeError:
        return
    for mention in sorted(set(MENTION.findall(text))):
        if not os.path.exists(os.path.join(ROOT, mention)):
            yield f"{name}: {mention}: there is no such file"


def main():
    try:
        documents, all_files = files("*.md"), files()
    except (OSError, subprocess.CalledProcessError):
        print("not checked: git does not list the files of this folder")
        return 0
    wrong = [line for name in documents for check in (check_links, check_quotes, check_code) for line in check(name)]
    for name in all_files:
        if not name.startswith(("tests/data/", "tests/fuzz/corpus/")) and not name.endswith((".patch", ".gguf")):
            wrong += check_mentions(name)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
