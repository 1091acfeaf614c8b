"""Merges of clusters of density_tree that have not lasted yet: two that have just become one group
remain two for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Self

import numpy as np

from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import IntArray, SavedState, require, state_type

# Measured on office readings, eight streams at an epsilon of 4: 7 lost a cluster to a merge that
# was none, none did with this wait, and events about nothing fell from .116 to .030 per 1 000
# readings. The price is that a true merge is told as much later.
MERGE_READINGS: Final = 6000
"""readings for which no valley may be left between two clusters until they are one; fewer for a
younger one, which was no more certain: as many as it had been known for"""
OWN_PART: Final = 0.5
"""share of the mass of a cluster that must be in one group with another one for the two to be
merging"""

Pair = tuple[int, int]


@state_type
class MergingState(SavedState):
    """The p pairs of identities that are merging."""

    pair: Annotated[Ints, IntArray("p", 2)]
    filled_since: Annotated[Ints, IntArray("p")]

    def check(self) -> None:
        pairs = {(older, younger) for older, younger in self.pair.tolist()}
        require(len(pairs) == len(self.pair), "two clusters are merging twice")


class Merging:
    """The pairs of known clusters between which no valley is left at present.

    Noise, or readings of a single day, can fill a valley that is there again a while later. A merge
    that is announced, and taken back, costs a cluster its identity.
    """

    def __init__(self) -> None:
        self._filled_since: dict[Pair, int] = {}
        """(older cluster, younger one) -> readings absorbed when no valley was left first"""

    def held_apart(
        self,
        identity: Ints,
        mass: Floats,
        group: Ints,
        readings: int,
        known_since: Callable[[int], int],
    ) -> Ints:
        """Identities that l leaves had, below 0 for none, their masses and groups -> (l,) the
        groups, where known clusters that have not been one for long enough are groups of their own.

        One look at which a valley is found begins the wait anew. `known_since` gives the readings
        absorbed when an identity was found.
        """
        filled_since: dict[Pair, int] = {}
        held = group.copy()
        for number in range(int(group.max()) + 1):
            here = group == number
            known = _in_group(identity, mass, here)
            for part in known[1:]:
                # What has most of its mass elsewhere goes on there, and ends nowhere.
                own = identity == part
                if mass[own & here].sum() < OWN_PART * mass[own].sum():
                    continue
                # By age, as the heavier of two may be the lighter one at the next look.
                pair = (min(known[0], part), max(known[0], part))
                since = self._filled_since.get(pair, readings)
                age = since - max(known_since(cluster) for cluster in pair)
                if readings - since < min(MERGE_READINGS, age):
                    filled_since[pair] = since
                    held[own & here] = int(held.max()) + 1
        self._filled_since = filled_since
        return held

    def state(self) -> MergingState:
        pairs = list(self._filled_since)
        return MergingState(
            pair=np.array(pairs, dtype=np.int64).reshape(-1, 2),
            filled_since=np.array(list(self._filled_since.values()), dtype=np.int64),
        )

    @classmethod
    def restored(cls, saved: MergingState) -> Self:
        """The pairs of a saved state."""
        merging = cls()
        rows = zip(saved.pair.tolist(), saved.filled_since.tolist(), strict=True)
        for (older, younger), since in rows:
            merging._filled_since[older, younger] = since
        return merging


def _in_group(identity: Ints, mass: Floats, here: Bools) -> list[int]:
    """The known identities with mass in a group, the one with most of it first; of equal ones the
    older one."""
    shares = {}
    for number in sorted(set(identity[here].tolist())):
        share = float(mass[here & (identity == number)].sum())
        if number >= 0 and share > 0.0:
            shares[number] = share
    return sorted(shares, key=lambda number: (-shares[number], number))
