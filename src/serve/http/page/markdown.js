// markdown.js - Markdown as DOM nodes.
//
// Text becomes text nodes and a fixed set of elements, never HTML: whatever an answer contains stays text.
// Links lead to http and https alone. While an answer grows, blocks that stay the same keep their nodes.
// A text of any kind takes time in proportion to its length: models get lost in spaces and asterisks.

import { make } from "./parts.js";
import { math } from "./math.js";

const MAX_DEPTH = 12; // of quotes, lists and emphasis inside each other; deeper ones stay plain

// ---- inline --------------------------------------------------------------------------------------

function link(url, label, depth) {
  let parsed;
  try { parsed = new URL(url); } catch { return null; }
  if (parsed.protocol !== "http:" && parsed.protocol !== "https:") return null;
  const a = make("a");
  a.href = parsed.href;
  a.rel = "noopener noreferrer";
  a.target = "_blank";
  if (label === null) a.append(url);
  else inline(a, label, depth + 1, true);
  return a;
}

const isWord = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);
const isBlank = (c) => c === undefined || /\s/.test(c);

// The run of `mark` that closes one that ends before `from`; -1: none.
function closing(text, mark, from) {
  const c = mark[0];
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at)) {
    let end = at;
    while (text[end] === c) end++;
    const fits = end - at === mark.length || (end - at === 3 && mark.length < 3);
    if (fits && at > from && !isBlank(text[at - 1]) && text[at - 1] !== "\\" && !(c === "_" && isWord(text[end])))
      return end - mark.length;
    at = end;
  }
  return -1;
}

const emphasis = { "***": ["strong", "em"], "**": ["strong"], "__": ["strong"], "*": ["em"], "_": ["em"], "~~": ["del"] };

// Without a space at both ends, which sets off backticks.
const codeText = (text) => text.startsWith(" ") && text.endsWith(" ") && /\S/.test(text) ? text.slice(1, -1) : text;

// An element at text[i] and the index after it; null: plain text. `open` has the marks that nothing closes from
// here on: what was looked for once and not found is not looked for again.
function element(text, i, depth, inLink, open) {
  const c = text[i];
  let run = i + 1;
  while ("`*_~".includes(c) && text[run] === c) run++;
  const mark = text.slice(i, run);
  if (open.has(mark)) return null;
  if (c === "`") {
    for (let at = text.indexOf(mark, run); at >= 0; at = text.indexOf(mark, at)) {
      let end = at;
      while (text[end] === "`") end++;
      if (end - at === mark.length) return [make("code", "", codeText(text.slice(run, at))), end];
      at = end;
    }
    open.add(mark);
    return null;
  }
  if (emphasis[mark]) {
    if (isBlank(text[run]) || (c === "_" && isWord(text[i - 1]))) return null;
    const end = closing(text, mark, run);
    if (end < 0) { open.add(mark); return null; }
    const outer = make(emphasis[mark][0]);
    const inner = emphasis[mark][1] ? outer.appendChild(make(emphasis[mark][1])) : outer;
    inline(inner, text.slice(run, end), depth + 1, inLink);
    return [outer, end + mark.length];
  }
  if (c === "<") {
    const found = /^<br ?\/?>/i.exec(text.slice(i, i + 6));
    return found ? [make("br"), i + found[0].length] : null;
  }
  if (c === "!" && text[i + 1] === "[") return element(text, i + 1, depth, inLink, open); // a picture is a link to it
  if (c === "[" && !inLink) {
    if (!text.slice(i, i + 1004).includes("](")) return null;
    const found = /^\[([^\[\]]{1,1000})\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"]{0,500}")?\s*\)/.exec(text.slice(i, i + 4000));
    const a = found && link(found[2], found[1], depth);
    return a ? [a, i + found[0].length] : null;
  }
  if (c === "h" && !inLink && !isWord(text[i - 1]) && /^https?:\/\/[^\s]/.test(text.slice(i, i + 9))) {
    const url = /^[^\s<>"`]+/.exec(text.slice(i, i + 4000))[0].replace(/[.,;:!?'")\]*_~]+$/, "");
    const a = link(url, null, depth);
    return a ? [a, i + url.length] : null;
  }
  return null;
}

// As it is written, where it is not understood.
function formulaOf(tag, tex, isBlock) {
  return make(tag, "math", math(tex, isBlock) || make("span", "source", tex));
}

// A formula at text[i] and the index after it; null: none. $ counts where no price looks like that.
function formula(text, i, open) {
  const mark = text[i] === "$" && text[i + 1] !== "$" ? "$" : text.slice(i, i + 2), close = { "\\(": "\\)", "\\[": "\\]", $: "$", $$: "$$" }[mark];
  if (!close || open.has(mark)) return null;
  const from = i + mark.length, end = text.indexOf(close, from);
  if (end < 0) { open.add(mark); return null; }
  if (mark === "$" && (end === from || isBlank(text[from]) || isBlank(text[end - 1]) || /\d/.test(text[end + 1] || ""))) return null;
  return [formulaOf("span", text.slice(from, end).trim(), mark === "\\[" || mark === "$$"), end + close.length];
}

function inline(into, text, depth = 0, inLink = false) {
  const open = new Set();
  let plain = "";
  for (let i = 0; i < text.length;) {
    const c = text[i], math = c === "\\" || c === "$" ? formula(text, i, open) : null;
    if (math) {
      into.append(plain, math[0]);
      plain = "";
      i = math[1];
      continue;
    }
    if (c === "\\" && i + 1 < text.length && /[!-\/:-@\[-`{-~]/.test(text[i + 1])) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    const found = depth < MAX_DEPTH && "`*_~[!<h".includes(c) ? element(text, i, depth, inLink, open) : null;
    if (found) {
      into.append(plain, found[0]);
      plain = "";
      i = found[1];
    } else if ("`*_~".includes(c)) { // the whole run is plain
      let end = i;
      while (text[end] === c) end++;
      plain += text.slice(i, end);
      i = end;
    } else {
      plain += c;
      i++;
    }
  }
  into.append(plain);
}

// ---- blocks --------------------------------------------------------------------------------------

const HEADING = /^ {0,3}(#{1,6})\s(.*)$/s;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/s;
const QUOTE = /^ {0,3}> ?(.*)$/s;

const MATH = /^\s*(\\\[|\$\$)/;

// The line that ends the formula of lines[i], which may have some lines; -1: it has no end.
function formulaEnd(lines, i) {
  const close = lines[i].trim().startsWith("$$") ? "$$" : "\\]";
  for (let end = i; end < Math.min(lines.length, i + 64); end++)
    if (lines[end].trimEnd().endsWith(close) && (end > i || lines[end].trim().length > 3)) return end;
  return -1;
}

const isOrdered = (line) => /^\s*\d/.test(line);
const indent = (line) => /^\s*/.exec(line)[0].replace(/\t/g, "    ").length;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((s) => s.trim());
const isRuled = (line) => cells(line).every((s) => /^:?-+:?$/.test(s)); // between a table's head and its rows

// [all, indent, mark, language] of a line that begins code; null: it begins none.
function fence(line) {
  const found = /^( {0,3})(`{3,}|~{3,})/.exec(line);
  const rest = found ? line.slice(found[0].length) : "";
  return found && !rest.includes("`") ? [...found, /^\s*(\S*)/.exec(rest)[1]] : null;
}

// Without the marks that may end it.
function headingText(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end--;
  return text.slice(0, end).trim();
}

// [{kind, lines, ...}] of a text's lines.
function split(lines) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let found;
    if (/^\s*$/.test(line)) {
      i++;
    } else if ((found = fence(line))) {
      const [, pad, mark, language] = found;
      const isEnd = (l) => l.trim().length >= mark.length && l.trim() === mark[0].repeat(l.trim().length);
      let end = i + 1;
      while (end < lines.length && !isEnd(lines[end])) end++;
      const code = lines.slice(i + 1, end).map((l) => l.slice(Math.min(pad.length, indent(l))));
      blocks.push({ kind: "code", language, lines: code });
      i = end + 1;
    } else if ((found = HEADING.exec(line))) {
      blocks.push({ kind: "h" + found[1].length, lines: [headingText(found[2])] });
      i++;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "hr", lines: [] });
      i++;
    } else if (MATH.test(line) && (found = formulaEnd(lines, i)) >= 0) {
      blocks.push({ kind: "math", lines: lines.slice(i, found + 1) });
      i = found + 1;
    } else if (QUOTE.test(line)) {
      const inner = [];
      while (i < lines.length && QUOTE.test(lines[i])) inner.push(QUOTE.exec(lines[i++])[1]);
      blocks.push({ kind: "quote", lines: inner });
    } else if (ITEM.test(line)) {
      // An item of the other kind begins another list, unless it is further in.
      const base = indent(line), kind = isOrdered(line);
      const isInside = (l) => indent(l) > base || (ITEM.test(l) && isOrdered(l) === kind);
      let end = i + 1;
      while (end < lines.length && (/^\s*$/.test(lines[end]) ? end + 1 < lines.length && isInside(lines[end + 1])
                                                             : isInside(lines[end]) && !RULE.test(lines[end]))) end++;
      blocks.push({ kind: "list", lines: lines.slice(i, end) });
      i = end;
    } else if (line.includes("|") && i + 1 < lines.length && isRuled(lines[i + 1]) && cells(line).length === cells(lines[i + 1]).length) {
      let end = i + 2;
      while (end < lines.length && lines[end].includes("|")) end++;
      blocks.push({ kind: "table", lines: lines.slice(i, end) });
      i = end;
    } else {
      let end = i + 1;
      while (end < lines.length && !/^\s*$/.test(lines[end]) && !fence(lines[end]) && !HEADING.test(lines[end]) &&
             !QUOTE.test(lines[end]) && !ITEM.test(lines[end]) && !RULE.test(lines[end]) && !MATH.test(lines[end])) end++;
      blocks.push({ kind: "p", lines: lines.slice(i, end) });
      i = end;
    }
  }
  return blocks;
}

// An element for this text, which may run from right to left: as its first letter does. (dir="auto" looks at all of
// the text again with each element that is added.)
function made(tag, text) {
  const e = make(tag), letter = /\p{L}/u.exec(text);
  if (letter && /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(letter[0])) e.dir = "rtl";
  return e;
}

function codeBlock({ language, lines }) {
  const text = lines.join("\n");
  const copy = make("button", "copy", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy the code");
  copy.addEventListener("click", async () => {
    copy.textContent = (await copyText(text)) ? "Copied" : "Not copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const pre = make("pre", "", make("code", "", text));
  pre.tabIndex = 0;
  return make("div", "code", make("div", "bar", make("span", "", language || "text"), copy), pre);
}

function list(lines, depth) {
  const out = made(isOrdered(lines[0]) ? "ol" : "ul", lines[0]);
  if (isOrdered(lines[0])) out.start = parseInt(lines[0], 10);
  const base = indent(lines[0]);
  for (let i = 0; i < lines.length;) {
    const found = ITEM.exec(lines[i]);
    const inner = [(found ? found[4] : lines[i].trim()).replace(/^\[([ xX])\](?=\s)/, (_, mark) => (mark === " " ? "☐" : "☑"))];
    const least = base + (found ? found[2].length : 0) + 1;
    for (i++; i < lines.length && !(ITEM.test(lines[i]) && indent(lines[i]) < Math.min(least, base + 2)); i++)
      inner.push(lines[i].replace(/\t/g, "    ").slice(Math.min(least, indent(lines[i]))));
    const item = out.appendChild(make("li"));
    const blocks = split(inner);
    for (const b of blocks) {
      if (b.kind === "p" && b === blocks[0]) inline(item, b.lines.join("\n").trim()); // no paragraph in tight items
      else item.append(block(b, depth + 1));
    }
  }
  return out;
}

// Parts are appended one by one: a call does not take hundreds of thousands of arguments.
function table(lines) {
  const sides = cells(lines[1]).map((s) => (!s.endsWith(":") ? "" : s.startsWith(":") ? "center" : "right"));
  const row = (line, tag) => {
    const out = make("tr");
    cells(line).forEach((text, i) => {
      const cell = out.appendChild(made(tag, text));
      if (sides[i]) cell.className = sides[i];
      inline(cell, text);
    });
    return out;
  };
  const body = make("tbody");
  for (const line of lines.slice(2)) body.append(row(line, "td"));
  return make("div", "table", make("table", "", make("thead", "", row(lines[0], "th")), body));
}

function block(b, depth) {
  if (depth > MAX_DEPTH) return make("p", "", b.lines.join("\n"));
  if (b.kind === "code") return codeBlock(b);
  if (b.kind === "hr") return make("hr");
  if (b.kind === "math") return formulaOf("div", b.lines.join("\n").trim().slice(2, -2).trim(), true);
  if (b.kind === "list") return list(b.lines, depth);
  if (b.kind === "table") return table(b.lines);
  const out = b.kind === "quote" ? make("blockquote") : made(b.kind, b.lines.join("\n"));
  if (b.kind === "quote") {
    for (const inner of split(b.lines)) out.append(block(inner, depth + 1));
    return out;
  }
  inline(out, b.lines.join("\n").trim());
  return out;
}

// Makes `into` show the text. Blocks that it shows already stay.
export function render(into, text) {
  const blocks = split(text.replace(/\r\n?/g, "\n").split("\n"));
  let old = into.firstElementChild;
  for (const b of blocks) {
    const source = `${b.kind} ${b.language || ""}\n${b.lines.join("\n")}`, next = old && old.nextElementSibling;
    if (!old || old.source !== source) {
      const fresh = block(b, 0);
      fresh.source = source;
      if (old) old.replaceWith(fresh);
      else into.append(fresh);
    }
    old = next;
  }
  while (old) {
    const next = old.nextElementSibling;
    old.remove();
    old = next;
  }
}

// The clipboard is there on https and localhost alone; elsewhere the old way.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.body.appendChild(make("textarea", "away"));
    area.value = text;
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}
