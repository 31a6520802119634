// The prefix tree: each bar is a run of blocks that follow each other without a branch, each branch goes on below.

import { draw, make } from "./dom.js";
import { plural } from "./figures.js";

const BAR = 18;
const ROW = 26;
const STEP = 16; // between a chain's end and its children
const LONGEST = 40; // rows
const NOTHING = "Nothing is cached yet. Prompts that begin alike will share their beginning here.";
const WITHHELD = "Only an admin's key shows what is cached.";

export class PrefixMap {
  #chains = [];
  #whole = true;
  #blockSize = 0;

  constructor() {
    this.svg = draw("svg", { class: "prefix-map", role: "img" });
    this.empty = make("p.nothing");
    this.note = make("p.hint");
    const legend = make("div.legend", {},
      make("span", { "data-block": "held" }, make("i"), "In use"),
      make("span", { "data-block": "cached" }, make("i"), "Kept for reuse"));
    this.element = make("figure.panel.wide", {}, make("figcaption", {}, make("h2", {}, "Prefix tree"), legend),
      make("div.prefix-scroll", {}, this.svg), this.empty, this.note);
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  show(chains, whole, blockSize) {
    this.#chains = chains;
    this.#whole = whole;
    this.empty.textContent = whole ? NOTHING : WITHHELD;
    this.#blockSize = blockSize;
    this.#draw();
  }

  #draw() {
    const width = this.svg.parentElement.clientWidth;
    const chains = this.#chains;
    this.empty.hidden = chains.length > 0;
    this.note.hidden = this.svg.parentElement.hidden = chains.length === 0;
    if (width === 0 || chains.length === 0) return;
    const { rows, numRows, starts, scale } = layOut(chains, width);
    const shown = chains.map((chain, i) => i).filter((i) => rows[i] < LONGEST);
    const parts = shown.filter((i) => chains[i].parent >= 0).map((i) => this.#link(i, rows, starts, scale));
    parts.push(...shown.map((i) => this.#bar(chains[i], starts[i], rows[i] * ROW, scale)));
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("height", Math.min(numRows, LONGEST) * ROW);
    const blocks = chains.reduce((sum, chain) => sum + chain.blocks, 0);
    const running = chains.reduce((sum, chain) => sum + chain.ends, 0);
    const isAll = this.#whole && shown.length === chains.length;
    const summary = `${plural(blocks, "block")} (${plural(blocks * this.#blockSize, "token")}) in ${plural(chains.length, "run")}, ${plural(running, "sequence")} running on them${isAll ? "" : "; the rest is not shown"}.`;
    this.note.textContent = summary;
    this.svg.setAttribute("aria-label", `Prefix tree: ${summary}`);
  }

  #bar(chain, x, y, scale) {
    const width = widthOf(chain, scale);
    const held = (width * chain.held) / chain.blocks;
    const title = draw("title");
    title.textContent = `${plural(chain.blocks * this.#blockSize, "token")}, ${plural(chain.held, "block")} in use, ${plural(chain.ends, "sequence")} here`;
    const bar = draw("g", { class: "chain" }, title,
      draw("rect", { class: "block-cached", x, y: y + 4, width, height: BAR, rx: 5 }));
    if (held > 0) bar.append(draw("rect", { class: "block-held", x, y: y + 4, width: held, height: BAR, rx: 5 }));
    const words = String(chain.blocks * this.#blockSize);
    if (width > words.length * 8 + 10) {
      const label = draw("text", { x: x + 8, y: y + 4 + BAR / 2 + 4, class: held > 40 ? "on-held" : "" });
      label.textContent = words;
      bar.append(label);
    }
    if (chain.ends > 0) bar.append(draw("circle", { class: "runner", cx: x + width + 7, cy: y + 4 + BAR / 2, r: 4 }));
    return bar;
  }

  #link(i, rows, starts, scale) {
    const { parent } = this.#chains[i];
    const fromX = starts[parent] + widthOf(this.#chains[parent], scale);
    const [fromY, toY] = [rows[parent], rows[i]].map((row) => row * ROW + 4 + BAR / 2);
    const bend = fromX + STEP / 2;
    return draw("path", { class: "branch", d: `M${fromX} ${fromY}C${bend} ${fromY} ${bend - 2} ${toY} ${starts[i]} ${toY}` });
  }
}

// A bar's length grows with the root of its blocks: a long document and a short question are both to be seen.
const widthOf = (chain, scale) => Math.max(8, Math.sqrt(chain.blocks) * scale);

/** A first child stays in its parent's row, the next begin rows of their own: depth first, so branches stay together. */
function layOut(chains, width) {
  const children = chains.map(() => []);
  const roots = [];
  chains.forEach((chain, i) => (chain.parent < 0 ? roots : children[chain.parent]).push(i));
  const depth = (i, before) => {
    const here = before + Math.sqrt(chains[i].blocks);
    return children[i].length ? Math.max(...children[i].map((child) => depth(child, here))) : here;
  };
  const levels = (i) => 1 + Math.max(0, ...children[i].map(levels));
  const longest = Math.max(...roots.map((root) => depth(root, 0)));
  const scale = Math.max(2, Math.min(64, (width - 20 - STEP * Math.max(...roots.map(levels))) / longest));

  const rows = [];
  const starts = [];
  let numRows = 0;
  const place = (i, x, row) => {
    rows[i] = row;
    starts[i] = x;
    children[i].forEach((child, nth) => {
      place(child, x + widthOf(chains[i], scale) + STEP, nth === 0 ? row : numRows++);
    });
  };
  for (const root of roots) place(root, 0, numRows++);
  return { rows, numRows, starts, scale };
}
