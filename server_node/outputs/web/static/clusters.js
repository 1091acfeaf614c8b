// The tables of clusters: the mark, the share and the centre of each, with a field to name it; and how they differ by feature.

import {
  at, centreText, clusterTitle, count, duration, featureLabel, fillSwatch, make, markOf, partSlot, percent, percentText, plural, reconcile, setText, shown, SVG, swatch, value,
} from "./format.js";
import { Sorting, SteadyOrder } from "./sorting.js";
import { session } from "./status.js";

const BELL = "M8 1.5a1 1 0 0 0-1 1v.3A4 4 0 0 0 4 6.7V10l-1.5 1.8v.7h11v-.7L12 10V6.7a4 4 0 0 0-3-3.9v-.3a1 1 0 0 0-1-1zM6.5 13.5a1.5 1.5 0 0 0 3 0z";
const PENCIL = "M2 11.2V14h2.8l7.6-7.6-2.8-2.8zM10.6 2.6l2.8 2.8 1-1a.8.8 0 0 0 0-1.1L12.7 1.6a.8.8 0 0 0-1.1 0z";
const CHARACTERS_MAX = 60;

// Two buttons beside the title of a cluster: one opens a text field to name it (Enter saves, Escape cancels), the other
// confirms it as normal, so that it raises no alerts, or takes that back.
class Naming {
  // `status` is a live region, which says what was requested, or why that failed.
  constructor(status) {
    [this.status, this.model, this.open, this.requested] = [status, "", null, null];
  }

  // The cell of a title with its button. `clusterOf` returns the cluster that the row shows at the time.
  cell(title, clusterOf) {
    const cell = make("th", { scope: "row" }, make("div", { class: "title" }, title));
    if (!session.may_request) return cell;
    const [rename, alerts] = [iconButton("rename", PENCIL), iconButton("alerts", BELL)];
    rename.title = "Name this cluster";
    rename.addEventListener("click", () => this.edit(cell, clusterOf()));
    alerts.addEventListener("click", () => this.switchAlerts(clusterOf()));
    cell.firstChild.append(rename, alerts);
    return cell;
  }

  fill(cell, title, cluster, now) {
    const rename = cell.querySelector(".rename");
    if (!rename) return;
    label(rename, `Name cluster ${title}`);
    const alerts = cell.querySelector(".alerts");
    const silent = isMuted(cluster, now);
    alerts.classList.toggle("silent", silent);
    alerts.title = silent ? "It raises no alerts; let it raise alerts again" : "This is normal: no more alerts for this cluster";
    label(alerts, silent ? `Raise alerts for cluster ${title} again` : `Confirm cluster ${title} as normal`);
  }

  async switchAlerts(cluster) {
    const { model } = this;
    const action = isMuted(cluster, Date.now() / 1000) ? "alert" : "confirm";
    const refusal = await request(model, cluster.identity, "alerts", { action });
    if (this.model !== model) return; // another model is shown by now
    const asked = action === "alert" ? `raises alerts again` : `is confirmed as normal and raises no alerts`;
    this.report(refusal || `Requested: cluster ${cluster.identity} ${asked}; the server reads it next.`);
  }

  // The model on the page and its clusters: a name that was requested and is there now is reported once.
  show(model, clusters) {
    if (this.model !== model) this.reset(model);
    const asked = this.requested;
    if (!asked || !clusters.some(({ identity, name }) => identity === asked.identity && name === asked.name)) return;
    this.requested = null;
    this.report(asked.name ? `Cluster ${asked.identity} is named “${asked.name}”.` : `Cluster ${asked.identity} has no name any more.`);
  }

  reset(model) {
    this.close();
    [this.model, this.requested] = [model, null];
    this.report("");
  }

  edit(cell, { identity, name, label }) {
    this.close();
    const field = make("input", { type: "text", class: "name-field", maxlength: CHARACTERS_MAX, placeholder: label, autocomplete: "off", spellcheck: "false" });
    field.ariaLabel = `Name of cluster ${identity}`;
    field.value = name;
    field.addEventListener("keydown", (event) => this.key(event));
    cell.firstChild.hidden = true;
    cell.append(field);
    this.open = { cell, field, identity };
    field.select();
    field.focus();
    this.report("Enter saves the name, Escape cancels; an empty name takes it away.");
  }

  key(event) {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      this.close();
      this.report("");
    }
    if (event.key === "Enter") this.save();
  }

  async save() {
    const { field, identity } = this.open;
    const [model, name] = [this.model, field.value.trim()];
    if (field.readOnly) return;
    field.readOnly = true;
    const refusal = await request(model, identity, "name", { name });
    if (this.model !== model) return; // another model is shown by now
    if (refusal) {
      field.readOnly = false;
      field.ariaInvalid = "true";
      return this.report(refusal);
    }
    this.requested = { identity, name };
    if (this.open?.field === field) this.close();
    this.report(`Requested ${name ? `the name “${name}”` : "no name"} for cluster ${identity}; the server reads it next.`);
  }

  close() {
    if (!this.open) return;
    const { cell, field } = this.open;
    const focused = document.activeElement === field;
    this.open = null;
    field.remove();
    cell.firstChild.hidden = false;
    if (focused) cell.querySelector(".rename").focus();
  }

  report(text) {
    setText(this.status, text);
  }
}

function iconButton(kind, path) {
  const icon = document.createElementNS(SVG, "svg");
  icon.setAttribute("viewBox", "0 0 16 16");
  icon.setAttribute("aria-hidden", "true");
  icon.append(document.createElementNS(SVG, "path"));
  icon.firstChild.setAttribute("d", path);
  return make("button", { type: "button", class: kind }, icon);
}

function label(button, name) {
  if (button.ariaLabel !== name) button.ariaLabel = name;
}

// Whether a cluster raises no alerts at this time, in seconds.
function isMuted({ confirmed, muted_until }, now) {
  return Boolean(confirmed) || now < muted_until;
}

function stateOf(cluster, now) {
  const state = cluster.active ? "active" : "quiet";
  if (cluster.confirmed) return `${state}, normal`;
  return isMuted(cluster, now) ? `${state}, muted` : state;
}

// "" where the server has accepted the request, else why not.
async function request(model, identity, what, body) {
  try {
    const response = await fetch(`v1/clusters/${identity}/${what}?model=${encodeURIComponent(model)}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    return response.ok ? "" : `Not requested: ${(await response.json()).detail}.`;
  } catch {
    return "Not requested: the server does not respond.";
  }
}

const table = at("clusters");
const frame = table.closest("details");
const note = at("clusters-note");
const EMPTY = { clusters: [], features: [], features_total: 0 };

// The table of the known clusters.
export class Clusters {
  // `onHover` and `onChoose` get the identity of a cluster; `onHover` null where the pointer leaves it.
  constructor(onHover, onChoose) {
    [this.onHover, this.onChoose, this.pinned] = [onHover, onChoose, null];
    this.naming = new Naming(at("naming"));
    this.order = new SteadyOrder(table.tBodies[0]);
    this.sorting = new Sorting(table, "share", true, () => this.show(this.model, this.now));
    this.choiceMade = false; // whether a person has folded or unfolded the table
    frame.firstElementChild.addEventListener("click", () => {
      this.choiceMade = true;
    });
  }

  // Folds the table where the clusters over time show the same clusters; a person's choice stays. Without a history there are
  // no bands, and parts are listed here only.
  fold({ counted, parts }) {
    if (this.choiceMade || this.naming.open) return;
    frame.open = !counted || Boolean(parts?.length);
  }

  // Shows which cluster is chosen, by its identity; null for none.
  pin(identity) {
    this.pinned = identity;
    for (const row of table.tBodies[0].rows) this.press(row);
  }

  press(row) {
    const pressed = String(this.pinned !== null && this.pinned === row.cluster.identity);
    const button = row.cells[0].querySelector(".pin");
    if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
  }

  show(model, now) {
    [this.model, this.now] = [model, now];
    const clustering = model.clustering ?? EMPTY;
    const columns = this.columns(model, clustering);
    this.sorting.head(clustering.clusters.length ? columns : []);
    const ordered = this.sorting.order(clustering.clusters, columns);
    reconcile(
      table.tBodies[0], this.order.keep(ordered, ({ identity }) => identity, `${model.name}/${this.sorting.chosen}`),
      (cluster) => `${cluster.identity}/${columns.map(({ title }) => title).join("|")}`,
      () => this.row(columns),
      (row, cluster) => this.fill(row, cluster, columns),
    );
    this.showParts(clustering, columns);
    this.naming.show(model.name, clustering.clusters);
    this.fold(clustering);
    setText(note, notesOn(model, clustering).join(" "));
  }

  columns(model, clustering) {
    const known = clustering.clusters.some(({ since }) => since !== null && since !== undefined);
    const dwells = dwellsOf(clustering);
    return [
      { key: "name", title: "Cluster", of: ({ identity }) => identity, text: clusterTitle },
      { key: "state", title: "Now", of: ({ active }) => active, text: (cluster) => stateOf(cluster, Date.now() / 1000) },
      { key: "recent", title: "Share now", number: true, of: ({ shareNow }) => shareNow, text: ({ shareNow, nowPercent }) => percentText(nowPercent, shareNow) },
      { key: "share", title: "Share", number: true, of: ({ share, shareNow }) => share ?? shareNow, text: ({ share, sharePercent }) => (share === null ? "–" : percentText(sharePercent, share)) },
      ...(model.rounds ? [] : [{ key: "nodes", title: "Nodes", number: true, of: ({ nodes }) => nodes, text: ({ nodes }) => count(nodes) }]),
      ...(dwells ? [{ key: "dwell", title: "Dwell", number: true, of: ({ identity }) => dwells[identity], text: ({ identity }) => (dwells[identity] ? dwellText(dwells[identity], clustering) : "–") }] : []),
      ...(known ? [{ key: "since", title: "Age", number: true, of: ({ since }) => this.now - since, text: ({ since }) => duration(this.now - since) }] : []),
      ...clustering.features.map((feature, j) => ({
        key: `feature ${feature.name}`, title: featureLabel(feature), number: true, of_part: true,
        of: ({ centre }) => centre?.[j], text: (cluster) => (cluster.centre ? centreText(cluster, feature, j) : "–"),
      })),
    ];
  }

  // Cells of the only cluster, in the columns of the table; marked as on the map.
  showParts({ parts = [], clusters }, columns) {
    const text = { name: partTitle, share: ({ mass_share }) => percent(mass_share) };
    reconcile(
      at("parts"), parts, ({ number }) => `${number}/${columns.map(({ title }) => title).join("|")}`,
      () => make("tr", {}, make("th", { scope: "row" }, swatch(), make("span", { class: "clamp" })), ...columns.slice(1).map(({ number }) => make("td", { class: number ? "number" : "" }))),
      (row, part) => {
        row.title = part.text;
        fillSwatch(row.cells[0].children[0], partSlot(clusters[0].slot, part.number));
        setText(row.cells[0].children[1], partTitle(part));
        columns.forEach((column, i) => i && setText(row.cells[i], column.of_part ? column.text(part) : text[column.key]?.(part) ?? ""));
      },
    );
  }

  row(columns) {
    const button = make("button", { type: "button", class: "pin" }, swatch(), make("span", { class: "clamp" }));
    const row = make("tr", {}, this.naming.cell(button, () => row.cluster));
    row.append(...columns.slice(1).map(({ key, number }) => make("td", { class: number ? "number" : key })));
    row.addEventListener("pointerenter", () => this.onHover(row.cluster.identity));
    row.addEventListener("pointerleave", () => this.onHover(null));
    button.addEventListener("click", () => this.onChoose(row.cluster.identity));
    return row;
  }

  fill(row, cluster, columns) {
    row.cluster = cluster;
    row.classList.toggle("inactive", !cluster.active);
    const button = row.cells[0].querySelector(".pin");
    this.press(row);
    button.title = cluster.text || "Highlight it on the map";
    fillSwatch(button.children[0], cluster.slot);
    const title = columns[0].text(cluster);
    setText(button.children[1], title);
    this.naming.fill(row.cells[0], title, cluster, Date.now() / 1000);
    columns.slice(1).forEach(({ text }, i) => setText(row.cells[i + 1], text(cluster)));
  }
}

const partTitle = ({ number, label }) => `part ${number}: ${label}`;

// Readings that each lasts at a stretch, by identity: those of states, or of clusters that are the states of another model; null for others.
function dwellsOf({ clusters, beside }) {
  const own = clusters.filter(({ dwell }) => dwell !== null).map(({ identity, dwell }) => [identity, dwell]);
  const dwells = own.length ? Object.fromEntries(own) : beside?.same ?? {};
  return Object.keys(dwells).length ? dwells : null;
}

function dwellText(dwell, { states, beside }) {
  const step = (states ?? beside).reading_s;
  return step ? duration(dwell * step) : count(dwell);
}

// What shares are of.
function sharesOf(counted) {
  if (!counted) return "no history is kept to count shares from.";
  const unknown = counted.unknown_share ? `; ${percent(counted.unknown_share)} fell to no cluster known then` : "";
  return `its share is of the ${count(counted.readings)} readings counted in ${duration(counted.end - counted.start)}, each as it fell when it was learnt${unknown}.`;
}

function notesOn(model, clustering) {
  if (!clustering.clusters.length) return ["None yet."];
  const notes = [`The centre of each in the features' own units; ${sharesOf(clustering.counted)}`];
  if (clustering.clusters.some(({ at_bounds: sides }) => Object.keys(sides).length)) {
    notes.push("≤, ≥: at a bound of the contract, as which all readings beyond it count; a wider one shows where they lie.");
  }
  if (dwellsOf(clustering)) notes.push("Dwell: how long it lasts at a client at a stretch, on average; in readings where their times are not known.");
  if (clustering.parts?.length) notes.push("Parts divide the only cluster where nothing parts it, for orientation; they are no clusters.");
  if (clustering.features_total > clustering.features.length) notes.push(`${clustering.features.length} of ${count(clustering.features_total)} features are shown.`);
  if (model.clusters_total > clustering.clusters.length) notes.push(`The ${clustering.clusters.length} largest of ${count(model.clusters_total)} are listed.`);
  if (clustering.single_nodes) notes.push(`Beside them are ${plural(clustering.single_nodes, "single node")}, which no edge joins to a cluster.`);
  return notes;
}

const WIDTH = 100;
const HEIGHT = 18;

// For each feature, where the middle 80 % of every cluster lies, all on one scale.
export function showDifferences(model) {
  const clustering = model.clustering;
  const clusters = (clustering?.clusters ?? []).filter(({ spread }) => spread); // the server sends it for the heaviest
  at("differ-panel").hidden = clusters.length < 2 || Boolean(model.waiting_for);
  if (at("differ-panel").hidden) return;
  const { features } = clustering;
  const scales = features.map(({ period }, j) => (period ? [0, period] : scaleOf(clusters.map(({ spread }) => spread[j]))));
  reconcile(
    at("differ").tHead, [features], () => features.map(featureLabel).join("|"),
    () => make("tr", {}, make("th", { scope: "col" }, "Cluster"), ...features.map((feature) => make("th", { scope: "col", title: featureLabel(feature) }, make("span", { class: "clamp" }, featureLabel(feature))))),
    () => {},
  );
  reconcile(
    at("differ").tBodies[0], clusters, ({ identity }) => `${identity}/${features.length}`, () => differencesRow(features),
    (line, cluster) => fillDifferences(line, cluster, features, scales),
  );
  reconcile(
    at("differ").tFoot, [scales], () => features.length,
    () => make("tr", {}, make("th", { scope: "row" }, "From, to"), ...features.map(() => make("td"))),
    (line) => scales.forEach(([low, high], j) => setText(line.children[j + 1], `${end(low, features[j])} – ${end(high, features[j])}`)),
  );
}

// An end of a range: a number as it is, or the value of a category.
const end = (number, feature) => (feature.values ? shown(number, feature) : value(number));

// From the lowest to the highest end of all clusters shown.
function scaleOf(spreads) {
  const [low, high] = [Math.min(...spreads.map(({ low: least }) => least)), Math.max(...spreads.map(({ high: most }) => most))];
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function differencesRow(features) {
  const cells = features.map(() => {
    const frame = document.createElementNS(SVG, "svg");
    frame.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    frame.setAttribute("preserveAspectRatio", "none");
    frame.setAttribute("aria-hidden", "true");
    for (const part of ["rect", "rect", "rect", "rect"]) frame.append(document.createElementNS(SVG, part));
    return make("td", {}, frame, make("span", { class: "visually-hidden" }));
  });
  return make("tr", {}, make("th", { scope: "row" }, swatch(), make("span", { class: "clamp" })), ...cells);
}

function fillDifferences(line, cluster, features, scales) {
  fillSwatch(line.firstChild.firstChild, cluster.slot);
  setText(line.firstChild.lastChild, clusterTitle(cluster));
  features.forEach((feature, j) => {
    const [{ low, high }, centre] = [cluster.spread[j], cluster.centre[j]];
    const [frame, words] = line.children[j + 1].children;
    const x = (number) => ((number - scales[j][0]) / (scales[j][1] - scales[j][0])) * WIDTH;
    place(frame.children[0], "scale", 0, WIDTH, HEIGHT / 2 - 0.5, 1);
    const colour = `range c${markOf(cluster.slot).colour}`;
    // On a circle a range may begin again at 0.
    const first = low > high ? 0 : x(low);
    place(frame.children[1], colour, first, Math.max(1, x(high) - first), 4, HEIGHT - 8);
    place(frame.children[3], colour, x(low), low > high ? WIDTH - x(low) : 0, 4, HEIGHT - 8);
    place(frame.children[2], "middle", Math.min(WIDTH - 1.2, Math.max(0, x(centre))), 1.2, 1, HEIGHT - 2);
    const unit = feature.unit ? ` ${feature.unit}` : "";
    const side = { low: "at most ", high: "at least " }[cluster.at_bounds[feature.name]];
    const text = side ? `${side}${end(centre, feature)}${unit}` : `${end(low, feature)} to ${end(high, feature)}${unit}, centre ${end(centre, feature)}`;
    setText(words, text);
    if (line.children[j + 1].title !== text) line.children[j + 1].title = text;
  });
}

function place(shape, name, x, width, y, height) {
  for (const [attribute, content] of Object.entries({ class: name, x, width, y, height })) shape.setAttribute(attribute, content);
}
