"""Measurements inside the page: contrast of texts and marks, overflow, layout shifts."""

from __future__ import annotations

PARTS = """
const channels = (colour) => {
  const parts = (colour.match(/[\\d.]+/g) ?? []).map(Number);
  return colour.startsWith("color(srgb")
    ? parts.map((part, i) => (i < 3 ? 255 * part : part)) : parts;
};
const blend = ([r, g, b, a = 1], background) => [r, g, b]
  .map((part, i) => a * part + (1 - a) * background[i]);
const luminance = (colour) => colour
  .map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const backgroundOf = (element) => {
  const backgrounds = [];
  for (let at = element; at; at = at.parentElement)
    backgrounds.push(channels(getComputedStyle(at).backgroundColor));
  return backgrounds.reverse()
    .reduce((under, background) => blend(background, under), [255, 255, 255]);
};
"""
"""WCAG 2.2, relative luminance and contrast ratio"""

LOWEST_TEXT_CONTRAST = f"""(() => {{
{PARTS}
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let lowest = [21, ""];
while (texts.nextNode()) {{
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.textContent.trim() || !element.checkVisibility()) continue;
  if (element.closest(".visually-hidden, noscript")) continue;
  const style = getComputedStyle(element);
  const colour = channels(element instanceof SVGElement ? style.fill : style.color);
  const background = backgroundOf(element);
  const ratio = contrast(blend(colour, background), background);
  if (ratio < lowest[0]) lowest = [ratio, texts.currentNode.textContent];
}}
return lowest;
}})()"""
"""[the smallest contrast of any text that is shown, that text]"""

LOWEST_MARK_CONTRAST = f"""(() => {{
{PARTS}
const paint = document.createElement("i");
document.body.append(paint);
const background = channels(getComputedStyle(document.querySelector("section")).backgroundColor);
const ratios = Array.from({{length: 10}}, (_, i) => {{
  paint.style.color = `var(--c${{i}})`;
  return [contrast(channels(getComputedStyle(paint).color), background), i];
}});
paint.remove();
return ratios.sort(([a], [b]) => a - b)[0];
}})()"""
"""[the smallest contrast of a cluster's colour on a panel, which colour]"""

OVERFLOWING = """(() => {
const beyond = (element) => element.getBoundingClientRect().right > innerWidth + 0.5;
const clipped = (element) => {
  for (let at = element.parentElement; at && at !== document.body; at = at.parentElement) {
    if (getComputedStyle(at).overflowX !== 'visible' && !beyond(at)) return true;
  }
  return false;
};
return [...document.querySelectorAll('body *')]
  .filter(element => element.checkVisibility() && beyond(element)
  && !element.closest('.visually-hidden, #map-frame') && !clipped(element))
  .map(element => element.outerHTML.slice(0, 80));
})()"""
"""elements that extend beyond the right edge of the window, and that nothing within it clips"""

WITHOUT_NAME = """[
  ...document.querySelectorAll('button, a, input, select, canvas, [role=region]')
].filter(element =>
  !(element.textContent.trim() || element.getAttribute('aria-label') || element.labels?.length
    || element.hasAttribute('aria-labelledby'))).map(element => element.outerHTML.slice(0, 80))"""
"""focusable elements without an accessible name"""

OBSERVE = """void (() => {
window.observed = {shift: 0, shown: new Set(), frames: 0};
const observe = (type, note) => new PerformanceObserver(
  list => list.getEntries().forEach(note)).observe({type});
observe('layout-shift', ({value}) => observed.shift += value);
const counters = document.getElementById('counters');
new MutationObserver(() => observed.shown.add(counters.lastChild.children[1].textContent))
  .observe(counters, {subtree: true, characterData: true, childList: true});
const frame = () => { observed.frames += 1; requestAnimationFrame(frame); };
frame();
})()"""
"""records from now on, in `observed`: layout shift, versions shown, frames"""
