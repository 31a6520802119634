// Light, dark, or as the system has it.

import { icon } from "./icons.js";
import { keep, recall } from "./kept.js";

const ORDER = ["auto", "light", "dark"];

export function startTheme(button) {
  let theme = ORDER.includes(recall("theme")) ? recall("theme") : "auto";
  const show = () => {
    document.documentElement.dataset.theme = theme;
    button.replaceChildren(icon(theme));
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    keep("theme", theme);
    show();
  });
  show();
}
