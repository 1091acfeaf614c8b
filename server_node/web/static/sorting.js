// Sorting of a table by a click on a heading; the rows stay sorted as they change.

import { reconcile, make } from "./format.js";

export const compareNames = new Intl.Collator("en", { numeric: true }).compare; // client-2 before client-10

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
    const button = make("button", { type: "button" }, title);
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
