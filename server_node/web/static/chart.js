// The chart of the number of clusters over time, a step function.

import { duration } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 30;
const BOTTOM = 20;
const TOP = 6;

function shape(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  element.textContent = text;
  return element;
}

function ticks(highest) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((size) => highest / size <= 4) ?? Math.ceil(highest / 4);
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, i) => i * step);
}

export function drawHistory(frame, history, now) {
  const { width, height } = frame.getBoundingClientRect();
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const start = history.length ? history[0][0] : now;
  const end = Math.max(now, start + 1);
  const highest = Math.max(2, ...history.map(([, clusters]) => clusters));
  const x = (time) => LEFT + ((Math.min(time, end) - start) / (end - start)) * (width - LEFT);
  const y = (clusters) => height - BOTTOM - (clusters / highest) * (height - BOTTOM - TOP);
  for (const tick of ticks(highest)) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: width, y1: y(tick), y2: y(tick) }));
    svg.append(shape("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, tick));
  }
  if (history.length) {
    const steps = history.map(([time, clusters], i) => `${i ? "H" : "M"}${x(time)}${i ? "V" : " "}${y(clusters)}`);
    const line = `${steps.join("")}H${x(end)}`;
    svg.append(shape("path", { class: "under", d: `${line}V${y(0)}H${x(start)}Z` }));
    svg.append(shape("path", { class: "steps", d: line }));
    svg.append(shape("text", { x: LEFT, y: height - 3 }, `${duration(end - start)} ago`));
    svg.append(shape("text", { x: width, y: height - 3, "text-anchor": "end" }, "now"));
    const latest = history[history.length - 1][1];
    svg.setAttribute("aria-label", `From ${history[0][1]} to ${latest} clusters in ${duration(end - start)}`);
  }
  if (!history.length) svg.append(shape("text", { x: (LEFT + width) / 2, y: (height - BOTTOM) / 3, "text-anchor": "middle" }, "No clusters yet"));
  frame.replaceChildren(svg);
}
