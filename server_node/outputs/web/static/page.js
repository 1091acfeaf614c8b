// The live page: follows the server's status and shows the newest one once per frame; and the tabs of its models.

import { at, clock, make, plural, reconcile, setText, wholePercents } from "./format.js";
import { MapPanel } from "./map_panel.js";
import { Live, offerLogOut, titlesOf } from "./status.js";
import { EventList, showSummary, stoppedWords, wholeShares } from "./summary.js";
import { Timeline } from "./timeline.js";

const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

// One tab per model, chosen by pointer or by the arrow keys, Home and End.
class Tabs {
  // `panel` is the element that the tabs control; `onChoose` gets the name of a model.
  constructor(list, panel, onChoose) {
    [this.list, this.panel, this.onChoose] = [list, panel, onChoose];
    list.addEventListener("keydown", (event) => this.move(event));
  }

  show(models, chosen) {
    this.list.hidden = models.length < 2;
    reconcile(this.list, models, ({ name }) => name, ({ name }) => this.tab(name), (tab, model) => {
      const selected = model === chosen;
      tab.ariaSelected = String(selected);
      tab.tabIndex = selected ? 0 : -1;
      const found = model.version && !model.waiting_for ? plural(model.clusters_total, "cluster") : "no clusters yet";
      setText(tab.lastChild, `${model.algorithm} · ${found}`);
    });
    if (this.list.hidden) return ["role", "aria-labelledby"].forEach((name) => this.panel.removeAttribute(name));
    this.panel.setAttribute("role", "tabpanel");
    this.panel.setAttribute("aria-labelledby", `tab-${chosen.name}`);
  }

  tab(name) {
    const tab = make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": this.panel.id },
      make("span", { class: "name" }, name), make("small"));
    tab.addEventListener("click", () => this.onChoose(name));
    return tab;
  }

  move(event) {
    const tabs = [...this.list.children];
    const from = tabs.indexOf(event.target);
    const to = { Home: 0, End: tabs.length - 1 }[event.key] ?? (from + MOVES[event.key] + tabs.length) % tabs.length;
    if (from < 0 || Number.isNaN(to)) return;
    event.preventDefault();
    tabs[to].focus();
    tabs[to].click();
    tabs[to].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

const HIDDEN_MS = 1000;
const ANNOUNCE_EVERY_MS = 20_000;
const map = new MapPanel();
const timeline = new Timeline(toggle);
const events = new EventList();
const tabs = new Tabs(at("models"), at("model"), (name) => {
  remember({ model: name });
  live.follow(name); // it is shown when it arrives
});

let newest = null; // a status that is not shown yet
let status = null;
let pinned = null; // the identity of the chosen cluster
let details = null; // the lower part of the page; null until its scripts are there
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

// The status with the clusters of each model in a list, the largest first.
function arranged(next) {
  const size = ({ share, shareNow }) => share ?? shareNow;
  const stopped = stoppedWords(next, next.now) !== "";
  const listed = ({ clusters, ...rest }) => {
    const counted = withPercents({ ...rest, clusters: Object.values(clusters) }, stopped);
    return { ...counted, clusters: counted.clusters.sort((a, b) => size(b) - size(a)) };
  };
  return { ...next, models: next.models.map((model) => ({ ...model, clustering: model.clustering && listed(model.clustering) })) };
}

// "Now" is the last hour of the readings everywhere on the page, and its shares are of all of them: `shareNow` is a cluster's
// `now_share`, or without a history its `recent_share`. `nowPercent` and `newPercent` add up to 100. Where no readings come, there
// is no "now" that could be usual or new: shares are of all readings, and the clients of the last hour say nothing of these.
function withPercents(clustering, stopped) {
  const clusters = clustering.clusters.map((each) => ({ ...each, shareNow: each.now_share ?? (each.active ? each.recent_share : 0) }));
  const none = (clustering.usual?.new ?? 0) / 1000;
  const percents = wholePercents([...clusters.map(({ shareNow }) => shareNow), none]);
  const shares = wholePercents(clusters.map(({ share }) => share ?? 0));
  const counted = { ...clustering, clusters: clusters.map((each, i) => ({ ...each, nowPercent: percents[i], sharePercent: shares[i], fedNow: stopped ? "" : each.fed_by_text })), newPercent: percents.at(-1) };
  if (!stopped || !counted.counted) return counted;
  const [whole, newPercent] = wholeShares(counted);
  return { ...counted, clusters: whole, newPercent, usual: counted.usual && { ...counted.usual, clusters: [], new: null, new_usual: null } };
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
  at("snapshot-link").href = `v1/snapshot?model=${encodeURIComponent(model.name)}`;
  tabs.show(status.models, model);
  showNotice();
  if (nameShown !== model.name) pin(null);
  nameShown = model.name;
  map.show(status, model, chosen);
  timeline.show(model, model.newest_reading_at ?? now(), titlesOf(status));
  showDetails();
  showTitle();
  announce(model);
  tick();
}

async function showDetails() {
  const script = details ? null : await import("./details.js").catch(() => null);
  if (script && !details) {
    details = new script.Details((identity) => map.hover(identity), toggle);
    tick();
  }
  details?.show(status, modelShown(), pinned); // null while the server is away
}

// Chooses a cluster everywhere.
function pin(identity) {
  pinned = identity;
  map.pin(identity);
  timeline.choose(identity);
  details?.pin(identity);
}

// Chooses a cluster, or lets it go if it is chosen.
function toggle(identity) {
  pin(pinned === identity ? null : identity);
}

// Updates what changes with time alone: ages.
function tick() {
  if (!status) return;
  const model = modelShown();
  showSummary(status, model, now(), connected, toggle);
  events.show(model.waiting_for ? null : model.clustering, now());
  details?.tick(status, model, now());
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
  const isWhole = status.history_read === 1;
  at("notice").hidden = status.ready && isWhole;
  const left = status.lag_records ? `${plural(status.lag_records, "update")} in the log not read yet.` : "";
  const notices = [];
  if (!status.ready) notices.push(`The server has not read all of its log yet. ${left}`.trim());
  if (!isWhole) notices.push(`The history is made again from the log, ${Math.floor(100 * status.history_read)} % is there: what is of it is left out until then.`);
  setText(at("notice"), notices.join(" "));
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
