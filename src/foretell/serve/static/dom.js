// Creates HTML and SVG elements, formats numbers, and redraws pictures when their width changes.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const ICONS = {
  play: "M5 3.5v9l8-4.5z",
  pause: "M4.5 3.5h2.5v9H4.5zM9 3.5h2.5v9H9z",
  back: "M11 3.5v9L5.5 8zM4 3.5h1.5v9H4z",
  next: "M5 3.5v9L10.5 8zM10.5 3.5H12v9h-1.5z",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM7.4 1h1.2v2.4H7.4zM7.4 12.6h1.2V15H7.4zM1 7.4h2.4v1.2H1zM12.6 7.4H15v1.2h-2.4z",
  dark: "M6.2 2A6.2 6.2 0 1 0 14 9.8 5.2 5.2 0 0 1 6.2 2z",
  auto: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM8 3v10A5 5 0 0 1 8 3z",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name], "fill-rule": "evenodd" }));
}

export function plural(count, noun, many = `${noun}s`) {
  return `${count} ${count === 1 ? noun : many}`;
}

export function inSeconds(seconds) {
  return `${seconds.toFixed(seconds < 1 ? 3 : seconds < 10 ? 2 : 1)} s`;
}

export function calm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// A picture that `draw(node, width)` fills, again after every `update` and whenever its width changes.
export function createPicture(attributes, draw) {
  const node = svg("svg", { role: "img", ...attributes });
  const box = el("div", { class: "picture" }, node);
  let width = 0;
  const update = () => {
    if (!width) return;
    node.setAttribute("width", width);
    draw(node, width);
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) {
      width = now;
      update();
    }
  }).observe(box);
  return { box, node, update };
}
