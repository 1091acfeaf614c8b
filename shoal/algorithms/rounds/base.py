"""The contract of algorithms in rounds: the server publishes parameters, clients answer with
statistics of their rows, and what the answers combine to are the next parameters.

An algorithm is a handful of pure functions over named arrays. The parameters hold everything that
an answer depends on, options included, so a client keeps no state for a model. The functions open
nothing, keep nothing, and draw random numbers only from seeds in the parameters. Which clients
answer, how long the server waits, and which answers count for how much is decided elsewhere and is
the same for all algorithms (`shoal.algorithms.rounds.policies`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.algorithms.claims import Claims
from shoal.algorithms.options import AlgorithmOptions, Options
from shoal.algorithms.regression import Regression
from shoal.algorithms.rounds.arrays import (
    Params,
    Stats,
    centre_shift,
    centre_view,
    nearest_centre,
    nearest_centre_predictor,
)
from shoal.algorithms.rounds.robust import RobustForm
from shoal.algorithms.streaming import ROUNDS, ArraySpec, Family, Rows
from shoal.algorithms.view import ClusteringView, Predictor, Summary
from shoal.kernels.arrays import Floats, Ints

__all__ = ["InitHint", "Params", "RoundsAlgorithm", "Stats"]


@dataclass(frozen=True)
class InitHint:
    """Facts that the server has about the rows before any client has answered."""

    low: Floats
    """(d,) lower corner of a box that holds every row"""
    high: Floats
    """(d,) upper corner"""
    seed: int = 0
    """seed of every random number that the algorithm draws"""
    points: Floats | None = None
    """(h, d) centres that another model has found"""
    weights: Floats | None = None
    """(h,) rows assigned to each of them; None counts one each"""
    features: Sequence[str] = ()
    """names of the d features, if they have any"""


def first_epoch(params: Params) -> int:
    """The epoch of algorithms that have only one."""
    return 0


@dataclass(frozen=True)
class RoundsAlgorithm:
    """The declaration of an algorithm in rounds: its pure functions, and which arrays travel
    between them.

    No function changes or keeps its arguments. The defaults are those of an algorithm whose
    clusters are its centres.
    """

    family: ClassVar[Family] = ROUNDS

    name: str
    snapshot: Mapping[str, ArraySpec]
    """the arrays that the server publishes: the parameters. All have those of `CENTRES`: `centre`
    (k, d) and `weight` (k,), the mass of the rows assigned to each"""
    update: Mapping[str, ArraySpec]
    """the arrays that a client sends: its answer"""
    options: type[AlgorithmOptions]
    """options, with their defaults and valid values"""
    start: Callable[[Options, int, InitHint], Params]
    """(options, d, hint) -> the first parameters. Raises `SettingsError`"""
    answer: Callable[[Params, Rows], Stats]
    """(parameters, rows (n, d)) -> a client's answer, in bounded memory. Raises `InvalidData`"""
    combine: Callable[[Params, Sequence[Stats]], Params]
    """(parameters, answers ordered by client name) -> the next parameters; the same ones when there
    are no answers or no rows behind them. Raises `InvalidData` for an answer that cannot be one to
    these parameters"""
    weigh: Callable[[Params, Rows, Floats], Stats] | None = None
    """(parameters, rows (n, d), weights (n,), above 0) -> the answer of rows of which each counts
    as often as its weight says, for estimators: in a running federation every reading counts once.
    None: there is none"""
    additive: bool = False
    """answer(p, A and B) = answer(p, A) + answer(p, B) up to rounding: then the federated result is
    the pooled one, and sums of answers can decay"""
    one_shot: bool = False
    """one round is the whole algorithm; another round only serves to cluster newer rows"""
    shift: Callable[[Params, Params], float] = centre_shift
    """distance by which a model moved, as f(before, after), in its own measure; infinite without a
    model before"""
    predict: Callable[[Params, Rows], Ints] = nearest_centre
    """(parameters, rows (n, d)) -> (n,) cluster of each row, -1 when there is none. Raises
    `InvalidData`"""
    predictor: Callable[[Params], Predictor] | None = nearest_centre_predictor
    """parameters -> `predict` as plain data, for other programs; None: it has no such form"""
    view: Callable[[Params], ClusteringView] = centre_view
    """parameters -> its clustering"""
    forget: Callable[[Params], Params] | None = None
    """parameters -> the same without anything that answers have changed, for an algorithm whose
    answers depend on nothing else in them: then a client can be unlearned by combining the answers
    of the others anew"""
    check_claims: Callable[[Params, Stats, Claims], None] | None = None
    """(parameters, an answer, what is claimed of its rows) -> nothing. Raises `InvalidData` for an
    answer that no rows can give: masses that add up to more than the readings, sums outside of mass
    times box, impossible moments (`shoal.algorithms.claims` has the parts). It accepts the answer
    to any n rows from the box, also to the parameters of an earlier round of the same epoch, and
    comes after the checks of `update`. None: the table alone is checked"""
    robust: RobustForm | str = (
        "it does not declare which parts of an answer can be compared between clients"
    )
    """the rule by which answers are combined robustly, or why they cannot be
    (`shoal.algorithms.rounds.robust`)"""
    epoch: Callable[[Params], int] = first_epoch
    """parameters -> the number of their epoch. What clients answered to parameters of another epoch
    does not count: a late answer, and under `decay` and `cache` earlier ones, as for sums in
    coordinates that have changed"""
    regression: Regression | None = None
    """functions of an algorithm that predicts a feature, the target, from the others; None for all
    other algorithms"""
    paper_only: bool = False
    """whether it is for comparisons in experiments only, and not meant for a running federation"""

    check_features: Callable[[int], None] = lambda d: None
    """d -> nothing. Raises `SettingsError` for a number of features that the algorithm cannot deal
    with"""
    leaves_noise: bool = False
    """a row may belong to no cluster, and there may be no cluster at all"""

    @property
    def aggregates(self) -> bool:
        """Whether a region can contribute to a model of it."""
        return self.additive

    def check(self, options: Options) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        self.options.parse(options)

    def takes(self, option: str) -> bool:
        """Whether it has an option of this name."""
        return option in self.options.model_fields

    def summary(self, params: Params) -> Summary:
        """Parameters -> the sizes of its clustering."""
        if self.view is not centre_view:
            return self.view(params).summary()
        # A client takes the summary of every round request: the view itself would take ten times as
        # long.
        return Summary(
            clusters=int(np.count_nonzero(params["weight"] > 0)),
            nodes=len(params["centre"]),
            edges=0,
        )

    @property
    def labels_by_centres(self) -> bool:
        """Whether a row has the nearest centre: centres within the bounds label every row, whatever
        else there is."""
        return self.predict is nearest_centre
