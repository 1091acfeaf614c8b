"""Calibration of the novelty of readings where a new snapshot moves the nodes of a cluster.

The novelty of a reading compares its distance with those of earlier readings, which were measured
to the nodes of earlier snapshots. Where the nodes of a cluster have moved, as when another cluster
parts from it or the noise of private counts is another one, each distance is another one, and
readings that are as they always were would all be novel. A few readings that are kept of each day
are therefore measured again by each snapshot, and what is known of earlier distances is moved as
theirs have: each to the distance of the same rank (quantile mapping).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.client_nodes.labelling.novelty import BINS, distance_bins, middle_distances
from shoal.client_nodes.labelling.snapshot_clusters import NO_IDENTITY, SnapshotClusters
from shoal.client_nodes.labelling.visits import KeptReadings, Place
from shoal.kernels.arrays import Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.saved_state import IntArray, SavedState, require, state_type

CALIBRATED_DAYS: Final = 32
"""newest days whose kept readings are measured again"""
CALIBRATED_MIN: Final = 20
"""kept readings of a cluster without which nothing is known of a move"""
# Below this the error of rounding to bins would add up over thousands of snapshots.
MOVED_BINS: Final = 4.0
"""bins by which distances must have moved in the mean: 15 %"""


class _Measured(NamedTuple):
    """A kept reading as it was measured."""

    identity: int
    bin: int


class Move(NamedTuple):
    """How the distances of a cluster have moved."""

    old: Ints
    """(n,) bins of some readings before, which ascend"""
    new: Ints
    """(n,) bins of the same rank after"""
    farthest: int
    """bin after of the farthest of them that was measured; `new` may end beyond it"""

    def counts(self, counts: Ints) -> Ints:
        """counts (BINS,) of distances before -> the same of distances after."""
        moved = np.zeros_like(counts)
        beyond = self._beyond()
        levels, first, readings = np.unique(self.old, return_index=True, return_counts=True)
        middle = np.add.reduceat(self.new, first) / readings
        for number in np.flatnonzero(counts).tolist():
            level = int(np.searchsorted(levels, number))
            if level < len(levels) and levels[level] == number:
                # What lay at one distance before may lie at several: far from a node all readings
                # of a small cluster seem to lie together.
                own = self.new[first[level] : first[level] + readings[level]]
                part, rest = divmod(int(counts[number]), len(own))
                np.add.at(moved, own, part)
                np.add.at(moved, own[len(own) - rest :], 1)
                continue
            if number < levels[0]:
                there = number + middle[0] - levels[0]
            elif number > levels[-1]:
                there = beyond[number]
            else:
                there = np.interp(number, levels, middle)
            moved[int(np.clip(np.rint(there), 0, BINS - 1))] += counts[number]
        return moved

    def _beyond(self) -> Ints:
        """(BINS,) where distances beyond the farthest of `old` lie after.

        They stay as much farther, as a distance: no distance changes by more than its node has
        moved. A factor would move the farthest readings on with every move, until nothing were
        novel.
        """
        distances = middle_distances()
        there = distances + distances[self.farthest] - distances[self.old[-1]]
        return distance_bins(there)


@state_type
class CalibrationState(SavedState):
    """The kept readings with their distances, by which what is known was measured."""

    snapshot: int
    """version of the newest snapshot by which readings were measured"""
    day: Annotated[Ints, IntArray("s", least=-COUNT_MAX)]
    key: Annotated[Ints, IntArray("s")]
    identity: Annotated[Ints, IntArray("s")]
    bin: Annotated[Ints, IntArray("s")]

    def check(self) -> None:
        require(bool((self.bin < BINS).all()), "a kept reading is in no bin")


class Calibration:
    """The distances of kept readings, by which it is found how those of a cluster have moved."""

    def __init__(self) -> None:
        self._version = 0
        """version of the newest snapshot by which readings were measured"""
        self._measured: dict[Place, _Measured] = {}

    def follow(
        self, clusters: SnapshotClusters, before: SnapshotClusters | None, kept: KeptReadings
    ) -> Mapping[int, Move]:
        """Measure kept readings by a snapshot, once; those that came since the one `before` by that
        one first.

        Returns identity -> how its distances have moved, of clusters whose distances have.
        """
        if clusters.version == self._version:
            return {}
        self._version = clusters.version
        if before is not None:
            for place, measured in _measure(before, kept).items():
                self._measured.setdefault(place, measured)
        after: dict[int, dict[Place, _Measured]] = {}
        for place, measured in _measure(clusters, kept).items():
            after.setdefault(measured.identity, {})[place] = measured
        moves: dict[int, Move] = {}
        compared = self._measured
        self._measured = {}
        for identity, own in sorted(after.items()):
            earlier = {
                place: compared[place]
                for place in own
                if place in compared and compared[place].identity == identity
            }
            move = _move(earlier, own)
            if move is not None:
                moves[identity] = move
                earlier = {}
            # As long as a cluster has not moved by enough, it is compared with where it was: small
            # steps in one direction add up to a move.
            self._measured |= own | earlier
        return moves

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        table = [(*place, *measured) for place, measured in self._measured.items()]
        columns = np.array(table, dtype=np.int64).reshape(-1, 4).T
        return CalibrationState(
            snapshot=self._version,
            day=columns[0],
            key=columns[1],
            identity=columns[2],
            bin=columns[3],
        ).saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = CalibrationState.read(state)
        self._version = saved.snapshot
        places = zip(saved.day.tolist(), saved.key.tolist(), strict=True)
        measured = map(_Measured, saved.identity.tolist(), saved.bin.tolist())
        self._measured = dict(zip(places, measured, strict=True))


def _measure(clusters: SnapshotClusters, kept: KeptReadings) -> dict[Place, _Measured]:
    """The kept readings of known clusters, as a snapshot measures them."""
    if not kept.places:
        return {}
    assigned = clusters.assign(kept.rows, kept.rows)
    measured = map(_Measured, assigned.identity.tolist(), distance_bins(assigned.distance).tolist())
    pairs = zip(kept.places, measured, strict=True)
    return {place: of_place for place, of_place in pairs if of_place.identity != NO_IDENTITY}


def _move(before: Mapping[Place, _Measured], after: Mapping[Place, _Measured]) -> Move | None:
    """How the distances of a cluster have moved, by its kept readings before, which are among those
    after; None where they have not, or it is not known."""
    if len(before) < CALIBRATED_MIN:
        return None
    old = np.sort([measured.bin for measured in before.values()])
    new = np.sort([after[place].bin for place in before])
    if np.abs(new - old).mean() < MOVED_BINS:
        return None
    # The farthest of many readings lies farther than that of the few that are kept: by as much
    # again as these reach beyond nine tenths of them.
    distances = middle_distances()[new]
    beyond = distance_bins(2 * distances[-1:] - distances[len(new) * 9 // 10])
    return Move(np.append(old, old[-1]), np.append(new, beyond), int(new[-1]))
