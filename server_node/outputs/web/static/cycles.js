// The usual day and week of features: a line at what is usual in each phase, and a bar for how far single days lie from it.

import { at, make, reconcile, setText, SVG } from "./format.js";

const [PHASE, HEIGHT] = [10, 30];

export function showCycles(model) {
  const cycles = (model.waiting_for ? null : model.clustering?.cycles) ?? [];
  at("cycles-panel").hidden = !cycles.length;
  setText(at("cycles-features"), [...new Set(cycles.map(({ feature }) => feature))].join(", "));
  reconcile(at("cycles-list"), cycles, ({ feature, period }) => `${feature}/${period}`, newItem, (item, cycle) => {
    setText(item.firstChild, cycle.text);
    draw(item.lastChild, cycle);
  });
}

function newItem() {
  const frame = document.createElementNS(SVG, "svg");
  frame.setAttribute("preserveAspectRatio", "none");
  frame.setAttribute("aria-hidden", "true"); // the text has the same
  frame.append(document.createElementNS(SVG, "path"), document.createElementNS(SVG, "path"));
  return make("li", {}, make("span"), frame);
}

function draw(frame, { profile, spread }) {
  frame.setAttribute("viewBox", `0 0 ${PHASE * profile.length} ${HEIGHT}`);
  const low = Math.min(...profile.map((mean, i) => mean - spread[i]));
  const high = Math.max(...profile.map((mean, i) => mean + spread[i]));
  const y = (number) => (HEIGHT - 2 - ((HEIGHT - 4) * (number - low)) / (high - low || 1)).toFixed(2);
  const bar = (mean, i) => `M${PHASE * i + 1} ${y(mean - spread[i])}h${PHASE - 2}V${y(mean + spread[i])}h${2 - PHASE}z`;
  frame.children[0].setAttribute("d", profile.map(bar).join(""));
  frame.children[1].setAttribute("d", profile.map((mean, i) => `M${PHASE * i + 1} ${y(mean)}h${PHASE - 2}`).join(""));
}
