// The What if view: a full decoding with its trace, and where other thresholds and rules would have stopped it.

import { fetchReplay, recordRun } from "./api.js";
import { el } from "./dom.js";
import { createForm } from "./form.js";
import { writeFragment } from "./fragment.js";
import { announce } from "./live.js";
import { mountPlayer } from "./player.js";
import { bringIntoSight, createRunner } from "./runner.js";
import { saveRun } from "./save.js";
import { createStatus, createWelcome, sayQueue } from "./states.js";

function mount(root, info) {
  let player = null;
  const form = createForm(info, { recipes: [], verb: "Decode in full", onRun: start, onStop: () => runner.stop() });
  const status = createStatus(), progress = el("section", { class: "card", "aria-label": "Progress", hidden: true }, status.node);
  const stack = el("div", { class: "stack" });
  const welcome = createWelcome(info.examples, { title: "What if it had stopped sooner?", text: "Decode once in full. Then move the threshold and see where the run would have stopped, with which answer. The model is not needed again.", onPick: form.pick });
  const runner = createRunner({ form, status, work });
  root.append(form.node, el("div", { class: "results" }, welcome, progress, stack));

  function start(settings) {
    writeFragment("what-if", settings);
    return runner.run(settings);
  }

  async function work(settings, signal, ready) {
    welcome.hidden = true;
    progress.hidden = false;
    player?.pause();
    player = null;
    stack.replaceChildren();
    bringIntoSight(progress);
    const say = recorded => {
      ready();
      const last = recorded.frames[recorded.frames.length - 1];
      status.wait(`Decoding in full: step ${recorded.frames.length} of at most ${last.budget}.`);
    };
    const run = await recordRun(info, { ...settings, recipe: "full" }, { trace: true, signal, onQueue: place => status.wait(sayQueue(place)), onFrame: say });
    run.replay = await fetchReplay(run.done.run, signal);
    ready();
    progress.hidden = true;
    player = mountPlayer(stack, run, { action: createSave(run) });
    announce(`Decoded in full: ${run.replay.steps} steps, answer ${run.replay.final}.`);
  }

  function createSave(run) {
    const failed = createStatus();
    const button = el("button", { type: "button", on: { click: () => saveRun(run).catch(error => failed.fail(error.message)) } }, "Save this run");
    button.title = "One HTML file that plays in any browser, without a server";
    return el("div", { class: "action" }, button, failed.node);
  }

  return {
    open(settings, now) {
      form.fill(settings);
      if (now) form.start();
    },
    settings: form.settings,
    onKey: event => player?.onKey(event),
    close: () => player?.pause(),
  };
}

export const whatIf = { id: "what-if", title: "What if", mount };
