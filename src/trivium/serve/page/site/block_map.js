// The KV cache as a field of small squares: held by sequences, kept for reuse, free.

import { draw, make } from "./dom.js";
import { count, percent } from "./figures.js";

const SIZE = 9;
const GAP = 3;
const ROWS = 9;

export class BlockMap {
  #kv = null;
  #blockSize = 0;

  constructor() {
    this.svg = draw("svg", { class: "block-map", height: ROWS * (SIZE + GAP) - GAP, role: "img" });
    this.paths = ["held", "cached", "free"].map((state) => draw("path", { class: `block-${state}` }));
    this.svg.append(...this.paths);
    this.values = ["In use", "Kept for reuse", "Free"].map(() => make("b"));
    const legend = ["In use", "Kept for reuse", "Free"].map((label, i) =>
      make("span", { "data-block": ["held", "cached", "free"][i] }, make("i"), label, this.values[i]));
    this.note = make("p.hint");
    this.element = make("figure.panel", {}, make("figcaption", {}, make("h2", {}, "KV cache"), make("div.legend", {}, ...legend)), this.svg, this.note);
    new ResizeObserver(() => this.#draw()).observe(this.svg);
  }

  show(kv, blockSize) {
    this.#kv = kv;
    this.#blockSize = blockSize;
    this.#draw();
  }

  #draw() {
    const columns = Math.floor((this.svg.clientWidth + GAP) / (SIZE + GAP));
    if (this.#kv === null || columns < 1) return;
    const { held, cached, free } = this.#kv;
    const total = held + cached + free;
    const cells = Math.min(total, columns * ROWS);
    // Whatever is there at all gets a square, however small its share.
    const share = (blocks) => (blocks === 0 ? 0 : Math.max(1, Math.round((blocks / total) * cells)));
    const ends = [share(held), share(held) + share(cached), cells];
    const square = (i) => `M${Math.floor(i / ROWS) * (SIZE + GAP)} ${(i % ROWS) * (SIZE + GAP)}h${SIZE}v${SIZE}h-${SIZE}z`;
    let at = 0;
    this.paths.forEach((path, i) => {
      let d = "";
      for (; at < ends[i]; at += 1) d += square(at);
      path.setAttribute("d", d);
    });
    [held, cached, free].forEach((blocks, i) => (this.values[i].textContent = percent(blocks, total)));
    this.note.textContent = `${count(held + cached)} of ${count(total)} blocks hold keys and values, ${this.#blockSize} tokens each.`;
    this.svg.setAttribute("aria-label", `KV cache: ${held} blocks in use, ${cached} kept for reuse, ${free} free`);
  }
}
