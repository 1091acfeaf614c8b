"""How the FCAC paper deals the rows of a data set out to clients (section 5.3.2 and the authors' program).

Both splits are those of the paper's figures to the row, so they use numpy's legacy generator, whose stream
is frozen. A client's rows are in the order of the classes, and that is the order in which they are learnt.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData, SettingsError
from shoal.evaluation.published import Split

Indices = NDArray[np.int64]

ALPHA: Final = 0.5
"""of the Dirichlet distribution: small values give clients few classes"""
CLIENT_ROWS_MIN: Final = 40
"""of the non-IID split: a draw that leaves a client fewer rows is repeated"""
DRAWS_MAX: Final = 1000
"""the hardest of the paper's splits (Magic, 50 clients) takes 106 draws"""
ROWS_PER_CLIENT: Final = 400
CLIENTS_MAX: Final = 50


def usual_clients(rows: int) -> int:
    """Clients for a data set the paper does not have: one per 400 rows, from 2 to 50."""
    return min(CLIENTS_MAX, max(2, rows // ROWS_PER_CLIENT))


def feasible_clients(labels: Indices, wanted: int) -> int:
    """`wanted`, halved until the non-IID draw gives each client its 40 rows. Raises `InvalidData` below 40 rows.

    The sizes of the draw do not depend on the trial, so one answer holds for all trials.
    """
    clients = wanted
    while True:
        try:
            dealt_unevenly(labels, clients)
        except InvalidData:
            if clients == 1:
                raise
            clients = max(1, clients // 2)
        else:
            return clients


def dealt(labels: Indices, clients: int, split: Split, trial: int) -> list[Indices]:
    """labels (n,) -> for each client the indices of its rows, in the order it learns them.

    The trial's number is the seed of the permutation before the split. Raises `InvalidData`, `SettingsError`.
    """
    if clients < 1:
        raise SettingsError(f"{clients} clients; at least 1 is needed")
    order = np.random.RandomState(trial).permutation(len(labels))
    deal = dealt_evenly if split == "iid" else dealt_unevenly
    return [order[places] for places in deal(labels[order], clients)]


def dealt_evenly(labels: Indices, clients: int) -> list[Indices]:
    """IID: of each class, equal consecutive blocks to the clients and the remainder to the last one."""
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        block = len(places) // clients
        for client, part in enumerate(parts):
            part.append(places[client * block : (client + 1) * block if client < clients - 1 else None])
    return [_joined(part) for part in parts]


def dealt_unevenly(labels: Indices, clients: int) -> list[Indices]:
    """Non-IID: of each class, shares drawn from Dirichlet(0.5), nothing more to clients that have n/clients rows.

    The generator starts at 0 in every trial. Raises `InvalidData` when no draw of `DRAWS_MAX` gives every
    client 40 rows.
    """
    if len(labels) >= clients * CLIENT_ROWS_MIN:
        generator = np.random.RandomState(0)
        for _ in range(DRAWS_MAX):
            parts = _one_draw(labels, clients, generator)
            if min(map(len, parts)) >= CLIENT_ROWS_MIN:
                return parts
    raise InvalidData(
        f"{len(labels)} rows cannot be dealt to {clients} clients with at least {CLIENT_ROWS_MIN} each; "
        "ask for fewer with --clients, or leave this data set out of the non-IID split"
    )


def _one_draw(labels: Indices, clients: int, generator: np.random.RandomState) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        generator.shuffle(places)
        shares = generator.dirichlet(np.repeat(ALPHA, clients)) * (held < len(labels) / clients)
        shares = shares / shares.sum()
        cuts = (np.cumsum(shares) * len(places)).astype(np.int64)[:-1]
        for client, block in enumerate(np.split(places, cuts)):
            parts[client].append(block)
            held[client] += len(block)
    return [_joined(part) for part in parts]


def _joined(blocks: list[Indices]) -> Indices:
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
