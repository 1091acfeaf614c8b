// The top of the page, with the clusters there are now, what changed last, four questions with their answers, and shares; and
// the list of cluster events.

import {
  at, clusterTitle, count, fillSwatch, make, markOf, percent, percentText, plural, reconcile, setText, swatch, value, wholePercents,
} from "./format.js";
import { clientsOf, titlesOf } from "./status.js";

const BLOCKS_MAX = 8;
const BLOCK_SHARE_MIN = 0.07; // beyond the first three, a cluster with less has no block of its own
const NEW_SPARE = 10; // thousandths above what is usual that are not remarkable yet
const LIKE_SPARE = 50;

// `onChoose` gets the identity of the cluster whose block is pressed.
export function showSummary(status, model, now, connected, onChoose) {
  const clustering = model.clustering;
  const shown = Boolean(clustering) && !model.waiting_for;
  const stopped = stoppedWords(status, now);
  at("shares").hidden = !shown;
  showHeadline(model, shown, connected, stopped);
  showChanges(shown ? clustering.events : [], now);
  showAnswers([
    ["Usual?", ...usual(shown ? clustering.usual : null, shown ? clustering : null, titlesOf(status), stopped, now)],
    ["New?", ...newReadings(shown ? clustering.usual : null, stopped)],
    ["Complete?", ...complete(status, now, connected, shown ? clustering.most_from : null, shown)],
    ["Private?", ...privacy(status.privacy, model)],
  ]);
  if (shown && stopped && clustering.counted) showShares(...wholeShares(clustering), onChoose);
  else showShares(shown ? clustering.clusters : [], shown ? clustering.newPercent : 0, onChoose);
}

// Why no readings come at present; empty where some do. Then nothing is unusual, and there is no share "now": the last hour is
// that of the clients that ended last.
export function stoppedWords(status, now) {
  if (status.ended) return "The source has ended";
  const clients = clientsOf(status, now);
  return clients.length && clients.every(({ inactive }) => inactive) ? "No client sends at present" : "";
}

function showHeadline(model, shown, connected, stopped) {
  const found = stopped ? plural(model.clusters_total, "cluster") : plural(model.clusters_active, "cluster");
  const when = stopped ? "found" : connected ? "now" : "when last connected";
  setText(at("now-count"), shown ? `${found} ${when}` : "No cluster yet");
  const notes = stopped ? [`${stopped}: shares are of all readings`, model.state] : [`${count(model.clusters_total)} known`, model.state];
  setText(at("now-known"), shown ? notes.filter(Boolean).join(". ") : model.waiting_for);
}

// The clusters with their shares of all readings counted in the place of those of the last hour, and the percentage of none.
export function wholeShares({ clusters, counted }) {
  const percents = wholePercents([...clusters.map(({ share: part }) => part ?? 0), counted.unknown_share]);
  return [clusters.map((each, i) => ({ ...each, shareNow: each.share ?? 0, nowPercent: percents[i] })), percents.at(-1)];
}

// The newest event that is more than a pause, or than a cluster that merged away again, and the one before it.
function showChanges(events, now) {
  const shown = events.filter(({ brief, kind }) => !brief && kind !== "quiet").slice(-2);
  const sentence = (event) => `${eventTime(event, now)} ${event.text}`;
  setText(at("changed"), shown.length ? sentence(shown.at(-1)) : "Nothing has changed yet.");
  setText(at("before"), shown.length > 1 ? `Before: ${sentence(shown.at(-2))}` : "");
}

// When an event happened: of a cluster that is new from its first readings on, to its last ones where these ended before it was found.
function eventTime({ at: moment, until, found_at: found }, now) {
  const from = momentText(moment, now);
  if (found === moment) return from;
  return `${from}${until === null ? "" : ` to ${momentText(until, moment)}`} (found ${momentText(found, now)})`;
}

// The time of day, with the date where it is not of today, and the year where it is not this one. `moment` and `now` are seconds since 1970.
export function momentText(moment, now) {
  const [date, today] = [new Date(moment * 1000), new Date(now * 1000)];
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === today.toDateString()) return time;
  const year = date.getFullYear() === today.getFullYear() ? {} : { year: "numeric" };
  return `${date.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short", ...year })}, ${time}`;
}

const share = (thousandths) => percent(thousandths / 1000);

// Of a clustering, `alarm`: shares have been unusual for so long that an event said so, and no event has said since that they are usual
// again; `unlike`: clients whose shares differ from those of all others.
function usual(known, clustering, titles, stopped, now) {
  const unlike = unlikeWords(clustering?.unlike ?? [], titles, now);
  if (stopped) return [unlike ? "warn" : "none", unlike ? `${unlike}.` : `${stopped}: there is nothing to compare.`];
  if (unlike) return ["warn", `No: ${unlike}.`];
  if (clustering?.alarm) return ["warn", `No, an alarm is on: clusters have other shares than usual at this time${likenessWords(known)}.`];
  if (!known) return ["none", "There is nothing to compare with yet."];
  const days = known.weekend ? "weekend days" : "working days";
  if (known.likeness === null) {
    return ["none", `Too early to say: it takes three ${days} with readings of the same clients at this time of day, so far there are ${known.like_days}.`];
  }
  const [low, high] = known.likeness_range;
  const words = `${share(known.likeness)} as on earlier ${days} at this time`;
  if (known.likeness >= low - LIKE_SPARE) return ["good", `Yes: ${words}.`];
  const usual = share(low) === share(high) ? share(high) : `${Math.round(low / 10)} to ${share(high)}`;
  return ["warn", `No: ${words}, else ${usual}.`];
}

// Such as "pump-7 is unlike all other clients since Tue 2 Jan".
function unlikeWords(unlike, titles, now) {
  if (!unlike.length) return "";
  const [first] = unlike;
  const others = unlike.length > 1 ? ` (and ${unlike.length - 1} more)` : "";
  return `${titles.get(first.client) ?? first.client}${others} is unlike all other clients since ${dayText(first.since, now)}`;
}

// The day that begins at this moment (UTC), with the year where it is not this one.
function dayText(moment, now) {
  const [date, today] = [new Date(moment * 1000), new Date(now * 1000)];
  const year = date.getUTCFullYear() === today.getUTCFullYear() ? {} : { year: "numeric" };
  return date.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short", timeZone: "UTC", ...year });
}

// Such as ", 62 % as on earlier working days".
function likenessWords(known) {
  return known && known.likeness !== null ? `, ${share(known.likeness)} as on earlier ${known.weekend ? "weekend" : "working"} days` : "";
}

// Of a source that has ended nothing is new: its last hour holds readings of a time when clusters were still being found.
function newReadings(known, stopped) {
  if (stopped) return ["none", `${stopped}: no readings to judge.`];
  if (!known || known.new === null) return ["none", "There are no readings to judge yet."];
  const words = `${share(known.new)} of the last hour's readings belonged to no cluster known then`;
  if (known.new_usual === null) return ["none", `${words}; it takes six hours to know what is usual.`];
  return [known.new <= known.new_usual + NEW_SPARE ? "good" : "warn", `${words}, up to ${share(known.new_usual)} is usual.`];
}

// `most` is the client of several from which most of the newest readings come, if there is one. Without a clustering, which is what
// `shown` says, more clients may be waited for: those that there are do not make it complete.
function complete(status, now, connected, most, shown) {
  if (!connected) return ["warn", "No: the server does not respond; clients go on learning meanwhile."];
  const clients = clientsOf(status, now);
  const absent = clients.filter(({ inactive }) => inactive);
  const rejected = Object.values(status.rejected).reduce((sum, messages) => sum + messages, 0);
  const rest = [status.lag_records ? `${plural(status.lag_records, "update")} to read` : "", rejected ? `${plural(rejected, "message")} rejected` : ""].filter(Boolean);
  const refused = clients.reduce((sum, client) => sum + (client.rejected ?? 0), 0);
  if (refused) rest.push(`${plural(refused, "reading")} rejected by clients`);
  if (!clients.length) return ["none", "No client has sent an update yet."];
  const active = status.ended
    ? `The source has ended: what ${plural(clients.length, "client")} sent is learnt`
    : `${clients.length - absent.length} of ${plural(clients.length, "client")} active`;
  const more = rest.length ? `, ${rest.join(", ")}` : "";
  // At the end of files some clients have readings that fill no window, so nothing follows from who sent last.
  const large = most && !status.ended ? ` ${most.percent} % of the newest readings are those of ${titlesOf(status).get(most.client) ?? most.client}.` : "";
  if (!absent.length && !shown && !status.ended) return [rejected || refused ? "warn" : "none", `${active} so far${more}.`];
  // A page that reads no updates does not know of rejected ones.
  const none = status.lag_records === null ? "" : ", no message rejected";
  if (!absent.length) return [rejected || refused ? "warn" : "good", `${active}${more || none}.${large}`];
  const named = absent.slice(0, 2).map(({ title }) => title).join(", ");
  const others = absent.length > 2 ? ` and ${absent.length - 2} more` : "";
  return ["warn", `${named}${others} inactive; ${active}${more}.${large}`];
}

// What the model costs, then the sum over all models.
function privacy({ mode, tone, title, epsilon, per, nominal, models, day }, { name }) {
  const own = models.find((each) => each.name === name)?.epsilon ?? epsilon;
  const sum = models.length > 1 && epsilon !== null ? `, ${value(epsilon)} for all ${models.length} models` : "";
  const price = epsilon === null ? "" : `${nominal ? "Nominal ε" : "ε"} ${value(own)} per ${per}${sum}. `;
  const daily = day === null ? "" : ` A device spends up to ε ${value(day)} a day.`;
  return [mode === "off" ? "none" : tone === "good" ? "good" : "warn", `${price}${title}.${daily}`];
}

const SIGNS = { good: "✓", warn: "!", none: "·" };

function showAnswers(answers) {
  reconcile(
    at("answers"), answers, ([question]) => question,
    ([question]) => make("div", {}, make("dt", {}, question), make("dd", { class: "sign", "aria-hidden": "true" }), make("dd", { class: "words" })),
    (row, [, state, words]) => {
      row.className = state;
      setText(row.children[1], SIGNS[state]);
      setText(row.children[2], words);
    },
  );
}

function showShares(clusters, newPercent, onChoose) {
  const active = clusters.filter(({ active: now, nowPercent }) => now || nowPercent).sort((a, b) => b.shareNow - a.shareNow);
  const own = active.filter(({ shareNow: part }, place) => place < 3 || (place < BLOCKS_MAX && part >= BLOCK_SHARE_MIN));
  const rest = active.slice(own.length);
  const sum = (name) => rest.reduce((total, each) => total + each[name], 0);
  const more = { identity: -2, shareNow: sum("shareNow"), nowPercent: sum("nowPercent"), title: `${rest.length} more` };
  const none = { identity: -1, shareNow: newPercent / 100, nowPercent: newPercent, title: "no cluster known then" };
  reconcile(
    at("shares"), [...own, ...(rest.length ? [more] : []), ...(newPercent ? [none] : [])], ({ identity }) => identity,
    (cluster) => shareBlock(cluster.identity, onChoose),
    (block, cluster) => fillBlock(block, cluster, own.length > 1),
  );
}

function shareBlock(identity, onChoose) {
  const mark = identity < 0 ? make("span") : swatch();
  const parts = [make("b", {}, mark, make("span")), make("span", { class: "quiet" }), make("span", { class: "times" })];
  if (identity < 0) return make("li", {}, make("div", {}, ...parts));
  const button = make("button", { type: "button" }, ...parts);
  button.addEventListener("click", () => onChoose(identity));
  return make("li", {}, button);
}

// Such as "by day 54 %, at night 11 %, at weekends 8 %" of the readings of these times.
function timesText(byTime) {
  const times = [["by day", byTime?.day], ["at night", byTime?.night], ["at weekends", byTime?.weekend]];
  const known = times.filter(([, part]) => part !== null && part !== undefined);
  // Beside a share of all readings, zeros would seem to contradict it.
  if (known.length && known.every(([, part]) => part === 0)) return "none in the newest 28 days";
  return known.map(([time, part]) => `${time} ${percent(part)}`).join(", ");
}

function fillBlock(block, cluster, beside) {
  const [heading, words, times] = block.firstChild.children;
  const [mark, title] = heading.children;
  if (cluster.identity >= 0) {
    fillSwatch(mark, cluster.slot);
    block.className = `f${markOf(cluster.slot).colour}`;
  }
  setText(title, cluster.title ?? clusterTitle(cluster));
  setText(words, [percentText(cluster.nowPercent, cluster.shareNow), cluster.fedNow].filter(Boolean).join(" · "));
  setText(times, beside ? timesText(cluster.share_by_time) : ""); // one alone has all readings at any time
  block.firstChild.title = [title, words, times].map(({ textContent }) => textContent).filter(Boolean).join(", ");
  block.style.flexGrow = Math.max(1, Math.round(100 * cluster.shareNow));
}

const KINDS = {
  birth: "new", parted: "parted", merged: "merged", returned: "returned", quiet: "quiet", gone: "gone",
  share_moved: "share moved", dwell_moved: "dwell moved", named: "named", unusual: "unusual", usual_again: "usual again",
  unlike_others: "unlike others", like_others_again: "like others again",
};

// The newest cluster events, the newest first, all of them or one kind.
export class EventList {
  constructor() {
    this.kind = "";
  }

  // `clustering` is null before the first snapshot.
  show(clustering, now) {
    [this.clustering, this.now] = [clustering, now];
    const events = clustering?.events ?? [];
    if (!events.some(({ kind }) => kind === this.kind)) this.kind = "";
    this.showKinds(events);
    const listed = events.filter(({ kind }) => !this.kind || kind === this.kind).reverse();
    reconcile(
      at("events"), listed, ({ found_at: moment, kind, text }) => `${moment}/${kind}/${text}`,
      ({ kind }) => make("li", { class: kind }, make("time"), make("span")),
      (item, event) => {
        item.firstChild.dateTime = new Date(event.at * 1000).toISOString();
        setText(item.firstChild, eventTime(event, now));
        setText(item.lastChild, event.text);
      },
    );
    setText(at("events-note"), events.length ? `The newest ${plural(events.length, "event")}; the topic of events has all.` : "Nothing has happened yet.");
  }

  showKinds(events) {
    const present = Object.keys(KINDS).filter((name) => events.some(({ kind }) => kind === name));
    at("kinds").hidden = present.length < 2;
    reconcile(
      at("kinds"), ["", ...present], (name) => name || "all",
      (name) => {
        const button = make("button", { type: "button" });
        button.addEventListener("click", () => {
          this.kind = name;
          this.show(this.clustering, this.now);
        });
        return button;
      },
      (button, name) => {
        const number = events.filter(({ kind }) => !name || kind === name).length;
        setText(button, `${name ? KINDS[name] : "all"} ${number}`);
        const pressed = String(name === this.kind);
        if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
      },
    );
  }
}
