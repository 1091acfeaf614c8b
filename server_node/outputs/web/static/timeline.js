// Clusters over time: a row for each, with its share now, a band that is as thick as its share of the readings was, and what
// is known of the chosen one.

import {
  at, centreText, clusterTitle, duration, featureName, fillSwatch, make, markOf, percent, percentText, plural, reconcile, setText, shown, SVG, swatch,
} from "./format.js";
import {
  barsOf, HEIGHT, highShare, LENGTHS, LoadedHistory, moment, NO_CLUSTER, outlineOf, shareOf, Span, ticksOf, WIDTH,
} from "./history.js";
import { SteadyOrder } from "./sorting.js";

const SPARE = 50; // thousandths beyond what is usual that are not remarkable yet

// The smallest, the mean and the largest share on earlier days of this kind, in thousandths; null until there are some.
function usualOf(usual, identity) {
  return usual?.clusters.find((each) => each.identity === identity)?.range ?? null;
}

// What is usual, in words; empty for null.
function usualWords(range) {
  if (!range) return "";
  const [low, mean, high] = range.map((thousandths) => percent(thousandths / 1000));
  return low === high ? low : `${low} to ${high}, on average ${mean}`;
}

// The cell of a share now: in words, as a bar, and with what is usual at this time of day marked on it.
function shareCell() {
  const bar = make("div", { class: "share-bar", "aria-hidden": "true" }, make("i", { class: "part" }), make("i", { class: "usual" }), make("i", { class: "mean" }));
  return make("td", { class: "share", role: "cell" }, make("b"), make("span", { class: "far" }), bar, make("span", { class: "visually-hidden" }));
}

// `full` is the share from which a bar is full.
function fillShare(cell, cluster, range, full) {
  const [now, far, bar, words] = cell.children;
  const { active, ended, slot, shareNow: share, nowPercent } = cluster;
  const drawn = JSON.stringify([active, ended, slot, share, nowPercent, range, full, cluster.trend_text]);
  if (cell.dataset.drawn === drawn) return; // an element that is set anew is styled anew
  cell.dataset.drawn = drawn;
  const fed = active || nowPercent > 0;
  setText(now, ended ? "" : fed ? percentText(nowPercent, share) : "quiet");
  const beyond = ended || !range ? 0 : 1000 * share > range[2] + SPARE ? 1 : 1000 * share < range[0] - SPARE ? -1 : 0;
  setText(far, beyond ? `! ${beyond > 0 ? "more" : "less"} than usual` : "");
  setText(words, range && !ended ? `, usual at this time ${usualWords(range)}` : "");
  cell.title = [cluster.trend_text, range && !ended ? `usual at this time: ${usualWords(range)}` : ""].filter(Boolean).join("; ");
  bar.hidden = ended || (!fed && !range);
  const [part, usual, mean] = bar.children;
  const place = (part) => `${Math.min(100, (100 * part) / full).toFixed(1)}%`;
  part.className = `part f${markOf(slot ?? 0).colour}`;
  part.style.width = fed ? place(share) : "0";
  [usual.hidden, mean.hidden] = [!range, !range];
  if (!range) return;
  usual.style.left = place(range[0] / 1000);
  usual.style.right = `calc(100% - ${place(range[2] / 1000)})`;
  mean.style.left = place(range[1] / 1000);
}

// The row below that of the chosen cluster: what it is, what it parted from, its share, its clients, its histograms.
function detailsRow() {
  return make("tr", { class: "details", role: "row" }, make("td", { colspan: 4, role: "cell" }, make("dl", { class: "facts" }), make("div", { class: "histograms" }), make("p", { class: "quiet" })));
}

function fillDetails(row, cluster, model, now) {
  const { clusters } = model.clustering;
  const known = facts(cluster, model.clustering, now).filter(([, words]) => words);
  reconcile(
    row.firstChild.firstChild, known, ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (fact, [, words]) => setText(fact.lastChild, words),
  );
  const [, frame, note] = row.firstChild.children;
  setText(note, clusters.length > 1 ? "Coloured: how its readings lie in each feature. Grey: those of all other clusters." : "");
  import("./histograms.js").then(({ showHistograms }) => showHistograms(frame, cluster, model)).catch(() => {}); // the server is away
}

function facts(cluster, { clusters, features, usual }, now) {
  const parent = clusters.find(({ identity }) => identity === cluster.parent);
  const parted = clusters.filter((each) => each.parent === cluster.identity).map(clusterTitle).join(", ");
  const partings = [parent ? `parted from ${clusterTitle(parent)}` : "", parted ? `${parted} parted from it` : ""];
  return [
    ["What sets it apart", cluster.text],
    ["Known for", cluster.since === null ? "" : duration(now - cluster.since)],
    ["Parted", partings.filter(Boolean).join("; ")],
    ["Share", cluster.trend_text],
    ["Usual at this time", usualWords(usualOf(usual, cluster.identity))],
    ["Newest readings from", cluster.fed_by_text],
    ...features.map((feature, j) => [featureName(feature), valuesOf(cluster, feature, j)]),
  ];
}

// The centre, and where the middle 80 % lies.
function valuesOf(cluster, feature, j) {
  const { centre, spread, at_bounds: sides } = cluster;
  if (!centre) return "";
  const words = `${centreText(cluster, feature, j, { low: "at most ", high: "at least " })} ${feature.unit}`.trim();
  return spread && !sides[feature.name] ? `${words}, mostly ${shown(spread[j].low, feature)} to ${shown(spread[j].high, feature)}` : words;
}

const ROWS_MAX = 12;
const NAMED_MAX = 4;
const TICK_PX = 66; // of the axis that a tick and its words take, and those at its end
const NOW_PX = 70;
const END_PX = 170;

export class Timeline {
  // `onChoose` gets the identity of the cluster whose name is pressed.
  constructor(onChoose) {
    [this.onChoose, this.all, this.model, this.chosen, this.width] = [onChoose, false, null, null, 0];
    this.titles = new Map();
    [this.bars, this.span] = [barsOf(new Map(), 1), new Span()];
    this.history = new LoadedHistory(() => this.draw());
    this.order = new SteadyOrder(at("timeline-rows"));
    at("all-rows").addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
    at("moment").addEventListener("input", () => this.read());
    at("find-cluster").addEventListener("input", () => this.draw());
    at("spans").append(this.spanButton("‹", () => this.span.move(-0.5), "Earlier"),
      ...LENGTHS.map(([name, length]) => this.spanButton(name, () => this.span.choose(length, this.span.asked.end ?? undefined))),
      this.spanButton("›", () => this.span.move(0.5), "Later"));
    new ResizeObserver(([{ contentRect }]) => {
      this.width = contentRect.width;
      this.draw();
    }).observe(at("timeline-axis"));
    at("timeline-frame").addEventListener("pointermove", (event) => this.point(event));
  }

  spanButton(name, act, words = name) {
    const button = make("button", { type: "button", "aria-label": words, title: words }, name);
    button.addEventListener("click", () => {
      act();
      this.zoom();
    });
    return button;
  }

  // After another time was chosen.
  zoom() {
    this.show(this.model);
  }

  choose(identity) {
    this.chosen = identity;
    this.draw();
  }

  // `titles`: client -> name that its owner gave it.
  show(model, now = this.now, titles = this.titles) {
    if (this.model?.name !== model.name) [this.all, this.span] = [false, new Span()];
    [this.model, this.now, this.titles] = [model, now, titles];
    this.span.reach(model.clustering?.usual);
    at("timeline-panel").hidden = !model.clustering || Boolean(model.waiting_for);
    if (at("timeline-panel").hidden) return;
    if (model.clustering.usual) this.history.follow(model, this.span.asked);
    this.draw();
  }

  // Known clusters, those with readings now first; then ended ones that have readings in the time shown.
  listed() {
    const known = this.model.clustering.clusters;
    const order = (a, b) => Number(b.active) - Number(a.active) || b.shareNow - a.shareNow || (b.share ?? 0) - (a.share ?? 0);
    const present = new Set(known.map(({ identity }) => identity));
    const ended = [...this.history.names.values()].filter(({ identity }) => !present.has(identity) && this.bars.lived.has(identity));
    return [...[...known].sort(order), ...ended.map((each) => ({ ...each, ended: true }))];
  }

  // The starts of the first and the last bar with readings of a cluster.
  first = (identity) => this.bars.lived.get(identity)?.[0] ?? null;
  last = (identity) => this.bars.lived.get(identity)?.[1] ?? null;

  draw() {
    const { model } = this;
    if (!model?.clustering) return;
    this.layOut();
    const every = this.order.keep(this.listed(), ({ identity }) => identity, `${model.name}/${this.history.shown}`);
    const query = at("find-cluster").value.trim().toLowerCase();
    const rows = every.filter((cluster) => clusterTitle(cluster).toLowerCase().includes(query));
    const shown = this.all ? rows : rows.filter(({ identity }, place) => place < ROWS_MAX || identity === this.chosen);
    reconcile(
      at("timeline-rows"), shown.flatMap((cluster) => (cluster.identity === this.chosen ? [cluster, { cluster }] : [cluster])),
      ({ identity, cluster }) => (cluster ? "details" : identity),
      (item) => (item.cluster ? detailsRow() : this.row(item)),
      (row, item) => (item.cluster ? fillDetails(row, item.cluster, model, this.now) : this.fill(row, item)),
    );
    at("find-cluster").hidden = every.length <= ROWS_MAX;
    at("all-rows").hidden = rows.length <= ROWS_MAX;
    setText(at("all-rows"), this.all ? "Show fewer" : `Show all ${rows.length}`);
    this.showSpan();
    this.axis();
    setText(at("timeline-note"), this.note());
    this.read();
    this.drawMore(shown);
  }

  note() {
    if (this.history.failed) return "The history cannot be read at present.";
    if (!this.bars.length) return this.history.busy ? "" : this.history.shown ? "There are no readings in this time." : "The history begins with the next snapshot.";
    const marks = this.model.clustering.usual?.clusters.length ? " The mark on it is what is usual at this time of day: from the smallest to the largest share, and the mean." : "";
    return `A band of full height, and a full bar, are ${percent(this.full)} of the readings or more. A ring: new or parted.${marks}`;
  }

  // What is drawn beside the rows; its script comes after the first picture.
  async drawMore(shown) {
    const script = await import("./overview.js").catch(() => null);
    if (!script || !this.model.clustering) return; // the server is away, or another model is shown by now
    const { Overview, showPartings, showStrip } = script;
    showPartings(this.curves(shown), this.ticks);
    showStrip(this.bars, this.window, this.model.clustering.usual);
    this.overview ??= new Overview(this.span, () => this.zoom());
    this.overview.show(this.model, this.span);
    const other = await import("./unusual.js").catch(() => null);
    if (!other || !this.bars.length) return;
    this.unusual ??= new other.UnusualSpan();
    this.unusual.show(this.model, this.titles, this.window);
  }

  // Where one of the clusters shown has parted from another of them, or merged into it, within the time shown.
  curves(shown) {
    const { start, end } = this.window;
    const place = (time) => (time - start) / (end - start);
    const slots = new Map(shown.map(({ identity, slot }) => [identity, slot ?? 0]));
    return shown.flatMap(({ identity, parent, ended }) => {
      const first = this.first(identity);
      const into = ended ? this.mergedInto(identity) : null;
      const found = [];
      if (slots.has(parent) && first !== null && first > start) found.push({ from: parent, to: identity, place: place(first), slot: slots.get(identity) });
      if (slots.has(into)) found.push({ from: identity, to: into, place: place(this.last(identity) + this.bars.width), slot: slots.get(into) });
      return found.map((curve) => ({ ...curve, faded: this.chosen !== null && ![curve.from, curve.to].includes(this.chosen) }));
    });
  }

  // The cluster that an ended one merged into; null where none of the newest events says so.
  mergedInto(identity) {
    return this.model.clustering.events.findLast(({ kind, cluster }) => kind === "merged" && cluster === identity)?.other ?? null;
  }

  // Bars, and what bands are drawn by: anew only when the history has changed.
  layOut() {
    const { history } = this;
    if (this.drawn === history.changes) return;
    this.drawn = history.changes;
    this.bars = barsOf(history.columns, history.span?.step ?? 1);
    this.window = windowOf(this.bars, history.span, this.span.oldest, this.span.newest);
    const usual = this.model.clustering.usual?.clusters.map(({ range }) => range[2] / 1000) ?? [];
    this.full = Math.max(highShare(this.bars), 0.01, ...usual);
    this.outlines = new Map(); // identity, and whether it has ended -> outline of its band
  }

  outline(cluster) {
    const key = `${cluster.identity}/${cluster.ended}`;
    if (!this.outlines.has(key)) this.outlines.set(key, outlineOf(this.bars, cluster, this.window, this.full));
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
    return make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, name, make("div", { class: "fed" })), shareCell(),
      make("td", { class: "band", role: "cell" }, band, make("i"), make("i")), make("td", { class: "since quiet", role: "cell" }, make("div"), make("div")));
  }

  fill(row, cluster) {
    const [name, share, band, since] = row.children;
    const { clusters, usual } = this.model.clustering;
    const parent = clusters.find(({ identity }) => identity === cluster.parent);
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
    path.setAttribute("class", `outline ${cluster.ended ? "" : `c${markOf(cluster.slot).colour}`}`);
    this.mark(band, cluster);
    fillShare(share, cluster, usualOf(usual, cluster.identity), this.full);
    setText(since.firstChild, cluster.ended || cluster.since === null ? "" : `for ${duration(this.now - cluster.since)}`);
    setText(since.lastChild, cluster.ended ? "" : cluster.active ? "active" : this.quietFor(cluster.identity));
  }

  quietFor(identity) {
    const last = this.last(identity);
    if (this.history.span?.end !== null) return "";
    return last === null ? `quiet over ${duration(this.window.end - this.window.start)}` : `quiet for ${duration(this.window.end - last - this.bars.width)}`;
  }

  // Empty for a cluster that is not known.
  titleOf(identity) {
    const found = this.model.clustering.clusters.find((each) => each.identity === identity);
    return found ? clusterTitle(found) : "";
  }

  // A ring where a cluster was born or parted from another, a dot where it merged or went, if that is in the time shown.
  mark(cell, cluster) {
    const { start, end } = this.window;
    const [, born, ended] = cell.children;
    const first = this.first(cluster.identity);
    const last = cluster.ended ? this.last(cluster.identity) : null;
    const drawn = JSON.stringify([start, end, first, last, cluster.slot, cluster.parent]);
    if (cell.dataset.drawn === drawn) return;
    cell.dataset.drawn = drawn;
    born.hidden = first === null || first === this.bars[0].start;
    ended.hidden = last === null;
    born.className = `mark born f${markOf(cluster.slot ?? 0).colour}`;
    ended.className = "mark ended";
    born.title = cluster.parent === null || cluster.parent === undefined ? "new here" : "parted from another here";
    ended.title = "merged or gone here";
    const place = (time) => `${(100 * (time - start)) / (end - start)}%`;
    if (!born.hidden) born.style.left = place(first);
    if (!ended.hidden) ended.style.left = place(last + this.bars.width);
  }

  // Marks the button of the time shown.
  showSpan() {
    const { start, end, length } = this.span.asked;
    const [earlier, ...buttons] = at("spans").children;
    const later = buttons.pop();
    const known = this.span.newest - this.span.oldest;
    const reachable = LENGTHS.findIndex(([, each]) => each >= known);
    buttons.forEach((button, place) => {
      button.ariaPressed = String(this.span.length === LENGTHS[place][1]);
      button.hidden = place > reachable && LENGTHS[place][1] !== this.span.length;
    });
    [earlier.disabled, later.disabled] = [start <= this.span.oldest, end === null];
    [earlier, later].forEach((button) => (button.hidden = length >= known));
  }

  axis() {
    const { start, end } = this.window;
    const live = this.history.span?.end === null;
    this.ticks = this.bars.length ? ticksOf(this.window, Math.max(1, Math.floor(this.width / TICK_PX))) : [];
    const room = 1 - (live ? NOW_PX : END_PX) / this.width;
    const last = { place: 1, words: this.bars.length ? (live ? "now" : moment(end)) : "" };
    reconcile(at("timeline-axis"), [...this.ticks.filter(({ place }) => place < room), last], ({ place, words }) => `${place}/${words}`, () => make("span"), (label, { place, words }) => {
      setText(label, words);
      if (place < 1) label.style.left = `${100 * place}%`;
    });
    const slider = at("moment");
    const bins = Math.max(0, Math.round((end - start) / this.bars.width) - 1);
    const atEnd = Number(slider.value) >= Number(slider.max);
    slider.max = bins;
    if (atEnd) slider.value = bins;
    slider.hidden = this.bars.length < 2;
  }

  // The pointer reads the moment that it is over.
  point({ target, clientX, buttons }) {
    const cell = target.closest("#timeline-rows .band");
    if (!cell || buttons || at("moment").hidden) return;
    const { left, width } = cell.getBoundingClientRect();
    at("moment").value = Math.floor(((clientX - left) / width) * (Number(at("moment").max) + 1));
    this.read();
  }

  // What the readings were at the moment of the slider, in words.
  read() {
    const { start, end } = this.window;
    const { width } = this.bars;
    const time = start + Number(at("moment").value) * width;
    const bar = this.bars.find((each) => each.start <= time && time < each.start + width);
    const titles = new Map(this.listed().map((cluster) => [cluster.identity, clusterTitle(cluster)]));
    const largest = bar ? [...bar.clusters].sort(([, a], [, b]) => b - a).slice(0, NAMED_MAX) : [];
    const parts = largest.map(([identity]) => `${identity === NO_CLUSTER ? "no known cluster" : titles.get(identity) ?? identity} ${percent(shareOf(bar, identity))}`);
    const words = `${moment(time)}: ${parts.length ? `${parts.join(", ")} of ${plural(bar.total, "reading")}` : "no readings"}`;
    setText(at("moment-words"), this.bars.length ? words : "");
    at("moment").setAttribute("aria-valuetext", words);
    const place = at("moment").hidden ? "-1%" : `${(100 * (time + width / 2 - start)) / (end - start)}%`;
    if (at("timeline").style.getPropertyValue("--moment") !== place) at("timeline").style.setProperty("--moment", place);
  }
}

// What the bands reach from and to, in whole bars: all of the time asked for that the history knows.
function windowOf(bars, span, oldest, newest) {
  if (!bars.length) return { start: span?.start ?? 0, end: span?.end ?? newest + 1 };
  const [first, last, { width }] = [bars[0].start, bars.at(-1).start + bars.width, bars];
  const start = span.start <= oldest ? first : first - Math.max(0, Math.floor((first - span.start) / width)) * width;
  const end = span.end === null ? last : last + Math.max(0, Math.floor((span.end - last) / width)) * width;
  return { start, end };
}
