// The Race view: one prompt under two recipes, recorded one after the other and played on one clock.

import { recordRun } from "./api.js";
import { createCanvas } from "./canvas.js";
import { calm, el, inSeconds, plural } from "./dom.js";
import { createForm, defaultRecipe, windowOf } from "./form.js";
import { writeFragment } from "./fragment.js";
import { announce } from "./live.js";
import { compare, oneLine, stepsInAll, textBefore, times } from "./run.js";
import { bringIntoSight, createRunner } from "./runner.js";
import { createStatus, createWelcome, sayQueue } from "./states.js";
import { createTransport } from "./transport.js";

const TICKS = 150, TICK = 40; // moments of the common clock, and the milliseconds that each is shown

function createLane() {
  const name = el("h2"), steps = el("span", { class: "note" }), canvas = createCanvas(), result = el("p", { class: "result" });
  const level = el("span"), track = el("div", { class: "track", "aria-hidden": "true" }, level);
  const node = el("section", { class: "card lane" }, el("div", { class: "head" }, name, steps), track, canvas.node, result);
  let run = null, at = -1;

  function draw(index, finished) {
    const all = stepsInAll(run);
    if (index >= 0) canvas.show(run.frames[index], { prior: textBefore(run.frames, index), ended: run.frames[index].settled ? "settled" : finished ? "final" : "" });
    canvas.node.classList.toggle("over", finished);
    canvas.node.classList.toggle("blank", index < 0);
    steps.textContent = all ? `${index + 1} of ${plural(all, "step")}` : "";
    node.classList.toggle("finished", finished);
    result.textContent = finished ? [inSeconds(run.done.seconds), run.done.saved ? `${plural(run.done.saved, "step")} saved` : `all ${plural(run.done.steps, "step")}`, run.done.answer === null ? null : `answer ${oneLine(run.done.answer)}`].filter(Boolean).join(" · ") : "";
  }

  return {
    node,
    begin(recipe, positions) {
      run = { frames: [], done: null };
      at = -1;
      level.style.width = "0";
      name.textContent = recipe;
      node.setAttribute("aria-label", recipe);
      canvas.clear(positions);
      draw(-1, false);
    },
    record(recorded) {
      run = recorded;
      draw(run.frames.length - 1, Boolean(run.done));
    },
    // Show the run as it was after `seconds` of decoding, on a clock that ends at `slowest`.
    showAt(seconds, slowest) {
      level.style.width = `${100 * Math.min(seconds, run.done.seconds) / slowest}%`;
      const moments = run.frames.map(frame => frame.seconds - run.done.queued), finished = seconds >= run.done.seconds;
      const index = finished ? run.frames.length - 1 : moments.filter(moment => moment <= seconds).length - 1;
      if (index === at && node.classList.contains("finished") === finished) return;
      at = index;
      if (index < 0) canvas.show({ ...run.frames[0], filled: run.frames[0].pinned, fresh: run.frames[0].fresh.map(() => false), settled: false });
      draw(index, finished);
    },
    get run() { return run; },
  };
}

function mount(root, info) {
  let slowest = 0; // seconds of the slower run
  const form = createForm(info, {
    recipes: [{ name: "recipe", label: "Recipe", chosen: defaultRecipe(info) }, { name: "against", label: "Against", chosen: "full" }],
    verb: "Race", onRun: start, onStop: () => runner.stop(),
  });
  const clock = el("b"), pace = el("span"), verdict = el("p", { class: "verdict" }), status = createStatus();
  const left = createLane(), right = createLane();
  const transport = createTransport({ show: draw, noun: "Time", fastest: TICK, say: at => inSeconds(timeAt(at)) });
  const board = el("section", { class: "card clock", "aria-label": "Clock" }, el("div", { class: "figure key" }, clock, pace), el("div", { class: "slot" }, verdict, status.node), transport.node);
  const stack = el("div", { class: "stack", hidden: true }, board, el("div", { class: "lanes" }, left.node, right.node));
  const welcome = createWelcome(info.examples, { title: "Same model, same prompt, two clocks.", text: "One recipe writes every step. The other stops when the answer is settled. See which answers first, and whether they agree.", onPick: form.pick });
  const runner = createRunner({ form, status, work });
  root.append(form.node, el("div", { class: "results" }, welcome, stack));

  function timeAt(tick) {
    return slowest * Math.max(0, tick) / (TICKS - 1);
  }

  function start(settings) {
    writeFragment("race", settings);
    return runner.run(settings);
  }

  async function work(settings, signal, ready) {
    welcome.hidden = true;
    stack.hidden = false;
    transport.reset();
    slowest = 0;
    clock.textContent = "–";
    verdict.textContent = "";
    verdict.className = "verdict";
    left.begin(settings.against, windowOf(info, settings));
    right.begin(settings.recipe, windowOf(info, settings));
    bringIntoSight(stack);
    // The recipe runs first, so that a server that is not warm yet does not make it look better.
    for (const [lane, recipe, place] of [[right, settings.recipe, 1], [left, settings.against, 2]]) {
      pace.textContent = `recording ${recipe}, ${place} of 2`;
      lane.record(await recordRun(info, { ...settings, recipe }, { signal, onQueue: waits => status.wait(sayQueue(waits)), onFrame: run => { ready(); lane.record(run); } }));
    }
    slowest = Math.max(left.run.done.seconds, right.run.done.seconds);
    pace.textContent = sayPace();
    transport.load(TICKS);
    if (!calm()) {
      transport.seek(0);
      transport.play();
    }
  }

  function sayPace() {
    const shown = TICKS * TICK / 1000, ratio = shown / slowest;
    return ratio >= 1.05 ? `of decoding, shown ${times(ratio)} times slower` : ratio <= 0.95 ? `of decoding, shown ${times(1 / ratio)} times faster` : "of decoding";
  }

  function draw(tick) {
    if (!slowest) return;
    const seconds = timeAt(tick), over = tick === TICKS - 1;
    clock.textContent = `${seconds.toFixed(slowest < 10 ? 3 : 1)} s`;
    left.showAt(seconds, slowest);
    right.showAt(seconds, slowest);
    const outcome = compare(right.run, left.run);
    verdict.textContent = over ? outcome.text : "";
    verdict.className = `verdict ${outcome.same ? "good" : "bad"}`;
    if (over) announce(outcome.text);
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

export const race = { id: "race", title: "Race", mount };
