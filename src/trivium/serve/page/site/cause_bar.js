// A request's time as one bar, in the colours of its causes and in the order in which they usually come.

import { make } from "./dom.js";
import { duration } from "./figures.js";

/** `whole`: the seconds that the full width stands for. */
export function causeBar(account, whole) {
  const bar = make("div.cause-bar", { "aria-hidden": "true" });
  for (const [cause, seconds] of Object.entries(account.causes)) {
    const piece = make("i", { "data-cause": cause, title: `${cause.replaceAll("_", " ")}: ${duration(seconds)}` });
    piece.style.width = `${(100 * seconds) / whole}%`;
    bar.append(piece);
  }
  return bar;
}
