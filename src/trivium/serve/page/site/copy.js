// Buttons that copy a text.

import { make } from "./dom.js";
import { icon } from "./icons.js";

export function copyButton(textOf) {
  const button = make("button", { type: "button" });
  const show = (name, label) => button.replaceChildren(icon(name, 15), label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(textOf());
      show("done", "Copied");
    } catch {
      show("alert", "The browser does not let us");
    }
    setTimeout(() => show("copy", "Copy"), 1600);
  });
  show("copy", "Copy");
  return button;
}
