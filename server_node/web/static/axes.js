// The two axes of the map: the server's projection of all features, or features that the user chose.

import { fixed, featureLabel } from "./format.js";

// One axis: `at` (a coordinate per node), its label, and whether its coordinates are shown as numbers.
export function axisOf(clustering, which, name) {
  const j = clustering.features.findIndex((feature) => feature.name === name);
  if (name && j >= 0) return { label: featureLabel(clustering.features[j]), at: clustering.nodes.values.map((row) => row[j]), numbered: true };
  return { label: clustering.axes[which], at: which ? clustering.nodes.y : clustering.nodes.x, numbered: clustering.explained_variance === null };
}

export function extent(numbers) {
  let [low, high] = [Infinity, -Infinity];
  for (const number of numbers) [low, high] = [Math.min(low, number), Math.max(high, number)];
  return low <= high ? [low, high] : [0, 1];
}

export function padded([low, high]) {
  const margin = 0.08 * (high - low) || Math.abs(low) * 0.1 || 0.5;
  return [low - margin, high + margin];
}

// The span [low, high] of `size` around its middle.
export const spanAround = (middle, size) => [middle - size / 2, middle + size / 2];

// Whether a view still fits points of this extent: all lie within it and fill enough of it.
export function fits(view, span) {
  return view && span[0] >= view[0] && span[1] <= view[1] && span[1] - span[0] > 0.6 * (view[1] - view[0]);
}

// Round numbers within a span, about `wanted` of them, each with its text.
function ticks([low, high], wanted) {
  const rough = (high - low) / Math.max(2, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= rough);
  const first = Math.ceil(low / step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const marks = Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
  return marks.map((mark) => [mark, fixed(mark, Math.min(digits, 12))]);
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

// Draws grid, numbers and labels. `axes` as returned by `axisOf`, `box` in pixels, `spans` the range of each axis.
export function drawAxes(context, colour, axes, box, spans) {
  const { left, right, top, bottom } = box;
  const x = (mark) => Math.round(left + ((mark - spans.x[0]) / (spans.x[1] - spans.x[0])) * (right - left)) + 0.5;
  const y = (mark) => Math.round(bottom - ((mark - spans.y[0]) / (spans.y[1] - spans.y[0])) * (bottom - top)) + 0.5;
  context.font = "12px system-ui, 'Liberation Sans', sans-serif";
  context.strokeStyle = colour.line;
  context.fillStyle = colour.quiet;
  context.lineWidth = 1;
  context.beginPath();
  context.textAlign = "center";
  for (const [mark, text] of ticks(spans.x, (right - left) / 90)) {
    context.moveTo(x(mark), top);
    context.lineTo(x(mark), bottom);
    if (axes[0].numbered) context.fillText(text, x(mark), bottom + 16);
  }
  context.textAlign = "right";
  for (const [mark, text] of ticks(spans.y, (bottom - top) / 60)) {
    context.moveTo(left, y(mark));
    context.lineTo(right, y(mark));
    if (axes[1].numbered) context.fillText(text, left - 6, y(mark) + 4);
  }
  context.stroke();
  context.textAlign = "center";
  context.fillText(shortened(context, axes[0].label, right - left), (left + right) / 2, bottom + (axes[0].numbered ? 36 : 18));
  context.save();
  context.translate(12, (top + bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(shortened(context, axes[1].label, bottom - top), 0, 0);
  context.restore();
}
