// The histograms of the chosen cluster: how its readings lie in each feature, before all others in grey.

import { featureLabel, make, markOf, reconcile, setText, shown, SVG } from "./format.js";

const REFRESH_MS = 5000;
const HEIGHT = 40;
const newest = { key: "", version: -1, features: [], fetchedAt: -REFRESH_MS, busy: false };

// Shows what is known already in `frame`, and what is newer once it has come.
export function showHistograms(frame, cluster, model) {
  const key = `${model.name}/${cluster.identity}`;
  if (newest.key !== key) Object.assign(newest, { key, version: -1, features: [], fetchedAt: -REFRESH_MS });
  draw(frame, cluster, model);
  if (newest.busy || newest.version === model.version || performance.now() < newest.fetchedAt + REFRESH_MS) return;
  Object.assign(newest, { busy: true, fetchedAt: performance.now() });
  fetched(cluster, model).then((answer) => {
    newest.busy = false;
    if (!frame.isConnected) return;
    if (newest.key !== key) showHistograms(frame, cluster, model); // another cluster was chosen meanwhile
    if (!answer || newest.key !== key) return;
    Object.assign(newest, { version: answer.version, features: answer.features });
    draw(frame, cluster, model);
  });
}

// null while the server is away, and for a cluster that it does not know any more.
async function fetched({ identity }, { name }) {
  const response = await fetch(`v1/clusters/${identity}/histograms?model=${encodeURIComponent(name)}`).catch(() => null);
  return response?.ok ? response.json().catch(() => null) : null;
}

function draw(frame, cluster, model) {
  const shown = new Set(model.clustering.features.map(({ name }) => name));
  const features = newest.features.filter(({ name }) => shown.has(name));
  frame.hidden = !features.length;
  reconcile(frame, features, ({ name }) => name, figure, (item, feature) => fill(item, feature, cluster));
}

function figure(feature) {
  const chart = document.createElementNS(SVG, "svg");
  chart.setAttribute("viewBox", `0 0 ${feature.own.length} ${HEIGHT}`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.setAttribute("aria-hidden", "true");
  for (let layer = 0; layer < 2; layer += 1) chart.append(document.createElementNS(SVG, "path"));
  const ends = make("div", { class: "ends", "aria-hidden": "true" }, make("span"), make("span"));
  return make("figure", {}, make("figcaption", {}, featureLabel(feature)), chart, ends, make("p", { class: "visually-hidden" }));
}

function fill(item, feature, cluster) {
  const [, chart, ends, words] = item.children;
  const highest = Math.max(...feature.own, ...feature.others, 1);
  const layers = [["others", feature.others], [`own c${markOf(cluster.slot).colour}`, feature.own]];
  layers.forEach(([name, shares], layer) => {
    chart.children[layer].setAttribute("class", name);
    chart.children[layer].setAttribute("d", outline(shares, highest));
  });
  [feature.low, feature.high].forEach((end, i) => setText(ends.children[i], shown(end, feature)));
  const others = feature.others.some(Boolean) ? `; all others: ${mostly(feature, feature.others)}` : "";
  const text = `${mostly(feature, feature.own)}${others}`;
  setText(words, text);
  if (item.title !== text) item.title = text;
}

// Steps from the floor, one for each bin.
function outline(shares, highest) {
  const y = (share) => (HEIGHT * (1 - share / highest)).toFixed(1);
  return `M0 ${HEIGHT}${shares.map((share, bin) => `V${y(share)}H${bin + 1}`).join("")}V${HEIGHT}Z`;
}

// Between which values the middle 80 % lie, to whole bins.
function mostly(feature, shares) {
  const { low, high, unit } = feature;
  const total = shares.reduce((sum, share) => sum + share, 0);
  const width = (high - low) / shares.length;
  let reached = 0;
  let [from, to] = [0, shares.length];
  shares.forEach((share, bin) => {
    if (reached <= 0.1 * total) from = bin;
    if (reached < 0.9 * total) to = bin + 1;
    reached += share;
  });
  return `mostly ${shown(low + from * width, feature)} to ${shown(low + to * width, feature)} ${unit}`.trim();
}
