// Each running sequence as a lane: what of its prompt was cached, what is computed, and what it has generated.

import { make } from "./dom.js";
import { count, plural } from "./figures.js";

const SHOWN = 16;
const PARTS = [["reused", "Cached prompt"], ["computed", "Computed prompt"], ["missing", "Prompt to come"], ["generated", "Generated"]];

export class SequenceLanes {
  constructor() {
    this.lanes = make("div.lanes");
    this.empty = make("p.nothing");
    const legend = PARTS.map(([part, label]) => make("span", { "data-part": part }, make("i"), label));
    this.element = make("figure.panel", {}, make("figcaption", {}, make("h2", {}, "Sequences"), make("div.legend", {}, ...legend)), this.lanes, this.empty);
  }

  show({ sequences, running: numRunning, waiting }) {
    const running = sequences.filter(({ row }) => row >= 0);
    // Lanes are compared with each other, and short ones do not fill the width.
    const longest = Math.max(256, ...running.map(({ prompt, generated }) => prompt + generated));
    this.lanes.replaceChildren(...running.slice(0, SHOWN).map((sequence) => lane(sequence, longest)));
    const hidden = running.length - SHOWN;
    const withheld = numRunning > 0 && running.length === 0;
    const words = [withheld ? `${plural(numRunning, "sequence")} running, which only an admin's key shows` : null, hidden > 0 ? `${count(hidden)} more running` : null, waiting > 0 ? `${count(waiting)} waiting` : null];
    this.empty.textContent = numRunning === 0 && waiting === 0 ? "Nothing is running. Ask something, and it appears here." : words.filter(Boolean).join(", ");
    this.empty.hidden = this.empty.textContent === "";
  }
}

function lane({ row, prompt, cached, computed, generated }, longest) {
  const done = Math.min(prompt, computed);
  const reused = Math.min(cached, done);
  const lengths = { reused, computed: done - reused, missing: prompt - done, generated };
  const bar = make("div.lane-bar", { role: "img", "aria-label": `${cached} of ${prompt} prompt tokens cached, ${generated} generated` });
  for (const [part] of PARTS) {
    const piece = make("i", { "data-part": part });
    piece.style.width = `${(100 * lengths[part]) / longest}%`;
    bar.append(piece);
  }
  return make("div.lane", {}, make("span", {}, `row ${row}`), bar, make("b", {}, `${count(prompt)} + ${count(generated)}`));
}
