"""A fleet of clients on shared axes: what only sums of products of their features could give.

A study, and no part of the library. Each client's features (level and spread of tiles) are taken in
units of its own change from tile to tile in its first tiles, which it knows when they come. What
would leave it are two matrices, of second moments of its features and of their differences from one
tile to the next; their sums over clients give the axes, on which each client finds its own
segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score

from shoal.algorithms.states.segments import Thresholds, states_of_tiles
from shoal.algorithms.states.tiles import OVERLAP, TileMemory
from shoal.kernels.arrays import Floats, Ints

FIRST_TILES: Final = 20
"""tiles from which a client takes its own scale"""
WINDOW: Final = 30
AXES: Final = 4
UNIT_MAX: Final = 20.0
# Axes of a fleet are fitted to the tiles of all clients, and so hardly to those of one.
THRESHOLDS: Final = Thresholds(
    6.0, 2.0, 2.0, held_out=0.0, abrupt=4.0, clear=np.inf, wander=0.0, settled_jump=np.inf
)
NULL_CLIENTS: Final = 12
NULL_READINGS: Final = 3_000
NULL_COLUMNS: Final = 3


def own_units(rows: Floats) -> tuple[Floats, int]:
    """rows (n, d) of a client -> (tiles, 2 d) features in its own units, and readings of a
    half-tile."""
    memory = TileMemory(rows.shape[1], WINDOW, len(rows))
    memory.add(rows)
    features = memory.features()
    values = np.concatenate([features.level, features.second[:, : rows.shape[1]]], axis=1)
    steps = np.abs(values[OVERLAP:] - values[:-OVERLAP])[:FIRST_TILES]
    usual = np.median(steps, axis=0)
    unit = 1.05 * usual + 0.05 * np.median(steps) + 1e-6
    centred = values - np.median(values[:FIRST_TILES], axis=0)
    return np.clip(centred / unit, -UNIT_MAX, UNIT_MAX), memory.half


def shared_axes(clients: Sequence[Floats]) -> Floats:
    """Features (tiles, p) of each client -> (p, q), from sums over clients."""
    p = clients[0].shape[1]
    total = np.zeros((p, p))
    within = np.zeros((p, p))
    for values in clients:
        gaps = values - values.mean(axis=0)
        steps = values[OVERLAP:] - values[:-OVERLAP]
        total += gaps.T @ gaps / len(gaps)
        within += steps.T @ steps / (2 * len(steps))
    unit = np.sqrt(np.maximum(np.diag(within), 1e-9))
    within = within / unit / unit[:, None]
    total = total / unit / unit[:, None]
    values, vectors = np.linalg.eigh(0.9 * within + 0.1 * np.eye(p))
    whitening = vectors / np.sqrt(np.maximum(values, 0.02)) @ vectors.T
    _, vectors = np.linalg.eigh(whitening @ total @ whitening)
    axes = (whitening @ vectors[:, ::-1][:, :AXES]) / unit[:, None]
    return np.asarray(axes * np.sqrt(len(clients)), dtype=np.float64)


def labels_of_fleet(streams: Sequence[Floats]) -> list[Ints]:
    """Rows (n, d) of each client -> (n,) its states."""
    clients = [own_units(rows) for rows in streams]
    axes = shared_axes([values for values, _ in clients])
    labels = []
    for rows, (values, half) in zip(streams, clients, strict=True):
        state = states_of_tiles(values @ axes, THRESHOLDS)
        place = (np.arange(len(rows)) - half // 2) // half
        labels.append(state[np.clip(place, 0, len(state) - 1)])
    return labels


def measure_fleet(
    series: Sequence[tuple[Floats, Ints]],
    nulls: Mapping[str, Callable[[np.random.Generator, int], Floats]],
    covering: Callable[[Ints, Ints], float],
) -> dict[str, Any]:
    """Mean AMI and covering over clients, rows and true states of each; and how many clients of
    fleets without states, one of each kind, are taken for several."""
    labels = labels_of_fleet([rows for rows, _ in series])
    pairs = [(truth, found) for (_, truth), found in zip(series, labels, strict=True)]
    false = 0
    for make in nulls.values():
        streams = []
        for client in range(NULL_CLIENTS):
            rng = np.random.default_rng([400, client])
            columns = [make(rng, NULL_READINGS) for _ in range(NULL_COLUMNS)]
            streams.append(np.stack(columns, axis=1))
        false += sum(len(np.unique(found)) > 1 for found in labels_of_fleet(streams))
    return {
        "ami": float(np.mean([adjusted_mutual_info_score(*pair) for pair in pairs])),
        "covering": float(np.mean([covering(*pair) for pair in pairs])),
        "false_clients": false,
        "null_clients": NULL_CLIENTS * len(nulls),
    }
