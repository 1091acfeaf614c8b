// Bars made of the columns of a history, and the outline of a band through them.

import { NO_CLUSTER } from "./past.js";

const USUAL_GAP = 0.75; // the quantile of the gaps between columns that a bar is as wide as
export const WIDTH = 1000; // of a band, in its own units; the browser stretches it
export const HEIGHT = 32;
const HIGH = 0.98;
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

// One rectangle for each bar, as high as the share of one cluster, of which `highest` takes the full height.
export function steps(bars, identity, { start, end }, highest) {
  const x = (time) => ((time - start) / (end - start)) * WIDTH;
  const width = x(start + bars.width).toFixed(1);
  return bars.filter(({ clusters }) => clusters.has(identity)).map((bar) => {
    const height = (shareOf(bar, identity) / highest) * (HEIGHT - 2);
    return `M${x(bar.start).toFixed(1)} ${HEIGHT}v${(-height).toFixed(1)}h${width}V${HEIGHT}Z`;
  }).join("");
}
