// One answer of the model: asked for, and taken in as it comes.

import { call } from "./api.js";
import { events } from "./event_stream.js";

export const emptyAnswer = () => ({
  role: "assistant", content: "", reasoning: "", calls: [], finish: null, figures: null, failure: null,
  request: null, // the server's name for it
});

/** Fills `answer` and calls `onNews` after each piece. Never throws: what went wrong is told in the answer. */
export async function receive(answer, body, signal, onNews) {
  const clock = new Clock();
  try {
    const request = { ...body, stream: true, stream_options: { include_usage: true } };
    const response = await call("/v1/chat/completions", { body: request, signal });
    answer.request = response.headers.get("x-request-id");
    for await (const chunk of events(response)) {
      take(answer, chunk, clock);
      onNews();
    }
  } catch (error) {
    if (error.name === "AbortError") answer.finish = "stopped";
    else answer.failure = error.message;
  }
  answer.figures = clock.figures();
}

function take(answer, chunk, clock) {
  if (chunk.usage) clock.usage = chunk.usage;
  const [choice] = chunk.choices;
  if (!choice) return;
  const { delta } = choice;
  if (delta.content || delta.reasoning || delta.tool_calls) clock.piece();
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const known = (answer.calls[piece.index] ??= { id: piece.id, name: piece.function.name, arguments: "" });
    known.arguments += piece.function.arguments ?? "";
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

class Clock {
  #asked = performance.now();
  #first = null;
  #last = null;
  #pieces = 0;
  usage = null;

  piece() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#pieces += 1;
  }

  figures() {
    if (this.#first === null && this.usage === null) return null;
    const tokens = this.usage?.completion_tokens ?? this.#pieces;
    const seconds = (this.#last - this.#first) / 1000;
    return {
      tokens,
      firstToken: this.#first === null ? null : this.#first - this.#asked, // ms; null where nothing was said
      rate: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null, // tokens/s after the first
      cached: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      prompt: this.usage?.prompt_tokens ?? null,
    };
  }
}
