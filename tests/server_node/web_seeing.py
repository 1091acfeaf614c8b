"""What eyes would see, measured inside the page: contrast of its text, overflow, shifts, and work that stalls it."""

from __future__ import annotations

PARTS = """
const parts = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
const over = ([r, g, b, a = 1], ground) => [r, g, b].map((part, i) => a * part + (1 - a) * ground[i]);
const luminance = (colour) => colour
  .map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const groundOf = (element) => {
  const grounds = [];
  for (let at = element; at; at = at.parentElement) grounds.push(parts(getComputedStyle(at).backgroundColor));
  return grounds.reverse().reduce((under, ground) => over(ground, under), [255, 255, 255]);
};
"""
"""WCAG 2.2, relative luminance and contrast ratio"""

WORST_TEXT = f"""(() => {{
{PARTS}
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let worst = [21, ""];
while (texts.nextNode()) {{
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.textContent.trim() || !element.checkVisibility()) continue;
  if (element.closest(".unseen, noscript")) continue;
  const style = getComputedStyle(element);
  const ink = parts(element instanceof SVGElement ? style.fill : style.color);
  const ground = groundOf(element);
  const ratio = contrast(over(ink, ground), ground);
  if (ratio < worst[0]) worst = [ratio, texts.currentNode.textContent];
}}
return worst;
}})()"""
"""[the smallest contrast of any text that is shown, that text]"""

WORST_MARK = f"""(() => {{
{PARTS}
const paint = document.createElement("i");
document.body.append(paint);
const ground = parts(getComputedStyle(document.querySelector("section")).backgroundColor);
const ratios = Array.from({{length: 10}}, (_, i) => {{
  paint.style.color = `var(--c${{i}})`;
  return [contrast(parts(getComputedStyle(paint).color), ground), i];
}});
paint.remove();
return ratios.sort(([a], [b]) => a - b)[0];
}})()"""
"""[the smallest contrast of a cluster's colour on a panel, which colour]"""

CUT_OFF = """[...document.querySelectorAll('body *')].filter(element => element.checkVisibility()
  && !element.closest('.scroll, .unseen, [role=tablist], #map-frame')
  && element.getBoundingClientRect().right > innerWidth + 0.5).map(element => element.outerHTML.slice(0, 80))"""
"""what sticks out of the window on the right"""

UNNAMED = """[...document.querySelectorAll('button, a, input, select, canvas, [role=region]')].filter(element =>
  !(element.textContent.trim() || element.getAttribute('aria-label') || element.labels?.length
    || element.hasAttribute('aria-labelledby'))).map(element => element.outerHTML.slice(0, 80))"""
"""what can be reached with the keyboard and has no name to say"""

WATCH = """void (() => {
window.seen = {shift: 0, long: 0, shown: new Set(), frames: 0};
const watch = (type, note) => new PerformanceObserver(list => list.getEntries().forEach(note)).observe({type});
watch('layout-shift', ({value}) => seen.shift += value);
watch('longtask', () => seen.long += 1);
const counters = document.getElementById('counters');
new MutationObserver(() => seen.shown.add(counters.lastChild.children[1].textContent))
  .observe(counters, {subtree: true, characterData: true, childList: true});
const frame = () => { seen.frames += 1; requestAnimationFrame(frame); };
frame();
})()"""
"""from here on the page counts: how far things jumped, tasks over 50 ms, versions shown, frames"""
