// Requests to the server that served this page.

import { askForKey, currentKey } from "./key.js";

export class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // 0: no answer came
  }
}

/** The response, once it is a success. With `ask`, a refused key is asked for and tried until one works or none is given. */
export async function call(path, { body, signal, ask = true } = {}) {
  for (;;) {
    const key = currentKey();
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store",
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiFailure(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    const message = await messageOf(response);
    if (response.status !== 401 || !ask) throw new ApiFailure(response.status, message);
    if (currentKey() === key && !(await askForKey(message))) throw new ApiFailure(401, message);
  }
}

async function messageOf(response) {
  try {
    const { error } = await response.json();
    return (typeof error === "string" ? error : error.message) || response.statusText;
  } catch {
    return response.statusText || `The server answered ${response.status}.`;
  }
}
