// Words and ticks of a time axis, in the time zone of the browser. Times are seconds since 1970.

const HOUR = 3600;
const HOURS = [1, 2, 3, 6, 12];
const DAYS = [1, 2, 4, 7, 14, 28, 56, 112];

const words = (seconds, options) => new Date(seconds * 1000).toLocaleString("en-GB", options);
const clockOf = (seconds) => words(seconds, { hour: "2-digit", minute: "2-digit" });
const dayOf = (seconds) => words(seconds, { weekday: "short", day: "numeric", month: "short" });
export const moment = (seconds) => words(seconds, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

// Two moments, the day of the second one only where it is another.
export function fromTo(start, end) {
  const last = dayOf(start) === dayOf(end) ? clockOf(end) : moment(end);
  return `${moment(start)} to ${last}`;
}

// At most so many ticks at whole hours or days, each with its `place` from 0 to 1 and its words.
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
