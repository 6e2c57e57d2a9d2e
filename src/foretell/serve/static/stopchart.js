// The chart of the What if view: a threshold that can be moved, and where the run would have stopped with it.

import { createPicture, svg } from "./dom.js";
import { MARGIN, createScales, drawBeside, drawGrid, drawSaved, drawSteps, pathOf, ticksOf } from "./plot.js";
import { oneLine, segmentsOf, stopAt } from "./run.js";

const HEIGHT = 318, STRIP = 24, BELOW = { ...MARGIN, bottom: 32 + STRIP + 14 };

// The answer that each step would have given, as a strip below the steps.
function drawAnswers(answers, final, scales, stop) {
  const top = scales.bottom + 10;
  return segmentsOf(answers).flatMap(({ value, from, to }) => {
    const x = scales.x(from), width = Math.max(1, scales.x(to) - x - 1.5), text = oneLine(value), same = value === final;
    const parts = [svg("rect", { class: `strip ${same ? "same" : "other"}`, x, y: top, width, height: STRIP, rx: 5 }, svg("title", {}, `steps ${from + 1} to ${to}: ${text}`))];
    const room = Math.floor((width - 8) / 8);
    if (text.length <= room) parts.push(svg("text", { class: `token ${same ? "same" : "other"}`, x: x + width / 2, y: top + STRIP / 2 + 4.5, "text-anchor": "middle" }, text));
    return parts;
  }).concat(stop === null ? [] : svg("line", { class: "cursor", x1: scales.x(stop + 1), x2: scales.x(stop + 1), y1: scales.y(scales.low), y2: top + STRIP }));
}

function drawStop(gaps, stop, threshold, same, scales) {
  if (stop === null) return [];
  const x = scales.x(stop + 1), y = scales.y(gaps[stop]), saved = gaps.length - stop - 1;
  return [
    ...drawSaved(scales, stop + 1, saved, [y, scales.y(threshold)], same ? "not needed" : "skipped"),
    svg("circle", { class: "dot", cx: x, cy: y, r: 6 }),
    drawBeside(scales, x, y - 14, [`stops at step ${stop + 1}`, `step ${stop + 1}`], { class: "strong" }),
  ];
}

// `onMove(threshold)` is called whenever the threshold moves, by pointer or keyboard.
export function createStopChart({ onMove }) {
  let gaps = [], answers = [], final = "", threshold = 0, scales = null, said = "", cursor = null;
  const fixed = svg("g"), line = svg("path", { class: "bar-line" }), grip = svg("rect", { class: "grip", width: 34, height: 18, rx: 9 });
  const lines = svg("path", { class: "grip-lines" }), text = svg("text", { class: "bar-text" }), reach = svg("rect", { class: "reach", height: 32 });
  const handle = svg("g", { class: "handle", role: "slider", tabindex: 0, "aria-label": "Threshold", "aria-orientation": "vertical" }, reach, line, grip, lines, text);
  const picture = createPicture({ class: "chart", height: HEIGHT, role: "group", "aria-label": "The gap of the answer at each step, with a threshold that you can move" }, (node, width) => {
    if (!gaps.length) return;
    const ticks = ticksOf(Math.min(0, ...gaps), Math.max(...gaps, 1) * 1.05);
    scales = createScales(width, HEIGHT, gaps.length, ticks, BELOW);
    const stop = stopAt(gaps, threshold), points = gaps.map((gap, at) => [scales.x(at + 1), scales.y(gap)]);
    const same = stop === null || answers[stop] === final;
    node.classList.toggle("wrong", !same);
    const until = stop === null ? points : points.slice(0, stop + 1);
    fixed.replaceChildren(...drawGrid(scales, ticks), ...drawStop(gaps, stop, threshold, same, scales), ...drawAnswers(answers, final, scales, stop), ...drawSteps(scales, gaps.length, HEIGHT - 10),
      svg("path", { class: "gap-line faint", d: pathOf(points) }), svg("path", { class: "gap-line", d: pathOf(until) }));
    if (cursor !== null) fixed.append(svg("line", { class: "cursor thin", x1: scales.x(cursor + 1), x2: scales.x(cursor + 1), y1: scales.top, y2: scales.bottom }));
    if (handle.parentNode !== node) node.replaceChildren(fixed, handle);
    place();
  });

  function place() {
    const y = scales.y(threshold), set = (node, values) => Object.entries(values).forEach(([name, value]) => node.setAttribute(name, value));
    line.setAttribute("d", `M${scales.left} ${y}H${scales.right}`);
    set(reach, { x: scales.left, y: y - 16, width: scales.right - scales.left });
    set(grip, { x: scales.left + 4, y: y - 9 });
    lines.setAttribute("d", `M${scales.left + 14} ${y - 2.5}h14M${scales.left + 14} ${y + 2.5}h14`);
    const early = (stopAt(gaps, threshold) ?? gaps.length) < gaps.length / 3; // the label of the stop is on the left then
    set(text, { x: early ? scales.right : scales.left + 44, y: y < scales.top + 20 ? y + 16 : y - 7, "text-anchor": early ? "end" : "start" });
    text.textContent = `threshold ${threshold.toFixed(2)}`;
    set(handle, { "aria-valuemin": scales.low, "aria-valuemax": scales.high, "aria-valuenow": threshold.toFixed(2), "aria-valuetext": said });
  }

  function move(value) {
    threshold = Math.min(scales.high, Math.max(scales.low, value));
    onMove(threshold);
  }

  handle.addEventListener("pointerdown", event => {
    handle.setPointerCapture(event.pointerId);
    handle.classList.add("held");
    event.preventDefault();
    handle.focus({ preventScroll: true });
  });
  handle.addEventListener("pointermove", event => {
    if (handle.hasPointerCapture(event.pointerId)) move(scales.value(event.clientY - picture.node.getBoundingClientRect().top));
  });
  // Parts of an SVG ignore touch-action, so this keeps a finger on the handle from scrolling the page.
  handle.addEventListener("touchstart", event => event.preventDefault(), { passive: false });
  handle.addEventListener("lostpointercapture", () => handle.classList.remove("held"));
  handle.addEventListener("keydown", event => {
    const small = (scales.high - scales.low) / 100;
    const moves = { ArrowUp: small, ArrowRight: small, ArrowDown: -small, ArrowLeft: -small, PageUp: 10 * small, PageDown: -10 * small, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    move(threshold + moves[event.key]);
  });
  return {
    node: picture.box,
    show(next) {
      ({ gaps, answers, final, threshold, said, cursor } = next);
      picture.update();
    },
  };
}
