// parts.js - the small parts that the page is made of: elements, pictures, buttons.

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  layers: "M4 6h11M19 6h1M4 10.7h5M13 10.7h7M4 15.3h11M19 15.3h1M4 20h5M13 20h7",
  send: "M12 19V6M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  theme: "M12 4a8 8 0 100 16zM12 4a8 8 0 010 16",
  copy: "M9 9h10v10H9zM5 15V5h10",
  again: "M19 12a7 7 0 11-2-5l2 2M19 4v5h-5",
  more: "M5 6l6 6-6 6M13 6l6 6-6 6",
  edit: "M5 19l1-4L16 5l3 3L9 18z",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12",
  left: "M14 7l-5 5 5 5",
  right: "M10 7l5 5-5 5",
};

export const $ = (id) => document.getElementById(id);

export function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

export function svg(tag, attributes) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

export function icon(name) {
  const e = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "i" });
  e.append(svg("path", { d: ICONS[name] }));
  return e;
}

export function button(name, label, act, className = "icon") {
  const b = make("button", className, icon(name));
  b.type = "button";
  b.title = label;
  b.setAttribute("aria-label", label);
  b.addEventListener("click", act);
  return b;
}

export function setIcon(b, name, label) {
  b.querySelector("svg").replaceWith(icon(name));
  b.setAttribute("aria-label", label);
  b.title = label;
}
