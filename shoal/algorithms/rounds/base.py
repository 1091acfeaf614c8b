"""The contract of the family in rounds: a call goes down, answers come up, what they add up to is the next call.

An algorithm of this family is a handful of pure functions over named arrays. Everything a client needs to answer
is in the parameters of the call, the choices among variants too, so a client has no state per model to lose. The
functions open nothing, remember nothing and draw nothing at random but from seeds that travel in the parameters.
Who is called, how long is waited, which answers count and for how much is the same for all (`shoal.algorithms.
policies`), and no algorithm knows of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.rows import MAGNITUDE_MAX, checked_rows
from shoal.algorithms.streaming import Arrays, ArraySpec, Rows
from shoal.algorithms.view import ClusteringView, Summary
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.distance import Floats, block_rows, nearest

Params = Arrays
"""what travels down: the model as it stands, and with it all that an answer depends on"""
Stats = Arrays
"""what travels up: one client's answer"""
Options = Mapping[str, Any]
"""of a model in the contract: true or false, a number or a text, by name"""


@dataclass(frozen=True)
class InitHint:
    """What the server knows of the rows before any client has answered."""

    low: Floats
    """(d,) of the box that holds every row"""
    high: Floats
    seed: int = 0
    """of everything an algorithm may draw at random"""
    points: Floats | None = None
    """(h, d) prototypes that another model has found, such as the cluster centres of FCAC or of k-FED"""
    weights: Floats | None = None
    """(h,) rows behind each of them; None is one each"""


@dataclass(frozen=True)
class Option:
    """A choice of one algorithm: what it is when nobody says, what it may be, and for people what that is."""

    default: bool | int | float | str
    holds: Callable[[Any], bool]
    wanted: str
    meaning: str


@dataclass(frozen=True)
class RoundsAlgorithm:
    """One algorithm of the family. All functions are pure, and none changes or keeps what it is given.

    Every `snapshot` has `centre` (c, d) and `weight` (c,), the
    mass behind each centre: what a page shows and what other models may start from.
    """

    in_rounds: ClassVar[bool] = True

    name: str
    snapshot: Mapping[str, ArraySpec]
    """the arrays that the server publishes: the parameters"""
    update: Mapping[str, ArraySpec]
    """the arrays that a client sends: its answer"""
    additive: bool
    """answer(p, A and B) = answer(p, A) + answer(p, B) to rounding: federated is pooled, and answers can be decayed"""
    one_shot: bool
    """one round is the whole algorithm; further rounds are about other rows"""
    options: Mapping[str, Option]
    start: Callable[[Options, int, InitHint], Params]
    """(options, d, hint) -> the parameters of the first call. Raises `SettingsError`"""
    answer: Callable[[Params, Rows], Stats]
    """(parameters, rows (n, d)) -> a client's answer, in bounded memory. Raises `InvalidData`"""
    combine: Callable[[Params, Sequence[Stats]], Params]
    """(parameters, answers in the order of the clients' names) -> the next parameters; the same ones for no answers or
    for answers of nobody's rows. Raises `InvalidData` for an answer that cannot be one to these parameters"""
    shift: Callable[[Params, Params], float]
    """(before, after) -> how far the model moved, in its own measure; infinite where there was none before"""
    predict: Callable[[Params, Rows], NDArray[np.int64]]
    """(parameters, rows (n, d)) -> (n,) cluster of each, -1 while there is none. Raises `InvalidData`"""
    view: Callable[[Params], ClusteringView]
    """parameters -> its clustering"""
    paper_only: bool = False
    """there to be compared with in experiments; not meant for a running federation"""

    def summary(self, params: Params) -> Summary:
        """Parameters -> the sizes of its clustering."""
        return self.view(params).summary()

    def check(self, options: Options) -> None:
        """Raises `SettingsError` when the options are not ones it takes."""
        chosen(self.name, self.options, options)


def view(params: Params) -> ClusteringView:
    """The clustering of centres and the mass behind each."""
    return ClusteringView.from_centres(params["centre"], params["weight"])


# For the client half.


def width(params: Params) -> int:
    """d of the rows that the parameters speak of."""
    return int(params["centre"].shape[1])


def blocks(rows: ArrayLike, d: int, n_centres: int) -> Iterator[Floats]:
    """rows (n, d) of any real type -> the same in blocks that fit a core's cache, checked. Raises `InvalidData`."""
    table = rows if isinstance(rows, np.ndarray) else checked_rows(rows, d)
    height = block_rows(n_centres, d)
    checked_rows(table[:1], d)
    for first in range(0, len(table), height):
        block = np.ascontiguousarray(table[first : first + height], dtype=np.float64)
        if not (block.max() <= MAGNITUDE_MAX and block.min() >= -MAGNITUDE_MAX):
            # Says which row, and that nothing was learnt.
            checked_rows(table, d)
        yield block


def number(params: Params, name: str, above: float = -math.inf) -> float:
    """A setting that travels as an array of one. Raises `InvalidData`."""
    value = float(params[name][0]) if params[name].shape == (1,) else math.nan
    if not above < value < math.inf:
        raise InvalidData(f"parameter {name} must be one finite number above {above}; the call is damaged")
    return value


def whole(params: Params, name: str, least: int, most: int = 2**53) -> int:
    """A whole setting that travels as an array of one. Raises `InvalidData`."""
    value = int(params[name][0]) if params[name].shape == (1,) else least - 1
    if not least <= value <= most:
        raise InvalidData(f"parameter {name} must be one whole number, {least} to {most}; the call is damaged")
    return value


def by_block(
    rows: ArrayLike, d: int, n_centres: int, label: Callable[[Floats], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """rows (n, d) -> (n,) what `label` says of them, block by block. Raises `InvalidData`."""
    found = [label(block) for block in blocks(rows, d, n_centres)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def nearest_centre(params: Params, rows: Rows) -> NDArray[np.int64]:
    """rows (n, d) -> (n,) the nearest centre, -1 while there is none. Raises `InvalidData`."""
    k, d = params["centre"].shape
    if not k:
        return by_block(rows, d, 1, lambda block: np.full(len(block), -1, dtype=np.int64))
    return by_block(rows, d, k, lambda block: nearest(block, params["centre"])[0])


# For the server half.


def total(params: Params, table: Mapping[str, ArraySpec], answers: Sequence[Stats]) -> Stats | None:
    """The sum of additive answers, one after the other; None when there are none. Raises `InvalidData`."""
    if not answers:
        return None
    check_answer(table, answers[0], width(params))
    sums = {name: np.array(answers[0][name]) for name in table}
    forms = [(name, array.dtype, array.shape) for name, array in sums.items()]
    with np.errstate(over="ignore", invalid="ignore"):
        for answer in answers[1:]:
            for name, dtype, shape in forms:
                array = answer.get(name)
                if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
                    check_answer(table, answer, width(params))
                    raise InvalidData("answers of unequal shapes: they are not answers to the same call")
                sums[name] += array
    # What is not finite in one answer is not finite in the sum.
    check_answer(table, sums, width(params))
    return sums


def check_answer(table: Mapping[str, ArraySpec], answer: Stats, d: int) -> None:
    """Raises `InvalidData` unless the answer has the declared form: names, types, shapes, finite numbers."""
    if set(answer) != set(table):
        raise InvalidData(
            f"an answer consists of {', '.join(table)}; this one has {', '.join(sorted(answer)) or 'none'}"
        )
    sizes = {"d": d}
    for name, spec in table.items():
        array = answer[name]
        fits = isinstance(array, np.ndarray) and array.dtype == np.dtype(spec.dtype) and array.ndim == len(spec.shape)
        if not fits or not all(
            size == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size))
            for size, wanted in zip(array.shape, spec.shape, strict=True)
        ):
            raise InvalidData(f"{name} in an answer must be {spec.dtype} of shape {spec.shape}")
        if not np.isfinite(array).all():
            raise InvalidData(f"{name} in an answer holds numbers that are not finite")


def require(holds: bool | np.bool_, otherwise: str) -> None:
    """Raises `InvalidData` for an answer that cannot be true."""
    if not holds:
        raise InvalidData(f"an answer that cannot be true: {otherwise}")


def one(value: float) -> Floats:
    """A number as it travels."""
    return np.array([value], dtype=np.float64)


def one_whole(value: int) -> NDArray[np.int64]:
    """A whole number as it travels."""
    return np.array([value], dtype=np.int64)


# Options.


def chosen(algorithm: str, table: Mapping[str, Option], options: Options) -> dict[str, Any]:
    """The options with the defaults filled in. Raises `SettingsError`, naming the option and its range."""
    for name, value in options.items():
        if name not in table:
            raise SettingsError(f"{algorithm} has no option {name!r}; it has {', '.join(table)}")
        if not table[name].holds(value):
            raise SettingsError(f"{algorithm} option {name} = {value!r}, must be {table[name].wanted}")
    return {name: options.get(name, option.default) for name, option in table.items()}


def is_whole(value: object, least: int = 1, most: int = 2**53) -> bool:
    """Whether a setting is a whole number in the range; a truth value is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, above: float, most: float = math.inf) -> bool:
    """Whether a setting is a finite number in the range; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return above < float(value) <= most and float(value) < math.inf


CLUSTERS_MAX: Final = 10_000
CLUSTERS = Option(
    "auto",
    lambda value: value == "auto" or is_whole(value, 1, CLUSTERS_MAX),
    f'a whole number, 1 to {CLUSTERS_MAX}, or "auto"',
    'how many to look for; "auto": as many as the model it starts from has found',
)


def choice(names: Sequence[str], meaning: str) -> Option:
    """One of some names, by default the first; it travels as its place among them."""
    return Option(names[0], lambda value: value in names, " or ".join(f'"{name}"' for name in names), meaning)
