// Large figures with a caption, and the cards that hold everything.

import { el } from "./dom.js";

export function createFigure(kind = "") {
  const value = el("b"), caption = el("span");
  const node = el("div", { class: `figure ${kind}` }, value, caption);
  return {
    node,
    set(text, below, tone = "") {
      const size = text.length > 12 || text.includes("\n") ? "long" : text.length > 6 ? "medium" : "";
      const look = `figure ${kind} ${tone} ${size}`;
      if (node.className !== look) node.className = look;
      if (value.textContent !== text) value.textContent = text;
      if (caption.textContent !== below) caption.textContent = below;
    },
  };
}

export function createCard(title, note = "", ...content) {
  const side = el("span", { class: "note" }, note), heading = el("h2", {}, title);
  const head = el("div", { class: "head" }, heading, side);
  return { node: el("section", { class: "card" }, head, ...content), side, head, heading };
}
