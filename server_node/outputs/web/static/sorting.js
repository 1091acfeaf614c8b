// Orders of the rows of a table: sorted by a click on a heading, or kept while a reader looks at them.

import { make, reconcile } from "./format.js";

const EVERY_MS = 60_000;

// An order of rows that does not change by itself while a reader looks at them.
export class SteadyOrder {
  constructor(rows) {
    [this.rows, this.names, this.of, this.takenAt] = [rows, [], null, 0];
  }

  // `items` as they were ordered before, new ones last. At most once a minute, and not under pointer or focus, their present
  // order is taken; at once, where `of` says that others are listed, or that another order was asked for.
  keep(items, name, of) {
    const looked = this.rows.matches(":hover") || this.rows.contains(document.activeElement);
    const due = performance.now() > this.takenAt + EVERY_MS && !looked;
    const places = new Map(of === this.of && !due ? this.names.map((each, place) => [each, place]) : []);
    if (!places.size) [this.of, this.takenAt] = [of, performance.now()];
    const place = (item) => places.get(name(item)) ?? places.size;
    const kept = [...items].sort((a, b) => place(a) - place(b));
    this.names = kept.map(name);
    return kept;
  }
}

export const compareNames = new Intl.Collator("en", { numeric: true }).compare; // client-2 before client-10

// Sorting by a click on a heading; the rows stay sorted as they change.
export class Sorting {
  // `by` is the key of a column; `onChange` is called when the user chose another.
  constructor(table, by, descending, onChange) {
    [this.table, this.by, this.descending, this.onChange] = [table, by, descending, onChange];
  }

  // The order asked for, as text.
  get chosen() {
    return `${this.by}/${this.descending}`;
  }

  // columns: {key, title, number: whether it holds numbers}. Numbers start in descending order, names in ascending.
  head(columns) {
    const rows = columns.length ? [columns] : [];
    reconcile(
      this.table.tHead, rows, (row) => row.map(({ title }) => title).join("|"),
      (row) => make("tr", {}, ...row.map((column) => this.heading(column))),
      (row) => columns.forEach(({ key }, i) => {
        const order = key !== this.by ? "none" : this.descending ? "descending" : "ascending";
        if (row.cells[i].ariaSort !== order) row.cells[i].ariaSort = order;
      }),
    );
  }

  heading({ key, title, number }) {
    const button = make("button", { type: "button", title }, make("span", { class: "clamp" }, title));
    button.addEventListener("click", () => {
      this.descending = key === this.by ? !this.descending : Boolean(number);
      this.by = key;
      this.onChange();
    });
    return make("th", number ? { scope: "col", class: "number" } : { scope: "col" }, button);
  }

  // columns: {key, of: row -> value to sort by}; null comes last in both orders.
  order(rows, columns) {
    const { of } = columns.find(({ key }) => key === this.by) ?? columns[0];
    const sign = this.descending ? -1 : 1;
    return rows.map((row) => [of(row), row]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? compareNames(a, b) : a - b);
    }).map(([, row]) => row);
  }
}
