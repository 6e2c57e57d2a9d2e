// The frame that all forms share, and the form of a decoding: prompt, examples, recipe, layout and pinned text.

import { readKey, storeKey } from "./api.js";
import { el } from "./dom.js";

let forms = 0;

export function createField(label, control, note = null) {
  const id = `field-${++forms}`;
  control.id = id;
  if (note) {
    note.id = `${id}-note`;
    control.setAttribute("aria-describedby", note.id);
  }
  return el("div", { class: "field" }, el("label", { for: id }, label), control, note);
}

export function createPick(options, chosen) {
  const pick = el("select", {}, ...options.map(({ value, text }) => el("option", { value }, text)));
  pick.value = chosen;
  return pick;
}

// Choose a value, adding it if the list does not have it (a link may name any recipe).
function choose(pick, value) {
  if (![...pick.options].some(option => option.value === value)) pick.append(el("option", { value }, value));
  pick.value = value;
}

function createRecipe(info, label, chosen) {
  const pick = createPick(info.recipes.map(({ name }) => ({ value: name, text: name })), chosen), note = el("p", { class: "about" });
  const describe = () => { note.textContent = info.recipes.find(({ name }) => name === pick.value)?.about ?? ""; };
  pick.addEventListener("change", describe);
  describe();
  return { field: createField(label, pick, note), pick, describe };
}

// One button per task; further clicks go through its examples.
export function createChips(examples, onPick) {
  if (!examples.length) return null;
  const tasks = [...new Set(examples.map(({ task }) => task))];
  const seen = Object.fromEntries(tasks.map(task => [task, -1]));
  return el("div", { class: "chips", role: "group", "aria-label": "Examples" }, ...tasks.map(task => el("button", { type: "button", class: "small", on: { click: () => {
    const own = examples.filter(example => example.task === task);
    seen[task] = (seen[task] + 1) % own.length;
    onPick(own[seen[task]]);
  } } }, task)));
}

export function defaultRecipe(info) {
  return (info.recipes.find(recipe => recipe.default) ?? info.recipes[0]).name;
}

// The positions of the text that these settings give, as far as the server has said.
export function windowOf(info, settings) {
  return info.layouts.find(({ name }) => name === settings.layout)?.window ?? 64;
}

// A form with a button that starts and stops, and a field for the server's key. `text` is the field that must not be
// blank; `check()` may give fields a complaint; `onRun()` starts and `onStop()` ends a run.
export function createFrame(info, { label, verb, text, content, check = () => {}, onRun, onStop }) {
  let busy = false;
  const key = info.key ? el("input", { type: "password", autocomplete: "off", required: true, placeholder: "kept until you close this tab", value: readKey(), on: { input: () => storeKey(key.value.trim()) } }) : null;
  const go = el("button", { type: "submit", class: "go" }, verb);
  const node = el("form", { class: "card form", "aria-label": label, on: { submit: event => { event.preventDefault(); start(); } } },
    key && createField("API key of this server", key), ...content, el("div", { class: "foot" }, go));

  function start() {
    if (busy) return onStop();
    if (!text.value.trim()) text.value = "";
    check();
    return node.reportValidity() ? onRun() : null;
  }

  node.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.tagName === "TEXTAREA") start();
  });
  return {
    node, start,
    startIfIdle: () => (busy ? null : start()),
    setBusy(now) {
      busy = now;
      go.textContent = now ? "Stop" : verb;
      go.classList.toggle("stop", now);
    },
    askForKey() {
      key?.focus();
    },
  };
}

// `recipes` names the recipe fields: [{name, label, chosen}]. `onRun(settings)` starts, `onStop()` ends a run.
export function createForm(info, { recipes, verb, onRun, onStop }) {
  const prompt = el("textarea", { rows: 4, spellcheck: "false", required: true, placeholder: info.chat ? "Ask something that has an answer" : "A text for the model to continue" });
  const fields = recipes.map(({ name, label, chosen }) => ({ name, ...createRecipe(info, label, chosen) }));
  const usual = info.layouts.find(layout => layout.default)?.name ?? info.layouts[0]?.name ?? "";
  const layout = info.layouts.length ? createPick(info.layouts.map(({ name, window }) => ({ value: name, text: `${name} (${window} tokens)` })), usual) : null;
  const suffix = el("input", { type: "text", placeholder: "The answer is" });
  const length = el("input", { type: "number", min: 1, max: info.context, placeholder: "as the layout says" });
  const more = el("details", {}, el("summary", {}, "Where the answer stands"),
    layout && createField("Layout", layout), createField("Text pinned before the answer", suffix), createField("Length of the answer, in tokens", length));

  function settings() {
    const found = { prompt: prompt.value, layout: layout?.value, suffix: suffix.value.trim(), length: length.value };
    for (const { name, pick } of fields) found[name] = pick.value;
    return found;
  }

  function fill(given) {
    if (given.prompt !== undefined) prompt.value = given.prompt;
    if (layout && given.layout) choose(layout, given.layout);
    if (given.suffix !== undefined) suffix.value = given.suffix;
    if (given.length !== undefined) length.value = given.length;
    if (given.suffix || given.length) more.open = true;
    for (const { name, pick, describe } of fields) {
      if (given[name]) choose(pick, given[name]);
      describe();
    }
  }

  const pick = example => {
    fill({ prompt: example.prompt, layout: example.layout, suffix: "", length: "" });
    frame.startIfIdle();
  };
  const frame = createFrame(info, {
    label: "What to decode", verb, text: prompt, onRun: () => onRun(settings()), onStop,
    content: [createField("Prompt", prompt), createChips(info.examples, pick), ...fields.map(({ field }) => field), more],
  });
  return { ...frame, settings, fill, pick };
}
