// The privacy panel, and what was set aside.

import { count, keep, make, named, plural, say, value } from "./format.js";

const at = (id) => document.getElementById(id);
const UNFOLDED_MAX = 6;
const REASONS = {
  type: "another kind of message",
  version: "another version of shoal",
  oversized: "too large",
  malformed: "not a message",
  federation: "of another federation",
  contract: "learnt under another contract",
  model: "of an unknown model",
  privacy: "made under another privacy",
  arrays: "arrays of a wrong form",
  not_finite: "holding numbers that are not finite",
  bounds: "outside the agreed bounds",
  sequence: "with an impossible sequence number",
  parts: "parts that fit no update",
  signature: "not signed by the client they name",
};

export function showRejected(rejected) {
  const reasons = Object.entries(rejected);
  at("rejected").hidden = !reasons.length;
  keep(at("rejected-reasons"), reasons, ([reason]) => reason, () => make("li"), (item, [reason, messages]) =>
    say(item, `${count(messages)} ${REASONS[reason] ?? reason}`));
}

export function showPrivacy(privacy) {
  const parts = [make("p", { class: `badge ${privacy.tone}` }, privacy.title)];
  const facts = [["Mode", privacy.mode]];
  if (privacy.epsilon_per_reading !== null) {
    facts.push([privacy.nominal ? "Nominal ε per reading" : "ε per reading", value(privacy.epsilon_per_reading)]);
  }
  parts.push(make("dl", { class: "facts" }, ...facts.flatMap(([name, fact]) => [make("dt", {}, name), make("dd", {}, fact)])));
  parts.push(...privacy.words.map((sentence) => make("p", {}, sentence)));
  if (privacy.epsilon_per_feature.length) parts.push(epsilonTable(privacy));
  parts.push(make("h3", {}, "Not covered"));
  parts.push(make("ul", {}, ...privacy.not_covered.map((sentence) => make("li", {}, sentence))));
  at("privacy").replaceChildren(...parts);
}

function epsilonTable(privacy) {
  const noisy = privacy.epsilon_per_feature.some(({ noise }) => noise !== null);
  const heads = ["Feature", "Bounds", privacy.nominal ? "Nominal ε" : "ε", ...(noisy ? ["Noise"] : [])];
  const rows = privacy.epsilon_per_feature.map((part) => make("tr", {},
    make("th", { scope: "row" }, named(part)),
    ...[`${value(part.low)} to ${value(part.high)}`, value(part.epsilon), ...(noisy ? [`± ${value(part.noise)}`] : [])].map(
      (text) => make("td", { class: "number" }, text))));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { scope: "col", class: i ? "number" : "" }, head)))),
    make("tbody", {}, ...rows));
  const frame = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Epsilon of each feature" }, table);
  const about = noisy ? [make("p", { class: "quiet" }, "Noise: how far a value is moved on average, in its own unit.")] : [];
  const folded = make("details", {}, make("summary", {}, `ε of ${plural(privacy.features_total, "feature")}`), frame, ...about);
  if (privacy.features_total > rows.length) folded.append(make("p", { class: "quiet" }, `The first ${rows.length} are listed.`));
  folded.open = rows.length <= UNFOLDED_MAX;
  return folded;
}
