"""Imperfect readings: coarse ones are spread over their steps, and missing values are filled.

Coarse readings. A sensor that shows whole degrees puts all that lies between two of them on one
value, and a histogram with finer bins has a valley between any two values. The step is public, part
of the contract. How far a value is moved is a function of the key, the client, the readings log and
the place of the reading, so a reading that is read again is moved as before.

It protects nothing and costs nothing: each reading is moved by itself, at its own place, before
noise is added, so two logs that differ in one reading still differ in that reading alone. Only what
is learnt is spread; labels are of readings as they were measured.

Missing values. A reading is first made noisy for the values that it has. What it lacks is then
taken from the nearest of the client's earlier noisy rows, over the features that it has, and noise
is added to that as to a value that was measured. So models learn whole rows, whose number and form
are those of readings without gaps.

Why a row tells no more of what was missing than of the values. Each feature of a row is the noise
of that feature, around the value if it was measured, and otherwise around a number that follows
from what is public by then: earlier noisy rows, and the noisy features of this one. Both numbers
lie within the bounds, so for every result the odds of two readings differ in each feature by at
most the feature's epsilon, whatever either of them lacks: together by at most that of the reading.
For this the earlier rows must be kept as they were released, without a mark of what was filled.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from shoal.errors import InvalidState, SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.distance import filled_from
from shoal.privacy.base import Bounds, Mechanism, PrivacyMode, Released
from shoal.privacy.keyed import CONTEXT_BYTES, KEY_BYTES, SOURCE_BYTES, KeyedRandomness, Places
from shoal.saved_state import FloatArray, SavedState, Sizes, require, state_type

_CONTEXT: Final = b"shoal coarse readings 1".ljust(CONTEXT_BYTES, b"\0")
# The upper 53 bits of a word are a float in [0, 1) without rounding.
_UNIT: Final = 2.0**-53


STEPS_MIN = 8
STEPS_MAX = 256
"""fewest values, and most steps between the least and the greatest, of a coarse feature"""
STEPS_SHOWN = 0.5
"""share of the steps between the 5 % and 95 % quantiles that some value shows"""
STEP_ROUNDING = 0.01
"""part of a step by which a value may lie beside its grid, because it was written with few digits
"""


def step_of(values: Floats, fewest: int = STEPS_MIN) -> float:
    """The step of values (n,) that lie on a coarse grid, such as 1 for whole numbers; else 0.

    A grid is coarse if it is not much finer than the bins of counts. Values fewer than `fewest`, or
    far from each other, may be states, between which nothing lies: those have no step.
    """
    shown = np.unique(values)
    if len(shown) < max(fewest, 2):
        return 0.0
    span = float(shown[-1] - shown[0])
    steps = span / float(np.diff(shown).min())
    if steps > STEPS_MAX + 0.5:
        return 0.0
    # Rounding of two neighbours would add up over many steps; over the whole span it does not.
    step = span / round(steps)
    places = (shown - shown[0]) / step
    if not np.allclose(places, np.rint(places), rtol=0.0, atol=STEP_ROUNDING):
        return 0.0
    near, far = np.quantile(values, [0.05, 0.95])
    middle = (shown >= near) & (shown <= far)
    if middle.sum() < STEPS_SHOWN * (float(far - near) / step + 1.0):
        return 0.0
    return float(f"{step:.6g}")


class CoarseReadings:
    """Spreads the readings of one client over the steps of their features."""

    def __init__(
        self, bounds: Bounds, steps: Floats, key: bytes | None, client: str, source: bytes
    ) -> None:
        """`steps` (d,) in the units of the features, 0 for a feature without one.

        `key` None: spread by public words, which is enough, as it protects nothing. Raises
        `SettingsError` for a step that is below 0, or above the range of its feature.
        """
        self._bounds = bounds
        self._steps = np.array(steps, dtype=np.float64)
        is_one_a_feature = self._steps.shape == (bounds.d,)
        if not is_one_a_feature or not self._are_in_range():
            raise SettingsError("step: one number for each feature, from 0 to high - low")
        self._coarse = np.flatnonzero(self._steps)
        own_key = bytes(KEY_BYTES) if key is None else key
        self._random = KeyedRandomness(own_key, client, source, _CONTEXT, 1)

    @property
    def spreads(self) -> bool:
        """Whether there is a feature with a step."""
        return len(self._coarse) > 0

    def _are_in_range(self) -> bool:
        return bool(((self._steps >= 0.0) & (self._steps <= self._bounds.span)).all())

    def spread(self, readings: Floats, places: Places) -> Floats:
        """readings (n, d) with their places (n, 2) in the readings log -> (n, d) spread readings.

        All are within the bounds. A value x with step s comes to lie in x - s/2 .. x + s/2, on a
        circle also across its ends; one beyond its bounds, and one that is missing, stays.
        """
        if not len(self._coarse) or not len(readings):
            return readings
        words = self._random.draw(
            places, np.zeros((len(readings), 1), dtype=np.int64), len(self._coarse)
        )
        # 53 bits, as many as a float below 1 can hold evenly.
        share = (words >> np.uint64(11)).astype(np.float64) * _UNIT
        values = readings[:, self._coarse]
        half = self._steps[self._coarse] / 2.0
        least = self._bounds.low[self._coarse]
        most = self._bounds.high[self._coarse]
        low = np.maximum(values - half, least)
        high = np.minimum(values + half, most)
        # Rounding must not carry a value beyond its bound.
        moved = np.minimum(low + share * (high - low), most)
        inside = (values >= least) & (values <= most)
        for column in np.flatnonzero(np.isin(self._coarse, self._bounds.circular)).tolist():
            # A circle has no ends at which a step is cut off.
            inside[:, column] = True
            start = least[column]
            turn = most[column] - least[column]
            shifted = values[:, column] - half[column] * (1.0 - 2.0 * share[:, column])
            moved[:, column] = start + (shifted - start) % turn
        spread = readings.copy()
        # A value beyond its bounds is clipped later: moved, it would not be counted as clipped.
        spread[:, self._coarse] = np.where(inside, moved, values)
        return spread


ROWS_KEPT: Final = 256
"""earlier rows of a client from which missing values are taken"""
BLOCK_ROWS: Final = 64
"""rows that are filled from the same earlier ones: a fixed number, so that any batching gives the
same rows"""
KEPT_MAX: Final = ROWS_KEPT + BLOCK_ROWS
"""rows that are held: those of the block at hand are not yet taken from"""
LEARN: Final = "learn"
Finish = Callable[[Floats, slice], Floats]
"""rows (m, d) with what was missing filled in, and which of the rows at hand they are -> the rows
as they are kept"""


@state_type
class EarlierRowsState(SavedState):
    """The newest rows of one client."""

    version: ClassVar[int] = 1

    earlier: Annotated[Floats, FloatArray("k", "d")]
    count: int
    """rows so far"""

    def check(self) -> None:
        require(len(self.earlier) == min(self.count, KEPT_MAX), "earlier rows are missing")


class EarlierRows:
    """The newest rows of one client, and new ones with what they lack filled in from these."""

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._batches: deque[Floats] = deque()
        """the newest rows, in order; put together when a row lacks a value, which may be never"""
        self._kept = 0
        """number of these"""
        self._count = 0
        """rows so far"""

    def fill(self, rows: Floats, finish: Finish = lambda rows, _: rows) -> Floats:
        """rows (n, d) in unit coordinates, NaN where a value is missing -> (n, d) whole, in order.

        The first row of all has none to be filled from: what it lacks is taken to be in the middle.
        """
        if not np.isnan(rows).any():
            self._keep(rows)
            return rows
        whole = np.empty_like(rows)
        for part in self._pieces(len(rows)):
            filled = filled_from(rows[part], self._visible())
            whole[part] = finish(filled, part)
            self._keep(whole[part])
        return whole

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return EarlierRowsState(earlier=self._newest(), count=self._count).saved()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        saved = EarlierRowsState.read(state, {"d": self._width})
        self._batches = deque([saved.earlier])
        self._kept = len(saved.earlier)
        self._count = saved.count

    def _pieces(self, n: int) -> Iterator[slice]:
        """The next n rows, cut where more rows become visible."""
        first = 0
        while first < n:
            stop = min(n, first + _next_start(self._count) - self._count)
            yield slice(first, stop)
            first = stop

    def _visible(self) -> Floats:
        """The rows from which the next one may be filled."""
        new = self._count - _start(self._count)
        newest = self._newest()
        return newest[: len(newest) - new][-ROWS_KEPT:]

    def _newest(self) -> Floats:
        """(k, d) at most `KEPT_MAX` rows."""
        if not self._batches:
            return np.empty((0, self._width))
        newest = np.concatenate(self._batches)[-KEPT_MAX:]
        self._batches = deque([newest])
        self._kept = len(newest)
        return newest

    def _keep(self, rows: Floats) -> None:
        # A copy: a view would keep the whole table of a caller.
        self._batches.append(rows[-KEPT_MAX:].copy())
        self._kept += min(len(rows), KEPT_MAX)
        self._count += len(rows)
        while self._kept - len(self._batches[0]) >= KEPT_MAX:
            self._kept -= len(self._batches.popleft())


def _start(number: int) -> int:
    """The first row of the block of row `number`.

    Blocks have 1, 1, 2, 4 and so on up to `BLOCK_ROWS` rows: the first rows of a client need not
    wait for a whole block until others are filled from them.
    """
    if number >= BLOCK_ROWS:
        return number // BLOCK_ROWS * BLOCK_ROWS
    # The largest power of two up to `number`; 0 for 0.
    return (1 << number.bit_length()) // 2


def _next_start(number: int) -> int:
    start = _start(number)
    return start + min(max(start, 1), BLOCK_ROWS)


class WrappedRows:
    """A mechanism for rows with circular features: noise beyond an end comes back at the other.

    It is done to noisy rows, so it changes no guarantee.
    """

    def __init__(self, mechanism: Mechanism, bounds: Bounds) -> None:
        self._mechanism = mechanism
        self._bounds = bounds

    def privatise(self, readings: Floats, places: Places) -> Released:
        released = self._mechanism.privatise(readings, places)
        return Released(self._bounds.wrapped(released.rows), released.kept, released.clipped)

    def state(self) -> dict[str, Any]:
        return self._mechanism.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._mechanism.restore(state)


def _mechanism(mode: PrivacyMode, key: bytes | None, client: str, source: bytes) -> Mechanism:
    mechanism = mode.mechanism(key, client, source)
    if mode.bounds.circular:
        return WrappedRows(mechanism, mode.bounds)
    return mechanism


@dataclass(frozen=True)
class PartState:
    """The rule of a state that its part, perhaps of a mode of another package, reads itself."""

    def read(self, name: str, value: Any, sizes: Sizes) -> dict[str, Any]:
        """Raises `InvalidState`."""
        if not isinstance(value, dict):
            raise InvalidState(f"{name} must be a saved state")
        return value


@state_type
class FilledGapsState(SavedState):
    """The states of both mechanisms, whose forms are those of the mode, and the earlier rows."""

    version: ClassVar[int] = 1

    measured: Annotated[dict[str, Any], PartState()]
    missing: Annotated[dict[str, Any], PartState()]
    earlier: Annotated[dict[str, Any], PartState()]


class FilledGaps:
    """A mechanism for readings that may lack values, made of one for those that lack none."""

    def __init__(self, mode: PrivacyMode, key: bytes | None, client: str, source: bytes) -> None:
        """Raises `SettingsError`."""
        if not mode.fills_gaps:
            raise SettingsError(
                f'missing = "learn" means nothing in mode = "{mode.name}"; take "drop" or "hold"'
            )
        self._bounds = mode.bounds
        self._measured = _mechanism(mode, key, client, source)
        # Other noise: a feature that is filled in must not share that of a value that was measured.
        own = hashlib.sha256(b"shoal filled gaps 1\0" + source).digest()[:SOURCE_BYTES]
        self._missing = _mechanism(mode, key, client, own)
        self._earlier = EarlierRows(mode.bounds.d)

    def privatise(self, readings: Floats, places: Places) -> Released:
        """See `Mechanism.privatise`; NaN is a missing value."""
        lacks = np.isnan(readings)
        at = np.asarray(places, dtype=np.int64).reshape(-1, 2)
        if not lacks.any():
            released = self._measured.privatise(readings, at)
            # For its memory alone: later readings may lack values.
            self._earlier.fill(released.rows)
            return released
        # A constant stands in: what is released for it is thrown away.
        released = self._measured.privatise(np.where(lacks, self._bounds.low, readings), at)
        if not released.kept.all():
            raise SettingsError("readings that lack values are withheld by this mode")
        noisy = np.where(lacks, np.nan, released.rows)
        rows = self._earlier.fill(
            noisy, lambda filled, part: self._finish(filled, lacks[part], at[part])
        )
        return Released(rows, released.kept, released.clipped)

    def state(self) -> dict[str, Any]:
        return FilledGapsState(
            measured=self._measured.state(),
            missing=self._missing.state(),
            earlier=self._earlier.state(),
        ).saved()

    def restore(self, state: dict[str, Any]) -> None:
        saved = FilledGapsState.read(state)
        self._measured.restore(saved.measured)
        self._missing.restore(saved.missing)
        self._earlier.restore(saved.earlier)

    def _finish(self, filled: Floats, lacks: Bools, places: Ints) -> Floats:
        """Rows (m, d) with noise added to what was filled in."""
        some = np.flatnonzero(lacks.any(axis=1))
        if not len(some):
            return filled
        # 0 where a value is there: its noisy form is not used below.
        values = self._bounds.from_unit(np.where(lacks[some], np.clip(filled[some], 0.0, 1.0), 0.0))
        noisy = self._missing.privatise(values, places[some]).rows
        whole = filled.copy()
        whole[some] = np.where(lacks[some], noisy, filled[some])
        return whole


def row_mechanism(mode: PrivacyMode, key: bytes | None, client: str, source: bytes) -> Mechanism:
    """The mechanism of one client for noisy rows.

    Readings may lack values where the contract says so. Raises `SettingsError`.
    """
    if mode.missing == LEARN:
        return FilledGaps(mode, key, client, source)
    return _mechanism(mode, key, client, source)
