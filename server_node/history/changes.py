"""Changes of a model's clusters between two spans of time: new, gone, parted, merged, moved, and
shares that moved.

Everything is found in the history of clusters and in the cluster events, so it is made of what was
published before.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

import numpy as np

from shoal.config.contract import Contract, Feature, category_text
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.events import duration
from shoal.protocol.history import (
    BINS_KEPT,
    COARSE_S,
    EMPTY,
    FINE_S,
    NO_CLUSTER,
    PLACES_S,
    HistoryBin,
    HistoryNames,
    cells_table,
    known_means,
    readings_table,
)
from shoal.server_node.history.series import Difference, Series, difference, unrolled
from shoal.server_node.history.shares import client_name
from shoal.server_node.history.sources import HistorySource

CHANCE: Final = 0.01
"""chance below which a difference is shown, by default"""
CLIENTS_NAMED_MAX: Final = 3
FINE_SPAN_S: Final = BINS_KEPT[FINE_S] * FINE_S
"""spans that begin within this time, for which fine bins are kept, are compared in these"""
LINEAGE: Final = ("birth", "parted", "merged", "gone", "quiet")
"""kinds of events that say how a cluster began or ended"""


class Span(NamedTuple):
    """A span of time, seconds since 1970; the end is not in it."""

    first: int
    end: int

    def text(self) -> str:
        """Its ends, UTC, and how long it is."""
        return f"{utc_text(self.first)} to {utc_text(self.end)} ({duration(self.end - self.first)})"


class Spans(NamedTuple):
    """The two spans that are compared, and the width of the bins in which they are."""

    before: Span
    after: Span
    width_s: int


class PastEvent(NamedTuple):
    """An event of a cluster."""

    at: float
    """time of the newest reading then, seconds since 1970"""
    kind: str
    cluster: int
    other: int | None


Movement = TypeVar("Movement", "Moved", "ShareMoved")
ByClient = list[tuple[str, float]]


@dataclass(frozen=True)
class Begun:
    """A cluster with readings in the later span only."""

    cluster: int
    title: str
    kind: str
    """`new`, or `parted` from `other`"""
    other: str
    share: float
    """part of the readings of known clusters in the later span, 0 to 1"""
    clients: ByClient
    """shares of its readings, the largest first; empty where these were too many to be kept"""


@dataclass(frozen=True)
class Ended:
    """A cluster with readings in the earlier span only."""

    cluster: int
    title: str
    kind: str
    """`gone`, `merged` into `other`, or `quiet`: it is known, and no readings fall to it"""
    other: str
    share: float
    """part of the readings of known clusters in the earlier span"""


@dataclass(frozen=True)
class Moved:
    """A feature of a cluster that has another mean, in its unit."""

    cluster: int
    title: str
    feature: str
    unit: str
    before: float
    after: float
    by: float
    """the difference, at the same times of the day where the spans are long enough"""
    chance: float
    """probability of a difference as large in any feature or share of any cluster where nothing has
    changed"""
    values: tuple[str, str] | None = None
    """values of a category that are nearest to both means"""


@dataclass(frozen=True)
class ShareMoved:
    """A cluster with readings in both spans, and its share of those of known clusters."""

    cluster: int
    title: str
    before: float
    after: float
    by: float
    chance: float
    clients: ByClient
    """part of each client's readings in the difference of shares, the largest first; empty where it
    is not known"""


@dataclass(frozen=True)
class Changes:
    """Changes between two spans."""

    model: str
    spans: Spans
    readings: tuple[int, int]
    """readings of known clusters in each span"""
    new: list[Begun]
    gone: list[Ended]
    moved: list[Moved]
    """all that were compared, the least likely first"""
    shares: list[ShareMoved]
    """the same"""
    compared: int
    """features and shares of clusters that were compared, for which chances are corrected
    (Bonferroni)"""
    bins: tuple[int, int]
    """bins with readings of each span"""


def spans_of(
    source: HistorySource,
    model: str,
    after: tuple[float | None, float | None] = (None, None),
    before: tuple[float | None, float | None] = (None, None),
) -> Spans:
    """The spans to compare, of (first, end) as they are asked for; None where they are not.

    By default the two halves of the history, of a year at most. A later span alone is compared with
    the time as long before it. Raises `SettingsError` for spans that are empty or overlap, or
    without any history.
    """
    fine = source.extent(model, FINE_S)
    coarse = source.extent(model, COARSE_S)
    if fine is None or coarse is None:
        raise SettingsError(f"model {model} has no history yet")
    newest = fine[1] + FINE_S
    # The file removes old bins some at a time, so some may be older than what is kept.
    oldest = max(min(fine[0], coarse[0]), newest - BINS_KEPT[COARSE_S] * COARSE_S)
    first, end = after
    if end is None:
        end = newest
    if before != (None, None) and first is None:
        first = before[1]
    if first is None:
        first = oldest + (end - oldest) / 2
    since, until = _earlier(before, first, end, oldest)
    if since >= until or first >= end:
        name = "later"
        if since >= until:
            name = "earlier"
        raise SettingsError(
            f"the {name} span is empty; {model} has a history from {utc_text(oldest)} to"
            f" {utc_text(newest)} (UTC)"
        )
    if until > first:
        raise SettingsError(
            "the spans overlap: the earlier one must end before the later one begins"
        )
    # Both spans in bins of one width: those of a wider one are means of more readings, and vary
    # less.
    width = PLACES_S
    if since >= newest - FINE_SPAN_S:
        width = FINE_S
    # A bin belongs to the span in which it begins. Both ends are rounded up, so that the end of one
    # span is the start of the next, and no bin is in both.
    edges = [int(-(-at // width) * width) for at in (since, until, first, end)]
    return Spans(Span(edges[0], edges[1]), Span(edges[2], edges[3]), width)


def _earlier(
    before: tuple[float | None, float | None], first: float, end: float, oldest: float
) -> tuple[float, float]:
    """The earlier span, seconds since 1970, where the later one is from `first` to `end`."""
    since, until = before
    if until is None:
        until = first
    if since is None:
        # As long as the later span, where the history goes back as far.
        since = max(oldest, until - (end - first))
    return since, until


def find_changes(
    source: HistorySource, contract: Contract, model: str, spans: Spans, events: Iterable[PastEvent]
) -> Changes:
    """Changes between two spans of a model's history.

    `events` are those of its clusters, the oldest first.
    """
    width = spans.width_s
    bins = [
        # `each_bin` includes the last start that is asked for, and a span leaves its end out.
        list(source.each_bin(model, width, span.first, span.end - 1))
        for span in (spans.before, spans.after)
    ]
    counts = [_counts(of_span) for of_span in bins]
    totals = [_totals(of_span) for of_span in counts]
    pairs = [_pairs(of_span) for of_span in bins]
    names = source.names(model)
    titles = Titles(names)
    clients = [] if names is None else names.clients
    shares = _shares_moved(counts, width, titles, pairs, clients)
    moved = _moved(bins, width, contract, titles)
    # What could not be judged was no comparison, and corrects none.
    compared = sum(share.chance < 1 for share in shares) + sum(mean.chance < 1 for mean in moved)
    lineage = _lineage(events, spans)
    return Changes(
        model,
        spans,
        (totals[0].total(), totals[1].total()),
        _begun(totals, pairs[1], clients, titles, lineage),
        _ended(totals, titles, lineage),
        _corrected(moved, compared),
        _corrected(shares, compared),
        compared,
        (len(counts[0]), len(counts[1])),
    )


Counts = dict[int, Counter[int]]
"""start of a bin -> identity -> readings"""


class Titles:
    """Titles of clusters by identity."""

    def __init__(self, names: HistoryNames | None) -> None:
        entries = [] if names is None else names.clusters
        self._names = {int(identity): (str(name), str(label)) for identity, name, label in entries}

    def __call__(self, identity: int | None) -> str:
        if identity is None:
            return ""
        name, label = self._names.get(identity, ("", ""))
        if name:
            return f'cluster {identity} "{name}"'
        if label:
            return f"cluster {identity} ({label})"
        return f"cluster {identity}"


def _counts(bins: Iterable[HistoryBin]) -> Counts:
    """The readings of known clusters in each bin.

    Those of no known cluster are left out: while a model begins, all are, and shares would move by
    that alone.
    """
    counts: Counts = {}
    for counted in bins:
        known = {
            identity: n
            for identity, n in readings_table(counted.clusters).tolist()
            if identity != NO_CLUSTER and n
        }
        if known:
            counts[counted.start] = Counter(known)
    return counts


def _totals(counts: Counts) -> Counter[int]:
    total: Counter[int] = Counter()
    for of_bin in counts.values():
        total.update(of_bin)
    return total


Pairs = Mapping[tuple[int, int], int]
"""number of a client and identity -> readings"""


def _pairs(bins: Sequence[HistoryBin]) -> Pairs | None:
    """The readings by client and cluster in a span; None where bins lack them."""
    # A bin of six hours has all pairs or, where these were too many, none.
    if not all(counted.width_s == FINE_S or counted.cells != EMPTY[3] for counted in bins):
        return None
    pairs: Counter[tuple[int, int]] = Counter()
    for counted in bins:
        for client, identity, readings in cells_table(counted.cells).tolist():
            pairs[client, identity] += readings
    return pairs


def _shares_moved(
    counts: Sequence[Counts],
    width: int,
    titles: Titles,
    pairs: Sequence[Pairs | None],
    clients: Sequence[str],
) -> list[ShareMoved]:
    """The difference of each cluster's share."""
    before, after = counts
    identities = sorted(_totals(before).keys() & _totals(after).keys())
    if not identities:
        return []
    both = difference(_share_series(before, identities), _share_series(after, identities), width)
    columns = zip(identities, both.before, both.after, both.moved, both.chance, strict=True)
    moved = []
    for identity, share_before, share_after, by, chance in columns:
        by_client = _by_client_moved(identity, pairs, clients, float(share_after - share_before))
        shares = (float(share_before), float(share_after), float(by))
        moved.append(ShareMoved(identity, titles(identity), *shares, float(chance), by_client))
    return moved


def _share_series(counts: Counts, identities: Sequence[int]) -> Series:
    rows = [[of_bin[identity] for identity in identities] for of_bin in counts.values()]
    table = np.array(rows, dtype=np.float64)
    totals = np.array([of_bin.total() for of_bin in counts.values()], dtype=np.float64)
    return Series(np.array(list(counts), dtype=np.int64), table / totals[:, None], totals)


def _by_client_moved(
    identity: int, pairs: Sequence[Pairs | None], clients: Sequence[str], by: float
) -> ByClient:
    before, after = pairs
    if before is None or after is None:
        return []
    share_before = _client_shares(identity, before)
    share_after = _client_shares(identity, after)
    added = {}
    for client in sorted(share_before.keys() | share_after.keys()):
        moved = share_after.get(client, 0) - share_before.get(client, 0)
        # Clients whose share went the other way do not explain the difference.
        if moved * by > 0:
            added[client] = moved
    # Stable: of equal shares the client with the smaller number, in every run.
    ordered = sorted(added, key=lambda client: -abs(added[client]))
    return [(client_name(client, clients), added[client]) for client in ordered[:CLIENTS_NAMED_MAX]]


def _client_shares(identity: int, pairs: Pairs) -> dict[int, float]:
    """The readings of each client in a cluster, as a share of those of all known clusters."""
    total = max(1, sum(n for (_, cluster), n in pairs.items() if cluster != NO_CLUSTER))
    return {client: n / total for (client, cluster), n in pairs.items() if cluster == identity}


def _moved(
    bins: Sequence[Sequence[HistoryBin]], width: int, contract: Contract, titles: Titles
) -> list[Moved]:
    """The difference of each feature of each cluster that has readings in both spans."""
    earlier, later = (_place_series(of_span) for of_span in bins)
    moved = []
    for identity in sorted(earlier.keys() & later.keys()):
        pair = unrolled(earlier[identity], later[identity], contract.bounds.circular)
        both = _difference_of_known(*pair, width)
        for j, feature in enumerate(contract.features[: len(both.moved)]):
            # Nothing is known of it in one of the spans.
            if not math.isfinite(both.moved[j]):
                continue
            before = in_unit(float(both.before[j]), feature)
            after = in_unit(float(both.after[j]), feature)
            turned = float(both.moved[j])
            if feature.kind == "circular":  # the shorter way round
                turned -= round(turned)
            by = (feature.high - feature.low) * turned
            values = None
            if feature.values:
                values = (category_text(before, feature), category_text(after, feature))
            facts = (feature.name, feature.unit, before, after, by, float(both.chance[j]), values)
            moved.append(Moved(identity, titles(identity), *facts))
    return moved


def _difference_of_known(before: Series, after: Series, width: int) -> Difference:
    """The difference of two series in each feature, from the bins in which its mean is known; NaN
    where a span has none."""
    known = [np.isfinite(series.means) for series in (before, after)]
    if known[0].all() and known[1].all():
        return difference(before, after, width)
    parts = []
    for feature in range(before.means.shape[1]):
        pair = []
        for series, is_known in zip((before, after), known, strict=True):
            bins = is_known[:, feature]
            means = series.means[bins, feature : feature + 1]
            pair.append(Series(series.starts[bins], means, series.weights[bins]))
        parts.append(difference(pair[0], pair[1], width))
    return Difference(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def in_unit(place: float, feature: Feature) -> float:
    """A place in unit coordinates -> in the feature's unit, of a circular one in its period."""
    value = feature.low + (feature.high - feature.low) * place
    if feature.kind == "circular":
        return value % feature.period
    return value


def _place_series(bins: Sequence[HistoryBin]) -> dict[int, Series]:
    rows: defaultdict[int, list[tuple[int, Ints]]] = defaultdict(list)
    for counted in bins:
        for row in counted.place_table():
            rows[int(row[0])].append((counted.start, row))
    return {identity: _series_of(of_cluster) for identity, of_cluster in rows.items()}


def _series_of(rows: Sequence[tuple[int, Ints]]) -> Series:
    starts = np.array([start for start, _ in rows], dtype=np.int64)
    table = np.array([row for _, row in rows], dtype=np.int64)
    means = known_means(table)
    readings: Floats = table[:, -1].astype(np.float64)
    return Series(starts, means, readings)


def _corrected(movements: Sequence[Movement], compared: int) -> list[Movement]:
    """Chances of any of all that were compared, the least likely first."""
    # Bonferroni: among many comparisons some are rare by chance alone.
    raised = [
        replace(movement, chance=min(1.0, movement.chance * max(1, compared)))
        for movement in movements
    ]
    return sorted(raised, key=lambda moved: (moved.chance, -abs(moved.by), moved.cluster))


def _lineage(events: Iterable[PastEvent], spans: Spans) -> dict[int, dict[str, PastEvent]]:
    """identity -> kind -> the newest event that says how it began or ended, from the earlier span
    to the later one."""
    lineage: defaultdict[int, dict[str, PastEvent]] = defaultdict(dict)
    for event in events:
        # Oldest first, so the newest event of a kind is the one that stays.
        if event.kind in LINEAGE and spans.before.first <= event.at <= spans.after.end:
            lineage[event.cluster][event.kind] = event
    return lineage


def _begun(
    totals: Sequence[Counter[int]],
    pairs: Pairs | None,
    clients: Sequence[str],
    titles: Titles,
    lineage: Mapping[int, Mapping[str, PastEvent]],
) -> list[Begun]:
    """Clusters with readings in the later span only, the largest first."""
    before, after = totals
    begun = []
    for identity in _largest_first(after, after.keys() - before.keys()):
        parted = lineage.get(identity, {}).get("parted")
        kind = "new"
        other = ""
        if parted is not None:
            kind = "parted"
            other = titles(parted.other)
        share = after[identity] / max(1, after.total())
        by_client = _by_client(identity, pairs, clients)
        begun.append(Begun(identity, titles(identity), kind, other, share, by_client))
    return begun


def _ended(
    totals: Sequence[Counter[int]],
    titles: Titles,
    lineage: Mapping[int, Mapping[str, PastEvent]],
) -> list[Ended]:
    """Clusters with readings in the earlier span only, the largest first."""
    before, after = totals
    ended = []
    for identity in _largest_first(before, before.keys() - after.keys()):
        events = lineage.get(identity, {})
        other = ""
        # A merge first: of a cluster that merged, "gone" would hide into which one.
        if "merged" in events:
            kind = "merged"
            other = titles(events["merged"].other)
        elif "gone" in events:
            kind = "gone"
        else:
            kind = "quiet"
        share = before[identity] / max(1, before.total())
        ended.append(Ended(identity, titles(identity), kind, other, share))
    return ended


def _largest_first(readings: Counter[int], keys: Iterable[int]) -> list[int]:
    """Keys by readings, then by number, so that two runs list equal ones alike."""
    return sorted(keys, key=lambda key: (-readings[key], key))


def _by_client(identity: int, pairs: Pairs | None, clients: Sequence[str]) -> ByClient:
    own: Counter[int] = Counter()
    for (client, cluster), readings in (pairs or {}).items():
        if cluster == identity and readings > 0:
            own[client] = readings
    named = _largest_first(own, own)[:CLIENTS_NAMED_MAX]
    return [(client_name(client, clients), own[client] / own.total()) for client in named]


def utc_text(at: float) -> str:
    """A time, seconds since 1970, in words (UTC)."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
