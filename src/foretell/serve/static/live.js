// Tells screen readers what happens, at most once per second.

const REST = 1000;
let last = -REST, waiting = null, next = "";

export function announce(text) {
  next = text;
  if (waiting !== null) return;
  waiting = setTimeout(() => {
    waiting = null;
    last = performance.now();
    document.getElementById("live").textContent = next;
  }, Math.max(0, last + REST - performance.now()));
}
