// The two axes of the map: mixtures of all features as the server made them, or features that somebody chose.

import { fixed, named } from "./format.js";

// What lies along an axis: `at` (a number for each node), its label, and whether its numbers mean anything.
export function axisOf(drawn, which, name) {
  const j = drawn.features.findIndex((feature) => feature.name === name);
  if (name && j >= 0) return { label: named(drawn.features[j]), at: drawn.nodes.values.map((row) => row[j]), numbered: true };
  return { label: drawn.axes[which], at: which ? drawn.nodes.y : drawn.nodes.x, numbered: drawn.spread_shown === null };
}

export function extent(numbers) {
  let [low, high] = [Infinity, -Infinity];
  for (const number of numbers) [low, high] = [Math.min(low, number), Math.max(high, number)];
  return low <= high ? [low, high] : [0, 1];
}

export function padded([low, high]) {
  const room = 0.08 * (high - low) || Math.abs(low) * 0.1 || 0.5;
  return [low - room, high + room];
}

// The span [low, high] of `size` about a middle.
export const about = (middle, size) => [middle - size / 2, middle + size / 2];

// Whether a view still serves points of this extent: none has left it, and they fill enough of it.
export function serves(view, span) {
  return view && span[0] >= view[0] && span[1] <= view[1] && span[1] - span[0] > 0.6 * (view[1] - view[0]);
}

// Round numbers within a span, about as many as wanted, each with its text.
function ticks([low, high], wanted) {
  const rough = (high - low) / Math.max(2, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= rough);
  const first = Math.ceil(low / step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const marks = Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
  return marks.map((mark) => [mark, fixed(mark, Math.min(digits, 12))]);
}

function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
  return `${text.slice(0, end)}…`;
}

// Grid, numbers and labels. `axes` as of `axisOf`, `box` in pixels, `spans` what each axis reaches over.
export function drawAxes(pen, colour, axes, box, spans) {
  const { left, right, top, bottom } = box;
  const x = (mark) => Math.round(left + ((mark - spans.x[0]) / (spans.x[1] - spans.x[0])) * (right - left)) + 0.5;
  const y = (mark) => Math.round(bottom - ((mark - spans.y[0]) / (spans.y[1] - spans.y[0])) * (bottom - top)) + 0.5;
  pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
  pen.strokeStyle = colour.line;
  pen.fillStyle = colour.quiet;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.textAlign = "center";
  for (const [mark, text] of ticks(spans.x, (right - left) / 90)) {
    pen.moveTo(x(mark), top);
    pen.lineTo(x(mark), bottom);
    if (axes[0].numbered) pen.fillText(text, x(mark), bottom + 16);
  }
  pen.textAlign = "right";
  for (const [mark, text] of ticks(spans.y, (bottom - top) / 60)) {
    pen.moveTo(left, y(mark));
    pen.lineTo(right, y(mark));
    if (axes[1].numbered) pen.fillText(text, left - 6, y(mark) + 4);
  }
  pen.stroke();
  pen.textAlign = "center";
  pen.fillText(shortened(pen, axes[0].label, right - left), (left + right) / 2, bottom + (axes[0].numbered ? 36 : 18));
  pen.save();
  pen.translate(12, (top + bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(shortened(pen, axes[1].label, bottom - top), 0, 0);
  pen.restore();
}
