"""Limits of what one client may contribute to a streaming model: its share of the recent readings,
so that it cannot displace all others alone; and how far below zero its private counts may add up,
so that it takes no readings of others away."""

from __future__ import annotations

import math
from statistics import median
from typing import Annotated, Self

import numpy as np

from shoal.algorithms.counting import net_reach
from shoal.kernels.arrays import Floats, Ints
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

CLIENT_SHARE_MAX = 0.25
"""most of the recent readings that count that one client may have"""
SHARE_MAX_OF_FEW = 0.5
"""twice its equal part, up to this, where clients are few: of three, two outweigh one"""
CLIENTS_FREE = 2
"""up to this many clients none is bound: the readings of two do not show which one displaces the
other"""
SHARE_READINGS = 4000.0
"""readings that count after which earlier ones have faded to 1/e in the shares of clients: as
`mass_max`, the memory"""
LEFT_OUT_FADE = 0.1
"""weight of a reading that does not count beside one that does: clients that are gone for long no
longer bound one that is alone"""
MEMORY_ROUNDS = 1.0
"""... or, where updates are large, after this many of every client: else equal clients would forget
each other between two updates of one"""
UPDATE_FACTOR = 8.0
UPDATE_READINGS = 2000.0
"""times the median of the others' newest updates, or four times the default of `publish_readings`
if that is more: readings that one update of a client claims beyond that do not count, nor do they
fade others; so a claim of very many readings does not make the shares forget who has sent, and a
client whose updates are larger than those of slow ones is not bound"""
HISTORY = 10.0
"""times the memory in which it is remembered what clients contribute in the long run"""
ESTABLISHED = 1.4
"""times the share that a client may have: one that has had more in the long run, because it had it
before there were others to bound it, keeps what it has"""
FORGOTTEN = 1.0
"""readings below which a client is none of those that share"""


@state_type
class ClientSharesState(SavedState):
    """The clients that share, and numbers of the readings of each."""

    client: list[str]
    readings: Annotated[Floats, FloatArray("clients")]
    newest: Annotated[Floats, FloatArray("clients")]
    history: Annotated[Floats, FloatArray("clients")]

    def check(self) -> None:
        numbers = (self.readings, self.newest, self.history)
        is_one_each = len(set(self.client)) == len(self.client) == len(self.readings)
        are_positive = all(bool((values > 0.0).all()) for values in numbers)
        require(is_one_each and are_positive, "a share is of no client")


class ClientShares:
    """Numbers of the recent readings that each client has contributed, so that one alone cannot
    displace all others'.

    One of up to `CLIENTS_FREE` is not bound, nor is one that has always had most readings. Each
    decision depends on the contributions before it alone.
    """

    def __init__(self) -> None:
        self._readings: dict[str, float] = {}
        """client -> its readings that count, faded"""
        self._newest: dict[str, float] = {}
        """client -> the readings of its newest update; the same clients"""
        self._history: dict[str, float] = {}
        """client -> its readings that count, faded more slowly; the same clients"""

    def admit(self, client: str, readings: float) -> float:
        """Count `readings` more of a client, as far as its share allows -> the part of them that
        counts, 0 to 1.

        All of an update without readings counts: an empty window is counted with noise, and that is
        to be absorbed.
        """
        if readings <= 0.0:
            return 1.0
        others = sum(mass for name, mass in self._readings.items() if name != client)
        known = len(self._readings.keys() | {client})
        own = self._readings.get(client, 0.0)
        room = math.inf
        counted = readings
        # Its own size does not count, or one that claims much would raise its own limit.
        usual = median(
            [size for name, size in self._newest.items() if name != client] or [readings]
        )
        if known > 1:
            counted = min(readings, max(UPDATE_FACTOR * usual, UPDATE_READINGS))
        if known > CLIENTS_FREE:
            share = self._share_max(client, known)
            # What it may have while the others have this much: own / (own + others) = share, solved
            # for own.
            room = share / (1.0 - share) * others - own
        taken = min(counted, max(0.0, room))
        memory = max(SHARE_READINGS, MEMORY_ROUNDS * known * usual)
        faded = (taken + LEFT_OUT_FADE * (counted - taken)) / memory
        mass = _with_more(self._readings, client, taken, math.exp(-faded))
        history = _with_more(self._history, client, taken, math.exp(-faded / HISTORY))
        self._readings = {name: share for name, share in mass.items() if share >= FORGOTTEN}
        sizes = {**self._newest, client: counted}
        self._newest = {name: sizes[name] for name in self._readings}
        self._history = {name: history[name] for name in self._readings}
        return taken / readings

    def _share_max(self, client: str, known: int) -> float:
        """The largest share that this client of `known` ones may have now, below 1."""
        share = min(SHARE_MAX_OF_FEW, max(CLIENT_SHARE_MAX, 2.0 / known))
        total = sum(self._history.values())
        history = self._history.get(client, 0.0) / total if total else 0.0
        # Half of what the others have lets its share vary.
        if history > ESTABLISHED * share:
            return 1.0 - (1.0 - history) / 2.0
        return share

    def state(self) -> ClientSharesState:
        return ClientSharesState(
            client=list(self._readings),
            readings=np.array(list(self._readings.values()), dtype=np.float64),
            newest=np.array(list(self._newest.values()), dtype=np.float64),
            history=np.array(list(self._history.values()), dtype=np.float64),
        )

    @classmethod
    def restored(cls, saved: ClientSharesState) -> Self:
        """The shares of a saved state."""
        shares = cls()
        shares._readings = dict(zip(saved.client, saved.readings.tolist(), strict=True))
        shares._newest = dict(zip(saved.client, saved.newest.tolist(), strict=True))
        shares._history = dict(zip(saved.client, saved.history.tolist(), strict=True))
        return shares


@state_type
class ClientDeficitsState(SavedState):
    """Sums below zero, one for each client and part of the space that has one."""

    client: list[str]
    part: Annotated[Ints, IntArray("sums")]
    sum: Annotated[Floats, FloatArray("sums")]
    draws: Annotated[Ints, IntArray("sums")]

    def check(self) -> None:
        keys = set(zip(self.client, self.part.tolist(), strict=False))
        is_one_each = len(keys) == len(self.client) == len(self.part)
        require(is_one_each and bool((self.sum < 0.0).all()), "a deficit is of no client")


class ClientDeficits:
    """Depths below zero to which the private counts of each client have come in each part of the
    space.

    The noise of one window may be far below zero, and that of many adds up to little: its root
    grows. What adds up to less is no noise. Where a sum is above zero again it begins anew, so that
    only few are kept.
    """

    def __init__(self, variance: float) -> None:
        """`variance`: of the noise of one published count."""
        self._variance = variance
        self._sums: dict[tuple[str, int], tuple[float, int]] = {}
        """client, part of the space -> the sum of its counts since it was last above zero, and of
        how many draws"""

    def take(self, client: str, part: int, count: float, draws: int) -> bool:
        """Whether counts of a client may count that add up to `count` with this many draws of
        noise."""
        before, drawn = self._sums.get((client, part), (0.0, 0))
        total = before + count
        drawn = drawn + draws
        if total >= 0.0:
            self._sums.pop((client, part), None)
        elif total < -net_reach(self._variance, float(drawn)):
            # What is kept stays as it was: it is the sum of what the receiver has added.
            return False
        else:
            self._sums[client, part] = total, drawn
        return True

    def keep(self, parts: set[int]) -> None:
        """Forget the parts of the space that are none of these."""
        self._sums = {key: total for key, total in self._sums.items() if key[1] in parts}

    def state(self) -> ClientDeficitsState:
        sums = list(self._sums.values())
        return ClientDeficitsState(
            client=[client for client, _ in self._sums],
            part=np.array([part for _, part in self._sums], dtype=np.int64),
            sum=np.array([total for total, _ in sums], dtype=np.float64),
            draws=np.array([draws for _, draws in sums], dtype=np.int64),
        )

    @classmethod
    def restored(cls, saved: ClientDeficitsState, variance: float) -> Self:
        """The sums of a saved state."""
        deficits = cls(variance)
        keys = zip(saved.client, saved.part.tolist(), strict=True)
        sums = zip(saved.sum.tolist(), saved.draws.tolist(), strict=True)
        deficits._sums = dict(zip(keys, sums, strict=True))
        return deficits


def _with_more(mass: dict[str, float], client: str, taken: float, fade: float) -> dict[str, float]:
    faded = {name: share * fade for name, share in mass.items()}
    return {**faded, client: faded.get(client, 0.0) + taken}
