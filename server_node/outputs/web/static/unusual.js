// What was unusual in the time shown: clients, features and states, the least likely first, and the half hours or days.

import { at, featureName, make, percent, plural, reconcile, setText, value } from "./format.js";
import { moment } from "./history.js";

const LISTED_MAX = 10;
const HOURS_MAX = 4;
const SURE = 1e-4; // chances below it are not told apart
const CHANCE_DIGITS = 2;

const panel = at("unusual-panel");

// Asked for only while it is unfolded: the server compares every figure of the time with those of earlier weeks.
export class UnusualSpan {
  constructor() {
    [this.model, this.titles, this.start, this.end, this.asked, this.busy] = [null, new Map(), 0, 0, "", false];
    panel.addEventListener("toggle", () => this.follow());
  }

  // `titles`: client -> name that its owner gave it; the time in seconds since 1970.
  show(model, titles, { start, end }) {
    [this.model, this.titles, this.start, this.end] = [model, titles, start, end];
    this.follow();
  }

  follow() {
    const asked = `${this.model?.name}/${this.start}/${this.end}`;
    if (!panel.open || !this.model || this.busy || asked === this.asked) return;
    [this.asked, this.busy] = [asked, true];
    const query = `model=${encodeURIComponent(this.model.name)}&from=${this.start}&to=${this.end}`;
    fetch(`v1/anomalies?${query}`).then((response) => (response.ok ? response.json() : null)).catch(() => null).then((found) => {
      this.busy = false;
      this.draw(found);
      this.follow(); // another time may have been chosen meanwhile
    });
  }

  draw(found) {
    const lines = found ? this.lines(found) : [];
    reconcile(at("unusual-list"), lines, (line) => line, () => make("li"), setText);
    setText(at("unusual-note"), found ? this.note(found, lines.length > 0) : "It cannot be read at present.");
  }

  // The least likely of all kinds first; hours after them, as their states are listed before.
  lines({ clients, features, states, hours }) {
    const kinds = [...clients.map((each) => [each, this.clientWords(each)]), ...features.map((each) => [each, featureWords(each)]),
      ...states.map((each) => [each, `All clients: ${each.title}, ${shares(each)}`])];
    const ranked = kinds.sort(([a], [b]) => a.chance - b.chance).slice(0, LISTED_MAX);
    const least = hours.slice(0, HOURS_MAX).map((each) => [each, `${moment(each.start)}: ${each.title}, ${shares(each)}`]);
    return [...ranked, ...least].map(([each, words]) => `${words}; ${chanceWords(each.chance)}`);
  }

  note({ earlier, compared, chance, unseen, apart }, any) {
    const since = apart.map(apartWords).join(" ");
    return `${this.comparedWords({ earlier, compared, chance, unseen }, any)} ${since}`.trim();
  }

  comparedWords({ earlier, compared, chance, unseen }, any) {
    if (!compared) return `There are too few earlier times like it (${earlier.length}) to know what is usual.`;
    const words = `${any ? "Nothing else has" : "Nothing has"} a chance below ${100 * chance} %, of ${plural(compared, "figure")} compared with those of ${plural(earlier.length, "earlier time")} like it.`;
    return unseen.length ? `${words} ${this.unseenWords(unseen[0])}` : words;
  }

  // Of the client whose state is least certain.
  unseenWords({ client, readings, least }) {
    const name = this.titles.get(client) ?? client;
    const all = plural(readings, "reading");
    const many = least > readings ? `the ${all}` : `${least.toLocaleString("en-US")} of the ${all}`;
    return `A change of state of fewer than ${many} of ${name} may be missed, as earlier times vary so much; of other clients smaller ones are seen.`;
  }

  clientWords({ client, cluster, title, observed, expected }) {
    const name = this.titles.get(client) ?? client;
    if (cluster === null && !title) return `${name}: ${plural(observed, "reading")}, expected ${Math.round(expected).toLocaleString("en-US")}`;
    return `${name}: ${title}, ${shares({ observed, expected })} of its readings`;
  }
}

// A state that was part of another one, or of none, until it was found.
function apartWords({ title, since, earlier }) {
  const compared = earlier ? `with ${plural(earlier, "time")} since then alone` : "with none";
  return `${title} is told apart from others since ${moment(since)}, and compared ${compared}.`;
}

const shares = ({ observed, expected }) => `${percent(observed)}, expected ${percent(expected)}`;

function featureWords({ feature, unit, title, observed, expected }) {
  const words = (number) => `${value(number)} ${unit}`.trim();
  return `${featureName({ name: feature, unit })} in ${title}: ${words(observed)}, expected ${words(expected)}`;
}

const chanceWords = (chance) => (chance < SURE ? "chance below 0.01 %" : `chance ${Number((100 * chance).toPrecision(CHANCE_DIGITS))} %`);
