// The views of the page in the order of their tabs.
//
// A view is {id, title, mount(root, info)} with an optional `needs`: the name of a flag in the server's info without
// which it has no tab. `mount` returns {open(settings, start), settings(), onKey(event), close()}.

import { decide } from "./decide.js";
import { race } from "./race.js";
import { watch } from "./watch.js";
import { whatIf } from "./whatif.js";

const VIEWS = [watch, race, whatIf, decide];

export function viewsFor(info) {
  return VIEWS.filter(view => !view.needs || info[view.needs]);
}
