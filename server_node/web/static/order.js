// An order of rows that does not change by itself while a reader looks at them.

const EVERY_MS = 60_000;

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
