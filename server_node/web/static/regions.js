// The tree of regions below the federation: of each its clients, and what the server has of those that send to it.

import { count, duration, make, plural, reconcile, setText } from "./format.js";

const at = (id) => document.getElementById(id);
const ROWS_MAX = 100;
const NUMBERS = 3;

// `regions` as in the status: each after the one above it. `clients` are objects as `clientsOf` makes them.
export function showRegions(regions, clients) {
  at("regions").hidden = !regions.length;
  const known = new Map(clients.map((client) => [client.name, client]));
  const [rows] = at("regions").querySelector("table").tBodies;
  reconcile(rows, regions.slice(0, ROWS_MAX), ({ path }) => path, build, (row, { path, clients: number }) => {
    const client = known.get(path);
    row.classList.toggle("inactive", Boolean(client?.inactive));
    setText(row.cells[0].lastChild, client?.inactive ? "inactive" : "");
    setText(row.cells[1], count(number));
    setText(row.cells[2], client ? `${duration(client.age)} ago` : "–");
    setText(row.cells[3], client ? count(client.readings) : "–");
  });
  const total = regions.reduce((sum, region) => sum + region.clients, 0);
  const more = regions.length > ROWS_MAX ? `${ROWS_MAX} of ${count(regions.length)} are listed. ` : "";
  setText(at("regions-note"), `${more}${plural(total, "client")} in ${plural(regions.length, "region")}. A region sends what its own clients and the regions below it have learnt.`);
}

function build({ path }) {
  const above = path.split("/");
  const name = above.pop();
  const label = make("span", { class: "name", title: path }, name);
  const head = make("th", { scope: "row" }, make("span", { class: "visually-hidden" }, above.length ? `${above.join(", ")}: ` : ""), label, make("span", { class: "state" }));
  head.style.paddingLeft = `${above.length * 1.1}rem`;
  if (above.length) head.classList.add("below");
  return make("tr", {}, head, ...Array.from({ length: NUMBERS }, () => make("td", { class: "number" })));
}
