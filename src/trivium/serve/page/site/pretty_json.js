// A text that is a JSON object or list, written over several lines; null for any other.

export function prettyJson(text) {
  const trimmed = text.trim();
  if (!/^[{[]/.test(trimmed)) return null;
  try {
    return JSON.stringify(JSON.parse(trimmed), null, 2);
  } catch {
    return null;
  }
}
