// Reads recorded runs: a run is {prompt, recipe, model, frames, done, replay} in the words of the server.

// The steps that the run would take without stopping early; positions that were pinned take none.
export function stepsInAll(run) {
  if (run.done) return run.done.steps + run.done.saved;
  const first = run.frames[0];
  if (!first) return 0;
  const windows = run.frames[run.frames.length - 1].window + 1;
  const pinned = first.pinned.filter(Boolean).length;
  return Math.max(run.frames.length, windows * Math.round(first.budget * (1 - pinned / first.pinned.length)));
}

export function share(flags) {
  return flags.length ? flags.filter(Boolean).length / flags.length : 0;
}

// The answer in a draft, or null if the frame has no answer region. Numbers are shown without leading zeros.
export function answerIn(frame) {
  if (!frame.answer.some(Boolean)) return null;
  const text = frame.tokens.filter((_, at) => frame.answer[at] && !frame.ends[at]).join("").trim();
  return /^\d+$/.test(text) ? String(BigInt(text)) : text;
}

// The text of the windows before the one that a frame shows.
export function textBefore(frames, index) {
  const window = frames[index].window;
  return frames.slice(0, index).filter((frame, at) => frame.window < window && frames[at + 1].window > frame.window).map(frame => frame.text).join("");
}

// The runs of equal values: [{value, from, to}], `to` exclusive.
export function segmentsOf(values) {
  const found = [];
  values.forEach((value, at) => {
    const last = found[found.length - 1];
    if (last && last.value === value) last.to = at + 1;
    else found.push({ value, from: at, to: at + 1 });
  });
  return found;
}

// The first step whose gap reaches the threshold; null if none does.
export function stopAt(gaps, threshold) {
  const at = gaps.findIndex(gap => gap >= threshold);
  return at < 0 ? null : at;
}

// The smallest gap that as a threshold, and with every larger one, gives the final answer.
export function safeThreshold(gaps, answers, final) {
  const risky = gaps.filter((gap, at) => answers[at] !== final && stopAt(gaps, gap) === at);
  const above = gaps.filter(gap => gap > Math.max(-Infinity, ...risky));
  return above.length ? Math.min(...above) : null;
}

// What one position shows at one step: "pinned", "fresh", "kept" or "mask".
export function stateOf(frame, at) {
  return frame.pinned[at] ? "pinned" : frame.fresh[at] ? "fresh" : frame.filled[at] ? "kept" : "mask";
}

// A token as one short printable word.
export function shown(frame, at) {
  if (frame.ends[at]) return "end";
  return frame.tokens[at].trim() || (frame.tokens[at].includes("\n") ? "↵" : "␣");
}

export function times(ratio) {
  return ratio >= 9.95 ? String(Math.round(ratio)) : ratio.toFixed(1);
}

// One sentence about two finished runs: who was sooner, and whether the answers agree.
export function compare(one, other) {
  const [fast, slow] = one.done.seconds <= other.done.seconds ? [one, other] : [other, one];
  const ratio = slow.done.seconds / fast.done.seconds;
  const passes = `${fast.recipe} needed ${fast.done.forwards} of ${slow.done.forwards} passes`;
  const what = fast.done.answer === null ? "text" : "answer";
  const same = fast.done[what] === slow.done[what];
  const verdict = same ? `same ${what}` : what === "text" ? "another text" : `another answer (${oneLine(fast.done.answer)} instead of ${oneLine(slow.done.answer ?? "none")})`;
  return { text: `${passes}: ${ratio < 1.05 ? "about as soon" : `${times(ratio)} times sooner`}, ${verdict}.`, same };
}

export function oneLine(text) {
  return text.trim().replace(/\s*\n\s*/g, " / ");
}
