// What is drawn across the bands of clusters over time: lines at the ticks of the axis, and curves from a cluster to one that
// parted from it, and from a merged one to the one that took it.

import { markOf } from "./marks.js";

const SVG = "http://www.w3.org/2000/svg";
const ROOM_MIN = 500; // pixels; where there is less, words stand between the bands, and curves would go through them
const BEND = 14; // pixels over which a curve leaves a band
const at = (id) => document.getElementById(id);
let [every, ticks] = [[], []];

// `nextTicks` have their `place` in the time shown from 0 to 1. `next`: the identities of the rows that a curve goes `from` and `to`, its `place` in the time shown from 0 to 1, the `slot`
// of the cluster that it is coloured as, and whether it is `faded`.
export function showPartings(next, nextTicks) {
  [every, ticks] = [next, nextTicks];
  draw();
}

function draw() {
  const frame = at("lives-frame").getBoundingClientRect();
  drawTicks(frame);
  const curves = frame.width < ROOM_MIN ? [] : every;
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

// A line through each band, so that none goes through the words between bands that stand below them.
function drawTicks(frame) {
  const bands = [...at("lives").querySelectorAll("tbody .band")].map((band) => band.getBoundingClientRect()).filter(({ height }) => height);
  const lines = bands.flatMap(({ left, top, width, height }) => ticks.map(({ place }) => `M${(left - frame.left + place * width).toFixed(1)} ${(top - frame.top).toFixed(1)}v${height.toFixed(1)}`));
  at("tick-lines").setAttribute("d", lines.join(""));
}

new ResizeObserver(draw).observe(at("lives"));
