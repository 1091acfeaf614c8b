// The privacy panel, and the list of rejected messages by reason.

import { count, reconcile, make, featureLabel, plural, setText, value } from "./format.js";

const at = (id) => document.getElementById(id);
const UNFOLDED_MAX = 6;
const REASONS = {
  type: "of another type",
  version: "of another version of shoal",
  oversized: "too large",
  malformed: "not a message",
  federation: "of another federation",
  contract: "under another contract",
  model: "of an unknown model",
  privacy: "under another privacy mode",
  arrays: "with arrays of a wrong shape or type",
  not_finite: "with numbers that are not finite",
  bounds: "with values outside the agreed bounds",
  claims: "with numbers that no readings can give",
  sequence: "with an impossible sequence number",
  client: "of a client that is not among those allowed",
  quota: "beyond what clients may send",
  conflict: "with the sequence number of another message",
  cluster: "for an unknown cluster",
  chunks: "with chunks that match no update",
  failed: "that made the server fail",
  cycle: "that came from this federation itself",
  signature: "not signed by the client they name",
};

export function showRejected(rejected) {
  const reasons = Object.entries(rejected);
  at("rejected").hidden = !reasons.length;
  reconcile(at("rejected-reasons"), reasons, ([reason]) => reason, () => make("li"), (item, [reason, messages]) =>
    setText(item, `${count(messages)} ${REASONS[reason] ?? reason}`));
}

export function showPrivacy(privacy) {
  const parts = [make("p", { class: `badge ${privacy.tone}` }, privacy.title)];
  if (privacy.remark) parts.push(make("p", { class: "notice" }, privacy.remark));
  const facts = [["Mode", privacy.mode]];
  if (privacy.epsilon !== null) {
    const several = privacy.models.length > 1 ? ", all models" : "";
    facts.push([`${privacy.nominal ? "Nominal ε" : "ε"} per ${privacy.per}${several}`, value(privacy.epsilon)]);
    for (const model of privacy.models) facts.push([model.name, modelText(model)]);
  }
  parts.push(make("dl", { class: "facts" }, ...facts.flatMap(([name, fact]) => [make("dt", {}, name), make("dd", {}, fact)])));
  parts.push(...privacy.sentences.map((sentence) => make("p", {}, sentence)));
  if (privacy.epsilon_per_feature.length) parts.push(epsilonTable(privacy));
  parts.push(make("h3", {}, "Not covered"));
  parts.push(make("ul", {}, ...privacy.not_covered.map((sentence) => make("li", {}, sentence))));
  at("privacy").replaceChildren(...parts);
}

/* What one model costs, and what it learns from. */
function modelText(model) {
  const epsilon = model.epsilon === null ? "" : `ε ${value(model.epsilon)} per ${model.unit}, `;
  if (model.learns_from === "rows") return `${epsilon}noisy rows, which models share`;
  return `${epsilon}counts of ${plural(model.window_readings, "reading")}`;
}

function epsilonTable(privacy) {
  const noisy = privacy.epsilon_per_feature.some(({ noise }) => noise !== null);
  const headings = ["Feature", "Bounds", privacy.nominal ? "Nominal ε" : "ε", ...(noisy ? ["Noise"] : [])];
  const rows = privacy.epsilon_per_feature.map((part) => make("tr", {},
    make("th", { scope: "row" }, featureLabel(part)),
    ...[`${value(part.low)} to ${value(part.high)}`, value(part.epsilon), ...(noisy ? [`± ${value(part.noise)}`] : [])].map(
      (text) => make("td", { class: "number" }, text))));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...headings.map((heading, i) => make("th", { scope: "col", class: i ? "number" : "" }, heading)))),
    make("tbody", {}, ...rows));
  const frame = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Epsilon of each feature" }, table);
  const note = noisy ? [make("p", { class: "quiet" }, "Noise: how far a value is moved on average, in its own unit.")] : [];
  const folded = make("details", {}, make("summary", {}, `ε of ${plural(privacy.features_total, "feature")}`), frame, ...note);
  if (privacy.features_total > rows.length) folded.append(make("p", { class: "quiet" }, `The first ${rows.length} are listed.`));
  folded.open = rows.length <= UNFOLDED_MAX;
  return folded;
}
