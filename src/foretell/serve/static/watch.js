// The Watch view: one prompt, decoded while you look on.

import { recordRun } from "./api.js";
import { createCanvas, createLegend } from "./canvas.js";
import { createChart } from "./chart.js";
import { calm, el, inSeconds, plural } from "./dom.js";
import { createCard, createFigure } from "./figures.js";
import { createForm, defaultRecipe, windowOf } from "./form.js";
import { writeFragment } from "./fragment.js";
import { createInspector } from "./inspector.js";
import { announce } from "./live.js";
import { answerIn, oneLine, share, stepsInAll, textBefore } from "./run.js";
import { bringIntoSight, createRunner } from "./runner.js";
import { createStatus, createWelcome, sayQueue } from "./states.js";
import { createTransport } from "./transport.js";

const MEANING = { "min gap": "gap between the two best logits, least over the answer", "mean gap": "gap between the two best logits, mean over the answer" };
const QUICK = 0.07; // seconds per step, below which a run is played slower than it was
const ENDING = { settled: "stopped early, because the answer was settled", complete: "filled position by position to the end", eos: "ended with the text" };

// How long the run took and why it ended, with the server's notes.
function sayEnding({ done, frames }) {
  const slowed = !calm() && done.seconds < QUICK * frames.length ? ", shown slowed down" : "";
  return [`${inSeconds(done.seconds)} for ${plural(done.forwards, "forward pass", "forward passes")}${slowed}: ${ENDING[done.finish] ?? done.finish}.`, ...done.notes].join(" ");
}

function mount(root, info) {
  let run = { frames: [], done: null }, chosen = null;
  const form = createForm(info, { recipes: [{ name: "recipe", label: "Recipe", chosen: defaultRecipe(info) }], verb: "Decode", onRun: start, onStop: () => runner.stop() });
  const saved = createFigure("key"), steps = createFigure(), answer = createFigure(), filled = createFigure();
  const canvas = createCanvas({ onSelect: at => { chosen = at; draw(transport.at); } });
  const inspector = createInspector({ onClose: () => { chosen = null; inspector.hide(); canvas.mark(null); } });
  const chart = createChart(), status = createStatus(), ruleless = createStatus();
  const transport = createTransport({ show: draw });
  const notes = el("p", { class: "note after" });
  const text = createCard("The text as it is written", "", el("div", { class: "stage" }, canvas.node, status.node), createLegend(), transport.node, notes, inspector.node);
  const gauge = createCard("How sure is it of the answer?", "", chart.node, ruleless.node);
  gauge.side.classList.add("tall");
  const figures = el("section", { class: "card figures", "aria-label": "What it saved" }, saved.node, steps.node, answer.node, filled.node);
  const stack = el("div", { class: "stack", hidden: true }, figures, text.node, gauge.node);
  const welcome = createWelcome(info.examples, { title: "It knows the answer before it has written it.",
    text: "A diffusion language model fills a masked text in any order. Watch it settle on an answer, and see every step that is no longer needed.", onPick: form.pick });
  const runner = createRunner({ form, status, work });
  root.append(form.node, el("div", { class: "results" }, welcome, stack));

  function start(settings) {
    writeFragment("watch", settings);
    return runner.run(settings);
  }

  async function work(settings, signal, ready) {
    welcome.hidden = true;
    stack.hidden = false;
    run = { frames: [], done: null };
    chosen = null;
    inspector.hide();
    canvas.clear(windowOf(info, settings));
    transport.reset();
    notes.textContent = "";
    drawEmpty();
    bringIntoSight(stack);
    const fresh = run;
    try {
      fresh.done = (await recordRun(info, settings, {
        signal,
        onQueue: place => status.wait(sayQueue(place)),
        onFrame: recorded => {
          ready();
          fresh.frames = recorded.frames;
          transport.follow(fresh.frames.length);
        },
      })).done;
    } finally {
      if (run === fresh && fresh.frames.length) {
        transport.follow(fresh.frames.length, true);
        draw(transport.at);
      }
    }
  }

  function drawEmpty() {
    saved.set("–", "steps saved", "quiet");
    steps.set("0", "steps taken");
    answer.set("–", "answer now");
    filled.set("0%", "of the text filled");
    text.side.textContent = "";
    gauge.side.textContent = "";
    chart.show(run, 0);
    ruleless.clear();
  }

  function draw(at) {
    const frame = run.frames[at];
    if (!frame) return;
    const all = stepsInAll(run), left = all - at - 1, last = Boolean(run.done) && at === run.frames.length - 1;
    const found = last ? run.done.answer : answerIn(frame);
    saved.set(String(last ? run.done.saved : left), last ? `of ${plural(all, "step")} saved` : "steps still to save", last ? "good" : "quiet");
    steps.set(String(at + 1), at ? "steps taken" : "step taken");
    answer.set(found === null ? "–" : found || "…", last ? "answer" : "answer now");
    filled.set(`${Math.round(100 * share(frame.filled))}%`, "of the text filled");
    canvas.show(frame, { prior: textBefore(run.frames, at), ended: frame.settled ? "settled" : last ? "final" : "" });
    canvas.node.classList.toggle("over", last);
    canvas.mark(chosen);
    text.side.textContent = sayStep(frame, at, all);
    chart.show(run, at);
    drawRule(frame);
    notes.textContent = last ? sayEnding(run) : "";
    if (chosen !== null) inspector.show(run, chosen, at);
    announce(last ? `Finished: ${run.done.steps} steps, ${run.done.saved} saved${found === null ? "" : `, answer ${oneLine(found)}`}.` : sayStep(frame, at, all));
  }

  function sayStep(frame, at, all) {
    const gap = Number.isFinite(frame.gap) && Number.isFinite(frame.threshold) ? `, ${frame.measure} ${frame.gap.toFixed(2)} ${frame.gap >= frame.threshold ? "≥" : "<"} ${frame.threshold.toFixed(2)}` : "";
    return `step ${at + 1} of ${all}${gap}`;
  }

  function drawRule(frame) {
    const measured = Number.isFinite(frame.gap);
    gauge.side.textContent = measured ? MEANING[frame.measure] ?? frame.measure : "";
    if (measured) ruleless.clear();
    else ruleless.wait("This recipe has no stopping rule, so it takes every step. See under What if where it could have stopped.");
  }

  return {
    open(settings, now) {
      form.fill(settings);
      if (now) form.start();
    },
    settings: form.settings,
    onKey: transport.onKey,
    close: transport.pause,
  };
}

export const watch = { id: "watch", title: "Watch", mount };
