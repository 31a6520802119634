// The KV cache as a field of small squares: held by sequences, kept for reuse, free.

import { draw, make } from "./dom.js";
import { count, percent } from "./figures.js";

const HEIGHT = 156;
const GAP = 3;
const SMALLEST = 12; // from one square to the next; of a larger cache, a square stands for several blocks
const LARGEST = 39;

export class BlockMap {
  #kv = null;
  #blockSize = 0;

  constructor() {
    this.svg = draw("svg", { class: "block-map", height: HEIGHT - GAP, role: "img" });
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
    const width = this.svg.clientWidth + GAP;
    if (this.#kv === null || width <= GAP) return;
    const { held, cached, free } = this.#kv;
    const total = held + cached + free;
    const pitch = pitchFor(total, width);
    const rows = Math.floor(HEIGHT / pitch);
    const cells = Math.min(total, Math.floor(width / pitch) * rows);
    // Whatever is there at all gets a square, however small its share.
    const share = (blocks) => (blocks === 0 ? 0 : Math.max(1, Math.round((blocks / total) * cells)));
    const ends = [share(held), share(held) + share(cached), cells];
    const size = pitch - GAP;
    const square = (i) => `M${Math.floor(i / rows) * pitch} ${(i % rows) * pitch}h${size}v${size}h-${size}z`;
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

/** The largest at which there is a square for each block, within bounds. */
function pitchFor(total, width) {
  let pitch = LARGEST;
  while (pitch > SMALLEST && Math.floor(width / pitch) * Math.floor(HEIGHT / pitch) < total) pitch -= 1;
  return pitch;
}
