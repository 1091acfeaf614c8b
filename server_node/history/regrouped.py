"""Finds the clusters whose earlier readings the history has counted to others, as a model that
counts under a plan had not told them apart.

A window is counted in the cells of the plan that its client had read. Before a cluster is found its
cells are those of a larger one, or of all readings, and what a window says of where its readings
lay is said of that one. The bins of that time stay as they are: shares of a client in them are not
comparable with later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.history import NO_CLUSTER

MOVED_PART: Final = 0.1
"""part of the readings of a cluster that were counted to others, or of others to it, from which on
its earlier shares are not comparable: less than the shares of days differ by"""
LASTING_PART: Final = 0.5
"""a cluster is a state that is new, and no part of one that was known, where its share of all
readings is at most this part of its share of the recent ones"""


def regrouped(
    before: Ints, now: Ints, mass: Floats, recent_shares: Mapping[int, float] | None
) -> set[int]:
    """The identities of clusters that have other nodes than before.

    Of nodes (n,) the identity that their places had in the snapshot before, the one that they have
    now, and the readings in them since the stream began. `recent_shares`: identity -> its share of
    the recent readings; None where they are not known.
    """
    total = float(mass.sum())
    moved = before != now
    known = set(before.tolist())
    found = set()
    for identity in np.unique(now).tolist():
        own = float(mass[now == identity].sum())
        came = float(mass[moved & (now == identity)].sum())
        left = float(mass[moved & (before == identity)].sum())
        # A state that began now has hardly any readings of before: bins that show none are right.
        if recent_shares is not None and identity not in known:
            usual = recent_shares.get(identity, 0.0) * total
            if came <= LASTING_PART * usual:
                came = 0.0
        if came + left > MOVED_PART * own:
            found.add(identity)
    return found - {NO_CLUSTER}
