// Which client feeds which cluster: for each client, how its newest readings are divided among the clusters.

import { clusterTitle, make, reconcile, setText } from "./format.js";
import { fillSwatch, markOf, swatch } from "./marks.js";
import { compareNames } from "./sorting.js";

const at = (id) => document.getElementById(id);
const COLUMNS_MAX = 10;
const LEVELS = 5;

export function showFeeds(model) {
  const clustering = model.clustering;
  const feeds = Object.entries(clustering?.feeds ?? {}).sort(([a], [b]) => compareNames(a, b));
  at("feeds-panel").hidden = !feeds.length || Boolean(model.waiting_for);
  if (at("feeds-panel").hidden) return;
  const fed = new Set(feeds.flatMap(([, clusters]) => clusters.map(([identity]) => identity)));
  const all = clustering.clusters.filter(({ identity }) => fed.has(identity));
  const columns = all.slice(0, COLUMNS_MAX);
  const key = columns.map(({ identity }) => identity).join("/");
  reconcile(
    at("feeds").tHead, [columns], () => key,
    () => make("tr", {}, make("th", { scope: "col" }, "Client"),
      ...columns.map(() => make("th", { scope: "col", class: "tall" }, make("span"), swatch())), make("th", { scope: "col", class: "tall" }, make("span"))),
    (row) => {
      columns.forEach((cluster, j) => {
        setText(row.children[j + 1].firstChild, clusterTitle(cluster));
        fillSwatch(row.children[j + 1].lastChild, cluster.slot);
      });
      setText(row.lastChild.firstChild, all.length > columns.length ? `${all.length - columns.length} others` : "");
    },
  );
  reconcile(
    at("feeds").tBodies[0], feeds, ([client]) => `${client}/${key}`,
    ([client]) => make("tr", {}, make("th", { scope: "row" }, client), ...columns.map(() => make("td")), make("td")),
    (row, [, clusters]) => fill(row, new Map(clusters), columns),
  );
  setText(at("feeds-note"), "% of each client's newest readings: of the last hour, where they come all the time.");
}

function fill(row, shares, columns) {
  // The shares are in percent.
  let rest = [...shares.values()].reduce((sum, share) => sum + share, 0);
  columns.forEach(({ identity, slot }, j) => {
    const share = shares.get(identity) ?? 0;
    rest -= share;
    const cell = row.children[j + 1];
    const level = share ? Math.min(LEVELS, 1 + Math.floor((share / 100) * LEVELS)) : 0;
    cell.className = level ? `level level${level} f${markOf(slot).colour}` : "";
    setText(cell, share || "");
  });
  setText(row.lastChild, rest || "");
}
