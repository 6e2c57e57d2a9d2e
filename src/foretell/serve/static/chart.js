// The chart of the Watch view: what the stopping rule measures, step by step, against its threshold.

import { createPicture, svg } from "./dom.js";
import { createScales, drawBeside, drawGrid, drawSaved, drawSteps, pathOf, ticksOf } from "./plot.js";
import { stepsInAll } from "./run.js";

const HEIGHT = 250;

function rangeOf(frames) {
  const values = frames.flatMap(frame => [frame.gap, frame.threshold]).filter(Number.isFinite);
  return [Math.min(0, ...values), Math.max(...values, values.length ? 0 : 10) * 1.05 || 1];
}

// The steps that a stopping rule judged: [{step, gap, threshold, measure, settled}], steps from 1.
function judged(frames) {
  return frames.map((frame, at) => ({ ...frame, step: at + 1 })).filter(frame => Number.isFinite(frame.gap) && Number.isFinite(frame.threshold));
}

function drawLines(seen, scales, ended) {
  const last = seen[seen.length - 1], points = seen.map(({ step, gap }) => [scales.x(step), scales.y(gap)]);
  const [x, y] = points[points.length - 1], bar = scales.y(last.threshold);
  const stairs = seen.flatMap(({ step, threshold }) => [[scales.x(step - 1), scales.y(threshold)], [scales.x(step), scales.y(threshold)]]);
  const parts = [
    svg("path", { class: "bar-ahead", d: pathOf([[x, bar], [scales.right, bar]]) }),
    svg("path", { class: "bar-line", d: pathOf(stairs) }),
    svg("text", { class: "bar-text", x: scales.right, y: bar - 7, "text-anchor": "end" }, "threshold"),
    svg("path", { class: "gap-line", d: pathOf(points) }),
  ];
  if (seen.length < 16) parts.push(...points.map(([cx, cy]) => svg("circle", { class: "gap-dot", cx, cy, r: 3 })));
  if (!ended) parts.push(drawBeside(scales, x, y, last.measure, { class: "gap-text" }));
  return parts;
}

function drawEnd({ step, gap, threshold }, steps, scales) {
  const x = scales.x(step), y = scales.y(gap), sign = gap >= threshold ? "≥" : "≤";
  const lower = y < (scales.top + scales.bottom) / 2;
  return [
    ...drawSaved(scales, step, steps, steps - step, lower ? scales.bottom - 58 : scales.top + 44),
    svg("circle", { class: "dot", cx: x, cy: y, r: 6 }),
    drawBeside(scales, x, y, `settled at step ${step}: ${gap.toFixed(2)} ${sign} ${threshold.toFixed(2)}`, { class: "strong" }),
  ];
}

export function createChart() {
  let run = { frames: [] }, at = 0;
  const picture = createPicture({ class: "chart", height: HEIGHT, "aria-label": "The gap of the answer at each step, against the threshold" }, (node, width) => {
    const steps = stepsInAll(run) || 64, ticks = ticksOf(...rangeOf(run.frames));
    const scales = createScales(width, HEIGHT, steps, ticks);
    const seen = judged(run.frames.slice(0, at + 1));
    const parts = [...drawGrid(scales, ticks), ...drawSteps(scales, steps, HEIGHT - 10)];
    const last = seen[seen.length - 1], ended = Boolean(last?.settled);
    if (seen.length) parts.push(...drawLines(seen, scales, ended));
    if (ended) parts.push(...drawEnd(last, steps, scales));
    node.replaceChildren(...parts);
  });
  return {
    node: picture.box,
    show(next, index) {
      run = next;
      at = index;
      picture.update();
    },
  };
}
