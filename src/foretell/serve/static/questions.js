// The list of questions that a person edits: yes or no, a choice, or a score.

import { el } from "./dom.js";
import { createField } from "./form.js";

const KINDS = { predicate: "Yes or no", choice: "Choice", score: "Score" };
const LISTED = { choice: "Options, one per line", score: "Levels, one per line, lowest first" };
const BLANK = { kind: "choice", text: "", options: [] };
let groups = 0;

const linesOf = text => text.split("\n").map(line => line.trim()).filter(Boolean);

// Write questions as short as a link needs them, and read them back; null if a link holds something else.
export function packQuestions(questions) {
  return JSON.stringify(questions.map(({ kind, text, options }) => [kind, text, ...options]));
}

export function unpackQuestions(packed) {
  try {
    const found = JSON.parse(packed).map(([kind, text, ...options]) => ({ kind, text, options }));
    const sound = found.every(({ kind, text, options }) => Object.hasOwn(KINDS, kind) && [text, ...options].every(part => typeof part === "string"));
    return sound && found.length ? found : null;
  } catch {
    return null;
  }
}

// A question in the server's form, and back.
export function writeQuestion({ kind, text, options }, name) {
  const listed = kind === "choice" ? { choices: options.map(value => ({ value })) } : kind === "score" ? { levels: options.map(label => ({ label })) } : {};
  return { type: kind, name, instructions: text, ...listed };
}

export function readQuestion({ type, instructions, choices = [], levels = [] }) {
  return { kind: type, text: instructions, options: [...choices.map(({ value }) => value), ...levels.map(({ label }) => label)] };
}

function complaint(options) {
  if (options.length < 2) return "Give at least two, one per line.";
  const twice = options.find((option, at) => options.indexOf(option) < at);
  return twice === undefined ? "" : `“${twice}” is listed twice.`;
}

function createQuestion({ kind, text, options }, onRemove) {
  const group = `kind-${++groups}`;
  const switches = Object.entries(KINDS).map(([value, name]) => el("label", {},
    el("input", { type: "radio", name: group, value, checked: value === kind, on: { change: () => choose(value) } }), el("span", {}, name)));
  const words = el("textarea", { rows: 2, spellcheck: "false" });
  const list = el("textarea", { rows: 4, spellcheck: "false", class: "list", placeholder: "one\nanother", on: { input: () => list.setCustomValidity("") } });
  const listed = createField("", list), title = el("legend");
  const remove = el("button", { type: "button", class: "link", on: { click: () => onRemove(item) } }, "Remove");
  const node = el("fieldset", { class: "question" }, title, remove,
    el("div", { class: "switch", role: "radiogroup", "aria-label": "Kind of answer" }, ...switches), createField("What do you want to know?", words), listed);

  function choose(next) {
    kind = next;
    listed.hidden = kind === "predicate";
    listed.querySelector("label").textContent = LISTED[kind] ?? "";
    list.setCustomValidity("");
  }

  const item = {
    node, remove,
    place(at, count) {
      title.textContent = `Question ${at + 1}`;
      remove.hidden = count === 1;
      remove.setAttribute("aria-label", `Remove question ${at + 1}`);
    },
    value: () => ({ kind, text: words.value.trim(), options: kind === "predicate" ? [] : linesOf(list.value) }),
    check: () => list.setCustomValidity(kind === "predicate" ? "" : complaint(linesOf(list.value))),
    focus: () => words.focus(),
  };
  words.value = text;
  list.value = options.join("\n");
  choose(kind);
  return item;
}

export function createQuestions() {
  let items = [];
  const list = el("div", { class: "questions" });
  const more = el("button", { type: "button", class: "small", on: { click: () => add(BLANK).focus() } }, "Add a question");

  function arrange() {
    items.forEach((item, at) => item.place(at, items.length));
  }

  function add(question) {
    const item = createQuestion(question, drop);
    items.push(item);
    list.append(item.node);
    arrange();
    return item;
  }

  function drop(item) {
    const at = items.indexOf(item);
    items = items.filter(each => each !== item);
    item.node.remove();
    arrange();
    (items.length > 1 ? items[Math.min(at, items.length - 1)].remove : more).focus();
  }

  function fill(questions) {
    items = [];
    list.replaceChildren();
    for (const question of questions) add(question);
  }

  fill([BLANK]);
  return { node: el("div", { class: "asking" }, list, more), fill, value: () => items.map(item => item.value()), check: () => items.forEach(item => item.check()) };
}
