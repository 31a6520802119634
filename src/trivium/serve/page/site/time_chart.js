// Lines over the last minutes, drawn as SVG. The pointer reads values off; without one, the newest are shown.

import { draw, make } from "./dom.js";
import { HISTORY } from "./engine_feed.js";

const HEIGHT = 168;
const TOP = 10;
const BOTTOM = 22; // for the hours' line
const LEFT = 56; // for the values' labels

export class TimeChart {
  #points = [];
  #pointer = null; // x in pixels

  /** `series`: [{key, label, tone}]; `write` makes a value readable; the scale goes up to `least` at least. */
  constructor(title, series, write, least = 0) {
    this.least = least;
    this.series = series;
    this.write = write;
    this.svg = draw("svg", { class: "time-chart", height: HEIGHT, role: "img" });
    this.values = series.map(() => make("b", {}, "–"));
    const legend = series.map(({ label, tone }, i) => make("span", { "data-tone": tone }, make("i"), label, this.values[i]));
    this.element = make("figure.panel", {}, make("figcaption", {}, make("h2", {}, title), make("div.legend", {}, ...legend)), this.svg);
    this.title = title;
    this.svg.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.#point(null));
    new ResizeObserver(() => this.#draw()).observe(this.svg);
  }

  show(points) {
    this.#points = points;
    this.#draw();
  }

  #point(x) {
    this.#pointer = x;
    this.#draw();
  }

  #draw() {
    const width = this.svg.clientWidth;
    const points = this.#points;
    if (width === 0) return;
    const now = points.at(-1)?.time ?? 0;
    const top = niceTop(Math.max(this.least, ...points.flatMap((point) => this.series.map(({ key }) => point[key] ?? 0))));
    const x = (time) => width - ((now - time) / HISTORY) * (width - LEFT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);

    const parts = [0, 0.5, 1].map((share) => this.#gridLine(y(top * share), width, top * share));
    parts.push(...timeLabels(x, now));
    for (const { key, tone } of this.series) parts.push(...curve(points, key, tone, x, y));
    const read = this.#pointer === null ? points.at(-1) : nearest(points, x, this.#pointer);
    if (read && this.#pointer !== null) parts.push(...this.#cursor(read, x, y));
    this.svg.replaceChildren(...parts);
    this.series.forEach(({ key }, i) => (this.values[i].textContent = read ? this.write(read[key]) : "–"));
    this.svg.setAttribute("aria-label", `${this.title}: ${this.series.map(({ label }, i) => `${label} ${this.values[i].textContent}`).join(", ")}`);
  }

  #gridLine(y, width, value) {
    const label = draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" });
    label.textContent = this.write(value);
    return draw("g", { class: "grid" }, draw("line", { x1: LEFT, x2: width, y1: y, y2: y }), label);
  }

  #cursor(point, x, y) {
    const dots = this.series.filter(({ key }) => point[key] !== null)
      .map(({ key, tone }) => draw("circle", { cx: x(point.time), cy: y(point[key]), r: 3.5, class: "dot", "data-tone": tone }));
    return [draw("line", { class: "cursor", x1: x(point.time), x2: x(point.time), y1: TOP, y2: HEIGHT - BOTTOM }), ...dots];
  }
}

/** The line, and its ground under it; a gap where there was no value. */
function curve(points, key, tone, x, y) {
  const runs = [];
  let run = null;
  for (const point of points) {
    if (point[key] === null) run = null;
    else if (run === null) runs.push((run = [point]));
    else run.push(point);
  }
  return runs.flatMap((found) => {
    const line = found.map((point, i) => `${i ? "L" : "M"}${x(point.time).toFixed(1)} ${y(point[key]).toFixed(1)}`).join("");
    const ground = `${line}L${x(found.at(-1).time).toFixed(1)} ${y(0)}L${x(found[0].time).toFixed(1)} ${y(0)}Z`;
    return [draw("path", { class: "ground", "data-tone": tone, d: ground }), draw("path", { class: "line", "data-tone": tone, d: line })];
  });
}

function timeLabels(x, now) {
  return [[HISTORY, "2 min ago", "start"], [HISTORY / 2, "1 min", "middle"], [0, "now", "end"]].map(([ago, words, anchor]) => {
    const label = draw("text", { x: x(now - ago), y: HEIGHT - 5, "text-anchor": anchor });
    label.textContent = words;
    return label;
  });
}

const nearest = (points, x, at) => points.reduce(
  (best, point) => (best === null || Math.abs(x(point.time) - at) < Math.abs(x(best.time) - at) ? point : best), null);

/** The next whose half is round too. */
function niceTop(value) {
  if (value <= 0) return 1;
  value *= 1 - 1e-9; // powers of ten are not exact
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 10].map((digit) => digit * power).find((candidate) => candidate >= value) ?? 10 * power;
}
