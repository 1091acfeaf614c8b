// Everything around the map: counters, clusters, clients, messages set aside, privacy.

import { count, duration, fixed, keep, make, named, percent, plural, rate, say, short, value } from "./words.js";

const at = (id) => document.getElementById(id);
const COLOURS = 10;
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
};

export function showCounters(picture, model) {
  const rejected = Object.values(picture.rejected).reduce((sum, messages) => sum + messages, 0);
  const counters = [
    ["Clusters", count(model.clusters_total)],
    ["Nodes", count(model.nodes_total)],
    ["Readings", short(model.readings)],
    ["Per second", rate(picture.clients.reduce((sum, client) => sum + client.readings_per_s, 0))],
    ["Updates", short(model.updates)],
    ["Clients", count(picture.clients_total)],
    ["Set aside", count(rejected), rejected > 0],
    ["To read", count(picture.lag_records), picture.lag_records > 1000],
    ["Version", short(model.version)],
    ...roundCounters(model.rounds),
  ];
  keep(
    at("counters"), counters, ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (cell, [, number, attention]) => {
      say(cell.lastChild, number);
      cell.classList.toggle("attention", Boolean(attention));
    },
  );
}

function roundCounters(rounds) {
  if (!rounds) return [];
  return [
    ["Round", count(rounds.round)],
    ["Answers", count(rounds.answers)],
    ["Shift", rounds.shift === null ? "–" : value(rounds.shift)],
    ["State", rounds.state],
  ];
}

export function showClusters(model, onPoint) {
  const drawn = model.drawn ?? { clusters: [], features: [], features_total: 0 };
  const whole = drawn.clusters.reduce((sum, cluster) => sum + (cluster.weight ?? 0), 0);
  const titles = ["Cluster", "Nodes", "Share", ...drawn.features.map(named)];
  keep(
    at("clusters").tHead, drawn.clusters.length ? [titles] : [], (row) => row.join("|"),
    () => make("tr", {}, ...titles.map((title, i) => make("th", i ? { scope: "col", class: "number" } : { scope: "col" }, title))),
    () => {},
  );
  const body = at("clusters").tBodies[0];
  keep(
    body, drawn.clusters, (cluster) => `${cluster.number}/${titles.length}`,
    () => {
      const row = make("tr", {}, make("th", { scope: "row" }, make("span", { class: "swatch" }), make("span")));
      row.append(...titles.slice(1).map(() => make("td", { class: "number" })));
      row.addEventListener("pointerenter", () => onPoint(Number(row.dataset.number)));
      row.addEventListener("pointerleave", () => onPoint(null));
      return row;
    },
    (row, cluster) => {
      row.dataset.number = cluster.number;
      const [swatch, name] = row.cells[0].children;
      const colour = `var(--c${cluster.slot % COLOURS})`;
      swatch.style.borderColor = colour;
      swatch.style.background = Math.floor(cluster.slot / COLOURS) % 2 ? "none" : colour;
      say(name, String(cluster.number));
      say(row.cells[1], count(cluster.nodes));
      say(row.cells[2], cluster.weight === null || !whole ? "–" : percent(cluster.weight / whole));
      drawn.features.forEach((feature, j) => say(row.cells[3 + j], cluster.centre ? fixed(cluster.centre[j], feature.digits) : "–"));
    },
  );
  const notes = [];
  if (drawn.clusters.length) notes.push(`The centre of each cluster, in the features' own units; its share is of ${model.rounds ? "the rows behind the newest answers" : "all wins"}.`);
  if (drawn.features_total > drawn.features.length) notes.push(`${drawn.features.length} of ${count(drawn.features_total)} features are shown.`);
  if (model.clusters_total > drawn.clusters.length && model.drawn) notes.push(`${drawn.clusters.length} of ${count(model.clusters_total)} clusters are listed.`);
  if (!drawn.clusters.length) notes.push("None yet.");
  say(at("clusters-note"), notes.join(" "));
}

export function showClients(picture, now) {
  const silent = (client) => now - client.last_seen > picture.silent_after_s;
  keep(
    at("clients").tBodies[0], picture.clients, (client) => client.name,
    (client) => make("tr", {}, make("td", { title: client.name }, client.name), make("td"),
      make("td", { class: "number" }), make("td", { class: "number" })),
    (row, client) => {
      row.classList.toggle("silent", silent(client));
      say(row.cells[1], `${duration(now - client.last_seen)} ago`);
      say(row.cells[2], count(client.readings));
      say(row.cells[3], silent(client) ? "–" : `${rate(client.readings_per_s)}/s`);
    },
  );
  const quiet = picture.clients.filter(silent).length;
  const notes = [];
  if (!picture.clients_total) notes.push("No client has been heard yet.");
  if (quiet) notes.push(`${count(quiet)} not heard for ${picture.silent_after_s} s; what they taught is kept.`);
  if (picture.clients_total > picture.clients.length) notes.push(`${picture.clients.length} of ${count(picture.clients_total)} clients are listed.`);
  say(at("clients-note"), notes.join(" "));
  const reasons = Object.entries(picture.rejected);
  at("rejected").hidden = !reasons.length;
  keep(at("rejected-reasons"), reasons, ([reason]) => reason, () => make("li"), (item, [reason, messages]) =>
    say(item, `${count(messages)} ${REASONS[reason] ?? reason}`));
}

export function showPrivacy(privacy) {
  const parts = [make("p", { class: `badge ${privacy.tone}` }, privacy.title)];
  if (privacy.epsilon_per_reading !== null) {
    const kind = privacy.nominal ? "per reading, nominal" : "per reading, all its features together";
    parts.push(make("p", { class: "epsilon" }, `ε = ${value(privacy.epsilon_per_reading)} `, make("small", {}, kind)));
  }
  parts.push(...privacy.words.map((sentence) => make("p", {}, sentence)));
  if (privacy.epsilon_per_feature.length) parts.push(epsilonTable(privacy));
  parts.push(make("h3", {}, "Not covered"));
  parts.push(make("ul", {}, ...privacy.not_covered.map((sentence) => make("li", {}, sentence))));
  at("privacy").replaceChildren(...parts);
}

function epsilonTable(privacy) {
  const heads = [["Feature", ""], ["Bounds", "number"], [privacy.nominal ? "Nominal ε" : "ε", "number"]];
  const rows = privacy.epsilon_per_feature.map((part) => make("tr", {},
    make("td", {}, part.name),
    make("td", { class: "number" }, `${value(part.low)} to ${value(part.high)} ${part.unit}`.trim()),
    make("td", { class: "number" }, value(part.epsilon))));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map(([head, kind]) => make("th", { scope: "col", class: kind }, head)))),
    make("tbody", {}, ...rows));
  const folded = make("details", {}, make("summary", {}, `ε of ${plural(rows.length, "feature")}`), make("div", { class: "scroll" }, table));
  folded.open = rows.length <= 6;
  return folded;
}
