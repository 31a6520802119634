// The panel beside the chat: what the model is told, how it draws, what form its answer has, which tools it may call.

import { byId, make } from "./dom.js";
import { SCHEMAS, TOOLS } from "./examples.js";
import { choice, group, jsonEditor, number, shownWhile, slider, text, toggle } from "./fields.js";
import { icon } from "./icons.js";
import { restoreDefaults } from "./settings.js";

export function startSettings() {
  byId("settings-body").append(
    group("Instructions", text("system", "System prompt", { placeholder: "You are a helpful assistant.", rows: 3 })),
    group("Form of the answer",
      choice("form", "Form of the answer", [["text", "Text"], ["json", "JSON"], ["schema", "Schema"], ["regex", "Regex"]]),
      shownWhile(({ form }) => form === "schema", jsonEditor("schema", "JSON schema", SCHEMAS)),
      shownWhile(({ form }) => form === "regex", text("regex", "Regular expression", { rows: 2, code: true })),
      shownWhile(({ form }) => form !== "text", make("p.field.hint", {}, "Tokens that would break the form cannot be drawn, so every whole answer has it."))),
    group("Tools",
      toggle("tools_on", "Let the model call tools"),
      shownWhile((now) => now.tools_on, make("div", {},
        jsonEditor("tools", "Tools", TOOLS),
        make("p.field.hint", {}, "You play the tool: type what it answers under the call."),
        make("div.field", {}, choice("tool_choice", "Tool choice", [["auto", "Auto"], ["required", "Required"], ["none", "None"]])),
        make("div.field", {}, toggle("parallel_calls", "Several calls in one answer"))))),
    group("Sampling",
      slider("temperature", "Temperature", { min: 0, max: 2, step: 0.05, hint: "0: always the likeliest token" }),
      slider("top_p", "Top p", { min: 0.01, max: 1, step: 0.01, hint: "Only the likeliest tokens that together have this probability" }),
      slider("min_p", "Min p", { min: 0, max: 1, step: 0.01, hint: "Only tokens at least this likely beside the likeliest" }),
      slider("top_k", "Top k", { min: 0, max: 200, step: 1, hint: "Only so many of the likeliest tokens; 0: all" }),
      slider("repetition_penalty", "Repetition penalty", { min: 0.8, max: 2, step: 0.01, hint: "Above 1: tokens that came before are less likely" })),
    group("Limits",
      number("max_tokens", "Longest answer, in tokens", { min: 1, max: 2 ** 31 - 1, placeholder: "as many as fit" }),
      number("seed", "Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, placeholder: "a new one each time" }),
      text("stop", "Stop strings, one to a line", { rows: 2 })),
    make("div.group", {}, make("button.quiet-button", { type: "button", onclick: restoreDefaults }, "Restore the defaults")),
  );
  startDrawer();
}

/** On small screens the panel lies over the chat. */
function startDrawer() {
  const [panel, scrim, opener, closer] = ["settings", "scrim", "open-settings", "close-settings"].map(byId);
  opener.append(icon("settings", 20));
  closer.append(icon("close", 20));
  const open = (isOpen) => {
    panel.classList.toggle("is-open", isOpen);
    scrim.hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
    (isOpen ? closer : opener).focus();
  };
  opener.addEventListener("click", () => open(true));
  closer.addEventListener("click", () => open(false));
  scrim.addEventListener("click", () => open(false));
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !scrim.hidden) open(false);
  });
}
