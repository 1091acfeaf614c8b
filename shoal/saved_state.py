"""Saved state, declared as types: a field says what it may hold, and one place checks all fields.

A part of a process that survives a restart declares what it saves as a type with fields, which are
given by name and do not change:

    @state_type
    class NodesState(SavedState):
        version: ClassVar[int] = 3

        readings: int                                       # a whole number from 0
        width: Annotated[int | None, Whole(least=1, size="d")]  # and the size "d" of arrays below
        last_sigma: Annotated[float | None, Number(above=0.0)]
        started: bool
        weight: Annotated[Floats, FloatArray("k", "d")]     # finite; equal names are equal sizes
        count: Annotated[Ints, IntArray("k", least=1)]
        snapshot: Annotated[Arrays, Table(SNAPSHOT)]        # as an algorithm declares them
        clients: list[str]
        edges: EdgesState                                   # another SavedState, nested
        half: Annotated[State, Opaque()]                    # read by the half that saved it

        def check(self) -> None:
            require(len(set(self.count)) == len(self.count), "two nodes have the same count")

`NodesState(...).saved(half="CAEFC")` gives the plain values and copies of arrays that a checkpoint
stores, with the version and what else must agree at the next start. `NodesState.read(state,
half="CAEFC")` compares these, reads each field, and calls `check`, which has the rules between
fields. Both raise nothing but `InvalidState`, with the name of the entry.

The fields that a type can declare are whole numbers, finite numbers, truth values, texts, bytes,
other states, lists (`list[...]`) and mappings by text (`dict[str, ...]`) of these, arrays, and
`None` beside each. Fields of a base class come before those of the class. A frozen dataclass can be
a saved state as well, where its instances are made by position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray
from shoal.kernels.constants import COUNT_MAX

Sizes = dict[str, int]
"""sizes of arrays by name, those that were given and those of the fields read so far"""


class SavedState:
    """Base of the types of saved states; see the module."""

    version: ClassVar[int | None] = None
    """None: the state is a part of one that has a version"""

    def __init__(self, **values: Any) -> None:
        """Raises `TypeError` where a field lacks its value, and for other names."""
        kind: Any = type(self)
        names = _names_of(kind)
        # Nearly always they are all there, and in their order: each step makes many of these.
        if tuple(values) == names:
            self.__dict__.update(values)
            return
        for name in names:
            if name not in values:
                raise TypeError(f"{kind.__name__} needs a value of {name}")
            self.__dict__[name] = values[name]
        if len(values) > len(names):
            unknown = ", ".join(sorted(values.keys() - set(names)))
            raise TypeError(f"{kind.__name__} has no fields {unknown}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def saved(self, **identity: Any) -> dict[str, Any]:
        """Plain values, and copies of arrays; with `identity`, which `read` compares."""
        entries = identity if self.version is None else {"version": self.version, **identity}
        # These are the fields in their order, and nothing else.
        entries.update(self.__dict__)
        kind: Any = type(self)
        for name, copied in _copies_of(kind):
            value = entries[name]
            if value is not None:
                entries[name] = copied(value)
        return entries

    @classmethod
    def read(cls, state: Any, sizes: Mapping[str, int] | None = None, /, **identity: Any) -> Self:
        """The state that `saved` gave, with copies of its arrays.

        `sizes` are those that the reader knows, such as the number of features "d". Entries named
        in `identity` must have exactly these values, such as the options of an algorithm.
        Raises `InvalidState`.
        """
        if not isinstance(state, Mapping):
            raise InvalidState(f"a saved state is a mapping, this is a {type(state).__name__}")
        if cls.version is not None and _entry(state, "version") != cls.version:
            raise InvalidState(
                f"saved by version {state['version']!r} of this state, this is version"
                f" {cls.version}"
            )
        for name, expected in identity.items():
            if _entry(state, name) != expected:
                raise InvalidState(f"saved with {name} {state[name]!r}, this is {expected!r}")
        known: Sizes = dict(sizes or {})
        values = {}
        kind: Any = cls
        for name, rule in _rules_of(kind).items():
            values[name] = rule.read(name, _entry(state, name), known)
        restored = cls(**values)
        restored.check()
        return restored

    def check(self) -> None:
        """Raises `InvalidState` where fields contradict each other; call `require` for each."""


Kind = TypeVar("Kind", bound=SavedState)


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def state_type(kind: type[Kind]) -> type[Kind]:
    """Declares the fields of a class of saved states, which have no defaults.

    `dataclass` would write five functions for each class, which take three quarters of its memory:
    a quarter of a megabyte in a small client. Those of `SavedState` serve all classes. States have
    arrays, so they are not compared as a whole.
    """
    return dataclass(init=False, repr=False, eq=False, match_args=False)(kind)


def require(holds: bool, problem: str) -> None:
    """Raises `InvalidState` with the problem where a rule between fields does not hold."""
    if not holds:
        raise InvalidState(f"saved state contradicts itself: {problem}")


class Rule(Protocol):
    """What a field may hold."""

    def read(self, name: str, value: Any, sizes: Sizes) -> Any:
        """The value of the entry `name`; an array as a copy. Raises `InvalidState`."""
        ...


class Whole(NamedTuple):
    """A whole number from `least` to `COUNT_MAX`."""

    least: int = 0
    size: str | None = None
    """name of a size of arrays that this number decides; None decides 0"""

    def read(self, name: str, value: Any, sizes: Sizes) -> int | None:
        # True and False are whole numbers to Python, and no count to us.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not self.least <= value <= COUNT_MAX:
            raise InvalidState(f"{name} must be a whole number from {self.least} to {COUNT_MAX}")
        if self.size is not None:
            self.decide(name, value, sizes)
        return int(value)

    def decide(self, name: str, value: int, sizes: Sizes) -> None:
        """Set the size, which must not have another value already."""
        assert self.size is not None
        expected = sizes.setdefault(self.size, value)
        if expected != value:
            raise InvalidState(f"saved with {name} {value}, this is {expected}")


class Number(NamedTuple):
    """A finite number, at least `least` and above `above`."""

    least: float = -math.inf
    above: float = -math.inf

    def read(self, name: str, value: Any, sizes: Sizes) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Put so that NaN, which compares to nothing, is refused.
        if not is_number or not self.above < value < math.inf:
            raise InvalidState(f"{name} must be a finite number above {self.above}")
        if value < self.least:
            raise InvalidState(f"{name} must be a finite number from {self.least}")
        return float(value)


class FloatArray:
    """An array of float64 with these sizes, which are numbers or names."""

    def __init__(self, *shape: int | str, gaps: bool = False) -> None:
        """`gaps`: whether NaN stands for missing values; else all numbers are finite."""
        self.shape = shape
        self.gaps = gaps

    def read(self, name: str, value: Any, sizes: Sizes) -> AnyArray:
        array = _read_array(name, value, np.dtype(np.float64), self.shape, sizes)
        if not (np.isfinite(array) | (np.isnan(array) & self.gaps)).all():
            raise InvalidState(f"{name} holds numbers that are not finite")
        return array


class IntArray:
    """An array of int64, or of another type of whole numbers, with these sizes."""

    def __init__(self, *shape: int | str, least: int = 0, dtype: str = "int64") -> None:
        self.shape = shape
        self.least = least
        self.dtype = dtype

    def read(self, name: str, value: Any, sizes: Sizes) -> AnyArray:
        array = _read_array(name, value, np.dtype(self.dtype), self.shape, sizes)
        if not (array >= self.least).all():
            raise InvalidState(f"{name} holds numbers below {self.least}")
        return array


class BoolArray:
    """An array of truth values with these sizes."""

    def __init__(self, *shape: int | str) -> None:
        self.shape = shape

    def read(self, name: str, value: Any, sizes: Sizes) -> AnyArray:
        return _read_array(name, value, np.dtype(np.bool_), self.shape, sizes)


class Opaque:
    """The state of a part that alone can read it, such as a half of an algorithm known by name."""

    def read(self, name: str, value: Any, sizes: Sizes) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidState(f"{name} must be a saved state")
        return dict(value)


class ArrayForm(Protocol):
    """What `Table` needs of the declared form of an array: see `streaming.ArraySpec`."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str, ...]: ...
    @property
    def not_empty(self) -> bool: ...
    @property
    def points_into(self) -> str | None: ...


class Table(NamedTuple):
    """The arrays that a table declares: all of them, finite, with positions that exist."""

    forms: Mapping[str, ArrayForm]

    def read(self, name: str, value: Any, sizes: Sizes) -> dict[str, AnyArray]:
        if not isinstance(value, Mapping) or value.keys() != self.forms.keys():
            raise InvalidState(f"{name} must consist of {', '.join(self.forms)}")
        # The sizes of one table are its own: "k" of a snapshot is not "k" of what made it. "d" is
        # the number of features everywhere.
        own: Sizes = {"d": sizes["d"]} if "d" in sizes else {}
        arrays: dict[str, AnyArray] = {}
        for array_name, form in self.forms.items():
            dtype = np.dtype(form.dtype)
            array = _read_array(array_name, value[array_name], dtype, form.shape, own)
            if not np.isfinite(array).all():
                raise InvalidState(f"{array_name} holds numbers that are not finite")
            if form.not_empty and not len(array):
                raise InvalidState(f"{array_name} is empty")
            arrays[array_name] = array
        # Only now are all sizes known: an array may point into one that comes after it.
        for array_name, form in self.forms.items():
            if form.points_into is None:
                continue
            positions = arrays[array_name]
            if ((positions < 0) | (positions >= own[form.points_into])).any():
                raise InvalidState(f"{array_name} holds a position that does not exist")
        return arrays


class NamedFloats:
    """Arrays of finite float64 by name, of any names and shapes."""

    def read(self, name: str, value: Any, sizes: Sizes) -> dict[str, AnyArray]:
        if not isinstance(value, Mapping):
            raise InvalidState(f"{name} must consist of arrays")
        arrays = {}
        for array_name, array in value.items():
            is_float = isinstance(array, np.ndarray) and array.dtype == np.float64
            if not is_float or not np.isfinite(array).all():
                raise InvalidState(f"{array_name} must be an array of finite numbers")
            arrays[str(array_name)] = array.copy()
        return arrays


class NamedArrays:
    """Arrays of finite numbers by name, of any names, types and shapes."""

    def read(self, name: str, value: Any, sizes: Sizes) -> dict[str, AnyArray]:
        if not isinstance(value, Mapping):
            raise InvalidState(f"{name} must consist of arrays")
        arrays = {}
        for array_name, array in value.items():
            is_numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
            if not is_numbers or not np.isfinite(array).all():
                raise InvalidState(f"{array_name} must be an array of finite numbers")
            arrays[str(array_name)] = array.copy()
        return arrays


# What annotations without a rule mean.


class _Instance(NamedTuple):
    """A value of exactly one plain type: a truth value, a text or bytes."""

    kind: type
    noun: str

    def read(self, name: str, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, self.kind):
            raise InvalidState(f"{name} must be {self.noun}")
        return value


class _Optional(NamedTuple):
    rule: Rule

    def read(self, name: str, value: Any, sizes: Sizes) -> Any:
        if value is not None:
            return self.rule.read(name, value, sizes)
        if isinstance(self.rule, Whole) and self.rule.size is not None:
            self.rule.decide(name, 0, sizes)
        return None


class _Part(NamedTuple):
    kind: type[SavedState]

    def read(self, name: str, value: Any, sizes: Sizes) -> SavedState:
        if not isinstance(value, Mapping):
            raise InvalidState(f"{name} must be a saved state")
        # A part knows the sizes above it; those that it decides are its own.
        return self.kind.read(value, sizes)


class _List(NamedTuple):
    rule: Rule

    def read(self, name: str, value: Any, sizes: Sizes) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidState(f"{name} must be a list")
        return [self.rule.read(f"an entry of {name}", entry, sizes) for entry in value]


class _Dict(NamedTuple):
    rule: Rule

    def read(self, name: str, value: Any, sizes: Sizes) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidState(f"{name} must be a mapping by text")
        return {
            key: self.rule.read(f"{key!r} of {name}", entry, sizes) for key, entry in value.items()
        }


PLAIN: Final[Mapping[type, Rule]] = {
    int: Whole(),
    float: Number(),
    bool: _Instance(bool, "true or false"),
    str: _Instance(str, "a text"),
    bytes: _Instance(bytes, "bytes"),
}
"""rules of annotations that name a plain type alone"""
UNCHANGING: Final = frozenset({*PLAIN, NoneType})
"""types of values that are stored as they are"""


@cache
def _rules_of(kind: Any) -> dict[str, Rule]:
    """The rule of each field of a type of saved state, in the order of the fields."""
    annotations = get_type_hints(kind, include_extras=True)
    return {field.name: _rule_of(annotations[field.name]) for field in fields(kind)}


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """The fields of a type of saved state in their order."""
    return tuple(declared.name for declared in fields(kind))


Copy = Callable[[Any], Any]
"""what makes the value of a field one that a checkpoint stores; arrays are copied, as learning goes
on"""


@cache
def _copies_of(kind: Any) -> tuple[tuple[str, Copy], ...]:
    """The fields of a type of saved state whose values are copied, and how.

    By the rules and not by the values: every step of a process saves its whole state.
    """
    copies = []
    for name, rule in _rules_of(kind).items():
        copied = _copy_by(rule)
        if copied is not None:
            copies.append((name, copied))
    return tuple(copies)


def _copy_by(rule: Rule) -> Copy | None:
    if isinstance(rule, _Optional):
        return _copy_by(rule.rule)
    if isinstance(rule, Whole | Number | _Instance):
        return None
    if isinstance(rule, FloatArray | IntArray | BoolArray):
        return np.ndarray.copy
    if isinstance(rule, _Part):
        return SavedState.saved
    return _copy_of_several(rule)


def _copy_of_several(rule: Rule) -> Copy:
    """How a list or a mapping is copied."""
    if isinstance(rule, Table | NamedFloats | NamedArrays):
        return partial(_copied_mapping, np.ndarray.copy)
    if not isinstance(rule, _List | _Dict):
        return _plain
    copied = _copy_by(rule.rule)
    if copied is None:
        return list if isinstance(rule, _List) else dict
    if isinstance(rule.rule, _Optional):
        copied = partial(_copied_unless_none, copied)
    return partial(_copied_list if isinstance(rule, _List) else _copied_mapping, copied)


def _copied_unless_none(copied: Copy, value: Any) -> Any:
    return None if value is None else copied(value)


def _copied_list(copied: Copy, values: Sequence[Any]) -> list[Any]:
    return [copied(value) for value in values]


def _copied_mapping(copied: Copy, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copied(value) for name, value in values.items()}


def _rule_of(annotation: Any) -> Rule:
    """Raises `TypeError` for an annotation that does not describe a saved value."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        rule: Rule = arguments[1]
        return _Optional(rule) if NoneType in get_args(arguments[0]) else rule
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _Optional(_rule_of(inner))
    if origin is list:
        return _List(_rule_of(arguments[0]))
    if origin is dict:
        return _Dict(_rule_of(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, SavedState):
        return _Part(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    raise TypeError(f"{annotation!r} does not describe the value of a saved state")


def _entry(state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise InvalidState(f"saved state lacks {name}")
    return state[name]


def _read_array(
    name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int | str, ...], sizes: Sizes
) -> AnyArray:
    """A copy of an array with this type and these sizes; a name without a size gets it from here.

    Raises `InvalidState`.
    """
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        raise InvalidState(f"{name} must be an array of {dtype}")
    expected: list[int | None] = []
    for size in shape:
        expected.append(size if isinstance(size, int) else sizes.get(size))
    agrees = value.ndim == len(expected) and all(
        wanted in (None, actual) for actual, wanted in zip(value.shape, expected, strict=True)
    )
    if not agrees:
        raise InvalidState(f"{name} has shape {value.shape}, expected {tuple(expected)}")
    for size, actual in zip(shape, value.shape, strict=True):
        if isinstance(size, str) and sizes.setdefault(size, actual) != actual:
            raise InvalidState(f"{name} has shape {value.shape}, but {size} is {sizes[size]}")
    # A decoded array may be a view of a message, which cannot be written to and keeps it alive.
    return value.copy()


def _plain(value: Any) -> Any:
    """A value of a field as a checkpoint stores it; arrays are copied, as learning goes on."""
    # First by the exact type, which tells at once for nearly all values: `Mapping` takes longest.
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if kind is np.ndarray:
        return value.copy()
    if isinstance(value, SavedState):
        return value.saved()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value
