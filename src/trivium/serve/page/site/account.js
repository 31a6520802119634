// Where an answer's time went, as the server accounts for it: one bar for the whole, one line for each cause.

import { call } from "./api.js";
import { causeBar } from "./cause_bar.js";
import { make } from "./dom.js";
import { duration, percent } from "./figures.js";

const TRIES = 4;
const BETWEEN = 300; // ms; the account is closed a moment after the answer's last byte

/** A button and the place where it shows the account; the account is asked for when it is wanted. */
export function accountOf(requestId) {
  const place = make("div.account", { hidden: true });
  const button = make("button", { type: "button", "aria-expanded": "false", title: "Where did the time go?" }, "Timing");
  button.addEventListener("click", async () => {
    place.hidden = !place.hidden;
    button.setAttribute("aria-expanded", String(!place.hidden));
    if (place.hidden || place.children.length) return;
    try {
      place.replaceChildren(...drawn(await fetchAccount(requestId)));
    } catch (error) {
      place.replaceChildren(make("p.cut", {}, error.message));
    }
  });
  return { button, place };
}

async function fetchAccount(requestId) {
  for (let left = TRIES; ; left -= 1) {
    try {
      return await (await call(`/v1/requests/${encodeURIComponent(requestId)}`)).json();
    } catch (error) {
      if (error.status !== 404 || left === 1) throw error;
      await new Promise((resolve) => setTimeout(resolve, BETWEEN));
    }
  }
}

function drawn({ account, meanings }) {
  const lines = Object.entries(meanings).flatMap(([cause, meaning]) => [
    make(
      "dt",
      { "data-cause": cause },
      make("i"),
      duration(account.causes[cause]),
      make("span", {}, percent(account.causes[cause], account.seconds)),
    ),
    make("dd", {}, meaning),
  ]);
  return [make("p.account-total", {}, `${duration(account.seconds)} from the first byte to the last`), causeBar(account, account.seconds), make("dl", {}, ...lines)];
}
