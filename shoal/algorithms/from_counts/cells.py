"""The grid on which clients count, and the counts of each client in its cells, which bound what one
alone changes.

The unit cube is cut into the same number of cells along each feature. The grid is public and never
changes. Every cell gets the same noise, so twice the cells need twice the readings; from four
features on there would be more cells than windows can fill.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Final, Self

import numpy as np

from shoal.algorithms.counting import net_reach, squares_reach
from shoal.algorithms.fcac.edges import CLIENTS_UNBOUNDED
from shoal.algorithms.from_counts.grid_sizes import CELLS_ALONG, FEATURES_MAX
from shoal.algorithms.streaming import Rows
from shoal.errors import SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.cells import cell_digits, cell_numbers, digits_of
from shoal.kernels.graph import components
from shoal.saved_state import IntArray, SavedState, require, state_type

SIGNIFICANCE: Final = 4.5
"""standard deviations of noise above zero from which a cell, or it and the cells around it, hold
readings: among a thousand cells without any, one is taken to hold some about once in three hundred
times"""
FEW_WINDOWS: Final = 4
"""windows whose noise fewer ones are taken to have: the sum of a few geometric noises is often far
from zero"""
NO_CLIENT: Final = -1
"""number in place of a client, where several have readings in a cell, or none has"""
SHARE_MAX: Final = 0.95
"""share of the readings of a cell from which on it is of one client alone, as `client_share_max` of
FCAC"""
LINK_REACH: Final = 0.0625
"""sides of the box: cells of one client that are nearer to a part of others may join a cluster of
that part"""
LINKED_MASS: Final = 0.01
"""share of all readings of the smallest part of the space that is kept from being linked"""
LEAST_COUNT: Final = int(np.iinfo(np.int64).min)
CLIENTS_KEPT: Final = 256
"""clients whose counts are kept apart; of more, those that have sent nothing for longest are
forgotten"""


class Grid:
    """The grid over d features. Raises `SettingsError` for more than `FEATURES_MAX`."""

    def __init__(self, d: int) -> None:
        if d not in CELLS_ALONG:
            raise SettingsError(
                f"a grid of counts is for at most {FEATURES_MAX} features, and there are {d}; "
                "take density_tree, which learns from counts of any number of features"
            )
        self.d = d
        self.along = CELLS_ALONG[d]
        self.cells = self.along**d

    def numbers(self, rows: Rows) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) number of the cell that each lies in, or of the
        nearest one."""
        return cell_numbers(cell_digits(rows * self.along, self.along), self.along)

    @cached_property
    def corners(self) -> Floats:
        """(cells, d) the lowest corner of each cell."""
        return digits_of(np.arange(self.cells), self.along, self.d) / self.along

    @cached_property
    def touching(self) -> Ints:
        """(e, 2) every two cells that touch each other, at corners too."""
        number = np.arange(self.cells).reshape((self.along,) * self.d)
        pairs = []
        for step in itertools.product((-1, 0, 1), repeat=self.d):
            # One of two opposite steps, or each pair would be there twice.
            if step > (0,) * self.d:
                here = number[self._shifted(-by for by in step)]
                there = number[self._shifted(step)]
                pairs.append(np.stack([here.ravel(), there.ravel()], axis=1))
        return np.concatenate(pairs)

    def _shifted(self, step: Iterable[int]) -> tuple[slice, ...]:
        """The cells from which a step back along each feature leads to another cell."""
        return tuple(slice(max(0, by), self.along + min(0, by)) for by in step)

    def certain(
        self, counts: Floats, windows: float, variance: float, least: Floats | float = 0.0
    ) -> Bools:
        """counts (cells,), sums over this many windows -> (cells,) whether a cell, or it and those
        that touch it, hold more readings than noise of this variance explains.

        Where noise is below `least` (cells,), the cell must hold more readings than that itself.
        """
        noise = SIGNIFICANCE**2 * max(windows, FEW_WINDOWS) * variance
        around = self.with_neighbours(counts)
        cells_around = self.with_neighbours(np.ones(self.cells))
        beyond: Bools = counts > np.maximum(np.sqrt(noise), least)
        nearby: Bools = (around > np.sqrt(cells_around * noise)) & (np.sqrt(noise) >= least)
        return beyond | nearby

    def near(self, cells: Bools) -> Bools:
        """(cells,) those of `cells` (cells,) and all within `LINK_REACH` of one of them."""
        reached = cells.astype(np.float64)
        # One cell farther in every direction each time, corners included.
        for _ in range(round(LINK_REACH * self.along)):
            reached = self.with_neighbours((reached > 0.0).astype(np.float64))
        return reached > 0.0

    def with_neighbours(self, values: Floats) -> Floats:
        """values (cells,) -> (cells,) the sum over each cell and all cells that touch it."""
        table = values.reshape((self.along,) * self.d)
        for axis in range(self.d):
            # Sums of sums, axis by axis, have the cells that touch at corners as well.
            line = np.moveaxis(table, axis, 0)
            total = line.copy()
            total[1:] += line[:-1]
            total[:-1] += line[1:]
            table = np.moveaxis(total, 0, axis)
        return np.ascontiguousarray(table).reshape(-1)


@state_type
class NetCountsState(SavedState):
    """The clients whose counts are kept apart, their windows, and the sums of their counts."""

    net_client: list[str]
    net_windows: Annotated[Ints, IntArray("clients")]
    net_counts: Annotated[Ints, IntArray("clients", "cells", least=LEAST_COUNT)]
    """private counts may be negative"""

    def check(self) -> None:
        names = self.net_client
        is_one_each = len(set(names)) == len(names) == len(self.net_windows)
        require(is_one_each and len(names) <= CLIENTS_KEPT, "counts are of no client")


class NetCounts:
    """Counts of each client so far, cell by cell, so that none takes more readings away than its
    noise can.

    The noise of one window may be negative in any cell, and that of many adds up to little: its
    root grows. Counts of a client that add up to less, in a cell or in any square of 2, 4, 8, ...
    cells along each feature, are none of readings.
    """

    def __init__(self, grid: Grid, variance: float) -> None:
        """`variance`: of the noise of one published count."""
        self._grid = grid
        self._variance = variance
        self._windows: dict[str, int] = {}
        self._counts: dict[str, Ints] = {}
        """client -> (cells,); the same clients, the one that has sent last at the end"""

    def take(self, client: str, counts: Ints) -> bool:
        """Whether a window of a client may count; it is then added to its sums."""
        windows = self._windows.pop(client, 0) + 1
        before = self._counts.pop(client, np.zeros(self._grid.cells, dtype=np.int64))
        net = before + counts
        possible = self._are_possible(net, windows)
        # Both were popped: a client that has sent comes last, whether its window counts or not.
        self._windows[client] = windows - 1
        self._counts[client] = before
        if possible:
            self._windows[client] = windows
            self._counts[client] = net
        while len(self._counts) > CLIENTS_KEPT:
            oldest = next(iter(self._counts))
            del self._windows[oldest]
            del self._counts[oldest]
        return possible

    def owners(self) -> Ints:
        """(cells,) number of the client that alone has readings in each cell, or `NO_CLIENT`.

        It has more than `SHARE_MAX` of them as far as noise lets that be seen. None of up to
        `CLIENTS_UNBOUNDED` clients owns a cell, as so few may well have different readings.
        """
        owners: Ints = np.full(self._grid.cells, NO_CLIENT, dtype=np.int64)
        if len(self._counts) <= CLIENTS_UNBOUNDED:
            return owners
        names = list(self._counts)
        counts = np.stack(list(self._counts.values()))
        windows = sum(self._windows.values())
        total = counts.sum(axis=0)
        most = counts.argmax(axis=0)
        for number in np.unique(most).tolist():
            own = counts[number].astype(np.float64)
            drawn = self._windows[names[number]]
            shows = self._grid.certain(own, drawn, self._variance)
            others = self._grid.certain(
                total - own, windows - drawn, self._variance, (1.0 - SHARE_MAX) * total
            )
            owners[(most == number) & shows & ~others] = number
        return owners

    def _are_possible(self, net: Ints, windows: int) -> bool:
        """Whether the counts (cells,) of a client are those of readings and of the noise of this
        many windows."""
        table = net.reshape((self._grid.along,) * self._grid.d)
        cells = 1
        while True:
            draws = float(windows * cells)
            negative = np.minimum(table, 0).astype(np.float64)
            # Both tests are of noise alone, since a window of an honest client adds nothing below 0
            # to its readings.
            if float(negative.min()) < -net_reach(self._variance, draws):
                return False
            if float((negative**2).sum()) > squares_reach(self._variance, draws, table.size):
                return False
            if table.size == 1:
                return True
            for axis in range(table.ndim):
                # Squares twice as wide: what is little in each cell shows in their sum, as noise of
                # either sign cancels out.
                table = np.add.reduceat(table, np.arange(0, table.shape[axis], 2), axis=axis)
            cells *= 2**table.ndim

    def state(self) -> NetCountsState:
        """What `restored` makes it again from."""
        counts: Ints = np.empty((0, self._grid.cells), dtype=np.int64)
        if self._counts:
            counts = np.stack(list(self._counts.values()))
        return NetCountsState(
            net_client=list(self._counts),
            net_windows=np.array(list(self._windows.values()), dtype=np.int64),
            net_counts=counts,
        )

    @classmethod
    def restored(cls, saved: NetCountsState, grid: Grid, variance: float) -> Self:
        """The counts of a saved state."""
        found = cls(grid, variance)
        names = saved.net_client
        found._windows = dict(zip(names, saved.net_windows.tolist(), strict=True))
        found._counts = dict(zip(names, saved.net_counts, strict=True))
        return found


def links(grid: Grid, readings: Floats, owners: Ints) -> Bools:
    """Cells in which one client alone would connect parts of the space that others fill.

    readings (cells,), owners (cells,) as of `NetCounts.owners` -> (cells,)

    Touching cells of one owner, or of none, are a piece. For each client, touching pieces that it
    does not own are a part of others. A piece of its own may be near one part, that with most cells
    of the piece nearby; its cells near a further part are links.
    """
    filled = readings > 0.0
    linking: Bools = np.zeros(grid.cells, dtype=np.bool_)
    owned = filled & (owners != NO_CLIENT)
    if not owned.any():
        return linking
    touching = grid.touching[filled[grid.touching].all(axis=1)]
    a, b = touching.T
    piece = components(grid.cells, touching[owners[a] == owners[b]])
    beside = np.unique(piece[touching[owners[a] != owners[b]]], axis=0)
    # By piece: all cells of one have the same owner.
    owner = np.full(int(piece.max()) + 1, NO_CLIENT)
    owner[piece] = owners
    for client in np.unique(owners[owned]).tolist():
        of_others = (owner[beside] != client).all(axis=1)
        part = components(len(owner), beside[of_others])[piece]
        others = filled & (owners != client)
        own = np.flatnonzero(filled & (owners == client))
        mass = np.bincount(part[others], readings[others])
        large = np.flatnonzero(mass > LINKED_MASS * readings.sum()).tolist()
        # A client joins nothing where the readings of others are one part.
        if len(large) < 2:
            continue
        near = np.array([grid.near(others & (part == number))[own] for number in large])
        cells_near = np.array([np.bincount(piece[own], cells, len(owner)) for cells in near])
        # Near the part that most of its cells are near a piece may be: only what leads to a further
        # part is a link.
        near &= np.arange(len(large))[:, None] != cells_near.argmax(axis=0)[piece[own]]
        linking[own] = near.any(axis=0)
    return linking
