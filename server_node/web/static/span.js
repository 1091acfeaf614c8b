// The time that is shown of a model's history: a length that ends now, or one that was chosen in the past.

const HOUR = 3600;
const DAY = 24 * HOUR;
const FINE = 300; // seconds of the smallest bins, which the server keeps for two days
const FINE_KEPT = 2 * DAY;
export const SHORTEST = HOUR;
export const LENGTHS = [["6 hours", 6 * HOUR], ["1 day", DAY], ["1 week", 7 * DAY], ["30 days", 30 * DAY], ["All", Infinity]];
const STEPS = [FINE, 900, HOUR / 2, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, DAY, 2 * DAY, 4 * DAY, 7 * DAY];
const COLUMNS_MAX = 100; // so many take a fifth of what the page may read until its first picture

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

  // The time shown, as it is fetched. `end` is null where it ends now.
  get asked() {
    const length = Math.min(this.length, this.newest - this.oldest);
    const end = this.end === null ? this.newest : this.end;
    return { start: Math.max(this.oldest, end - length), end: this.end, length, step: stepOf(length, end - length >= this.newest - FINE_KEPT) };
  }

  // All of the history, in as many columns as a strip has room for.
  get whole() {
    const length = this.newest - this.oldest;
    return { start: this.oldest, end: null, length, step: stepOf(length, length <= FINE_KEPT) };
  }

  // Shows `length` seconds, up to `end`; a length that reaches the newest readings ends now, and goes on with them.
  choose(length, end = this.newest) {
    this.chosen = true;
    this.length = Math.max(SHORTEST, length);
    const room = Math.min(this.length, this.newest - this.oldest);
    this.end = end >= this.newest - FINE ? null : Math.round(Math.max(end, this.oldest + room) / FINE) * FINE;
  }

  // By so many times its length, to later times or, below 0, to earlier ones.
  move(lengths) {
    const { start, end, length } = this.asked;
    this.choose(this.length, (end ?? start + length) + lengths * length);
  }

  // As many times as long, about the same middle.
  scale(times) {
    const { start, end, length } = this.asked;
    const next = Math.min(Math.max(SHORTEST, length * times), this.newest - this.oldest);
    this.choose(next, this.end === null ? this.newest : (end + start + next) / 2);
  }
}

function stepOf(length, fine) {
  return STEPS.find((step) => length / step <= COLUMNS_MAX && (fine || step >= HOUR / 2)) ?? STEPS.at(-1);
}
