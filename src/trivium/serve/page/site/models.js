// Which models there are to choose from.

import { call } from "./api.js";
import { byId, make } from "./dom.js";
import { change, settings } from "./settings.js";

export async function loadModels() {
  const select = byId("model");
  const { data } = await (await call("/v1/models")).json();
  select.replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
  if (!data.some(({ id }) => id === settings.model)) change({ model: data[0]?.id ?? "" });
  select.value = settings.model;
  select.disabled = data.length < 2;
}

export function startModelChoice() {
  byId("model").addEventListener("change", (event) => change({ model: event.target.value }));
}
