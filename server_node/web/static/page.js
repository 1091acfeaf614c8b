// The live page: listens to the server, and shows the newest picture once per frame.

import { drawHistory } from "./chart.js";
import { Clients } from "./clients.js";
import { Clusters } from "./clusters.js";
import { showCounters } from "./counters.js";
import { listen } from "./live.js";
import { NodeMap } from "./map.js";
import { describeMap, offerAxes, showMissing } from "./map_text.js";
import { showPrivacy, showRejected } from "./privacy.js";
import { Tabs } from "./tabs.js";
import { clock, plural, say } from "./format.js";

const at = (id) => document.getElementById(id);
const HIDDEN_MS = 1000;
const SAID_EVERY_MS = 20_000;
const map = new NodeMap(at("map"), at("tip"), at("map-said"));
const clusters = new Clusters((name) => map.point(name), (name) => map.pin(name));
const clients = new Clients();
const tabs = new Tabs(at("models"), at("model"), (name) => choose({ model: name }));

let newest = null; // text of the newest picture, not read yet
let picture = null;
let receivedAt = 0;
let connected = true;
let chosen = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
let mapped = null; // the model on the map
let promised = ""; // the contract whose privacy is shown
let saidAt = -SAID_EVERY_MS;

function choose(more) {
  chosen = Object.fromEntries(Object.entries({ ...chosen, ...more }).filter(([, value]) => value));
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
  show();
}

// Before the next frame. A tab that nobody sees gets no frames, and its title is read all the same.
function soon(act) {
  let done = false;
  const once = () => {
    if (!done) act();
    done = true;
  };
  requestAnimationFrame(once);
  setTimeout(once, HIDDEN_MS);
}

function onPicture(text) {
  if (newest === null) soon(show);
  newest = text;
  receivedAt = performance.now();
}

function onState(state, since) {
  connected = state === "live" || state === "connecting";
  at("connection").dataset.state = state;
  say(at("connection"), connected ? state : `${state === "silent" ? "no word" : "disconnected"} since ${clock(since)}`);
  document.body.classList.toggle("stale", !connected);
  retitle();
}

// The server's clock, kept going between pictures.
const now = () => picture.now + (performance.now() - receivedAt) / 1000;
const modelShown = () => picture.models.find(({ name }) => name === chosen.model) ?? picture.models[0];

function show() {
  if (newest !== null) {
    const next = JSON.parse(newest);
    newest = null;
    if (picture && moved(picture, next)) return;
    picture = next;
  }
  if (!picture) return;
  const model = modelShown();
  say(at("federation"), picture.federation);
  say(at("contract"), picture.contract.slice(0, 12));
  say(at("shoal"), picture.shoal);
  at("snapshot-link").href = `snapshot?model=${encodeURIComponent(model.name)}`;
  tabs.show(picture.models, model);
  showNotice();
  showMap(model);
  showRejected(picture.rejected);
  if (promised !== picture.contract) {
    // It stands in the contract, so it changes only with it; what a reader has unfolded stays unfolded.
    showPrivacy(picture.privacy);
    promised = picture.contract;
  }
  retitle();
  speak(model);
  tick();
}

// What goes on while no picture comes: ages.
function tick() {
  if (!picture) return;
  const model = modelShown();
  showCounters(picture, model, now());
  clusters.show(model, now());
  clients.show(picture, now());
  drawHistory(at("history"), model.history, now());
}

// Another federation, another contract or another page at this address: begin anew, and say why.
function moved(before, next) {
  const same = (name) => before[name] === next[name];
  if (same("federation") && same("contract") && same("page")) return false;
  const why = !same("federation") ? `This address now shows federation ${next.federation}; before, it was ${before.federation}.`
    : !same("contract") ? "The federation has a new contract; what was shown before is of the old one." : "";
  remember("moved", why);
  location.reload();
  return true;
}

function remember(name, text) {
  try {
    sessionStorage.setItem(name, text);
  } catch {
    // Storage may be forbidden; then the page begins anew without a word.
  }
}

function sayWhatMoved() {
  try {
    const why = sessionStorage.getItem("moved");
    sessionStorage.removeItem("moved");
    at("moved").hidden = !why;
    say(at("moved"), why ?? "");
  } catch {
    // As above.
  }
}

function showNotice() {
  at("notice").hidden = picture.ready;
  const left = picture.lag_records ? `${plural(picture.lag_records, "update")} in the log are still to be read.` : "";
  say(at("notice"), picture.ready ? "" : `The server is not up to date with its log just now. ${left}`.trim());
}

function showMap(model) {
  if (mapped !== model.name) {
    map.forget();
    clusters.forget();
  }
  mapped = model.name;
  const anything = Boolean(model.drawn?.nodes.id.length) && !model.waiting_for;
  at("empty").hidden = anything;
  at("axes").hidden = !anything;
  if (!anything) showMissing(picture, model);
  else offerAxes(model.drawn, chosen);
  map.turn(chosen.across ?? "", chosen.up ?? "");
  const off = picture.privacy.mode === "off";
  map.show(anything ? model.drawn : null, off ? "A prototype, learnt without privacy." : "A learnt prototype, not a reading.", Boolean(model.rounds));
  describeMap(model, anything, chosen);
}

function retitle() {
  if (!picture) return;
  const found = plural(modelShown().clusters_total, "cluster");
  const title = connected ? `${picture.federation} · ${found} · shoal` : `disconnected · ${picture.federation} · shoal`;
  if (document.title !== title) document.title = title;
}

// To screen readers, now and then: not every update is news.
function speak(model) {
  if (performance.now() < saidAt + SAID_EVERY_MS) return;
  const words = model.drawn && !model.waiting_for ? `${model.name}: ${plural(model.clusters_total, "cluster")}` : `${model.name}: no clustering yet`;
  if (at("headline").textContent === words) return;
  saidAt = performance.now();
  say(at("headline"), words);
}

for (const axis of ["across", "up"]) at(axis).addEventListener("change", (event) => choose({ [axis]: event.target.value }));
new ResizeObserver(tick).observe(at("history"));
setInterval(tick, 1000);
sayWhatMoved();
listen(onPicture, onState);
