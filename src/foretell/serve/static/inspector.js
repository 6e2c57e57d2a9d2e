// Shows the history of one position: its drafts, how sure the model was of them, and when it was filled.

import { createPicture, el, plural, svg } from "./dom.js";
import { MARGIN, createScales, pathOf } from "./plot.js";
import { segmentsOf, shown, stepsInAll } from "./run.js";

const HEIGHT = 132, BAND = 26;
const percent = value => `${Math.round(100 * value)}%`;

function framesOf(run, at, index) {
  const window = run.frames[index].window;
  return run.frames.filter(frame => frame.window === window && at < frame.tokens.length);
}

// One sentence: what the drafts were, and when the position was filled.
function describe(frames, at) {
  if (frames[0].pinned[at]) return `“${shown(frames[0], at)}” was pinned: the request fixed it in advance.`;
  const drafts = segmentsOf(frames.map(frame => shown(frame, at)));
  const list = drafts.slice(0, 6).map(({ value, from, to }) => `“${value}” for ${plural(to - from, "step")}`).join(", then ");
  const filled = frames.findIndex(frame => frame.filled[at]);
  const end = filled < 0 ? "not filled yet" : `filled at step ${filled + 1}, ${percent(frames[filled].confidence[at])} sure`;
  return `${list}${drafts.length > 6 ? " and so on" : ""}; ${end}.`;
}

function drawHistory(frames, at, index, scales) {
  const confidence = frames.map((frame, step) => [scales.x(step + 0.5), scales.y(frame.confidence[at])]);
  const filled = frames.findIndex(frame => frame.filled[at]);
  const parts = [0, 0.5, 1].flatMap(tick => [
    svg("line", { class: "grid", x1: scales.left, x2: scales.right, y1: scales.y(tick), y2: scales.y(tick) }),
    svg("text", { x: scales.left - 8, y: scales.y(tick) + 4, "text-anchor": "end" }, percent(tick)),
  ]);
  for (const { value, from, to } of segmentsOf(frames.map(frame => shown(frame, at)))) {
    const x = scales.x(from), width = scales.x(to) - x - 1.5;
    parts.push(svg("rect", { class: filled >= 0 && from >= filled ? "draft-band kept" : "draft-band", x, y: scales.bottom + 8, width: Math.max(1, width), height: BAND, rx: 5 }));
    if (width > 9 * value.length + 4) parts.push(svg("text", { class: "token", x: x + width / 2, y: scales.bottom + 8 + BAND / 2 + 4.5, "text-anchor": "middle" }, value));
  }
  parts.push(svg("path", { class: "gap-line", d: pathOf(confidence) }));
  if (confidence.length < 16) parts.push(...confidence.map(([cx, cy]) => svg("circle", { class: "gap-dot", cx, cy, r: 2.5 })));
  if (filled >= 0) parts.push(svg("circle", { class: "dot", cx: confidence[filled][0], cy: confidence[filled][1], r: 5 }));
  parts.push(svg("line", { class: "cursor", x1: scales.x(index + 0.5), x2: scales.x(index + 0.5), y1: scales.top, y2: scales.bottom + 6 }));
  return parts;
}

export function createInspector({ onClose }) {
  let shownRun = null, place = 0, step = 0;
  const title = el("h3"), note = el("p", { class: "note" });
  const picture = createPicture({ class: "chart", height: HEIGHT, "aria-label": "How sure the model was of this position at each step, and its drafts" }, (svgNode, width) => {
    if (!shownRun) return;
    const frames = framesOf(shownRun, place, step), first = shownRun.frames.indexOf(frames[0]);
    const scales = createScales(width, HEIGHT, Math.min(stepsInAll(shownRun), Math.max(frames.length, 8)), [0, 1], { ...MARGIN, top: 10, bottom: BAND + 12 });
    svgNode.replaceChildren(...drawHistory(frames, place, step - first, scales));
  });
  const close = el("button", { type: "button", class: "small", on: { click: () => onClose() } }, "Close");
  const node = el("section", { class: "inspector", "aria-label": "One position over time", hidden: true }, el("div", { class: "head" }, title, close), note, picture.box);
  return {
    node,
    show(run, at, index) {
      shownRun = run;
      place = at;
      step = index;
      node.hidden = false;
      title.textContent = `Position ${at + 1} over time`;
      note.textContent = describe(framesOf(run, at, index), at);
      picture.update();
    },
    hide() {
      node.hidden = true;
      shownRun = null;
    },
  };
}
