// How single messages look. An answer's element follows its message with `update`.

import { accountOf } from "./account.js";
import { copyButton } from "./copy.js";
import { freshId, make } from "./dom.js";
import { duration, plural } from "./figures.js";
import { icon } from "./icons.js";
import { renderMarkdown } from "./markdown.js";
import { prettyJson } from "./pretty_json.js";

export function userTurn(message) {
  return make("article.turn.user", { "aria-label": "You" },
    make("div.bubble", {}, message.content),
    make("div.turn-actions", {}, copyButton(() => message.content)));
}

export class AnswerTurn {
  /** `resultOf(call)` is the tool message that answers a call, if there is one; `onResults` gets texts by call id. */
  constructor(message, { resultOf, onRetry, onResults }) {
    this.message = message;
    this.element = make("article.turn.assistant", { "aria-label": "Answer" });
    this.reasoning = make("details.reasoning", { hidden: true }, make("summary", {}, "Thinking"), make("div"));
    this.waiting = make("div.waiting", { "aria-hidden": "true" }, make("i"), make("i"), make("i"));
    this.prose = make("div.prose");
    this.calls = make("div.calls", { hidden: true });
    this.end = make("div");
    this.element.append(this.reasoning, this.waiting, this.prose, this.calls, this.end);
    this.resultOf = resultOf;
    this.onRetry = onRetry;
    this.onResults = onResults;
  }

  update(isDone) {
    const { message } = this;
    const isEmpty = this.#saysNothing();
    this.waiting.hidden = isDone || !isEmpty;
    this.reasoning.hidden = message.reasoning === "";
    this.reasoning.lastChild.textContent = message.reasoning.trim();
    this.reasoning.firstChild.textContent = isDone || !isEmpty ? "Thoughts" : "Thinking…";
    const json = isDone ? prettyJson(message.content) : null;
    this.prose.hidden = message.content === "";
    renderMarkdown(this.prose, json === null ? message.content : "```json\n" + json + "\n```");
    this.#showCalls(isDone);
    if (isDone) this.#showEnd();
  }

  #saysNothing() {
    return this.message.content === "" && this.message.calls.length === 0;
  }

  #showCalls(isDone) {
    if (!this.message.calls.length) return;
    this.calls.hidden = false;
    const cards = this.message.calls.map((call) => callCard(call));
    this.calls.replaceChildren(...cards);
    if (!isDone || this.message.failure || this.message.finish === "stopped") return;
    const answered = this.message.calls.map((call) => this.resultOf(call));
    if (answered.every(Boolean)) {
      cards.forEach((card, i) => card.append(make("div.call-result", {}, make("span.said", {}, "Result"), make("pre", {}, answered[i].content))));
    } else {
      this.calls.append(this.#resultForm(cards));
    }
  }

  /** A field under each call, and one button for all. */
  #resultForm(cards) {
    const id = freshId("results");
    const fields = this.message.calls.map((call, i) => {
      const field = make("textarea.text", { id: freshId("result"), placeholder: '{"ok": true}', rows: 2 });
      field.setAttribute("form", id);
      cards[i].append(make("div.call-result", {}, make("label", { for: field.id }, `What ${call.name} answers`), field));
      return field;
    });
    return make("form.call-send", {
      id,
      onsubmit: (event) => {
        event.preventDefault();
        this.onResults(this.message.calls.map((call, i) => [call.id, fields[i].value]));
      },
    }, make("button.solid-button", { type: "submit" }, fields.length > 1 ? "Send the results" : "Send the result"));
  }

  #showEnd() {
    const { failure, finish, figures, request } = this.message;
    const parts = [];
    if (failure) parts.push(make("div.failure", { role: "alert" }, icon("alert"), make("span", {}, failure)));
    if (finish === "stopped") parts.push(make("p.cut", {}, "You stopped this answer."));
    if (finish === "stop" && this.#saysNothing()) parts.push(make("p.cut", {}, "The model ended its answer without a word."));
    if (finish === "length") parts.push(make("p.cut", {}, "The answer was cut at its greatest length."));
    const retry = make("button", { type: "button", onclick: this.onRetry }, icon("retry", 15), "Try again");
    const copied = () => this.message.content || JSON.stringify(this.message.calls, null, 2);
    const account = request ? accountOf(request) : null;
    parts.push(make("div.turn-actions", {}, failure ? null : copyButton(copied), retry, account && account.button, figures && figuresOf(figures)));
    if (account) parts.push(account.place);
    this.end.replaceChildren(...parts);
  }
}

function callCard(call) {
  return make("section.call", { "aria-label": `Call of ${call.name}` },
    make("div.call-head", {}, icon("tool", 16), make("span", {}, call.name), make("span.badge", {}, "tool call")),
    make("pre", {}, prettyJson(call.arguments) ?? call.arguments));
}

function figuresOf({ tokens, firstToken, rate, cached, prompt }) {
  const parts = [plural(tokens, "token")];
  if (rate !== null) parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)}/s`);
  if (firstToken !== null) parts.push(`first after ${duration(firstToken / 1000)}`);
  if (prompt !== null && cached > 0) parts.push(`${cached} of ${prompt} cached`);
  return make("span.figures", {}, parts.join(" · "));
}
