// The messages so far, and how they are said to the API.
//
// {role: "user", content}
// {role: "assistant", content, reasoning, calls: [{id, name, arguments}], finish, figures, failure, request}
// {role: "tool", call, content}

import { keep, recall } from "./kept.js";
import { settings } from "./settings.js";

export class Conversation {
  constructor() {
    this.messages = recall("conversation", []);
  }

  add(...messages) {
    this.messages.push(...messages);
    this.save();
  }

  /** Without this message and all that follow. */
  cutBefore(message) {
    this.messages.splice(this.messages.indexOf(message));
    this.save();
  }

  clear() {
    this.messages = [];
    this.save();
  }

  save() {
    keep("conversation", this.messages);
  }

  resultOf(call) {
    return this.messages.find((message) => message.role === "tool" && message.call === call.id);
  }

  forApi() {
    const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    return [...system, ...this.messages.filter(isSaid).map(inWordsOfApi)];
  }
}

/** An answer that failed before its first word is no part of what was said. */
const isSaid = (message) => message.role !== "assistant" || message.content !== "" || message.calls.length > 0;

function inWordsOfApi(message) {
  switch (message.role) {
    case "tool":
      return { role: "tool", tool_call_id: message.call, content: message.content };
    case "assistant":
      return message.calls.length === 0
        ? { role: "assistant", content: message.content }
        : { role: "assistant", content: message.content || null, tool_calls: message.calls.map(asToolCall) };
    default:
      return { role: "user", content: message.content };
  }
}

const asToolCall = ({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } });
