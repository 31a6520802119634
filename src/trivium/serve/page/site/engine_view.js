// The engine at work, drawn from the feed.

import { BlockMap } from "./block_map.js";
import { byId, make } from "./dom.js";
import { count, duration, percent } from "./figures.js";
import { startLoad } from "./load.js";
import { PrefixMap } from "./prefix_map.js";
import { RecentRequests } from "./recent_requests.js";
import { SequenceLanes } from "./sequence_lanes.js";
import { TimeChart } from "./time_chart.js";

const rate = (value) => `${count(value)}/s`;

export class EngineView {
  #tiles = Object.fromEntries(
    [["running", "Running"], ["waiting", "Waiting"], ["rate", "Tokens per second"], ["first", "First token, median"], ["inter", "Between tokens, median"], ["hits", "Prompt tokens reused"]]
      .map(([key, label]) => [key, tile(label)]));
  #throughput = new TimeChart("Throughput", [
    { key: "generated", label: "Generated", tone: "accent" }, { key: "prompt", label: "Prompts", tone: "amber" }], rate);
  #sequences = new TimeChart("Requests", [
    { key: "running", label: "Running", tone: "accent" }, { key: "waiting", label: "Waiting", tone: "amber" }], count, 2);
  #firstToken = new TimeChart("Time to first token", [
    { key: "first50", label: "Median", tone: "violet" }, { key: "first95", label: "95 %", tone: "amber" }], duration);
  #interToken = new TimeChart("Time between tokens", [
    { key: "inter50", label: "Median", tone: "violet" }, { key: "inter95", label: "95 %", tone: "amber" }], duration);
  #lanes = new SequenceLanes();
  #blocks = new BlockMap();
  #prefixes = new PrefixMap();
  #requests = new RecentRequests();
  #facts = make("dl.facts");
  #state = make("p.engine-state", { role: "status" });

  constructor(feed) {
    const load = make("button.quiet-button", { type: "button" });
    startLoad(load);
    byId("view-engine").append(make("div.board", {},
      make("div.board-head", {}, make("div", {}, make("h1", {}, "The engine, now"), this.#state), load),
      make("div.tiles", {}, ...Object.values(this.#tiles).map(({ element }) => element)),
      make("div.panels", {},
        this.#throughput.element, this.#sequences.element, this.#lanes.element, this.#blocks.element, this.#prefixes.element,
        this.#firstToken.element, this.#interToken.element, this.#requests.element,
        make("section.panel.wide", {}, make("h2", {}, "What runs"), this.#facts))));
    feed.listen(() => this.#show(feed));
  }

  #show({ view, points, problem }) {
    this.#state.textContent = view === null ? problem.message : STATES[view.state] ?? view.state;
    byId("view-engine").classList.toggle("is-away", view === null || view.live === null);
    if (view === null || byId("view-engine").hidden) return;
    if (view.model !== null) this.#showFacts(view);
    if (view.live === null) return;
    const { live, latency, model } = view;
    const { totals } = live;
    const now = points.at(-1);
    this.#tiles.running.value.textContent = count(live.running);
    this.#tiles.waiting.value.textContent = count(live.waiting);
    this.#tiles.rate.value.textContent = count(now.generated);
    this.#tiles.first.value.textContent = duration(latency.first_token?.p50 ?? null);
    this.#tiles.inter.value.textContent = duration(latency.inter_token?.p50 ?? null);
    this.#tiles.hits.value.textContent = percent(totals.cached_tokens, totals.prompt_tokens);
    for (const chart of [this.#throughput, this.#sequences, this.#firstToken, this.#interToken]) chart.show(points);
    this.#requests.show(view);
    this.#lanes.show(live);
    this.#blocks.show(live.kv, model.block_size);
    this.#prefixes.show(live.prefixes, live.prefixes_are_whole, model.block_size);
  }

  #showFacts({ model, live, restarts }) {
    const totals = live?.totals;
    const facts = [
      ["Model", `${model.name} (${model.family}, ${model.dtype})`],
      ["Context", `${count(model.max_model_len)} tokens`],
      ["KV cache", `${count(model.num_blocks)} blocks of ${model.block_size} tokens, ${model.kv_cache_dtype}`],
      ["Graph", model.graph],
      ["Kernels", kernelsByProvider(model.kernels)],
    ];
    if (totals) facts.push(
      ["Steps", `${count(totals.steps)}, ${duration(totals.steps ? totals.step_seconds / totals.steps : null)} each`],
      ["Tokens", `${count(totals.prompt_tokens)} of prompts, ${count(totals.generated_tokens)} generated`],
      ["Sequences", `${count(totals.completed)} complete, ${count(totals.cancelled)} cancelled, ${count(totals.failed)} failed`],
      ["Preempted", `${count(totals.preemptions)} times; ${count(totals.evicted_blocks)} blocks evicted`],
      ["Restarts", count(restarts)],
    );
    this.#facts.replaceChildren(...facts.filter(([, text]) => text).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  }
}

const STATES = {
  ready: "Ready for requests.",
  starting: "The model is being loaded.",
  unloaded: "This model is not loaded; the first request for it loads it.",
  restarting: "The engine is starting again.",
  draining: "The server is shutting down; answers under way are finished.",
  dead: "The engine has ended.",
};

function tile(label) {
  const value = make("b", {}, "–");
  return { value, element: make("div.tile", {}, make("span", {}, label), value) };
}

/** Each line is `op: provider (reason)`, and most ops have the same provider. */
function kernelsByProvider(lines) {
  const found = new Map();
  for (const line of lines) {
    const provider = line.slice(line.indexOf(": ") + 2);
    found.set(provider, (found.get(provider) ?? 0) + 1);
  }
  return [...found].map(([provider, ops]) => `${provider} for ${ops} ops`).join("; ");
}
