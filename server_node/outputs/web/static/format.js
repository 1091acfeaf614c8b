// Formats numbers and times, builds elements, and draws the marks of clusters. Text is only ever set as text, never as
// markup.

export const SVG = "http://www.w3.org/2000/svg";
export const at = (id) => document.getElementById(id);
const integer = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const fiveDigits = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 5 });
const compact = new Intl.NumberFormat("en-GB", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (number) => integer.format(number);
// For a counter of limited width: exact up to ten million, then three digits.
export const short = (number) => (number < 1e7 ? integer : compact).format(number);
export const value = (number) => fiveDigits.format(number);
export const fixed = (number, digits) =>
  number.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
// A value of a feature: a number with its digits, or what the contract calls the value of a category.
export const shown = (number, { digits, values }) =>
  values ? values[Math.min(Math.max(Math.round(number), 0), values.length - 1)] : fixed(number, digits);
// The centre of a cluster in one feature; of readings at a bound of the contract, which count as it, what is known of them.
export const centreText = ({ centre, at_bounds: sides = {} }, feature, j, signs = { low: "≤ ", high: "≥ " }) =>
  `${signs[sides[feature.name]] ?? ""}${shown(centre[j], feature)}`;
export const percent = (share) => `${share > 0 && share < 0.005 ? "< 1" : Math.round(share * 100)} %`;
// Whole percents of shares, which add up to those of their sum: the largest remainders are rounded up.
export function wholePercents(shares) {
  const exact = shares.map((share) => 100 * share);
  const whole = exact.map(Math.floor);
  const missing = Math.round(exact.reduce((sum, each) => sum + each, 0)) - whole.reduce((sum, each) => sum + each, 0);
  const order = exact.map((_, i) => i).sort((a, b) => whole[a] - exact[a] - (whole[b] - exact[b]));
  for (const i of order.slice(0, missing)) whole[i] += 1;
  return whole;
}
// `whole` is the share in whole percents.
export const percentText = (whole, share) => `${share > 0 && !whole ? "< 1" : whole} %`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
// By the name that people gave it, else by what sets it apart; the identity is its number on the map, and tells two of the
// same name apart.
export function clusterTitle({ identity, name, label }) {
  return name || label ? `${name || label} (${identity})` : String(identity);
}

// Columns of people's files often have the unit in their name: "RH (%)".
export function featureLabel({ name, unit }) {
  return !unit || name.endsWith(`(${unit})`) || name.endsWith(`[${unit}]`) || name.endsWith(` ${unit}`) ? name : `${name} (${unit})`;
}

// Beside a value that has the unit already.
export function featureName({ name, unit }) {
  const end = unit ? [`(${unit})`, `[${unit}]`, ` ${unit}`].find((text) => name.endsWith(text)) : undefined;
  return (end && name.slice(0, -end.length).trimEnd()) || name;
}

export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

// Two digits are enough for a rate; 0 is shown only where it is 0.
export function rate(perSecond) {
  if (perSecond >= 100) return count(perSecond);
  if (perSecond >= 10 || perSecond === 0) return perSecond.toFixed(0);
  return perSecond.toFixed(1);
}

export const clock = (date) => date.toLocaleTimeString("en-GB");

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Keeps one child of `parent` per item, in order, and updates each with `fill`.
// An element is kept as long as its item, so that focus, hover and selected text survive an update. Moving an element
// takes the focus away from it, so it is given back.
export function reconcile(parent, items, key, build, fill) {
  const focused = document.activeElement;
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, place) => {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = build(item);
      child.dataset.key = name;
    }
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
    fill(child, item);
  });
  for (const child of old.values()) child.remove();
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

export const COLOURS = 10; // after them, other shapes tell clusters apart
const CORNERS = [
  null, // a disc
  [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
  [[0, -1.2], [1.15, 0.85], [-1.15, 0.85]],
];

// The mark of a cluster by its slot: one of the ten colours, the corners of the shape (null: a disc), and whether it is only an outline.
export function markOf(slot) {
  const shape = Math.floor(slot / COLOURS) % (2 * CORNERS.length);
  return { colour: slot % COLOURS, corners: CORNERS[shape >> 1], hollow: shape % 2 === 1 };
}

// The slot by which a part of the cluster with this slot is drawn.
export const partSlot = (slot, number) => (slot ?? 0) + number - 1;

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
