"""Parts of the only cluster of a model: k-means cells of its nodes, for orientation. They are no
clusters.

Where readings have no gap in density there is one cluster, which says little of where in it a
reading lies. Parts cut it where there is no gap, into cells that words tell apart: "Temperature
high, Humidity low".

Their numbers and names last. The parts of a snapshot go on from those of the one before by Lloyd's
algorithm. How many there are is looked at when the model has learnt 1 000 readings, and whenever
these have doubled: the most, of 2 to 4, whose cells halves of the nodes agree on, hold a tenth of
the readings each and have names of their own. Where no number is so there are none. A number that
is there stays while the halves agree a little less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.config.contract import Contract
from shoal.kernels.arrays import Bools, Floats
from shoal.kernels.distance import nearest_labels
from shoal.kernels.lloyd import assign_block, kmeans_plusplus, means, row_hashes
from shoal.kernels.matching import assignment, follow_clusters
from shoal.protocol.checks import TEXT_CHARACTERS_MAX
from shoal.protocol.messages import Snapshot
from shoal.protocol.parts import Part, are_parts, number_features
from shoal.saved_state import SavedState, Whole, require, state_type
from shoal.server_node.report.description import Description, describe
from shoal.server_node.report.lineage.clusters import Lineage

READINGS_MIN: Final = 1_000
"""readings from which on parts are looked for"""
PARTS_MAX: Final = 4
FEATURES_MAX: Final = 256
"""features of a model with parts: centres are plain numbers in a message, 16 384 of them at most"""
NODES_MIN: Final = 8
"""nodes for each part from which on halves of them are worth comparing"""
SHARE_MIN: Final = 0.1
"""least share of the readings of a part"""
AGREE_MIN: Final = 0.9
"""share of the mass that centres from two halves of the nodes must part alike, for a new number of
parts"""
AGREE_KEPT: Final = 0.8
"""the same for a number that is there: lower, so that it does not come and go"""
SPLITS: Final = 4
"""pairs of halves of the nodes that are compared"""
STARTS: Final = 4
"""starts of k-means, of which the best counts"""
STEPS: Final = 50
STILL: Final = 1e-6
"""steps of Lloyd's algorithm, and the movement of centres, in unit coordinates, that ends it"""
APART_MIN: Final = 0.6
"""distance of middles, in half widths, that sets a part apart; parts touch, so it is less than for
clusters"""


class _Cells(NamedTuple):
    """k cells."""

    centres: Floats
    """(k, f) over the features that are numbers, in unit coordinates"""
    numbers: list[int]
    """lasting number of each"""


class _Nodes:
    """The nodes of the cluster, within the bounds: n nodes, f features that are numbers."""

    def __init__(self, view: ClusteringView, contract: Contract) -> None:
        self.view = view
        self.contract = contract
        self.features = number_features(contract.features)
        self.member: Bools = view.cluster != NO_CLUSTER
        self.places = np.clip(view.nodes[self.member], 0.0, 1.0)
        self.rows = np.ascontiguousarray(self.places[:, self.features])
        self.mass = view.mass[self.member]

    def lloyd(self, centres: Floats, chosen: Bools | None = None) -> tuple[Floats, float]:
        """-> centres (k, f) from these on, and the inertia before the last step.

        Of the nodes `chosen`, else of all.
        """
        rows, mass = self._weighted(chosen)
        centres = np.ascontiguousarray(centres)
        inertia = 0.0
        for _ in range(STEPS):
            count, total, inertia = assign_block(rows, centres, mass)
            before = centres
            centres = means(count, total, centres)
            if np.abs(centres - before).max() <= STILL:
                break
        return centres, inertia

    def kmeans(self, k: int, chosen: Bools | None = None) -> Floats:
        """-> at most k centres of the least inertia of `STARTS` starts."""
        rows, mass = self._weighted(chosen)
        runs: list[tuple[Floats, float]] = []
        for start in range(STARTS):
            # The number of a start is its seed, so that a restart finds the same parts.
            initial = rows[kmeans_plusplus(rows, k, start, mass)]
            runs.append(self.lloyd(initial, chosen))
        centres, _ = min(runs, key=lambda run: run[1])
        return centres

    def _weighted(self, chosen: Bools | None) -> tuple[Floats, Floats]:
        """Rows and masses of the nodes `chosen`, else of all."""
        if chosen is None:
            return self.rows, self.mass
        return self.rows[chosen], self.mass[chosen]

    def shares(self, centres: Floats) -> Floats:
        """(k,) shares of the mass."""
        mass = np.bincount(nearest_labels(self.rows, centres), self.mass, len(centres))
        shares: Floats = mass / self.mass.sum()
        return shares

    def agreement(self, k: int) -> float:
        """The least share of the mass that centres from two halves of the nodes part alike."""
        least = 1.0
        for split in range(SPLITS):
            # By their own bits, so that the halves do not depend on the order of the nodes.
            is_first = row_hashes(self.rows, split) % np.uint64(2) == 0
            first = self.kmeans(k, is_first)
            second = self.kmeans(k, ~is_first)
            if len(first) < k or len(second) < k:
                return 0.0
            # (k, k) mass of the nodes that are in cell i by one half, and in cell j by the other.
            shared = np.zeros((k, k))
            labels = (nearest_labels(self.rows, first), nearest_labels(self.rows, second))
            np.add.at(shared, labels, self.mass)
            # Cells have no order: they are matched so that most mass agrees.
            alike = shared[np.arange(k), assignment(-shared)].sum()
            least = min(least, float(alike / self.mass.sum()))
        return least


@state_type
class PartState(SavedState):
    """A part, as it is saved."""

    number: Annotated[int, Whole(least=1)]
    label: str
    text: str
    share: float
    features: list[int]
    centre: list[float]


@state_type
class PartsState(SavedState):
    """Saved state of `Parts`."""

    parts: list[PartState]
    readings: int


class Parts:
    """The parts of a model from snapshot to snapshot."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._readings = 0

    def follow(
        self, view: ClusteringView, lineage: Lineage, contract: Contract, readings: int
    ) -> list[Part]:
        """The parts of the next snapshot, of a model that has learnt `readings`."""
        # A rebuild keeps those of the published snapshot until it has read what they were made
        # from.
        if readings >= self._readings:
            self._parts = next_parts(
                self._parts, view, lineage, contract, (self._readings, readings)
            )
            self._readings = readings
        return self._parts

    def adopt(self, published: Snapshot) -> None:
        """Go on from a published snapshot."""
        self._parts = published.cluster_parts
        self._readings = published.readings

    def begin_again(self) -> None:
        """Forget the parts, as the model learns without a client that they were made from."""
        self._parts = []
        self._readings = 0

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        parts = [PartState(**part._asdict()) for part in self._parts]
        return PartsState(parts=parts, readings=self._readings).saved()

    def restore(self, state: Any) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        saved = PartsState.read(state)
        parts: list[Part] = []
        for entry in saved.parts:
            parts.append(
                Part(
                    entry.number,
                    entry.label,
                    entry.text,
                    entry.share,
                    entry.features,
                    entry.centre,
                )
            )
        # As of a message, since snapshots are made of them.
        require(are_parts([list(part) for part in parts]), "its parts of a cluster cannot be")
        self._parts = parts
        self._readings = saved.readings


def next_parts(
    before: Sequence[Part],
    view: ClusteringView,
    lineage: Lineage,
    contract: Contract,
    readings: tuple[int, int],
) -> list[Part]:
    """The parts of a snapshot; none unless the model knows one cluster, and that is a place.

    `before` are those of the snapshot before, `readings` how many the model had learnt then, and
    has now.
    """
    if len(lineage.known) != 1 or view.states is not None or contract.width > FEATURES_MAX:
        return []
    nodes = _Nodes(view, contract)
    if not (len(nodes.features) and nodes.mass.sum() > 0):
        return []
    cells = _followed(before, nodes)
    if _is_due(*readings):
        cells = _chosen(cells, nodes)
    if cells is None:
        return []
    distinct = {part.number: part.features for part in before}
    return _named(cells, nodes, distinct)


def _is_due(before: int, now: int) -> bool:
    """Whether the readings have reached 1 000, or doubled from there, since the snapshot before."""
    # A number has one binary digit more whenever it has doubled.
    return (now // READINGS_MIN).bit_length() > (before // READINGS_MIN).bit_length()


def _followed(before: Sequence[Part], nodes: _Nodes) -> _Cells | None:
    """The cells that go on from parts; None where there were none, or one has lost its readings."""
    # After a change of the contract the features are others.
    if not before or len(before[0].centre) != nodes.contract.width:
        return None
    centres, _ = nodes.lloyd(np.array([part.centre for part in before])[:, nodes.features])
    if nodes.shares(centres).min() <= 0:
        return None
    return _Cells(centres, [part.number for part in before])


def _chosen(cells: _Cells | None, nodes: _Nodes) -> _Cells | None:
    """The cells whose number is right: those that are there, or others; None where none is."""
    if cells is not None and _holds(cells, nodes, AGREE_KEPT):
        return cells
    for k in range(PARTS_MAX, 1, -1):
        if len(nodes.rows) < NODES_MIN * k:
            continue
        centres = nodes.kmeans(k)
        if len(centres) == k:
            # The heaviest is number 1.
            centres = centres[np.argsort(-nodes.shares(centres), kind="stable")]
            new = _Cells(centres, list(range(1, k + 1)))
            if _holds(new, nodes, AGREE_MIN):
                return new if cells is None else _renumbered(new, cells, nodes)
    return None


def _holds(cells: _Cells, nodes: _Nodes, agree_min: float) -> bool:
    """Whether halves of the nodes agree on as many cells, each is large enough, and each has a name
    of its own."""
    k = len(cells.centres)
    if len(nodes.rows) < NODES_MIN * k or nodes.shares(cells.centres).min() < SHARE_MIN:
        return False
    names = {_name(description) for description in _descriptions(cells, nodes, {}).values()}
    # The agreement is last: it runs k-means 32 times.
    return len(names) == k and () not in names and nodes.agreement(k) >= agree_min


def _name(description: Description) -> tuple[tuple[int, bool, bool], ...]:
    """What a name consists of: features, and whether each is high, or between others."""
    return tuple(
        (distinction.feature, distinction.high, distinction.above is not None)
        for distinction in description.distinctions
    )


def _renumbered(new: _Cells, before: _Cells, nodes: _Nodes) -> _Cells:
    """New cells with the numbers of those before that they go on as; others get the least that are
    free."""
    label_before = nearest_labels(nodes.rows, before.centres)
    label = nearest_labels(nodes.rows, new.centres)
    order, same = follow_clusters(label_before, label, nodes.mass, len(new.centres))
    kept = {before.numbers[place] for place in same.tolist() if place >= 0}
    # Twice as many as there can be, so that there are always enough.
    free = iter(sorted(set(range(1, 2 * PARTS_MAX + 1)) - kept))
    numbers: list[int] = []
    for place in same.tolist():
        numbers.append(before.numbers[place] if place >= 0 else next(free))
    return _Cells(new.centres[order], numbers)


def _descriptions(
    cells: _Cells, nodes: _Nodes, distinct: Mapping[int, Sequence[int]]
) -> dict[int, Description]:
    """place of each cell -> its description.

    `distinct`: number -> the features in its name before, so that names last.
    """
    label = np.full(len(nodes.member), NO_CLUSTER, dtype=np.int64)
    label[nodes.member] = nearest_labels(nodes.rows, cells.centres)
    parts = replace(nodes.view, cluster=label, centres=_centres(cells, nodes))
    before = {place: distinct.get(number, ()) for place, number in enumerate(cells.numbers)}
    return describe(parts, nodes.contract, apart_min=APART_MIN, told=before)


def _centres(cells: _Cells, nodes: _Nodes) -> Floats:
    """(k, d) the mean of the nodes of each cell, in unit coordinates."""
    label = nearest_labels(nodes.rows, cells.centres)
    k = len(cells.centres)
    mass = np.bincount(label, nodes.mass, k)
    sums = [np.bincount(label, nodes.mass * column, k) for column in nodes.places.T]
    # A cell that no node is nearest to is at 0, rather than nowhere.
    centres: Floats = np.stack(sums, axis=1) / np.where(mass > 0, mass, 1.0)[:, None]
    return centres


def _named(cells: _Cells, nodes: _Nodes, distinct: Mapping[int, Sequence[int]]) -> list[Part]:
    """The parts, in the order of their numbers."""
    descriptions = _descriptions(cells, nodes, distinct)
    shares = nodes.shares(cells.centres).tolist()
    centres = _centres(cells, nodes).tolist()
    parts: list[Part] = []
    for place, number in enumerate(cells.numbers):
        description = descriptions[place]
        parts.append(
            Part(
                number,
                description.label[:TEXT_CHARACTERS_MAX],
                description.text(nodes.contract)[:TEXT_CHARACTERS_MAX],
                shares[place],
                [distinction.feature for distinction in description.distinctions],
                centres[place],
            )
        )
    return sorted(parts, key=lambda part: part.number)
