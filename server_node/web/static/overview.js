// All of a model's history in one strip, in which the time shown is a window: drag it, or drag beside it to choose another.

import { barsOf, shareOf } from "./bars.js";
import { duration } from "./format.js";
import { markOf } from "./marks.js";
import { NO_CLUSTER, Past } from "./past.js";
import { SHORTEST } from "./span.js";
import { fromTo, moment } from "./times.js";

const SVG = "http://www.w3.org/2000/svg";
const REFRESH_MS = 30_000;
const COLOURED_MAX = 12; // clusters, those with the most readings; all others are one grey
const HEIGHT = 100;
const KEYS_MOVE = { ArrowLeft: -0.25, ArrowDown: -0.25, ArrowRight: 0.25, ArrowUp: 0.25, PageDown: -1, PageUp: 1 };
const KEYS_SCALE = { "+": 0.5, "=": 0.5, "-": 2 };
const PRESS_PX = 4; // a pointer that moves less has pressed, not dragged
const at = (id) => document.getElementById(id);

export class Overview {
  // `onZoom` is called when another time was chosen in `span`.
  constructor(span, onZoom) {
    [this.span, this.onZoom, this.from, this.drawn] = [span, onZoom, null, ""];
    this.past = new Past(() => this.draw(), REFRESH_MS);
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
    this.past.follow(model, span.whole);
    this.draw();
  }

  draw() {
    const drawn = `${this.past.shown}/${this.past.changes}`;
    if (this.drawn !== drawn) this.paint();
    this.drawn = drawn;
    if (this.from === null) this.frame(this.span.asked);
  }

  // A stack of shares for each bar.
  paint() {
    const bars = barsOf(this.past.columns, this.past.span?.step ?? 1);
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

  // Shows the window, and says it. `end` is null where it ends now.
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
