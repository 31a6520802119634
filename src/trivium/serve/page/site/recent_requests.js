// The last requests that ended: how, after how long, and where their time went.

import { call } from "./api.js";
import { causeBar } from "./cause_bar.js";
import { make } from "./dom.js";
import { count, duration } from "./figures.js";

const SHOWN = 8;
// The causes that are seen most; the bars' pieces say their names.
const LEGEND = [["queued", "Queue"], ["grammar", "Grammar"], ["prompt", "Prompt"], ["decode", "Decoding"], ["waited", "Between steps"]];

export class RecentRequests {
  #seen = null; // what the engine had counted when we last asked
  #asksAgain = false; // an account is closed a moment after the counts have changed

  constructor() {
    this.rows = make("tbody");
    const legend = LEGEND.map(([cause, label]) => make("span", { "data-cause": cause }, make("i"), label));
    this.table = make("table.requests", { hidden: true },
      make("thead", {}, make("tr", {}, ...["Ended", "Tokens in, out", "Where the time went", "Time"].map((name) => make("th", { scope: "col" }, name)))),
      this.rows);
    this.empty = make("p.nothing", {}, "No request has ended yet.");
    this.element = make("figure.panel.wide", {}, make("figcaption", {}, make("h2", {}, "Last requests"), make("div.legend", {}, ...legend)), this.table, this.empty);
  }

  /** Asks the server only when something has happened. */
  async show({ live, in_flight: inFlight }) {
    const { completed, cancelled, failed } = live.totals;
    const counts = [completed, cancelled, failed, inFlight].join();
    if (counts === this.#seen && !this.#asksAgain) return;
    this.#asksAgain = counts !== this.#seen;
    this.#seen = counts;
    try {
      const { data } = await (await call(`/v1/requests?limit=${SHOWN}`, { ask: false })).json();
      this.#draw(data);
    } catch {
      this.#seen = null; // with the next view
    }
  }

  #draw(accounts) {
    const slowest = Math.max(...accounts.map(({ seconds }) => seconds));
    this.rows.replaceChildren(...accounts.map((account) => row(account, slowest)));
    this.table.hidden = accounts.length === 0;
    this.empty.hidden = accounts.length > 0;
  }
}

function row(account, slowest) {
  const { request_id: id, end, seconds, num_prompt_tokens: prompt = 0, num_generated_tokens: generated = 0 } = account;
  return make("tr", { title: id },
    make("td", {}, make("span.badge", { "data-end": end }, end)),
    make("td", {}, `${count(prompt)} → ${count(generated)}`),
    make("td.wide-cell", {}, causeBar(account, slowest)),
    make("td", {}, duration(seconds)));
}
