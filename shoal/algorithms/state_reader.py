"""Reading a saved state: every value is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.algorithms.streaming import ArraySpec
from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints
from shoal.kernels.constants import COUNT_MAX


class StateReader:
    """A saved state and the checks of its entries. Every method raises `InvalidState`, which names
    the entry."""

    def __init__(self, state: Mapping[str, Any], version: int, **identity: Any) -> None:
        """`identity`: entries that must have exactly these values, such as the algorithm and its
        options."""
        if not isinstance(state, Mapping):
            raise InvalidState(f"a saved state is a mapping, this is a {type(state).__name__}")
        self._state = state
        if self._entry("version") != version:
            raise InvalidState(
                f"saved by version {state['version']!r} of this state, this is version {version}"
            )
        for name, expected in identity.items():
            if self._entry(name) != expected:
                raise InvalidState(f"saved with {name} {state[name]!r}, this is {expected!r}")

    def read_int(self, name: str, least: int = 0) -> int:
        value = self._entry(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= COUNT_MAX:
            raise InvalidState(f"{name} must be a whole number from {least} to {COUNT_MAX}")
        return value

    def read_optional_int(self, name: str, least: int = 0) -> int | None:
        if self._entry(name) is None:
            return None
        return self.read_int(name, least)

    def read_optional_positive(self, name: str) -> float | None:
        if self._entry(name) is None:
            return None
        return self.read_float(name, above=0.0)

    def read_float(self, name: str, above: float = -math.inf) -> float:
        value = self._entry(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not above < value < math.inf
        ):
            raise InvalidState(f"{name} must be a finite number above {above}")
        return float(value)

    def read_floats(self, name: str, shape: tuple[int | None, ...], gaps: bool = False) -> Floats:
        """A finite float64 array, with `gaps` NaN for missing values; None in `shape` is any size.
        A copy."""
        array = self._array(name, np.dtype(np.float64), shape)
        if not (np.isfinite(array) | (np.isnan(array) & gaps)).all():
            raise InvalidState(f"{name} holds numbers that are not finite")
        return array

    def read_ints(self, name: str, shape: tuple[int | None, ...], least: int = 0) -> Ints:
        """An int64 array with no value below `least`. A copy."""
        array = self._array(name, np.dtype(np.int64), shape)
        self.check(bool((array >= least).all()), f"{name} holds numbers below {least}")
        return array

    def read_arrays(self, name: str, table: Mapping[str, ArraySpec], d: int) -> dict[str, AnyArray]:
        """The arrays of a table, for d features. Copies.

        They have the declared names, types and shapes, finite values, and positions that exist.
        """
        arrays = self._entry(name)
        if not isinstance(arrays, Mapping) or arrays.keys() != table.keys():
            raise InvalidState(f"{name} must consist of {', '.join(table)}")
        found = {}
        sizes = {"d": d}
        for array_name, spec in table.items():
            shape = tuple(size if isinstance(size, int) else sizes.get(size) for size in spec.shape)
            array = found[array_name] = _checked(
                array_name, arrays[array_name], np.dtype(spec.dtype), shape
            )
            # The first array with a size decides it; the others must agree.
            sizes |= {
                size: n
                for size, n in zip(spec.shape, array.shape, strict=True)
                if isinstance(size, str)
            }
            if not np.isfinite(array).all():
                raise InvalidState(f"{array_name} holds numbers that are not finite")
            if spec.not_empty and not len(array):
                raise InvalidState(f"{array_name} is empty")
        for array_name, spec in table.items():
            # Only now are all sizes known: an array may point into one that comes after it.
            if (
                spec.points_into
                and ((found[array_name] < 0) | (found[array_name] >= sizes[spec.points_into])).any()
            ):
                raise InvalidState(f"{array_name} holds a position that does not exist")
        return found

    def read_named_floats(self, name: str) -> dict[str, Floats]:
        """Finite float64 arrays by name, of any shapes. Copies."""
        arrays = self._entry(name)
        if not isinstance(arrays, Mapping):
            raise InvalidState(f"{name} must consist of arrays")
        found = {}
        for array_name, array in arrays.items():
            if (
                not isinstance(array, np.ndarray)
                or array.dtype != np.float64
                or not np.isfinite(array).all()
            ):
                raise InvalidState(f"{array_name} must be an array of finite numbers")
            found[str(array_name)] = array.copy()
        return found

    def read_names(self, name: str) -> list[str]:
        value = self._entry(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise InvalidState(f"{name} must be a list of names")
        return list(value)

    def read_part(self, name: str) -> Any:
        """An entry that another state reads."""
        return self._entry(name)

    def check(self, holds: bool, problem: str) -> None:
        if not holds:
            raise InvalidState(f"saved state contradicts itself: {problem}")

    def _array(self, name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> AnyArray:
        return _checked(name, self._entry(name), dtype, shape)

    def _entry(self, name: str) -> Any:
        if name not in self._state:
            raise InvalidState(f"saved state lacks {name}")
        return self._state[name]


def _checked(
    name: str, array: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> AnyArray:
    """A copy of an array, which must have this type and shape; None in `shape` is any size. Raises
    `InvalidState`."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise InvalidState(f"{name} must be an array of {dtype}")
    if array.ndim != len(shape) or any(
        b not in (None, a) for a, b in zip(array.shape, shape, strict=True)
    ):
        raise InvalidState(f"{name} has shape {array.shape}, expected {shape}")
    return array.copy()
