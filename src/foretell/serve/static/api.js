// Talks to the server: what it offers, decodings and decisions as streams, and replays of recorded runs.

const KEY = "foretell-key";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const readKey = () => sessionStorage.getItem(KEY) ?? "";
export const storeKey = key => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer; is it still running?", 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `The server answered with status ${response.status}.`, response.status);
}

function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (readKey()) headers.Authorization = `Bearer ${readKey()}`;
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

export async function fetchInfo() {
  return (await request("foretell/info")).json();
}

export async function fetchReplay(run, signal) {
  return (await post("foretell/replay", { run }, signal)).json();
}

// The events of a stream: {data} or {comment}.
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield { data: line.slice(5).trim() };
        else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Hand every chunk of a stream to `onChunk`, and every sign of waiting to `onQueue(place)`. An error in it is thrown.
async function followStream(response, onChunk, onQueue) {
  for await (const { data, comment } of readEvents(response)) {
    if (comment !== undefined) {
      const place = /^queued (\d+)/.exec(comment);
      onQueue(place ? Number(place[1]) : null);
    } else if (data !== "[DONE]") {
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, response.status);
      onChunk(chunk);
    }
  }
}

function bodyOf(info, { prompt, recipe, layout, suffix, length }, trace) {
  const text = info.chat ? { messages: [{ role: "user", content: prompt }] } : { prompt };
  const body = { model: info.model, ...text, stream: true, drafts: "positions", recipe };
  if (trace) body.trace = true;
  if (layout) body.layout = layout;
  if (suffix) body.answer_suffix = suffix;
  if (length) body.answer_length = Number(length);
  return body;
}

// Decode a prompt and record every draft. `onFrame(run)` follows each draft, `onQueue(place)` each sign of waiting.
export async function recordRun(info, settings, { trace = false, signal, onFrame = () => {}, onQueue = () => {} } = {}) {
  const run = { model: info.model, prompt: settings.prompt, recipe: settings.recipe, date: new Date().toISOString().slice(0, 10), frames: [], done: null, replay: null };
  const response = await post(info.chat ? "v1/chat/completions" : "v1/completions", bodyOf(info, settings, trace), signal);
  await followStream(response, chunk => {
    if (chunk.foretell) run.done = chunk.foretell;
    if (chunk.draft) {
      run.frames.push(chunk.draft);
      onFrame(run);
    }
  }, onQueue);
  if (!run.done) throw new ServerError("The connection ended before the run did.", 0);
  return run;
}

// Decide questions about a text and return the response. `onPreview(probabilities by question)` follows each step.
export async function makeDecision(info, { input, questions, unsure }, { signal, onPreview, onQueue }) {
  let decision = null;
  const response = await post("v1/decisions", { model: info.model, input, questions, on_unsure: unsure, stream: true }, signal);
  await followStream(response, chunk => {
    if (chunk.object === "decision") decision = chunk;
    else onPreview(chunk.questions);
  }, onQueue);
  if (!decision) throw new ServerError("The connection ended before the decision was made.", 0);
  return decision;
}
