// Keeps the view and its settings in the address, so that a run can be shared.

const NAMES = ["prompt", "recipe", "against", "layout", "suffix", "length", "questions", "unsure"];

export function readFragment() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  const found = new URLSearchParams(query), settings = {};
  for (const name of NAMES) if (found.get(name)) settings[name] = found.get(name);
  return { view, settings };
}

export function formatFragment(view, settings) {
  const query = new URLSearchParams();
  for (const name of NAMES) if (settings[name]) query.set(name, settings[name]);
  const text = query.toString();
  return `#${view}${text ? `?${text}` : ""}`;
}

// Entries of the history that the page wrote itself carry a state; a link that someone opened does not.
export function writeFragment(view, settings) {
  const next = formatFragment(view, settings);
  if (next !== location.hash) history.pushState({ own: true }, "", next);
}
