// The heat map: one row per position, one column per step, coloured by what happened there.

import { createPicture, el, svg } from "./dom.js";
import { MARGIN, createScales, drawSteps } from "./plot.js";

const KINDS = ["pinned", "stable", "changed", "filled", "kept"];
const MEANING = { stable: "the draft stays", changed: "the draft changes", filled: "filled", kept: "filled earlier", pinned: "pinned" };

// What happened to one position at one step.
function kindOf(frames, step, at) {
  const frame = frames[step];
  if (frame.pinned[at]) return "pinned";
  if (frame.fresh[at]) return "filled";
  if (frame.filled[at]) return "kept";
  return step && frame.tokens[at] !== frames[step - 1].tokens[at] ? "changed" : "stable";
}

// The rectangles of each kind as one path, neighbours in a row joined.
function pathsOf(frames, scales, row) {
  const paths = Object.fromEntries(KINDS.map(kind => [kind, ""]));
  for (let at = 0; at < frames[0].tokens.length; at++) {
    let from = 0;
    for (let step = 1; step <= frames.length; step++) {
      const kind = kindOf(frames, from, at);
      if (step < frames.length && kindOf(frames, step, at) === kind) continue;
      const x = scales.x(from), width = scales.x(step) - x;
      paths[kind] += `M${x.toFixed(2)} ${scales.top + at * row}h${width.toFixed(2)}v${row}h${(-width).toFixed(2)}z`;
      from = step;
    }
  }
  return paths;
}

function drawAnswer(frame, scales, row) {
  const inside = frame.answer.flatMap((flag, at) => (flag ? [at] : []));
  if (!inside.length) return [];
  const top = scales.top + inside[0] * row, bottom = scales.top + (inside[inside.length - 1] + 1) * row - 1, y = (top + bottom) / 2;
  return [
    svg("path", { class: "bracket", d: `M${scales.left - 5} ${top}h-4V${bottom}h4` }),
    svg("text", { class: "good", "text-anchor": "middle", transform: `translate(${scales.left - 17} ${Math.min(scales.bottom - 24, Math.max(scales.top + 24, y))}) rotate(-90)` }, "answer"),
  ];
}

// `onPick(step, position)` is called for a click. The keyboard's way are the slider and the text above.
export function createHeatmap({ onPick }) {
  let run = null, at = 0, scales = null, row = 4;
  const cursor = svg("line", { class: "cursor" });
  const picture = createPicture({ class: "chart heat", "aria-label": "When each position of the text changed and was filled" }, (node, width) => {
    if (!run) return;
    const count = run.frames[0].tokens.length, steps = run.frames.length;
    row = Math.max(2, Math.min(10, Math.floor(330 / count)));
    const height = MARGIN.top + count * row + MARGIN.bottom;
    node.setAttribute("height", height);
    scales = createScales(width, height, steps, [0, 1]);
    const paths = Object.entries(pathsOf(run.frames, scales, row)).map(([kind, d]) => svg("path", { class: `heat-${kind}`, d }));
    node.replaceChildren(...paths, ...drawAnswer(run.frames[steps - 1], scales, row), ...drawSteps(scales, steps, height - 10), cursor);
    point();
  });
  picture.node.addEventListener("click", event => {
    const box = picture.node.getBoundingClientRect(), count = run.frames[0].tokens.length;
    const step = Math.floor(scales.step(event.clientX - box.left)), place = Math.floor((event.clientY - box.top - scales.top) / row);
    if (place >= 0 && place < count) onPick(Math.max(0, Math.min(run.frames.length - 1, step)), place);
  });

  function point() {
    if (!scales) return;
    const x = scales.x(at + 0.5);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: scales.top - 4, y2: scales.bottom + 4 })) cursor.setAttribute(name, value);
  }

  const legend = el("p", { class: "legend" }, ...Object.entries(MEANING).map(([kind, text]) => el("span", {}, el("i", { class: `swatch heat-${kind}` }), text)));
  return {
    node: el("div", {}, picture.box, legend),
    load(next) {
      run = next;
      picture.update();
    },
    show(index) {
      at = index;
      point();
    },
  };
}
