"""Reconstruction of rows from what successive rounds of k-means publish.

Centres with the number of rows behind them are sums of rows, and from round to round few rows change their cluster. A
cluster of one row is that row; where one row alone moves from one cluster to another, the sums differ by that row. As
centres are public, the cluster of a row that is found is known in every round, so it can be subtracted everywhere, and
more rows stand alone.

Yang, Luo and Li 2025, "Breaking Privacy in Federated Clustering: Perfect Input Reconstruction via Temporal
Correlations" (arXiv 2511.07073), showed that this recovers inputs exactly. They solve for whole trajectories at once;
this attack removes one row after the other, and takes the rounds of all models that learn from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from shoal.kernels.distance import Floats
from shoal.privacy.audit.statistics import Loss, loss_from_guesses
from shoal.privacy.base import RowRange

TOLERANCE = 1e-6
"""unit coordinates within which sums, and rows, count as equal"""


class Round(NamedTuple):
    """What one round publishes."""

    centre: Floats
    """(k, d) the centres that rows were assigned to"""
    weight: Floats
    """(k,) rows of each"""
    total: Floats
    """(k, d) their sums"""


def reconstruct(rounds: Sequence[Round], box: RowRange) -> Floats:
    """The rows (m, d) that follow from rounds over one set of rows, of one model or of several.

    `box`: where rows can lie at all, as the contract tells.
    """
    left = [Round(each.centre, each.weight.copy(), each.total.copy()) for each in rounds]
    found: list[Floats] = []
    while (row := next((row for row in _alone(left) if _fits(left, box, row)), None)) is not None:
        found.append(row)
        for each in left:
            cluster = _nearest(each.centre, row)
            each.weight[cluster] -= 1
            each.total[cluster] -= row
    return np.array(found).reshape(-1, len(box.low))


def audit_reconstruction(found: Floats, members: Floats, decoys: Floats) -> Loss:
    """Guess which of two rows was learnt, a member (n, d) or its decoy, where one was found and the other was not.

    Members are those of the rows learnt; a decoy is another row that could have been in its place.
    """
    seen = [_is_found(found, rows) for rows in (members, decoys)]
    guessed = seen[0] != seen[1]
    return loss_from_guesses(len(members), int(guessed.sum()), int(seen[0][guessed].sum()))


def _alone(rounds: Sequence[Round]) -> Iterator[Floats]:
    """Rows that are a cluster, or that moved alone between two rounds with equally many clusters."""
    for each in rounds:
        for cluster in np.flatnonzero(np.round(each.weight) == 1):
            yield each.total[cluster].copy()
    for before, after in combinations(rounds, 2):
        if before.weight.shape != after.weight.shape:
            continue
        more, moved = np.round(after.weight - before.weight), after.total - before.total
        for gained in np.flatnonzero(more == 1):
            opposite = np.abs(moved + moved[gained]).max(axis=1) < TOLERANCE
            if (opposite & (more == -1)).any():
                yield moved[gained].copy()


def _fits(rounds: Sequence[Round], box: RowRange, row: Floats) -> bool:
    """Whether the row lies in the box, and every round still has one in the cluster that is nearest to it."""
    inside = (row >= box.low - TOLERANCE).all() and (row <= box.high + TOLERANCE).all()
    return bool(inside) and all(each.weight[_nearest(each.centre, row)] > 0.5 for each in rounds)


def _nearest(centre: Floats, row: Floats) -> int:
    return int(((centre - row) ** 2).sum(axis=1).argmin())


def _is_found(found: Floats, rows: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if not len(found):
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray(np.abs(rows[:, None] - found[None]).max(axis=2).min(axis=1) < TOLERANCE)
