// A little traffic, to see the engine at work: several answers at once, thrown away as they come.

import { call } from "./api.js";
import { events } from "./event_stream.js";
import { settings } from "./settings.js";

const TOPICS = ["a river", "the moon", "an old clock", "a train at night", "the first snow", "a lost letter", "a market", "the wind"];
const BEGINNING = "These poems are written for children. They rhyme, they are kind, and each of them ends with a question.\n\nA poem about ";

export function startLoad(button) {
  let stopper = null;
  const show = () => (button.textContent = stopper ? "Stop the traffic" : `Write ${TOPICS.length} poems at once`);
  button.addEventListener("click", async () => {
    if (stopper) return stopper.abort();
    stopper = new AbortController();
    show();
    button.title = "";
    try {
      await writePoems(stopper.signal);
    } catch (error) {
      if (error.name !== "AbortError") button.title = error.message;
    }
    stopper = null;
    show();
  });
  show();
}

/** In one request: a browser opens six connections to a server, and one of them must be left to watch. */
async function writePoems(signal) {
  const prompt = TOPICS.map((topic) => `${BEGINNING}${topic}:\n`);
  const body = { model: settings.model, prompt, max_tokens: 200, temperature: 0.8, stream: true };
  const response = await call("/v1/completions", { body, signal });
  for await (const _ of events(response)); // only its passing matters
}
