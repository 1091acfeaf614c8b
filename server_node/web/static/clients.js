// The table of clients: who was heard when, and how much stands behind it. It can be searched and sorted.

import { Sorting } from "./sorting.js";
import { count, duration, keep, make, plural, rate, say } from "./format.js";

const at = (id) => document.getElementById(id);
const ROWS_MAX = 100; // more would only be scrolled past; the search finds the others
const SEARCH_FROM = 8;
const COLUMNS = [
  { key: "name", title: "Client", of: ({ name }) => name },
  { key: "age", title: "Last heard", number: true, of: ({ age }) => age },
  { key: "readings", title: "Readings", number: true, of: ({ readings }) => readings },
  { key: "rate", title: "Rate", number: true, of: ({ rate }) => rate },
];

// The clients of a picture one by one, as they are at this moment.
export function clientsOf({ clients, silent_after_s }, now) {
  return clients.name.map((name, i) => {
    const age = Math.max(0, now - clients.last_seen[i]);
    const silent = age > silent_after_s;
    return { name, age, silent, readings: clients.readings[i], rate: silent ? 0 : clients.readings_per_s[i] };
  });
}

export class Clients {
  constructor() {
    this.sorting = new Sorting(at("clients"), "name", false, () => this.again());
    at("client-search").addEventListener("input", () => this.again());
    at("only-silent").addEventListener("change", () => this.again());
  }

  again() {
    this.show(this.picture, this.now);
  }

  show(picture, now) {
    [this.picture, this.now] = [picture, now];
    const all = clientsOf(picture, now);
    const wanted = at("client-search").value.trim().toLowerCase();
    const only = at("only-silent").checked;
    const found = all.filter(({ name, silent }) => (!only || silent) && name.toLowerCase().includes(wanted));
    const listed = this.sorting.order(found, COLUMNS).slice(0, ROWS_MAX);
    at("client-filter").hidden = all.length < SEARCH_FROM;
    this.sorting.head(all.length ? COLUMNS : []);
    keep(at("clients").tBodies[0], listed, ({ name }) => name, build, fill);
    say(at("clients-note"), this.notes(all, found, listed).join(" "));
  }

  notes(all, found, listed) {
    const { clients_total: total, silent_after_s: limit } = this.picture;
    if (!total) return ["No client has been heard yet."];
    const silent = all.filter((client) => client.silent).length;
    const told = [];
    if (!found.length && all.length) told.push("No client fits.");
    else if (found.length > listed.length) told.push(`${listed.length} of ${count(found.length)} are listed; search for the others.`);
    if (silent) told.push(`${plural(silent, "client")} not heard for more than ${limit} s; what they taught is kept.`);
    if (total > all.length) told.push(`Only the ${count(all.length)} heard last of ${count(total)} are listed by name.`);
    return told;
  }
}

function build({ name }) {
  const label = make("span", { class: "name", title: name }, name);
  return make("tr", {}, make("th", { scope: "row" }, label, make("span", { class: "silence" })),
    make("td", { class: "number" }), make("td", { class: "number" }), make("td", { class: "number" }));
}

function fill(row, client) {
  row.classList.toggle("silent", client.silent);
  say(row.cells[0].lastChild, client.silent ? "silent" : "");
  say(row.cells[1], `${duration(client.age)} ago`);
  say(row.cells[2], count(client.readings));
  say(row.cells[3], client.silent ? "–" : `${rate(client.rate)}/s`);
}
