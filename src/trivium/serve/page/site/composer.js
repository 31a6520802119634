// Where a message is written, sent and stopped.

import { byId, make } from "./dom.js";
import { icon } from "./icons.js";
import { onChange, settings } from "./settings.js";

export function startComposer(chat) {
  const form = byId("composer");
  const field = byId("message");
  const send = byId("send");

  const show = () => {
    send.replaceChildren(icon(chat.isBusy ? "stop" : "send", 20));
    send.classList.toggle("is-stop", chat.isBusy);
    send.setAttribute("aria-label", chat.isBusy ? "Stop" : "Send");
    send.disabled = !chat.isBusy && field.value.trim() === "";
  };
  const grow = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  };
  const submit = () => {
    const text = field.value.trim();
    if (chat.isBusy || text === "") return;
    field.value = "";
    grow();
    chat.say(text);
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (chat.isBusy) chat.stop();
    else submit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  field.addEventListener("input", () => {
    grow();
    show();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chat.isBusy) chat.stop();
  });
  byId("new-chat").addEventListener("click", () => {
    chat.clear();
    show();
    field.focus();
  });
  chat.onBusy = show;
  onChange(showChips);
  showChips(settings);
  show();
}

const FORMS = { json: "JSON", schema: "JSON schema", regex: "regular expression" };

function showChips({ form, tools_on: hasTools, system }) {
  const names = [system.trim() ? "system prompt" : null, FORMS[form] ?? null, hasTools ? "tools" : null];
  byId("chips").replaceChildren(...names.filter(Boolean).map((name) => make("span.badge", {}, name)));
}
