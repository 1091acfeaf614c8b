// The map of nodes: drawn on a canvas, read by pointer or keyboard.

import { about, axisOf, drawAxes, extent, padded, serves } from "./axes.js";
import { COLOURS, markOf, trace } from "./marks.js";
import { fixed, make, plural, value } from "./format.js";

const LABEL_SHARE_MIN = 0.005;
const REACH_PX = 16;
const SMALLEST_PX = 3;

export class NodeMap {
  constructor(canvas, tip, said) {
    [this.canvas, this.tip, this.said] = [canvas, tip, said];
    [this.drawn, this.view, this.chosen, this.pointed, this.pinned] = [null, null, null, null, null];
    this.across = this.up = ""; // features chosen as axes; empty: the server's own
    this.note = "";
    this.centres = false; // whether what is drawn are centres, not nodes
    this.readColours();
    document.addEventListener("theme", () => { this.readColours(); this.draw(); });
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.choose(this.nearest(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerdown", (event) => this.choose(this.nearest(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", () => this.choose(null));
    canvas.addEventListener("blur", () => this.choose(null));
    canvas.addEventListener("keydown", (event) => this.step(event));
  }

  // Another model is another map: nothing of the old view is kept.
  forget() {
    [this.view, this.chosen, this.pointed, this.pinned] = [null, null, null, null];
  }

  show(drawn, note, centres = false) {
    [this.drawn, this.note, this.centres] = [drawn, note, centres];
    this.draw();
  }

  // Features to draw on, by name.
  turn(across, up) {
    if (across === this.across && up === this.up) return;
    [this.across, this.up, this.view] = [across, up, null];
    this.draw();
  }

  // Let one cluster stand out, by what stays with it: while somebody points at it, or until it is let go.
  point(cluster) {
    this.pointed = cluster;
    this.draw();
  }

  pin(cluster) {
    this.pinned = cluster;
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
    const dense = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * dense)) this.canvas.width = Math.round(width * dense);
    if (this.canvas.height !== Math.round(height * dense)) this.canvas.height = Math.round(height * dense);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, width, height);
    if (!this.drawn || !width) return this.tell();
    this.place(width, height);
    drawAxes(pen, this.colour, this.axes, this.box, this.spans);
    this.drawEdges(pen);
    this.drawNodes(pen);
    this.drawLabels(pen);
    this.tell();
  }

  // Where everything goes. The view moves only when nodes leave it or fill too little of it.
  place(width, height) {
    const { nodes } = this.drawn;
    const axes = [axisOf(this.drawn, 0, this.across), axisOf(this.drawn, 1, this.up)];
    this.box = { left: axes[1].numbered ? 56 : 26, top: 10, right: width - 10, bottom: height - (axes[0].numbered ? 42 : 26) };
    const [spanX, spanY] = axes.map(({ at }) => extent(at));
    if (!serves(this.view?.x, spanX) || !serves(this.view?.y, spanY)) this.view = { x: padded(spanX), y: padded(spanY) };
    const [wide, high] = [this.box.right - this.box.left, this.box.bottom - this.box.top];
    let [fromX, toX, fromY, toY] = [...this.view.x, ...this.view.y];
    if (!axes[0].numbered && !axes[1].numbered) {
      // Projected distances mean the same in all directions, so both axes have one scale.
      const each = Math.max((toX - fromX) / wide, (toY - fromY) / high);
      [fromX, toX] = about((fromX + toX) / 2, each * wide);
      [fromY, toY] = about((fromY + toY) / 2, each * high);
    }
    [this.axes, this.spans] = [axes, { x: [fromX, toX], y: [fromY, toY] }];
    this.px = axes[0].at.map((x) => this.box.left + ((x - fromX) / (toX - fromX)) * wide);
    this.py = axes[1].at.map((y) => this.box.bottom - ((y - fromY) / (toY - fromY)) * high);
    const most = Math.max(1, ...nodes.count);
    const largest = Math.max(6, Math.min(15, 190 / Math.sqrt(nodes.id.length + 1)));
    this.radius = nodes.count.map((wins) => SMALLEST_PX + (largest - SMALLEST_PX) * Math.sqrt(wins / most));
  }

  drawEdges(pen) {
    const { edges, nodes } = this.drawn;
    const paths = new Map();
    for (let i = 0; i < edges.length; i += 2) {
      const [from, to] = [edges[i], edges[i + 1]];
      const cluster = nodes.cluster[from];
      if (!paths.has(cluster)) paths.set(cluster, new Path2D());
      paths.get(cluster).moveTo(this.px[from], this.py[from]);
      paths.get(cluster).lineTo(this.px[to], this.py[to]);
    }
    pen.lineWidth = 1.25;
    for (const [cluster, path] of paths) {
      pen.globalAlpha = this.faded(cluster) ? 0.08 : 0.45;
      pen.strokeStyle = this.colourOf(cluster);
      pen.stroke(path);
    }
    pen.globalAlpha = 1;
  }

  drawNodes(pen) {
    const { nodes } = this.drawn;
    const order = nodes.id.map((_, i) => i).sort((a, b) => this.radius[b] - this.radius[a]);
    for (const i of order) {
      const cluster = nodes.cluster[i];
      const mark = markOf(this.slotOf(cluster));
      trace(pen, mark, this.px[i], this.py[i], this.radius[i]);
      pen.globalAlpha = this.faded(cluster) ? 0.15 : 0.85;
      pen.fillStyle = mark.hollow ? this.colour.panel : this.colourOf(cluster);
      pen.fill();
      pen.lineWidth = mark.hollow ? 2 : 1;
      pen.strokeStyle = mark.hollow ? this.colourOf(cluster) : this.colour.panel;
      pen.stroke();
    }
    pen.globalAlpha = 1;
    const i = this.chosenAt();
    if (i < 0) return;
    pen.beginPath();
    pen.arc(this.px[i], this.py[i], this.radius[i] + 4, 0, 2 * Math.PI);
    pen.lineWidth = 2;
    pen.strokeStyle = this.colour.text;
    pen.stroke();
  }

  // The number of each cluster: in the middle of its nodes, or above the most-won of a few that it would hide. The
  // clusters that won most come first; what won next to nothing or finds no room goes without, and the table has it.
  drawLabels(pen) {
    const { nodes } = this.drawn;
    const found = new Map();
    nodes.cluster.forEach((cluster, i) => {
      if (cluster < 0 || this.faded(cluster)) return;
      const sum = found.get(cluster) ?? { cluster, x: 0, y: 0, wins: 0, members: 0, best: i };
      sum.x += this.px[i] * nodes.count[i];
      sum.y += this.py[i] * nodes.count[i];
      sum.wins += nodes.count[i];
      sum.members += 1;
      if (nodes.count[i] > nodes.count[sum.best]) sum.best = i;
      found.set(cluster, sum);
    });
    const whole = nodes.count.reduce((sum, wins) => sum + wins, 0);
    const placed = [];
    pen.font = "600 13px system-ui, 'Liberation Sans', sans-serif";
    pen.textAlign = "center";
    pen.lineJoin = "round";
    for (const { cluster, wins, members, best, ...sum } of [...found.values()].sort((a, b) => b.wins - a.wins)) {
      const few = members < 5;
      const [x, y] = few ? [this.px[best], this.py[best] - this.radius[best] - 4] : [sum.x / wins, sum.y / wins + 4];
      const crowded = placed.some(([otherX, otherY]) => Math.abs(otherX - x) < 20 && Math.abs(otherY - y) < 14);
      if (crowded || (wins < LABEL_SHARE_MIN * whole && (this.pointed ?? this.pinned) === null)) continue;
      const name = String(this.nameOf(cluster) ?? "");
      placed.push([x, y]);
      pen.lineWidth = 4;
      pen.strokeStyle = this.colour.panel;
      pen.strokeText(name, x, y);
      pen.fillStyle = this.colour.text;
      pen.fillText(name, x, y);
    }
  }

  // What stays with a cluster however it is numbered.
  nameOf(cluster) {
    return this.drawn.identities[cluster] ?? null;
  }

  slotOf(cluster) {
    return this.drawn.slots[cluster] ?? 0;
  }

  faded(cluster) {
    const only = this.pointed ?? this.pinned;
    return only !== null && only !== this.nameOf(cluster);
  }

  colourOf(cluster) {
    return cluster < 0 ? this.colour.quiet : this.palette[this.slotOf(cluster) % COLOURS];
  }

  chosenAt() {
    return this.chosen === null || !this.drawn ? -1 : this.drawn.nodes.id.indexOf(this.chosen);
  }

  nearest(x, y) {
    if (!this.drawn) return null;
    let [best, reach] = [null, REACH_PX];
    for (let i = 0; i < this.px.length; i += 1) {
      const distance = Math.hypot(this.px[i] - x, this.py[i] - y) - this.radius[i];
      if (distance < reach) [best, reach] = [this.drawn.nodes.id[i], distance];
    }
    return best;
  }

  choose(id) {
    if (id === this.chosen) return;
    this.chosen = id;
    this.draw();
  }

  // An arrow key goes to the nearest node in its direction; sideways distance counts double.
  step(event) {
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (event.key === "Escape") this.choose(null);
    if ((!dx && !dy) || !this.drawn?.nodes.id.length) return;
    event.preventDefault();
    const from = this.chosenAt();
    if (from < 0) return this.choose(this.drawn.nodes.id[this.drawn.nodes.count.indexOf(Math.max(...this.drawn.nodes.count))]);
    let [best, least] = [from, Infinity];
    for (let i = 0; i < this.px.length; i += 1) {
      const [x, y] = [this.px[i] - this.px[from], this.py[i] - this.py[from]];
      const [ahead, aside] = [x * dx + y * dy, Math.abs(x * dy) + Math.abs(y * dx)];
      if (i !== from && ahead > 0 && ahead + 2 * aside < least) [best, least] = [i, ahead + 2 * aside];
    }
    this.choose(this.drawn.nodes.id[best]);
  }

  // What is chosen, beside its node and to screen readers.
  tell() {
    const i = this.chosenAt();
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const { nodes, features } = this.drawn;
    const name = nodes.cluster[i] < 0 ? null : this.nameOf(nodes.cluster[i]);
    const cluster = name === null ? "no cluster" : `cluster ${name}`;
    const title = this.centres
      ? `Centre of ${cluster} · weight ${value(nodes.count[i])}`
      : `Node ${nodes.id[i]} · ${cluster} · won ${plural(nodes.count[i], "time")}`;
    const parts = features.map((feature, j) => [feature.name, `${fixed(nodes.values[i][j], feature.digits)} ${feature.unit}`.trim()]);
    this.tip.replaceChildren(
      make("strong", {}, title),
      make("dl", {}, ...parts.flatMap(([name, amount]) => [make("dt", {}, name), make("dd", {}, amount)])),
      make("p", { class: "quiet" }, this.note),
    );
    const said = `${title}: ${parts.map((part) => part.join(" ")).join(", ")}`;
    if (document.activeElement === this.canvas && this.said.textContent !== said) this.said.textContent = said;
    const { offsetWidth: wide, offsetHeight: high } = this.tip;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const right = this.px[i] + 18 + wide <= width;
    const x = right ? this.px[i] + 18 : Math.max(0, Math.min(this.px[i] - 18 - wide, width - wide));
    const y = Math.max(0, Math.min(this.py[i] - high / 2, height - high));
    this.tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }
}
