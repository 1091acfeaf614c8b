// The counters at the top of the page: a name, a number, and a short explanation each.

import { clientsOf } from "./observed.js";
import { count, duration, make, rate, reconcile, setText, short, value } from "./format.js";

export function showCounters(status, model, now) {
  reconcile(
    document.getElementById("counters"), [...(model.rounds ? roundCounters(model) : streamCounters(model, status)), ...serverCounters(status, model, now)],
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
    ["Readings", short(model.readings), perSecond(status)],
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
  const lag = status.lag_records;
  return [
    ["Clients", count(status.clients_total), inactive ? `${count(inactive)} inactive` : status.clients_total ? "all active" : "none yet"],
    ["Updates", short(model.updates), lag ? `${short(lag)} more to read` : "all read", lag > 1000],
    ["Rejected", count(rejected), rejected === 1 ? "message" : "messages", rejected > 0],
    ["Snapshot", model.version ? short(model.version) : "–", model.made_at === null ? "none published yet" : `${duration(now - model.made_at)} old`],
  ];
}
