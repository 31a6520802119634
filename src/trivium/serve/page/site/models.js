// Which models there are to choose from, and the one that is chosen: the chat asks it, and the feed watches it.

import { call } from "./api.js";
import { byId, make } from "./dom.js";
import { change, onChange, settings } from "./settings.js";

export function startModels(feed) {
  const select = byId("model");
  let isLoading = false;
  // Before the models are known, the feed watches the default one; and again when the chosen one is served no longer.
  feed.listen(async ({ view, watched }) => {
    if (watched !== null || !view?.model || isLoading) return;
    isLoading = true;
    try {
      await loadModels(select);
      feed.watch(settings.model);
    } catch {
      // Tried again with the next view.
    }
    isLoading = false;
  });
  select.addEventListener("change", () => change({ model: select.value }));
  select.addEventListener("focus", () => loadModels(select).catch(() => {}));
  onChange(({ model }) => {
    if (feed.watched !== null) feed.watch(model);
  });
}

async function loadModels(select) {
  const { data } = await (await call("/v1/models")).json();
  const options = data.map(({ id, loaded = true }) => make("option", { value: id }, loaded ? id : `${id} (not loaded)`));
  select.replaceChildren(...options);
  if (!data.some(({ id }) => id === settings.model)) change({ model: data[0]?.id ?? "" });
  select.value = settings.model;
  select.disabled = data.length < 2;
}
