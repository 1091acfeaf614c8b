"""The map of a model: the two axes on which its nodes are drawn, and the nodes and edges as JSON.

Where there are more than two features, the axes are principal axes that change as rarely as
possible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.messages import Snapshot
from shoal.protocol.parts import NO_PART, part_numbers
from shoal.server_node.outputs.encoding import as_json, plain
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.units import digits, feature_label, feature_view, view_of

KEEP_SHARE_MIN = 0.9
"""axes are kept while they explain at least this share of the variance that the principal axes
would"""
POINTS_MAX = 256
"""points that the axes are fitted to, where there are more features than that"""
TIE_BREAK = np.array([2e-6, 1e-6])
"""far below any deviation that matters, relative to all together; it selects the axes where points
leave them open"""
SQUARINGS = 50
"""squarings of a matrix after which only the largest eigenvalue is left, even if two differ by a
tie break only"""
CONVERGED = 1 - 1e-15
"""trace from which only one eigenvalue is left: the eigenvalues add up to 1 before they are squared
"""


def principal_axes(points: Floats) -> Floats:
    """points (n, d), d >= 2 -> (d, 2) orthonormal: the directions of most variance.

    The same points give the same axes: where they vary in fewer than two directions, the first
    features fill in, and the sign of an axis makes its largest loading positive.
    """
    features = points.shape[1]
    centred = points
    if len(points):
        centred = points - points.mean(axis=0)
    largest = float(np.abs(centred).max(initial=0.0))
    if largest > 0:
        # The products below must neither overflow nor vanish.
        centred = centred / largest
    # Rows that are far shorter than any variance that matters.
    ties = np.eye(2, features) * TIE_BREAK[:, None] * (np.sqrt(np.square(centred).sum()) or 1.0)
    rows = np.vstack([centred, ties])
    first = _main_direction(rows)
    second = _main_direction(rows - np.outer(rows @ first, first))
    # What rounding has left along the first axis.
    second -= first * (first @ second)
    axes = np.column_stack([first, second / np.sqrt(second @ second)])
    loading = axes[np.abs(axes).argmax(axis=0), [0, 1]]
    return np.asarray(axes * np.where(loading < 0, -1.0, 1.0))


def _main_direction(rows: Floats) -> Floats:
    """rows (n, d) -> (d,) of length 1: the direction along which the rows are longest.

    By the power method on their products, squared again and again. NumPy's own decompositions would
    bring a megabyte of LAPACK into memory, which nothing else in a server needs.
    """
    # The smaller of the two products: both have the same eigenvalues.
    is_wide = rows.shape[0] < rows.shape[1]
    matrix = rows.T @ rows
    if is_wide:
        matrix = rows @ rows.T
    for _ in range(SQUARINGS):
        matrix = matrix / matrix.trace()
        matrix = matrix @ matrix
        if matrix.trace() > CONVERGED:
            break
    direction = matrix[:, matrix.diagonal().argmax()]
    if is_wide:
        direction = direction @ rows
    return np.asarray(direction / np.sqrt(direction @ direction))


def scatter(points: Floats, axes: Floats) -> float:
    """points (n, d), axes (d, k) -> the squared deviations of the points from their mean, summed
    over the axes."""
    if not len(points):
        return 0.0
    return float(np.square((points - points.mean(axis=0)) @ axes).sum())


def steady_axes(points: Floats, before: Floats | None) -> Floats:
    """Axes (d, 2) for `points` (n, d), given those used before: (d, 2), or None at first.

    The axes are kept while they explain the points well. When they must change, the new ones span
    the best plane and are rotated within it to be as near to the old ones as possible (orthogonal
    Procrustes problem: Schönemann 1966), so that the map neither flips nor spins.
    """
    best = principal_axes(points)
    if before is None:
        return best
    if scatter(points, before) >= KEEP_SHARE_MIN * scatter(points, best):
        return before
    return np.asarray(best @ _nearest_turn(best.T @ before))


def _nearest_turn(matrix: Floats) -> Floats:
    """matrix (2, 2) -> the rotation or reflection (2, 2) whose products with it have the largest
    sum."""
    (a, b), (c, d) = matrix.tolist()
    turned = complex(a + d, c - b)
    reflected = complex(a - d, b + c)
    if abs(turned) >= abs(reflected):
        x, y = _direction(turned)
        return np.array([[x, -y], [y, x]])
    x, y = _direction(reflected)
    return np.array([[x, y], [y, -x]])


def _direction(number: complex) -> tuple[float, float]:
    length = abs(number)
    if length == 0:
        return 1.0, 0.0
    return number.real / length, number.imag / length


def axis_sample(points: Floats, count: Floats) -> Floats:
    """The points (n, d) that the axes are fitted to: all, or those with the highest count where
    features are many."""
    if min(points.shape) <= POINTS_MAX:
        return points
    return points[np.sort(np.argsort(-count, kind="stable")[:POINTS_MAX])]


VALUES_MAX = 12
"""features whose values are shown for each node and cluster"""
FEATURES_NAMED_MAX = 3
"""features named in the label of an axis"""


class Map(NamedTuple):
    """The map of a model as the page gets it. Encoded, as the values of a thousand nodes take ten
    times as much."""

    etag: str
    body: bytes
    """JSON in one line"""


@dataclass(frozen=True)
class _Drawn:
    """What was drawn of one snapshot."""

    snapshot: Snapshot
    lineage: Lineage
    features: list[int]
    map: Map


class MapRenderer:
    """Draws the map of one model; keeps its axes, so that it neither jumps nor turns."""

    def __init__(self) -> None:
        self._axes: Floats | None = None
        self._drawn: _Drawn | None = None

    def render(self, snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> Map:
        """The map of a snapshot. The same is drawn once."""
        return self._draw(snapshot, lineage, contract).map

    def features(
        self, snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract
    ) -> list[int]:
        """Positions of the features whose values are shown: all, or those with the largest loadings
        on the axes."""
        return self._draw(snapshot, lineage, contract).features

    def _draw(self, snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> _Drawn:
        drawn = self._drawn
        # A cluster can get its name between two snapshots, and with it the model another lineage.
        if drawn is None or drawn.snapshot is not snapshot or drawn.lineage is not lineage:
            view = view_of(snapshot, contract)
            points, axes, explained = self._projected(view, contract)
            features = self._features_shown(contract)
            body = map_json(
                view, points, lineage, contract, features, axes, explained, snapshot
            ).encode()
            etag = hashlib.sha256(body).hexdigest()[:16]
            drawn = _Drawn(snapshot, lineage, features, Map(etag, body))
            self._drawn = drawn
        return drawn

    def _projected(
        self, view: ClusteringView, contract: ResolvedContract
    ) -> tuple[Floats, list[str], float | None]:
        """Map coordinates (n, 2), the label of each axis, and the share of variance that both
        explain (None: all)."""
        labels = [feature_label(feature) for feature in contract.features]
        if contract.width <= 2:
            values = contract.bounds.shown(view.nodes)
            if contract.width == 1:
                values = np.column_stack([values, np.log10(np.maximum(view.mass, 1.0))])
                labels.append("times won, powers of ten")
            return values, labels, None
        sample = axis_sample(view.nodes, view.mass)
        self._axes = steady_axes(sample, self._axes)
        total = scatter(sample, np.eye(contract.width))
        explained = 1.0
        if total > 0:
            explained = scatter(sample, self._axes) / total
        labels = [_axis_label(axis, contract) for axis in self._axes.T]
        return (view.nodes - 0.5) @ self._axes, labels, round(explained, 3)

    def _features_shown(self, contract: ResolvedContract) -> list[int]:
        if contract.width <= VALUES_MAX or self._axes is None:
            return list(range(contract.width))
        loading = np.square(self._axes).sum(axis=1)
        return sorted(np.argsort(-loading, kind="stable")[:VALUES_MAX].tolist())


def _axis_label(axis: Floats, contract: ResolvedContract) -> str:
    """The main features of an axis (d,), and whether each grows or falls along it."""
    order = np.argsort(-np.abs(axis), kind="stable")[:FEATURES_NAMED_MAX]
    # A feature with less than two fifths of the largest part would name the axis for what it hardly
    # is.
    main = [j for j in order.tolist() if abs(axis[j]) >= 0.4 * abs(axis[order[0]])]
    more = [contract.features[j].name for j in main if axis[j] > 0]
    less = [contract.features[j].name for j in main if axis[j] <= 0]
    parts = []
    if more:
        parts.append(f"more {', '.join(more)}")
    if less:
        parts.append(f"less {', '.join(less)}")
    return f"{', '.join(parts)} →"


def colour_slots(clusters: int, lineage: Lineage) -> list[int]:
    """The colour slot of each cluster by its number; those without an identity take slots that are
    free."""
    taken = {cluster.slot for cluster in lineage.known}
    free = (slot for slot in count() if slot not in taken)
    slots = []
    for number in range(clusters):
        identity = lineage.of_number.get(number)
        slot = None
        if identity is not None:
            slot = lineage.clusters[identity].slot
        if slot is None:
            slot = next(free)
        slots.append(slot)
    return slots


def in_units(points: Floats, contract: ResolvedContract, shown: list[int]) -> list[list[float]]:
    """points (n, d) in unit coordinates -> values (n, k) of the k features shown, rounded for
    display."""
    values = contract.bounds.shown(points)
    columns = [np.round(values[:, j], digits(contract.features[j])) for j in shown]
    rows: list[list[float]] = np.column_stack(columns).tolist()
    return rows


def rounded(numbers: Floats) -> list[float]:
    """Each number to six digits; NaN becomes 0 and an infinity the largest float."""
    return [float(f"{number:.6g}") for number in np.nan_to_num(numbers).tolist()]


NODES_MAX = 2000
"""nodes sent of a model; those with the highest count are kept"""


def map_json(
    view: ClusteringView,
    points: Floats,
    lineage: Lineage,
    contract: ResolvedContract,
    features: Sequence[int],
    axes: Sequence[str],
    explained: float | None,
    snapshot: Snapshot,
) -> str:
    """JSON in one line. `points` (n, 2) are the places of the nodes, `features` those whose values
    are sent.

    Nodes of a cluster that has parts have the number of theirs.
    """
    # Sorted again, so that a node keeps its place in the list while others change their mass.
    kept = np.sort(np.argsort(-view.mass, kind="stable")[:NODES_MAX])
    total = len(view.centres)
    head = {
        "version": snapshot.version,
        "axes": axes,
        "explained_variance": explained,
        "identities": [lineage.of_number.get(number) for number in range(total)],
        "slots": colour_slots(total, lineage),
        "features": [plain(feature_view(contract.features[j])) for j in features],
    }

    def nodes() -> Iterator[tuple[str, Any]]:
        yield "id", view.node_id[kept].tolist()
        yield "x", rounded(points[kept, 0])
        yield "y", rounded(points[kept, 1])
        yield "mass", rounded(view.mass[kept])
        yield "cluster", view.cluster[kept].tolist()
        if snapshot.parts:
            part = part_numbers(snapshot.cluster_parts, view.nodes[kept], contract.features)
            yield "part", np.where(view.cluster[kept] == NO_CLUSTER, NO_PART, part).tolist()
        yield "values", in_units(view.nodes[kept], contract, list(features))

    # One list of numbers after the other, as all of them, and json's texts for each, take a
    # megabyte for 1000 nodes.
    columns = ",".join(f"{as_json(name)}:{as_json(values)}" for name, values in nodes())
    edges = as_json(_edges(view.edges, kept, len(view.nodes)))
    return f'{as_json(head)[:-1]},"nodes":{{{columns}}},"edges":{edges}}}'


def _edges(edges: Ints, kept: Ints, n: int) -> list[int]:
    """The edges between kept nodes, as positions among these: a flat list, two numbers each."""
    position = np.full(n, -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    ends = position[edges]
    flat: list[int] = ends[(ends >= 0).all(axis=1)].ravel().tolist()
    return flat
