// Draws a text position by position: masks with their drafts, filled tokens, pinned tokens and the answer's box.

import { el } from "./dom.js";
import { shown, stateOf } from "./run.js";

const LINE = 34, PADDING = 12, POSITION = 12; // pixels: as in style.css, and the width of a usual token
const SAID = { mask: "draft", fresh: "filled now", kept: "filled", pinned: "pinned" };

// Where the text pinned right before the answer begins; it gets its own line.
function startOfSuffix(frame) {
  let at = frame.answer.indexOf(true);
  if (at < 1 || !frame.pinned[at - 1]) return null;
  while (at && frame.pinned[at - 1]) at--;
  return at;
}

// What stands between a token and the one before it: a line end, a space or nothing.
function blankBefore(frame, at, suffix) {
  const before = at && !frame.ends[at - 1] ? frame.tokens[at - 1] : "";
  if (before.includes("\n") || (at && at === suffix)) return "\n";
  return /^[ \t]/.test(frame.tokens[at]) || /\s$/.test(before) ? " " : "";
}

function updateCell(cell, frame, at, suffix) {
  const state = stateOf(frame, at), text = shown(frame, at), end = frame.ends[at];
  const blank = blankBefore(frame, at, suffix), sure = frame.confidence[at] ?? 0;
  if (cell.blank.data !== blank) cell.blank.data = blank;
  const key = `${state} ${end} ${text}`;
  if (cell.key !== key) {
    cell.key = key;
    cell.node.className = `t ${state}${end ? " end" : ""}${text === "↵" ? " turn" : ""}`;
    cell.node.textContent = end ? "" : text;
    cell.node.setAttribute("aria-label", `${end ? "after the end" : text}, ${SAID[state]}`);
  }
  cell.node.style.setProperty("--sure", state === "mask" ? sure.toFixed(3) : 0);
}

// Put the cells into `node` in reading order, those of the answer into boxes.
function arrange(node, cells, frame, prior) {
  const boxes = [];
  let box = null;
  node.replaceChildren(...(prior ? [el("span", { class: "prior" }, prior)] : []));
  cells.forEach((cell, at) => {
    if (!frame.answer[at]) {
      box = null;
      node.append(cell.blank, cell.node);
      return;
    }
    if (!box) {
      const tag = el("span", { class: "tag" });
      box = { node: el("span", { class: "answer" }), tag, inner: el("span", { class: "inner" }) };
      box.node.append(box.inner, tag);
      boxes.push(box);
      node.append(cell.blank, box.node);
      box.inner.append(cell.node);
    } else box.inner.append(cell.blank, cell.node);
  });
  return boxes;
}

export function createCanvas({ onSelect = null, label = "The text, position by position" } = {}) {
  const node = el("div", { class: "canvas", role: "group", "aria-label": label });
  let cells = [], boxes = [], shape = "", chosen = null, tallest = 0, width = 0;

  function choose(at, focus) {
    if (chosen !== null && cells[chosen]) cells[chosen].node.tabIndex = -1;
    chosen = Math.max(0, Math.min(cells.length - 1, at));
    cells[chosen].node.tabIndex = 0;
    if (focus) cells[chosen].node.focus();
  }

  function createCell(at) {
    const span = el("span", { class: "t", "data-at": at });
    if (onSelect) {
      span.setAttribute("role", "button");
      span.tabIndex = -1;
    } else span.setAttribute("role", "img");
    return { blank: document.createTextNode(""), node: span, key: "" };
  }

  // `ended` names the end of the run if this frame is it: "settled" or "final".
  function show(frame, { prior = "", ended = frame.settled ? "settled" : "" } = {}) {
    if (cells.length !== frame.tokens.length) {
      cells = frame.tokens.map((_, at) => createCell(at));
      shape = "";
    }
    const now = `${prior}|${frame.answer.map(Number).join("")}`;
    if (shape !== now) {
      boxes = arrange(node, cells, frame, prior);
      shape = now;
      if (onSelect) choose(chosen ?? 0, false);
    }
    const suffix = startOfSuffix(frame);
    cells.forEach((cell, at) => updateCell(cell, frame, at, suffix));
    for (const box of boxes) {
      box.node.classList.toggle("settled", Boolean(ended));
      box.tag.textContent = ended || "answer";
    }
    reserve();
  }

  // Keep the greatest height so far, so that nothing below moves.
  function reserve() {
    if (node.clientWidth !== width) {
      width = node.clientWidth;
      tallest = 0;
    }
    if (!tallest) node.style.minHeight = "0";
    const height = node.scrollHeight;
    if (height > tallest) {
      tallest = height;
      node.style.minHeight = `${tallest}px`;
    }
  }

  // Begin a new run, with space for a text of `positions` tokens.
  function clear(positions) {
    node.replaceChildren();
    cells = [];
    shape = "";
    chosen = null;
    width = node.clientWidth;
    tallest = LINE * Math.max(4, 2 + Math.ceil(positions * POSITION / width)) + PADDING;
    node.style.minHeight = `${tallest}px`;
  }

  if (onSelect) {
    const place = event => event.target.closest?.(".t");
    node.addEventListener("click", event => {
      const cell = place(event);
      if (!cell) return;
      choose(Number(cell.dataset.at), true);
      onSelect(chosen);
    });
    node.addEventListener("keydown", event => {
      if (!place(event)) return;
      const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: cells.length - 1 };
      if (event.key in moves) choose(moves[event.key], true);
      else if (event.key === "Enter" || event.key === " ") onSelect(chosen);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }
  const mark = at => cells.forEach((cell, index) => cell.node.classList.toggle("chosen", index === at));
  return { node, show, clear, mark };
}

export function createLegend() {
  const item = (kind, text) => el("span", {}, el("i", { class: `swatch ${kind}` }), text);
  return el("p", { class: "legend" },
    item("mask", "mask, with the model's draft; the line shows how sure it is"), item("fresh", "filled by this step"),
    item("kept", "filled earlier"), item("end", "after the end of the text"));
}
