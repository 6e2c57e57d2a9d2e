// Plays the steps of a run: play and pause, single steps, a slider and the speed.

import { calm, el, icon } from "./dom.js";

const LIVE_PACE = 120, SLOWEST = 420, WHOLE = 5000; // milliseconds per step; a whole run takes about five seconds
const SPEEDS = [[0.25, "¼ speed"], [0.5, "½ speed"], [1, "normal"], [2, "double"], [8, "fast"]];

// `show(at)` draws a step, `say(at, count)` names it; no step is shorter than `fastest` milliseconds, nor than `live`
// while the run goes on.
export function createTransport({ show, noun = "Step", fastest = 70, live = LIVE_PACE, say = (at, count) => `step ${at + 1} of ${count}` }) {
  let count = 0, at = -1, playing = false, complete = false, timer = null, speed = 1;
  const toggle = el("button", { type: "button", class: "round", on: { click: () => (playing ? pause() : play()) } });
  const back = el("button", { type: "button", class: "round", "aria-label": "One step back", on: { click: () => seek(at - 1) } }, icon("back"));
  const next = el("button", { type: "button", class: "round", "aria-label": "One step on", on: { click: () => seek(at + 1) } }, icon("next"));
  const slider = el("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": noun, on: { input: () => seek(Number(slider.value) - 1) } });
  const pick = el("select", { "aria-label": "Speed", class: "small", on: { change: () => { speed = Number(pick.value); } } },
    ...SPEEDS.map(([value, text]) => el("option", { value, selected: value === 1 }, text)));
  const node = el("div", { class: "transport", role: "group", "aria-label": "Playback" }, back, toggle, next, slider, pick);

  function refresh() {
    slider.max = Math.max(1, count);
    slider.value = at + 1;
    slider.setAttribute("aria-valuetext", say(at, count));
    for (const control of [toggle, slider, back, next]) control.disabled = count === 0;
    const name = playing ? "pause" : "play";
    if (toggle.dataset.name !== name) {
      toggle.dataset.name = name;
      toggle.setAttribute("aria-label", playing ? "Pause" : "Play");
      toggle.replaceChildren(icon(name));
    }
  }

  function go(index) {
    at = Math.max(0, Math.min(count - 1, index));
    show(at);
    refresh();
  }

  function pace() {
    const usual = complete ? Math.min(SLOWEST, Math.max(fastest, WHOLE / count)) : live;
    return usual / speed;
  }

  function schedule() {
    if (timer !== null || !playing) return;
    if (at + 1 >= count) {
      if (complete) pause();
      return;
    }
    timer = setTimeout(() => {
      timer = null;
      if (!playing) return;
      go(at + 1);
      schedule();
    }, at < 0 ? 0 : pace());
  }

  function play() {
    if (!count) return;
    if (complete && at + 1 >= count) go(0);
    playing = true;
    refresh();
    schedule();
  }

  function pause() {
    playing = false;
    clearTimeout(timer);
    timer = null;
    refresh();
  }

  function seek(index) {
    pause();
    if (count) go(index);
  }

  // Begin with a run of `steps` steps that is already complete, at its last step.
  function load(steps) {
    reset();
    count = steps;
    complete = true;
    seek(steps - 1);
  }

  // Begin with a run whose steps are still to come, and follow it.
  function reset() {
    pause();
    count = 0;
    at = -1;
    complete = false;
    refresh();
  }

  function follow(steps, finished = false) {
    const first = count === 0;
    count = steps;
    complete = finished;
    if (calm() && !playing) {
      if (count && (at + 2 >= count || finished || first)) go(count - 1);
    } else {
      if (first && count) playing = true;
      schedule();
    }
    refresh();
  }

  function onKey(event) {
    const target = event.target, kind = target.tagName;
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || !count) return;
    if (kind === "TEXTAREA" || kind === "SELECT" || (kind === "INPUT" && target.type !== "range") || target.role === "slider") return;
    if (event.key === " " && kind !== "BUTTON" && kind !== "SUMMARY") playing ? pause() : play();
    else if (event.key === "ArrowLeft" && kind !== "INPUT") seek(at - 1);
    else if (event.key === "ArrowRight" && kind !== "INPUT") seek(at + 1);
    else return;
    event.preventDefault();
  }

  refresh();
  return { node, load, reset, follow, seek, play, pause, onKey, get at() { return at; }, get ended() { return complete && at + 1 >= count; } };
}
