// Puts the parts together.

import { Chat } from "./chat.js";
import { startComposer } from "./composer.js";
import { byId } from "./dom.js";
import { EngineFeed } from "./engine_feed.js";
import { EngineView } from "./engine_view.js";
import { count } from "./figures.js";
import { startModels } from "./models.js";
import { startSettings } from "./settings_panel.js";
import { startTheme } from "./theme.js";

startTheme(byId("theme"));
startSettings();
const chat = new Chat(() => {});
startComposer(chat);
const feed = new EngineFeed();
startModels(feed);
new EngineView(feed);
startViews();
feed.listen(showPulse);
feed.listen(showModel);
feed.start();

/** The view is named in the address after the #. */
function startViews() {
  const show = () => {
    const name = location.hash === "#engine" ? "engine" : "chat";
    byId("view-chat").hidden = byId("settings").hidden = byId("open-settings").hidden = name !== "chat";
    byId("view-engine").hidden = name !== "engine";
    for (const tab of document.querySelectorAll("[data-view]")) {
      if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    if (name === "chat" && matchMedia("(hover: hover)").matches) byId("message").focus();
  };
  window.addEventListener("hashchange", show);
  show();
}

function showPulse({ view, points, problem }) {
  const live = view?.live;
  const state = view === null ? "away" : live ? (live.running ? "busy" : "ready") : view.state;
  byId("pulse").dataset.state = state;
  byId("pulse-text").textContent = {
    away: problem?.status === 401 ? "needs a key" : "away",
    busy: `${live?.running} running`,
  }[state] ?? state;
  byId("pulse-rate").textContent = state === "busy" ? `· ${Math.round(points.at(-1).generated)} tok/s` : "";
}

function showModel({ view, watched }) {
  if (view === null) return;
  if (view.model === null) {
    chat.served = view.state === "unloaded" ? `${watched} · it is loaded when you ask it` : "The model is being loaded.";
    return;
  }
  const { name, family, task, max_model_len: context, dtype } = view.model;
  const what = task === "generate" ? dtype : "it makes vectors and scores, and does not chat";
  chat.served = `${name} · ${family} · ${what} · ${count(context)} tokens of context`;
}
