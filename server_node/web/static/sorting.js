// Tables that people sort by a click on a heading, and that stay sorted as their rows change.

import { keep, make } from "./format.js";

const natural = new Intl.Collator("en", { numeric: true }).compare; // client-2 before client-10

export class Sorting {
  // `by` is the key of a column, `onChange` is called when somebody chose another.
  constructor(table, by, falling, onChange) {
    [this.table, this.by, this.falling, this.onChange] = [table, by, falling, onChange];
  }

  // columns: {key, title, number: whether it holds numbers}. A number falls first, a name rises first.
  head(columns) {
    const rows = columns.length ? [columns] : [];
    keep(
      this.table.tHead, rows, (row) => row.map(({ title }) => title).join("|"),
      (row) => make("tr", {}, ...row.map((column) => this.heading(column))),
      (row) => columns.forEach(({ key }, i) => {
        const order = key !== this.by ? "none" : this.falling ? "descending" : "ascending";
        if (row.cells[i].ariaSort !== order) row.cells[i].ariaSort = order;
      }),
    );
  }

  heading({ key, title, number }) {
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      this.falling = key === this.by ? !this.falling : Boolean(number);
      this.by = key;
      this.onChange();
    });
    return make("th", number ? { scope: "col", class: "number" } : { scope: "col" }, button);
  }

  // columns: {key, of: row -> what to sort by}; what is null comes last either way.
  order(rows, columns) {
    const { of } = columns.find(({ key }) => key === this.by) ?? columns[0];
    const sign = this.falling ? -1 : 1;
    return rows.map((row) => [of(row), row]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? natural(a, b) : a - b);
    }).map(([, row]) => row);
  }
}
