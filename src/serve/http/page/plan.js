// plan.js - the panel that draws a step: its layers as rows, its ops as blocks, and where the time goes.
//
// An area is a share: every block is as wide as its op takes time (or reads bytes), on one scale for all rows. What is
// wider than a row, as the head of a small model, goes on in the next one. The blocks are one list box: arrows go from op
// to op, and the op that is chosen, or pointed at, is told below.

import { $, make } from "./parts.js";

const PARTS = { // by an op's role, "mix" by its name
  embed: "Embedding", "mix in": "Mixer, in", delta: "Recurrent state", attend: "Attention", "mix out": "Mixer, out",
  "ffn route": "Router", "ffn in": "Feed-forward, in", "ffn out": "Feed-forward, out", tap: "Hidden states", head: "Output head", pick: "Sampling",
};

const SHORT = { embed: "Embed", tap: "Tap", head: "Head", pick: "Pick" };

let plan = null, call = null, isBusy = false, byBytes = false, chosen = -1;
const rate = {}; // of the newest answer: speed, submissions, isLive

const partOf = (op) => (op.role === "mix" ? op.op : op.role);
const nameOf = (op) => PARTS[partOf(op)] || op.role;
const classOf = (op) => `op-${partOf(op).replace(/\W/g, "-")}`;
const isTimed = () => !!plan && plan.timed && !byBytes;
const valueOf = (op) => (isTimed() ? op.us : op.read + op.written);
const sum = (ops, f) => ops.reduce((all, op) => all + f(op), 0);

// ---- figures -------------------------------------------------------------------------------------

function inUnits(value, units) {
  let i = 0;
  for (; value >= 999.5 && i < units.length - 1; i++) value /= 1000;
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0)} ${units[i]}`;
}
const timeText = (us) => inUnits(us, ["µs", "ms", "s"]);
const bytesText = (n) => (n < 1000 ? `${n} B` : inUnits(n / 1000, ["kB", "MB", "GB"]));
const rateText = (bytes, us) => inUnits(bytes / us, ["MB/s", "GB/s", "TB/s"]);
const valueText = (value) => (isTimed() ? timeText(value) : bytesText(value));
const percentText = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const where = (op) => (op.layer < 0 ? "" : `layer ${op.layer}`);

function tile(name, value, more, isLive) {
  return make("div", isLive ? "tile live" : "tile", make("dt", "", name), make("dd", "", value, make("small", "", more)));
}

function drawTiles() {
  const tiles = [];
  if (rate.speed) tiles.push(tile(rate.isLive ? "Speed, now" : "Speed", `${rate.speed.toFixed(1)} tok/s`, rate.isLive ? "this answer" : "last answer", rate.isLive));
  if (rate.submissions) tiles.push(tile("Submissions", `${rate.submissions.toFixed(2)} a token`, "last answer"));
  if (plan) {
    const bytes = sum(plan.ops, (op) => op.read), us = plan.timed ? sum(plan.ops, (op) => op.us) : 0;
    if (us) tiles.push(tile("Step", timeText(us), `${(1e6 / us).toFixed(us > 1e5 ? 1 : 0)} steps/s`));
    tiles.push(tile("Reads a token", bytesText(bytes), us ? rateText(bytes, us) : `${plan.ops.length} ops`));
  }
  $("plan-tiles").replaceChildren(...tiles);
}

// What the answers tell: live while one comes, exact at its end.
export function noteRate(speed, submissions, isLive) {
  rate.speed = speed || rate.speed;
  rate.submissions = submissions || (isLive ? rate.submissions : undefined);
  rate.isLive = isLive;
  if ($("plan-dialog").open) drawTiles();
}

// ---- the drawing ---------------------------------------------------------------------------------

// Rows in the order of the step: a layer each, and those before and after the layers.
function rowsOf(ops) {
  const rows = [];
  ops.forEach((op, i) => {
    const last = rows[rows.length - 1];
    if (last && op.layer >= 0 && last.layer === op.layer) last.ops.push(i);
    else rows.push({ layer: op.layer, ops: [i] });
  });
  return rows;
}

const kindOf = (row) => {
  const mixer = row.ops.map((i) => plan.ops[i]).find((op) => op.role === "mix");
  return mixer ? mixer.op : "";
};

function block(i, width, isFirst) {
  const op = plan.ops[i], b = make("div", `block ${classOf(op)}`);
  b.style.width = `${100 * width}%`;
  b.dataset.op = i;
  if (!isFirst) {
    b.setAttribute("aria-hidden", "true");
    return b;
  }
  const share = valueOf(op) / sum(plan.ops, valueOf);
  b.id = `op-${i}`;
  b.setAttribute("role", "option");
  b.setAttribute("aria-label", [where(op), nameOf(op), valueText(valueOf(op)), percentText(share)].filter(Boolean).join(", "));
  return b;
}

// The blocks of a row in lines as wide as the scale: what does not fit goes on in the next one.
function linesOf(row, scale) {
  const lines = [[]];
  let space = 1;
  for (const i of row.ops) {
    let left = Math.max(valueOf(plan.ops[i]) / scale, 1e-4);
    for (let isFirst = true; left > 1e-6; isFirst = false) {
      if (space < 1e-6) { lines.push([]); space = 1; }
      const width = Math.min(left, space);
      lines[lines.length - 1].push(block(i, width, isFirst));
      left -= width;
      space -= width;
    }
  }
  return lines.map((blocks) => make("div", "line", ...blocks));
}

function drawRow(row, scale) {
  const kind = kindOf(row), first = plan.ops[row.ops[0]];
  const label = make("span", `label ${kind}`, row.layer < 0 ? SHORT[first.role] || first.role : String(row.layer));
  const total = make("span", "total", valueText(sum(row.ops.map((i) => plan.ops[i]), valueOf)));
  const words = { delta: ", recurrent", attend: ", attention" };
  const line = make("div", "row", label, make("div", "lines", ...linesOf(row, scale)), total);
  label.setAttribute("aria-hidden", "true");
  total.setAttribute("aria-hidden", "true");
  line.setAttribute("role", "group");
  line.setAttribute("aria-label", row.layer < 0 ? nameOf(first) : `Layer ${row.layer}${words[kind] || ""}`);
  return line;
}

// The whole step by part, largest first.
function drawShares() {
  const all = sum(plan.ops, valueOf), parts = new Map();
  for (const op of plan.ops) {
    const p = parts.get(classOf(op)) || { op, value: 0, n: 0 };
    p.value += valueOf(op);
    p.n++;
    parts.set(classOf(op), p);
  }
  const sorted = [...parts.values()].sort((a, b) => b.value - a.value);
  const bar = make("div", "line whole", ...sorted.map((p) => {
    const b = make("div", `block ${classOf(p.op)}`);
    b.style.width = `${100 * p.value / all}%`;
    return b;
  }));
  bar.setAttribute("aria-hidden", "true");
  const list = make("ul", "", ...sorted.map((p) => {
    const item = make("li", "", make("i", classOf(p.op)), make("span", "", nameOf(p.op)), make("b", "", percentText(p.value / all)));
    item.title = `${p.n} op${p.n === 1 ? "" : "s"}, ${valueText(p.value)}`;
    return item;
  }));
  $("plan-shares").replaceChildren(bar, list);
}

function tell(i) {
  const op = plan.ops[i], facts = [];
  const add = (name, value) => facts.push(make("div", "", make("dt", "", name), make("dd", "", value)));
  if (plan.timed) {
    add("Time", timeText(op.us));
    add("Of the step", percentText(op.us / sum(plan.ops, (o) => o.us)));
  }
  add("Reads", bytesText(op.read));
  if (op.weights) add("Weights", bytesText(op.weights));
  add("Writes", bytesText(op.written));
  if (plan.timed && op.us > 0) add("Rate", rateText(op.read + op.written, op.us));
  const kernels = (op.kernels || []).map((k) => `${k.kernel} (${k.grid.join(" × ")}) × ${k.threads}`);
  const title = make("p", "title", make("i", classOf(op)), make("b", "", nameOf(op)), ` ${[where(op), `op ${i}: ${op.op}`].filter(Boolean).join(" · ")}`);
  $("plan-detail").replaceChildren(title, make("dl", "", ...facts), ...kernels.map((k) => make("p", "kernel", k)));
}

function choose(i, isScrolled) {
  const list = $("plan-rows");
  chosen = Math.max(0, Math.min(plan.ops.length - 1, i));
  for (const b of list.querySelectorAll(".chosen")) b.classList.remove("chosen");
  for (const b of list.querySelectorAll("[aria-selected]")) b.removeAttribute("aria-selected");
  for (const b of list.querySelectorAll(`[data-op="${chosen}"]`)) b.classList.add("chosen");
  const option = $(`op-${chosen}`);
  option.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", option.id);
  if (isScrolled) option.scrollIntoView({ block: "nearest" });
  tell(chosen);
}

// What a whole line stands for: the largest layer, or what is not much larger, so that no sliver is left for a next line.
function scaleOf(rows, layers) {
  const largest = (some) => Math.max(...some.map((r) => sum(r.ops.map((i) => plan.ops[i]), valueOf)));
  const all = largest(rows), layer = layers.length ? largest(layers) : all;
  return all < 1.5 * layer ? all : layer;
}

function draw() {
  $("plan-by").hidden = !plan || !plan.timed;
  $("plan-measure").disabled = isBusy || !plan;
  $("plan-measure").textContent = plan && plan.timed ? "Measure again" : "Measure";
  drawTiles();
  if (!plan) return;
  const rows = rowsOf(plan.ops);
  const layers = rows.filter((r) => r.layer >= 0);
  const scale = scaleOf(rows, layers);
  const kinds = layers.map(kindOf), count = (k) => kinds.filter((x) => x === k).length;
  const words = [count("delta") && `${count("delta")} recurrent`, count("attend") && `${count("attend")} attention`].filter(Boolean);
  $("plan-about").textContent = `${layers.length} layers: ${words.join(" and ")}. One row, depth ${plan.depth}, on ${plan.device || plan.backend}.`;
  drawShares();
  $("plan-rows").replaceChildren(...rows.map((r) => drawRow(r, scale)));
  choose(chosen < 0 ? plan.ops.indexOf(plan.ops.reduce((a, b) => (valueOf(b) > valueOf(a) ? b : a))) : chosen);
}

// ---- asking, keys --------------------------------------------------------------------------------

function say(text, isBad) {
  $("plan-state").textContent = text;
  $("plan-state").classList.toggle("error", !!isBad);
}

async function fetchPlan(options) {
  isBusy = true;
  draw();
  try {
    plan = await (await call("v1/plan", options)).json();
    say(plan.timed ? "Measured just now: the median of 5 steps." : "");
  } catch (e) {
    say(e instanceof TypeError ? "The server cannot be reached." : e.message, true);
  }
  isBusy = false;
  draw();
}

async function measure() {
  if (isBusy) return;
  say("Measuring as soon as no answer runs …");
  await fetchPlan({ method: "POST" });
}

// The step is measured when the panel is opened first: once, and only while the server is idle.
export async function openPlan() {
  $("plan-dialog").showModal();
  $("plan-rows").focus();
  if (!plan) await fetchPlan();
  draw();
  if (plan && !plan.timed) await measure();
}

function onKey(e) {
  const row = (i, step) => { // the op of the next row that is nearest below or above
    const at = plan.ops[i].layer, mine = plan.ops.filter((op) => op.layer === at && at >= 0).indexOf(plan.ops[i]);
    for (let k = i + step; k >= 0 && k < plan.ops.length; k += step) {
      if (plan.ops[k].layer === at && at >= 0) continue;
      const to = plan.ops[k].layer, first = to < 0 ? k : plan.ops.findIndex((op) => op.layer === to);
      const n = to < 0 ? 1 : plan.ops.filter((op) => op.layer === to).length;
      return first + Math.min(Math.max(mine, 0), n - 1);
    }
    return i;
  };
  const moves = { ArrowRight: (i) => i + 1, ArrowLeft: (i) => i - 1, ArrowDown: (i) => row(i, 1), ArrowUp: (i) => row(i, -1), Home: () => 0, End: () => plan.ops.length - 1 };
  if (!plan || !moves[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  choose(moves[e.key](chosen), true);
}

// `ask` fetches from the server, with the key where one is needed.
export function startPlan(ask) {
  call = ask;
  const list = $("plan-rows");
  const opAt = (e) => e.target.closest?.("[data-op]")?.dataset.op;
  list.addEventListener("keydown", onKey);
  list.addEventListener("click", (e) => { const i = opAt(e); if (i !== undefined) choose(Number(i)); });
  list.addEventListener("pointerover", (e) => { const i = opAt(e); if (i !== undefined && e.pointerType === "mouse") tell(Number(i)); });
  list.addEventListener("pointerleave", () => { if (plan) tell(chosen); });
  $("plan-measure").addEventListener("click", measure);
  $("plan-close").addEventListener("click", () => $("plan-dialog").close());
  $("plan-dialog").addEventListener("click", (e) => { if (e.target === $("plan-dialog")) $("plan-dialog").close(); });
  $("plan-dialog").addEventListener("close", () => $("open-plan").focus());
  $("plan-by").addEventListener("change", (e) => { byBytes = e.target.value === "bytes"; draw(); });
}
