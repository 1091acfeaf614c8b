// The bins of a model's history, as the server has counted them: fetched for the time shown, and continued when it grows.

const REFRESH_MS = 5000;
export const NO_CLUSTER = -1;

export class Past {
  // `onChange` is called when there are other bins than before.
  constructor(onChange) {
    [this.onChange, this.asked, this.readings, this.busy, this.changes] = [onChange, "", -1, false, 0];
    this.clear();
  }

  clear() {
    this.changes += 1; // so many times the bins have changed
    this.bins = new Map(); // start -> {total, clusters: Map of identity -> readings}
    this.names = new Map(); // identity -> {name, label}
    [this.fetchedAt, this.failed] = [-REFRESH_MS, false];
  }

  // Keeps the bins of `model` with this `step` in seconds that start less than `length` seconds before the newest.
  follow(model, step, length) {
    const asked = `${model.name}/${step}/${length}`;
    if (asked !== this.asked) {
      [this.asked, this.readings] = [asked, -1];
      this.clear();
    }
    const newest = model.clustering.usual?.newest;
    if (newest === undefined) return;
    if (this.busy || model.readings === this.readings || performance.now() < this.fetchedAt + REFRESH_MS) return;
    [this.busy, this.fetchedAt, this.readings] = [true, performance.now(), model.readings];
    this.fetch(model.name, newest, step, length, asked).finally(() => (this.busy = false));
  }

  async fetch(model, newest, step, length, asked) {
    try {
      for (let next = this.newest ?? newest - length; next !== null;) {
        const response = await fetch(`v1/history?model=${encodeURIComponent(model)}&step=${step}&from=${next}`);
        if (!response.ok) throw new Error(response.statusText);
        const answer = await response.json();
        if (asked !== this.asked) return; // another model or span is shown by now
        this.add(answer);
        next = answer.more_from;
      }
      this.failed = false;
    } catch {
      this.failed = true;
    }
    this.changes += 1;
    const oldest = this.newest - length;
    for (const start of this.bins.keys()) if (start < oldest) this.bins.delete(start);
    this.onChange();
  }

  add({ starts, readings, clusters }) {
    starts.forEach((start, i) => this.bins.set(start, { total: readings[i], clusters: new Map() }));
    for (const { identity, name, label, readings: counts } of clusters) {
      const key = identity ?? NO_CLUSTER;
      if (key !== NO_CLUSTER) this.names.set(key, { identity: key, name, label });
      starts.forEach((start, i) => counts[i] && this.bins.get(start).clusters.set(key, counts[i]));
    }
  }

  get newest() {
    return this.bins.size ? Math.max(...this.bins.keys()) : null;
  }
}
