// Scales, grid lines and axis labels that all charts share.

import { svg } from "./dom.js";

export const MARGIN = { left: 40, right: 14, top: 16, bottom: 32 };
const LETTER = 6.8; // width of a letter in a chart, in pixels

// Round steps of a grid with about `count` lines from `low` to `high`.
export function ticksOf(low, high, count = 4) {
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * size).find(each => each >= rough * 0.999);
  const ticks = [];
  for (let at = Math.floor(low / step); at * step < high + step * 0.999; at++) ticks.push(Number((at * step).toFixed(6)));
  return ticks;
}

export function createScales(width, height, steps, ticks, margin = MARGIN) {
  const low = ticks[0], high = ticks[ticks.length - 1];
  const inner = width - margin.left - margin.right, tall = height - margin.top - margin.bottom;
  return {
    x: step => margin.left + inner * step / Math.max(1, steps),
    y: value => margin.top + tall * (1 - (Math.min(high, Math.max(low, value)) - low) / (high - low)),
    step: x => (x - margin.left) / inner * steps,
    value: y => low + (high - low) * (1 - (y - margin.top) / tall),
    left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom,
    low, high,
  };
}

export function drawGrid(scales, ticks) {
  return ticks.flatMap(tick => [
    svg("line", { class: "grid", x1: scales.left, x2: scales.right, y1: scales.y(tick), y2: scales.y(tick) }),
    svg("text", { x: scales.left - 8, y: scales.y(tick) + 4, "text-anchor": "end" }, String(tick)),
  ]);
}

// The numbers of some steps below the grid; the last one says what they count.
export function drawSteps(scales, steps, y) {
  const size = steps <= 12 ? 2 : steps <= 40 ? 8 : steps <= 100 ? 16 : Math.ceil(steps / 400) * 64;
  const texts = [svg("text", { x: scales.right, y, "text-anchor": "end" }, `step ${steps}`)];
  for (let step = 0; scales.x(step) < scales.right - 62; step += size) {
    texts.push(svg("text", { x: scales.x(step), y, "text-anchor": "middle" }, String(step)));
  }
  return texts;
}

export function pathOf(points) {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// A field that covers the steps after the stop and says how many they are, as far from the heights `taken` as it can.
export function drawSaved(scales, from, saved, taken, words = "not needed") {
  const x = scales.x(from), width = scales.right - x, tall = scales.bottom - scales.top;
  const room = at => Math.min(...taken.map(each => Math.abs(each - at + 8)));
  const y = [0.22, 0.36, 0.5, 0.64, 0.78].map(share => scales.top + share * tall).reduce((best, at) => (room(at) > room(best) ? at : best));
  const parts = [svg("rect", { class: "saved", x, y: scales.top, width: Math.max(0, width), height: scales.bottom - scales.top })];
  if (saved > 0 && width > 116) parts.push(
    svg("text", { class: "count", x: x + width / 2, y, "text-anchor": "middle" }, String(saved)),
    svg("text", { class: "good", x: x + width / 2, y: y + 20, "text-anchor": "middle" }, `step${saved === 1 ? "" : "s"} ${words}`));
  return parts;
}

// A text beside a point, on the side with more room: the first of `texts` that fits there.
export function drawBeside(scales, x, y, texts, attributes) {
  const left = x > (scales.left + scales.right) / 2, room = left ? x - scales.left : scales.right - x;
  const text = texts.find(each => each.length * LETTER + 12 < room) ?? texts[texts.length - 1];
  return svg("text", { ...attributes, x: x + (left ? -12 : 12), y: y + 4, "text-anchor": left ? "end" : "start" }, text);
}
