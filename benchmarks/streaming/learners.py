"""The learners: CA+ and CAEFC, and the peers of other libraries, with one interface.

`prepare` converts a batch and is not timed; `learn` learns the converted batch and is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.streams import SPREAD, Batch
from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.streaming import Contribution
from shoal.kernels import forms
from shoal.kernels.forms import COMPILED, NUMPY, Forms

try:
    from river.cluster import DBSTREAM, DenStream
    from sklearn.cluster import MiniBatchKMeans
except ImportError as missing:
    sys.exit(f"{missing.name} is not installed; the peers come with: pip install -e '.[bench]'")

RADIUS_SPREADS = 3.0
"""radius of river's micro-clusters, in standard deviations of a blob times the root of d: one
covers one blob"""
FADING = 1e-4
"""fading of river's learners: a weight is halved in 10 000 rows, so that they keep what they have
learnt, like CA+"""
Dicts = list[dict[int, float]]


class Learner(Protocol):
    """A learner of a stream of batches."""

    def prepare(self, batch: Batch) -> Any:
        """The batch in the form that `learn` takes."""
        ...

    def learn(self, prepared: Any) -> None: ...

    def prototypes(self) -> int:
        """Number of nodes, centres or micro-clusters."""
        ...


FORMS = {NUMPY: Forms(NUMPY), COMPILED: Forms(COMPILED)}


class Client:
    """CA+ with default options, in one form of the kernels."""

    def __init__(self, d: int, form: str) -> None:
        self._network = CAPlus(d)
        self._form = FORMS[form]

    def prepare(self, batch: Batch) -> Any:
        return batch.rows

    def learn(self, prepared: Any) -> None:
        forms.PROCESS = self._form
        self._network.learn(prepared)

    def prototypes(self) -> int:
        return self._network.size


class Server:
    """CAEFC in one form of the kernels; each batch is one update of a client."""

    def __init__(self, d: int, options: Mapping[str, Any], form: str) -> None:
        self._form = FORMS[form]
        self._network = CAEFC(d, **options)
        self._absorbed = 0

    def prepare(self, batch: Batch) -> Any:
        self._absorbed += 1
        arrays = {"weight": batch.rows, "count": batch.counts, "won": batch.counts}
        return Contribution("any", self._absorbed, arrays), self._absorbed.to_bytes(8, "little")

    def learn(self, prepared: Any) -> None:
        forms.PROCESS = self._form
        contribution, key = prepared
        self._network.absorb([contribution], key)

    def prototypes(self) -> int:
        return self._network.size


class KMeans:
    """scikit-learn's MiniBatchKMeans with `partial_fit` and as many centres as ours has nodes."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._model = MiniBatchKMeans(n_clusters=k, random_state=0, n_init=1)

    def prepare(self, batch: Batch) -> Any:
        return batch

    def learn(self, prepared: Any) -> None:
        self._model.partial_fit(prepared.rows, sample_weight=prepared.counts)

    def prototypes(self) -> int:
        return self._k


class River:
    """A clusterer of river, one row at a time; rows are converted to dicts in `prepare`."""

    def __init__(self, model: Any, micro_clusters: Callable[[Any], int]) -> None:
        self._model = model
        self._micro_clusters = micro_clusters

    def prepare(self, batch: Batch) -> Dicts:
        return [dict(enumerate(row)) for row in batch.rows.tolist()]

    def learn(self, prepared: Dicts) -> None:
        for reading in prepared:
            self._model.learn_one(reading)

    def prototypes(self) -> int:
        return self._micro_clusters(self._model)


@dataclass(frozen=True)
class Peer:
    """A clusterer that ours is compared with."""

    name: str
    make: Callable[[int, int, int], Learner]
    """(features d, nodes k of ours, rows n before the first turn) -> a learner that has learnt
    nothing"""
    description: str
    """parameters in words"""
    rows_by_one: int | None = None
    """rows of each turn, learnt with one call per row, by the peer and by ours; None: the whole
    turn in batches"""
    rows_of_turn: int | None = None
    """rows of each turn that a slow peer learns, the first ones; None: all"""


def dbstream(d: int, k: int, n: int) -> Learner:
    """river's DBSTREAM."""
    radius = RADIUS_SPREADS * SPREAD * math.sqrt(d)
    model = DBSTREAM(clustering_threshold=radius, fading_factor=FADING, cleanup_interval=1000)
    return River(model, lambda model: len(model.micro_clusters))


def denstream(d: int, k: int, n: int) -> Learner:
    """river's DenStream. Its clock ticks once in `stream_speed` = 100 readings.

    Its first DBSCAN is given all rows before the first turn, because that is where its
    micro-clusters come from: its radius (river 0.26) is 0 for most readings of several features,
    and the nearest micro-cluster takes any in.
    """
    radius = RADIUS_SPREADS * SPREAD * math.sqrt(d)
    model = DenStream(epsilon=radius, decaying_factor=100 * FADING, n_samples_init=n)
    return River(model, lambda model: len(model.p_micro_clusters) + len(model.o_micro_clusters))


NUMPY_DESCRIPTION = "ours without the extra `fast`: the same network, bit for bit"
NUMPY_CLIENT = Peer("NumPy form", lambda d, k, n: Client(d, NUMPY), NUMPY_DESCRIPTION)


def numpy_server(options: Mapping[str, Any]) -> Peer:
    """CAEFC in NumPy's form with the same options."""
    return Peer(NUMPY_CLIENT.name, lambda d, k, n: Server(d, options, NUMPY), NUMPY_DESCRIPTION)


KMEANS = Peer(
    "MiniBatchKMeans",
    lambda d, k, n: KMeans(k),
    "scikit-learn, partial_fit; n_clusters as many as ours has nodes, n_init 1, else defaults",
)
KMEANS_BY_ROW = Peer(
    "MiniBatchKMeans by one",
    KMEANS.make,
    "as MiniBatchKMeans, with a call for every row, of ours too",
    rows_by_one=200,
)
DBSTREAM_PEER = Peer(
    "DBSTREAM",
    dbstream,
    f"river, learn_one; clustering_threshold {RADIUS_SPREADS:g} * {SPREAD:g} * sqrt(d),"
    f" fading_factor {FADING:g} and cleanup_interval 1000 (with the defaults it forgets nine of ten"
    " blobs), else defaults",
    rows_of_turn=2000,
)
DENSTREAM_PEER = Peer(
    "DenStream",
    denstream,
    f"river, learn_one; epsilon {RADIUS_SPREADS:g} * {SPREAD:g} * sqrt(d), decaying_factor"
    f" {100 * FADING:g} per tick of 100 readings, n_samples_init all rows before the first turn,"
    " else defaults",
    rows_of_turn=2000,
)
