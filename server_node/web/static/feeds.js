// Which client feeds which cluster: for each client, how its readings of a chosen time are divided among the clusters.

import { clusterTitle, make, reconcile, setText } from "./format.js";
import { fillSwatch, markOf, swatch } from "./marks.js";
import { compareNames } from "./sorting.js";

const at = (id) => document.getElementById(id);
const COLUMNS_MAX = 7;
const LEVELS = 5;
const REFRESH_MS = 30_000;
const HOUR = 3600;
const FINE = 300; // seconds of a bin; the server keeps two days of them
const SPANS = [["1 hour", 0], ["1 day", 24 * HOUR], ["2 days", 48 * HOUR]]; // the status has the newest hour
const longer = { asked: "", feeds: null, failed: false, fetchedAt: 0, busy: false };
let [span, model] = [0, null];

at("feeds-spans").append(...SPANS.map(([name], place) => {
  const button = make("button", { type: "button" }, name);
  button.addEventListener("click", () => {
    span = place;
    showFeeds(model);
  });
  return button;
}));

export function showFeeds(shown) {
  model = shown;
  const clustering = model.clustering;
  at("feeds-panel").hidden = !Object.keys(clustering?.feeds ?? {}).length || Boolean(model.waiting_for);
  if (at("feeds-panel").hidden) return;
  SPANS.forEach((_, place) => (at("feeds-spans").children[place].ariaPressed = String(place === span)));
  if (span) follow(`${model.name}/${span}`);
  draw(Object.entries((span ? longer.feeds : clustering.feeds) ?? {}).sort(([a], [b]) => compareNames(a, b)));
  const time = span ? `the last ${SPANS[span][0].replace("1 ", "")}` : "the last hour, where they come all the time";
  const state = span && longer.failed ? "The history cannot be read at present." : span && !longer.feeds ? "" : `% of each client's newest readings: of ${time}.`;
  setText(at("feeds-note"), state);
}

// Fetches what the status does not have, and again from time to time.
function follow(asked) {
  if (longer.asked !== asked) Object.assign(longer, { asked, feeds: null, failed: false, fetchedAt: -REFRESH_MS });
  const newest = model.clustering.usual?.newest;
  if (longer.busy || newest === undefined || performance.now() < longer.fetchedAt + REFRESH_MS) return;
  Object.assign(longer, { busy: true, fetchedAt: performance.now() });
  fetched(model.name, newest + FINE - SPANS[span][1]).then((feeds) => {
    longer.busy = false;
    if (longer.asked === asked) Object.assign(longer, { feeds: feeds ?? longer.feeds, failed: !feeds });
    showFeeds(model); // where another time was chosen meanwhile, this fetches it
  });
}

async function fetched(name, from) {
  const response = await fetch(`v1/feeds?model=${encodeURIComponent(name)}&from=${from}`).catch(() => null);
  return response?.ok ? response.json().then(({ clients }) => clients, () => null) : null;
}

function draw(feeds) {
  const fed = new Map();
  for (const [, clusters] of feeds) for (const [identity, share] of clusters) fed.set(identity, (fed.get(identity) ?? 0) + share);
  const all = model.clustering.clusters.filter(({ identity }) => fed.has(identity));
  const most = [...all].sort((a, b) => fed.get(b.identity) - fed.get(a.identity)).slice(0, COLUMNS_MAX);
  const columns = all.filter((cluster) => most.includes(cluster));
  const others = all.length - columns.length;
  const key = `${columns.map(({ identity }) => identity).join("/")}/${others > 0}`;
  reconcile(
    at("feeds").tHead, [columns], () => key,
    () => make("tr", {}, make("th", { scope: "col" }, "Client"),
      ...columns.map(() => make("th", { scope: "col", class: "tall" }, make("span"), swatch())), make("th", { scope: "col", class: "tall" }, make("span"))),
    (row) => {
      columns.forEach((cluster, j) => {
        setText(row.children[j + 1].firstChild, clusterTitle(cluster));
        fillSwatch(row.children[j + 1].lastChild, cluster.slot);
      });
      setText(row.lastChild.firstChild, others > 0 ? `${others} others` : "");
    },
  );
  reconcile(
    at("feeds").tBodies[0], feeds, ([client]) => `${client}/${key}`,
    ([client]) => make("tr", {}, make("th", { scope: "row", title: client }, client), ...columns.map(() => make("td")), make("td")),
    (row, [, clusters]) => fill(row, new Map(clusters), columns),
  );
}

function fill(row, shares, columns) {
  // The shares are in percent.
  let rest = [...shares.values()].reduce((sum, share) => sum + share, 0);
  columns.forEach(({ identity, slot }, j) => {
    const share = shares.get(identity) ?? 0;
    rest -= share;
    const cell = row.children[j + 1];
    const level = share ? Math.min(LEVELS, 1 + Math.floor((share / 100) * LEVELS)) : 0;
    cell.className = level ? `level level${level} f${markOf(slot).colour}` : "";
    setText(cell, share || "");
  });
  setText(row.lastChild, rest || "");
}
