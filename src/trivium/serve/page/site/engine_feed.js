// The engine's state once a second, and the last minutes of it. A page that nobody sees asks for nothing.

import { call } from "./api.js";

const PERIOD = 1000; // ms
export const HISTORY = 120; // seconds

export class EngineFeed {
  #listeners = new Set();
  #last = null;
  #timer = null;
  #turns = 0;
  #asksForKey = true; // until the person says no
  watched = null; // the model; null: the server's default
  view = null; // as GET /v1/engine has it; null while the server does not answer
  problem = null; // why there is no view
  points = []; // oldest first; `time` in the engine's seconds

  start() {
    document.addEventListener("visibilitychange", () => this.#turn());
    this.#turn();
  }

  watch(model) {
    if (model === this.watched) return;
    this.watched = model;
    this.points = [];
    this.#last = null;
    this.#turn();
  }

  listen(listener) {
    this.#listeners.add(listener);
  }

  async #turn() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    const turn = ++this.#turns;
    let view = null;
    let problem = null;
    try {
      const query = this.watched === null ? "" : `?model=${encodeURIComponent(this.watched)}`;
      view = await (await call(`/v1/engine${query}`, { ask: this.#asksForKey })).json();
    } catch (error) {
      problem = error;
    }
    if (turn !== this.#turns) return; // another has begun since
    if (problem?.status === 401) this.#asksForKey = false;
    if (problem?.status === 404) this.watched = null;
    this.#take(view, problem);
    for (const listener of this.#listeners) listener(this);
    this.#timer = setTimeout(() => this.#turn(), PERIOD);
  }

  #take(view, problem) {
    this.view = view;
    this.problem = problem;
    if (!view?.live) {
      this.#last = null;
      return;
    }
    this.points.push(pointOf(view, this.#last));
    this.points = this.points.filter((point) => point.time >= view.time - HISTORY);
    this.#last = view;
  }
}

/** Rates are between this view and the last; none between two lives of the engine, whose counts begin again. */
function pointOf({ time, live, latency, restarts }, last) {
  const seconds = last !== null && last.restarts === restarts ? time - last.time : 0;
  const rate = (name) => (seconds > 0 ? (live.totals[name] - last.live.totals[name]) / seconds : 0);
  return {
    time,
    running: live.running,
    waiting: live.waiting,
    generated: rate("generated_tokens"),
    prompt: rate("prompt_tokens"),
    first50: latency.first_token?.p50 ?? null,
    first95: latency.first_token?.p95 ?? null,
    inter50: latency.inter_token?.p50 ?? null,
    inter95: latency.inter_token?.p95 ?? null,
    held: live.kv.held,
    cached: live.kv.cached,
  };
}
