// The table of clusters: what each is drawn as, how large it is, and where its centre lies.

import { fillSwatch, swatch } from "./marks.js";
import { Sorting } from "./sorting.js";
import { count, duration, fixed, keep, make, named, percent, say } from "./format.js";

const table = document.getElementById("clusters");
const note = document.getElementById("clusters-note");
const NOTHING = { clusters: [], features: [], features_total: 0 };

export class Clusters {
  // `onPoint` and `onPin` get what stays with a cluster, or null.
  constructor(onPoint, onPin) {
    [this.onPoint, this.onPin, this.pinned] = [onPoint, onPin, null];
    this.sorting = new Sorting(table, "share", true, () => this.show(this.model, this.now));
  }

  forget() {
    this.pin(null);
  }

  pin(name) {
    this.pinned = name;
    this.onPin(name);
  }

  show(model, now) {
    [this.model, this.now] = [model, now];
    const drawn = model.drawn ?? NOTHING;
    const columns = this.columns(model, drawn);
    this.sorting.head(drawn.clusters.length ? columns : []);
    keep(
      table.tBodies[0], this.sorting.order(drawn.clusters, columns),
      (cluster) => `${cluster.identity ?? `#${cluster.number}`}/${columns.map(({ title }) => title).join("|")}`,
      () => this.row(columns),
      (row, cluster) => this.fill(row, cluster, columns),
    );
    say(note, notes(model, drawn).join(" "));
  }

  columns(model, drawn) {
    const whole = drawn.clusters_weight || 1;
    const known = drawn.clusters.some(({ since }) => since !== null && since !== undefined);
    return [
      { key: "name", title: "Cluster", of: ({ identity }) => identity, text: ({ identity }) => String(identity ?? "–") },
      { key: "share", title: "Share", number: true, of: ({ weight }) => weight, text: ({ weight }) => (weight === null ? "–" : percent(weight / whole)) },
      ...(model.rounds ? [] : [{ key: "nodes", title: "Nodes", number: true, of: ({ nodes }) => nodes, text: ({ nodes }) => count(nodes) }]),
      ...(known ? [{ key: "since", title: "Age", number: true, of: ({ since }) => this.now - since, text: ({ since }) => duration(this.now - since) }] : []),
      ...drawn.features.map((feature, j) => ({
        key: `feature ${feature.name}`, title: named(feature), number: true,
        of: ({ centre }) => centre?.[j] ?? null, text: ({ centre }) => (centre ? fixed(centre[j], feature.digits) : "–"),
      })),
    ];
  }

  row(columns) {
    const button = make("button", { type: "button", class: "pin" }, swatch(), make("span"));
    const row = make("tr", {}, make("th", { scope: "row" }, button));
    row.append(...columns.slice(1).map(() => make("td", { class: "number" })));
    row.addEventListener("pointerenter", () => this.onPoint(row.name));
    row.addEventListener("pointerleave", () => this.onPoint(null));
    button.addEventListener("click", () => {
      this.pin(this.pinned === row.name ? null : row.name);
      this.show(this.model, this.now);
    });
    return row;
  }

  fill(row, cluster, columns) {
    row.name = cluster.identity;
    const [button] = row.cells[0].children;
    button.ariaPressed = String(this.pinned !== null && this.pinned === cluster.identity);
    button.title = "Let it stand out on the map";
    fillSwatch(button.children[0], cluster.slot);
    say(button.children[1], columns[0].text(cluster));
    columns.slice(1).forEach(({ text }, i) => say(row.cells[i + 1], text(cluster)));
  }
}

function notes(model, drawn) {
  if (!drawn.clusters.length) return ["None yet."];
  const told = [`The centre of each in the features' own units; its share is of ${model.rounds ? "the rows behind the newest answers" : "all wins"}.`];
  if (drawn.features_total > drawn.features.length) told.push(`${drawn.features.length} of ${count(drawn.features_total)} features are shown.`);
  if (drawn.slots.length > drawn.clusters.length) told.push(`The ${drawn.clusters.length} largest of ${count(drawn.slots.length)} are listed.`);
  return told;
}
