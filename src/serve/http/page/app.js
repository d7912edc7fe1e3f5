// app.js - the page: conversations, settings, and answers as they come.
//
// A conversation is a tree of messages: {id, parent, role, content, thinking, stats, children, pick}, where
// `pick` is the child that is shown. Editing a message and asking again add a sibling; nothing is overwritten.
// All of it lives in this browser's storage; the server knows the shared beginning of branches by its cache.

import { render, copyText } from "./markdown.js";
import { $, make, svg, icon, button, setIcon } from "./parts.js";
import { startPlan, openPlan, noteRate } from "./plan.js";

const PREFIX = "sluice.chat.";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

// ---- small parts ---------------------------------------------------------------------------------

let toastTimer;
function toast(text, action, act) {
  $("toast").replaceChildren(text);
  if (action) {
    const b = make("button", "", action);
    b.addEventListener("click", () => { $("toast").replaceChildren(); act(); });
    $("toast").append(b);
  }
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").replaceChildren(), 7000);
}

const makeId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36).padStart(2, "0")).join("");

// ---- storage -------------------------------------------------------------------------------------

function stored(storage, key) {
  try { return storage.getItem(key); } catch { return null; }
}

function store(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    toast("The browser's storage is full or off: this conversation is not kept.");
  }
}

// A conversation whose nodes are one tree: what is stored, and what an imported file should have.
function isChat(c) {
  if (!c || typeof c.id !== "string" || typeof c.title !== "string" || !c.settings || !c.nodes || !c.nodes.root) return false;
  const total = Object.keys(c.nodes).length, waiting = ["root"];
  let n_seen = 0;
  while (waiting.length && n_seen <= total) {
    const id = waiting.pop(), n = c.nodes[id];
    if (n.id !== id || id === "__proto__" || typeof n.content !== "string" || !Array.isArray(n.children)) return false;
    if (!n.children.every((child) => Object.hasOwn(c.nodes, child) && c.nodes[child]?.parent === id)) return false;
    waiting.push(...n.children);
    n_seen++;
  }
  return n_seen === total;
}

function readChat(key) {
  try {
    const c = JSON.parse(stored(localStorage, key));
    return isChat(c) ? c : null;
  } catch {
    return null;
  }
}

const chats = new Map(); // id: chat
const running = new Map(); // a chat's id: {node, abort}
let chat = null; // the one that is shown

function loadChats() {
  let keys = [];
  try { keys = Object.keys(localStorage); } catch { return; }
  for (const key of keys.filter((k) => k.startsWith(PREFIX))) {
    const c = readChat(key);
    if (c) chats.set(c.id, c);
  }
}

// What another tab added stays: messages are never taken away, and an answer only grows. A message
// that is elsewhere in the other tree, as in a file that was changed, stays where it is: both are
// trees, and so is what they become.
function merge(c, other) {
  const size = (n) => (n.content || "").length + (n.thinking || "").length;
  for (const [id, n] of Object.entries(other.nodes)) if (!Object.hasOwn(c.nodes, id)) c.nodes[id] = { ...n, children: [] };
  for (const [id, n] of Object.entries(other.nodes)) {
    const own = c.nodes[id];
    for (const child of n.children) if (c.nodes[child].parent === id && !own.children.includes(child)) own.children.push(child);
    if (running.get(c.id)?.node !== own && size(n) > size(own)) Object.assign(own, { content: n.content, thinking: n.thinking, stats: n.stats, error: n.error });
  }
}

function save(c) {
  if (!chats.has(c.id)) return;
  const other = readChat(PREFIX + c.id);
  if (other) merge(c, other);
  store(PREFIX + c.id, JSON.stringify(c));
}

function lastSettings() {
  try { return JSON.parse(stored(localStorage, "sluice.settings")) || {}; } catch { return {}; }
}

function newChat() {
  const root = { id: "root", parent: null, role: "root", content: "", children: [], pick: null };
  return { id: makeId(), title: "", isNamed: false, at: Date.now(), settings: lastSettings(), nodes: { root } };
}

// ---- the tree ------------------------------------------------------------------------------------

function shownPath(c) {
  const path = [];
  for (let n = c.nodes.root; n.children.includes(n.pick); path.push(n)) n = c.nodes[n.pick];
  return path;
}

function addNode(c, parent, role, content) {
  const node = { id: makeId(), parent: parent.id, role, content, children: [], pick: null };
  c.nodes[node.id] = node;
  parent.children.push(node.id);
  parent.pick = node.id;
  c.at = Date.now();
  return node;
}

function showNode(c, node) {
  for (let n = node; n.id !== "root"; n = c.nodes[n.parent]) c.nodes[n.parent].pick = n.id;
  save(c);
  drawAll();
}

// ---- the server ----------------------------------------------------------------------------------

function headers() {
  const key = stored(sessionStorage, "sluice.key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

let asking = null; // the key is asked for once
function askKey(hint) {
  asking ||= new Promise((resolve) => {
    const finish = (value) => { asking = null; $("key-dialog").close(); resolve(value); };
    $("key-hint").textContent = hint;
    $("key").value = "";
    $("key-form").onsubmit = (e) => {
      e.preventDefault();
      try { sessionStorage.setItem("sluice.key", $("key").value.trim()); } catch { /* asked again then */ }
      finish(true);
    };
    $("key-cancel").onclick = () => finish(false);
    $("key-dialog").oncancel = (e) => { e.preventDefault(); finish(false); };
    $("key-dialog").showModal();
  });
  return asking;
}

async function call(path, options = {}) {
  for (;;) {
    const hadKey = !!stored(sessionStorage, "sluice.key");
    const response = await fetch(path, { ...options, headers: headers() });
    if (response.status === 401 && (await askKey(hadKey ? "The key was wrong." : "It is kept until this tab is closed."))) continue;
    if (response.ok) return response;
    let message = `the server answers ${response.status}`;
    try { message = (await response.json()).error.message || message; } catch { /* no JSON */ }
    throw new Error(message);
  }
}

async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  for (let rest = "";;) {
    const { done, value } = await reader.read();
    const lines = (rest + (done ? decoder.decode() + "\n" : decoder.decode(value, { stream: true }))).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
    if (done) throw new Error("the connection ended before the answer did");
  }
}

function requestOf(c, node) {
  const messages = [], goesOn = !!node.content;
  for (let n = goesOn ? node : c.nodes[node.parent]; n.id !== "root"; n = c.nodes[n.parent]) {
    if (n.role === "assistant" && !n.content) continue;
    messages.unshift({ role: n.role, content: n.content, ...(n.thinking ? { reasoning_content: n.thinking } : {}) });
  }
  if (c.settings.system) messages.unshift({ role: "system", content: c.settings.system });
  const body = { messages, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const name of NUMBERS) if (Number.isFinite(c.settings[name])) body[name] = c.settings[name];
  if (goesOn) body.continue_final_message = true;
  if (c.settings.thinking) body.enable_thinking = c.settings.thinking === "on";
  return body;
}

// Adds what an event says to the node.
function take(node, event) {
  const now = performance.now(), s = node.stats;
  if (event.error) throw new Error(event.error.message || "the server failed");
  const choice = event.choices && event.choices[0];
  const delta = (choice && choice.delta) || {};
  if (delta.content || delta.reasoning_content) {
    s.first ??= now;
    s.last = now;
    s.tokens = (s.tokens || 0) + 1;
    node.thinking = (node.thinking || "") + (delta.reasoning_content || "");
    node.content += delta.content || "";
  }
  for (const t of delta.tool_calls || []) node.content += `\n\n\`\`\`json\n${JSON.stringify(t.function, null, 2)}\n\`\`\`\n`;
  if (choice && choice.finish_reason) s.finish = choice.finish_reason;
  if (event.usage) {
    s.tokens = event.usage.completion_tokens;
    s.prompt = event.usage.prompt_tokens;
    s.cached = (event.usage.prompt_tokens_details || {}).cached_tokens || 0;
    s.isExact = !choice; // the last one
  }
  if (event.timings) {
    s.speed = event.timings.predicted_per_second;
    s.submissions = event.timings.submissions_per_token;
  }
}

// Tokens a second: the server's own figure once it is there.
function speedOf(s) {
  const took = s.begun !== undefined ? (s.last ?? 0) - (s.first ?? 0) : s.took;
  return s.speed || (s.tokens > 1 && took > 0 ? (s.tokens - 1) / took * 1000 : 0);
}

// A reload ends an answer with the error of a server that is gone.
let left = -Infinity;
const isLeaving = () => performance.now() - left < 3000;

// A new answer, or more of one that was cut.
async function answer(c, parent, cut) {
  if (running.has(c.id)) return;
  const node = cut || addNode(c, parent, "assistant", "");
  const abort = new AbortController();
  let saved = performance.now();
  node.stats = { begun: saved };
  delete node.error;
  running.set(c.id, { node, abort });
  save(c);
  if (c === chat) { drawAll(); toEnd(); }
  drawList();
  try {
    const response = await call("v1/chat/completions", { method: "POST", body: JSON.stringify(requestOf(c, node)), signal: abort.signal });
    for await (const event of events(response)) {
      take(node, event);
      noteRate(speedOf(node.stats), node.stats.submissions, !node.stats.isExact);
      drawSoon(c, node);
      if (performance.now() - saved > 2000) {
        saved = performance.now();
        save(c);
      }
    }
  } catch (e) {
    if (abort.signal.aborted || isLeaving()) node.stats.finish = "stopped";
    else node.error = e instanceof TypeError ? "The server cannot be reached." : e.message;
  }
  settle(node.stats);
  noteRate(speedOf(node.stats), node.stats.submissions, false);
  running.delete(c.id);
  save(c);
  if (c === chat) {
    const isAtEnd = atEnd();
    drawAll();
    if (isAtEnd) toEnd();
  }
  drawList();
  checkHealth();
}

// Times of this page's clock become durations, which last.
function settle(s) {
  if (s.first !== undefined) s.wait = s.first - s.begun;
  if (s.last !== undefined) s.took = s.last - s.first;
  delete s.begun; delete s.first; delete s.last;
}

function stop() {
  const r = chat && running.get(chat.id);
  if (r) r.abort.abort();
  return !!r;
}

// ---- what is shown: messages ---------------------------------------------------------------------

function statsText(s) {
  if (!s) return "";
  const isLive = s.begun !== undefined;
  const speed = speedOf(s), parts = [];
  if (isLive && s.first === undefined) return "reading the prompt";
  if (s.tokens) parts.push(`${s.tokens} token${s.tokens === 1 ? "" : "s"}`);
  if (speed) parts.push(`${speed.toFixed(1)} tok/s`);
  const wait = isLive ? s.first - s.begun : s.wait;
  if (wait !== undefined) parts.push(`first after ${(wait / 1000).toFixed(2)} s`);
  if (s.prompt) parts.push(`${s.cached} of ${s.prompt} prompt tokens cached`);
  if (s.finish === "length") parts.push("cut at the limit");
  if (s.finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

const drawn = new Map(); // a node's id: its parts on the page

function siblingsOf(c, node) {
  const all = c.nodes[node.parent].children;
  if (all.length < 2) return [];
  const at = all.indexOf(node.id), isBusy = running.has(c.id);
  const go = (step) => {
    const b = button(step < 0 ? "left" : "right", step < 0 ? "Earlier branch" : "Later branch", () => showNode(c, c.nodes[all[at + step]]));
    b.disabled = !all[at + step] || isBusy;
    return b;
  };
  return [make("span", "siblings", go(-1), make("span", "", `${at + 1}/${all.length}`), go(1))];
}

function copyButton(node) {
  return button("copy", "Copy", async () => toast((await copyText(node.content)) ? "Copied." : "The browser did not allow copying."));
}

function drawMessage(c, node) {
  const isRunning = running.get(c.id)?.node === node, isBusy = running.has(c.id);
  const body = make("div", "body"), bar = make("div", "bar"), stats = make("span", "stats");
  const article = make("article", node.role, body, bar);
  const parts = { article, body, stats };
  article.setAttribute("aria-label", node.role === "user" ? "You" : "Answer");
  if (node.role === "assistant") {
    parts.thought = make("details", "thinking", make("summary", "", "Thinking"), make("div", "text"));
    parts.thought.lastChild.dir = "auto";
    parts.text = make("div", "md");
    parts.error = make("p", "error");
    parts.error.setAttribute("role", "alert");
    body.append(parts.thought, parts.text, parts.error);
    bar.append(...siblingsOf(c, node));
    if (!isRunning) {
      const again = button("again", "Answer again", () => answer(c, c.nodes[node.parent]));
      again.disabled = isBusy;
      bar.append(copyButton(node), again);
      if (node.content && !node.children.length && (node.error || ["length", "stopped"].includes(node.stats?.finish))) {
        const more = button("more", "Go on", () => answer(c, null, node));
        more.disabled = isBusy;
        bar.append(more);
      }
    }
    bar.append(stats);
  } else {
    parts.text = make("div", "plain", node.content);
    parts.text.dir = "auto";
    body.append(parts.text);
    const edit = button("edit", "Edit as a new branch", () => drawEditor(c, node, parts));
    edit.disabled = isBusy;
    bar.append(...siblingsOf(c, node), copyButton(node), edit);
  }
  drawn.set(node.id, parts);
  update(c, node);
  return article;
}

// What changes while an answer comes.
function update(c, node) {
  const p = drawn.get(node.id);
  if (!p || node.role !== "assistant") return;
  const isRunning = running.get(c.id)?.node === node;
  const isThinking = isRunning && !node.content && !!node.thinking;
  p.article.classList.toggle("running", isRunning);
  p.article.setAttribute("aria-busy", isRunning);
  p.thought.hidden = !node.thinking;
  p.thought.firstChild.textContent = isThinking ? "Thinking …" : "Thinking";
  p.thought.lastChild.textContent = node.thinking || "";
  render(p.text, node.content);
  p.text.classList.toggle("empty", isRunning && !node.content && !node.thinking);
  p.error.hidden = !node.error;
  p.error.textContent = node.error || "";
  p.stats.textContent = statsText(node.stats);
}

let pending = null;
function drawSoon(c, node) {
  if (c !== chat || pending) return;
  pending = requestAnimationFrame(() => {
    pending = null;
    if (c !== chat) return;
    const isAtEnd = atEnd();
    update(c, node);
    if (isAtEnd) toEnd();
  });
}

function drawEditor(c, node, parts) {
  const area = make("textarea");
  const close = () => { drawAll(); $("input").focus(); };
  const send = () => {
    if (!area.value.trim() || running.has(c.id)) return;
    answer(c, addNode(c, c.nodes[node.parent], "user", area.value.trim()));
    $("input").focus();
  };
  const yes = make("button", "primary", "Send as a branch"), no = make("button", "", "Cancel");
  area.value = node.content;
  area.dir = "auto";
  area.setAttribute("aria-label", "Edit the message");
  yes.addEventListener("click", send);
  no.addEventListener("click", close);
  area.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
    if (e.key === "Escape") { e.stopPropagation(); close(); }
  });
  area.addEventListener("input", () => fit(area));
  parts.article.classList.add("editing");
  parts.article.replaceChildren(area, make("div", "actions", no, yes));
  fit(area);
  area.focus();
}

const scroll = $("scroll");
const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
function toEnd() { scroll.scrollTop = scroll.scrollHeight; }

// The end stays in view when there is less room: a phone's keyboard, a smaller window, more lines in the field.
function keepEnd() {
  let wasAtEnd = true;
  scroll.addEventListener("scroll", () => { wasAtEnd = atEnd(); });
  new ResizeObserver(() => { if (wasAtEnd) toEnd(); }).observe(scroll);
}

function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

const STARTS = ["Tell me a story about a fox and the moon.", "Write a short poem about rain.", "Explain how a river lock works."];

function emptyView() {
  const box = make("div", "welcome", make("h2", "", "What shall it be?"), make("p", "", "Conversations are kept in this browser alone."));
  for (const text of STARTS) {
    const b = make("button", "start", text);
    b.addEventListener("click", () => { $("input").value = text; fit($("input")); $("input").focus(); });
    box.append(b);
  }
  return box;
}

function drawAll() {
  const isRunning = running.has(chat.id), path = shownPath(chat);
  drawn.clear();
  $("log").replaceChildren(...(path.length ? path.map((n) => drawMessage(chat, n)) : [emptyView()]));
  $("title").textContent = chat.title || "New chat";
  document.title = chat.title ? `${chat.title} · Sluice` : "Sluice";
  setIcon($("send"), isRunning ? "stop" : "send", isRunning ? "Stop" : "Send");
  $("send").classList.toggle("stop", isRunning);
  drawTree();
}

// ---- what is shown: the tree ---------------------------------------------------------------------

function drawTree() {
  const STEP = 26, R = 7;
  if ($("panel").hidden) return;
  const all = Object.values(chat.nodes).filter((n) => n.id !== "root");
  if (!all.length) {
    $("tree").replaceChildren(make("p", "hint", "Edit a message or ask again: branches are drawn here."));
    return;
  }
  const place = new Map(), shown = new Set(shownPath(chat).map((n) => n.id));
  let column = 0, deepest = 0;
  const waiting = [["root", 0]]; // in order: the first child goes on below, the others begin columns
  while (waiting.length) {
    const [id, depth] = waiting.pop(), n = chat.nodes[id];
    if (id !== "root") place.set(id, { x: column * STEP + STEP / 2, y: depth * STEP - STEP / 2 });
    deepest = Math.max(deepest, depth);
    if (!n.children.length) column++;
    for (const child of [...n.children].reverse()) waiting.push([child, depth + 1]);
  }
  const width = column * STEP, height = deepest * STEP;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The tree of messages" });
  for (const n of all) {
    const to = place.get(n.id), from = place.get(n.parent), isShown = shown.has(n.id) ? " shown" : "";
    if (from) picture.prepend(svg("path", { class: `edge${isShown}`, d: `M${from.x} ${from.y}C${from.x} ${to.y - 8} ${to.x} ${from.y + 8} ${to.x} ${to.y}` }));
    const dot = svg("circle", { class: `node ${n.role}${isShown}`, cx: to.x, cy: to.y, r: R, tabindex: 0, role: "button" });
    const label = `${n.role === "user" ? "You" : "Answer"}: ${n.content.slice(0, 60)}`;
    dot.setAttribute("aria-label", label);
    dot.append(svg("title", {}));
    dot.firstChild.textContent = label;
    const go = () => {
      if (running.has(chat.id)) return;
      showNode(chat, n);
      drawn.get(n.id)?.article.scrollIntoView({ block: "center" });
    };
    dot.addEventListener("click", go);
    dot.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); go(); } });
    picture.append(dot);
  }
  $("tree").replaceChildren(picture);
}

// ---- what is shown: the list ---------------------------------------------------------------------

function drawList() {
  const sorted = [...chats.values()].sort((a, b) => b.at - a.at);
  $("chats").replaceChildren(...sorted.map((c) => {
    const open = make("button", "open", c.title || "New chat");
    open.dir = "auto";
    open.addEventListener("click", () => { openChat(c); closeSidebar(); });
    const item = make("li", "", open, button("edit", `Rename ${c.title}`, () => rename(c, item)), button("trash", `Delete ${c.title}`, () => remove(c)));
    if (c === chat) { item.className = "current"; open.setAttribute("aria-current", "page"); }
    if (running.has(c.id)) item.classList.add("busy");
    return item;
  }));
}

function rename(c, item) {
  const input = make("input");
  let isDone = false;
  const finish = (keep) => {
    if (isDone) return;
    isDone = true;
    const title = input.value.trim().slice(0, 120);
    if (keep && title) { c.title = title; c.isNamed = true; save(c); }
    drawList();
    if (c === chat) $("title").textContent = c.title;
  };
  input.value = c.title;
  input.setAttribute("aria-label", "The conversation's name");
  input.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.isComposing) finish(true);
    if (e.key === "Escape") { e.stopPropagation(); finish(false); }
  });
  input.addEventListener("blur", () => finish(true));
  item.replaceChildren(input);
  input.focus();
  input.select();
}

function remove(c) {
  running.get(c.id)?.abort.abort();
  chats.delete(c.id);
  try { localStorage.removeItem(PREFIX + c.id); } catch { /* it is not there then */ }
  if (c === chat) openChat(newChat());
  drawList();
  toast("Deleted.", "Undo", () => { chats.set(c.id, c); save(c); openChat(c); });
}

function openChat(c) {
  chat = c;
  drawAll();
  drawList();
  fillSettings();
  toEnd();
  if (chats.has(c.id)) store("sluice.current", c.id);
  if (!matchMedia("(pointer: coarse)").matches) $("input").focus();
}

// ---- files ---------------------------------------------------------------------------------------

function download(name, type, text) {
  const a = make("a");
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60000);
}

function saveMarkdown() {
  const parts = shownPath(chat).map((n) => `## ${n.role === "user" ? "You" : "Answer"}\n\n${n.content}\n`);
  const name = (chat.title || "chat").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat";
  download(`${name}.md`, "text/markdown", [`# ${chat.title || "New chat"}\n`, ...parts].join("\n"));
}

function exportChats() {
  download("sluice-chats.json", "application/json", JSON.stringify({ chats: [...chats.values()] }));
}

// What is here already stays; what both have is merged as between tabs.
async function importChats(file) {
  let found = [];
  try { found = JSON.parse(await file.text()).chats.filter(isChat); } catch { /* told below */ }
  for (const c of found) {
    const own = chats.get(c.id);
    if (own) merge(own, c);
    else chats.set(c.id, c);
    save(own || c);
  }
  toast(found.length ? `Imported: ${found.length} conversation${found.length === 1 ? "" : "s"}.` : `${file.name} has no conversations that were exported here.`);
  drawAll();
  drawList();
}

// ---- settings, colours, state --------------------------------------------------------------------

function fillSettings() {
  const form = $("settings");
  form.elements.system.value = chat.settings.system || "";
  form.elements.thinking.value = chat.settings.thinking || "";
  for (const name of NUMBERS) form.elements[name].value = chat.settings[name] ?? "";
}

function readSettings() {
  const form = $("settings"), s = { system: form.elements.system.value, thinking: form.elements.thinking.value };
  for (const name of NUMBERS) {
    const field = form.elements[name];
    if (field.value !== "" && field.validity.valid) s[name] = Number(field.value);
    field.setAttribute("aria-invalid", !field.validity.valid);
  }
  chat.settings = s;
  store("sluice.settings", JSON.stringify(s));
  save(chat);
}

const THEMES = { system: "as the system", light: "light", dark: "dark" };
function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setIcon($("theme"), "theme", `Colours: ${THEMES[name]}`);
}

function nextTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = isDark ? ["system", "light", "dark"] : ["system", "dark", "light"];
  const now = stored(localStorage, "sluice.theme") || "system";
  const next = order[(order.indexOf(now) + 1) % 3];
  store("sluice.theme", next);
  setTheme(next);
  toast(`Colours: ${THEMES[next]}.`);
}

function togglePanel(isOpen) {
  $("panel").hidden = !isOpen;
  $("open-panel").setAttribute("aria-expanded", isOpen);
  if (isOpen) drawTree();
}

// Whether the model can be told to think or not, as its template shows. Asks for the key now, where one is needed.
async function showThinking() {
  try { $("thinking").hidden = !(await (await call("props")).json()).chat_template.includes("enable_thinking"); } catch { /* it stays hidden */ }
}

const closeSidebar = () => document.body.classList.remove("with-sidebar");

async function checkHealth() {
  let text = "the server cannot be reached", isGood = false;
  try {
    const h = await (await fetch("health")).json();
    isGood = h.status === "ok";
    text = isGood ? "the server is ready" : `the server: ${h.status}`;
    $("model").textContent = h.model || "";
    $("model").title = h.model || "";
  } catch { /* said above */ }
  $("health").classList.toggle("good", isGood);
  $("health").classList.toggle("bad", !isGood);
  $("health").setAttribute("aria-label", text);
  $("health").title = text;
}

// ---- what is typed and clicked -------------------------------------------------------------------

// The beginning of the first line, cut between words.
function titleOf(text) {
  const line = text.split("\n")[0], MAX = 60;
  return line.length <= MAX ? line : line.slice(0, MAX).replace(/\s+\S{0,20}$/u, "").replace(/[\ud800-\udbff]$/, "") + "…";
}

function send() {
  const text = $("input").value.trim();
  if (!text || running.has(chat.id)) return;
  const path = shownPath(chat);
  const user = addNode(chat, path[path.length - 1] || chat.nodes.root, "user", text);
  if (!chat.title) chat.title = titleOf(text);
  chats.set(chat.id, chat);
  store("sluice.current", chat.id);
  $("input").value = "";
  fit($("input"));
  answer(chat, user);
}

function onKey(e) {
  if ((e.ctrlKey || e.metaKey) && !e.altKey && e.key.toLowerCase() === "k") {
    e.preventDefault();
    openChat(newChat());
    closeSidebar();
    $("input").focus();
  } else if (e.key === "Escape" && !document.querySelector("dialog[open]") && !stop()) {
    if (document.body.classList.contains("with-sidebar")) closeSidebar();
    else togglePanel(false);
    $("input").focus();
  }
}

function start() {
  for (const b of document.querySelectorAll("[data-icon]")) b.prepend(icon(b.dataset.icon));
  setTheme(THEMES[stored(localStorage, "sluice.theme")] ? stored(localStorage, "sluice.theme") : "system");
  loadChats();
  for (const c of chats.values()) // an answer that a reload cut off
    for (const n of Object.values(c.nodes))
      if (n.stats && n.stats.begun !== undefined) { settle(n.stats); n.stats.finish = "stopped"; }
  $("new").addEventListener("click", () => { openChat(newChat()); closeSidebar(); $("input").focus(); });
  $("open-sidebar").addEventListener("click", () => document.body.classList.add("with-sidebar"));
  $("close-sidebar").addEventListener("click", closeSidebar);
  $("shade").addEventListener("click", closeSidebar);
  $("open-panel").addEventListener("click", () => togglePanel($("panel").hidden));
  $("close-panel").addEventListener("click", () => { togglePanel(false); $("open-panel").focus(); });
  $("open-plan").addEventListener("click", openPlan);
  startPlan(call);
  $("theme").addEventListener("click", nextTheme);
  $("save-markdown").addEventListener("click", saveMarkdown);
  $("export").addEventListener("click", exportChats);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", () => {
    if ($("import-file").files[0]) importChats($("import-file").files[0]);
    $("import-file").value = "";
  });
  $("settings").addEventListener("input", readSettings);
  $("settings").addEventListener("submit", (e) => e.preventDefault());
  $("composer").addEventListener("submit", (e) => { e.preventDefault(); if (!stop()) send(); });
  $("input").addEventListener("input", () => fit($("input")));
  $("input").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
  });
  document.addEventListener("keydown", onKey);
  addEventListener("beforeunload", () => { left = performance.now(); });
  addEventListener("focus", checkHealth);
  keepEnd();
  addEventListener("pagehide", () => { for (const id of running.keys()) save(chats.get(id) || chat); });
  addEventListener("storage", (e) => { // another tab
    const id = e.key && e.key.startsWith(PREFIX) ? e.key.slice(PREFIX.length) : null;
    const c = id && readChat(e.key);
    if (c && running.has(id)) merge(chats.get(id), c);
    if (!id || running.has(id)) return;
    if (c) chats.set(id, c);
    else chats.delete(id);
    if (c && chat.id === id) { chat = c; drawAll(); }
    drawList();
  });
  openChat(chats.get(stored(localStorage, "sluice.current")) || newChat());
  checkHealth();
  showThinking();
}

start();
