// The live page: follows the server's status and shows the newest one once per frame.

import { Happened } from "./happened.js";
import { Lives } from "./lives.js";
import { Live } from "./live.js";
import { MapPanel } from "./map_panel.js";
import { showNow } from "./now.js";
import { offerLogOut } from "./session.js";
import { Tabs } from "./tabs.js";
import { clock, plural, setText } from "./format.js";

const at = (id) => document.getElementById(id);
const HIDDEN_MS = 1000;
const ANNOUNCE_EVERY_MS = 20_000;
const map = new MapPanel();
const lives = new Lives(toggle);
const happened = new Happened();
const tabs = new Tabs(at("models"), at("model"), (name) => {
  remember({ model: name });
  live.follow(name); // it is shown when it arrives
});

let newest = null; // a status that is not shown yet
let status = null;
let pinned = null; // the identity of the chosen cluster
let below = null; // what stands low on the page
let receivedAt = 0;
let connected = true;
let chosen = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
let nameShown = ""; // of the model
let announcedAt = -ANNOUNCE_EVERY_MS;

// Keeps choices in the address.
function remember(more) {
  chosen = Object.fromEntries(Object.entries({ ...chosen, ...more }).filter(([, value]) => value));
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
}

// Calls `act` before the next frame. A tab in the background gets no frames, but its title is visible.
function schedule(act) {
  let done = false;
  const once = () => {
    if (!done) act();
    done = true;
  };
  requestAnimationFrame(once);
  setTimeout(once, HIDDEN_MS);
}

function onStatus(next) {
  if (newest === null) schedule(show);
  newest = next;
  receivedAt = performance.now();
}

function onState(state, since) {
  connected = state === "live" || state === "connecting";
  at("connection").dataset.state = state;
  setText(at("connection"), connected ? state : `${state === "stalled" ? "no data" : "disconnected"} since ${clock(since)}`);
  document.body.classList.toggle("stale", !connected);
  if (status) tick();
  showTitle();
}

// The server's clock, extrapolated between statuses.
const now = () => status.now + (performance.now() - receivedAt) / 1000;
const modelShown = () => status.models.find(({ name }) => name === status.shown);

// The status with the clusters of each model in a list, the heaviest first.
function arranged(next) {
  const listed = ({ clusters, ...rest }) => ({ ...rest, clusters: Object.values(clusters).sort((a, b) => b.share - a.share) });
  return { ...next, models: next.models.map((model) => ({ ...model, clustering: model.clustering && listed(model.clustering) })) };
}

function show() {
  if (newest !== null) {
    const next = newest;
    newest = null;
    if (status && replaced(status, next)) return;
    status = arranged(next);
  }
  if (!status) return;
  const model = modelShown();
  setText(at("federation"), status.federation);
  setText(at("contract"), status.contract.slice(0, 12));
  setText(at("shoal"), status.shoal);
  at("snapshot-link").href = `snapshot?model=${encodeURIComponent(model.name)}`;
  tabs.show(status.models, model);
  showNotice();
  if (nameShown !== model.name) pin(null);
  nameShown = model.name;
  map.show(status, model, chosen);
  lives.show(model, now());
  showBelow();
  showTitle();
  announce(model);
  tick();
}

async function showBelow() {
  const script = below ? null : await import("./below.js").catch(() => null);
  if (script && !below) {
    below = new script.Below((identity) => map.hover(identity), toggle);
    tick();
  }
  below?.show(status, modelShown(), pinned); // null while the server is away
}

// Chooses a cluster everywhere.
function pin(identity) {
  pinned = identity;
  map.pin(identity);
  lives.choose(identity);
  below?.pin(identity);
}

// Chooses a cluster, or lets it go if it is chosen.
function toggle(identity) {
  pin(pinned === identity ? null : identity);
}

// Updates what changes with time alone: ages.
function tick() {
  if (!status) return;
  const model = modelShown();
  showNow(status, model, now(), connected, toggle);
  happened.show(model.waiting_for ? null : model.clustering, now());
  below?.tick(status, model, now());
}

// Reloads the page, with the reason, where the status is of another federation, contract or version of the page.
function replaced(before, next) {
  const same = (name) => before[name] === next[name];
  if (same("federation") && same("contract") && same("page_version")) return false;
  const reason = !same("federation") ? `This address now serves federation ${next.federation}; before, it was ${before.federation}.`
    : !same("contract") ? "The federation has a new contract; what was shown before belongs to the old one." : "";
  store("reload-reason", reason);
  location.reload();
  return true;
}

function store(name, text) {
  try {
    sessionStorage.setItem(name, text);
  } catch {
    // The browser may forbid storage; then the page reloads without a reason.
  }
}

function showReloadReason() {
  try {
    const reason = sessionStorage.getItem("reload-reason");
    sessionStorage.removeItem("reload-reason");
    at("reload-reason").hidden = !reason;
    setText(at("reload-reason"), reason ?? "");
  } catch {
    // As above.
  }
}

function showNotice() {
  at("notice").hidden = status.ready;
  const left = status.lag_records ? `${plural(status.lag_records, "update")} in the log not read yet.` : "";
  setText(at("notice"), status.ready ? "" : `The server has not read all of its log yet. ${left}`.trim());
}

function showTitle() {
  if (!status) return;
  const found = plural(modelShown().clusters_total, "cluster");
  const title = connected ? `${status.federation} · ${found} · shoal` : `disconnected · ${status.federation} · shoal`;
  if (document.title !== title) document.title = title;
}

// Announces the number of clusters to screen readers, at most once in a while.
function announce(model) {
  if (performance.now() < announcedAt + ANNOUNCE_EVERY_MS) return;
  const text = model.clustering && !model.waiting_for ? `${model.name}: ${plural(model.clusters_total, "cluster")}` : `${model.name}: no clustering yet`;
  if (at("headline").textContent === text) return;
  announcedAt = performance.now();
  setText(at("headline"), text);
}

for (const axis of ["across", "up"]) at(axis).addEventListener("change", (event) => {
  remember({ [axis]: event.target.value });
  show();
});
setInterval(tick, 1000);
showReloadReason();
offerLogOut(at("log-out"));
const live = new Live(chosen.model ?? "", onStatus, onState);
