// The table of clients: when each was last seen, and how many readings it has learnt from. It can be searched and sorted.

import { clientsOf } from "./observed.js";
import { Sorting } from "./sorting.js";
import { count, duration, reconcile, make, plural, rate, setText } from "./format.js";

const at = (id) => document.getElementById(id);
const ROWS_MAX = 100; // the search finds the others
const SEARCH_FROM = 8;
const COLUMNS = [
  { key: "name", title: "Client", of: ({ name }) => name },
  { key: "age", title: "Last seen", number: true, of: ({ age }) => age },
  { key: "readings", title: "Readings", number: true, of: ({ readings }) => readings },
  { key: "rate", title: "Rate", number: true, of: ({ rate }) => rate },
];

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
    const found = all.filter(({ name, inactive }) => (!only || inactive) && name.toLowerCase().includes(query));
    const listed = this.sorting.order(found, COLUMNS).slice(0, ROWS_MAX);
    at("client-filter").hidden = all.length < SEARCH_FROM;
    this.sorting.head(all.length ? COLUMNS : []);
    reconcile(at("clients").tBodies[0], listed, ({ name }) => name, build, fill);
    setText(at("clients-note"), this.notes(all, found, listed).join(" "));
  }

  notes(all, found, listed) {
    const { clients_total: total, inactive_after_s: limit } = this.status;
    if (!total) return ["No client has sent an update yet."];
    const inactive = all.filter((client) => client.inactive).length;
    const notes = [];
    if (!found.length && all.length) notes.push("No client matches.");
    else if (found.length > listed.length) notes.push(`${listed.length} of ${count(found.length)} are listed; search for the others.`);
    if (inactive) notes.push(`${plural(inactive, "client")} inactive for more than ${limit} s; what was learnt from them is kept.`);
    const excluded = all.filter((client) => client.quarantined).length;
    if (excluded) notes.push(`${plural(excluded, "client")} in quarantine: nothing more that they send is absorbed.`);
    if (total > all.length) notes.push(`Only the ${count(all.length)} seen last of ${count(total)} are listed by name.`);
    return notes;
  }
}

function build({ name }) {
  const label = make("span", { class: "name", title: name }, name);
  return make("tr", {}, make("th", { scope: "row" }, label, make("span", { class: "state" })),
    make("td", { class: "number" }), make("td", { class: "number" }), make("td", { class: "number" }));
}

function fill(row, client) {
  row.classList.toggle("inactive", client.inactive);
  setText(row.cells[0].lastChild, client.quarantined ? "in quarantine" : client.inactive ? "inactive" : "");
  setText(row.cells[1], `${duration(client.age)} ago`);
  setText(row.cells[2], count(client.readings));
  setText(row.cells[3], client.inactive ? "–" : `${rate(client.rate)}/s`);
}
