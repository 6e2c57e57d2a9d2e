// What a view shows when there is no run: the examples, waiting, and errors.

import { el } from "./dom.js";

// Grids and short prompts are set larger, in a fixed width.
function lookOf(prompt) {
  return prompt.includes("\n") ? "grid" : prompt.length < 24 ? "short" : "";
}

// The page before the first run.
export function createWelcome(examples, { title, text, onPick, begin = "Write a prompt to begin." }) {
  const cards = examples.map(example => el("button", { type: "button", class: "example", on: { click: () => onPick(example) } },
    el("span", { class: "task" }, example.task), example.about ? el("span", { class: "note" }, example.about) : null, el("span", { class: `words ${lookOf(example.prompt)}` }, example.prompt)));
  const invite = examples.length ? "Pick a problem that this model knows, or write your own." : begin;
  return el("section", { class: "welcome", "aria-label": "Examples" }, el("h2", { class: "hero" }, title), el("p", { class: "lead" }, text),
    el("p", { class: "note" }, invite), el("div", { class: "examples" }, ...cards));
}

// One line in a card that says what is waited for or what went wrong.
export function createStatus() {
  const node = el("p", { class: "status", hidden: true });
  const show = (kind, text) => {
    node.className = `status ${kind}`;
    node.textContent = text;
    node.hidden = !text;
  };
  return {
    node,
    clear: () => show("", ""),
    wait: text => show("wait", text),
    fail: text => show("fail", text),
  };
}

export function sayQueue(place) {
  return place === null ? "Waiting for a free place on the server." : `Waiting: place ${place} in the queue.`;
}

export function sayError(error) {
  if (error.status === 401) return `This server needs an API key: ${error.message}`;
  return error.message;
}
