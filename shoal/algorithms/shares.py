"""The shares of clients in the recent readings of a streaming model, so that one alone cannot displace all others."""

from __future__ import annotations

import math
from statistics import median
from typing import Self

import numpy as np

from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State

CLIENT_SHARE_MAX = 0.25
"""most of the readings that count lately that one client may have, and twice its equal part where clients are few"""
CLIENTS_FREE = 3
"""clients of which none is bound: one of so few may well have nearly all readings"""
SHARE_READINGS = 4000.0
"""readings that count after which earlier ones have faded to 1/e in the shares of clients: as `mass_max`, the memory"""
LEFT_OUT_FADE = 0.1
"""weight of a reading that does not count beside one that does: clients that are gone for long no longer bound one that
is alone"""
MEMORY_ROUNDS = 1.0
"""... or, where updates are large, after this many of every client: else equal clients would forget each other between
two updates of one"""
UPDATE_FACTOR = 8.0
"""times the median of the others' newest updates: readings that one update of a client claims beyond that do not count,
nor do they fade others; so a claim of very many readings does not make the shares forget who has sent"""
FORGOTTEN = 1.0
"""readings below which a client is none of those that share"""


class ClientShares:
    """How many of the recent readings each client has contributed, so that one alone cannot displace all others'.

    One of up to `CLIENTS_FREE` is not bound. Each decision depends on the contributions before it alone.
    """

    def __init__(self) -> None:
        self._readings: dict[str, float] = {}
        """client -> its readings that count, faded"""
        self._newest: dict[str, float] = {}
        """client -> the readings of its newest update; the same clients"""

    def admit(self, client: str, readings: float) -> float:
        """Count `readings` more of a client, as far as its share allows -> the part of them that counts, 0 to 1.

        All of an update without readings counts: an empty window is counted with noise, and that is to be absorbed.
        """
        if readings <= 0.0:
            return 1.0
        others = sum(mass for name, mass in self._readings.items() if name != client)
        known = len(self._readings.keys() | {client})
        share = max(CLIENT_SHARE_MAX, 2.0 / known)
        own = self._readings.get(client, 0.0)
        usual = median([size for name, size in self._newest.items() if name != client] or [readings])
        room, counted = math.inf, readings
        if known > CLIENTS_FREE:
            room = share / (1.0 - share) * others - own
            counted = min(readings, UPDATE_FACTOR * usual)
        taken = min(counted, max(0.0, room))
        memory = max(SHARE_READINGS, MEMORY_ROUNDS * known * usual)
        fade = math.exp(-(taken + LEFT_OUT_FADE * (counted - taken)) / memory)
        faded = {name: mass * fade for name, mass in self._readings.items()}
        faded[client] = own * fade + taken
        self._readings = {name: mass for name, mass in faded.items() if mass >= FORGOTTEN}
        sizes = {**self._newest, client: counted}
        self._newest = {name: sizes[name] for name in self._readings}
        return taken / readings

    def state(self) -> State:
        """Plain values for `restored`."""
        return {
            "share_client": list(self._readings),
            "share_readings": np.array(list(self._readings.values()), dtype=np.float64),
            "share_newest": np.array(list(self._newest.values()), dtype=np.float64),
        }

    @classmethod
    def restored(cls, saved: StateReader) -> Self:
        """The shares of a saved state. Raises `InvalidState`."""
        names = saved.read_names("share_client")
        readings = saved.read_floats("share_readings", (len(names),))
        newest = saved.read_floats("share_newest", (len(names),))
        positive = bool((readings > 0.0).all() and (newest > 0.0).all())
        saved.check(positive and len(set(names)) == len(names), "a share is of no client")
        found = cls()
        found._readings = dict(zip(names, readings.tolist(), strict=True))
        found._newest = dict(zip(names, newest.tolist(), strict=True))
        return found
