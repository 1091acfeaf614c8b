"""Features brought to one scale before distances are taken: by their bounds, or by their median and
quartiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import ServerHalf, State
from shoal.algorithms.view import NO_CLUSTER
from shoal.errors import SettingsError
from shoal.estimators.base import Progress
from shoal.estimators.federation import InMemoryFederation
from shoal.kernels.arrays import Floats, Ints

__all__ = ["SCALE_ROWS", "Scale", "ScaledFederation", "check_scale", "given_bounds", "scale_of"]

BOUNDS = "bounds"
ROBUST = "robust"
SCALE_ROWS: Final = 500
"""rows of a stream that decide its scale"""
QUARTILES_PER_DEVIATION: Final = 1.349
"""distance of the quartiles of a normal distribution, in standard deviations"""
STATE_VERSION = 1


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
        low, high = (
            np.broadcast_to(np.asarray(bound, dtype=np.float64), (width,)) for bound in bounds
        )
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
    if np.isnan(rows).any():
        # Each feature by the values that are there; one without any keeps its unit.
        columns = [column[~np.isnan(column)] for column in rows.T]
        scales = [
            scale_of(one[:, None] if len(one) else np.zeros((1, 1)), scale) for one in columns
        ]
        found = Scale(*(np.concatenate(parts) for parts in zip(*scales, strict=True)))
        return found if bounds is None else scale_of(np.zeros((1, rows.shape[1])), scale, bounds)
    if scale == BOUNDS:
        low, high = (
            (rows.min(axis=0), rows.max(axis=0))
            if bounds is None
            else given_bounds(bounds, rows.shape[1])
        )
        # In halves: the difference of two large numbers can overflow.
        origin = low
        unit = 2.0 * (high / 2 - low / 2)
        if bounds is not None and not (unit > 0).all():
            raise SettingsError(
                "bounds: the lower one must be below the upper one for every feature"
            )
    else:
        lower, origin, upper = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
        unit = (upper - lower) / QUARTILES_PER_DEVIATION
        unit = np.where(unit > 0, unit, rows.std(axis=0))
    return Scale(origin, np.where((unit > 0) & np.isfinite(unit), unit, 1.0))


class ScaledFederation:
    """A federation in memory of rows that are brought to one scale, which is decided once.

    With bounds it is known at once. Otherwise the rows of a single call that is the last one
    decide, or the first `SCALE_ROWS` of a stream, however they are divided into calls; until then
    they are held, and nothing is learnt.
    """

    def __init__(self, federation: InMemoryFederation, scale: str, bounds: Any = None) -> None:
        """Raises `SettingsError` for another scale, and for bounds that are not."""
        check_scale(scale)
        self._federation = federation
        self._kind = scale
        self._bounds = bounds
        width = federation.width
        self.scale: Scale | None = None
        if scale == BOUNDS and bounds is not None:
            self.scale = scale_of(np.empty((0, width)), scale, bounds)
        self._held: Floats = np.empty((0, width))
        self._held_names = np.empty(0, dtype=np.str_)

    @property
    def width(self) -> int:
        return self._federation.width

    @property
    def server(self) -> ServerHalf:
        return self._federation.server

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """See `InMemoryFederation.learn`."""
        if self.scale is None:
            names = self._federation.names_of(len(rows), client_names, first=len(self._held))
            self._held = np.concatenate([self._held, rows])
            self._held_names = np.concatenate([self._held_names, names])
            if not len(self._held) or (len(self._held) < SCALE_ROWS and not is_last):
                return
            deciding = len(self._held) if is_last else SCALE_ROWS
            self.scale = scale_of(self._held[:deciding], self._kind, self._bounds)
            first = self._held[:deciding]
            first_names = self._held_names[:deciding]
            rows = self._held[deciding:]
            client_names = self._held_names[deciding:]
            self._held = self._held[:0]
            self._held_names = self._held_names[:0]
            self._federation.learn(self.scale.apply(first), first_names, is_last, progress)
        self._federation.learn(
            self.scale.apply(rows), client_names, is_last and len(rows) > 0, progress
        )

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) in their units -> (n,) cluster of each; -1 until the scale is decided."""
        if self.scale is None:
            return np.full(len(rows), NO_CLUSTER, dtype=np.int64)
        return self._federation.predict(self.scale.apply(rows))

    def in_units(self, points: Floats) -> Floats:
        """Points (k, d) in the coordinates in which the algorithm learns -> in the units of the
        rows."""
        return points if self.scale is None else self.scale.undo(points)

    def state(self) -> State:
        """Everything that further learning depends on: rows that are held, the scale, and the
        federation."""
        return {
            "version": STATE_VERSION,
            "width": self.width,
            "held": self._held.copy(),
            "held_names": self._held_names.tolist(),
            "origin": None if self.scale is None else self.scale.origin.copy(),
            "unit": None if self.scale is None else self.scale.unit.copy(),
            "inside": self._federation.state() if self.scale is not None else None,
        }

    def restore(self, state: State) -> None:
        """Become the saved federation, if this one has learnt nothing yet. Raises `InvalidState`."""
        saved = StateReader(state, STATE_VERSION, width=self.width)
        held = saved.read_floats("held", (None, self.width), gaps=True)
        names = state.get("held_names")
        saved.check(
            isinstance(names, list) and all(isinstance(name, str) for name in names),
            "held_names has no names",
        )
        assert isinstance(names, list)
        saved.check(
            len(names) == len(held) < SCALE_ROWS,
            "held and held_names do not agree, or have too many rows",
        )
        inside = state.get("inside")
        saved.check(
            (inside is None) == (state.get("unit") is None),
            "rows were learnt and there is no scale",
        )
        saved.check(inside is None or not len(held), "rows are held though the scale is decided")
        if inside is not None:
            saved.check(isinstance(inside, Mapping), "inside must be a mapping")
            scale = Scale(
                saved.read_floats("origin", (self.width,)), saved.read_floats("unit", (self.width,))
            )
            saved.check(bool((scale.unit > 0).all()), "a unit is not above 0")
            self._federation.restore(inside)
            self.scale = scale
        self._held = held
        self._held_names = np.array(names, dtype=np.str_)
