// Numbers for people.

export function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

/** Seconds. */
export function duration(value) {
  if (value === null) return "–";
  if (value === 0) return "0";
  const [scaled, unit] = value < 0.001 ? [value * 1e6, "µs"] : value < 1 ? [value * 1e3, "ms"] : [value, "s"];
  return `${Number(scaled.toPrecision(3))} ${unit}`;
}

export function percent(part, whole) {
  if (whole === 0) return "–";
  const digits = part > 0 && part / whole < 0.1 ? 1 : 0;
  return `${((100 * part) / whole).toFixed(digits)} %`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
