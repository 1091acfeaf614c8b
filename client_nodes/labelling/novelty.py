"""Novelty of readings: how strange the distance of one is, the features in which it lies outside,
and streaks of them.

The novelty of a distance is 1 - p, where p = (1 + earlier distances that are not smaller) / (1 +
earlier distances) is the p-value of conformal anomaly detection (Laxhammar and Falkman 2011, with
distance as nonconformity measure). While readings come from the same distribution, at most a share
1 - q of them has a novelty of q or more. Distances in the same bin count as equal, which can only
make p larger. Every distance is compared with all before it, in order, so any batching gives the
same result.

Usual values of a cluster are counted from the client's own readings, without noise, and stay on the
client. A usual value is one between the 1 % and the 99 % quantile of a cluster's readings.
Quantiles are read from histograms over the declared bounds, so they are exact to one bin, 1/128 of
the range between the bounds.

A streak is a run in which one reading after the other is novel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.config.contract import Contract, range_text
from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.protocol.checks import is_count
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label, Reason

NEAREST: Final = 1e-5
"""distances below it are in the first bin, in unit coordinates"""
DECADES: Final = 7
BINS_PER_DECADE: Final = 64
"""a bin is 3.7 % wide"""
BINS: Final = 1 + DECADES * BINS_PER_DECADE
KNOWN_MIN: Final = 100
"""distances that must be known before a novelty is computed"""
KNOWN_MAX: Final = 32_768
"""known distances at which their number is halved: old ones lose weight"""
BLOCK: Final = 256
"""distances that are compared with each other at once"""


def distance_bins(distances: Floats) -> Ints:
    """distances (n,), infinity allowed -> (n,) their bins, 0 to `BINS` - 1, in order of distance."""
    decades = np.log10(np.clip(distances, NEAREST, NEAREST * 10.0**DECADES) / NEAREST)
    bins: Ints = 1 + np.minimum(np.floor(decades * BINS_PER_DECADE).astype(np.int64), BINS - 2)
    bins[distances < NEAREST] = 0
    return bins


class Ranked(NamedTuple):
    """What `rank` returns."""

    novelty: Floats
    """(n,) 0 to 1, NaN where fewer than `KNOWN_MIN` distances were known"""
    counts: Ints
    """(BINS,) the histogram after them"""


def rank(bins: Ints, counts: Ints, counted: Bools) -> Ranked:
    """bins (n,) in order, counts (BINS,) of what was known before, counted (n,) which of them
    become known.

    The inputs are not changed.
    """
    counts = counts.copy()
    novelty = np.empty(len(bins))
    start = 0
    while start < len(bins):
        known = int(counts.sum())
        if known >= KNOWN_MAX:
            counts = halve(counts)
            known = int(counts.sum())
        # A piece ends where the histogram is halved, so that halving comes after the same distance
        # in any batching.
        piece = slice(start, start + min(BLOCK, KNOWN_MAX - known))
        own = bins[piece]
        becomes_known = counted[piece]
        at_least = np.cumsum(counts[::-1])[::-1][own]
        at_least += np.tril((own[None, :] >= own[:, None]) & becomes_known[None, :], -1).sum(axis=1)
        before = known + np.cumsum(becomes_known) - becomes_known
        novelty[piece] = np.where(before < KNOWN_MIN, np.nan, 1.0 - (1 + at_least) / (1 + before))
        counts += np.bincount(own[becomes_known], minlength=BINS)
        start += len(own)
    return Ranked(novelty, counts)


def halve(counts: Ints) -> Ints:
    """counts (BINS,) -> half of them, rounded so that the share beyond each bin stays what it was
    to within one.

    Bin by bin, every count of 1 would vanish, and the rare far distances with them.
    """
    # Rounded up from the far end: the farthest reading stays for as long as any does.
    beyond = (np.cumsum(counts[::-1]) + 1) // 2
    return np.ascontiguousarray(np.diff(beyond, prepend=0)[::-1])


VALUE_BINS: Final = 128
QUANTILES: Final = (0.01, 0.99)
REASONS_MAX: Final = 3
"""features named for one reading"""
CELLS_MAX: Final = 2**20
"""bins of all clusters together: 8 MiB"""


class Outside(NamedTuple):
    """A feature in which a reading lies outside the usual values of a cluster. Values in unit
    coordinates."""

    feature: int
    """position in the contract"""
    above: bool
    """whether the reading lies above the usual values, else below"""
    low: float
    high: float


class UsualValues:
    """Histograms of d features for each cluster, those of the clusters used last."""

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._clusters_max = max(1, CELLS_MAX // (VALUE_BINS * width))
        self._counts: dict[int, Ints] = {}
        """identity -> (d, VALUE_BINS); the one used last is the last"""
        self._known: dict[int, int] = {}
        """identity -> readings counted since the last halving, what is left of those before
        included"""

    def reasons(
        self, reference: Ints, unit: Floats, novel: Bools, counted: Bools
    ) -> dict[int, list[Outside]]:
        """Why readings are novel, then count them.

        reference (n,) identities, -1 for none; unit (n, d) in unit coordinates, NaN where nothing
        was measured; novel (n,) asks for reasons; counted (n,) belongs to what is known of its
        cluster from then on. Returns the place of each novel reading of a cluster with `KNOWN_MIN`
        readings -> features, the farthest outside first; none if no single feature is outside. Each
        reading is compared with all before it, so any batching gives the same.
        """
        found: dict[int, list[Outside]] = {}
        for identity in np.unique(reference[reference >= 0]).tolist():
            own = np.flatnonzero(reference == identity)
            start = 0
            for asked in np.flatnonzero(novel[own]).tolist():
                # First what came before this reading, so that it is compared with just that.
                self._count(identity, unit[own[start:asked]][counted[own[start:asked]]])
                start = asked
                if self._known.get(identity, 0) >= KNOWN_MIN:
                    found[int(own[asked])] = self._outside(identity, unit[own[asked]])
            self._count(identity, unit[own[start:]][counted[own[start:]]])
        while len(self._counts) > self._clusters_max:
            # A dict keeps the order of insertion: the first is the one that was used longest ago.
            oldest = next(iter(self._counts))
            del self._counts[oldest], self._known[oldest]
        return found

    def interval(self, identity: int) -> tuple[Floats, Floats] | None:
        """(d,) least and (d,) greatest usual value of a cluster; None before `KNOWN_MIN` readings."""
        return (
            _quantiles(self._counts[identity])
            if self._known.get(identity, 0) >= KNOWN_MIN
            else None
        )

    def state(self) -> dict[str, Any]:
        """Only counts above 0."""
        counts = np.array(list(self._counts.values()), dtype=np.int64).reshape(
            -1, self._width * VALUE_BINS
        )
        row, column = np.nonzero(counts)
        return {
            "identities": list(self._counts),
            "known": [self._known[one] for one in self._counts],
            "row": row.astype(np.int32),
            "cell": column.astype(np.int32),
            "count": counts[row, column].astype(np.int32),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            identities = state["identities"]
            known = state["known"]
            if not all(type(one) is int and 0 <= one <= KNOWN_MAX for one in known):
                raise ValueError("impossible counts")
            counts = np.zeros((len(identities), self._width * VALUE_BINS), dtype=np.int64)
            counts[state["row"], state["cell"]] = state["count"]
            if counts.min(initial=0) < 0 or counts.max(initial=0) > KNOWN_MAX:
                raise ValueError("impossible counts")
            tables = counts.reshape(-1, self._width, VALUE_BINS)
            # Copies, as a view would keep the whole table for one cluster.
            self._counts = {
                int(one): own.copy() for one, own in zip(identities, tables, strict=True)
            }
            self._known = dict(zip(self._counts, known, strict=True))
        except (KeyError, TypeError, ValueError, IndexError) as broken:
            raise InvalidState(f"the checkpoint of the usual values is damaged: {broken}") from None

    def _count(self, identity: int, unit: Floats) -> None:
        while len(unit):
            counts = self._counts.pop(identity, None)
            if counts is None:
                counts = np.zeros((self._width, VALUE_BINS), dtype=np.int64)
            # A piece ends where the counts are halved, so that any batching halves after the same
            # reading.
            room = KNOWN_MAX - self._known.get(identity, 0)
            piece = unit[:room]
            unit = unit[room:]
            for feature, values in enumerate(piece.T):
                # A sensor may lack a feature; beyond the bounds the outermost bin counts.
                there = values[~np.isnan(values)]
                bins = np.minimum(
                    (np.clip(there, 0.0, 1.0) * VALUE_BINS).astype(np.int64), VALUE_BINS - 1
                )
                counts[feature] += np.bincount(bins, minlength=VALUE_BINS)
            known = self._known.get(identity, 0) + len(piece)
            if known == KNOWN_MAX:
                counts = counts // 2
                known = known // 2
            self._counts[identity], self._known[identity] = counts, known

    def _outside(self, identity: int, unit: Floats) -> list[Outside]:
        low, high = _quantiles(self._counts[identity])
        beyond = np.maximum(low - unit, unit - high)
        # In widths of the usual interval: a steady feature that moves a little is stranger than one
        # that always moves.
        score = np.where(beyond > 0, beyond, 0.0) / np.maximum(high - low, 1 / VALUE_BINS)
        order = np.argsort(-score, kind="stable")[:REASONS_MAX].tolist()
        return [
            Outside(j, bool(unit[j] > high[j]), float(low[j]), float(high[j]))
            for j in order
            if score[j] > 0
        ]


def _quantiles(counts: Ints) -> tuple[Floats, Floats]:
    """counts (d, VALUE_BINS) -> (d,) 1 % and (d,) 99 % quantile, linear within a bin; 0 and 1
    without a count."""
    total = counts.sum(axis=1)
    reached = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    ends = []
    for share in QUANTILES:
        wanted = share * total
        bin_ = np.clip((reached[:, 1:] < wanted[:, None]).sum(axis=1), 0, VALUE_BINS - 1)
        rows = np.arange(len(counts))
        # Of an empty bin nothing is inside: 1 only avoids 0 / 0.
        inside = (wanted - reached[rows, bin_]) / np.maximum(counts[rows, bin_], 1)
        ends.append((bin_ + np.clip(inside, 0.0, 1.0)) / VALUE_BINS)
    low, high = ends
    return np.where(total > 0, low, 0.0), np.where(total > 0, high, 1.0)


FEATURES_MAX = 3
"""features that an event names"""


class Streak:
    """Follows the labels of one model in the order of the readings.

    A streak begins with the `length`-th novel reading in a row, and ends with the `length`-th in a
    row that is not.
    """

    def __init__(self, contract: Contract, client: str, model: str, length: int) -> None:
        self._contract = contract
        self._client = client
        self._model = model
        self._length = length
        self._begun = False
        self._novel = 0
        """novel readings of the streak, or of the run that may become one"""
        self._ordinary = 0
        """readings in a row that are not novel, since the newest novel one"""
        self._outside: Counter[tuple[int, bool]] = Counter()
        """(feature, above) -> novel readings that lay outside there"""

    def follow(self, labels: Sequence[Label], places: Sequence[tuple[int, int]]) -> list[SiteEvent]:
        """The events found in the labels (n,) of readings at these places."""
        events = []
        for label, place in zip(labels, places, strict=True):
            if label.usual_in:
                self._novel = self._novel + 1
                self._ordinary = 0
                self._outside.update((one.feature, one.above) for one in label.reasons)
                if not self._begun and self._novel == self._length:
                    self._begun = True
                    events.append(self._event("novel_streak", label, place))
            elif self._begun:
                self._ordinary += 1
                if self._ordinary == self._length:
                    events.append(self._event("novel_streak_ended", label, place))
                    self._forget()
            elif self._novel:
                self._forget()
        return events

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        outside = [
            [feature, above, readings] for (feature, above), readings in self._outside.items()
        ]
        return {
            "begun": self._begun,
            "novel": self._novel,
            "ordinary": self._ordinary,
            "outside": outside,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            begun = state["begun"]
            novel = state["novel"]
            ordinary = state["ordinary"]
            if not (isinstance(begun, bool) and is_count(novel) and is_count(ordinary)):
                raise ValueError("impossible counts")
            self._begun = begun
            self._novel = novel
            self._ordinary = ordinary
            self._outside = Counter(
                {(int(one), bool(above)): int(n) for one, above, n in state["outside"]}
            )
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint of streaks of novel readings is damaged: {broken}"
            ) from None

    def _forget(self) -> None:
        self._begun = False
        self._novel = 0
        self._ordinary = 0
        self._outside.clear()

    def _event(self, kind: str, label: Label, place: tuple[int, int]) -> SiteEvent:
        most = [one for one, _ in self._outside.most_common(FEATURES_MAX)]
        features = self._contract.features
        partition, offset = place
        return SiteEvent(
            id=f"{self._model}/{partition}/{offset}/{kind}",
            kind=kind,
            federation=self._contract.federation,
            client=self._client,
            model=self._model,
            version=label.version,
            readings=self._novel,
            at=label.time,
            cluster=label.identity,
            name=label.name,
            outside={
                features[feature].name: "above" if above else "below" for feature, above in most
            },
            text=self._text(kind, label),
        )

    def _text(self, kind: str, label: Label) -> str:
        if kind == "novel_streak_ended":
            return f"the streak of {self._novel} novel readings has ended"
        begin = f"{self._novel} readings in a row are novel"
        if not label.reasons:
            return f"{begin}: each feature is usual, their combination is not"
        named = "; ".join(f"{self._beyond(one)} in {label.usual_in}" for one in label.reasons)
        return f"{begin}: {named}"

    def _beyond(self, reason: Reason) -> str:
        feature = self._contract.features[reason.feature]
        side = {"category": "not", "circular": "outside"}.get(
            feature.kind, "above" if reason.above else "below"
        )
        usual = range_text(reason.low, reason.high, feature)
        return f"{feature.name} {side} its usual {usual}"
