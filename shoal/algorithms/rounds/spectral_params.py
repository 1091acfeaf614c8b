"""Landmark spectral clustering: its options, and the parameters and answers that travel."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.algorithms.rounds.arrays import CENTRES, FLOAT, INT, Params, choice_array, float_array, int_array
from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.options import CLUSTERS_MAX, Option, Options, is_int, resolve_options
from shoal.algorithms.streaming import ArraySpec

ASKS: Final = ("prototypes", "gram")
"""what an answer to the parameters holds"""
LANDMARKS_MAX: Final = 400
NEAR_MAX: Final = 10
OPTIONS: Final[dict[str, Option]] = {
    "clusters": Option(
        "eigengap",
        lambda value: value == "eigengap" or is_int(value, 1, CLUSTERS_MAX),
        f'a whole number, 1 to {CLUSTERS_MAX}, or "eigengap"',
        'number of clusters; "eigengap": as many as the eigenvalues and cuts of the graph show, 1 to 20',
    ),
    "landmarks": Option(
        100,
        lambda value: is_int(value, 2, LANDMARKS_MAX),
        f"a whole number, 2 to {LANDMARKS_MAX}",
        "number of landmarks; fewer even out noise, more follow finer shapes",
    ),
    "prototypes": Option(
        60,
        lambda value: is_int(value, 1, LANDMARKS_MAX),
        f"a whole number, 1 to {LANDMARKS_MAX}",
        "number of prototypes of its rows that each client sends when landmarks are chosen",
    ),
    "near": Option(
        3,
        lambda value: is_int(value, 2, NEAR_MAX),
        f"a whole number, 2 to {NEAR_MAX}",
        "number of nearest landmarks that each row ties together",
    ),
}

PARAMS: Final = {
    **CENTRES,
    "identity": ArraySpec("<i8", ("k",)),
    "asks": INT,
    "epoch": INT,
    "landmark": ArraySpec("<f8", ("q", "d"), rowlike=True),
    "mass": ArraySpec("<f8", ("q",)),
    "cluster": ArraySpec("<i8", ("q",)),
    "basis": ArraySpec("<f8", ("q", "e")),
    "direction": ArraySpec("<f8", ("k", "e")),
    "bandwidth": FLOAT,
    "error": ArraySpec("<f8", ("t",)),
    "eigenvalue": ArraySpec("<f8", ("v",)),
    "clusters": INT,
    "landmarks": INT,
    "prototypes": INT,
    "near": INT,
    "seed": INT,
}
"""means, masses and lasting numbers of the clusters; `asks`, for what; the epoch, its landmarks, the rows that each
stands for, its cluster (-1: none) and its place in the embedding; the clusters' directions in that; the mean squared
distance to landmarks in the first round of the epoch, empty before; the smallest eigenvalues; the options"""
STATS: Final = {
    "epoch": INT,
    "prototype": ArraySpec("<f8", ("p", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<f8", ("p",), per_node=True),
    "gram": ArraySpec("<f8", ("t",)),
    "error": FLOAT,
}
"""the epoch that is answered, 0 without rows; prototypes and their rows, or Gram matrix and squared distances"""


def start(options: Options, d: int, hint: InitHint) -> Params:
    """Parameters without landmarks, which ask for prototypes. Raises `SettingsError`."""
    option: dict[str, Any] = resolve_options("spectral", OPTIONS, options)
    clusters = 0 if option["clusters"] == "eigengap" else option["clusters"]
    return {
        "centre": np.empty((0, d)),
        "weight": np.empty(0),
        "identity": np.empty(0, dtype=np.int64),
        "asks": choice_array("prototypes", ASKS),
        "epoch": int_array(1),
        "landmark": np.empty((0, d)),
        "mass": np.empty(0),
        "cluster": np.empty(0, dtype=np.int64),
        "basis": np.empty((0, 0)),
        "direction": np.empty((0, 0)),
        "bandwidth": float_array(1.0),
        "error": np.empty(0),
        "eigenvalue": np.empty(0),
        "clusters": int_array(clusters),
        **{name: int_array(option[name]) for name in ("landmarks", "prototypes", "near")},
        "seed": int_array(hint.seed),
    }
