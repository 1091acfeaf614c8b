"""The clustering view: one form in which every algorithm shows the clustering that its snapshot
holds; and predictors.

Lineage, web pages, metrics and pictures read the view and never an array of a snapshot by its name,
so an algorithm may lay out its arrays as it likes. A predictor says what a snapshot makes of a row
as plain data, points or cuts, that other programs can evaluate without shoal; an algorithm whose
`predict` is one of these forms declares it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.kernels.arrays import Bools, Floats, Ints

NO_CLUSTER: Final = -1
"""cluster of a node that belongs to none"""
# An estimate that is measured later moves the mean of its cluster by this part of the difference.
ESTIMATED_SHARE: Final = 0.1
"""part of a cluster's mass up to which its mean counts as known where the rest is"""


class Summary(NamedTuple):
    """The sizes of a clustering."""

    clusters: int
    nodes: int
    edges: int


@dataclass(frozen=True)
class StatesView:
    """Properties of clusters that are states, besides a place: two may share it. c states, d
    features."""

    block: int
    """readings of the blocks by which they are told apart; 0 while there is one"""
    spread: Floats
    """(c, d) standard deviation of the readings"""
    rough: Floats
    """(c, d) log of the roughness, less that of the deviation; 0 where a block is one reading.
    Above the others: it moves faster"""
    dwell: Floats
    """(c,) mean dwell, in readings; 0 where there is one state"""
    changes: Floats
    """(c, c) changes seen from each to each other one"""
    n_changes: int
    """changes of all of them"""
    evaluated: bool
    """whether any client has looked for states; before, all is one"""
    provisional: bool
    """whether too little was seen to rely on it, or, with private counts, the last two evaluations
    disagree"""
    readings_needed: int = 0
    """readings of all clients until states show in most streams; 0: not known"""


@dataclass(frozen=True)
class ClusteringView:
    """The nodes, edges and clusters of one snapshot; points are in the unit coordinates of the
    contract.

    A node is a point that the algorithm keeps in feature space: a prototype of FCAC, or the centre
    of a cluster itself for algorithms that keep nothing but centres. n nodes, m edges, c clusters,
    d features.
    """

    nodes: Floats
    """(n, d)"""
    node_id: Ints
    """(n,) id of each node, the same in every snapshot for as long as the node exists"""
    mass: Floats
    """(n,) rows that each node stands for, such as its winning count"""
    cluster: Ints
    """(n,) cluster of each node as a position in `centres`, -1 where it belongs to none"""
    edges: Ints
    """(m, 2) pairs of connected nodes, as positions in `nodes`"""
    centres: Floats
    """(c, d) one per cluster"""
    centre_mass: Floats
    """(c,) rows that each cluster stands for"""
    active: Bools
    """(c,) whether it counts as a cluster now: a centre without rows, or a cluster that has faded,
    does not"""
    bandwidth: Floats | None = None
    """(n,) radius of influence of each node; None for algorithms without one"""
    joins_nodes: bool = False
    """whether clusters are made of nodes that edges join, so that a single node is not a cluster
    yet"""
    accumulates: bool = False
    """whether mass counts all rows since the start; False: those of the newest round"""
    identity: Ints | None = None
    """(c,) lasting identity of each cluster, for algorithms that keep identities themselves; None
    where identities are to be derived from the nodes that clusters of successive snapshots share"""
    parent: Ints | None = None
    """(c,) identity that each cluster parted from, -1 where its readings lie where none were
    before; only with `identity`"""
    recent: Floats | None = None
    """(c,) recent readings of each cluster, for algorithms that count them themselves"""
    counted: Floats | None = None
    """(c,) readings of each cluster since the stream began, those among them that came before it
    was found; for algorithms that know them"""
    node_low: Floats | None = None
    """(n, d) a tenth of the rows of each node lie below, for algorithms that know how far they
    spread"""
    node_high: Floats | None = None
    """(n, d) a tenth lie above"""
    node_known: Bools | None = None
    """(n, d) whether a node's own rows show where it lies on a feature; where they do not, that is
    an estimate from rows of others. None: they do everywhere"""
    states: StatesView | None = None
    """None for clusters that are places"""
    unresolved: int = 0
    """places with gaps between them that the memory, which is at its limit, is too small to tell
    apart; else 0"""

    @classmethod
    def from_nodes(  # noqa: PLR0913 - one argument for each field
        cls,
        nodes: ArrayLike,
        mass: ArrayLike,
        cluster: ArrayLike,
        *,
        node_id: ArrayLike | None = None,
        edges: ArrayLike | None = None,
        centres: ArrayLike | None = None,
        centre_mass: ArrayLike | None = None,
        active: ArrayLike | None = None,
        bandwidth: ArrayLike | None = None,
        identity: ArrayLike | None = None,
        parent: ArrayLike | None = None,
        recent: ArrayLike | None = None,
        counted: ArrayLike | None = None,
        node_low: ArrayLike | None = None,
        node_high: ArrayLike | None = None,
        node_known: Bools | None = None,
        states: StatesView | None = None,
        unresolved: int = 0,
        joins_nodes: bool = False,
        accumulates: bool = True,
    ) -> Self:
        """The view of clusters made of nodes (n, d).

        `node_id` is by default the position, for nodes that keep theirs; there are no `edges`;
        `centre_mass` and `centres` are the sums and, by mass, the means of each cluster's nodes;
        clusters with mass are `active`. Give both `centres` and `centre_mass` or neither.
        """
        points = _floats(nodes)
        weight = _floats(mass)
        number = _ints(cluster)
        if centres is None or centre_mass is None:
            centres, centre_mass = _weighted_means(points, weight, number)
        total = _floats(centre_mass)
        # A position is an id only for nodes that keep their places, such as centres.
        if node_id is None:
            node_id = np.arange(len(points))
        if edges is None:
            edges = np.empty((0, 2), dtype=np.int64)
        if active is None:
            active = total > 0
        return cls(
            nodes=points,
            node_id=_ints(node_id),
            mass=weight,
            cluster=number,
            edges=_ints(edges),
            centres=_floats(centres),
            centre_mass=total,
            active=np.asarray(active, dtype=np.bool_),
            bandwidth=_optional_floats(bandwidth),
            joins_nodes=joins_nodes,
            accumulates=accumulates,
            identity=_optional_ints(identity),
            parent=_optional_ints(parent),
            recent=_optional_floats(recent),
            counted=_optional_floats(counted),
            node_low=_optional_floats(node_low),
            node_high=_optional_floats(node_high),
            node_known=node_known,
            states=states,
            unresolved=unresolved,
        )

    @classmethod
    def from_centres(cls, centres: ArrayLike, mass: ArrayLike) -> Self:
        """The view of an algorithm that keeps nothing but centres (c, d), in an order that lasts.

        Each centre is one node. A centre with mass 0 belongs to no cluster, because no row has been
        assigned to it.
        """
        total = _floats(mass)
        number = np.where(total > 0, np.arange(len(total)), NO_CLUSTER)
        # Not accumulated: in rounds, each answer is about all rows that a client holds now.
        return cls.from_nodes(
            centres, total, number, centres=centres, centre_mass=total, accumulates=False
        )

    def unknown_means(self) -> Bools:
        """(c, d) whether the mean of a cluster on a feature is not known: too much of its mass has
        an estimate there."""
        unknown = np.zeros(self.centres.shape, dtype=np.bool_)
        if self.node_known is None:
            return unknown
        for cluster in range(len(self.centres)):
            member = self.cluster == cluster
            weights = self.mass[member]
            if weights.sum() <= 0.0:
                weights = np.ones(len(weights))
            estimated = (weights[:, None] * ~self.node_known[member]).sum(axis=0)
            unknown[cluster] = estimated > ESTIMATED_SHARE * weights.sum()
        return unknown

    @property
    def nodes_min(self) -> int:
        """Fewest nodes of a cluster: 2 where edges join nodes, so that a single one is none yet."""
        return 2 if self.joins_nodes else 1

    def summary(self) -> Summary:
        """Sizes of the clustering; only active clusters are counted."""
        return Summary(
            clusters=int(self.active.sum()), nodes=len(self.nodes), edges=len(self.edges)
        )


def _weighted_means(nodes: Floats, mass: Floats, cluster: Ints) -> tuple[Floats, Floats]:
    """-> centres (c, d), mass (c,); a cluster number without any mass gets a centre of zeros."""
    n_clusters = int(cluster.max(initial=NO_CLUSTER)) + 1
    member = cluster >= 0
    total = np.zeros(n_clusters)
    centres = np.zeros((n_clusters, nodes.shape[1]))
    # `add.at` adds in the order of the nodes, so that the bits of a sum do not depend on how NumPy
    # blocks it.
    np.add.at(total, cluster[member], mass[member])
    np.add.at(centres, cluster[member], nodes[member] * mass[member, None])
    return centres / np.where(total > 0, total, 1.0)[:, None], total


def _floats(array: ArrayLike) -> Floats:
    return np.asarray(array, dtype=np.float64)


def _ints(array: ArrayLike) -> Ints:
    return np.asarray(array, dtype=np.int64)


def _optional_floats(array: ArrayLike | None) -> Floats | None:
    if array is None:
        return None
    return _floats(array)


def _optional_ints(array: ArrayLike | None) -> Ints | None:
    if array is None:
        return None
    return _ints(array)


@dataclass(frozen=True)
class NearestPoint:
    """A row has the cluster of the nearest point, the first one of a tie; k points, -1 without
    points, and from its `reach` on.

    Without `sigma` nearest is by squared Euclidean distance, else by the correntropy-induced metric
    with this bandwidth: sqrt(1 - mean over features of exp(-(x - p)² / (2 sigma²))).
    """

    kind: ClassVar[str] = "nearest_point"

    points: Floats
    """(k, d) in unit coordinates"""
    cluster: Ints
    """(k,)"""
    sigma: float | None = None
    reach: Floats | None = None
    """(k,) distance from each point from which on a row has no cluster, without `sigma` alone;
    None: there is none"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind,
            "distance": "squared" if self.sigma is None else "correntropy",
            "sigma": self.sigma,
            "points": self.points.tolist(),
            "cluster": self.cluster.tolist(),
            "reach": None if self.reach is None else self.reach.tolist(),
        }


@dataclass(frozen=True)
class Cuts:
    """A row, clipped to 0..1, goes from cut to cut until it comes to a leaf, and has the cluster of
    that; s cuts.

    Its position at a cut is first_weight * row[first] + second_weight * row[second]; below `at` it
    goes to the first part, else to the second. Part i >= 0 is cut i, part -1 - i is leaf i; cut 0
    is the first one.
    """

    kind: ClassVar[str] = "cuts"

    first: Ints
    second: Ints
    first_weight: Floats
    second_weight: Floats
    at: Floats
    """(s,) each"""
    parts: Ints
    """(s, 2)"""
    cluster: Ints
    """cluster of each leaf; all -1 while nothing is found"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind,
            "first": self.first.tolist(),
            "second": self.second.tolist(),
            "first_weight": self.first_weight.tolist(),
            "second_weight": self.second_weight.tolist(),
            "at": self.at.tolist(),
            "parts": self.parts.tolist(),
            "cluster": self.cluster.tolist(),
        }

    @property
    def depth(self) -> int:
        """The most cuts that a row passes."""
        # Level by level: a forged snapshot may be deeper than Python may recurse.
        deepest = 0
        level = np.arange(min(1, len(self.at)))
        while len(level):
            deepest += 1
            below = self.parts[level].ravel()
            level = below[below >= 0]
        return deepest


Predictor = NearestPoint | Cuts
