// What the timeline has besides its rows, loaded after the first picture: curves between clusters, the strip of new readings,
// and the overview of all of the history.

import { at, duration, markOf, percent, setText, SVG } from "./format.js";
import { barsOf, fromTo, LoadedHistory, moment, NO_CLUSTER, shareOf, SHORTEST, steps } from "./history.js";

const ROOM_MIN = 500; // pixels; where there is less, words stand between the bands, and curves would go through them
const BEND = 14; // pixels over which a curve leaves a band
let [every, ticks] = [[], []];

// Draws lines at the ticks of the axis, and curves from a cluster to one that parted from it, and from a merged one to the one
// that took it. `next`: the identities of the rows that a curve goes `from` and `to`, its `place` in the time shown from 0 to 1,
// the `slot` of the cluster that it is coloured as, and whether it is `faded`. `nextTicks` have a `place` too.
export function showPartings(next, nextTicks) {
  [every, ticks] = [next, nextTicks];
  draw();
}

function draw() {
  const frame = at("timeline-frame").getBoundingClientRect();
  drawTicks(frame);
  const curves = frame.width < ROOM_MIN ? [] : every;
  const rows = new Map([...at("timeline-rows").rows].map((row) => [row.dataset.key, row]));
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
  const bands = [...at("timeline").querySelectorAll("tbody .band")].map((band) => band.getBoundingClientRect()).filter(({ height }) => height);
  const lines = bands.flatMap(({ left, top, width, height }) => ticks.map(({ place }) => `M${(left - frame.left + place * width).toFixed(1)} ${(top - frame.top).toFixed(1)}v${height.toFixed(1)}`));
  at("tick-lines").setAttribute("d", lines.join(""));
}

new ResizeObserver(draw).observe(at("timeline"));

const LOWEST_TOP = 0.1; // what the full height is at least, so that a few such readings look few
const row = at("new-readings");

// In each bar of the time shown, the share of readings that fell to no cluster known then.
export function showStrip(bars, window, usual) {
  const [, share, band, since] = row.cells;
  row.hidden = !bars.length;
  const now = usual?.new ?? null;
  const rarely = usual?.new_usual ?? null;
  setText(share.firstChild, now === null ? "" : `${percent(now / 1000)} last hour`);
  setText(share.lastChild, rarely === null ? "" : `up to ${percent(rarely / 1000)} usual`);
  const highest = bars.reduce((most, bar) => (shareOf(bar, NO_CLUSTER) > shareOf(most, NO_CLUSTER) ? bar : most), bars[0] ?? { total: 0 });
  const top = Math.max(LOWEST_TOP, bars.length ? shareOf(highest, NO_CLUSTER) : 0);
  const outline = bars.length ? steps(bars, NO_CLUSTER, window, top) : "";
  const path = band.querySelector("path");
  if (path.getAttribute("d") !== outline) path.setAttribute("d", outline);
  setText(since, `full: ${percent(top)}`);
  setText(band.lastChild, outline ? `At most ${percent(shareOf(highest, NO_CLUSTER))}, ${moment(highest.start)}` : "None in the time shown");
  band.title = band.lastChild.textContent;
}

const REFRESH_MS = 30_000;
const COLOURED_MAX = 12; // clusters, those with the most readings; all others are one grey
const HEIGHT = 100;
const KEYS_MOVE = { ArrowLeft: -0.25, ArrowDown: -0.25, ArrowRight: 0.25, ArrowUp: 0.25, PageDown: -1, PageUp: 1 };
const KEYS_SCALE = { "+": 0.5, "=": 0.5, "-": 2 };
const PRESS_PX = 4; // a pointer that moves less has pressed, not dragged

// All of a model's history in one strip, in which the time shown is a window: drag it, or drag beside it to choose another.
export class Overview {
  // `onZoom` is called when another time was chosen in `span`.
  constructor(span, onZoom) {
    [this.span, this.onZoom, this.from, this.drawn] = [span, onZoom, null, ""];
    this.history = new LoadedHistory(() => this.draw(), REFRESH_MS);
    const strip = at("overview");
    strip.addEventListener("keydown", (event) => this.press(event));
    strip.addEventListener("pointerdown", (event) => this.take(event));
    strip.addEventListener("pointermove", (event) => this.drag(event));
    strip.addEventListener("pointerup", (event) => this.release(event));
    strip.addEventListener("pointercancel", () => this.cancel());
  }

  show(model, span) {
    [this.span, this.model] = [span, model];
    const known = span.newest - span.oldest;
    at("overview-row").hidden = !model.clustering.usual || known < 2 * SHORTEST;
    if (at("overview-row").hidden) return;
    this.history.follow(model, span.whole);
    this.draw();
  }

  draw() {
    const drawn = `${this.history.shown}/${this.history.changes}`;
    if (this.drawn !== drawn) this.paint();
    this.drawn = drawn;
    if (this.from === null) this.frame(this.span.asked);
  }

  // A stack of shares for each bar.
  paint() {
    const bars = barsOf(this.history.columns, this.history.span?.step ?? 1);
    const slots = new Map(this.model.clustering.clusters.map(({ identity, slot }) => [identity, slot]));
    const readings = new Map();
    for (const { clusters } of bars) for (const [identity, number] of clusters) readings.set(identity, (readings.get(identity) ?? 0) + number);
    readings.delete(NO_CLUSTER);
    const most = [...readings].sort(([, a], [, b]) => b - a).slice(0, COLOURED_MAX).map(([identity]) => identity).filter((identity) => slots.has(identity));
    const reached = bars.map(() => 0);
    const { oldest, newest } = this.span;
    const x = (time) => (1000 * (time - oldest)) / (newest - oldest);
    const paths = most.map((identity) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", `c${markOf(slots.get(identity)).colour}`);
      path.setAttribute("d", bars.map((bar, i) => {
        const share = shareOf(bar, identity) * HEIGHT;
        if (!share) return "";
        reached[i] += share;
        return `M${x(bar.start).toFixed(1)} ${(HEIGHT - reached[i]).toFixed(1)}h${x(oldest + bars.width).toFixed(1)}v${share.toFixed(1)}h-${x(oldest + bars.width).toFixed(1)}Z`;
      }).join(""));
      return path;
    });
    at("overview").querySelector("svg").replaceChildren(...paths);
    at("overview-from").textContent = bars.length ? `since ${moment(bars[0].start)}` : "";
  }

  // Shows the window, also in words. `end` is null where it ends now.
  frame({ start, end, length }) {
    const { oldest, newest } = this.span;
    const place = (time) => Math.min(100, Math.max(0, (100 * (time - oldest)) / (newest - oldest)));
    const last = end ?? newest;
    const [before, window, after] = at("overview").querySelectorAll("i");
    before.style.width = `${place(start)}%`;
    window.style.left = `${place(start)}%`;
    window.style.width = `${place(last) - place(start)}%`;
    after.style.left = `${place(last)}%`;
    const strip = at("overview");
    for (const [name, value] of [["min", oldest], ["max", newest], ["now", last]]) strip.setAttribute(`aria-value${name}`, Math.round(value));
    strip.setAttribute("aria-valuetext", `${duration(length)}, ${fromTo(start, last)}${end === null ? ", up to now" : ""}`);
    strip.title = strip.getAttribute("aria-valuetext");
  }

  press(event) {
    const { key } = event;
    const { length } = this.span.asked;
    if (key in KEYS_MOVE) this.span.move(KEYS_MOVE[key]);
    else if (key in KEYS_SCALE) this.span.scale(KEYS_SCALE[key]);
    else if (key === "Home") this.span.choose(length, this.span.oldest + length);
    else if (key === "End") this.span.choose(length);
    else return;
    event.preventDefault();
    this.zoom();
  }

  zoom() {
    this.frame(this.span.asked);
    this.onZoom();
  }

  timeAt({ clientX }) {
    const { left, width } = at("overview").getBoundingClientRect();
    return this.span.oldest + Math.min(1, Math.max(0, (clientX - left) / width)) * (this.span.newest - this.span.oldest);
  }

  // A drag that begins in the window moves it; one that begins beside it, or where the window is everything, spans another.
  take(event) {
    if (event.button) return;
    const { start, end, length } = this.span.asked;
    const time = this.timeAt(event);
    const last = end ?? this.span.newest;
    const moves = time >= start && time <= last && length < this.span.newest - this.span.oldest;
    this.from = { x: event.clientX, time, last: moves ? last : null, next: null };
    event.preventDefault(); // else the browser selects text, and then drags that
    at("overview").focus({ preventScroll: true });
    at("overview").setPointerCapture(event.pointerId);
  }

  drag(event) {
    if (this.from === null || (!this.from.next && Math.abs(event.clientX - this.from.x) < PRESS_PX)) return;
    const { time: first, last } = this.from;
    const time = this.timeAt(event);
    const { oldest, newest, asked: { length } } = this.span;
    const next = last === null ? [Math.min(first, time), Math.max(first, time)] : [last + time - first - length, last + time - first];
    if (last !== null) {
      const beyond = Math.max(0, oldest - next[0]) - Math.max(0, next[1] - newest);
      [0, 1].forEach((i) => (next[i] += beyond));
    }
    this.from.next = next;
    this.frame({ start: next[0], end: next[1], length: next[1] - next[0] });
  }

  // A press beside the window, without a drag, moves the window there.
  release(event) {
    if (this.from === null) return;
    const { next, last } = this.from;
    const { length } = this.span.asked;
    this.from = null;
    if (next) this.span.choose(next[1] - next[0], next[1]);
    else if (last === null) this.span.choose(length, this.timeAt(event) + length / 2);
    this.zoom();
  }

  cancel() {
    this.from = null;
    this.frame(this.span.asked);
  }
}
