// The lower part of the page, loaded after the first picture: the counters, the chart of the number of clusters, rules, privacy,
// and the tables of clusters and clients.

import { Clients, showFeeds, showRegions } from "./clients.js";
import { Clusters, showDifferences } from "./clusters.js";
import {
  at, count, duration, featureLabel, make, percent, plural, rate, reconcile, setText, short, SVG, value,
} from "./format.js";
import { showCycles } from "./cycles.js";
import { moment } from "./history.js";
import { showStates } from "./states.js";
import { clientsOf, titlesOf } from "./status.js";

const LEFT = 30;
const BOTTOM = 20;
const TOP = 6;

function shape(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  element.textContent = text;
  return element;
}

function chartTicks(highest) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((size) => highest / size <= 4) ?? Math.ceil(highest / 4);
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, i) => i * step);
}

// The number of clusters over time, a step function.
function drawHistory(frame, history, now) {
  const { width, height } = frame.getBoundingClientRect();
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const start = history.length ? history[0][0] : now;
  const end = Math.max(now, start + 1);
  const highest = Math.max(2, ...history.map(([, clusters]) => clusters));
  const x = (time) => LEFT + ((Math.min(time, end) - start) / (end - start)) * (width - LEFT);
  const y = (clusters) => height - BOTTOM - (clusters / highest) * (height - BOTTOM - TOP);
  for (const tick of chartTicks(highest)) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: width, y1: y(tick), y2: y(tick) }));
    svg.append(shape("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, tick));
  }
  if (history.length) {
    const steps = history.map(([time, clusters], i) => `${i ? "H" : "M"}${x(time)}${i ? "V" : " "}${y(clusters)}`);
    const line = `${steps.join("")}H${x(end)}`;
    svg.append(shape("path", { class: "under", d: `${line}V${y(0)}H${x(start)}Z` }));
    svg.append(shape("path", { class: "steps", d: line }));
    svg.append(shape("text", { x: LEFT, y: height - 3 }, moment(start)));
    svg.append(shape("text", { x: width, y: height - 3, "text-anchor": "end" }, moment(end)));
    const latest = history[history.length - 1][1];
    svg.setAttribute("aria-label", `From ${history[0][1]} to ${latest} clusters in ${duration(end - start)}`);
  }
  if (!history.length) svg.append(shape("text", { x: (LEFT + width) / 2, y: (height - BOTTOM) / 3, "text-anchor": "middle" }, "No clusters yet"));
  frame.replaceChildren(svg);
}

// A name, a number, and a short explanation each.
function showCounters(status, model, now) {
  reconcile(
    at("counters"), [...(model.rounds ? roundCounters(model) : streamCounters(model, status)), ...serverCounters(status, model, now)],
    ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd", { class: "figure" }), make("dd", { class: "about" })),
    (cell, [, figure, about, attention]) => {
      setText(cell.children[1], figure);
      setText(cell.children[2], about);
      cell.classList.toggle("attention", Boolean(attention));
    },
  );
}

const perSecond = ({ clients }) => `${rate(clients.readings_per_s.reduce((sum, each) => sum + each, 0))} per second`;

function streamCounters(model, status) {
  return [
    ["Clusters", count(model.clusters_total), `${count(model.clusters_active)} active now`],
    ["Nodes", count(model.nodes_total), "places learnt"],
    [model.counts_places ? "Places" : "Readings", short(model.readings), perSecond(status)],
  ];
}

const PHASES = { collecting: "collecting answers", sleeping: "sleeping", waiting_for_clusters: "waiting for clusters" };

function roundCounters({ rounds, clusters_total, readings, version }) {
  const { phase, round, received, expected, counted, shift } = rounds;
  const collecting = phase !== "sleeping";
  const asked = expected ? `of ${count(expected)} requested` : "no client known yet";
  return [
    ["Clusters", count(clusters_total), "not empty"],
    ["Round", count(round), PHASES[phase]],
    ["Answers", count(collecting ? received : counted), collecting ? asked : "in the newest round"],
    ["Shift", shift === null ? "–" : value(shift), shift === null ? "before the first round" : "in the newest round"],
    ["Readings", version ? short(readings) : "–", "in newest answers"],
  ];
}

function serverCounters(status, model, now) {
  const rejected = Object.values(status.rejected).reduce((sum, messages) => sum + messages, 0);
  const inactive = clientsOf(status, now).filter((client) => client.inactive).length;
  const lag = status.lag_records; // null on a page that reads no updates
  const waiting = lag === null ? "in its snapshots" : lag ? `${short(lag)} more to read` : "all read";
  return [
    ["Clients", count(status.clients_total), inactive ? `${count(inactive)} inactive` : !status.clients_total ? "none yet" : status.ended ? "the source has ended" : "all active"],
    ["Updates", short(model.updates), waiting, lag > 1000],
    ["Rejected", lag === null ? "–" : count(rejected), lag === null ? "known to the server" : rejected === 1 ? "message" : "messages", rejected > 0],
    ["Snapshot", model.version ? short(model.version) : "–", model.made_at === null ? "none published yet" : `${duration(now - model.made_at)} old`],
  ];
}

// The rules by which a model predicts a feature, the one with most rows first.
function showRules(model) {
  const shown = model.waiting_for ? null : model.clustering?.rules;
  at("rules-panel").hidden = !shown;
  if (!shown) return;
  const off = !shown.error_text ? "" : ` Predictions are off by ${`${shown.error_text} ${shown.target.unit}`.trim()} (root of the mean squared error).`;
  setText(at("rules-target"), `${shown.target.name} is predicted from the other features.${off}`);
  reconcile(at("rules"), shown.rules, ({ cluster }) => `${cluster}`, () => make("li", {}, make("span"), " ", make("small", { class: "quiet" })), fillRule);
  setText(at("rules-note"), rulesNote(shown));
}

function fillRule(item, { text, rows_share }) {
  setText(item.children[0], text);
  setText(item.children[1], `${percent(rows_share)} of the rows`);
}

function rulesNote(shown) {
  if (!shown.conditions_found) return "The conditions are not found yet; until then all rules have one consequent, that of linear regression.";
  const listed = shown.total > shown.rules.length ? ` The ${shown.rules.length} rules with most rows of ${shown.total} are listed.` : "";
  return `A word says in which fifth of the values the centre of a condition lies. A prediction is the mean of all rules, weighted by how well their conditions are met.${listed}`;
}

const UNFOLDED_MAX = 6;
const REASONS = {
  unreadable: "that the log cannot read",
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
  repeated: "requests that were sent once more",
  cluster: "for an unknown cluster",
  chunks: "with chunks that match no update",
  failed: "that made the server fail",
  cycle: "that came from this federation itself",
  signature: "not signed by the client they name",
};

// The number of rejected messages by reason.
function showRejected(rejected) {
  const reasons = Object.entries(rejected);
  at("rejected").hidden = !reasons.length;
  reconcile(at("rejected-reasons"), reasons, ([reason]) => reason, () => make("li"), (item, [reason, messages]) =>
    setText(item, `${count(messages)} ${REASONS[reason] ?? reason}`));
}

function showPrivacy(privacy, shown) {
  const parts = [make("p", { class: `badge ${privacy.mode === "off" ? "quiet" : privacy.tone}` }, privacy.title)];
  if (privacy.remark) parts.push(make("p", { class: "notice" }, privacy.remark));
  const [facts, others] = [[["Mode", privacy.mode]], []];
  if (privacy.epsilon !== null) {
    const name = privacy.nominal ? "Nominal ε" : "ε";
    const own = privacy.models.find((model) => model.name === shown.name);
    if (own) facts.push([`${name} of ${own.name}`, modelText(own)]);
    facts.push([`${name} per ${privacy.per}${privacy.models.length > 1 ? ", all models" : ""}`, value(privacy.epsilon)]);
    for (const model of privacy.models) if (model !== own) others.push([model.name, modelText(model)]);
  }
  parts.push(factList(facts));
  const more = [...(others.length ? [factList(others)] : []), factList(privacy.guarantee), ...privacy.sentences.map((sentence) => make("p", {}, sentence))];
  if (privacy.epsilon_per_feature.length) more.push(epsilonTable(privacy));
  more.push(make("h3", {}, "Not covered"));
  more.push(make("ul", {}, ...privacy.not_covered.map((sentence) => make("li", {}, sentence))));
  const summary = make("summary", {}, "What this means, and what it does not cover");
  at("privacy").replaceChildren(...parts, make("details", { class: "more" }, summary, make("div", {}, ...more)));
}

const factList = (facts) => make("dl", { class: "facts" }, ...facts.flatMap(([name, fact]) => [make("dt", {}, name), make("dd", {}, fact)]));

// What one model costs, and what it learns from.
function modelText(model) {
  const epsilon = model.epsilon === null ? "" : `ε ${value(model.epsilon)} per ${model.unit}, `;
  if (model.learns_from === "rows") return `${epsilon}noisy rows, which models share`;
  return `${epsilon}counts of windows of ${plural(model.window_readings, "reading")}: ${model.counted}`;
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

const chart = at("history");

export class Details {
  // `onHover` and `onChoose` get the identity of a cluster; `onHover` null where the pointer leaves it.
  constructor(onHover, onChoose) {
    [this.clusters, this.clients] = [new Clusters(onHover, onChoose), new Clients()];
    [this.model, this.now] = [null, 0];
    this.privacyShown = ""; // digest of the contract and the model whose privacy is shown
    new ResizeObserver(() => this.model && drawHistory(chart, this.model.history, this.now)).observe(chart);
  }

  // `pinned` is the identity of the chosen cluster, or null.
  show(status, model, pinned) {
    showDifferences(model);
    showFeeds(model, titlesOf(status));
    showRules(model);
    showStates(model);
    showCycles(model);
    showRejected(status.rejected);
    this.pin(pinned);
    // Privacy changes seldom; not rendering it again keeps open what the user has unfolded.
    const shown = `${status.contract}/${model.name}/${status.privacy.sentences.at(-1)}`;
    if (this.privacyShown !== shown) showPrivacy(status.privacy, model);
    this.privacyShown = shown;
  }

  pin(identity) {
    this.clusters.pin(identity);
  }

  // What changes with time alone: ages.
  tick(status, model, now) {
    const newest = model.newest_reading_at ?? now;
    [this.model, this.now] = [model, newest];
    showCounters(status, model, now);
    this.clusters.show(model, newest);
    this.clients.show(status, now);
    showRegions(status, clientsOf(status, now));
    drawHistory(chart, model.history, newest);
  }
}
