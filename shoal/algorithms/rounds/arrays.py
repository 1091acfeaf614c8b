"""Functions of all algorithms in rounds: reading parameters, going through rows in blocks, and
adding up answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.streaming import MAGNITUDE_MAX, Arrays, ArraySpec, Rows, check_rows
from shoal.algorithms.view import ClusteringView, NearestPoint
from shoal.errors import InvalidData
from shoal.kernels.arrays import AnyArray, Floats, Ints, all_finite
from shoal.kernels.constants import COUNT_MAX
from shoal.kernels.distance import block_rows, nearest

Params = Arrays
"""the arrays that the server publishes: the model, and everything else that an answer depends on"""
Stats = Arrays
"""the arrays that a client answers with: statistics of its rows"""

FLOAT: Final = ArraySpec("<f8", (1,))
"""one number"""
INT: Final = ArraySpec("<i8", (1,))
"""one whole number"""
CENTRES: Final = {
    "centre": ArraySpec("<f8", ("k", "d"), rowlike=True),
    "weight": ArraySpec("<f8", ("k",)),
}
"""the parameters that every algorithm has: k centres, and the mass of the rows assigned to each"""
SOME_CENTRES: Final = {
    **CENTRES,
    "centre": ArraySpec("<f8", ("k", "d"), rowlike=True, not_empty=True),
}
"""`CENTRES` of algorithms whose clients assign rows to the centres"""

# Parameters.


def n_features(params: Params) -> int:
    """d of the rows that the parameters are for."""
    return int(params["centre"].shape[1])


def require_centres(params: Params, name: str = "centre") -> None:
    """Raises `InvalidData` unless there is a centre to which rows can be assigned; kernels do not
    look."""
    if not len(params[name]):
        raise InvalidData(
            f"parameter {name} must hold one row at least; the round request is damaged"
        )


def read_float(params: Params, name: str, above: float = -math.inf) -> float:
    """A number that travels as an array of one. Raises `InvalidData` unless it is finite and above
    `above`."""
    array = params[name]
    if array.shape != (1,) or not above < array[0] < math.inf:
        raise InvalidData(
            f"parameter {name} must be one finite number above {above}; "
            "the round request is damaged"
        )
    return float(array[0])


def read_int(params: Params, name: str, least: int, most: int = COUNT_MAX) -> int:
    """A whole number that travels as an array of one. Raises `InvalidData` unless it is from
    `least` to `most`."""
    array = params[name]
    if array.shape != (1,) or not least <= array[0] <= most:
        raise InvalidData(
            f"parameter {name} must be one whole number, {least} to {most}; "
            "the round request is damaged"
        )
    return int(array[0])


def read_choice(params: Params, name: str, names: Sequence[str]) -> str:
    """One of `names`, which travels as its position in them. Raises `InvalidData`."""
    return names[read_int(params, name, 0, len(names) - 1)]


def float_array(value: float) -> Floats:
    """A number as an array of one, the form in which it travels."""
    return np.array([value], dtype=np.float64)


def int_array(value: int) -> Ints:
    """A whole number as an array of one, the form in which it travels."""
    return np.array([value], dtype=np.int64)


def choice_array(value: str, names: Sequence[str]) -> Ints:
    """One of `names` as its position in them, an array of one, the form in which it travels."""
    return int_array(names.index(value))


def centre_shift(before: Params, after: Params) -> float:
    """The Frobenius norm of the movement of the centres (k, d), each compared with the one in the
    same position."""
    return float(np.linalg.norm(after["centre"] - before["centre"]))


def centre_view(params: Params) -> ClusteringView:
    """The clustering view of parameters in which every centre is a cluster."""
    return ClusteringView.from_centres(params["centre"], params["weight"])


# Rows.


def row_blocks(rows: ArrayLike, d: int, n_centres: int, height_min: int = 1) -> Iterator[Floats]:
    """rows (n, d) of any real type -> the same rows, checked, in blocks that fit a core's cache.

    Blocks have at least `height_min` rows, except the last one. Raises `InvalidData` for rows of
    another width, or with values that are not finite.
    """
    table = rows if isinstance(rows, np.ndarray) else check_rows(rows, d)
    height = max(height_min, block_rows(n_centres, d))
    # Width and type alone, by one row: the values of all are looked at in blocks, which are in the
    # cache.
    check_rows(table[:1], d)
    for first in range(0, len(table), height):
        block = np.ascontiguousarray(table[first : first + height], dtype=np.float64)
        # Not turned round, as NaN has to fail as well.
        if not (block.max() <= MAGNITUDE_MAX and block.min() >= -MAGNITUDE_MAX):
            # Raises an error that names the row.
            check_rows(table, d)
        yield block


def weighted_blocks(
    rows: ArrayLike, d: int, n_centres: int, weights: Floats | None, height_min: int = 1
) -> Iterator[tuple[Floats, Floats | None]]:
    """`row_blocks`, each with the weights (n,) of its rows; None: all count once."""
    first = 0
    for block in row_blocks(rows, d, n_centres, height_min):
        own = None
        if weights is not None:
            own = weights[first : first + len(block)]
        yield block, own
        first += len(block)


def label_rows(rows: ArrayLike, d: int, n_centres: int, label: Callable[[Floats], Ints]) -> Ints:
    """rows (n, d) -> (n,) what `label` returns for them, block by block. Raises `InvalidData`."""
    labels = [label(block) for block in row_blocks(rows, d, n_centres)]
    if labels:
        return np.concatenate(labels)
    return np.empty(0, dtype=np.int64)


def nearest_centre(params: Params, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) position of the nearest centre, -1 when there is none. Raises
    `InvalidData`."""
    k, d = params["centre"].shape
    if not k:
        return label_rows(rows, d, 1, lambda block: np.full(len(block), -1, dtype=np.int64))
    return label_rows(rows, d, k, lambda block: nearest(block, params["centre"])[0])


def nearest_centre_predictor(params: Params) -> NearestPoint:
    """`nearest_centre` as plain data."""
    return NearestPoint(params["centre"], np.arange(len(params["centre"])))


# Answers.


def sum_answers(
    params: Params, table: Mapping[str, ArraySpec], answers: Sequence[Stats]
) -> Stats | None:
    """The sum of additive answers, in their order; None without answers. Raises `InvalidData`."""
    if not answers:
        return None
    check_answer(table, answers[0], n_features(params))
    sums = {name: np.array(answers[0][name]) for name in table}
    if len(answers) == 1:
        return sums
    # The forms are compared with those of the first answer, which has been checked: checking each
    # answer against the table takes longer than adding it up.
    forms = [(name, array.dtype, array.shape) for name, array in sums.items()]
    # Sums may overflow to infinity, which the check below refuses.
    with np.errstate(over="ignore", invalid="ignore"):
        for answer in answers[1:]:
            for name, dtype, shape in forms:
                array = answer.get(name)
                if (
                    not isinstance(array, np.ndarray)
                    or array.dtype != dtype
                    or array.shape != shape
                ):
                    check_answer(table, answer, n_features(params))
                    raise InvalidData(
                        "answers of unequal shapes cannot be answers to the same round request"
                    )
                sums[name] += array
    # A value that is not finite in one answer is not finite in the sum.
    check_answer(table, sums, n_features(params))
    return sums


def check_answer(table: Mapping[str, ArraySpec], answer: Stats, d: int) -> None:
    """Raises `InvalidData` unless the answer has the declared names, types and shapes, and finite
    values."""
    if answer.keys() != table.keys():
        present = ", ".join(sorted(answer)) or "none"
        raise InvalidData(f"an answer consists of {', '.join(table)}; this one has {present}")
    sizes = {"d": d}
    for name, spec in table.items():
        array = answer[name]
        if not _fits(array, spec, sizes):
            raise InvalidData(f"{name} in an answer must be {spec.dtype} of shape {spec.shape}")
        if not all_finite(array):
            raise InvalidData(f"{name} in an answer holds numbers that are not finite")


def _fits(array: object, spec: ArraySpec, sizes: dict[str, int]) -> bool:
    """Whether an array has the declared type and shape.

    `sizes` has the lengths that the letters of shapes stand for; those met first here are added, so
    that later arrays of the same answer must have the same ones.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(spec.dtype):
        return False
    if array.ndim != len(spec.shape):
        return False
    for length, declared in zip(array.shape, spec.shape, strict=True):
        expected = declared if isinstance(declared, int) else sizes.setdefault(declared, length)
        if length != expected:
            return False
    return True


def check_shape(array: AnyArray, published: AnyArray, what: str) -> None:
    """Raises `InvalidData` unless an array of an answer has the shape of the published one that it
    belongs to."""
    reject_unless(array.shape == published.shape, f"another {what} than the round request has")


def reject_unless(possible: bool | np.bool_, problem: str) -> None:
    """Raises `InvalidData` for an answer that no rows can have."""
    if not possible:
        raise InvalidData(f"impossible answer: {problem}")
