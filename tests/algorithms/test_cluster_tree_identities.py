"""Identities of cluster_tree: what was merged and is found again at its place is what it was."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.cluster_tree.cells import KNOWN, Cells
from shoal.algorithms.cluster_tree.identities import Identities, IdentitiesState
from shoal.algorithms.cluster_tree.partition import Partition
from shoal.kernels.arrays import Floats, Ints

CELLS = 20
"""cells of each of two places"""


def cells_at(second: float, scale: float) -> Cells:
    """Cells around 0 and, fewer of their readings, around another place of the first feature."""
    generator = np.random.default_rng(4)
    centres = generator.normal(0.0, 0.02, (2 * CELLS, 2))
    centres[CELLS:, 0] += second
    k = len(centres)
    return Cells(
        centres=centres * scale,
        mass=np.repeat([30.0, 20.0], CELLS),
        recent=np.ones(k),
        cluster=np.full(k, -1),
        ids=np.arange(k),
        core=np.full(k, 0.01 * scale),
        place=np.full(k, KNOWN),
        n_created=k,
    )


def look(identities: Identities, cells: Cells, group: Ints, readings: float) -> list[int]:
    """The identities of the first and the last cell after a rebuild with these groups."""
    cores: Floats = np.full(len(cells), 0.01 * np.abs(cells.centres).max())
    identities.assign(cells, Partition(group, {}, cores), readings)
    identities.settle(readings)
    return [int(cells.cluster[0]), int(cells.cluster[-1])]


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_a_cluster_that_merged_and_is_found_again_has_its_identity(scale: float) -> None:
    two = np.repeat([0, 1], CELLS)
    cells = cells_at(0.6, scale)
    identities = Identities(1000.0, 5.0, 3.0)
    assert look(identities, cells, two, 1_000.0) == [0, 1]
    assert look(identities, cells, np.zeros(2 * CELLS, dtype=np.int64), 20_000.0) == [0, 0]
    # Through the saved form, as a server that was restarted meanwhile.
    saved = IdentitiesState.read(identities.state(2).saved(), {"d": 2})
    restored = Identities(1000.0, 5.0, 3.0)
    restored.restore_from(saved)
    elsewhere = cells_at(0.4, scale)
    elsewhere.cluster[:] = 0
    assert look(restored, elsewhere, two, 70_000.0) == [0, 2]
    assert look(identities, cells, two, 70_000.0) == [0, 1]
    # What was found in known ground is shown once it has lasted.
    assert identities.shown(cells.cluster)[-1] == 0
    assert look(identities, cells, two, 72_000.0) == [0, 1]
    assert identities.shown(cells.cluster)[-1] == 1


def test_a_cluster_that_was_never_shown_is_not_remembered() -> None:
    two = np.repeat([0, 1], CELLS)
    one = np.zeros(2 * CELLS, dtype=np.int64)
    cells = cells_at(0.6, 1.0)
    identities = Identities(1000.0, 5.0, 3.0)
    look(identities, cells, one, 20_000.0)
    assert look(identities, cells, two, 20_500.0) == [0, 1]
    look(identities, cells, one, 21_000.0)
    assert look(identities, cells, two, 22_000.0) == [0, 2]


def test_numbers_whose_squares_are_none_are_not_remembered() -> None:
    two = np.repeat([0, 1], CELLS)
    cells = cells_at(0.6, 1e200)
    identities = Identities(1000.0, 5.0, 3.0)
    look(identities, cells, two, 1_000.0)
    look(identities, cells, np.zeros(2 * CELLS, dtype=np.int64), 20_000.0)
    assert len(identities.state(2).former.former) == 0
