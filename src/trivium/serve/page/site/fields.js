// Form controls that read and write one setting each, and follow it when it changes elsewhere.

import { freshId, make } from "./dom.js";
import { change, onChange, settings } from "./settings.js";

export function group(title, ...children) {
  return make("section.group", { "aria-label": title }, make("h3", {}, title), ...children);
}

/** A slider with a number beside it. */
export function slider(name, label, { min, max, step, hint = "" }) {
  const number = make("input.number", { type: "number", id: freshId(name), min, max, step, inputMode: "decimal" });
  const range = make("input", { type: "range", min, max, step, "aria-label": label });
  follow(name, (value) => {
    if (document.activeElement !== number) number.value = value;
    range.value = value;
    range.style.setProperty("--filled", `${(100 * (Math.min(max, value) - min)) / (max - min)}%`);
  });
  range.addEventListener("input", () => change({ [name]: Number(range.value) }));
  number.addEventListener("change", () => {
    const value = number.value === "" ? min : Math.min(max, Math.max(min, Number(number.value)));
    number.value = value;
    change({ [name]: value });
  });
  return make("div.field", {},
    make("div.field-head", {}, make("label", { for: number.id, title: hint }, label), number), range);
}

/** A whole number, or nothing, for which the placeholder says what it means. */
export function number(name, label, { min, max, placeholder }) {
  const input = make("input", { type: "number", id: freshId(name), min, max, step: 1, placeholder, inputMode: "numeric" });
  follow(name, (value) => {
    if (document.activeElement !== input) input.value = value;
  });
  input.addEventListener("change", () => {
    if (input.value === "") return change({ [name]: "" });
    change({ [name]: Math.min(max, Math.max(min, Math.trunc(Number(input.value)))) });
  });
  return make("div.field", {}, make("label", { for: input.id }, label), input);
}

export function text(name, label, { placeholder = "", rows = 3, code = false }) {
  const input = make("textarea.text", { id: freshId(name), rows, placeholder, spellcheck: !code });
  if (code) input.classList.add("code");
  follow(name, (value) => {
    if (input.value !== value) input.value = value;
  });
  input.addEventListener("input", () => change({ [name]: input.value }));
  return make("div.field", {}, make("label", { for: input.id }, label), input);
}

export function choice(name, label, options) {
  const set = make("fieldset.choices", {}, make("legend.unseen", {}, label));
  const radioName = freshId(name);
  for (const [value, shown] of options) {
    const radio = make("input", { type: "radio", name: radioName, value, onchange: () => change({ [name]: value }) });
    follow(name, (chosen) => (radio.checked = chosen === value));
    set.append(make("label", {}, radio, make("span", {}, shown)));
  }
  return set;
}

export function toggle(name, label) {
  const box = make("input", { type: "checkbox", onchange: () => change({ [name]: box.checked }) });
  follow(name, (value) => (box.checked = value));
  return make("label.check", {}, box, label);
}

/** Shown only while the settings say so. */
export function shownWhile(test, element) {
  const show = (now) => (element.hidden = !test(now));
  onChange(show);
  show(settings);
  return element;
}

/** JSON in a setting, with a verdict on what is written, and examples to take. */
export function jsonEditor(name, label, examples) {
  const field = text(name, label, { rows: 10, code: true });
  const verdict = make("span.verdict", { role: "status" });
  follow(name, (value) => {
    const problem = problemOf(value);
    verdict.textContent = problem ?? "Valid JSON";
    verdict.classList.toggle("is-bad", problem !== null);
  });
  const menu = make("select", { "aria-label": `Examples for: ${label}` },
    make("option", { value: "" }, "Examples"), ...examples.map(({ name: title }, i) => make("option", { value: i }, title)));
  menu.addEventListener("change", () => {
    if (menu.value !== "") change({ [name]: examples[Number(menu.value)].text });
    menu.value = "";
  });
  field.append(make("div.editor-foot", {}, verdict, menu));
  return field;
}

function problemOf(value) {
  try {
    JSON.parse(value);
    return null;
  } catch (error) {
    return error.message;
  }
}

function follow(name, show) {
  let last;
  const look = (now) => {
    if (now[name] === last) return;
    last = now[name];
    show(last);
  };
  onChange(look);
  look(settings);
}
