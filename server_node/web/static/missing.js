// What is missing before a model has a first clustering.

import { make, plural, reconcile, setText } from "./format.js";

const at = (id) => document.getElementById(id);

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
