// The map of nodes: drawn on a canvas, explored by pointer or keyboard; its axes, and the texts around it.

import {
  at, COLOURS, count, featureLabel, featureName, fixed, make, markOf, partSlot, percent, plural, reconcile, setText, shown, trace, value,
} from "./format.js";

// One axis: `at` (a coordinate per node), its label, and whether its coordinates are shown as numbers.
function axisOf(clustering, which, name) {
  const j = clustering.features.findIndex((feature) => feature.name === name);
  if (name && j >= 0) return { label: featureLabel(clustering.features[j]), at: clustering.nodes.values.map((row) => row[j]), numbered: true };
  return { label: clustering.axes[which], at: which ? clustering.nodes.y : clustering.nodes.x, numbered: clustering.explained_variance === null };
}

function extent(numbers) {
  let [low, high] = [Infinity, -Infinity];
  for (const number of numbers) [low, high] = [Math.min(low, number), Math.max(high, number)];
  return low <= high ? [low, high] : [0, 1];
}

function padded([low, high]) {
  const margin = 0.08 * (high - low) || Math.abs(low) * 0.1 || 0.5;
  return [low - margin, high + margin];
}

// The span [low, high] of `size` around its middle.
const spanAround = (middle, size) => [middle - size / 2, middle + size / 2];

// Whether a view still fits points of this extent: all lie within it and fill enough of it.
function fits(view, span) {
  return view && span[0] >= view[0] && span[1] <= view[1] && span[1] - span[0] > 0.6 * (view[1] - view[0]);
}

// Round numbers within a span, about `wanted` of them, each with its text.
function ticks([low, high], wanted) {
  const rough = (high - low) / Math.max(2, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= rough);
  const first = Math.ceil(low / step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const marks = Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
  return marks.map((mark) => [mark, fixed(mark, Math.min(digits, 12))]);
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

// Draws grid, numbers and labels. `axes` as returned by `axisOf`, `box` in pixels, `spans` the range of each axis.
function drawAxes(context, colour, axes, box, spans) {
  const { left, right, top, bottom } = box;
  const x = (mark) => Math.round(left + ((mark - spans.x[0]) / (spans.x[1] - spans.x[0])) * (right - left)) + 0.5;
  const y = (mark) => Math.round(bottom - ((mark - spans.y[0]) / (spans.y[1] - spans.y[0])) * (bottom - top)) + 0.5;
  context.font = "12px system-ui, 'Liberation Sans', sans-serif";
  context.strokeStyle = colour.line;
  context.fillStyle = colour.quiet;
  context.lineWidth = 1;
  context.beginPath();
  context.textAlign = "center";
  for (const [mark, text] of ticks(spans.x, (right - left) / 90)) {
    context.moveTo(x(mark), top);
    context.lineTo(x(mark), bottom);
    if (axes[0].numbered) context.fillText(text, x(mark), bottom + 16);
  }
  context.textAlign = "right";
  for (const [mark, text] of ticks(spans.y, (bottom - top) / 60)) {
    context.moveTo(left, y(mark));
    context.lineTo(right, y(mark));
    if (axes[1].numbered) context.fillText(text, left - 6, y(mark) + 4);
  }
  context.stroke();
  context.textAlign = "center";
  context.fillText(shortened(context, axes[0].label, right - left), (left + right) / 2, bottom + (axes[0].numbered ? 36 : 18));
  context.save();
  context.translate(12, (top + bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(shortened(context, axes[1].label, bottom - top), 0, 0);
  context.restore();
}

const LABEL_SHARE_MIN = 0.005;
const REACH_PX = 16;
const SMALLEST_PX = 3;
const UNKNOWN_ALPHA = 0.35;

export class NodeMap {
  // `announcement` is a live region that screen readers read.
  constructor(canvas, tip, announcement) {
    [this.canvas, this.tip, this.announcement] = [canvas, tip, announcement];
    [this.clustering, this.view, this.chosen, this.hovered, this.pinned] = [null, null, null, null, null];
    this.across = this.up = ""; // features chosen as axes; empty: the server's projection
    this.note = "";
    this.centres = false; // whether the nodes are the centres of clusters themselves
    this.readColours();
    document.addEventListener("theme", () => { this.readColours(); this.draw(); });
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.choose(this.nearest(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerdown", (event) => this.choose(this.nearest(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", () => this.choose(null));
    canvas.addEventListener("blur", () => this.choose(null));
    canvas.addEventListener("keydown", (event) => this.step(event));
  }

  // Forgets the view and the choices, for another model.
  reset() {
    [this.view, this.chosen, this.hovered, this.pinned] = [null, null, null, null];
  }

  show(clustering, note, centres = false) {
    [this.clustering, this.note, this.centres] = [clustering, note, centres];
    this.draw();
  }

  // Uses these features, by name, as axes.
  setAxes(across, up) {
    if (across === this.across && up === this.up) return;
    [this.across, this.up, this.view] = [across, up, null];
    this.draw();
  }

  // Highlights one cluster, by its identity: while the pointer is on it, or until it is unpinned.
  hover(identity) {
    this.hovered = identity;
    this.draw();
  }

  pin(identity) {
    this.pinned = identity;
    this.draw();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.colour = { text: colour("--text"), quiet: colour("--quiet"), line: colour("--line"), panel: colour("--panel") };
    this.palette = Array.from({ length: COLOURS }, (_, i) => colour(`--c${i}`));
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!this.clustering || !width) return this.showTip();
    this.layOut(width, height);
    drawAxes(context, this.colour, this.axes, this.box, this.spans);
    this.drawEdges(context);
    this.drawNodes(context);
    this.drawLabels(context);
    this.showTip();
  }

  // Computes all positions. The view changes only when nodes leave it or fill too little of it.
  layOut(width, height) {
    const { nodes } = this.clustering;
    const axes = [axisOf(this.clustering, 0, this.across), axisOf(this.clustering, 1, this.up)];
    this.box = { left: axes[1].numbered ? 56 : 26, top: 10, right: width - 10, bottom: height - (axes[0].numbered ? 42 : 26) };
    const [spanX, spanY] = axes.map(({ at }) => extent(at));
    if (!fits(this.view?.x, spanX) || !fits(this.view?.y, spanY)) this.view = { x: padded(spanX), y: padded(spanY) };
    const [wide, high] = [this.box.right - this.box.left, this.box.bottom - this.box.top];
    let [fromX, toX, fromY, toY] = [...this.view.x, ...this.view.y];
    if (!axes[0].numbered && !axes[1].numbered) {
      // Projected distances have the same meaning in all directions, so both axes have one scale.
      const each = Math.max((toX - fromX) / wide, (toY - fromY) / high);
      [fromX, toX] = spanAround((fromX + toX) / 2, each * wide);
      [fromY, toY] = spanAround((fromY + toY) / 2, each * high);
    }
    [this.axes, this.spans] = [axes, { x: [fromX, toX], y: [fromY, toY] }];
    this.px = axes[0].at.map((x) => this.box.left + ((x - fromX) / (toX - fromX)) * wide);
    this.py = axes[1].at.map((y) => this.box.bottom - ((y - fromY) / (toY - fromY)) * high);
    const heaviest = Math.max(1, ...nodes.mass);
    const largest = Math.max(6, Math.min(15, 190 / Math.sqrt(nodes.id.length + 1)));
    this.radius = nodes.mass.map((mass) => SMALLEST_PX + (largest - SMALLEST_PX) * Math.sqrt(mass / heaviest));
  }

  drawEdges(context) {
    const { edges, nodes } = this.clustering;
    const paths = new Map();
    for (let i = 0; i < edges.length; i += 2) {
      const [from, to] = [edges[i], edges[i + 1]];
      const cluster = nodes.cluster[from];
      if (!paths.has(cluster)) paths.set(cluster, new Path2D());
      paths.get(cluster).moveTo(this.px[from], this.py[from]);
      paths.get(cluster).lineTo(this.px[to], this.py[to]);
    }
    context.lineWidth = 1.25;
    for (const [cluster, path] of paths) {
      context.globalAlpha = this.faded(cluster) ? 0.08 : this.known(cluster) ? 0.45 : UNKNOWN_ALPHA / 2;
      context.strokeStyle = this.colourOf(cluster);
      context.stroke(path);
    }
    context.globalAlpha = 1;
  }

  drawNodes(context) {
    const { nodes } = this.clustering;
    // Nodes of no known cluster lie below all others; among equals the large ones below the small ones.
    const order = nodes.id.map((_, i) => i).sort((a, b) => this.known(nodes.cluster[a]) - this.known(nodes.cluster[b]) || this.radius[b] - this.radius[a]);
    for (const i of order) {
      const cluster = nodes.cluster[i];
      const mark = markOf(this.slotOfNode(i));
      trace(context, mark, this.px[i], this.py[i], this.radius[i]);
      context.globalAlpha = this.faded(cluster) ? 0.15 : this.known(cluster) ? 0.85 : UNKNOWN_ALPHA;
      const colour = this.known(cluster) ? this.palette[mark.colour] : this.colour.quiet;
      context.fillStyle = mark.hollow ? this.colour.panel : colour;
      context.fill();
      context.lineWidth = mark.hollow ? 2 : 1;
      context.strokeStyle = mark.hollow ? colour : this.colour.panel;
      context.stroke();
    }
    context.globalAlpha = 1;
    const i = this.chosenAt();
    if (i < 0) return;
    context.beginPath();
    context.arc(this.px[i], this.py[i], this.radius[i] + 4, 0, 2 * Math.PI);
    context.lineWidth = 2;
    context.strokeStyle = this.colour.text;
    context.stroke();
  }

  // Draws the identity of each cluster, or the numbers of its parts: in the middle of its nodes, or above the heaviest one where there are only a few
  // that the text would hide. Heavier clusters come first; one that is very light or has no room gets no label.
  drawLabels(context) {
    const { nodes } = this.clustering;
    const sums = new Map();
    nodes.cluster.forEach((cluster, i) => {
      if (cluster < 0 || this.faded(cluster)) return;
      const part = this.partOf(i);
      const key = part ? `part ${part}` : cluster;
      const sum = sums.get(key) ?? { label: part ? key : String(this.identityOf(cluster) ?? ""), x: 0, y: 0, mass: 0, members: 0, best: i };
      sum.x += this.px[i] * nodes.mass[i];
      sum.y += this.py[i] * nodes.mass[i];
      sum.mass += nodes.mass[i];
      sum.members += 1;
      if (nodes.mass[i] > nodes.mass[sum.best]) sum.best = i;
      sums.set(key, sum);
    });
    const total = nodes.mass.reduce((sum, mass) => sum + mass, 0);
    const placed = [];
    context.font = "600 13px system-ui, 'Liberation Sans', sans-serif";
    context.textAlign = "center";
    context.lineJoin = "round";
    for (const { label, mass, members, best, ...sum } of [...sums.values()].sort((a, b) => b.mass - a.mass)) {
      const few = members < 5;
      const [x, y] = few ? [this.px[best], this.py[best] - this.radius[best] - 4] : [sum.x / mass, sum.y / mass + 4];
      const crowded = placed.some(([otherX, otherY]) => Math.abs(otherX - x) < 20 && Math.abs(otherY - y) < 14);
      if (crowded || (mass < LABEL_SHARE_MIN * total && (this.hovered ?? this.pinned) === null)) continue;
      placed.push([x, y]);
      context.lineWidth = 4;
      context.strokeStyle = this.colour.panel;
      context.strokeText(label, x, y);
      context.fillStyle = this.colour.text;
      context.fillText(label, x, y);
    }
  }

  // The identity of a cluster, which stays the same however it is numbered.
  identityOf(cluster) {
    return this.clustering.identities[cluster] ?? null;
  }

  // Whether a node of this cluster is part of a known one: a single node, and a group that is not confirmed yet, is not.
  known(cluster) {
    return this.identityOf(cluster) !== null;
  }

  slotOf(cluster) {
    return this.known(cluster) ? this.clustering.slots[cluster] ?? 0 : 0;
  }

  // The number of the part that a node is in, 0 where its cluster has none.
  partOf(i) {
    return this.clustering.nodes.part?.[i] ?? 0;
  }

  slotOfNode(i) {
    const [slot, part] = [this.slotOf(this.clustering.nodes.cluster[i]), this.partOf(i)];
    return part ? partSlot(slot, part) : slot;
  }

  faded(cluster) {
    const highlighted = this.hovered ?? this.pinned;
    return highlighted !== null && highlighted !== this.identityOf(cluster);
  }

  colourOf(cluster) {
    return this.known(cluster) ? this.palette[this.slotOf(cluster) % COLOURS] : this.colour.quiet;
  }

  chosenAt() {
    return this.chosen === null || !this.clustering ? -1 : this.clustering.nodes.id.indexOf(this.chosen);
  }

  nearest(x, y) {
    if (!this.clustering) return null;
    let [best, reach] = [null, REACH_PX];
    for (let i = 0; i < this.px.length; i += 1) {
      const distance = Math.hypot(this.px[i] - x, this.py[i] - y) - this.radius[i];
      if (distance < reach) [best, reach] = [this.clustering.nodes.id[i], distance];
    }
    return best;
  }

  choose(id) {
    if (id === this.chosen) return;
    this.chosen = id;
    this.draw();
  }

  // An arrow key chooses the nearest node in its direction; sideways distance counts double.
  step(event) {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (event.key === "Escape") this.choose(null);
    if ((!dx && !dy) || !this.clustering?.nodes.id.length) return;
    event.preventDefault();
    const from = this.chosenAt();
    if (from < 0) return this.choose(this.clustering.nodes.id[this.clustering.nodes.mass.indexOf(Math.max(...this.clustering.nodes.mass))]);
    let [best, least] = [from, Infinity];
    for (let i = 0; i < this.px.length; i += 1) {
      const [x, y] = [this.px[i] - this.px[from], this.py[i] - this.py[from]];
      const [ahead, aside] = [x * dx + y * dy, Math.abs(x * dy) + Math.abs(y * dx)];
      if (i !== from && ahead > 0 && ahead + 2 * aside < least) [best, least] = [i, ahead + 2 * aside];
    }
    this.choose(this.clustering.nodes.id[best]);
  }

  // Shows the chosen node in a tip beside it, and announces it to screen readers.
  showTip() {
    const i = this.chosenAt();
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const { nodes, features } = this.clustering;
    const identity = this.identityOf(nodes.cluster[i]);
    const part = this.partOf(i) ? `, part ${this.partOf(i)}` : "";
    const cluster = identity === null ? "in no known cluster" : `cluster ${identity}${part}`;
    const title = this.centres
      ? `Centre of ${cluster} · weight ${value(nodes.mass[i])}`
      : `Node ${nodes.id[i]} · ${cluster} · weight ${value(nodes.mass[i])}`;
    const parts = features.map((feature, j) => [featureName(feature), `${shown(nodes.values[i][j], feature)} ${feature.unit}`.trim()]);
    this.tip.replaceChildren(
      make("strong", {}, title),
      make("dl", {}, ...parts.flatMap(([name, amount]) => [make("dt", {}, name), make("dd", {}, amount)])),
      make("p", { class: "quiet" }, this.note),
    );
    const text = `${title}: ${parts.map((part) => part.join(" ")).join(", ")}`;
    if (document.activeElement === this.canvas && this.announcement.textContent !== text) this.announcement.textContent = text;
    const { offsetWidth: wide, offsetHeight: high } = this.tip;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const right = this.px[i] + 18 + wide <= width;
    const x = right ? this.px[i] + 18 : Math.max(0, Math.min(this.px[i] - 18 - wide, width - wide));
    const y = Math.max(0, Math.min(this.py[i] - high / 2, height - high));
    this.tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }
}

const HELP_WITH_NODES = at("map-help").textContent;
const HELP_WITH_CENTRES = "Each mark is the centre of a cluster: the larger, the more rows were assigned to it in the newest answers. " +
  "Point at one, or move between them with the arrow keys, to read it.";

// The axes to choose from: the server's projection of all features, or any feature whose values were sent.
export function offerAxes(clustering, chosen) {
  at("axes").hidden = clustering.explained_variance === null;
  if (at("axes").hidden) return;
  for (const [i, axis] of ["across", "up"].entries()) {
    const offered = [...clustering.features.map((feature) => ({ name: feature.name, label: featureLabel(feature) })), { name: "", label: `component ${i + 1}` }];
    reconcile(at(axis), offered, ({ name }) => name, ({ name }) => make("option", { value: name }), (option, { label }) => setText(option, label));
    const known = clustering.features.some(({ name }) => name === chosen[axis]);
    const selected = known ? chosen[axis] : "";
    if (at(axis).value !== selected) at(axis).value = selected;
  }
}

// `clustering` are the nodes drawn, null where there are none.
export function describeMap(model, clustering, chosen) {
  at("map-note").hidden = true;
  at("map-help").hidden = !clustering;
  setText(at("map-help"), model.rounds ? HELP_WITH_CENTRES : HELP_WITH_NODES);
  if (!clustering) return;
  const notes = [];
  const projected = ["across", "up"].filter((axis) => !clustering.features.some(({ name }) => name === chosen[axis]));
  if (clustering.explained_variance !== null && projected.length === 2)
    notes.push(`The axes are two components of ${count(model.clustering.features_total)} features and explain ${percent(clustering.explained_variance)} of the variance of the nodes.`);
  if (model.nodes_total > clustering.nodes.id.length) notes.push(`${count(clustering.nodes.id.length)} of ${count(model.nodes_total)} nodes are drawn, the heaviest ones.`);
  setText(at("map-note"), notes.join(" "));
  at("map-note").hidden = !notes.length;
  const what = model.rounds ? "centre" : "node";
  at("map").setAttribute("aria-label", `Map of ${plural(clustering.nodes.id.length, what)} in ${plural(model.clusters_total, "cluster")}`);
}
