// How clusters differ: for each feature, where the middle 80 % of every cluster lies, all on one scale.

import { clusterTitle, make, featureLabel, reconcile, setText, value } from "./format.js";
import { fillSwatch, markOf, swatch } from "./marks.js";

const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
const WIDTH = 100;
const HEIGHT = 18;

export function showDifferences(model) {
  const clustering = model.clustering;
  const clusters = (clustering?.clusters ?? []).filter(({ spread }) => spread); // the server sends it for the heaviest
  at("differ-panel").hidden = clusters.length < 2 || Boolean(model.waiting_for);
  if (at("differ-panel").hidden) return;
  const { features } = clustering;
  const scales = features.map((_, j) => scaleOf(clusters.map(({ spread }) => spread[j])));
  reconcile(
    at("differ").tHead, [features], () => features.map(featureLabel).join("|"),
    () => make("tr", {}, make("th", { scope: "col" }, "Cluster"), ...features.map((feature) => make("th", { scope: "col" }, featureLabel(feature)))),
    () => {},
  );
  reconcile(
    at("differ").tBodies[0], clusters, ({ identity }) => `${identity}/${features.length}`, () => row(features),
    (line, cluster) => fill(line, cluster, features, scales),
  );
  reconcile(
    at("differ").tFoot, [scales], () => features.length,
    () => make("tr", {}, make("th", { scope: "row" }, "From, to"), ...features.map(() => make("td"))),
    (line) => scales.forEach(([low, high], j) => setText(line.children[j + 1], `${value(low)} – ${value(high)}`)),
  );
}

// From the lowest to the highest end of all clusters shown.
function scaleOf(spreads) {
  const [low, high] = [Math.min(...spreads.map(([least]) => least)), Math.max(...spreads.map(([, most]) => most))];
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function row(features) {
  const cells = features.map(() => {
    const frame = document.createElementNS(SVG, "svg");
    frame.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    frame.setAttribute("preserveAspectRatio", "none");
    frame.setAttribute("aria-hidden", "true");
    for (const part of ["rect", "rect", "rect"]) frame.append(document.createElementNS(SVG, part));
    return make("td", {}, frame, make("span", { class: "visually-hidden" }));
  });
  return make("tr", {}, make("th", { scope: "row" }, swatch(), make("span")), ...cells);
}

function fill(line, cluster, features, scales) {
  fillSwatch(line.firstChild.firstChild, cluster.slot);
  setText(line.firstChild.lastChild, clusterTitle(cluster));
  features.forEach((feature, j) => {
    const [[low, high], centre] = [cluster.spread[j], cluster.centre[j]];
    const [frame, words] = line.children[j + 1].children;
    const x = (number) => ((number - scales[j][0]) / (scales[j][1] - scales[j][0])) * WIDTH;
    place(frame.children[0], "scale", 0, WIDTH, HEIGHT / 2 - 0.5, 1);
    place(frame.children[1], `range c${markOf(cluster.slot).colour}`, x(low), Math.max(1, x(high) - x(low)), 4, HEIGHT - 8);
    place(frame.children[2], "middle", Math.min(WIDTH - 1.2, Math.max(0, x(centre))), 1.2, 1, HEIGHT - 2);
    const text = `${value(low)} to ${value(high)}${feature.unit ? ` ${feature.unit}` : ""}, centre ${value(centre)}`;
    setText(words, text);
    if (line.children[j + 1].title !== text) line.children[j + 1].title = text;
  });
}

function place(shape, name, x, width, y, height) {
  for (const [attribute, content] of Object.entries({ class: name, x, width, y, height })) shape.setAttribute(attribute, content);
}
