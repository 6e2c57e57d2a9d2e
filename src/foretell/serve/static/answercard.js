// The card of one question: its options as bars that grow while the canvas settles, and what came of it in words.

import { bestOf, inPercent, optionsOf } from "./conclusion.js";
import { el } from "./dom.js";
import { createCard } from "./figures.js";
import { createStatus } from "./states.js";

const UNNAMED = { predicate: "Yes or no?", choice: "Which one?", score: "How much?" };

function createBar(label) {
  const share = el("span", { class: "share" }), level = el("span"), track = el("span", { class: "track" }, level);
  const node = el("div", { class: "option", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, el("span", { class: "label" }, label), share, track);
  return {
    node,
    set(probability, look, percent = inPercent(probability)) {
      node.className = `option ${look}`;
      node.setAttribute("aria-valuenow", Math.round(100 * probability));
      node.setAttribute("aria-valuetext", percent);
      share.textContent = percent;
      level.style.width = `${100 * probability}%`;
    },
  };
}

export function createAnswerCard(question, at) {
  const options = optionsOf(question), bars = options.map(({ label }) => createBar(label));
  const title = question.text || UNNAMED[question.kind], said = el("p", { class: "said" }), status = createStatus(), tag = el("span", { class: "badge", hidden: true });
  const card = createCard(title, "", el("div", { class: "bars", role: "group", "aria-label": "Options and their probabilities" }, ...bars.map(({ node }) => node)),
    el("div", { class: "slot" }, said, status.node));
  card.head.replaceChild(tag, card.side);
  card.node.setAttribute("aria-label", `Question ${at + 1}: ${title}`);
  card.node.classList.add("asked");
  for (const bar of bars) bar.set(0, "", "–");

  function draw(state, shares, looks, words, badge = "") {
    card.node.className = `card asked ${state}`;
    bars.forEach((bar, at) => bar.set(shares[at], looks(at)));
    said.textContent = words;
    tag.textContent = badge;
    tag.hidden = !badge;
    tag.className = `badge ${state === "settled" ? "good" : "bad"}`;
  }

  return {
    node: card.node,
    show(shares, pass) {
      const best = bestOf(shares);
      draw("", shares, at => (at === best ? "ahead" : ""), `Pass ${pass}: leaning to “${options[best].label}”.`);
      return `${title} ${options[best].label}, ${inPercent(shares[best])}`;
    },
    conclude({ state, tag: badge, sentence, shares, best, open }) {
      draw(state, shares, at => `${open.includes(at) ? "open" : "out"}${at === best ? " ahead" : ""}`, sentence, badge);
      return `${title} ${sentence}`;
    },
    fail(message) {
      said.hidden = true;
      status.fail(message);
    },
  };
}
