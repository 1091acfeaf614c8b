"""Changes of a model's clusters between two spans of time: new, gone, parted, merged, moved, and
shares that moved.

Everything is found in the history of clusters and in the cluster events, so it is made of what was
published before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from shoal.config.contract import Contract, category_text
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.events import duration
from shoal.protocol.history import (
    BINS_KEPT,
    COARSE_S,
    EMPTY,
    FINE_S,
    NO_CLUSTER,
    PLACE_UNITS,
    PLACES_S,
    HistoryBin,
    HistoryNames,
    HistoryPlaces,
    cells_table,
    readings_table,
)
from shoal.server_node.history.comparison import Series, difference, unrolled
from shoal.server_node.history.summary import client_name

CHANCE: Final = 0.01
"""chance below which a difference is shown, by default"""
CLIENTS_NAMED_MAX: Final = 3
FINE_SPAN_S: Final = BINS_KEPT[FINE_S] * FINE_S
"""spans that begin within this time, for which fine bins are kept, are compared in these"""
LINEAGE: Final = ("birth", "parted", "merged", "gone", "quiet")
"""kinds of events that say how a cluster began or ended"""


class HistorySource(Protocol):
    """Place from which the bins of a model's history are read."""

    def extent(self, model: str, width_s: int) -> tuple[int, int] | None:
        """The starts of the oldest and the newest bin of this width; None if there is none."""
        ...

    def each_bin(self, model: str, width_s: int, first: float, last: float) -> Iterator[HistoryBin]:
        """The bins of this width that start from `first` to `last`, oldest first."""
        ...

    def places(
        self, model: str, width_s: int, first: float, last: float
    ) -> Iterator[HistoryPlaces]:
        """Those that hold places."""
        ...

    def names(self, model: str) -> HistoryNames | None:
        """The clients and clusters that the bins name by number; None before the first bin."""
        ...


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


Found = TypeVar("Found", "Moved", "ShareMoved")
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
    oldest = max(min(fine[0], coarse[0]), newest - BINS_KEPT[COARSE_S] * COARSE_S)
    first, end = after
    end = newest if end is None else end
    if before != (None, None) and first is None:
        first = before[1]
    if first is None:
        first = oldest + (end - oldest) / 2
    until = first if before[1] is None else before[1]
    since = max(oldest, until - (end - first)) if before[0] is None else before[0]
    for name, one in (("earlier", (since, until)), ("later", (first, end))):
        if one[0] >= one[1]:
            raise SettingsError(
                f"the {name} span is empty; {model} has a history from {utc_text(oldest)} to {utc_text(newest)} (UTC)"
            )
    if until > first:
        raise SettingsError(
            "the spans overlap: the earlier one must end before the later one begins"
        )
    # Both spans in bins of one width: those of a wider one are means of more readings, and vary
    # less.
    width = FINE_S if since >= newest - FINE_SPAN_S else PLACES_S
    # A bin belongs to the span in which it begins.
    edges = [int(-(-at // width) * width) for at in (since, until, first, end)]
    return Spans(Span(edges[0], edges[1]), Span(edges[2], edges[3]), width)


def find_changes(
    source: HistorySource, contract: Contract, model: str, spans: Spans, events: Iterable[PastEvent]
) -> Changes:
    """Changes between two spans of a model's history; `events` of its clusters, the oldest first."""
    counts = [_counts(source, model, span, spans.width_s) for span in spans[:2]]
    places = [
        list(source.places(model, spans.width_s, span.first, span.end - 1)) for span in spans[:2]
    ]
    names = source.names(model)
    titles = _Titles(names)
    pairs = [
        _pairs(source, model, span, spans.width_s, held)
        for span, held in zip(spans[:2], places, strict=True)
    ]
    clients = [] if names is None else names.clients
    shares = _shares_moved(counts, spans.width_s, titles, pairs, clients)
    moved = _moved(places, spans.width_s, contract, titles)
    # What could not be judged was no comparison, and corrects none.
    compared = sum(one.chance < 1 for one in shares) + sum(one.chance < 1 for one in moved)
    totals = [_totals(each) for each in counts]
    new, gone = _begun_and_ended(totals, pairs, clients, titles, _lineage(events, spans))
    return Changes(
        model,
        spans,
        (totals[0].total(), totals[1].total()),
        new,
        gone,
        _corrected(moved, compared),
        _corrected(shares, compared),
        compared,
        (len(counts[0]), len(counts[1])),
    )


Counts = dict[int, Counter[int]]
"""start of a bin -> identity -> readings"""


class _Titles:
    """Titles of clusters by identity."""

    def __init__(self, names: HistoryNames | None) -> None:
        entries = [] if names is None else names.clusters
        self._names = {int(identity): (str(name), str(label)) for identity, name, label in entries}

    def __call__(self, identity: int | None) -> str:
        if identity is None:
            return ""
        name, label = self._names.get(identity, ("", ""))
        quoted = f' "{name}"' if name else f" ({label})" if label else ""
        return f"cluster {identity}{quoted}"


def _counts(source: HistorySource, model: str, span: Span, width: int) -> Counts:
    """Those of no known cluster are left out: while a model begins, all are, and shares would move
    by that alone."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    finest = FINE_S if width == FINE_S else COARSE_S
    for one in source.each_bin(model, finest, span.first, span.end - 1):
        known = {
            identity: n
            for identity, n in readings_table(one.clusters).tolist()
            if identity != NO_CLUSTER and n
        }
        counts[one.start // width * width].update(known)
    return {start: count for start, count in sorted(counts.items()) if count}


def _totals(counts: Counts) -> Counter[int]:
    total: Counter[int] = Counter()
    for one in counts.values():
        total.update(one)
    return total


Pairs = Mapping[tuple[int, int], int]
"""number of a client and identity -> readings"""


def _pairs(
    source: HistorySource, model: str, span: Span, width: int, held: Sequence[HistoryPlaces]
) -> Pairs | None:
    """The readings by client and cluster in a span; None where bins lack them."""
    if width == FINE_S:
        tables = [
            cells_table(one.cells)
            for one in source.each_bin(model, FINE_S, span.first, span.end - 1)
        ]
    elif not held or any(one.cells == EMPTY[3] for one in held):
        return None
    else:
        tables = [cells_table(one.cells) for one in held]
    pairs: Counter[tuple[int, int]] = Counter()
    for table in tables:
        for client, identity, readings in table.tolist():
            pairs[client, identity] += readings
    return pairs


def _shares_moved(
    counts: Sequence[Counts],
    width: int,
    titles: _Titles,
    pairs: Sequence[Pairs | None],
    clients: Sequence[str],
) -> list[ShareMoved]:
    """The difference of each cluster's share."""
    present = [set(_totals(each)) for each in counts]
    identities = sorted(present[0] & present[1])
    if not identities:
        return []
    found = difference(
        _share_series(counts[0], identities), _share_series(counts[1], identities), width
    )
    columns = zip(identities, found.before, found.after, found.moved, found.chance, strict=True)
    return [
        ShareMoved(
            identity,
            titles(identity),
            float(before),
            float(after),
            float(by),
            float(chance),
            _by_client_moved(identity, pairs, clients, float(after - before)),
        )
        for identity, before, after, by, chance in columns
    ]


def _share_series(counts: Counts, identities: Sequence[int]) -> Series:
    table = np.array(
        [[one[identity] for identity in identities] for one in counts.values()], dtype=np.float64
    )
    totals = np.array([one.total() for one in counts.values()], dtype=np.float64)
    return Series(np.array(list(counts), dtype=np.int64), table / totals[:, None], totals)


def _by_client_moved(
    identity: int, pairs: Sequence[Pairs | None], clients: Sequence[str], by: float
) -> ByClient:
    before, after = pairs
    if before is None or after is None:
        return []
    totals = [
        max(1, sum(n for (_, one), n in each.items() if one != NO_CLUSTER))
        for each in (before, after)
    ]
    numbers = sorted({client for each in (before, after) for client, of in each if of == identity})
    added = {
        client: after.get((client, identity), 0) / totals[1]
        - before.get((client, identity), 0) / totals[0]
        for client in numbers
    }
    # Clients whose share went the other way do not explain the difference.
    with_it = [client for client in numbers if added[client] * by > 0]
    # Stable: of equal shares the client with the smaller number, in every run.
    ordered = sorted(with_it, key=lambda client: -abs(added[client]))
    return [
        (client_name(client, list(clients)), added[client])
        for client in ordered[:CLIENTS_NAMED_MAX]
    ]


def _moved(
    places: Sequence[Sequence[HistoryPlaces]], width: int, contract: Contract, titles: _Titles
) -> list[Moved]:
    """The difference of each feature of each cluster that has readings in both spans."""
    earlier, later = (_place_series(each) for each in places)
    moved = []
    for identity in sorted(earlier.keys() & later.keys()):
        pair = unrolled(earlier[identity], later[identity], contract.bounds.circular)
        found = difference(*pair, width)
        for j, feature in enumerate(contract.features[: len(found.moved)]):
            scale = feature.high - feature.low
            before, after = (
                feature.low + scale * float(each[j]) for each in (found.before, found.after)
            )
            if feature.kind == "circular":
                before = before % feature.period
                after = after % feature.period
            moved_by = float(found.moved[j])
            if feature.kind == "circular":  # the shorter way round
                moved_by -= round(moved_by)
            by = scale * moved_by
            chance = float(found.chance[j])
            names = (
                (category_text(before, feature), category_text(after, feature))
                if feature.values
                else None
            )
            facts = (feature.name, feature.unit, before, after, by, chance, names)
            moved.append(Moved(identity, titles(identity), *facts))
    return moved


def _place_series(places: Sequence[HistoryPlaces]) -> dict[int, Series]:
    rows: defaultdict[int, list[tuple[int, Ints]]] = defaultdict(list)
    for one in places:
        for row in one.table():
            rows[int(row[0])].append((one.start, row[1:]))
    return {identity: _series_of(some) for identity, some in rows.items()}


def _series_of(some: Sequence[tuple[int, Ints]]) -> Series:
    starts = np.array([start for start, _ in some], dtype=np.int64)
    table: Floats = np.array([row for _, row in some], dtype=np.float64)
    return Series(starts, table[:, :-1] / PLACE_UNITS, table[:, -1])


def _corrected(found: Sequence[Found], compared: int) -> list[Found]:
    """Chances of any of all that were compared, the least likely first."""
    # Bonferroni: among many comparisons some are rare by chance alone.
    raised = [replace(one, chance=min(1.0, one.chance * max(1, compared))) for one in found]
    return sorted(raised, key=lambda one: (one.chance, -abs(one.by), one.cluster))


def _lineage(events: Iterable[PastEvent], spans: Spans) -> dict[int, dict[str, PastEvent]]:
    """identity -> kind -> the newest event that says how it began or ended, from the earlier span
    to the later one."""
    found: defaultdict[int, dict[str, PastEvent]] = defaultdict(dict)
    for event in events:
        # Oldest first, so the newest event of a kind is the one that stays.
        if event.kind in LINEAGE and spans.before.first <= event.at <= spans.after.end:
            found[event.cluster][event.kind] = event
    return found


def _begun_and_ended(
    totals: Sequence[Counter[int]],
    pairs: Sequence[Pairs | None],
    clients: Sequence[str],
    titles: _Titles,
    lineage: Mapping[int, Mapping[str, PastEvent]],
) -> tuple[list[Begun], list[Ended]]:
    """Clusters with readings in one of the spans only, the largest first."""
    before, after = totals
    sums = [max(1, each.total()) for each in totals]
    new = []
    gone = []
    # By identity where readings are equal, so that two runs list them alike.
    for identity in sorted(after.keys() - before.keys(), key=lambda one: (-after[one], one)):
        parted = lineage.get(identity, {}).get("parted")
        kind, other = ("new", "") if parted is None else ("parted", titles(parted.other))
        share = after[identity] / sums[1]
        new.append(
            Begun(
                identity,
                titles(identity),
                kind,
                other,
                share,
                _by_client(identity, pairs[1], clients),
            )
        )
    for identity in sorted(before.keys() - after.keys(), key=lambda one: (-before[one], one)):
        found = lineage.get(identity, {})
        # A merge first: of a cluster that merged, "gone" would hide into which one.
        kind = next((kind for kind in ("merged", "gone") if kind in found), "quiet")
        other = titles(found[kind].other) if kind == "merged" else ""
        gone.append(Ended(identity, titles(identity), kind, other, before[identity] / sums[0]))
    return new, gone


def _by_client(identity: int, pairs: Pairs | None, clients: Sequence[str]) -> ByClient:
    own = {client: n for (client, of), n in (pairs or {}).items() if of == identity and n > 0}
    total = sum(own.values())
    ordered = sorted(own, key=lambda client: (-own[client], client))
    return [
        (client_name(client, list(clients)), own[client] / total)
        for client in ordered[:CLIENTS_NAMED_MAX]
    ]


def utc_text(at: float) -> str:
    """A time, seconds since 1970, in words (UTC)."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
