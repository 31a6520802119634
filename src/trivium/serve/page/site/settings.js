// What a person has chosen, kept between visits, and what of it goes into a request.

import { SCHEMAS, TOOLS } from "./examples.js";
import { keep, recall } from "./kept.js";

const DEFAULTS = {
  model: "",
  system: "",
  temperature: 0.7,
  top_p: 0.95,
  top_k: 0, // 0: off
  min_p: 0,
  repetition_penalty: 1,
  max_tokens: 1024, // empty: as many as fit
  seed: "", // empty: drawn anew each time
  stop: "", // one to a line
  form: "text", // text, json, schema, regex
  schema: SCHEMAS[0].text,
  regex: "\\d{4}-\\d{2}-\\d{2}",
  tools_on: false,
  tools: TOOLS[0].text,
  tool_choice: "auto", // auto, required, none
  parallel_calls: false,
};

const listeners = new Set();
export const settings = { ...DEFAULTS, ...recall("settings", {}) };

export function change(changes) {
  Object.assign(settings, changes);
  keep("settings", settings);
  for (const listener of listeners) listener(settings);
}

export const onChange = (listener) => listeners.add(listener);
export const restoreDefaults = () => change({ ...DEFAULTS, model: settings.model });

/** The body of a chat request, less its messages. Throws a sentence where something cannot be sent as it is. */
export function requestFields() {
  const fields = {
    model: settings.model || undefined, // undefined: not known yet; the server takes its own
    temperature: settings.temperature,
    top_p: settings.top_p,
  };
  if (settings.top_k > 0) fields.top_k = settings.top_k;
  if (settings.min_p > 0) fields.min_p = settings.min_p;
  if (settings.repetition_penalty !== 1) fields.repetition_penalty = settings.repetition_penalty;
  if (settings.max_tokens !== "") fields.max_tokens = settings.max_tokens;
  if (settings.seed !== "") fields.seed = settings.seed;
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length) fields.stop = stop;
  return { ...fields, ...formFields(), ...toolFields() };
}

function formFields() {
  switch (settings.form) {
    case "json":
      return { response_format: { type: "json_object" } };
    case "schema":
      return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: read("schema", "JSON schema") } } };
    case "regex":
      return { structured_outputs: { regex: settings.regex } };
    default:
      return {};
  }
}

function toolFields() {
  if (!settings.tools_on) return {};
  const tools = read("tools", "list of tools");
  if (!Array.isArray(tools)) throw new Error("The tools must be a list.");
  return { tools, tool_choice: settings.tool_choice, parallel_tool_calls: settings.parallel_calls };
}

function read(name, what) {
  try {
    return JSON.parse(settings[name]);
  } catch (error) {
    throw new Error(`The ${what} is not valid JSON: ${error.message}`);
  }
}
