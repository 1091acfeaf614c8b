"""What travels between both halves of `states` in a federation: what a client has of each of its
states, as sums, and the states that several clients share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.algorithms.claims import Claims, check_moments, check_sums, require_possible
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.errors import InvalidData
from shoal.kernels.arrays import AnyArray, Ints
from shoal.kernels.constants import COUNT_MAX

STATES_MAX: Final = 32
"""states of a client that are published, those with the most readings"""
HEADER_FIELDS: Final = 5
SPARE_READINGS: Final = 2
"""readings that an update may count besides its own: those of a client that had too few before"""

UPDATE: Final = {
    "header": ArraySpec("<i8", ("h",)),
    "state": ArraySpec("<i8", ("k",)),
    "count": ArraySpec("<i8", ("k",), at_least_one=True),
    "total": ArraySpec("<f8", ("k", "d")),
    "square": ArraySpec("<f8", ("k", "d")),
    "step": ArraySpec("<f8", ("k", "d")),
    "change": ArraySpec("<i8", ("k", "k")),
    "dwells": ArraySpec("<i8", ("k", 2)),
}
"""an update: its head (`Header`), and of each state of the client, as of its last evaluation: its
number there, readings, sums of them, of their squares, and of squared differences of successive
ones; changes from each to each other one; and ended dwells, their number and their readings. An
update has all of it, and takes the place of the client's update before"""

SNAPSHOT: Final = {
    "header": ArraySpec("<i8", (4,)),
    "identity": ArraySpec("<i8", ("c",)),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_mass": ArraySpec("<f8", ("c",)),
    "spread": ArraySpec("<f8", ("c", "d")),
    "rough": ArraySpec("<f8", ("c", "d")),
    "dwell": ArraySpec("<f8", ("c",)),
    "changes": ArraySpec("<f8", ("c", "c")),
    "recent": ArraySpec("<f8", ("c",)),
    "parent": ArraySpec("<i8", ("c",)),
    "clients": ArraySpec("<i8", ("c",)),
    "owner": ArraySpec("<i8", ("m",)),
    "owned": ArraySpec("<i8", ("m",)),
    "owned_by": ArraySpec("<i8", ("m",), points_into="c"),
    "gone": ArraySpec("<i8", ("g",)),
    "gone_into": ArraySpec("<i8", ("g",), points_into="c"),
}
"""`header`: readings of the windows by which states are told apart (0: one state), changes seen,
whether any client has looked for states, and whether fewer changes were seen than are relied on.
Of each state: identity, mean reading, readings, standard deviation, log roughness less log
deviation, mean dwell in readings (0: not known), changes to each other one, recent readings, the
identity that it parted from (-1: none), and clients that have it. `owner`, `owned`, `owned_by`: the
number by which a client knows its update, one of its states, and the position of the state that
this is. `gone`, `gone_into`: an identity that no client has any more, and the position of the state
that it went into"""


@dataclass(frozen=True)
class Header:
    """What an update is of."""

    token: int
    """the number by which the client finds its states in a snapshot"""
    width: int
    """columns d"""
    new: int
    """readings since the update before"""
    window: int
    """readings by which states are told apart; 0 while there is one"""
    evaluated: bool
    """whether states were looked for"""

    def packed(self) -> Ints:
        """The array `header` of it."""
        numbers = [self.token, self.width, self.new, self.window, int(self.evaluated)]
        return np.array(numbers, dtype=np.int64)

    @classmethod
    def of(cls, arrays: Arrays) -> Header:
        """Raises `InvalidData`."""
        header = arrays["header"]
        _require(header.shape == (HEADER_FIELDS,) and (header >= 0).all(), "header")
        token, width, new, window, evaluated = header.tolist()
        _require(width >= 1 and evaluated in (0, 1), "header")
        return cls(token, width, new, window, bool(evaluated))


def _require(holds: bool | np.bool_, name: str) -> None:
    if not holds:
        raise InvalidData(f"{name} is not that of an update or snapshot of states")


def empty_update(width: int) -> dict[str, AnyArray]:
    """The update of a client of rows of this width that has nothing to publish."""
    arrays = {}
    for name, spec in UPDATE.items():
        named = {"d": width}
        sizes = [size if isinstance(size, int) else named.get(size, 0) for size in spec.shape]
        arrays[name] = np.empty(sizes, spec.dtype)
    return arrays


def check_update(arrays: Arrays) -> Header | None:
    """The head of an update whose arrays fit together; None for an empty one. Raises
    `InvalidData`."""
    for name in UPDATE:
        _require(name in arrays and isinstance(arrays[name], np.ndarray), name)
    if not any(len(arrays[name]) for name in UPDATE):
        return None
    header = Header.of(arrays)
    state = arrays["state"]
    k = len(state)
    _require(state.shape == (k,) and 1 <= k <= STATES_MAX and (state >= 0).all(), "state")
    _require(len(np.unique(state)) == k, "state")
    _require(arrays["count"].shape == (k,) and (arrays["count"] >= 1).all(), "count")
    _require(arrays["count"].sum(dtype=np.float64) <= COUNT_MAX, "count")
    for name in ("total", "square", "step"):
        _require(arrays[name].shape == (k, header.width), name)
        _require(np.isfinite(arrays[name]).all(), name)
    _require((arrays["square"] >= 0).all() and (arrays["step"] >= 0).all(), "square")
    for name, shape in (("change", (k, k)), ("dwells", (k, 2))):
        _require(arrays[name].shape == shape and (arrays[name] >= 0).all(), name)
    return header


def check_possible(arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for an update that no client makes from readings in the box of the
    claims."""
    header = check_update(arrays)
    if header is None:
        return
    require_possible(
        header.width == len(claims.low),
        "its rows have another number of features than the contract",
    )
    require_possible(
        header.new <= claims.readings + SPARE_READINGS, "header has more than its readings"
    )
    count = arrays["count"].astype(np.float64)
    check_sums("total", count, arrays["total"], claims)
    check_moments(count, arrays["total"], arrays["square"], claims)
    most = count[:, None] * claims.span**2 * (1 + 1e-9)
    require_possible(bool((arrays["step"] <= most).all()), "step has differences that no rows have")
    changes = float(arrays["change"].sum(dtype=np.float64))
    require_possible(changes <= count.sum(), "change has more changes than readings")
    dwells = arrays["dwells"].astype(np.float64)
    require_possible(
        bool((dwells[:, 0] <= dwells[:, 1]).all() and (dwells[:, 1] <= count).all()),
        "dwells are longer than their readings",
    )
