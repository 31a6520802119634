// Icons as strokes in a square of 24, in the colour of the text around them.

import { draw } from "./dom.js";

const PATHS = {
  send: ["M12 19V5", "M5.500 11.500L12 5l6.500 6.500"],
  stop: ["M8 8h8v8H8z"],
  copy: ["M9 9h10v10H9z", "M5 15V5h10"],
  done: ["M5 12.500l4.500 4.500L19 7.500"],
  retry: ["M19.500 12a7.500 7.500 0 1 1-2.200-5.300", "M19.500 3.500v4h-4"],
  settings: ["M4 7h9", "M17 7h3", "M15 5v4", "M4 17h3", "M11 17h9", "M9 15v4"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  tool: ["M8 4C5 4 6.500 11 4 12c2.500 1 1 8 4 8", "M16 4c3 0 1.500 7 4 8-2.500 1-1 8-4 8", "M10 12h4"],
  alert: ["M12 4.500l8.500 15h-17z", "M12 10v4", "M12 16.800v.2"],
  auto: ["M12 4a8 8 0 1 0 0 16z", "M12 4a8 8 0 0 1 0 16"],
  light: ["M12 8.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7z", "M12 3v2M12 19v2M3 12h2M19 12h2M5.600 5.600L7 7M17 17l1.400 1.400M5.600 18.400L7 17M17 7l1.400-1.400"],
  dark: ["M19.500 14.500A8 8 0 0 1 9.500 4.500a8 8 0 1 0 10 10z"],
};
const FILLED = new Set(["stop"]);

export function icon(name, size = 18) {
  const strokes = PATHS[name].map((d) => draw("path", { d }));
  const fill = FILLED.has(name) ? "currentColor" : "none";
  return draw(
    "svg",
    { viewBox: "0 0 24 24", width: size, height: size, fill, stroke: "currentColor", "stroke-width": 1.8,
      "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
    ...strokes,
  );
}
