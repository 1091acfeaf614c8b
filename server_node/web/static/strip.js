// The strip of new readings: in each bar of the time shown, the share of readings that fell to no cluster known then.

import { shareOf, steps } from "./bars.js";
import { percent, setText } from "./format.js";
import { NO_CLUSTER } from "./past.js";
import { moment } from "./times.js";

const LOWEST_TOP = 0.1; // what the full height is at least, so that a few such readings look few
const row = document.getElementById("new-readings");

export function showStrip(bars, window, usual) {
  const [, share, band, since] = row.cells;
  row.hidden = !bars.length;
  const now = usual?.new ?? null;
  const rarely = usual?.new_usual ?? null;
  setText(share.firstChild, now === null ? "" : `${percent(now / 1000)} last hour`);
  setText(share.lastChild, rarely === null ? "" : `up to ${percent(rarely / 1000)} usual`);
  const highest = bars.reduce((most, bar) => (shareOf(bar, NO_CLUSTER) > shareOf(most, NO_CLUSTER) ? bar : most), bars[0] ?? { total: 0 });
  const top = Math.max(LOWEST_TOP, bars.length ? shareOf(highest, NO_CLUSTER) : 0);
  const outline = bars.length ? steps(bars, NO_CLUSTER, window, top) : "";
  const path = band.querySelector("path");
  if (path.getAttribute("d") !== outline) path.setAttribute("d", outline);
  setText(since, `full: ${percent(top)}`);
  setText(band.lastChild, outline ? `At most ${percent(shareOf(highest, NO_CLUSTER))}, ${moment(highest.start)}` : "None in the time shown");
  band.title = band.lastChild.textContent;
}
