// The tables of clients: when each was last seen, which cluster each feeds, and the regions that they are in.

import {
  at, clusterTitle, count, duration, fillSwatch, make, markOf, plural, rate, reconcile, setText, swatch,
} from "./format.js";
import { compareNames, Sorting } from "./sorting.js";
import { clientsOf } from "./status.js";

const ROWS_MAX = 100; // the search finds the others
const SEARCH_FROM = 8;
const columns = (status) => [
  { key: "name", title: "Client", of: ({ title }) => title },
  { key: "age", title: "Received", number: true, of: ({ age }) => age },
  { key: "readings", title: countsPlaces(status) ? "Places" : "Readings", number: true, of: ({ readings }) => readings },
  ...(saysRejected(status) ? [{ key: "rejected", title: "Rejected", number: true, of: ({ rejected }) => rejected }] : []),
  { key: "rate", title: "Rate", number: true, of: ({ rate }) => rate },
];

// A client's number is the largest of all models: it may be of places where any model counts these.
const countsPlaces = ({ models }) => models.some((model) => model.counts_places);

// Clients say how many readings they rejected where privacy does not hide it.
const saysRejected = ({ clients }) => clients.rejected.some((readings) => readings > 0);

// The table of clients: it can be searched and sorted.
export class Clients {
  constructor() {
    this.sorting = new Sorting(at("clients"), "name", false, () => this.refresh());
    at("client-search").addEventListener("input", () => this.refresh());
    at("only-inactive").addEventListener("change", () => this.refresh());
  }

  refresh() {
    this.show(this.status, this.now);
  }

  show(status, now) {
    [this.status, this.now] = [status, now];
    const all = clientsOf(status, now);
    const query = at("client-search").value.trim().toLowerCase();
    const only = at("only-inactive").checked;
    const found = all.filter(({ name, title, inactive }) => (!only || inactive) && `${title}\n${name}`.toLowerCase().includes(query));
    const listed = this.sorting.order(found, columns(status)).slice(0, ROWS_MAX);
    at("client-filter").hidden = all.length < SEARCH_FROM;
    this.sorting.head(all.length ? columns(status) : []);
    const width = columns(status).length;
    reconcile(at("clients").tBodies[0], listed, ({ name, title }) => `${name}/${title}/${width}`, (client) => clientRow(client, width), fillClient);
    setText(at("clients-note"), this.notes(all, found, listed).join(" "));
  }

  notes(all, found, listed) {
    const { clients_total: total, clients_note: note } = this.status;
    const notes = note ? [note] : [];
    if (!total) return [...notes, "No client has sent an update yet."];
    const inactive = all.filter((client) => client.inactive).length;
    if (countsPlaces(this.status)) notes.push("Places are readings, rejected ones included: which they are is hidden.");
    if (this.status.privacy.formal) notes.push("Rejected readings are not published: each client's own metrics and log have them.");
    if (!found.length && all.length) notes.push("No client matches.");
    else if (found.length > listed.length) notes.push(`${listed.length} of ${count(found.length)} are listed; search for the others.`);
    if (inactive) notes.push(`${plural(inactive, "client")} inactive: nothing received for three times the usual interval; what was learnt from them is kept.`);
    const excluded = all.filter((client) => client.quarantined).length;
    if (excluded) notes.push(`${plural(excluded, "client")} in quarantine: nothing more that they send is absorbed.`);
    if (total > all.length) notes.push(`Only the ${count(all.length)} seen last of ${count(total)} are listed by name.`);
    return notes;
  }
}

function clientRow({ name, title }, width) {
  const label = make("span", { class: "name", title: title === name ? name : `${title} (${name})` }, title);
  return make("tr", {}, make("th", { scope: "row" }, label, make("span", { class: "state" })),
    ...Array.from({ length: width - 1 }, () => make("td", { class: "number" })));
}

function fillClient(row, client) {
  row.classList.toggle("inactive", client.inactive);
  setText(row.cells[0].lastChild, client.quarantined ? "in quarantine" : client.inactive ? "inactive" : "");
  setText(row.cells[1], `${duration(client.age)} ago`);
  setText(row.cells[2], count(client.readings));
  if (row.cells.length > 4) setText(row.cells[3], client.rejected === null ? "–" : count(client.rejected));
  setText(row.lastChild, client.inactive ? "–" : `${rate(client.rate)}/s`);
}

const COLUMNS_MAX = 7;
const LEVELS = 5;
const REFRESH_MS = 30_000;
const HOUR = 3600;
const FINE = 300; // seconds of a bin; the server keeps two days of them
const SPANS = [["1 hour", 0], ["1 day", 24 * HOUR], ["2 days", 48 * HOUR]]; // the status has the newest hour
const longerFeeds = { asked: "", feeds: null, failed: false, fetchedAt: 0, busy: false };
let [span, model, titles] = [0, null, new Map()];

at("feeds-spans").append(...SPANS.map(([name], place) => {
  const button = make("button", { type: "button" }, name);
  button.addEventListener("click", () => {
    span = place;
    showFeeds(model);
  });
  return button;
}));

// For each client, how its readings of a chosen time are divided among the clusters.
export function showFeeds(shown, names = titles) {
  [model, titles] = [shown, names];
  const clustering = model.clustering;
  at("feeds-panel").hidden = !Object.keys(clustering?.feeds ?? {}).length || Boolean(model.waiting_for);
  if (at("feeds-panel").hidden) return;
  SPANS.forEach((_, place) => (at("feeds-spans").children[place].ariaPressed = String(place === span)));
  if (span) followFeeds(`${model.name}/${span}`);
  drawFeeds(Object.entries((span ? longerFeeds.feeds : clustering.feeds) ?? {}).sort(([a], [b]) => compareNames(titleOf(a), titleOf(b))));
  const time = span ? `the last ${SPANS[span][0].replace("1 ", "")}` : "the last hour, where they come all the time";
  const state = span && longerFeeds.failed ? "The history cannot be read at present." : span && !longerFeeds.feeds ? "" : `% of each client's newest readings: of ${time}.`;
  setText(at("feeds-note"), state);
}

// Fetches what the status does not have, and again from time to time.
function followFeeds(asked) {
  if (longerFeeds.asked !== asked) Object.assign(longerFeeds, { asked, feeds: null, failed: false, fetchedAt: -REFRESH_MS });
  const newest = model.clustering.usual?.newest;
  if (longerFeeds.busy || newest === undefined || performance.now() < longerFeeds.fetchedAt + REFRESH_MS) return;
  Object.assign(longerFeeds, { busy: true, fetchedAt: performance.now() });
  fetchFeeds(model.name, newest + FINE - SPANS[span][1]).then((feeds) => {
    longerFeeds.busy = false;
    if (longerFeeds.asked === asked) Object.assign(longerFeeds, { feeds: feeds ?? longerFeeds.feeds, failed: !feeds });
    showFeeds(model); // where another time was chosen meanwhile, this fetches it
  });
}

async function fetchFeeds(name, from) {
  const response = await fetch(`v1/feeds?model=${encodeURIComponent(name)}&from=${from}`).catch(() => null);
  return response?.ok ? response.json().then(({ clients }) => clients, () => null) : null;
}

const titleOf = (client) => titles.get(client) ?? client;

function drawFeeds(feeds) {
  const fed = new Map();
  for (const [, clusters] of feeds) for (const [identity, share] of clusters) fed.set(identity, (fed.get(identity) ?? 0) + share);
  const all = model.clustering.clusters.filter(({ identity }) => fed.has(identity));
  const most = [...all].sort((a, b) => fed.get(b.identity) - fed.get(a.identity)).slice(0, COLUMNS_MAX);
  const columns = all.filter((cluster) => most.includes(cluster));
  const others = all.length - columns.length;
  const otherWords = others ? `${others} others` : fed.size > all.length ? "merged or gone" : "";
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
      setText(row.lastChild.firstChild, otherWords);
    },
  );
  reconcile(
    at("feeds").tBodies[0], feeds, ([client]) => `${client}/${key}`,
    ([client]) => make("tr", {}, make("th", { scope: "row", title: client }, titleOf(client)), ...columns.map(() => make("td")), make("td")),
    (row, [, clusters]) => fillFeeds(row, new Map(clusters), columns),
  );
}

function fillFeeds(row, shares, columns) {
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

const REGIONS_MAX = 100;
const NUMBERS = 3;

// The tree of regions below the federation. `regions` as in the status: each after the one above it. `clients` are objects as `clientsOf` makes them.
export function showRegions(status, clients) {
  const { regions } = status;
  setText(at("regions").querySelector("thead th:last-child"), countsPlaces(status) ? "Places" : "Readings");
  at("regions").hidden = !regions.length;
  const known = new Map(clients.map((client) => [client.name, client]));
  const [rows] = at("regions").querySelector("table").tBodies;
  reconcile(rows, regions.slice(0, REGIONS_MAX), ({ path }) => path, regionRow, (row, { path, clients: number }) => {
    const client = known.get(path);
    row.classList.toggle("inactive", Boolean(client?.inactive));
    setText(row.cells[0].lastChild, client?.inactive ? "inactive" : "");
    setText(row.cells[1], count(number));
    setText(row.cells[2], client ? `${duration(client.age)} ago` : "–");
    setText(row.cells[3], client ? count(client.readings) : "–");
  });
  const total = regions.reduce((sum, region) => sum + region.clients, 0);
  const more = regions.length > REGIONS_MAX ? `${REGIONS_MAX} of ${count(regions.length)} are listed. ` : "";
  setText(at("regions-note"), `${more}${plural(total, "client")} in ${plural(regions.length, "region")}. A region sends what its own clients and the regions below it have learnt.`);
}

function regionRow({ path }) {
  const above = path.split("/");
  const name = above.pop();
  const label = make("span", { class: "name", title: path }, name);
  const head = make("th", { scope: "row" }, make("span", { class: "visually-hidden" }, above.length ? `${above.join(", ")}: ` : ""), label, make("span", { class: "state" }));
  head.style.paddingLeft = `${above.length * 1.1}rem`;
  if (above.length) head.classList.add("below");
  return make("tr", {}, head, ...Array.from({ length: NUMBERS }, () => make("td", { class: "number" })));
}
