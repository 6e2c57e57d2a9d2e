// Runs one request at a time for a view, and shows waiting and errors in its card.

import { calm } from "./dom.js";
import { announce } from "./live.js";
import { sayError } from "./states.js";

const PATIENCE = 400; // milliseconds before a view says that it waits

export function createRunner({ form, status, work, waiting = "Waiting for the server." }) {
  let control = null;
  return {
    async run(settings) {
      control?.abort();
      const own = new AbortController();
      control = own;
      form.setBusy(true);
      status.clear();
      const timer = setTimeout(() => status.wait(waiting), PATIENCE);
      try {
        await work(settings, own.signal, () => { clearTimeout(timer); status.clear(); });
      } catch (error) {
        if (own.signal.aborted) {
          if (control === own) status.wait("Stopped.");
        } else {
          status.fail(sayError(error));
          announce(sayError(error));
          if (error.status === 401) form.askForKey();
        }
      } finally {
        clearTimeout(timer);
        if (control === own) form.setBusy(false);
      }
    },
    stop() {
      control?.abort();
    },
  };
}

// On a narrow screen the results are below the form; bring them into sight.
export function bringIntoSight(node) {
  if (node.getBoundingClientRect().top > innerHeight * 0.5) node.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
}
