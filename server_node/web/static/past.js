// A part of a model's history, as the server has counted it: fetched for the time shown, and continued when it grows.

const REFRESH_MS = 5000;
export const NO_CLUSTER = -1;

export class Past {
  // `onChange` is called when there are other columns than before; new readings are fetched every `refreshMs` at most.
  constructor(onChange, refreshMs = REFRESH_MS) {
    [this.onChange, this.refreshMs] = [onChange, refreshMs];
    [this.asked, this.shown, this.span, this.readings, this.busy, this.changes, this.failed] = ["", "", null, -1, false, 0, false];
    this.columns = new Map(); // start -> {total, clusters: Map of identity -> readings}
    this.names = new Map(); // identity -> {name, label}
  }

  // Keeps the readings of `model` in the time of `span` ({start, end, length, step}, all in seconds); `end` is null for a
  // span that ends now. What was there before stays until it has come.
  follow(model, span) {
    const asked = [model.name, span.step, span.length, span.end].join("/");
    if (asked !== this.asked) [this.asked, this.readings, this.fetchedAt] = [asked, -1, -this.refreshMs];
    this.newestAsked = [model, span];
    const complete = this.shown === asked && span.end !== null;
    if (this.busy || complete || model.readings === this.readings || performance.now() < this.fetchedAt + this.refreshMs) return;
    [this.busy, this.fetchedAt, this.readings] = [true, performance.now(), model.readings];
    this.fetch(model.name, span, asked).finally(() => {
      this.busy = false;
      if (asked !== this.asked) this.follow(...this.newestAsked); // another model or span is asked for by now
    });
  }

  async fetch(model, span, asked) {
    const goesOn = this.shown === asked;
    const [columns, names] = goesOn ? [this.columns, this.names] : [new Map(), new Map()];
    try {
      for (let next = (goesOn ? newestOf(columns) : null) ?? span.start; next !== null;) {
        const to = span.end === null ? "" : `&to=${span.end - 1}`;
        const response = await fetch(`v1/history?model=${encodeURIComponent(model)}&of=clusters&step=${span.step}&from=${next}${to}`);
        if (!response.ok) throw new Error(response.statusText);
        const answer = await response.json();
        if (asked !== this.asked) return;
        add(answer, columns, names);
        next = answer.more_from;
      }
      const oldest = newestOf(columns) - span.length;
      if (span.end === null) for (const start of columns.keys()) if (start < oldest) columns.delete(start);
      [this.columns, this.names, this.span, this.shown, this.failed] = [columns, names, span, asked, false];
    } catch {
      this.failed = true;
    }
    this.changes += 1; // so many times there was something else to draw
    this.onChange();
  }
}

const newestOf = (columns) => (columns.size ? Math.max(...columns.keys()) : null);

function add({ starts, readings, clusters }, columns, names) {
  starts.forEach((start, i) => columns.set(start, { total: readings[i], clusters: new Map() }));
  for (const { identity, name, label, readings: counts } of clusters) {
    const key = identity ?? NO_CLUSTER;
    if (key !== NO_CLUSTER) names.set(key, { identity: key, name, label });
    starts.forEach((start, i) => counts[i] && columns.get(start).clusters.set(key, counts[i]));
  }
}
