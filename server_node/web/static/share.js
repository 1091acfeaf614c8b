// The cell of a cluster's share now: in words, as a bar, and with what is usual at this time of day marked on it.

import { make, percent, setText } from "./format.js";
import { markOf } from "./marks.js";

const SPARE = 50; // thousandths beyond what is usual that are not remarkable yet

// The smallest, the mean and the largest share on earlier days of this kind, in thousandths; null until there are some.
export function usualOf(usual, identity) {
  return usual?.clusters.find((each) => each.identity === identity)?.range ?? null;
}

// What is usual, in words; empty for null.
export function usualWords(range) {
  if (!range) return "";
  const [low, mean, high] = range.map((thousandths) => percent(thousandths / 1000));
  return low === high ? low : `${low} to ${high}, on average ${mean}`;
}

export function shareCell() {
  const bar = make("div", { class: "share-bar", "aria-hidden": "true" }, make("i", { class: "part" }), make("i", { class: "usual" }), make("i", { class: "mean" }));
  return make("td", { class: "share", role: "cell" }, make("b"), make("span", { class: "far" }), bar, make("span", { class: "visually-hidden" }));
}

// `full` is the share from which a bar is full.
export function fillShare(cell, cluster, range, full) {
  const [now, far, bar, words] = cell.children;
  const { active, ended, slot, recent_share: share } = cluster;
  const drawn = JSON.stringify([active, ended, slot, share, range, full, cluster.trend_text]);
  if (cell.dataset.drawn === drawn) return; // an element that is set anew is styled anew
  cell.dataset.drawn = drawn;
  setText(now, ended ? "" : active ? percent(share) : "quiet");
  const beyond = ended || !range ? 0 : 1000 * share > range[2] + SPARE ? 1 : 1000 * share < range[0] - SPARE ? -1 : 0;
  setText(far, beyond ? `! ${beyond > 0 ? "more" : "less"} than usual` : "");
  setText(words, range && !ended ? `, usual at this time ${usualWords(range)}` : "");
  cell.title = [cluster.trend_text, range && !ended ? `usual at this time: ${usualWords(range)}` : ""].filter(Boolean).join("; ");
  bar.hidden = ended || (!active && !range);
  const [part, usual, mean] = bar.children;
  const place = (part) => `${Math.min(100, (100 * part) / full).toFixed(1)}%`;
  part.className = `part f${markOf(slot ?? 0).colour}`;
  part.style.width = active ? place(share) : "0";
  [usual.hidden, mean.hidden] = [!range, !range];
  if (!range) return;
  usual.style.left = place(range[0] / 1000);
  usual.style.right = `calc(100% - ${place(range[2] / 1000)})`;
  mean.style.left = place(range[1] / 1000);
}
