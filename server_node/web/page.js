// The live page: listens to the server, and shows the newest picture once per frame.

import { drawHistory } from "./chart.js";
import { NodeMap } from "./map.js";
import { showClients, showClusters, showCounters, showPrivacy } from "./panels.js";
import { count, keep, make, percent, plural, say } from "./words.js";

const at = (id) => document.getElementById(id);
const map = new NodeMap(at("map"), at("tip"), at("map-said"));
const RETRY_MS = 2000;
const HELP_WITH_NODES = at("map-help").textContent;
const HELP_WITH_CENTRES = "Each circle is the centre of a cluster: the larger, the more stood behind it in the newest answers. " +
  "Point at one, or move between them with the arrow keys, to read it.";

let newest = null; // text of the newest picture, not read yet
let picture = null;
let receivedAt = 0;
let chosen = new URLSearchParams(location.hash.slice(1)).get("model");
let mapped = null; // the model on the map
let promised = "";

function connect() {
  const events = new EventSource("events");
  events.addEventListener("open", () => connection("live"));
  events.addEventListener("picture", (event) => {
    connection("live");
    if (newest === null) requestAnimationFrame(show);
    newest = event.data;
    receivedAt = performance.now();
  });
  events.addEventListener("error", () => {
    connection("reconnecting");
    // A refused stream is closed for good by the browser; a broken one it opens again by itself.
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  });
}

function connection(state) {
  at("connection").dataset.state = state;
  say(at("connection"), state);
  document.body.classList.toggle("stale", state === "reconnecting");
}

// The server's clock, kept going between pictures.
const now = () => picture.now + (performance.now() - receivedAt) / 1000;

function show() {
  if (newest !== null) [picture, newest] = [JSON.parse(newest), null];
  const model = picture.models.find(({ name }) => name === chosen) ?? picture.models[0];
  say(at("federation"), picture.federation);
  document.title = `${picture.federation} · ${plural(model.clusters_total, "cluster")} · shoal`;
  say(at("contract"), picture.contract.slice(0, 12));
  showChoice(model);
  showCounters(picture, model);
  showNotice();
  showMap(model);
  showClusters(model, (cluster) => map.point(cluster));
  if (promised !== picture.contract) {
    // It stands in the contract, so it changes only with it; what a reader has unfolded stays unfolded.
    showPrivacy(picture.privacy);
    promised = picture.contract;
  }
  tick();
}

function tick() {
  if (!picture) return;
  const model = picture.models.find(({ name }) => name === mapped);
  showClients(picture, now());
  drawHistory(at("history"), model.history, now());
}

function showChoice(model) {
  at("model-choice").hidden = picture.models.length < 2;
  keep(at("model"), picture.models, ({ name }) => name, ({ name }) => make("option", { value: name }), (option, { name, algorithm }) =>
    say(option, name === algorithm ? name : `${name} (${algorithm})`));
  at("model").value = model.name;
  at("snapshot-link").href = `snapshot?model=${encodeURIComponent(model.name)}`;
}

function showNotice() {
  at("notice").hidden = picture.ready;
  const left = picture.lag_records ? `${plural(picture.lag_records, "update")} in the log are still to be read.` : "";
  say(at("notice"), picture.ready ? "" : `The server is not up to date with its log just now. ${left}`.trim());
}

function showMap(model) {
  const { drawn } = model;
  if (mapped !== model.name) map.forget();
  mapped = model.name;
  const anything = Boolean(drawn?.nodes.id.length);
  at("empty").hidden = anything;
  say(at("waiting-for"), model.waiting_for);
  say(at("map-model"), drawn ? `${model.algorithm} · version ${count(model.version)}` : model.algorithm);
  const off = picture.privacy.mode === "off";
  map.show(anything ? drawn : null, off ? "A prototype, learnt without privacy." : "A learnt prototype, not a reading.", Boolean(model.rounds));
  at("map-note").hidden = true;
  at("map-help").hidden = !anything;
  say(at("map-help"), model.rounds ? HELP_WITH_CENTRES : HELP_WITH_NODES);
  if (!anything) return;
  const notes = [];
  if (drawn.spread_shown !== null)
    notes.push(`The two axes are mixtures of ${count(drawn.features_total)} features and show ${percent(drawn.spread_shown)} of how nodes differ.`);
  if (model.nodes_total > drawn.nodes.id.length) notes.push(`${count(drawn.nodes.id.length)} of ${count(model.nodes_total)} nodes are drawn, the most-won ones.`);
  say(at("map-note"), notes.join(" "));
  at("map-note").hidden = !notes.length;
  at("map").setAttribute("aria-label", `Map of ${plural(drawn.nodes.id.length, "node")} in ${plural(model.clusters_total, "cluster")}`);
}

at("model").addEventListener("change", (event) => {
  chosen = event.target.value;
  history.replaceState(null, "", `#${new URLSearchParams({ model: chosen })}`);
  show();
});
new ResizeObserver(tick).observe(at("history"));
setInterval(tick, 1000);
connect();
