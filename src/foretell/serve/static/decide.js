// The Decide view: questions about a text, and their options while the model makes up its mind.

import { makeDecision } from "./api.js";
import { createAnswerCard } from "./answercard.js";
import { conclude, readShares } from "./conclusion.js";
import { calm, el, inSeconds, plural } from "./dom.js";
import { createFigure } from "./figures.js";
import { createChips, createField, createFrame, createPick } from "./form.js";
import { writeFragment } from "./fragment.js";
import { announce } from "./live.js";
import { createQuestions, packQuestions, readQuestion, unpackQuestions, writeQuestion } from "./questions.js";
import { bringIntoSight, createRunner } from "./runner.js";
import { createStatus, createWelcome, sayError, sayQueue } from "./states.js";
import { createTransport } from "./transport.js";

const UNSURE = [{ value: "answer", text: "Answer all the same" }, { value: "abstain", text: "Abstain" }, { value: "full", text: "Take the remaining passes" }];
const PACE = 420, QUICK = 150; // milliseconds per pass while the decision is made, and at least
const NAMED = /^questions\[(\d+)\][:,]?\s*/; // how the server names the question that an error is about
const ALONE = "This model has no words to ask several questions on one canvas, so each is asked on its own.";

function createDecideForm(info, examples, { onRun, onStop }) {
  const text = el("textarea", { rows: 4, spellcheck: "false", required: true, placeholder: "What the questions are about" });
  const questions = createQuestions(), unsure = createPick(UNSURE, "answer");
  const settings = () => ({ prompt: text.value, questions: packQuestions(questions.value()), unsure: unsure.value === "answer" ? "" : unsure.value });

  function fill(given) {
    if (given.prompt !== undefined) text.value = given.prompt;
    const listed = unpackQuestions(given.questions);
    if (listed) questions.fill(listed);
    if (given.questions) unsure.value = UNSURE.some(({ value }) => value === given.unsure) ? given.unsure : "answer";
  }

  const pick = example => {
    fill({ prompt: example.input, questions: packQuestions(example.questions.map(readQuestion)) });
    frame.startIfIdle();
  };
  const frame = createFrame(info, {
    label: "What to decide", verb: "Decide", text, check: questions.check, onRun: () => onRun(settings(), questions.value()), onStop,
    content: [createField("Text", text), createChips(examples, pick), questions.node, createField("If it is not sure", unsure)],
  });
  frame.node.classList.add("long");
  return { ...frame, settings, fill, pick };
}

// The questions that are asked in one request, with what is known of them so far.
function createGroup(questions, places) {
  return { questions, places, frames: [], decision: null, error: null };
}

const lengthOf = groups => Math.max(...groups.map(({ frames }) => frames.length));

function mount(root, info) {
  let groups = [], cards = [];
  const examples = info.decision_examples.map(example => ({ ...example, task: example.questions.length > 1 ? "two questions" : example.questions[0].type, prompt: `${example.input} ${example.questions[0].instructions}` }));
  const form = createDecideForm(info, examples, { onRun: start, onStop: () => runner.stop() });
  const passes = createFigure("key"), verdict = el("p", { class: "verdict" }), status = createStatus(), notes = el("p", { class: "note after" }), alone = el("p", { class: "note" }, ALONE);
  const transport = createTransport({ show: draw, noun: "Pass", fastest: QUICK, live: PACE, say: (at, count) => `pass ${at + 1} of ${count}` });
  const board = el("section", { class: "card clock", "aria-label": "What it took" }, passes.node, el("div", { class: "slot" }, verdict, status.node), transport.node, notes, alone);
  const answers = el("div", { class: "answers" }), stack = el("div", { class: "stack", hidden: true }, board, answers);
  const welcome = createWelcome(examples, { title: "See it make up its mind.", begin: "Write a text and a question to begin.",
    text: "Each question has a gap on the canvas. Watch how likely its options are while the text around it fills in, and see after how many passes the answer is settled.", onPick: form.pick });
  const runner = createRunner({ form, status, work });
  root.append(form.node, el("div", { class: "results" }, welcome, stack));

  function start(settings, questions) {
    writeFragment("decide", settings);
    return runner.run({ ...settings, questions });
  }

  async function work({ prompt, questions, unsure }, signal, ready) {
    welcome.hidden = true;
    stack.hidden = false;
    transport.reset();
    cards = questions.map(createAnswerCard);
    answers.replaceChildren(...cards.map(card => card.node));
    const own = groups = info.together ? [createGroup(questions, questions.map((_, at) => at))] : questions.map((question, at) => createGroup([question], [at]));
    alone.hidden = own.length === 1;
    drawEmpty();
    bringIntoSight(stack);
    await Promise.all(own.map(group => ask(group, { prompt, unsure }, signal, ready)));
    if (own === groups) follow(true);
    placeErrors(own);
  }

  // Ask the questions of one group. An error is kept, so that the other groups go on.
  async function ask(group, { prompt, unsure }, signal, ready) {
    const body = { input: prompt, unsure: unsure || "answer", questions: group.questions.map((question, at) => writeQuestion(question, `q${group.places[at] + 1}`)) };
    try {
      group.decision = await makeDecision(info, body, {
        signal,
        onQueue: place => status.wait(sayQueue(place)),
        onPreview: listed => {
          ready();
          group.frames.push(group.questions.map((question, at) => (listed[body.questions[at].name] ? readShares(question, listed[body.questions[at].name]) : group.frames.at(-1)?.[at])));
          if (!signal.aborted) follow(false);
        },
      });
    } catch (error) {
      group.error = error;
    }
  }

  function follow(finished) {
    const count = lengthOf(groups);
    transport.follow(count, finished);
    if (finished && count) draw(transport.at);
  }

  // Show errors in the cards of their questions; those that concern no question alone go to the board.
  function placeErrors(asked) {
    const failed = asked.filter(group => group.error);
    const common = failed.find(({ error, questions }) => !error.status || error.status === 401 || (questions.length > 1 && !NAMED.test(error.message)));
    if (common) throw common.error;
    if (failed.length > 1 && failed.length === asked.length && new Set(failed.map(({ error }) => error.message)).size === 1) throw failed[0].error;
    for (const { error, places } of failed) {
      const at = places[Number(NAMED.exec(error.message)?.[1] ?? 0)], message = sayError(error).replace(NAMED, "");
      cards[at].fail(message);
      announce(message);
    }
  }

  function drawEmpty() {
    passes.set("–", "forward passes", "quiet");
    verdict.textContent = "";
    notes.textContent = "";
  }

  // Show every question as it was at a pass; one that was settled before stays as it is.
  function draw(pass) {
    if (pass < 0) return;
    const said = [], ends = [];
    let taken = 0;
    for (const group of groups) {
      const last = group.frames.length - 1, at = Math.min(pass, last), over = Boolean(group.decision) && at === last;
      taken += over ? group.decision.foretell.forwards : at + 1;
      group.places.forEach((place, index) => {
        const shares = group.frames[at]?.[index];
        if (!shares) return;
        if (!over) return said.push(cards[place].show(shares, at + 1));
        const { answers: final, foretell } = group.decision;
        ends.push(conclude(group.questions[index], final[index], foretell.answers[`q${place + 1}`], shares));
        said.push(cards[place].conclude(ends.at(-1)));
      });
    }
    drawBoard(taken, ends, pass === lengthOf(groups) - 1 && groups.every(group => group.decision || group.error));
    announce(said.join(" "));
  }

  function drawBoard(taken, ends, over) {
    const settled = ends.filter(({ state }) => state === "settled").length, all = settled === cards.length;
    passes.set(String(taken), over ? `${taken === 1 ? "forward pass" : "forward passes"} used` : "forward passes so far", over ? (all ? "good" : "") : "quiet");
    verdict.textContent = !over || !ends.length ? "" : cards.length === 1 ? ends[0].headline : `${all ? (settled === 2 ? "Both" : `All ${settled}`) : `${settled} of ${cards.length}`} questions settled.`;
    verdict.className = `verdict ${all ? "good" : "bad"}`;
    notes.textContent = over ? sayWork(taken) : "";
  }

  function sayWork(taken) {
    const works = groups.flatMap(group => (group.decision ? [group.decision.foretell] : []));
    const seconds = Math.max(...works.map(work => work.seconds)), slowed = !calm() && 1000 * seconds < QUICK * lengthOf(groups) ? ", shown slowed down" : "";
    const time = works.length ? [`${inSeconds(seconds)} for ${plural(taken, "forward pass", "forward passes")}${slowed}.`] : [];
    return [...time, ...new Set(works.flatMap(work => work.notes))].join(" ");
  }

  return {
    open(settings, now) {
      form.fill(settings);
      if (now) form.start();
    },
    settings: form.settings,
    onKey: transport.onKey,
    close: transport.pause,
  };
}

export const decide = { id: "decide", title: "Decide", needs: "decisions", mount };
