// The figures on top: one number each, and below it what the number is about.

import { clientsOf } from "./clients.js";
import { count, duration, keep, make, rate, say, short, value } from "./format.js";

export function showCounters(picture, model, now) {
  keep(
    document.getElementById("counters"), [...(model.rounds ? ofRounds(model) : ofStream(model, picture)), ...ofServer(picture, model, now)],
    ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd", { class: "figure" }), make("dd", { class: "about" })),
    (cell, [, figure, about, attention]) => {
      say(cell.children[1], figure);
      say(cell.children[2], about);
      cell.classList.toggle("attention", Boolean(attention));
    },
  );
}

const perSecond = ({ clients }) => `${rate(clients.readings_per_s.reduce((sum, each) => sum + each, 0))} per second`;

function ofStream(model, picture) {
  return [
    ["Clusters", count(model.clusters_total), "found so far"],
    ["Nodes", count(model.nodes_total), "prototypes learnt"],
    ["Readings", short(model.readings), perSecond(picture)],
  ];
}

function ofRounds({ rounds, clusters_total, readings, version }) {
  const { phase, round, received, expected, counted, shift } = rounds;
  const collecting = phase !== "sleeping";
  const whom = expected ? `of ${count(expected)} asked` : "no client known yet";
  return [
    ["Clusters", count(clusters_total), "not empty"],
    ["Round", count(round), collecting ? "collecting answers" : "sleeping"],
    ["Answers", collecting ? count(received) : count(counted), collecting ? whom : "in the newest round"],
    ["Shift", shift === null ? "–" : value(shift), shift === null ? "before the first round" : "in the newest round"],
    ["Readings", version ? short(readings) : "–", "in newest answers"],
  ];
}

function ofServer(picture, model, now) {
  const rejected = Object.values(picture.rejected).reduce((sum, messages) => sum + messages, 0);
  const silent = clientsOf(picture, now).filter((client) => client.silent).length;
  const left = picture.lag_records;
  return [
    ["Clients", count(picture.clients_total), silent ? `${count(silent)} silent` : picture.clients_total ? "all heard from" : "none heard yet"],
    ["Updates", short(model.updates), left ? `${short(left)} more to read` : "all read", left > 1000],
    ["Set aside", count(rejected), rejected ? "messages rejected" : "no messages rejected", rejected > 0],
    ["Snapshot", model.version ? short(model.version) : "–", model.made_at === null ? "none published yet" : `${duration(now - model.made_at)} old`],
  ];
}
