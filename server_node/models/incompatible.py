"""Search for the answers that keep the others from being combined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from shoal.algorithms.streaming import Arrays
from shoal.errors import InvalidData, MessageRejected

COMPUTING_ERRORS: Final = (
    InvalidData,
    MessageRejected,
    ArithmeticError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""what a computation on unforeseen arrays can raise; singular matrices are among the `ValueError`s"""
LEAVE_ONE_OUT_MAX: Final = 200
"""clients up to which each is left out in turn"""


def incompatible_clients(answers: Mapping[str, Arrays], combines: Callable[[Collection[str]], bool]) -> list[str]:
    """The clients, sorted, without whose answers the others combine: as few as are found, none if none are.

    `combines` tries the answers of some clients. Those that fail alone are incompatible; else the one without whom the
    others combine, the most unusual one if there are several; else those that fail when answers are added one by one,
    the most usual ones first. A pure function of the answers: a rebuild finds the same ones.
    """
    clients = sorted(answers)
    alone = {client for client in clients if not combines([client])}
    if len(alone) == len(clients):
        return []  # what all fail at is no fault of theirs
    if alone and combines([client for client in clients if client not in alone]):
        return sorted(alone)
    unusual = _unusual(answers, clients)
    usual = sorted(clients, key=lambda client: (unusual[client], client))
    if len(clients) <= LEAVE_ONE_OUT_MAX:
        for client in reversed(usual):
            if combines([other for other in clients if other != client]):
                return [client]
    kept: list[str] = []
    for client in usual:
        if combines(sorted([*kept, client])):
            kept.append(client)
    return sorted(set(clients) - set(kept)) if kept else []


def _unusual(answers: Mapping[str, Arrays], clients: Sequence[str]) -> dict[str, float]:
    """Distance of the size of each client's arrays from the median of all, in medians."""
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = {
            client: np.array([float(np.abs(array).max(initial=0.0)) for _, array in sorted(answers[client].items())])
            for client in clients
        }
        middle = np.median(np.stack([sizes[client] for client in clients]), axis=0)
        return {
            client: float(np.nan_to_num(np.abs(sizes[client] - middle) / (middle + 1e-12), nan=np.inf).max(initial=0.0))
            for client in clients
        }
