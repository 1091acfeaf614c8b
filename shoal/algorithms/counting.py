"""The contract of algorithms that learn from counts: clients count whole windows of readings, and
counts get noise.

Where noise is added to each reading before anything learns from it, the noise has to hide all that
a reading says. A count says far less of one reading, so the same guarantee takes far less noise.
What is counted is decided by a public *plan*, which the server publishes in its snapshots; the true
counts stay on the client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NoReturn, Protocol

import numpy as np

from shoal.algorithms.claims import require_possible
from shoal.algorithms.streaming import (
    COUNTING,
    Arrays,
    ClientHalf,
    Family,
    Rows,
    StreamingAlgorithm,
)
from shoal.errors import SettingsError
from shoal.kernels.arrays import AnyInts, Bools, Floats, Ints

NOISE_SCALES_MAX: Final = 56.0
"""scales: noise beyond happens in one of e^56 counts"""
TOTAL_NOISE_MAX: Final = 12.0
"""standard deviations of the sum of all counts"""

NET_SCALES_MAX: Final = 36.0
"""the same for all windows of a client together: beyond lies one sum in e^36"""
NET_SPREADS_MAX: Final = 12.0
"""standard deviations of the squares of all sums below zero"""

CLIPPED_SCALES: Final = 8.0
"""scales of noise of one count below zero that count at most; honest noise hardly ever has more"""

FOUND_SIGNIFICANCE: Final = 5.0
"""standard deviations by which all counts together must exceed their noise before anything is
shown: noise alone came to 4.5 in none of 4000 streams of 10^4 windows, looked at after every window
"""


class Counted(Protocol):
    """A counted window, which must not leave the client before its counts are private."""

    @property
    def counts(self) -> Ints:
        """(cells,) how many readings fell into each cell; each reading is counted in one cell at
        most."""
        ...

    def update(self, private: Ints) -> Arrays:
        """The arrays of the update table, with private counts (cells,) in the place of the true
        ones."""
        ...


class Counter(Protocol):
    """The half of a counting algorithm that runs on a client. It has no state but the plan."""

    @property
    def plan_digest(self) -> bytes:
        """32 bytes that identify the plan under which the next window is counted."""
        ...

    def adopt(self, snapshot: Arrays) -> None:
        """Count under the plan of this snapshot from now on. Raises `InvalidData` for a plan that
        cannot be one."""
        ...

    def count(
        self,
        rows: Rows,
        valid: Bools,
        client: bytes,
        number: int,
        cohort: tuple[bytes, int] | None = None,
    ) -> Counted:
        """Count one window of a client: rows (n, d) in unit coordinates; the `valid` (n,) are
        readings.

        A row that is not valid keeps its place and is counted nowhere. The cells that are counted,
        and the cell that a reading falls into, depend on the plan, the public name of the client
        and the number of its window, and for a reading's cell on that reading and its place; on no
        other reading. With a `cohort`, the public name of many clients and the number of a round,
        the cells depend on that instead, so that the counts of all can be added up.
        """
        ...


def _takes_no_rows(options: Mapping[str, Any], dimensions: int | None) -> NoReturn:
    raise SettingsError("an algorithm that learns from counts has no client half that learns rows")


@dataclass(frozen=True, kw_only=True)
class CountingAlgorithm(StreamingAlgorithm):
    """A streaming algorithm whose clients publish private counts of windows instead of learning
    noisy rows.

    `server` and `counter` take two options more than people set: `noise_variance`, of one published
    count, and `window_readings`.
    """

    family: ClassVar[Family] = COUNTING

    client: Callable[[Mapping[str, Any], int | None], ClientHalf] = field(
        init=False, default_factory=lambda: _takes_no_rows
    )
    counter: Callable[[Mapping[str, Any], int], Counter]
    """(options, d) -> a client half that knows no snapshot yet. Raises `SettingsError`"""
    counted: str = "readings, each in one cell of its plan at most"
    """what a window counts, for people"""
    features_max: int | None = None
    """most features that it is for; None: any number"""
    stream: str | None = None
    """algorithms with the same name here count every window alike, whatever their options: under
    the same epsilon their models publish the same private counts, which cost their epsilon once.
    None: each model has counts of its own"""
    samples_axes: bool = False
    """whether each window counts only some axes of its plan: it then has the option
    `axes_per_window`"""
    joins_ends: bool = False
    """whether it joins clusters across the ends of circular features: it then has the option
    `circular`"""
    readings_needed: Callable[[Mapping[str, Any], int], float] | None = None
    """(options, d) -> readings of all clients until it shows what it is for in most streams; it
    then has the option `windows_summed`. None: it is not known"""
    readings_to_exceed_noise: Callable[[Mapping[str, Any], int], int] | None = None
    """(options, d) -> about how many readings its counts need until one can exceed their noise, one
    window at least. None: its counts have as many cells as the data fill"""
    epsilon_advised: float = 0.0
    """epsilon of a reading below which another algorithm that learns from counts finds more"""

    def points(self, update: Arrays, snapshot: Arrays | None = None) -> tuple[Rows, Floats]:
        """Points of an update and their readings, as `counted_points` gives them."""
        if snapshot is None or self.counted_points is None:
            return np.empty((0, 0)), np.empty(0)
        return self.counted_points(update, snapshot)


def check_private_counts(
    counts: AnyInts,
    readings: int,
    noise_variance: float,
    windows: AnyInts | None = None,
    window_readings: float = math.inf,
) -> None:
    """Raises `InvalidData` for private counts (n,) that no window has, whatever the noise.

    The window has this number of readings. `windows` (n,): the number of windows that each count is
    the sum of; the readings are those of all. None: one. None of them has more than
    `window_readings`.
    """
    summed = np.ones(len(counts)) if windows is None else windows.astype(np.float64)
    reach = _noise_reach(noise_variance, summed)
    most = np.minimum(readings, summed * window_readings)
    in_reach = (counts >= -reach) & (counts <= most + reach)
    require_possible(bool(in_reach.all()), "count holds a number that no window has")
    # As floats: whole numbers that somebody claims may overflow in a sum, and wrap to a small one.
    total = float(counts.sum(dtype=np.float64))
    # The noise of a sum is Gaussian but for its largest terms, which the reach of one count covers.
    spread = TOTAL_NOISE_MAX * math.sqrt(noise_variance * float(summed.sum()))
    spread += float(reach.max(initial=0.0))
    require_possible(
        -spread <= total <= readings + spread, "count adds up to more than its readings"
    )


def check_block_sums(
    counts: AnyInts, cells: Ints, readings: int, noise_variance: float, windows: Ints
) -> None:
    """Raises `InvalidData` for blocks whose private counts (n,) add up to what no windows have.

    cells (b,) of each block, windows (b,) that it is the sum of. The noise of a sum over many cells
    is far smaller than the sum of their largest noise.
    """
    if not len(cells):
        return
    sums = np.add.reduceat(counts.astype(np.float64), np.cumsum(cells) - cells)
    spread = TOTAL_NOISE_MAX * np.sqrt(noise_variance * windows * cells)
    spread += _noise_reach(noise_variance, windows.astype(np.float64))
    in_reach = (sums >= -spread) & (sums <= readings + spread)
    require_possible(bool(in_reach.all()), "a block adds up to no readings")


def without_far_noise(counts: Floats, variance: float, windows: int) -> Floats:
    """Private counts (n,) of this many windows each, where noise far below zero counts as less far.

    Of one window, one draw in e^`CLIPPED_SCALES` lies as far, so the bias is far below the noise
    for a million windows. Sums over more have been made of such counts, and are far below zero only
    if they are no noise.
    """
    if windows == 1:
        reach = _scale(variance) * CLIPPED_SCALES
    else:
        reach = net_reach(variance, float(windows))
    return np.maximum(counts, -math.ceil(reach))


def net_reach(variance: float, draws: float) -> float:
    """How far below zero the noise of a sum over this many draws lies at most.

    It holds for all sums of a stream together, however often they are compared. Bernstein's
    inequality for two-sided geometric noise of this variance each.
    """
    return math.sqrt(2.0 * NET_SCALES_MAX * variance * draws) + NET_SCALES_MAX * _scale(variance)


def squares_reach(variance: float, draws: float, sums: int) -> float:
    """The squares of those of `sums` sums over `draws` draws of noise that are negative, at most.

    Half of the sums are below zero; a single draw may have a square as large as all others.
    """
    of_sum = variance * draws
    single = (NET_SCALES_MAX * _scale(variance)) ** 2
    # The square of a Gaussian where it is negative, else 0, has the mean v / 2 and the variance
    # 1.25 v^2; the heavier tails of geometric noise add to it with each draw.
    spread = math.sqrt(sums * (1.25 * of_sum**2 + 3.0 * draws * variance**2))
    return sums * of_sum / 2.0 + NET_SPREADS_MAX * spread + single


def _noise_reach(variance: float, windows: Floats) -> Floats:
    """(n,) the largest noise of sums over these numbers of windows.

    Beyond lies one in e^`NOISE_SCALES_MAX` at most. Of one window the tail of geometric noise; of
    more Bernstein's inequality, in which the scale bounds each term.
    """
    scale = _scale(variance)
    of_many = 2.0 * NOISE_SCALES_MAX * scale + np.sqrt(2.0 * NOISE_SCALES_MAX * variance * windows)
    return np.where(windows > 1.0, of_many, NOISE_SCALES_MAX * scale)


def _scale(variance: float) -> float:
    """The scale of two-sided geometric noise of this variance: P(k) is proportional to exp(-|k| /
    scale)."""
    if variance <= 0.0:
        return 0.0
    # variance = 2 q / (1 - q)^2 with q = exp(-1 / scale), which is the smaller root of
    # q^2 - 2 (1 + 1 / variance) q + 1
    middle = 1.0 + 1.0 / variance
    return 1.0 / math.log(middle + math.sqrt(middle * middle - 1.0))
