// Formats numbers and times, and builds elements. Text is only ever set as text, never as markup.

const integer = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const fiveDigits = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 5 });
const compact = new Intl.NumberFormat("en-GB", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (number) => integer.format(number);
// For a counter of limited width: exact up to ten million, then three digits.
export const short = (number) => (number < 1e7 ? integer : compact).format(number);
export const value = (number) => fiveDigits.format(number);
export const fixed = (number, digits) =>
  number.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const percent = (share) => `${share > 0 && share < 0.005 ? "< 1" : Math.round(share * 100)} %`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
// By the name that people gave it, else by what sets it apart; the identity is its number on the map, and tells two of the
// same name apart.
export function clusterTitle({ identity, name, label }) {
  return name || label ? `${name || label} (${identity})` : String(identity);
}

export const featureLabel = (feature) => (feature.unit ? `${feature.name} (${feature.unit})` : feature.name);

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
