// Naming a cluster in its row of the table: a button beside its title opens a text field; Enter saves, Escape cancels.

import { make, setText } from "./format.js";
import { session } from "./session.js";

const SVG = "http://www.w3.org/2000/svg";
const PENCIL = "M2 11.2V14h2.8l7.6-7.6-2.8-2.8zM10.6 2.6l2.8 2.8 1-1a.8.8 0 0 0 0-1.1L12.7 1.6a.8.8 0 0 0-1.1 0z";
const CHARACTERS_MAX = 60;

export class Naming {
  // `status` is a live region: it tells what was requested, or why that failed.
  constructor(status) {
    [this.status, this.model, this.open, this.requested] = [status, "", null, null];
  }

  // The cell of a title with its button. `clusterOf` returns the cluster that the row shows at the time.
  cell(title, clusterOf) {
    const cell = make("th", { scope: "row" }, make("div", { class: "title" }, title));
    if (session.may_name) cell.firstChild.append(this.button(cell, clusterOf));
    return cell;
  }

  button(cell, clusterOf) {
    const icon = document.createElementNS(SVG, "svg");
    icon.setAttribute("viewBox", "0 0 16 16");
    icon.setAttribute("aria-hidden", "true");
    icon.append(document.createElementNS(SVG, "path"));
    icon.firstChild.setAttribute("d", PENCIL);
    const button = make("button", { type: "button", class: "rename", title: "Name this cluster" }, icon);
    button.addEventListener("click", () => this.edit(cell, clusterOf()));
    return button;
  }

  fill(cell, title) {
    const name = `Name cluster ${title}`;
    const button = cell.querySelector(".rename");
    if (button && button.ariaLabel !== name) button.ariaLabel = name;
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
    const refusal = await request(model, identity, name);
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

// "" where the server has accepted the request, else why not.
async function request(model, identity, name) {
  try {
    const response = await fetch(`clusters/${identity}/name?model=${encodeURIComponent(model)}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name }),
    });
    return response.ok ? "" : `Not named: ${(await response.json()).error}.`;
  } catch {
    return "Not named: the server does not respond.";
  }
}
