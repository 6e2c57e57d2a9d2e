// What a decision says about one question: the probabilities of its options, and whether they settle it.

import { plural } from "./dom.js";

const SURE = 0.9; // probability of the best option below which an answer is unsure
const RULED_OUT = 0.05; // probability up to which an option counts as ruled out
const OWN_WORDS = 0.5; // share of the model's probability that the options need together

const LONGEST = 60; // characters of an option in a headline

export function optionsOf({ kind, options }) {
  if (kind === "predicate") return [{ value: true, label: "Yes" }, { value: false, label: "No" }];
  return options.map((label, at) => ({ value: kind === "score" ? at : label, label }));
}

// The probabilities that the server lists, in the order of the options.
export function readShares(question, listed) {
  return optionsOf(question).map(({ value }) => listed.find(one => one.value === value)?.probability ?? 0);
}

export function bestOf(shares) {
  return shares.indexOf(Math.max(...shares));
}

export function inPercent(share) {
  return share >= 0.995 && share < 1 ? "> 99%" : share > 0 && share < 0.005 ? "< 1%" : `${Math.round(100 * share)}%`;
}

const shorten = text => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

function join(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} or ${words[words.length - 1]}`;
}

// The places of the options that are not ruled out: the calibrated set if there is one.
function openIn(options, shares, conformal) {
  const listed = options.flatMap(({ value, label }, at) => (conformal?.some(one => one === value || one === label) ? [at] : []));
  return listed.length ? listed : shares.flatMap((share, at) => (share > RULED_OUT ? [at] : []));
}

// Judge the final answer. `work` is what the server says about how it came about; `last` are the probabilities of the
// last step, which stand in for those of an answer that was withheld.
export function conclude(question, answer, work, last) {
  const options = optionsOf(question);
  const shares = answer.type === "refusal" ? last : question.kind === "predicate" ? [answer.probability, 1 - answer.probability] : readShares(question, answer.probabilities);
  const best = bestOf(shares), open = openIn(options, shares, work.conformal), names = open.map(at => options[at].label);
  const after = `after ${plural(work.forwards, "pass", "passes")}`;
  const state = work.abstained ? "abstained" : shares[best] < SURE ? "unsure" : work.label_mass !== null && work.label_mass < OWN_WORDS ? "astray" : "settled";
  const quoted = names.map(name => `“${name}”`);
  const doubt = quoted.length > 2 ? `It cannot rule out ${join(quoted)}.` : quoted.length === 2 ? `It can rule out neither ${quoted.join(" nor ")}.` : `Only ${inPercent(shares[best])} for “${options[best].label}”.`;
  const scale = question.kind === "score" && answer.score !== undefined ? ` On average ${answer.score.toFixed(1)} on a scale from 0 to ${options.length - 1}.` : "";
  const { tag, headline, sentence } = {
    settled: { tag: "settled", headline: `Settled: ${shorten(options[best].label)}.`, sentence: `Settled ${after}.${scale}` },
    unsure: { tag: "not sure", headline: `Not sure: ${shorten(join(names))}.`, sentence: `Not sure ${after}. ${doubt}${scale}` },
    abstained: { tag: "abstained", headline: "No answer: it is not sure enough.", sentence: `Abstained ${after}. ${doubt}` },
    astray: { tag: "not sure", headline: "Not sure: it has something else in mind.", sentence: `Not sure ${after}. All options together have ${inPercent(work.label_mass ?? 0)} of its probability, so it would rather write something else.` },
  }[state];
  return { state, tag, headline, sentence, shares, best, open: state === "settled" || state === "astray" ? [best] : open };
}
