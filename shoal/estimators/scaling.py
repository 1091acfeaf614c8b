"""Features brought to one scale before distances are taken: by their bounds, or by their median and
quartiles."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.streaming import ServerHalf, State
from shoal.algorithms.view import NO_CLUSTER
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.saved_state import FloatArray, Opaque, SavedState, require, state_type
from shoal.simulation.federation import Advance, to_the_end
from shoal.simulation.streaming import StreamingFederation

__all__ = ["SCALE_ROWS", "Scale", "ScaledFederation", "check_scale", "given_bounds", "scale_of"]

BOUNDS = "bounds"
ROBUST = "robust"
# The quartiles of 500 rows of a normal distribution have a standard error of 0.06 deviations.
SCALE_ROWS: Final = 500
"""rows of a stream that decide its scale"""
QUARTILES_PER_DEVIATION: Final = 1.349
"""distance of the quartiles of a normal distribution, in standard deviations"""


class Scale(NamedTuple):
    """An affine map of each feature, which is undone exactly but for rounding."""

    origin: Floats
    """(d,)"""
    unit: Floats
    """(d,) above 0"""

    def apply(self, rows: Floats) -> Floats:
        """rows (n, d) in their units -> (n, d)"""
        return np.asarray((rows - self.origin) / self.unit)

    def undo(self, points: Floats) -> Floats:
        """points (k, d) -> (k, d) in the units of the rows"""
        return np.asarray(self.origin + points * self.unit)


def check_scale(scale: object) -> None:
    """Raise `SettingsError` unless it is "bounds", "robust" or None."""
    if scale is not None and scale not in (BOUNDS, ROBUST):
        raise SettingsError(f'scale = {scale!r}, must be "{BOUNDS}", "{ROBUST}" or None')


def given_bounds(bounds: Any, width: int) -> tuple[Floats, Floats]:
    """Two numbers, or two rows of one number per feature -> (d,), (d,). Raises `SettingsError`."""
    try:
        lower, upper = bounds
        low = np.broadcast_to(np.asarray(lower, dtype=np.float64), (width,))
        high = np.broadcast_to(np.asarray(upper, dtype=np.float64), (width,))
    except (TypeError, ValueError):
        raise SettingsError(
            "bounds must be two numbers, or two rows of one number per feature"
        ) from None
    if not np.isfinite([low, high]).all():
        raise SettingsError("bounds must be finite")
    return low.copy(), high.copy()


def scale_of(rows: Floats, scale: str, bounds: Any = None) -> Scale:
    """rows (n, d), n > 0, NaN where a value is missing -> the scale that they decide.

    A feature that is constant in them keeps its unit.

    "bounds": from 0 to 1 between `bounds`, or between the smallest and the largest of the rows.
    "robust": 0 at the median, and 1 a standard deviation above, as the quartiles show it; where
    these coincide, that of all rows.
    """
    if bounds is not None and scale == BOUNDS:
        return _scale_of_bounds(*given_bounds(bounds, rows.shape[1]))
    if np.isnan(rows).any():
        return _scale_by_feature(rows, scale)
    if scale == BOUNDS:
        low = rows.min(axis=0)
        return _scale(low, _span(low, rows.max(axis=0)))
    lower, origin, upper = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
    unit = (upper - lower) / QUARTILES_PER_DEVIATION
    # Where one value fills half of the rows, as of a valve that is mostly closed, quartiles
    # coincide.
    return _scale(origin, np.where(unit > 0, unit, rows.std(axis=0)))


def _scale_of_bounds(low: Floats, high: Floats) -> Scale:
    unit = _span(low, high)
    if not (unit > 0).all():
        raise SettingsError("bounds: the lower one must be below the upper one for every feature")
    return _scale(low, unit)


def _scale_by_feature(rows: Floats, scale: str) -> Scale:
    """Each feature by the values that are there; one without any keeps its unit."""
    scales = []
    for column in rows.T:
        present = column[~np.isnan(column)]
        values = present if len(present) else np.zeros(1)
        scales.append(scale_of(values[:, None], scale))
    origin = np.concatenate([feature.origin for feature in scales])
    unit = np.concatenate([feature.unit for feature in scales])
    return Scale(origin, unit)


def _span(low: Floats, high: Floats) -> Floats:
    # In halves: the difference of two large numbers can overflow.
    return 2.0 * (high / 2 - low / 2)


def _scale(origin: Floats, unit: Floats) -> Scale:
    """The scale with these units, but 1 where one is no length."""
    return Scale(origin, np.where((unit > 0) & np.isfinite(unit), unit, 1.0))


@state_type
class ScaleState(SavedState):
    """A scale that is decided."""

    origin: Annotated[Floats, FloatArray("d")]
    unit: Annotated[Floats, FloatArray("d")]

    def check(self) -> None:
        require(bool((self.unit > 0).all()), "a unit is not above 0")


@state_type
class ScaledFederationState(SavedState):
    """Everything that further learning depends on: the rows that wait for a scale, or the scale and
    the federation."""

    version: ClassVar[int] = 2

    waiting: Annotated[Floats, FloatArray("n", "d", gaps=True)]
    waiting_names: list[str]
    scale: ScaleState | None
    federation: Annotated[State | None, Opaque()]

    def check(self) -> None:
        n = len(self.waiting)
        require(len(self.waiting_names) == n, "not as many names as rows that wait")
        require(n < SCALE_ROWS, "too many rows wait for a scale")
        require(
            (self.federation is None) == (self.scale is None),
            "rows are learnt once there is a scale, and only then",
        )
        require(self.scale is None or n == 0, "rows wait though the scale is decided")


class ScaledFederation:
    """A federation in memory of rows that are brought to one scale, which is decided once.

    With bounds it is known at once. Otherwise the rows of a single call that is the last one
    decide, or the first `SCALE_ROWS` of a stream, however they are divided into calls; until then
    they wait, and nothing is learnt.
    """

    def __init__(self, federation: StreamingFederation, scale: str, bounds: Any = None) -> None:
        """Raises `SettingsError` for another scale, and for bounds that are not."""
        check_scale(scale)
        self._federation = federation
        self._kind = scale
        self._bounds = bounds
        width = federation.width
        self.scale: Scale | None = None
        if scale == BOUNDS and bounds is not None:
            self.scale = scale_of(np.empty((0, width)), scale, bounds)
        self._waiting: Floats = np.empty((0, width))
        self._waiting_names = np.empty(0, dtype=np.str_)

    @property
    def width(self) -> int:
        """Number of features, d."""
        return self._federation.width

    @property
    def server(self) -> ServerHalf:
        """The half that predicts, in scaled coordinates."""
        return self._federation.server

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        advance: Advance = to_the_end,
    ) -> None:
        """See `shoal.simulation.federation.Federation.learn`."""
        if self.scale is None:
            # Clients are named now: those of rows without a name follow from how many came before.
            n_before = len(self._waiting)
            names = self._federation.names_of(len(rows), client_names, first=n_before)
            rows = np.concatenate([self._waiting, rows])
            names = np.concatenate([self._waiting_names, names])
            n_deciding = len(rows) if is_last else SCALE_ROWS
            if len(rows) < max(n_deciding, 1):
                self._waiting = rows
                self._waiting_names = names
                return
            self.scale = scale_of(rows[:n_deciding], self._kind, self._bounds)
            self._waiting = self._waiting[:0]
            self._waiting_names = self._waiting_names[:0]
            # Learnt by themselves, so that the result does not depend on how a stream is divided
            # into calls.
            deciding = self.scale.apply(rows[:n_deciding])
            self._federation.learn(deciding, names[:n_deciding], is_last, advance)
            rows = rows[n_deciding:]
            client_names = names[n_deciding:]
        # The federation has been told the end with the rows that have decided, where none are left.
        is_last = is_last and len(rows) > 0
        self._federation.learn(self.scale.apply(rows), client_names, is_last, advance)

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) in their units -> (n,) cluster of each; -1 until the scale is decided."""
        if self.scale is None:
            return np.full(len(rows), NO_CLUSTER, dtype=np.int64)
        return self._federation.predict(self.scale.apply(rows))

    def on_scale(self, rows: Floats) -> Floats:
        """rows (n, d) in their units -> in the coordinates in which the algorithm learns."""
        if self.scale is None:
            return rows
        return self.scale.apply(rows)

    def in_units(self, points: Floats) -> Floats:
        """Points (k, d) in the coordinates in which the algorithm learns -> in the units of the
        rows."""
        if self.scale is None:
            return points
        return self.scale.undo(points)

    def state(self) -> State:
        """See `ScaledFederationState`."""
        saved = ScaledFederationState(
            waiting=self._waiting,
            waiting_names=self._waiting_names.tolist(),
            scale=None if self.scale is None else ScaleState(**self.scale._asdict()),
            federation=None if self.scale is None else self._federation.state(),
        )
        return saved.saved(width=self.width)

    def restore(self, state: State) -> None:
        """Become the saved federation; this one has learnt nothing. Raises `InvalidState`."""
        saved = ScaledFederationState.read(state, {"d": self.width}, width=self.width)
        if saved.scale is not None and saved.federation is not None:
            self._federation.restore(saved.federation)
            self.scale = Scale(saved.scale.origin, saved.scale.unit)
        self._waiting = saved.waiting
        self._waiting_names = np.array(saved.waiting_names, dtype=np.str_)
