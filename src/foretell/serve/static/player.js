// Plays a recorded run: a threshold to move, the text at every step, a heat map and the stopping rules. Works offline.

import { createCanvas, createLegend } from "./canvas.js";
import { el, plural } from "./dom.js";
import { createCard, createFigure } from "./figures.js";
import { createHeatmap } from "./heatmap.js";
import { createInspector } from "./inspector.js";
import { oneLine, safeThreshold, stopAt, textBefore } from "./run.js";
import { createStopChart } from "./stopchart.js";
import { createTransport } from "./transport.js";

const USUAL = 5; // Prophet's threshold in the middle of a run
const MEASURES = [["min_gap", "least sure token"], ["mean_gap", "mean of the answer"]];

function createMeasureSwitch(onChange) {
  const choices = MEASURES.map(([value, text], at) => el("label", {}, el("input", { type: "radio", name: "measure", value, checked: at === 0, on: { change: () => onChange(value) } }), el("span", {}, text)));
  return el("div", { class: "switch", role: "radiogroup", "aria-label": "Which gap" }, ...choices);
}

function createRules(replay, onPick) {
  const rows = replay.rules.map(rule => el("tr", {},
    el("th", { scope: "row" }, rule.name),
    el("td", { class: "number" }, rule.step === null ? "never" : el("button", { type: "button", class: "link", "aria-label": `Show step ${rule.step + 1}`, on: { click: () => onPick(rule.step) } }, String(rule.step + 1))),
    el("td", { class: "number" }, String(rule.saved)),
    el("td", { class: "mono" }, oneLine(rule.answer)),
    el("td", {}, el("span", { class: rule.same ? "badge good" : "badge bad" }, rule.same ? "same" : "another"))));
  const names = ["rule", "stops at", "saved", "answer", "as the whole run"];
  const head = el("tr", {}, ...names.map((name, at) => el("th", { scope: "col", class: at === 1 || at === 2 ? "number" : null }, name)));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Stopping rules" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function describeSafe(gaps, { answers, final }) {
  const safe = safeThreshold(gaps, answers, final);
  if (safe === null) return "No threshold that this run reaches gives the answer of the whole run.";
  return `Every threshold from ${Math.max(0, safe).toFixed(2)} up gives the answer of the whole run.`;
}

function sayOther(final) {
  return final.length > 12 ? "another answer than the whole run" : `another answer: the whole run gives ${oneLine(final)}`;
}

export function mountPlayer(root, run, { action = null } = {}) {
  const { replay } = run;
  let measure = "min_gap", threshold = 0, chosen = null;
  const saved = createFigure("key"), where = createFigure(), answer = createFigure(), safe = el("p", { class: "note" });
  const chart = createStopChart({ onMove: value => { threshold = value; jump(); } });
  const canvas = createCanvas({ onSelect: at => { chosen = at; drawStep(transport.at); } });
  const inspector = createInspector({ onClose: () => { chosen = null; inspector.hide(); canvas.mark(null); } });
  const heatmap = createHeatmap({ onPick: (step, at) => { chosen = at; transport.seek(step); } });
  const transport = createTransport({ show: drawStep });
  const text = createCard("The text", "", canvas.node, createLegend(), transport.node, inspector.node);

  function gaps() {
    return replay[measure];
  }

  function drawStep(at) {
    const frame = run.frames[at], last = run.frames.length - 1;
    const ended = stopAt(gaps(), threshold) === at ? "settled" : at === last ? "final" : "";
    canvas.node.classList.toggle("wrong", ended !== "" && replay.answers[at] !== replay.final);
    canvas.show(frame, { prior: textBefore(run.frames, at), ended });
    canvas.mark(chosen);
    text.heading.textContent = at === last ? "The text at the end" : `The text if it had stopped at step ${at + 1}`;
    text.side.textContent = `answer ${oneLine(replay.answers[at])}`;
    heatmap.show(at);
    if (chosen !== null) inspector.show(run, chosen, at);
    drawChart(at);
  }

  function drawChart(cursor) {
    const stop = stopAt(gaps(), threshold), steps = gaps().length, given = replay.answers[stop ?? steps - 1], same = given === replay.final;
    saved.set(String(stop === null ? 0 : steps - stop - 1), `of ${plural(steps, "step")} saved`, same ? "good" : "bad");
    where.set(stop === null ? "never" : String(stop + 1), "stops at step");
    answer.set(given, same ? "the same answer as the whole run" : sayOther(replay.final), same ? "good" : "bad");
    safe.textContent = describeSafe(gaps(), replay);
    const said = `${threshold.toFixed(2)}: ${stop === null ? "never stops" : `stops at step ${stop + 1} of ${steps}`}, answer ${oneLine(given)}, ${same ? "the same as the whole run" : "another than the whole run"}`;
    chart.show({ gaps: gaps(), answers: replay.answers, final: replay.final, threshold, said, cursor: cursor === stop ? null : cursor });
  }

  function jump() {
    transport.seek(stopAt(gaps(), threshold) ?? gaps().length - 1);
  }

  function choose(next) {
    measure = next;
    const top = Math.max(...gaps());
    threshold = top > USUAL ? USUAL : top / 2;
    jump();
  }

  const question = createCard("Where would it have stopped?", "", el("p", { class: "hint" }, "Drag the dashed line, or focus it and use the arrow keys."), chart.node, safe);
  question.side.replaceWith(createMeasureSwitch(choose));
  const figures = el("section", { class: "card figures three", "aria-label": "What this threshold would do" }, saved.node, where.node, answer.node, action);
  const map = createCard("When was each position decided?", "one row per position, one column per step", heatmap.node);
  const rules = createCard("What would other rules do?", "on this run, without the model", createRules(replay, step => transport.seek(step)));
  root.replaceChildren(figures, question.node, text.node, map.node, rules.node);
  heatmap.load(run);
  transport.load(run.frames.length);
  choose(measure);
  return { onKey: transport.onKey, pause: transport.pause };
}

// The start of a saved file: its run is stored beside this script.
export function playSaved() {
  const run = JSON.parse(document.getElementById("run").textContent);
  const player = mountPlayer(document.getElementById("player"), run);
  document.addEventListener("keydown", player.onKey);
}
