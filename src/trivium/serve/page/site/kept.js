// What the browser keeps between visits. A browser that keeps nothing is served all the same.

export function recall(name, otherwise) {
  try {
    const text = localStorage.getItem(`trivium.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(`trivium.${name}`, JSON.stringify(value));
  } catch {
    // Full, or forbidden: then it lives until the page is closed.
  }
}

export function forget(name) {
  try {
    localStorage.removeItem(`trivium.${name}`);
  } catch {
    // It was not kept either.
  }
}
