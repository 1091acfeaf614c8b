"""Algorithms in rounds on rows drawn from private counts: the server draws the rows and runs the
rounds by itself.

Clients count under the plan of a density_tree, whose server half adds the counts up. Whenever its
tree has changed, rows are drawn from its counts, and the algorithm runs on them from the beginning.
Rows drawn from private counts are post-processing: they cost no epsilon, and no client is asked for
anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.claims import Claims
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.density_tree.arrays import SNAPSHOT as TREE_SNAPSHOT
from shoal.algorithms.density_tree.arrays import UPDATE, blocks_of
from shoal.algorithms.density_tree.claims import check_claims
from shoal.algorithms.density_tree.counter import COUNTED, DensityTreeCounter
from shoal.algorithms.density_tree.plan import PLAN_ARRAYS
from shoal.algorithms.density_tree.plan_check import check_plan
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.density_tree.snapshot import NO_CLUSTER, nothing_found
from shoal.algorithms.options import CRITERIA
from shoal.algorithms.rounds.arrays import n_features
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.fcm import FCM
from shoal.algorithms.rounds.gmm import GMM
from shoal.algorithms.rounds.iteration import iterate
from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.algorithms.streaming import Arrays, Contribution, Rows, State, check_rows
from shoal.algorithms.view import ClusteringView, NearestPoint, Predictor
from shoal.errors import SettingsError
from shoal.kernels.arrays import AnyArray, Ints
from shoal.saved_state import NamedArrays, Opaque, SavedState, Table, state_type

DRAWN_ROWS: Final = 4000
"""more rows hardly change what is found in them"""
ROUNDS_MAX: Final = 50
TOLERANCE: Final = 1e-3
# Measured with k-means told the number of clusters: the inertia is 1.0 to 1.15 times that without
# noise from an epsilon of 2 on, and 2.5 times it at 1 with 8 features.
EPSILON_ADVISED: Final = 2.0
"""see `shoal.algorithms.counting.CountingAlgorithm.epsilon_advised`"""

Options = Mapping[str, Any]


def rounds_from_counts(learner: RoundsAlgorithm) -> CountingAlgorithm:
    """The algorithm `NAME_from_counts`: `learner` on rows drawn from private counts of any number
    of features.

    It takes the options of the learner and those of density_tree. With `clusters = "auto"` it looks
    for as many clusters as the tree has found.
    """

    def server(options: Options, dimensions: int | None) -> DrawnRowsServer:
        if dimensions is None:
            raise SettingsError(
                f"{learner.name}_from_counts needs the number of features before the first reading"
            )
        return DrawnRowsServer(learner, dimensions, options)

    def counter(options: Options, dimensions: int) -> DensityTreeCounter:
        return DensityTreeCounter(dimensions, **_parted(learner, options)[1])

    def check(options: Options, arrays: Arrays, claims: Claims) -> None:
        check_claims(_parted(learner, options)[1], arrays, claims)

    return CountingAlgorithm(
        name=f"{learner.name}_from_counts",
        counter=counter,
        server=server,
        update=UPDATE,
        snapshot={
            **{name: TREE_SNAPSHOT[name] for name in (*PLAN_ARRAYS, "found")},
            **learner.snapshot,
        },
        predict=partial(_predict, learner),
        predictor=None if learner.predictor is None else partial(_predictor, learner),
        view=partial(_view, learner),
        check_claims=check,
        counted=COUNTED,
        samples_axes=True,
        epsilon_advised=EPSILON_ADVISED,
    )


def _view(learner: RoundsAlgorithm, snapshot: Arrays) -> ClusteringView:
    """The clustering of a snapshot; empty as long as the tree has found nothing."""
    check_plan(snapshot, n_features(snapshot))
    if not snapshot["found"][0]:
        return nothing_found(n_features(snapshot), identities=False)
    return learner.view(snapshot)


def _predict(learner: RoundsAlgorithm, snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of each."""
    if not snapshot["found"][0]:
        return np.full(len(rows), NO_CLUSTER)
    return learner.predict(snapshot, rows)


def _predictor(learner: RoundsAlgorithm, snapshot: Arrays) -> Predictor:
    """`_predict` as plain data."""
    assert learner.predictor is not None, "declared only where the learner has one"
    if not snapshot["found"][0]:
        no_points = np.empty((0, n_features(snapshot)))
        return NearestPoint(no_points, np.empty(0, dtype=np.int64))
    return learner.predictor(snapshot)


@state_type
class DrawnRoundsState(SavedState):
    """The tree of counts, and the newest parameters."""

    version: ClassVar[int] = 1

    tree: Annotated[State, Opaque()]
    params: Annotated[Arrays, NamedArrays()]
    """those that the learner declares"""


class DrawnRowsServer:
    """Adds up counts in a tree, and runs an algorithm in rounds on rows drawn from them whenever
    the tree has changed.

    The state is a function of the contributions in their order. Raises `SettingsError`.
    """

    def __init__(self, learner: RoundsAlgorithm, dimensions: int, options: Options) -> None:
        self.half = f"{learner.name}_from_counts server"
        self._learner = learner
        self._options = dict(options)
        self._own, tree_options = _parted(learner, options)
        self._tree = DensityTreeServer(dimensions, **tree_options)
        self._d = dimensions
        self._params: Arrays = {}
        self._learn()

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Add noisy counts in the order given; nothing is random, so `key` is not used. Raises
        `InvalidData`."""
        # All are checked before any is added: an error leaves the half as it was.
        for contribution in contributions:
            blocks_of(contribution.arrays, contribution.client)
        # One by one: the algorithm runs on the rows that are there when the plan changes, whichever
        # contributions come in the same call.
        for contribution in contributions:
            before = self._tree.plan_version
            self._tree.absorb([contribution], key)
            # Counts of the same plan move the drawn rows by little: to run the algorithm at each
            # contribution would cost more than all the rest.
            if self._tree.plan_version != before:
                self._learn()

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) cluster of each, as the learner predicts. Raises
        `InvalidData`."""
        sound = check_rows(rows, self._d)
        if not self._tree.snapshot()["found"][0]:
            return np.full(len(sound), NO_CLUSTER)
        # The tree decides whether the counts exceed their noise; rows drawn from noise would always
        # cluster.
        return self._learner.predict(self._params, sound)

    def snapshot(self) -> Arrays:
        """The plan under which clients count, and the learner's parameters, as copies."""
        tree = self._tree.snapshot()
        return {**{name: tree[name] for name in (*PLAN_ARRAYS, "found")}, **_copies(self._params)}

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        state = DrawnRoundsState(tree=self._tree.state(), params=self._params)
        return state.saved(**self._identity())

    def _identity(self) -> dict[str, Any]:
        """What a saved state must agree with."""
        return {"half": self.half, "options": dict(self._options), "width": self._d}

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        saved = DrawnRoundsState.read(state, **self._identity())
        params = Table(self._learner.snapshot).read("params", saved.params, {"d": self._d})
        # The tree checks its own state; it is made aside, so that a damaged one changes nothing
        # here.
        tree = DensityTreeServer(self._d, **_parted(self._learner, self._options)[1])
        tree.restore(saved.tree)
        self._tree = tree
        self._params = params

    def _learn(self) -> None:
        """Run the algorithm on rows drawn from the present tree."""
        rows = self._tree.draw_rows(DRAWN_ROWS)
        centres = self._tree.snapshot()["centre"]
        points = centres if self._own["clusters"] == "auto" else rows
        hint = InitHint(np.zeros(self._d), np.ones(self._d), points=points)
        params = self._learner.start(self._own, self._d, hint)
        self._params = iterate(
            self._learner,
            params,
            lambda newest: [self._learner.answer(newest, rows)],
            rounds_max=ROUNDS_MAX,
            tolerance=TOLERANCE,
        ).params


def _parted(learner: RoundsAlgorithm, options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the learner with its defaults, and those of the tree. Raises
    `SettingsError`."""
    own = {name: value for name, value in options.items() if learner.takes(name)}
    # Criteria compare fits on nodes of a streaming model of the same contract.
    if own.get("clusters") in CRITERIA:
        raise SettingsError(
            f'clusters = "{own["clusters"]}" chooses from the nodes of another model, and '
            f'{learner.name}_from_counts has none; give a number, or "auto" for as many as the '
            "tree of its counts shows"
        )
    tree = {name: value for name, value in options.items() if not learner.takes(name)}
    return learner.options.parse(own, f"{learner.name}_from_counts").as_dict(), tree


def _copies(arrays: Arrays) -> dict[str, AnyArray]:
    return {name: array.copy() for name, array in arrays.items()}


FCM_FROM_COUNTS: Final = rounds_from_counts(FCM)


GMM_FROM_COUNTS: Final = rounds_from_counts(GMM)


KMEANS_FROM_COUNTS: Final = rounds_from_counts(KMEANS)
