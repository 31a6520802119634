// The chat: sends, streams, stops, tries again, and takes the results of tools.

import { emptyAnswer, receive } from "./answer.js";
import { Conversation } from "./conversation.js";
import { byId, make } from "./dom.js";
import { STARTERS } from "./examples.js";
import { change, requestFields } from "./settings.js";
import { AnswerTurn, userTurn } from "./turns.js";

export class Chat {
  #conversation = new Conversation();
  #thread = byId("thread");
  #scroller = byId("thread-scroll");
  #stopper = null; // of the answer that is coming
  #served = "";

  /** `onBusy(isBusy)` is told when an answer begins and ends. */
  constructor(onBusy) {
    this.onBusy = onBusy;
    this.#show();
  }

  get isBusy() {
    return this.#stopper !== null;
  }

  /** A line about the model, for the page on which nothing was said yet. */
  set served(line) {
    this.#served = line;
    const place = this.#thread.querySelector(".served");
    if (place) place.textContent = line;
  }

  say(text) {
    this.#conversation.add({ role: "user", content: text });
    this.#answer();
  }

  stop() {
    this.#stopper?.abort();
  }

  clear() {
    this.stop();
    this.#conversation.clear();
    this.#show();
  }

  async #answer() {
    const answer = emptyAnswer();
    let body = null;
    try {
      body = { ...requestFields(), messages: this.#conversation.forApi() };
    } catch (error) {
      answer.failure = error.message;
    }
    this.#conversation.add(answer);
    this.#show();
    if (body === null) return;
    const turn = this.#turns.get(answer);
    const stopper = (this.#stopper = new AbortController());
    this.onBusy(true);
    announce("Answering");
    const paint = onceAFrame(() => {
      if (this.#stopper === stopper) this.#keepingEndInSight(() => turn.update(false));
    });
    paint();
    await receive(answer, body, stopper.signal, paint);
    if (this.#stopper !== stopper) return; // the chat was cleared meanwhile
    this.#stopper = null;
    this.#conversation.save();
    this.#keepingEndInSight(() => turn.update(true));
    this.onBusy(false);
    announce(answer.failure ? "The answer failed" : answer.finish === "stopped" ? "Stopped" : "");
  }

  #retry(answer) {
    this.stop();
    this.#conversation.cutBefore(answer);
    this.#answer();
  }

  #takeResults(results) {
    this.#conversation.add(...results.map(([call, content]) => ({ role: "tool", call, content })));
    // A model that must call would call for ever.
    change({ tool_choice: "auto" });
    this.#answer();
  }

  #turns = new Map();

  #show() {
    this.#turns = new Map();
    const elements = this.#conversation.messages.filter(({ role }) => role !== "tool").map((message) => {
      if (message.role === "user") return userTurn(message);
      const turn = new AnswerTurn(message, {
        resultOf: (call) => this.#conversation.resultOf(call),
        onRetry: () => this.#retry(message),
        onResults: (results) => this.#takeResults(results),
      });
      turn.update(true);
      this.#turns.set(message, turn);
      return turn.element;
    });
    this.#thread.replaceChildren(...(elements.length ? elements : [this.#welcome()]));
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #welcome() {
    return make("div.welcome", {},
      make("img", { src: "/page/mark.svg", alt: "", width: 64, height: 64 }),
      make("h1", {}, "Where would you like to go?"),
      make("p.served", {}, this.#served),
      make("div.starters", {}, ...STARTERS.map(({ title, about, message, changes }) =>
        make("button.starter", { type: "button", onclick: () => { change(changes); this.say(message); } },
          make("b", {}, title), make("span", {}, about)))));
  }

  /** Who has scrolled up to read is left alone. */
  #keepingEndInSight(paint) {
    const box = this.#scroller;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    paint();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
}

const announce = (text) => (byId("announce").textContent = text);

function onceAFrame(paint) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      paint();
    });
  };
}
