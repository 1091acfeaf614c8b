// What is known of the chosen cluster, in a row below its own: what it is, what it parted from, its share, its clients, its histograms.

import { clusterTitle, duration, fixed, make, reconcile, setText } from "./format.js";
import { usualOf, usualWords } from "./share.js";

export function openedRow() {
  return make("tr", { class: "opened", role: "row" }, make("td", { colspan: 4, role: "cell" }, make("dl", { class: "facts" }), make("div", { class: "histograms" }), make("p", { class: "quiet" })));
}

export function fillOpened(row, cluster, model, now) {
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
    ...features.map((feature, j) => [feature.name, valuesOf(cluster, feature, j)]),
  ];
}

// The centre, and where the middle 80 % lies.
function valuesOf({ centre, spread }, { unit, digits }, j) {
  if (!centre) return "";
  const words = `${fixed(centre[j], digits)} ${unit}`.trim();
  return spread ? `${words}, mostly ${fixed(spread[j][0], digits)} to ${fixed(spread[j][1], digits)}` : words;
}
