// A small line of how the share of a cluster has moved, with the same in words for screen readers.

import { make, setText } from "./format.js";
import { markOf } from "./marks.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 96;
const HEIGHT = 22;
const INSET = 2.5;

export function sparkline() {
  const frame = document.createElementNS(SVG, "svg");
  frame.setAttribute("class", "sparkline");
  frame.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  frame.setAttribute("aria-hidden", "true");
  for (const part of ["path", "circle"]) frame.append(document.createElementNS(SVG, part));
  return make("span", { class: "trend" }, frame, make("span", { class: "visually-hidden" }));
}

// trend: share of each step in thousandths, null where there were no readings; all lines have the scale 0 to `highest`.
export function fillSparkline(holder, { trend, trend_text: text, slot }, highest) {
  const [frame, words] = holder.children;
  setText(words, text || "not known yet");
  holder.title = text;
  const [line, dot] = frame.children;
  const x = (place) => INSET + (place / Math.max(1, trend.length - 1)) * (WIDTH - 2 * INSET);
  const y = (share) => HEIGHT - INSET - (share / Math.max(1, highest)) * (HEIGHT - 2 * INSET);
  const points = trend.map((share, place) => (share === null ? null : [x(place), y(share)])).filter(Boolean);
  const drawn = points.map(([across, up], i) => `${i ? "L" : "M"}${across.toFixed(1)} ${up.toFixed(1)}`).join("");
  line.setAttribute("d", drawn);
  const colour = `c${markOf(slot).colour}`;
  line.setAttribute("class", `line ${colour}`);
  dot.setAttribute("class", `dot ${colour}`);
  const [across, up] = points.at(-1) ?? [0, 0];
  for (const [name, value] of [["cx", across], ["cy", up], ["r", points.length ? 2.5 : 0]]) dot.setAttribute(name, value);
}
