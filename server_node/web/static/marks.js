// The mark of a cluster: one of ten colours, and of eight shapes once the colours are used up.

const SVG = "http://www.w3.org/2000/svg";
export const COLOURS = 10;
const CORNERS = [
  null, // a disc
  [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
  [[0, -1.2], [1.15, 0.85], [-1.15, 0.85]],
];

// slot -> one of the ten colours, the corners of the shape (null: a disc), and whether it is only an outline.
export function markOf(slot) {
  const shape = Math.floor(slot / COLOURS) % (2 * CORNERS.length);
  return { colour: slot % COLOURS, corners: CORNERS[shape >> 1], hollow: shape % 2 === 1 };
}

// Adds the outline of a mark to the path of a canvas context.
export function trace(context, { corners }, x, y, radius) {
  context.beginPath();
  if (!corners) return context.arc(x, y, radius, 0, 2 * Math.PI);
  corners.forEach(([dx, dy], i) => context[i ? "lineTo" : "moveTo"](x + radius * dx, y + radius * dy));
  context.closePath();
}

// An element that shows a mark in a table; `fillSwatch` sets which.
export function swatch() {
  const frame = document.createElementNS(SVG, "svg");
  frame.setAttribute("class", "swatch");
  frame.setAttribute("viewBox", "-8 -8 16 16");
  frame.setAttribute("aria-hidden", "true");
  return frame;
}

export function fillSwatch(frame, slot) {
  if (frame.dataset.slot === String(slot)) return;
  frame.dataset.slot = slot;
  const { colour, corners, hollow } = markOf(slot);
  const shape = document.createElementNS(SVG, corners ? "polygon" : "circle");
  if (corners) shape.setAttribute("points", corners.map(([x, y]) => `${5 * x},${5 * y}`).join(" "));
  else shape.setAttribute("r", 5);
  shape.setAttribute("class", `mark c${colour}${hollow ? " hollow" : ""}`);
  frame.replaceChildren(shape);
}
