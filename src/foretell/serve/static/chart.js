// The chart of the Watch view: what the stopping rule measures, step by step, against its threshold.

import { createPicture, svg } from "./dom.js";
import { createScales, drawBeside, drawGrid, drawSaved, drawSteps, pathOf, ticksOf } from "./plot.js";
import { stepsInAll } from "./run.js";

const HEIGHT = 250, USUAL = 10;

function rangeOf(frames) {
  const values = frames.flatMap(frame => [frame.gap, frame.threshold]).filter(Number.isFinite);
  const least = frames.every(frame => /gap/.test(frame.measure)) ? USUAL : 0.001; // gaps get the same scale from run to run
  return [Math.min(0, ...values), Math.max(least, Math.max(0, ...values) * 1.05)];
}

// The steps that a stopping rule judged: [{step, gap, threshold, measure, settled}], steps from 1.
function judged(frames) {
  return frames.map((frame, at) => ({ ...frame, step: at + 1 })).filter(frame => Number.isFinite(frame.gap) && Number.isFinite(frame.threshold));
}

function drawLines(seen, scales, ended) {
  const last = seen[seen.length - 1], points = seen.map(({ step, gap }) => [scales.x(step), scales.y(gap)]);
  const [x, y] = points[points.length - 1], bar = scales.y(last.threshold), first = scales.y(seen[0].threshold), under = Math.abs(first - 11 - y) < 18, narrow = ended && x - scales.left < 70;
  const stairs = seen.flatMap(({ step, threshold }) => [[scales.x(step - 1), scales.y(threshold)], [scales.x(step), scales.y(threshold)]]);
  const parts = [
    svg("path", { class: "bar-ahead", d: ended ? "" : pathOf([[x, bar], [scales.right, bar]]) }),
    svg("path", { class: "bar-line", d: pathOf(stairs) }),
    svg("text", { class: "bar-text", ...(narrow ? { x: x + 8, y: bar + 4 } : { x: scales.left + 4, y: first + (under ? 17 : -7) }) }, "threshold"),
    svg("path", { class: "gap-line", d: pathOf(points) }),
  ];
  if (seen.length < 16) parts.push(...points.map(([cx, cy]) => svg("circle", { class: "gap-dot", cx, cy, r: 3 })));
  if (!ended) parts.push(drawBeside(scales, x, y, [last.measure], { class: "gap-text" }));
  return parts;
}

function drawEnd({ step, gap, threshold }, steps, scales) {
  const x = scales.x(step), y = scales.y(gap), measured = `${gap.toFixed(2)} ${gap >= threshold ? "≥" : "≤"} ${threshold.toFixed(2)}`;
  return [
    ...drawSaved(scales, step, steps - step, [y]),
    svg("circle", { class: "dot", cx: x, cy: y, r: 6 }),
    drawBeside(scales, x, y, [`settled at step ${step}: ${measured}`, `step ${step}: ${measured}`, measured], { class: "strong" }),
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
