// The table of clusters: the mark, the share and the centre of each.

import { fillSwatch, swatch } from "./marks.js";
import { Naming } from "./naming.js";
import { SteadyOrder } from "./order.js";
import { Sorting } from "./sorting.js";
import { clusterTitle, count, duration, fixed, reconcile, make, featureLabel, percent, plural, setText } from "./format.js";

const table = document.getElementById("clusters");
const note = document.getElementById("clusters-note");
const EMPTY = { clusters: [], features: [], features_total: 0 };

export class Clusters {
  // `onHover` and `onChoose` get the identity of a cluster; `onHover` null where the pointer leaves it.
  constructor(onHover, onChoose) {
    [this.onHover, this.onChoose, this.pinned] = [onHover, onChoose, null];
    this.naming = new Naming(document.getElementById("naming"));
    this.order = new SteadyOrder(table.tBodies[0]);
    this.sorting = new Sorting(table, "share", true, () => this.show(this.model, this.now));
  }

  // Shows which cluster is chosen, by its identity; null for none.
  pin(identity) {
    this.pinned = identity;
    for (const row of table.tBodies[0].rows) this.press(row);
  }

  press(row) {
    const pressed = String(this.pinned !== null && this.pinned === row.cluster.identity);
    const button = row.cells[0].querySelector(".pin");
    if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
  }

  show(model, now) {
    [this.model, this.now] = [model, now];
    const clustering = model.clustering ?? EMPTY;
    const columns = this.columns(model, clustering);
    this.sorting.head(clustering.clusters.length ? columns : []);
    const ordered = this.sorting.order(clustering.clusters, columns);
    reconcile(
      table.tBodies[0], this.order.keep(ordered, ({ identity }) => identity, `${model.name}/${this.sorting.chosen}`),
      (cluster) => `${cluster.identity}/${columns.map(({ title }) => title).join("|")}`,
      () => this.row(columns),
      (row, cluster) => this.fill(row, cluster, columns),
    );
    this.naming.show(model.name, clustering.clusters);
    setText(note, notesOn(model, clustering).join(" "));
  }

  columns(model, clustering) {
    const known = clustering.clusters.some(({ since }) => since !== null && since !== undefined);
    return [
      { key: "name", title: "Cluster", of: ({ identity }) => identity, text: clusterTitle },
      { key: "state", title: "Now", of: ({ active }) => active, text: ({ active }) => (active ? "active" : "quiet") },
      { key: "recent", title: "Recent share", number: true, of: ({ recent_share }) => recent_share, text: ({ recent_share }) => percent(recent_share) },
      { key: "share", title: "Share", number: true, of: ({ share }) => share, text: ({ share }) => percent(share) },
      ...(model.rounds ? [] : [{ key: "nodes", title: "Nodes", number: true, of: ({ nodes }) => nodes, text: ({ nodes }) => count(nodes) }]),
      ...(known ? [{ key: "since", title: "Age", number: true, of: ({ since }) => this.now - since, text: ({ since }) => duration(this.now - since) }] : []),
      ...clustering.features.map((feature, j) => ({
        key: `feature ${feature.name}`, title: featureLabel(feature), number: true,
        of: ({ centre }) => centre?.[j], text: ({ centre }) => (centre ? fixed(centre[j], feature.digits) : "–"),
      })),
    ];
  }

  row(columns) {
    const button = make("button", { type: "button", class: "pin" }, swatch(), make("span"));
    const row = make("tr", {}, this.naming.cell(button, () => row.cluster));
    row.cells[0].append(make("div", { class: "fed" }));
    row.append(...columns.slice(1).map(({ key, number }) => make("td", { class: number ? "number" : key })));
    row.addEventListener("pointerenter", () => this.onHover(row.cluster.identity));
    row.addEventListener("pointerleave", () => this.onHover(null));
    button.addEventListener("click", () => this.onChoose(row.cluster.identity));
    return row;
  }

  fill(row, cluster, columns) {
    row.cluster = cluster;
    row.classList.toggle("inactive", !cluster.active);
    const button = row.cells[0].querySelector(".pin");
    this.press(row);
    button.title = cluster.text || "Highlight it on the map";
    fillSwatch(button.children[0], cluster.slot);
    const title = columns[0].text(cluster);
    setText(button.children[1], title);
    this.naming.fill(row.cells[0], title);
    setText(row.cells[0].querySelector(".fed"), cluster.fed_by_text ? `from ${cluster.fed_by_text}` : "");
    columns.slice(1).forEach(({ text }, i) => setText(row.cells[i + 1], text(cluster)));
  }
}

function notesOn(model, clustering) {
  if (!clustering.clusters.length) return ["None yet."];
  const notes = [`The centre of each in the features' own units; its share is of ${model.rounds ? "the rows behind the newest answers" : "the weight of all nodes"}.`];
  if (clustering.features_total > clustering.features.length) notes.push(`${clustering.features.length} of ${count(clustering.features_total)} features are shown.`);
  if (model.clusters_total > clustering.clusters.length) notes.push(`The ${clustering.clusters.length} largest of ${count(model.clusters_total)} are listed.`);
  if (clustering.single_nodes) notes.push(`Beside them are ${plural(clustering.single_nodes, "single node")}, which no edge joins to a cluster.`);
  return notes;
}
