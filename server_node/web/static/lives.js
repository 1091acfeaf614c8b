// Clusters over time: a row for each, in which a band is as thick as its share of the readings was.

import { clusterTitle, make, percent, plural, reconcile, setText } from "./format.js";
import { fillSwatch, markOf, swatch } from "./marks.js";
import { fillOpened, openedRow } from "./opened.js";
import { SteadyOrder } from "./order.js";
import { NO_CLUSTER, Past } from "./past.js";

const SVG = "http://www.w3.org/2000/svg";
const HOUR = 3600;
const SPANS = [["6 hours", 6 * HOUR, 300], ["1 day", 24 * HOUR, 300], ["1 week", 168 * HOUR, 1800], ["30 days", 720 * HOUR, 1800]];
const ROWS_MAX = 12;
const NAMED_MAX = 4;
const USUAL_GAP = 0.75; // the quantile of the gaps between bins that a bar is as wide as
const WIDTH = 1000; // of a band, in its own units; the browser stretches it
const HEIGHT = 32;
const THINNEST = 1.2; // a cluster that lives but gets no readings is a thin line
const at = (id) => document.getElementById(id);
const day = (seconds, more) => new Date(seconds * 1000).toLocaleString("en-GB", more);
const moment = (seconds) => day(seconds, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export class Lives {
  // `onChoose` gets the identity of the cluster whose name is pressed.
  constructor(onChoose) {
    [this.onChoose, this.span, this.all, this.model, this.chosen] = [onChoose, 1, false, null, null];
    [this.bars, this.zoomed] = [[], false];
    this.past = new Past(() => this.draw());
    this.order = new SteadyOrder(at("lives").tBodies[0]);
    at("all-lives").addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
    at("moment").addEventListener("input", () => this.read());
    at("find-cluster").addEventListener("input", () => this.draw());
    at("spans").append(...SPANS.map(([name], place) => {
      const button = make("button", { type: "button" }, name);
      button.addEventListener("click", () => this.zoom(place));
      return button;
    }));
  }

  zoom(place) {
    [this.span, this.zoomed] = [place, true];
    this.show(this.model);
    this.draw();
  }

  choose(identity) {
    this.chosen = identity;
    this.draw();
  }

  show(model, now = this.now) {
    if (this.model?.name !== model.name) this.all = false;
    [this.model, this.now] = [model, now];
    if (!this.zoomed) this.span = spanOf(model.clustering?.usual);
    const shown = Boolean(model.clustering) && !model.waiting_for;
    at("lives-panel").hidden = !shown;
    const [, length, step] = SPANS[this.span];
    if (shown) this.past.follow(model, step, length);
    if (shown) this.draw();
  }

  // Known clusters, those with readings now first; then ended ones of which the time shown has readings.
  listed() {
    const known = this.model.clustering.clusters;
    const order = (a, b) => Number(b.active) - Number(a.active) || b.recent_share - a.recent_share || b.share - a.share;
    const present = new Set(known.map(({ identity }) => identity));
    const ended = [...this.past.names.values()].filter(({ identity }) => !present.has(identity) && this.first(identity) !== null);
    return [...[...known].sort(order), ...ended.map((each) => ({ ...each, ended: true }))];
  }

  // The start of the first bar with readings of a cluster.
  first(identity) {
    return this.bars.find(({ clusters }) => clusters.has(identity))?.start ?? null;
  }

  // The start of the last one.
  last(identity) {
    return this.bars.findLast(({ clusters }) => clusters.has(identity))?.start ?? null;
  }

  draw() {
    const { model, past } = this;
    if (!model?.clustering) return;
    this.layOut();
    const every = this.order.keep(this.listed(), ({ identity }) => identity, `${model.name}/${this.span}`);
    const query = at("find-cluster").value.trim().toLowerCase();
    const rows = every.filter((cluster) => clusterTitle(cluster).toLowerCase().includes(query));
    const shown = this.all ? rows : rows.filter(({ identity }, place) => place < ROWS_MAX || identity === this.chosen);
    reconcile(
      at("lives").tBodies[0], shown.flatMap((cluster) => (cluster.identity === this.chosen ? [cluster, { cluster }] : [cluster])),
      ({ identity, cluster }) => (cluster ? "opened" : identity),
      (item) => (item.cluster ? openedRow() : this.row(item)),
      (row, item) => (item.cluster ? fillOpened(row, item.cluster, model, this.now) : this.fill(row, item)),
    );
    at("find-cluster").hidden = every.length <= ROWS_MAX;
    at("all-lives").hidden = rows.length <= ROWS_MAX;
    setText(at("all-lives"), this.all ? "Show fewer" : `Show all ${rows.length}`);
    SPANS.forEach((_, place) => (at("spans").children[place].ariaPressed = String(place === this.span)));
    this.axis();
    setText(at("lives-note"), past.failed ? "The history cannot be read at present."
      : this.bars.length ? `A band of full height is ${percent(this.highest)} of the readings.`
      : past.busy ? "" : "The history begins with the next snapshot.");
    this.read();
    const curves = this.curves(shown);
    import("./partings.js").then(({ showPartings }) => showPartings(curves)).catch(() => {}); // the server is away
  }

  // Where one of the clusters shown has parted from another of them, or merged into it, within the time shown.
  curves(shown) {
    const { start, end, step } = this.window;
    const place = (time) => (time - start) / (end - start);
    const slots = new Map(shown.map(({ identity, slot }) => [identity, slot ?? 0]));
    return shown.flatMap(({ identity, parent, ended }) => {
      const first = this.first(identity);
      const into = ended ? this.mergedInto(identity) : null;
      const found = [];
      if (slots.has(parent) && first !== null && first > start) found.push({ from: parent, to: identity, place: place(first), slot: slots.get(identity) });
      if (slots.has(into)) found.push({ from: identity, to: into, place: place(this.last(identity) + step), slot: slots.get(into) });
      return found.map((curve) => ({ ...curve, faded: this.chosen !== null && this.chosen !== curve.from && this.chosen !== curve.to }));
    });
  }

  // The cluster that an ended one merged into, as far as the newest events tell.
  mergedInto(identity) {
    return this.model.clustering.events.findLast(({ kind, cluster }) => kind === "merged" && cluster === identity)?.other ?? null;
  }

  // Bars, and what bands are drawn by: anew only when the bins have changed.
  layOut() {
    const drawn = `${this.past.asked}/${this.past.changes}`;
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    this.bars = bars(this.past, SPANS[this.span][2]);
    const width = this.bars.width;
    const start = this.bars[0]?.start ?? 0;
    this.window = { start, end: (this.bars.at(-1)?.start ?? start) + width, step: width };
    const shares = this.bars.flatMap((bar) => [...bar.clusters.keys()].map((identity) => (identity === NO_CLUSTER ? 0 : shareOf(bar, identity))));
    this.highest = Math.max(...shares, 0.01);
    this.outlines = new Map(); // identity, and whether it has ended -> outline of its band
  }

  outline(cluster) {
    const key = `${cluster.identity}/${cluster.ended}`;
    if (!this.outlines.has(key)) this.outlines.set(key, this.band(cluster));
    return this.outlines.get(key);
  }

  row(cluster) {
    const band = document.createElementNS(SVG, "svg");
    band.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    band.setAttribute("preserveAspectRatio", "none");
    band.setAttribute("aria-hidden", "true");
    band.append(document.createElementNS(SVG, "path"));
    const name = make("button", { type: "button", class: "pin" }, swatch(), make("span"));
    name.addEventListener("click", () => this.onChoose(cluster.identity));
    return make("tr", {}, make("th", { scope: "row" }, name, make("div", { class: "fed" })), make("td", { class: "band" }, band, make("i"), make("i")), make("td", { class: "number" }));
  }

  fill(row, cluster) {
    const [name, band, state] = row.children;
    const parent = this.model.clustering.clusters.find(({ identity }) => identity === cluster.parent);
    if (!cluster.ended) fillSwatch(name.firstChild.firstChild, cluster.slot);
    setText(name.firstChild.lastChild, clusterTitle(cluster));
    name.firstChild.disabled = Boolean(cluster.ended);
    name.firstChild.ariaPressed = String(cluster.identity === this.chosen);
    const took = cluster.ended ? this.titleOf(this.mergedInto(cluster.identity)) : "";
    const words = cluster.ended ? [took ? `merged into ${took}` : "merged or gone"] : [cluster.text, parent ? `parted from ${clusterTitle(parent)}` : ""];
    setText(name.lastChild, words.filter(Boolean).join("; "));
    name.title = name.lastChild.textContent;
    row.classList.toggle("inactive", !cluster.active);
    row.classList.toggle("faded", this.chosen !== null && this.chosen !== cluster.identity);
    const path = band.firstChild.firstChild;
    const outline = this.outline(cluster);
    if (path.getAttribute("d") !== outline) path.setAttribute("d", outline);
    path.setAttribute("class", `life ${cluster.ended ? "" : `c${markOf(cluster.slot).colour}`}`);
    this.mark(band, cluster);
    state.title = cluster.trend_text ?? "";
    setText(state, cluster.ended ? "" : cluster.active ? `${percent(cluster.recent_share)} now` : "quiet");
  }

  // Empty for a cluster that is not known.
  titleOf(identity) {
    const found = this.model.clustering.clusters.find((each) => each.identity === identity);
    return found ? clusterTitle(found) : "";
  }

  // The outline of a band: its share above and below the middle, from its first bar to its last, or to now while it lives.
  band({ identity, ended }) {
    const { start, end, step } = this.window;
    const first = this.first(identity);
    if (first === null) return "";
    const lived = this.bars.filter((bar) => bar.start >= first);
    const last = ended ? this.last(identity) + step : end;
    const x = (time) => (((time - start) / (end - start)) * WIDTH).toFixed(1);
    const [above, below] = [[], []];
    const add = (from, to, thickness) => {
      const [up, down] = [(HEIGHT - thickness) / 2, (HEIGHT + thickness) / 2].map((y) => y.toFixed(1));
      above.push(`${x(from)} ${up}`, `${x(to)} ${up}`);
      below.push(`${x(from)} ${down}`, `${x(to)} ${down}`);
    };
    let reached = first;
    for (const bar of lived.filter((each) => each.start < last)) {
      if (bar.start > reached) add(reached, bar.start, THINNEST);
      add(bar.start, bar.start + step, Math.max(THINNEST, (shareOf(bar, identity) / this.highest) * (HEIGHT - 2)));
      reached = bar.start + step;
    }
    return `M${above.join("L")}L${below.reverse().join("L")}Z`;
  }

  // A ring where a cluster was born or parted from another, a dot where it merged or went, if that is in the time shown.
  mark(cell, cluster) {
    const { start, end, step } = this.window;
    const [, born, ended] = cell.children;
    const first = this.first(cluster.identity);
    const last = cluster.ended ? this.last(cluster.identity) : null;
    born.hidden = first === null || first === start;
    ended.hidden = last === null;
    born.className = `mark born f${markOf(cluster.slot ?? 0).colour}`;
    ended.className = "mark ended";
    born.title = cluster.parent === null || cluster.parent === undefined ? "new here" : "parted from another here";
    ended.title = "merged or gone here";
    const place = (time) => `${(100 * (time - start)) / (end - start)}%`;
    if (!born.hidden) born.style.left = place(first);
    if (!ended.hidden) ended.style.left = place(last + step);
  }

  axis() {
    const { start, end } = this.window;
    const long = end - start > 36 * HOUR;
    const words = (time) => day(time, long ? { weekday: "short", day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" });
    setText(at("lives-from"), this.bars.length ? words(start) : "");
    setText(at("lives-to"), this.bars.length ? words(end) : "");
    const slider = at("moment");
    const bins = Math.max(0, Math.round((end - start) / this.window.step) - 1);
    const atEnd = Number(slider.value) >= Number(slider.max);
    slider.max = bins;
    if (atEnd) slider.value = bins;
    slider.hidden = this.bars.length < 2;
  }

  // What the readings were at the moment of the slider, in words.
  read() {
    const { start, step } = this.window;
    const time = start + Number(at("moment").value) * step;
    const bar = this.bars.find((each) => each.start === time);
    const titles = new Map(this.listed().map((cluster) => [cluster.identity, clusterTitle(cluster)]));
    const largest = bar ? [...bar.clusters].sort(([, a], [, b]) => b - a).slice(0, NAMED_MAX) : [];
    const parts = largest.map(([identity]) => `${identity === NO_CLUSTER ? "no known cluster" : titles.get(identity) ?? identity} ${percent(shareOf(bar, identity))}`);
    const words = `${moment(time)}: ${parts.length ? `${parts.join(", ")} of ${plural(bar.total, "reading")}` : "no readings"}`;
    setText(at("moment-words"), this.bars.length ? words : "");
    at("moment").setAttribute("aria-valuetext", words);
  }
}

// The shortest time that has the whole history of a model, or else the longest.
function spanOf(known) {
  const length = known ? known.newest - known.oldest : 0;
  const place = SPANS.findIndex(([, seconds]) => seconds >= length);
  return place < 0 ? SPANS.length - 1 : place;
}

const shareOf = ({ total, clusters }, identity) => (total ? (clusters.get(identity) ?? 0) / total : 0);

// The bins in the order of time, several in one bar where updates come less often than bins begin. `width`: seconds of a bar.
function bars(past, step) {
  const starts = [...past.bins.keys()].sort((a, b) => a - b);
  const gaps = starts.slice(1).map((start, i) => start - starts[i]).sort((a, b) => a - b);
  const width = gaps[Math.floor(gaps.length * USUAL_GAP)] ?? step;
  const joined = new Map();
  for (const start of starts) {
    const first = Math.floor((start - starts[0]) / width) * width + starts[0];
    const bar = joined.get(first) ?? { start: first, total: 0, clusters: new Map() };
    const { total, clusters } = past.bins.get(start);
    bar.total += total;
    for (const [identity, readings] of clusters) bar.clusters.set(identity, (bar.clusters.get(identity) ?? 0) + readings);
    joined.set(first, bar);
  }
  return Object.assign([...joined.values()], { width });
}
