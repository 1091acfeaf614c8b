// The texts around the map: the choice of axes, and how to read it.

import { count, featureLabel, make, percent, plural, reconcile, setText } from "./format.js";

const at = (id) => document.getElementById(id);
const HELP_WITH_NODES = at("map-help").textContent;
const HELP_WITH_CENTRES = "Each mark is the centre of a cluster: the larger, the more rows were assigned to it in the newest answers. " +
  "Point at one, or move between them with the arrow keys, to read it.";

// The axes to choose from: the server's projection of all features, or any feature whose values were sent.
export function offerAxes(clustering, chosen) {
  at("axes").hidden = clustering.explained_variance === null;
  if (at("axes").hidden) return;
  for (const [i, axis] of ["across", "up"].entries()) {
    const offered = [{ name: "", label: `component ${i + 1}` }, ...clustering.features.map((feature) => ({ name: feature.name, label: featureLabel(feature) }))];
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
