// The history of a model as the page draws it: the time shown, the columns that are fetched for it, bars made of them, and the
// words of a time axis.

const HOUR = 3600;
const HOURS = [1, 2, 3, 6, 12];
const DAYS = [1, 2, 4, 7, 14, 28, 56, 112];

// With the year where it is not this one.
function words(seconds, options) {
  const date = new Date(seconds * 1000);
  const other = options.month && date.getFullYear() !== new Date().getFullYear();
  return date.toLocaleString("en-GB", other ? { ...options, year: "numeric" } : options);
}
const clockOf = (seconds) => words(seconds, { hour: "2-digit", minute: "2-digit" });
const dayOf = (seconds) => words(seconds, { weekday: "short", day: "numeric", month: "short" });
export const moment = (seconds) => words(seconds, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

// Two moments, the day of the second one only where it is another.
export function fromTo(start, end) {
  const last = dayOf(start) === dayOf(end) ? clockOf(end) : moment(end);
  return `${moment(start)} to ${last}`;
}

// At most `most` ticks at whole hours or days, each with its `place` from 0 to 1 and its words.
export function ticksOf({ start, end }, most) {
  const length = end - start;
  const hours = HOURS.find((each) => length / HOUR / each <= most);
  const days = hours ? 1 : DAYS.find((each) => length / HOUR / 24 / each <= most) ?? DAYS.at(-1);
  const found = [];
  const midnight = new Date(start * 1000);
  midnight.setHours(0, 0, 0, 0);
  for (; midnight.getTime() / 1000 < end; midnight.setDate(midnight.getDate() + days)) {
    const dayStart = midnight.getTime() / 1000;
    for (let hour = 0; hour < (hours ? 24 : 1); hour += hours ?? 24) found.push(dayStart + hour * HOUR);
  }
  return found.map((time) => ({ place: (time - start) / length, words: labelOf(time, days) })).filter(({ place }) => place >= 0 && place < 1);
}

function labelOf(time, days) {
  const date = new Date(time * 1000);
  if (date.getHours() || date.getMinutes()) return clockOf(time);
  return words(time, days > 7 ? { day: "numeric", month: "short" } : { weekday: "short", day: "numeric" });
}

const DAY = 24 * HOUR;
const FINE = 300; // seconds of the smallest bins, which the server keeps for two days
const [FINE_KEPT, HALF_HOURS_KEPT] = [2 * DAY, 365 * DAY];
export const SHORTEST = HOUR; // no less time is shown
export const LENGTHS = [["6 hours", 6 * HOUR], ["1 day", DAY], ["1 week", 7 * DAY], ["30 days", 30 * DAY], ["1 year", 365 * DAY], ["All", Infinity]];
const STEPS = [FINE, 900, HOUR / 2, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, DAY, 2 * DAY, 4 * DAY, 7 * DAY];
const COLUMNS_MAX = 100; // these take a fifth of what the page may read until its first picture

// The time shown: a length that ends now, or one that was chosen in the past.
export class Span {
  constructor() {
    [this.length, this.end, this.chosen, this.oldest, this.newest] = [DAY, null, false, 0, 0];
  }

  // `usual` has the oldest and the newest time that the history knows; it is null before there is any.
  reach(usual) {
    if (!usual) return;
    [this.oldest, this.newest] = [Math.min(usual.oldest, usual.newest), usual.newest + FINE];
    if (!this.chosen) this.length = LENGTHS.find(([, length]) => length >= this.newest - this.oldest - FINE)[1];
  }

  // The time to fetch for what is shown. `end` is null where it ends now.
  get asked() {
    const length = Math.min(this.length, this.newest - this.oldest);
    const end = this.end === null ? this.newest : this.end;
    return { start: Math.max(this.oldest, end - length), end: this.end, length, step: stepOf(length, this.newest - end + length) };
  }

  // All of the history, in as many columns as a strip has room for.
  get whole() {
    const length = this.newest - this.oldest;
    return { start: this.oldest, end: null, length, step: stepOf(length, length) };
  }

  // Shows `length` seconds, up to `end`; a length that reaches the newest readings ends now, and goes on with them.
  choose(length, end = this.newest) {
    this.chosen = true;
    this.length = Math.max(SHORTEST, length);
    const room = Math.min(this.length, this.newest - this.oldest);
    this.end = end >= this.newest - FINE ? null : Math.round(Math.max(end, this.oldest + room) / FINE) * FINE;
  }

  // By `lengths` times its length, to later times or, below 0, to earlier ones.
  move(lengths) {
    const { start, end, length } = this.asked;
    this.choose(this.length, (end ?? start + length) + lengths * length);
  }

  // `times` times as long, about the same middle.
  scale(times) {
    const { start, end, length } = this.asked;
    const next = Math.min(Math.max(SHORTEST, length * times), this.newest - this.oldest);
    this.choose(next, this.end === null ? this.newest : (end + start + next) / 2);
  }
}

// Of columns for `length` seconds, of which the oldest are `age` seconds old.
function stepOf(length, age) {
  const least = age <= FINE_KEPT ? FINE : age <= HALF_HOURS_KEPT ? HOUR / 2 : DAY;
  return STEPS.find((step) => length / step <= COLUMNS_MAX && step >= least) ?? STEPS.at(-1);
}

const REFRESH_MS = 5000;
export const NO_CLUSTER = -1;

// A part of a model's history, as the server has counted it: fetched for the time shown, and continued when it grows.
export class LoadedHistory {
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
    this.changes += 1; // how often there was something else to draw
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

const USUAL_GAP = 0.75; // the quantile of the gaps between columns that a bar is as wide as: three of four gaps fit into it
export const WIDTH = 1000; // of a band, in its own units; the browser stretches it
export const HEIGHT = 32;
const HIGH = 0.98; // the quantile of the shares that takes the full height
const THINNEST = 1.2; // a cluster that lives but gets no readings is a thin line

export const shareOf = ({ total, clusters }, identity) => (total ? (clusters.get(identity) ?? 0) / total : 0);

// The columns in the order of time, several in one bar where updates come less often than columns begin.
// `width`: seconds of a bar; `lived`: identity -> the starts of its first and its last bar.
export function barsOf(columns, step) {
  const starts = [...columns.keys()].sort((a, b) => a - b);
  const gaps = starts.slice(1).map((start, i) => start - starts[i]).sort((a, b) => a - b);
  const width = gaps[Math.floor(gaps.length * USUAL_GAP)] ?? step;
  const joined = new Map();
  const lived = new Map();
  for (const start of starts) {
    const first = Math.floor((start - starts[0]) / width) * width + starts[0];
    const bar = joined.get(first) ?? { start: first, total: 0, clusters: new Map() };
    const { total, clusters } = columns.get(start);
    bar.total += total;
    for (const [identity, readings] of clusters) {
      bar.clusters.set(identity, (bar.clusters.get(identity) ?? 0) + readings);
      lived.set(identity, [lived.get(identity)?.[0] ?? first, first]);
    }
    joined.set(first, bar);
  }
  return Object.assign([...joined.values()], { width, lived });
}

// The share of a cluster that few bars exceed, so that one of long ago does not make all others thin.
export function highShare(bars) {
  const shares = bars.flatMap((bar) => [...bar.clusters.keys()].filter((identity) => identity !== NO_CLUSTER).map((identity) => shareOf(bar, identity)));
  return shares.sort((a, b) => a - b)[Math.floor(HIGH * (shares.length - 1))] ?? 0;
}

// The outline of a band: its share above and below the middle, from its first bar to its last, or to the end while it lives.
// `full` is the share from which a bar takes the full height.
export function outlineOf(bars, { identity, ended }, { start, end }, full) {
  if (!bars.lived.has(identity)) return "";
  const [first, newest] = bars.lived.get(identity);
  const last = ended ? newest + bars.width : end;
  const [above, below] = [[], []];
  const x = (time) => (((time - start) / (end - start)) * WIDTH).toFixed(1);
  const add = (from, to, thickness) => {
    const [up, down] = [(HEIGHT - thickness) / 2, (HEIGHT + thickness) / 2].map((y) => y.toFixed(1));
    above.push(`${x(from)} ${up}`, `${x(to)} ${up}`);
    below.push(`${x(from)} ${down}`, `${x(to)} ${down}`);
  };
  let reached = first;
  for (const bar of bars) {
    if (bar.start < first || bar.start >= last) continue;
    if (bar.start > reached) add(reached, bar.start, THINNEST);
    add(bar.start, bar.start + bars.width, Math.max(THINNEST, Math.min(1, shareOf(bar, identity) / full) * (HEIGHT - 2)));
    reached = bar.start + bars.width;
  }
  if (reached < last) add(reached, last, THINNEST);
  return `M${above.join("L")}L${below.reverse().join("L")}Z`;
}

// One rectangle for each bar, as high as the share of one cluster; the share `highest` takes the full height.
export function steps(bars, identity, { start, end }, highest) {
  const x = (time) => ((time - start) / (end - start)) * WIDTH;
  const width = x(start + bars.width).toFixed(1);
  return bars.filter(({ clusters }) => clusters.has(identity)).map((bar) => {
    const height = (shareOf(bar, identity) / highest) * (HEIGHT - 2);
    return `M${x(bar.start).toFixed(1)} ${HEIGHT}v${(-height).toFixed(1)}h${width}V${HEIGHT}Z`;
  }).join("");
}
