// The button that switches between the system's colours, light and dark.

import { icon } from "./dom.js";

const KEY = "foretell-theme", ORDER = ["auto", "light", "dark"];

export function mountTheme(button) {
  let theme = localStorage.getItem(KEY);
  if (!ORDER.includes(theme)) theme = "auto";
  const apply = () => {
    document.documentElement.style.colorScheme = theme === "auto" ? "" : theme;
    button.setAttribute("aria-label", `Colours: ${theme}`);
    button.title = `Colours: ${theme}`;
    button.replaceChildren(icon(theme));
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    localStorage.setItem(KEY, theme);
    apply();
  });
  apply();
}
