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
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.config.contract import Contract
from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools, Floats
from shoal.kernels.distance import nearest_labels
from shoal.kernels.lloyd import assign_block, kmeans_plusplus, means, row_hashes
from shoal.kernels.matching import assignment, follow_clusters
from shoal.protocol.checks import TEXT_CHARACTERS_MAX
from shoal.protocol.messages import Snapshot
from shoal.protocol.parts import Part, are_parts, number_features
from shoal.server_node.report.description import Description, describe
from shoal.server_node.report.lineage import Lineage

READINGS_MIN: Final = 1_000
PARTS_MAX: Final = 4
# The centres are plain numbers of a message, which holds 16 384 values.
FEATURES_MAX: Final = 256
NODES_MIN: Final = 8
"""nodes for each part from which on halves of them are worth comparing"""
SHARE_MIN: Final = 0.1
"""least share of the readings of a part"""
AGREE_MIN = 0.9
AGREE_KEPT = 0.8
"""share of the mass that centres from two halves of the nodes part alike: for a new number, and one
that is there"""
SPLITS: Final = 4
STARTS: Final = 4
STEPS: Final = 50
STILL: Final = 1e-6
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
        """-> centres (k, f) from these on, and the inertia before the last step; of the nodes
        `chosen`, else of all."""
        rows, mass = (
            (self.rows, self.mass) if chosen is None else (self.rows[chosen], self.mass[chosen])
        )
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
        rows, mass = (
            (self.rows, self.mass) if chosen is None else (self.rows[chosen], self.mass[chosen])
        )
        starts = (rows[kmeans_plusplus(rows, k, start, mass)] for start in range(STARTS))
        return min((self.lloyd(one, chosen) for one in starts), key=lambda run: run[1])[0]

    def shares(self, centres: Floats) -> Floats:
        """(k,) shares of the mass."""
        held = np.bincount(nearest_labels(self.rows, centres), self.mass, len(centres))
        found: Floats = held / self.mass.sum()
        return found

    def agreement(self, k: int) -> float:
        """The least share of the mass that centres from two halves of the nodes part alike."""
        least = 1.0
        for split in range(SPLITS):
            # By their own bits, so that the halves do not depend on the order of the nodes.
            half = row_hashes(self.rows, split) % np.uint64(2) == 0
            one, other = (self.kmeans(k, chosen) for chosen in (half, ~half))
            if len(one) < k or len(other) < k:
                return 0.0
            shared = np.zeros((k, k))
            np.add.at(
                shared,
                (nearest_labels(self.rows, one), nearest_labels(self.rows, other)),
                self.mass,
            )
            least = min(
                least, float(shared[np.arange(k), assignment(-shared)].sum() / self.mass.sum())
            )
        return least


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
        return {"parts": [list(one) for one in self._parts], "readings": self._readings}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved ones. Raises `KeyError`, `TypeError` or `InvalidState` for a damaged
        state."""
        if not are_parts(state["parts"]):
            raise InvalidState("the checkpoint of the parts of a cluster is damaged")
        self._parts = [Part(*one) for one in state["parts"]]
        self._readings = int(state["readings"])


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
    if len(lineage.known) != 1 or view.regimes is not None or contract.width > FEATURES_MAX:
        return []
    nodes = _Nodes(view, contract)
    if not (len(nodes.features) and nodes.mass.sum() > 0):
        return []
    cells = _followed(before, nodes)
    if _is_due(*readings):
        cells = _looked(cells, nodes)
    if cells is None:
        return []
    told = {one.number: one.features for one in before}
    return _named(cells, nodes, told)


def _is_due(before: int, now: int) -> bool:
    """Whether the readings have reached 1 000, or doubled from there, since the snapshot before."""
    return (now // READINGS_MIN).bit_length() > (before // READINGS_MIN).bit_length()


def _followed(before: Sequence[Part], nodes: _Nodes) -> _Cells | None:
    """The cells that go on from parts; None where there were none, or one has lost its readings."""
    if not before or len(before[0].centre) != nodes.contract.width:
        return None
    centres, _ = nodes.lloyd(np.array([one.centre for one in before])[:, nodes.features])
    return (
        _Cells(centres, [one.number for one in before]) if nodes.shares(centres).min() > 0 else None
    )


def _looked(cells: _Cells | None, nodes: _Nodes) -> _Cells | None:
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
            found = _Cells(centres, list(range(1, k + 1)))
            if _holds(found, nodes, AGREE_MIN):
                return found if cells is None else _renumbered(found, cells, nodes)
    return None


def _holds(cells: _Cells, nodes: _Nodes, agree_min: float) -> bool:
    """Whether halves of the nodes agree on as many cells, each is large enough, and words tell them
    apart."""
    k = len(cells.centres)
    if len(nodes.rows) < NODES_MIN * k or nodes.shares(cells.centres).min() < SHARE_MIN:
        return False
    apart = {_told(one) for one in _descriptions(cells, nodes, {}).values()}
    return len(apart) == k and () not in apart and nodes.agreement(k) >= agree_min


def _told(one: Description) -> tuple[tuple[int, bool, bool], ...]:
    """What the name of a part tells: features, and whether each is high, or between others."""
    return tuple((each.feature, each.high, each.above is not None) for each in one.distinctions)


def _renumbered(found: _Cells, before: _Cells, nodes: _Nodes) -> _Cells:
    """New cells with the numbers of those before that they go on as; others get the least that are
    free."""
    k = len(found.centres)
    was = nearest_labels(nodes.rows, before.centres)
    now = nearest_labels(nodes.rows, found.centres)
    order, same = follow_clusters(was, now, nodes.mass, k)
    kept = [before.numbers[one] if one >= 0 else None for one in same.tolist()]
    free = iter(sorted(set(range(1, 2 * PARTS_MAX + 1)) - set(kept)))
    return _Cells(found.centres[order], [next(free) if one is None else one for one in kept])


def _descriptions(
    cells: _Cells, nodes: _Nodes, told: Mapping[int, Sequence[int]]
) -> dict[int, Description]:
    """place of each cell -> its description. `told`: number -> the features that its name told
    before."""
    label = np.full(len(nodes.member), NO_CLUSTER, dtype=np.int64)
    label[nodes.member] = nearest_labels(nodes.rows, cells.centres)
    parts = replace(nodes.view, cluster=label, centres=_centres(cells, nodes))
    before = {place: told.get(number, ()) for place, number in enumerate(cells.numbers)}
    return describe(parts, nodes.contract, apart_min=APART_MIN, told=before)


def _centres(cells: _Cells, nodes: _Nodes) -> Floats:
    """(k, d) the mean of the nodes of each cell, in unit coordinates."""
    label = nearest_labels(nodes.rows, cells.centres)
    k = len(cells.centres)
    held = np.bincount(label, nodes.mass, k)
    sums = [np.bincount(label, nodes.mass * column, k) for column in nodes.places.T]
    found: Floats = np.stack(sums, axis=1) / np.where(held > 0, held, 1.0)[:, None]
    return found


def _named(cells: _Cells, nodes: _Nodes, told: Mapping[int, Sequence[int]]) -> list[Part]:
    """The parts by their numbers."""
    described = _descriptions(cells, nodes, told)
    shares = nodes.shares(cells.centres).tolist()
    parts = [
        Part(
            number,
            described[place].label[:TEXT_CHARACTERS_MAX],
            described[place].text(nodes.contract)[:TEXT_CHARACTERS_MAX],
            shares[place],
            [each.feature for each in described[place].distinctions],
            centre.tolist(),
        )
        for place, (number, centre) in enumerate(
            zip(cells.numbers, _centres(cells, nodes), strict=True)
        )
    ]
    return sorted(parts, key=lambda one: one.number)
