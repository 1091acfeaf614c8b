// What is said around the map: its axes, how to read it, and what is missing while there is none.

import { count, keep, make, named, percent, plural, say } from "./format.js";

const at = (id) => document.getElementById(id);
const HELP_WITH_NODES = at("map-help").textContent;
const HELP_WITH_CENTRES = "Each mark is the centre of a cluster: the larger, the more stood behind it in the newest answers. " +
  "Point at one, or move between them with the arrow keys, to read it.";

// The axes one may choose from: the server's mixture of all features, or any feature whose values are here.
export function offerAxes(drawn, chosen) {
  at("axes").hidden = drawn.spread_shown === null;
  if (at("axes").hidden) return;
  for (const [i, axis] of ["across", "up"].entries()) {
    const offered = [{ name: "", label: `mixture ${i + 1}` }, ...drawn.features.map((feature) => ({ name: feature.name, label: named(feature) }))];
    keep(at(axis), offered, ({ name }) => name, ({ name }) => make("option", { value: name }), (option, { label }) => say(option, label));
    const known = drawn.features.some(({ name }) => name === chosen[axis]);
    const wanted = known ? chosen[axis] : "";
    if (at(axis).value !== wanted) at(axis).value = wanted;
  }
}

export function describeMap(model, anything, chosen) {
  const { drawn } = model;
  at("map-note").hidden = true;
  at("map-help").hidden = !anything;
  say(at("map-help"), model.rounds ? HELP_WITH_CENTRES : HELP_WITH_NODES);
  if (!anything) return;
  const notes = [];
  const mixed = ["across", "up"].filter((axis) => !drawn.features.some(({ name }) => name === chosen[axis]));
  if (drawn.spread_shown !== null && mixed.length === 2)
    notes.push(`The two axes are mixtures of ${count(drawn.features_total)} features and show ${percent(drawn.spread_shown)} of how nodes differ.`);
  if (model.nodes_total > drawn.nodes.id.length) notes.push(`${count(drawn.nodes.id.length)} of ${count(model.nodes_total)} nodes are drawn, the most-won ones.`);
  say(at("map-note"), notes.join(" "));
  at("map-note").hidden = !notes.length;
  const what = model.rounds ? "centre" : "node";
  at("map").setAttribute("aria-label", `Map of ${plural(drawn.nodes.id.length, what)} in ${plural(model.clusters_total, "cluster")}`);
}

// The way from nothing to a first clustering, and how far it is gone.
export function showMissing(picture, model) {
  const heard = picture.clients_total;
  const steps = [
    ["log", picture.ready, picture.ready ? "The log is read" : "The log is being opened or read"],
    ["clients", heard > 0, heard ? `${plural(heard, "client")} heard` : "No client heard"],
    ["clustering", false, model.rounds && model.version ? "A first round of answers" : "A first clustering"],
  ];
  say(at("waiting-for"), model.waiting_for);
  keep(at("missing"), steps, ([name]) => name, () => make("li", {}, make("span", { "aria-hidden": "true" }), make("span"), make("span", { class: "unseen" })), (item, [, done, words]) => {
    item.classList.toggle("done", done);
    say(item.children[0], done ? "✓" : "○");
    say(item.children[1], words);
    say(item.children[2], done ? " (done)" : " (missing)");
  });
}
