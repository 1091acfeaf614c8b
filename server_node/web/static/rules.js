// The rules by which a model predicts a feature, the one with most rows first.

import { make, percent, reconcile, setText } from "./format.js";

const at = (id) => document.getElementById(id);

export function showRules(model) {
  const shown = model.waiting_for ? null : model.clustering?.rules;
  at("rules-panel").hidden = !shown;
  if (!shown) return;
  const off = shown.error === null ? "" : ` Predictions are off by ${`${shown.error} ${shown.unit}`.trim()} (root of the mean squared error).`;
  setText(at("rules-target"), `${shown.target} is predicted from the other features.${off}`);
  reconcile(at("rules"), shown.rules, ({ cluster }) => `${cluster}`, () => make("li", {}, make("span"), " ", make("small", { class: "quiet" })), fill);
  setText(at("rules-note"), note(shown));
}

function fill(item, { text, share }) {
  setText(item.children[0], text);
  setText(item.children[1], `${percent(share)} of the rows`);
}

function note(shown) {
  if (!shown.conditions_found) return "The conditions are not found yet; until then all rules have one consequent, that of linear regression.";
  const listed = shown.total > shown.rules.length ? ` The ${shown.rules.length} rules with most rows of ${shown.total} are listed.` : "";
  return `A word says in which fifth of the values the centre of a condition lies. A prediction is the mean of all rules, weighted by how well their conditions are met.${listed}`;
}
