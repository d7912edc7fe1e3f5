// math.js - formulas in TeX as MathML, which browsers lay out.
//
// Known are the commands that models write; a formula with anything else is shown as it was written (null). Text
// becomes text nodes and a fixed set of elements, never HTML. Time is in proportion to the length.

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";
const MAX_LENGTH = 10000;
const MAX_DEPTH = 60; // of things inside each other

const words = (text) => text.trim().split(/\s+/);
const pairs = (text) => new Map(words(text).map((w) => w.split(":")));

// Letters and what is set like them.
const LETTERS = pairs(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ
  lambda:λ mu:μ nu:ν xi:ξ omicron:ο pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ
  psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂
  nabla:∇ hbar:ℏ ell:ℓ Re:ℜ Im:ℑ aleph:ℵ wp:℘ emptyset:∅ varnothing:∅ imath:ı jmath:ȷ angle:∠ triangle:△ square:□ Box:□
  top:⊤ bot:⊥ degree:° checkmark:✓ dagger:† ddagger:‡ pounds:£ euro:€ %:% #:# $:$ &:& _:_`);
const OPERATORS = pairs(`times:× cdot:⋅ div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ cap:∩
  cup:∪ setminus:∖ wedge:∧ land:∧ vee:∨ lor:∨ neg:¬ lnot:¬ forall:∀ exists:∃ nexists:∄ in:∈ notin:∉ ni:∋ subset:⊂
  subseteq:⊆ subsetneq:⊊ supset:⊃ supseteq:⊇ leq:≤ le:≤ leqslant:⩽ geq:≥ ge:≥ geqslant:⩾ neq:≠ ne:≠ ll:≪ gg:≫ equiv:≡
  approx:≈ sim:∼ simeq:≃ cong:≅ propto:∝ prec:≺ succ:≻ mid:∣ nmid:∤ parallel:∥ perp:⊥ models:⊨ vdash:⊢ to:→ rightarrow:→
  leftarrow:← gets:← leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔ implies:⟹ impliedby:⟸ iff:⟺
  longrightarrow:⟶ longleftarrow:⟵ Longrightarrow:⟹ mapsto:↦ uparrow:↑ downarrow:↓ nearrow:↗ searrow:↘ hookrightarrow:↪
  rightharpoonup:⇀ rightleftharpoons:⇌ ldots:… dots:… cdots:⋯ dotsc:… dotsb:⋯ vdots:⋮ ddots:⋱ colon:: coloneqq:≔
  triangleq:≜ doteq:≐ therefore:∴ because:∵ prime:′ backslash:\\ lt:< gt:> models:⊨ trianglelefteq:⊴ bmod:mod`);
const LARGE = pairs("sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀");
const INTEGRALS = pairs("int:∫ iint:∬ iiint:∭ oint:∮");
const FUNCTIONS = new Set(words(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp arg deg dim hom
  ker gcd lcm Pr`));
const LIMITS = new Set(words("lim max min sup inf limsup liminf det argmax argmin")); // what stands below goes under them
const FENCES = pairs(`(:( ):) [:[ ]:] |:| /:/ .: \\{:{ \\}:} \\lbrace:{ \\rbrace:} \\langle:⟨ \\rangle:⟩ \\lfloor:⌊ \\rfloor:⌋
  \\lceil:⌈ \\rceil:⌉ \\vert:| \\lvert:| \\rvert:| \\Vert:‖ \\lVert:‖ \\rVert:‖ \\|:‖ <:⟨ >:⟩`);
const SIZES = new Map(words("big Big bigg Bigg").flatMap((w, i) => ["", "l", "r", "m"].map((side) => [w + side, `${1.2 + 0.6 * i}em`])));
const ACCENTS = pairs(`hat:^ widehat:^ bar:¯ overline:¯ vec:→ overrightarrow:→ overleftarrow:← tilde:~ widetilde:~ dot:˙ ddot:¨
  check:ˇ breve:˘ mathring:˚ overbrace:⏞`);
const ACCENTS_BELOW = pairs("underline:_ underbrace:⏟");
const WIDE = new Set(words("widehat overline overrightarrow overleftarrow widetilde overbrace"));
const SPACES = pairs(",:0.167em >:0.222em ;:0.278em !:-0.167em quad:1em qquad:2em thinspace:0.167em enspace:0.5em");
const VARIANTS = pairs(`mathrm:rm rm:rm mathit:it mathnormal:it mathbf:bf boldsymbol:bf bm:bf mathbb:bb mathcal:cal mathscr:cal
  mathfrak:frak mathsf:rm mathtt:rm`);
const TEXTS = new Set(words("text textrm textit textbf textsf texttt textnormal mbox hbox"));
const IGNORED = new Set(words("displaystyle textstyle scriptstyle limits nolimits nonumber notag hline allowbreak"));
const ATOMS = new Set(words("mathop mathbin mathrel mathord mathopen mathclose mathpunct mathinner"));
const ARROWS = pairs("xrightarrow:→ xleftarrow:← xRightarrow:⇒ xleftrightarrow:↔ xmapsto:↦");
const TABLES = new Map(Object.entries({
  matrix: "", smallmatrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", array: "", cases: "{", rcases: " }",
  aligned: "", align: "", "align*": "", alignedat: "", split: "", gathered: "", gather: "", "gather*": "", equation: "", "equation*": "", eqnarray: "", "eqnarray*": "",
}));
const ALIGNED = /^(align|split|eqnarray)/;

// Letters of other alphabets: where they begin in Unicode, and the ones that were there before.
const ALPHABETS = {
  bf: [0x1d400, 0x1d41a, {}],
  bb: [0x1d538, 0x1d552, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  cal: [0x1d49c, 0x1d4b6, { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }],
  frak: [0x1d504, 0x1d51e, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
};

function letterOf(c, variant) {
  const a = ALPHABETS[variant];
  if (!a || !/^[A-Za-z]$/.test(c)) return c;
  return a[2][c] || String.fromCodePoint((c < "a" ? a[0] - 65 : a[1] - 97) + c.charCodeAt(0));
}

function el(tag, attributes, ...children) {
  const e = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

const group = (nodes) => (nodes.length === 1 ? nodes[0] : el("mrow", {}, ...nodes));
const space = (width) => el("mspace", { width });
const flat = (text) => el("mo", { stretchy: "false" }, text);
const tall = (text) => el("mo", { stretchy: "true", fence: "true" }, text);
const fenced = (open, inner, close) => el("mrow", {}, ...(open.trim() ? [tall(open)] : []), inner, ...(close.trim() ? [tall(close)] : []));

class Unknown extends Error {}

class Parser {
  constructor(tex, isBlock) {
    this.tokens = tex.match(/\\operatorname\*|\\[a-zA-Z]+|\\[^]|\d+(?:\.\d+)?|\s+|[^]/gu) || [];
    this.at = 0;
    this.depth = 0;
    this.isBlock = isBlock;
    this.variant = "it";
  }

  peek() {
    while (/^\s/.test(this.tokens[this.at] || "")) this.at++;
    return this.tokens[this.at];
  }

  next() {
    const t = this.peek();
    this.at++;
    return t;
  }

  expect(token) {
    if (this.next() !== token) throw new Unknown();
  }

  takes(token) {
    const yes = this.peek() === token;
    if (yes) this.at++;
    return yes;
  }

  // What is between braces, as it is written.
  raw() {
    this.expect("{");
    const from = this.at;
    for (let depth = 1; depth; this.at++) {
      const t = this.tokens[this.at];
      if (t === undefined) throw new Unknown();
      depth += (t === "{") - (t === "}");
    }
    return this.tokens.slice(from, this.at - 1).join("");
  }

  text() {
    const text = this.raw().replace(/\\([%#$&_{} ])/g, "$1");
    if (/[\\$]/.test(text)) throw new Unknown();
    return text.replace(/~/g, " ").replace(/^ | $/g, "\u00a0");
  }

  row(end) {
    const nodes = [];
    for (let t; (t = this.peek()) !== undefined && t !== end && !["}", "&", "\\\\", "\\cr", "\\right", "\\end"].includes(t);) {
      const node = this.scripted(this.atom());
      nodes.push(node);
      if (node.isFunction && /^[\p{L}\d\\]/u.test(this.peek() || "") && !["\\left", "\\right", "\\\\"].includes(this.peek())) nodes.push(space("0.167em"));
    }
    return nodes;
  }

  // One thing: a group, or a single letter or digit.
  argument() {
    const t = this.peek();
    if (t !== undefined && /^\d./.test(t)) {
      this.tokens[this.at] = t.slice(1);
      return el("mn", {}, t[0]);
    }
    if (t === undefined || ["}", "&", "^", "_", "\\\\", "\\right", "\\end"].includes(t)) throw new Unknown();
    return this.atom();
  }

  scripted(base) {
    let below = null, above = null, primes = 0, goesUnder = base.goesUnder;
    for (;;) {
      const t = this.peek();
      if (t === "\\limits") { goesUnder = true; this.at++; }
      else if (t === "\\nolimits") { goesUnder = false; this.at++; }
      else if (t === "'") { primes++; this.at++; }
      else if (t === "^" && !above) { this.at++; above = this.argument(); }
      else if (t === "_" && !below) { this.at++; below = this.argument(); }
      else if (t === "^" || t === "_") throw new Unknown();
      else break;
    }
    if (primes) above = group([el("mo", {}, "′".repeat(primes)), ...(above ? [above] : [])]);
    if (!below && !above) return base;
    const [one, other, both] = goesUnder ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const node = below && above ? el(both, {}, base, below, above) : below ? el(one, {}, base, below) : el(other, {}, base, above);
    node.isFunction = base.isFunction;
    return node;
  }

  atom() {
    if (++this.depth > MAX_DEPTH) throw new Unknown();
    const node = this.atomOf(this.next());
    this.depth--;
    return node;
  }

  atomOf(t) {
    if (t === "{") {
      const variant = this.variant, inner = el("mrow", {}, ...this.row());
      this.expect("}");
      this.variant = variant;
      return inner;
    }
    if (t[0] === "\\" && t.length > 1) return this.command(t.slice(1));
    if (/^\d/.test(t)) return el("mn", {}, this.variant === "bf" ? [...t].map((c) => (c === "." ? c : String.fromCodePoint(0x1d7ce + +c))).join("") : t);
    if (/^\p{L}$/u.test(t)) return this.letter(t);
    if (t === "^" || t === "_" || t === "'") { this.at--; return el("mrow", {}); } // scripts of nothing
    if (t === "~") return space("0.333em");
    if (t === "-") return el("mo", {}, "−");
    if (t === "*") return el("mo", {}, "∗");
    if ("()[]|/".includes(t)) return flat(t);
    if ("}&$#\\".includes(t)) throw new Unknown();
    return el("mo", {}, t);
  }

  letter(c) {
    const isUpright = this.variant === "rm" || this.variant in ALPHABETS;
    return el("mi", isUpright ? { mathvariant: "normal" } : {}, letterOf(c, this.variant));
  }

  fence() {
    const f = FENCES.get(this.next());
    if (f === undefined) throw new Unknown();
    return f;
  }

  name(text, isLimit) {
    const e = el("mi", { mathvariant: "normal" }, text);
    e.isFunction = true;
    e.goesUnder = isLimit && this.isBlock;
    return e;
  }

  command(name) {
    if (LETTERS.has(name)) return el("mi", /^[A-Z%#$&_]/.test(name) ? { mathvariant: "normal" } : {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return el("mo", {}, OPERATORS.get(name) || ":");
    if (LARGE.has(name)) return Object.assign(el("mo", { largeop: "true", movablelimits: "true" }, LARGE.get(name)), { goesUnder: true });
    if (INTEGRALS.has(name)) return el("mo", { largeop: "true" }, INTEGRALS.get(name));
    if (FUNCTIONS.has(name) || LIMITS.has(name)) return this.name(name.replace(/^(lim|arg)(?=sup|inf|m)/, "$1 "), LIMITS.has(name));
    if (SPACES.has(name) || name === ":") return space(SPACES.get(name) || "0.222em");
    if (/^\s$/.test(name)) return space("0.333em");
    if (FENCES.has(`\\${name}`)) return flat(FENCES.get(`\\${name}`));
    if (SIZES.has(name)) return el("mo", { stretchy: "true", symmetric: "true", minsize: SIZES.get(name), maxsize: SIZES.get(name) }, this.fence());
    if (TEXTS.has(name)) return el("mtext", name === "textbf" ? { class: "bold" } : {}, this.text());
    if (IGNORED.has(name)) return el("mrow", {});
    if (ATOMS.has(name)) return this.argument();
    if (ACCENTS.has(name)) {
      const mark = el("mo", { stretchy: String(WIDE.has(name)) }, ACCENTS.get(name));
      return Object.assign(el("mover", { accent: "true" }, this.argument(), mark), { goesUnder: name === "overbrace" });
    }
    if (ACCENTS_BELOW.has(name)) return Object.assign(el("munder", {}, this.argument(), el("mo", { stretchy: "true" }, ACCENTS_BELOW.get(name))), { goesUnder: name === "underbrace" });
    if (VARIANTS.has(name)) return this.inVariant(VARIANTS.get(name), name.startsWith("math") || name.startsWith("bo") || name === "bm");
    if (ARROWS.has(name)) {
      const below = this.takes("[") ? group(this.row("]")) : null;
      if (below) this.expect("]");
      const arrow = el("mo", { stretchy: "true", minsize: "2em" }, ARROWS.get(name)), above = this.argument();
      return below ? el("munderover", {}, arrow, below, above) : el("mover", {}, arrow, above);
    }
    return this.construction(name);
  }

  construction(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return el("mfrac", name === "dfrac" ? { displaystyle: "true" } : {}, this.argument(), this.argument());
      case "binom": case "dbinom": case "tbinom":
        return fenced("(", el("mfrac", { linethickness: "0" }, this.argument(), this.argument()), ")");
      case "sqrt": {
        const degree = this.takes("[") ? group(this.row("]")) : null;
        if (degree) this.expect("]");
        const inner = this.argument();
        return degree ? el("mroot", {}, inner, degree) : el("msqrt", {}, inner);
      }
      case "left": {
        const open = this.fence(), inner = this.row();
        this.expect("\\right");
        return fenced(open, group(inner), this.fence());
      }
      case "middle": return tall(this.fence());
      case "operatorname": case "operatorname*": return this.name(this.text(), name.endsWith("*"));
      case "overset": case "stackrel": { const above = this.argument(); return el("mover", {}, this.argument(), above); }
      case "underset": { const below = this.argument(); return el("munder", {}, this.argument(), below); }
      case "substack": {
        this.expect("{");
        const table = this.table("substack");
        this.expect("}");
        return table;
      }
      case "boxed": case "fbox": return el("mrow", { class: "boxed" }, this.argument());
      case "phantom": return el("mphantom", {}, this.argument());
      case "pmod": return el("mrow", {}, space("0.5em"), flat("("), el("mi", {}, "mod"), space("0.25em"), this.argument(), flat(")"));
      case "mod": return el("mrow", {}, space("0.5em"), el("mi", {}, "mod"), space("0.25em"));
      case "tag": return el("mtext", {}, `\u2003(${this.text()})`);
      case "label": this.raw(); return el("mrow", {});
      case "color": this.raw(); return el("mrow", {});
      case "textcolor": this.raw(); return this.argument();
      case "not": {
        const e = this.argument();
        if (e.childElementCount) throw new Unknown();
        e.append("\u0338");
        return e;
      }
      case "begin": return this.environment();
    }
    throw new Unknown();
  }

  // \mathbf{x} is of its argument, \rm of the rest of its group.
  inVariant(variant, isOfArgument) {
    const before = this.variant;
    this.variant = variant;
    if (!isOfArgument) return el("mrow", {});
    const e = this.argument();
    this.variant = before;
    return e;
  }

  environment() {
    const name = this.raw(), fences = TABLES.get(name);
    if (fences === undefined) throw new Unknown();
    if (name === "array" || name === "alignedat") this.raw();
    const table = this.table(name);
    this.expect("\\end");
    if (this.raw() !== name) throw new Unknown();
    return fences ? fenced(fences[0], table, fences[1] || "") : table;
  }

  table(name) {
    const rows = [[]], isLeft = /cases$/.test(name), isAligned = ALIGNED.test(name);
    for (;;) {
      const row = rows[rows.length - 1], side = isLeft ? "left" : isAligned ? (row.length % 2 ? "left" : "right") : "";
      row.push(el("mtd", side ? { class: side } : {}, ...this.row()));
      const t = this.peek();
      if (t === "&") this.at++;
      else if (t === "\\\\" || t === "\\cr") {
        this.at++;
        if (this.tokens[this.at] === "[") while (this.at < this.tokens.length && this.tokens[this.at++] !== "]");
        rows.push([]);
      } else break;
    }
    if (rows.length > 1 && rows[rows.length - 1].every((cell) => !cell.childNodes.length)) rows.pop();
    return el("mtable", isAligned ? { displaystyle: "true", class: "aligned" } : {}, ...rows.map((r) => el("mtr", {}, ...r)));
  }

  // One line, or more of them without an environment.
  formula() {
    const table = this.table("align");
    return table.childNodes.length > 1 || table.firstChild.childNodes.length > 1 ? table : el("mrow", {}, ...table.firstChild.firstChild.childNodes);
  }
}

export function math(tex, isBlock) {
  if (tex.length > MAX_LENGTH) return null;
  try {
    const p = new Parser(tex, isBlock), formula = p.formula();
    if (p.peek() !== undefined) return null;
    return el("math", isBlock ? { display: "block" } : {}, el("semantics", {}, formula, el("annotation", { encoding: "application/x-tex" }, tex)));
  } catch (e) {
    if (e instanceof Unknown) return null;
    throw e;
  }
}
