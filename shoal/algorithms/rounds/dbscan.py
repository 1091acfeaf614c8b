"""Grid DBSCAN by sums: clusters of any shape, as groups of adjacent cells in which rows are dense,
and noise.

Clients send the number of their rows in each occupied cell of a grid that all share; the server
adds the counts up, so the result is that of all rows in one place. Source: M. Uranga, "Federated
clustering" (2024), section 3.2, algorithm 4, after M. Ester, H.-P. Kriegel, J. Sander, X. Xu
(1996). Unlike there, a cell is adjacent to all cells around it, corners included; the threshold is
a density, so that longer windows do not change the result; and rows beside a cluster's cells belong
to it (border) where the thesis calls them noise.

A client's answer is its whole map, so one that arrives twice replaces itself. The server finds out
which cells have changed, and groups again only what those can have changed (`shoal.kernels.cells`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shoal.algorithms.claims import Claims, check_masses, require_possible
from shoal.algorithms.options import AlgorithmOptions, Options, option
from shoal.algorithms.rounds.arrays import (
    CENTRES,
    FLOAT,
    INT,
    Params,
    Stats,
    check_answer,
    float_array,
    int_array,
    label_rows,
    n_features,
    read_float,
    read_int,
    reject_unless,
    row_blocks,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.cells import (
    CellCounts,
    add_counts,
    cell_middles,
    cell_places,
    follow_groups,
    grid_size,
    nearest_cell,
)
from shoal.kernels.constants import COUNT_MAX
from shoal.kernels.matching import moved_share

FEATURES_MAX: Final = 6
CELLS_MAX: Final = 1000
GRID_CELLS: Final = 4096
"""cells of the whole grid with `cells = 0`: some rows each, if there are thousands of rows"""
GRID_CELLS_PER_FEATURE: Final = 32
BORDER_MAX: Final = 8
OCCUPIED_MAX: Final = 250_000
"""occupied cells in one answer"""

CELLS_EXPECTED: Final = f"a whole number, 2 to {CELLS_MAX}, or 0"


class DBSCANOptions(AlgorithmOptions):
    """Options of dbscan."""

    ALGORITHM = "dbscan"

    cells: int = option(
        0,
        "cells of the grid along each feature; 0: as many as make about 4096 cells in all, "
        "at most 32",
        least=0,
        most=CELLS_MAX,
        expected=CELLS_EXPECTED,
    )
    min_points: float = option(
        1.2,
        "rows that make a cell dense, as a multiple of those of an even spread over the grid; "
        "a density, so a longer row window changes nothing",
        above=0.0,
    )
    border: int = option(
        2,
        "cells by which a row may be away from a cluster's nearest cell and still belong to it",
        least=0,
        most=BORDER_MAX,
    )
    min_share: float = option(
        0.01,
        "share of all rows that a group of dense cells must hold to be a cluster; "
        "rows of smaller ones are noise",
        least=0.0,
        most=1.0,
    )
    count_min: int = option(
        1,
        "a client leaves out cells in which it has fewer rows; above 1, the result is no longer "
        "that of pooled rows",
        least=1,
        most=COUNT_MAX,
    )

    def model_post_init(self, context: Any) -> None:
        """Raises `SettingsError` for a grid of one cell."""
        self.require("cells", self.cells != 1, CELLS_EXPECTED)


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """-> numbers of the cells that hold rows (p,), ascending, and how many each holds (p,).

    Raises `InvalidData` for rows in more than `OCCUPIED_MAX` cells.
    """
    counts = CellCounts(read_int(params, "cells", 2, CELLS_MAX), params["low"], _step(params))
    for block in row_blocks(rows, n_features(params), 1):
        counts.add(block)
    number, count = counts.total()
    kept = count >= read_int(params, "count_min", 1)
    # An answer must fit into a record, and the server adds up those of all clients.
    if np.count_nonzero(kept) > OCCUPIED_MAX:
        raise InvalidData(
            f"the rows lie in more than {OCCUPIED_MAX} cells; let the model have fewer `cells`"
        )
    return {"cell": number[kept], "count": count[kept]}


def _step(params: Params) -> Floats:
    if not (params["step"] >= 0).all():
        raise InvalidData(
            "parameter step must hold numbers of at least 0; the round request is damaged"
        )
    return np.asarray(params["step"])


# What travels.

PARAMS: Final = {
    **CENTRES,
    "cell": ArraySpec("<i8", ("m",)),
    "count": ArraySpec("<f8", ("m",)),
    "group": ArraySpec("<i8", ("m",)),
    "rows": FLOAT,
    "cells": INT,
    "min_points": FLOAT,
    "min_share": FLOAT,
    "border": INT,
    "count_min": INT,
    "low": ArraySpec("<f8", ("d",), rowlike=True),
    "step": ArraySpec("<f8", ("d",)),
}
"""means and masses of the clusters; the numbers of the m dense cells, their counts and their
groups; the first k are the clusters; the number of rows in all; the options; the grid: its lower
corner `low` and its `step`"""
STATS: Final = {
    "cell": ArraySpec("<i8", ("p",), per_node=True),
    "count": ArraySpec("<f8", ("p",), per_node=True),
}

# Server half.


def check_features(d: int) -> None:
    """Raises `SettingsError` for more features than a grid is good for."""
    if d > FEATURES_MAX:
        raise SettingsError(
            f"dbscan takes at most {FEATURES_MAX} features, not {d}: of more, nearly all cells of "
            "its grid are empty. Leave features out of the contract, or choose spectral, which "
            "finds clusters of any shape too, or gmm"
        )


def start(options: Options, d: int, hint: InitHint) -> Params:
    """Parameters without clusters: the options, the grid over the box. Raises `SettingsError`."""
    chosen = DBSCANOptions.parse(options)
    check_features(d)
    cells = chosen.cells or grid_size(d, GRID_CELLS, GRID_CELLS_PER_FEATURE)
    return {
        "centre": np.empty((0, d)),
        "weight": np.empty(0),
        "cell": np.empty(0, dtype=np.int64),
        "count": np.empty(0),
        "group": np.empty(0, dtype=np.int64),
        "rows": float_array(0),
        "cells": int_array(cells),
        "min_points": float_array(chosen.min_points),
        "min_share": float_array(chosen.min_share),
        "border": int_array(chosen.border),
        "count_min": int_array(chosen.count_min),
        "low": hint.low.astype(np.float64),
        "step": (hint.high - hint.low) / cells,
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` for more rows than readings, a part of a row, or cells that are not in
    ascending order."""
    check_masses("count", stats["count"], claims)
    require_possible(
        (stats["count"] == np.floor(stats["count"])).all(), "count holds a part of a row"
    )
    # Each once: a cell that is listed twice could hide that its count is above the rows.
    require_possible((np.diff(stats["cell"]) > 0).all(), "cells must ascend, each once")


def forget(params: Params) -> Params:
    """The parameters of a model that has had no answers."""
    empty = {name: params[name][:0] for name in ("centre", "weight", "cell", "count", "group")}
    return {**params, **empty, "rows": float_array(0)}


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The groups of adjacent dense cells; a function of the sum of the answers alone."""
    cells = read_int(params, "cells", 2, CELLS_MAX)
    d = n_features(params)
    for stats in answers:
        check_answer(STATS, stats, d)
        inside = (stats["cell"] >= 0) & (stats["cell"] < cells**d)
        reject_unless(inside.all(), "a cell outside the grid")
        reject_unless((stats["count"] > 0).all(), "a cell without rows")
    if not any(len(stats["count"]) for stats in answers):
        return dict(params)
    number, count = add_counts(
        np.concatenate([stats["cell"] for stats in answers]),
        np.concatenate([stats["count"] for stats in answers]),
    )
    rows = float(count.sum())
    # A density: so many times the rows that an even spread over the grid gives a cell.
    dense = count >= read_float(params, "min_points", above=0.0) * rows / float(cells) ** d
    number = number[dense]
    count = count[dense]
    known_cell, known_group = _known_groups(params, cells**d)
    # Groups keep their numbers where most of their cells stay, so that labels keep their meaning.
    group = follow_groups(known_cell, known_group, number, cells, d).group
    return {**params, **_clusters(params, number, count, group, rows), "rows": float_array(rows)}


def _known_groups(params: Params, n_cells: int) -> tuple[Ints, Ints]:
    """The dense cells of the parameters and their groups."""
    cell = params["cell"]
    group = params["group"]
    ascend = (np.diff(cell) > 0).all()
    inside = ((cell >= 0) & (cell < n_cells)).all()
    if not ascend or not inside or (group < 0).any():
        raise InvalidData(
            "parameters cell and group must be ascending cells of the grid, each in a group; "
            "the round request is damaged"
        )
    return cell, group


def _clusters(params: Params, number: Ints, count: Floats, group: Ints, rows: float) -> Params:
    """The parameters that groups of dense cells make: those that are clusters come first."""
    mass = np.bincount(group, count, int(group.max(initial=-1)) + 1).astype(np.float64)
    is_cluster = mass >= read_float(params, "min_share", above=-1.0) * rows
    place = np.empty(len(mass), dtype=np.int64)
    # False sorts before True: clusters come first, in the order in which they were found.
    place[np.argsort(~is_cluster, kind="stable")] = np.arange(len(mass))
    k = int(np.count_nonzero(is_cluster))
    group = place[group]
    weight = mass[is_cluster]
    middles = cell_middles(
        number, params["low"], _step(params), read_int(params, "cells", 2, CELLS_MAX)
    )
    sums = [
        np.bincount(group, count * middles[:, feature], len(mass))[:k]
        for feature in range(middles.shape[1])
    ]
    centre = np.stack(sums, axis=1) / weight[:, None]
    return {"centre": centre, "weight": weight, "cell": number, "count": count, "group": group}


def shift(before: Params, after: Params) -> float:
    """The share of the clusters' rows whose cell has changed its cluster; infinite when there were
    no rows before.

    A cluster is the same as before if most of each is in the other.
    """
    if not before["rows"][0]:
        return math.inf
    # Where there were no clusters, or are none, all labels have changed.
    if bool(len(after["weight"])) != bool(len(before["weight"])):
        return 1.0
    _, place_after, place_before = np.intersect1d(
        after["cell"], before["cell"], assume_unique=True, return_indices=True
    )
    now = cluster_of_cells(after)
    earlier = np.full(len(after["cell"]), NO_CLUSTER)
    earlier[place_after] = cluster_of_cells(before)[place_before]
    clustered = now >= 0
    return moved_share(earlier[clustered], now[clustered], after["count"][clustered])


def cluster_of_cells(params: Params) -> Ints:
    """(m,) cluster of each dense cell, -1 in a group that is too small to be one."""
    return np.where(params["group"] < len(params["weight"]), params["group"], NO_CLUSTER)


def predict(params: Params, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of each, -1 for noise. Raises `InvalidData`.

    A row in a cell of a cluster belongs to it. Any other row is a border row of the nearest such
    cell at most `border` cells away, by the distance to its middle in cells, of equally near ones
    the first; or noise if there is none.
    """
    cells = read_int(params, "cells", 2, CELLS_MAX)
    d = n_features(params)
    step = _step(params)
    border = read_int(params, "border", 0, BORDER_MAX)
    cluster = cluster_of_cells(params)
    number = params["cell"][cluster >= 0]
    # One more at the end, for the position -1 of no cell.
    cluster = np.append(cluster[cluster >= 0], NO_CLUSTER)

    def label(block: Floats) -> Ints:
        places = cell_places(block, params["low"], step)
        return cluster[nearest_cell(places, number, cells, border)]

    return label_rows(rows, d, 1, label)


def view(params: Params) -> ClusteringView:
    """Each dense cell is a node, whose id is the number of the cell. Raises `InvalidData`."""
    cells = read_int(params, "cells", 2, CELLS_MAX)
    _known_groups(params, cells ** n_features(params))
    return ClusteringView.from_nodes(
        cell_middles(params["cell"], params["low"], _step(params), cells),
        params["count"],
        cluster_of_cells(params),
        node_id=params["cell"],
        centres=params["centre"],
        centre_mass=params["weight"],
        accumulates=False,
    )


DBSCAN: Final = RoundsAlgorithm(
    name="dbscan",
    snapshot=PARAMS,
    update=STATS,
    one_shot=True,
    options=DBSCANOptions,
    start=start,
    answer=answer,
    combine=combine,
    robust=(
        "a cell is dense by the rows of all clients, so there is no place of a cluster to compare"
    ),
    shift=shift,
    predict=predict,
    predictor=None,
    view=view,
    forget=forget,
    check_claims=check_claims,
    check_features=check_features,
    leaves_noise=True,
)
