// Starts the page: asks the server what it offers, makes one tab per view, and follows the address.

import { fetchInfo } from "./api.js";
import { el } from "./dom.js";
import { formatFragment, readFragment, writeFragment } from "./fragment.js";
import { mountTheme } from "./theme.js";
import { viewsFor } from "./views.js";

const main = document.getElementById("main");

function createPages(info) {
  const pages = viewsFor(info).map(view => ({ view, tab: el("a", { href: `#${view.id}` }, view.title), root: null, handle: null }));
  let current = null;

  // Show a view with these settings, and run them at once if `start` is true.
  function open(id, settings, start) {
    const page = pages.find(each => each.view.id === id) ?? pages[0];
    if (page !== current) current?.handle?.close();
    current = page;
    if (!page.root) {
      page.root = el("div", { class: "view" });
      main.append(page.root);
      page.handle = page.view.mount(page.root, info);
    }
    for (const each of pages) {
      if (each.root) each.root.hidden = each !== page;
      if (each === page) each.tab.setAttribute("aria-current", "page");
      else each.tab.removeAttribute("aria-current");
    }
    document.title = `${page.view.title} - Foretell`;
    page.handle?.open(settings, start);
  }

  for (const { view, tab } of pages) {
    tab.addEventListener("click", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const settings = current?.handle?.settings?.() ?? {};
      writeFragment(view.id, settings);
      open(view.id, settings, false);
    });
    tab.addEventListener("pointerdown", () => { tab.href = formatFragment(view.id, current?.handle?.settings?.() ?? {}); });
  }
  document.getElementById("tabs").append(...pages.map(({ tab }) => tab));
  document.addEventListener("keydown", event => current?.handle?.onKey?.(event));
  return open;
}

function follow(open, own) {
  const { view, settings } = readFragment();
  open(view, settings, !own && Boolean(settings.prompt));
}

async function start() {
  mountTheme(document.getElementById("theme"));
  main.replaceChildren();
  try {
    const info = await fetchInfo();
    const chip = document.getElementById("model");
    chip.textContent = `${info.model} · ${info.about}`;
    chip.hidden = false;
    const open = createPages(info);
    addEventListener("popstate", event => follow(open, Boolean(event.state?.own)));
    follow(open, false);
  } catch (error) {
    const retry = el("button", { type: "button", on: { click: () => location.reload() } }, "Try again");
    main.replaceChildren(el("section", { class: "card trouble", "aria-label": "Error" }, el("p", { class: "status fail", role: "alert" }, error.message), retry));
  }
}

start();
