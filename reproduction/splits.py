"""Splits of the rows of a data set over clients: the FCAC paper's two splits and k-FED's.

The FCAC paper's splits (section 5.3.2 and the authors' program) are those of its figures to the row, so they use
numpy's legacy generator, whose stream is frozen. A client's rows are in the order of the classes, which is the order in
which they are learnt.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats, Ints

Split = Literal["iid", "niid", "kp", "label", "sector"]
"""equal shares of each class; Dirichlet shares of each class; few classes on each client (k-FED); rows in the order of
their classes, in equal parts; rows in the order of their direction from the middle, in equal parts"""

FCAC_SPLITS: Final[tuple[Split, ...]] = ("iid", "niid")
ALPHA: Final = 0.5
"""parameter of the Dirichlet distribution: small values give clients few classes"""
CLIENT_ROWS_MIN: Final = 40
"""fewest rows of a client in the non-IID split: a draw that leaves one fewer is repeated"""
DRAWS_MAX: Final = 1000
"""the hardest of the paper's splits (Magic, 50 clients) takes 106 draws"""
ROWS_PER_CLIENT: Final = 400
CLIENTS_MAX: Final = 50


def default_clients(rows: int) -> int:
    """Number of clients for a data set that the FCAC paper does not have: one per 400 rows, from 2 to 50."""
    return min(CLIENTS_MAX, max(2, rows // ROWS_PER_CLIENT))


def feasible_clients(labels: Ints, clients: int) -> int:
    """`clients`, halved until the non-IID split gives each one its 40 rows. Raises `InvalidData` below 40 rows.

    The sizes of the shares do not depend on the trial, so one answer holds for all trials.
    """
    while True:
        try:
            deal_dirichlet(labels, clients)
        except InvalidData:
            if clients == 1:
                raise
            clients = max(1, clients // 2)
        else:
            return clients


def deal(labels: Ints, clients: int, split: Split, trial: int) -> list[Ints]:
    """labels (n,) -> for each client the indices of its rows, in the order in which it learns them.

    The trial's number is the seed of the permutation before the split. Raises `InvalidData`, `SettingsError`.
    """
    if clients < 1:
        raise SettingsError(f"{clients} clients; at least 1 is needed")
    if split == "kp":
        return deal_few_classes(labels, clients, trial)
    if split == "label":
        return deal_by_class(labels, clients, trial)
    if split == "sector":
        raise SettingsError("the split into sectors depends on the rows and not on their classes alone")
    order = np.random.RandomState(trial).permutation(len(labels))
    deal_permuted = deal_evenly if split == "iid" else deal_dirichlet
    return [order[places] for places in deal_permuted(labels[order], clients)]


def deal_evenly(labels: Ints, clients: int) -> list[Ints]:
    """IID: of each class, equal consecutive blocks to the clients and the remainder to the last one."""
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        block = len(places) // clients
        for client, part in enumerate(parts):
            part.append(places[client * block : (client + 1) * block if client < clients - 1 else None])
    return [_joined(part) for part in parts]


def deal_dirichlet(labels: Ints, clients: int) -> list[Ints]:
    """Non-IID: of each class, shares drawn from Dirichlet(0.5); none to clients that have n/clients rows already.

    The generator starts at 0 in every trial. Raises `InvalidData` when no draw of `DRAWS_MAX` gives every
    client 40 rows.
    """
    if len(labels) >= clients * CLIENT_ROWS_MIN:
        generator = np.random.RandomState(0)
        for _ in range(DRAWS_MAX):
            parts = _dirichlet_draw(labels, clients, generator)
            if min(map(len, parts)) >= CLIENT_ROWS_MIN:
                return parts
    raise InvalidData(
        f"{len(labels)} rows cannot be dealt to {clients} clients with at least {CLIENT_ROWS_MIN} each; "
        "ask for fewer with --clients, or leave this data set out of the non-IID split"
    )


def deal_few_classes(labels: Ints, clients: int, trial: int) -> list[Ints]:
    """k-FED's split: each client holds rows of floor(sqrt(K)) + 1 of the K classes, each class in equal shares."""
    generator = np.random.default_rng(trial)
    classes = np.unique(labels)
    classes_each = min(len(classes), int(np.sqrt(len(classes))) + 1)
    # Places are filled from shuffled lists of all classes, so every class has a client if there are places for all.
    places = np.concatenate([generator.permutation(classes) for _ in range(clients * classes_each // len(classes) + 1)])
    held = [np.unique(places[client * classes_each : (client + 1) * classes_each]) for client in range(clients)]
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for label in classes:
        rows = generator.permutation(np.flatnonzero(labels == label))
        holders = [client for client, own in enumerate(held) if label in own] or [int(label) % clients]
        for client, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            parts[client].append(share)
    return [_joined(part) for part in parts]


def deal_by_class(labels: Ints, clients: int, trial: int) -> list[Ints]:
    """Rows in the order of their classes, at random within each, in equal consecutive parts."""
    order = np.random.default_rng(trial).permutation(len(labels))
    return np.array_split(order[np.argsort(labels[order], kind="stable")], clients)


def deal_sectors(rows: Floats, clients: int) -> list[Ints]:
    """rows (n, d), d >= 2, in the order of the angle of their first two features around the mean, in equal parts.

    Raises `InvalidData` for rows of one feature.
    """
    if rows.shape[1] < 2:
        raise InvalidData("rows of one feature have no directions; choose another split")
    away = rows - rows.mean(axis=0)
    return np.array_split(np.argsort(np.arctan2(away[:, 1], away[:, 0]), kind="stable"), clients)


def _dirichlet_draw(labels: Ints, clients: int, generator: np.random.RandomState) -> list[Ints]:
    parts: list[list[Ints]] = [[] for _ in range(clients)]
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


def _joined(blocks: list[Ints]) -> Ints:
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
