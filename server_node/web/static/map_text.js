// The texts around the map: the choice of axes, how to read it, and what is missing while it is empty.

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

export function describeMap(model, shown, chosen) {
  const { clustering } = model;
  at("map-note").hidden = true;
  at("map-help").hidden = !shown;
  setText(at("map-help"), model.rounds ? HELP_WITH_CENTRES : HELP_WITH_NODES);
  if (!shown) return;
  const notes = [];
  const projected = ["across", "up"].filter((axis) => !clustering.features.some(({ name }) => name === chosen[axis]));
  if (clustering.explained_variance !== null && projected.length === 2)
    notes.push(`The axes are two components of ${count(clustering.features_total)} features and explain ${percent(clustering.explained_variance)} of the variance of the nodes.`);
  if (model.nodes_total > clustering.nodes.id.length) notes.push(`${count(clustering.nodes.id.length)} of ${count(model.nodes_total)} nodes are drawn, the heaviest ones.`);
  setText(at("map-note"), notes.join(" "));
  at("map-note").hidden = !notes.length;
  const what = model.rounds ? "centre" : "node";
  at("map").setAttribute("aria-label", `Map of ${plural(clustering.nodes.id.length, what)} in ${plural(model.clusters_total, "cluster")}`);
}

// The steps towards a first clustering, and which of them are done.
export function showMissing(status, model) {
  const clients = status.clients_total;
  const steps = [
    ["log", status.ready, status.ready ? "The log is read" : "The log is being opened or read"],
    ["clients", clients > 0, clients ? `Updates of ${plural(clients, "client")}` : "An update of a client"],
    ["clustering", false, model.rounds && model.version ? "A first round of answers" : "A first clustering"],
  ];
  setText(at("waiting-for"), model.waiting_for);
  reconcile(at("missing"), steps, ([name]) => name, () => make("li", {}, make("span", { "aria-hidden": "true" }), make("span"), make("span", { class: "visually-hidden" })), (item, [, done, text]) => {
    item.classList.toggle("done", done);
    setText(item.children[0], done ? "✓" : "○");
    setText(item.children[1], text);
    setText(item.children[2], done ? " (done)" : " (missing)");
  });
}
