// What is drawn across the bands of clusters over time: lines at the ticks of the axis, and curves from a cluster to one that
// parted from it, and from a merged one to the one that took it.

import { markOf } from "./marks.js";

const SVG = "http://www.w3.org/2000/svg";
const BEND = 14; // pixels over which a curve leaves a band
const at = (id) => document.getElementById(id);
let [curves, ticks] = [[], []];

// `nextTicks` have their `place` in the time shown from 0 to 1. `next`: the identities of the rows that a curve goes `from` and `to`, its `place` in the time shown from 0 to 1, the `slot`
// of the cluster that it is coloured as, and whether it is `faded`.
export function showPartings(next, nextTicks) {
  [curves, ticks] = [next, nextTicks];
  draw();
}

function draw() {
  const frame = at("lives-frame").getBoundingClientRect();
  drawTicks(frame);
  const rows = new Map([...at("lives-rows").rows].map((row) => [row.dataset.key, row]));
  const drawing = at("partings").querySelector("g");
  const missing = curves.length - drawing.children.length;
  for (let i = 0; i < missing; i += 1) drawing.append(document.createElementNS(SVG, "path"));
  [...drawing.children].forEach((path, i) => {
    const curve = curves[i];
    const [from, to] = [rows.get(String(curve?.from)), rows.get(String(curve?.to))];
    if (!from || !to) return path.remove();
    const [first, last] = [from, to].map((row) => row.querySelector(".band").getBoundingClientRect());
    const x = first.left - frame.left + curve.place * first.width;
    const [above, below] = [first, last].map(({ top, height }) => top - frame.top + height / 2);
    path.setAttribute("class", `c${markOf(curve.slot).colour}${curve.faded ? " faded" : ""}`);
    path.setAttribute("d", `M${x - BEND} ${above}C${x - 4} ${above} ${x - 10} ${below} ${x} ${below}`);
  });
}

function drawTicks(frame) {
  const band = at("lives-axis").getBoundingClientRect();
  const bottom = at("moment").getBoundingClientRect().top - frame.top;
  const lines = ticks.map(({ place }) => `M${(band.left - frame.left + place * band.width).toFixed(1)} ${(band.bottom - frame.top).toFixed(1)}V${bottom.toFixed(1)}`);
  at("tick-lines").setAttribute("d", lines.join(""));
}

new ResizeObserver(draw).observe(at("lives"));
