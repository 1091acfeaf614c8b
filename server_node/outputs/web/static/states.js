// States: the graph of changes between them with how long each lasts, and those of another model beside the clusters shown.

import { at, clusterTitle, count, duration, fillSwatch, make, markOf, percentText, plural, reconcile, setText, SVG, swatch } from "./format.js";

const SIZE = 260;
const RING = 88;
const DISC_MIN = 14;
const DISC_MORE = 20; // by which the disc of a state with all readings is larger
const SHOWN_MAX = 10;
const ARROW_MAX = 7;
const BAND = 28;

function shape(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  element.textContent = text;
  return element;
}

const dwellText = (dwell, reading_s) => `about ${reading_s ? duration(dwell * reading_s) : plural(dwell, "reading")} at a stretch`;

const shareText = ({ share, sharePercent }) => (share === null ? "" : `${percentText(sharePercent, share)} of the readings, `);

export function showStates(model) {
  const clustering = model.waiting_for ? null : model.clustering;
  const states = clustering?.states;
  at("states-panel").hidden = !states;
  if (states) showOwn(states, clustering.clusters);
  showBeside(clustering);
}

function showOwn(states, clusters) {
  const named = new Map(clusters.map((each) => [each.identity, each]));
  const several = clusters.filter(({ dwell }) => dwell !== null).length > 1;
  setText(at("states-words"), several
    ? `${plural(states.n_changes, "change")} seen, in blocks of ${plural(states.block, "reading")}.${states.provisional ? " Provisional: too few changes, or the last two evaluations disagree." : ""}`
    : states.provisional && states.readings_needed
      ? `No states found yet: under this noise it takes about ${plural(states.readings_needed, "reading")} of all clients until most show.`
      : "One state: nothing stays apart from the rest.");
  const listed = several ? clusters.filter(({ dwell }) => dwell !== null) : [];
  reconcile(at("states-list"), listed, ({ identity }) => identity, () => make("li", {}, swatch(), make("span")), (item, cluster) => {
    fillSwatch(item.firstChild, cluster.slot);
    setText(item.lastChild, `${clusterTitle(cluster)}: ${shareText(cluster)}${dwellText(cluster.dwell, states.reading_s)}`);
  });
  const frame = at("transitions");
  frame.hidden = !several;
  const drawn = JSON.stringify([states, listed.map(({ identity, slot, share, dwell }) => [identity, slot, share, dwell])]);
  if (frame.dataset.drawn === drawn) return;
  frame.dataset.drawn = drawn;
  frame.replaceChildren(...(several ? graph(states, listed.slice(0, SHOWN_MAX), named) : []));
}

// States on a ring, as large as their share; arrows as thick as the changes seen are many.
function graph({ moves, reading_s }, listed, named) {
  const spot = new Map(listed.map(({ identity, share }, i) => {
    const angle = (2 * Math.PI * i) / listed.length - (listed.length === 2 ? Math.PI : Math.PI / 2);
    return [identity, { x: SIZE / 2 + RING * Math.cos(angle), y: SIZE / 2 + RING * Math.sin(angle), r: DISC_MIN + DISC_MORE * Math.sqrt(share ?? 0) }];
  }));
  const drawn = moves.filter(([from, to]) => spot.has(from) && spot.has(to));
  const most = Math.max(1, ...drawn.map(([, , times]) => times));
  const arrows = drawn.flatMap(([from, to, times]) => arrow(spot.get(from), spot.get(to), times, 1 + (ARROW_MAX - 1) * (times / most), markOf(named.get(from).slot).colour, `${clusterTitle(named.get(from))} to ${clusterTitle(named.get(to))}: ${plural(times, "change")}`));
  const discs = listed.map((cluster) => {
    const { x, y, r } = spot.get(cluster.identity);
    const group = shape("g", { class: "state" });
    group.append(
      shape("circle", { cx: x, cy: y, r, class: `mark c${markOf(cluster.slot).colour}` }),
      shape("text", { x, y: y + 4, "text-anchor": "middle" }, cluster.identity),
      shape("title", {}, `${clusterTitle(cluster)}, ${dwellText(cluster.dwell, reading_s)}`),
    );
    return group;
  });
  return [...arrows, ...discs];
}

// A bent arrow, so that those of both directions lie beside each other, and the changes seen.
function arrow(from, to, times, width, colour, words) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy);
  const [ux, uy] = [dx / length, dy / length];
  const bend = 18 + width;
  const [mx, my] = [(from.x + to.x) / 2 - uy * bend, (from.y + to.y) / 2 + ux * bend];
  const towards = (end, gap) => {
    const far = Math.hypot(mx - end.x, my - end.y);
    return [end.x + ((mx - end.x) / far) * (end.r + gap), end.y + ((my - end.y) / far) * (end.r + gap)];
  };
  const head = 4 + width;
  const [sx, sy] = towards(from, 1);
  const [ex, ey] = towards(to, 2 + head);
  const [tx, ty] = towards(to, 2);
  const [hx, hy] = [(ty - ey) / head, -(tx - ex) / head];
  const line = shape("path", { class: `move f${colour}`, d: `M${sx.toFixed(1)} ${sy.toFixed(1)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${ex.toFixed(1)} ${ey.toFixed(1)}`, "stroke-width": width.toFixed(1) });
  const tip = shape("path", { class: `tip f${colour}`, d: `M${tx.toFixed(1)} ${ty.toFixed(1)}L${(ex + hx * head * 0.6).toFixed(1)} ${(ey + hy * head * 0.6).toFixed(1)}L${(ex - hx * head * 0.6).toFixed(1)} ${(ey - hy * head * 0.6).toFixed(1)}Z` });
  line.append(shape("title", {}, words));
  // On the outer side of the bend.
  return [line, tip, shape("text", { class: "times", x: (mx - uy * 7).toFixed(1), y: (my + ux * 7 + 4).toFixed(1), "text-anchor": "middle" }, count(times))];
}

// The states that another model has found in the same readings. One list where they are the clusters.
function showBeside(clustering) {
  const beside = clustering?.beside;
  const same = beside && Object.keys(beside.same).length > 0;
  at("beside-panel").hidden = !beside;
  if (!beside) return;
  const titles = new Map(clustering.clusters.map((each) => [String(each.identity), each]));
  const rows = same
    ? Object.entries(beside.same).filter(([identity]) => titles.has(identity)).map(([identity, dwell]) => ({ ...titles.get(identity), dwell, trend: null }))
    : beside.states;
  setText(at("beside-words"), same
    ? `The states of ${beside.model} part the readings as the clusters do.`
    : `Model ${beside.model} parts the same readings by where they dwell. Share of each over time:`);
  reconcile(
    at("beside-list"), rows, ({ identity }) => `${identity}/${same}`,
    () => make("li", {}, swatch(), make("span"), frameOf()),
    (item, row) => {
      fillSwatch(item.children[0], row.slot ?? 0);
      setText(item.children[1], `${clusterTitle(row)}: ${dwellText(row.dwell, beside.reading_s)}`);
      fillBand(item.children[2], row);
    },
  );
}

function frameOf() {
  const frame = shape("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
  frame.append(shape("path", {}));
  return frame;
}

function fillBand(frame, { trend, slot }) {
  frame.toggleAttribute("hidden", !trend?.length);
  if (!trend?.length) return;
  frame.setAttribute("viewBox", `0 0 ${trend.length} ${BAND}`);
  const bars = trend.map((share, i) => (share ? `M${i} ${BAND}V${(BAND * (1 - share / 1000)).toFixed(1)}H${i + 1}V${BAND}Z` : ""));
  frame.firstChild.setAttribute("class", `range c${markOf(slot ?? 0).colour}`);
  frame.firstChild.setAttribute("d", bars.join(""));
}
