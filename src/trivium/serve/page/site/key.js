// The API key: asked for once the server wants one, kept only where the person says so.

import { byId } from "./dom.js";
import { forget, keep, recall } from "./kept.js";

let key = recall("key", "");
let asking = null; // all requests that were refused wait for one answer

export const currentKey = () => key;

/** Resolves to whether there is a new key to try. */
export function askForKey(reason) {
  asking ??= ask(reason).finally(() => (asking = null));
  return asking;
}

function ask(reason) {
  const dialog = byId("key-dialog");
  byId("key-reason").textContent = reason;
  byId("key").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const settle = new AbortController();
    const done = (given) => {
      settle.abort();
      resolve(given);
    };
    byId("key-form").addEventListener("submit", () => {
      key = byId("key").value.trim();
      if (byId("key-keep").checked) keep("key", key);
      else forget("key");
      done(key !== "");
    }, settle);
    byId("key-cancel").addEventListener("click", () => dialog.close(), settle);
    dialog.addEventListener("close", () => done(false), settle);
  });
}
