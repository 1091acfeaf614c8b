"""Tables 3 and 4 of the FCAC paper as ranks: mean ranks, Friedman and Nemenyi tests, and what
chance alone moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from reproduction import published
from reproduction.datasets import FCAC_DATASETS, FCAC_SPLITS, Split, fcac_name
from reproduction.experiment import (
    SCORES,
    Experiment,
    Figure,
    Result,
    Setting,
    clients_of,
    data_of,
    python_format,
    scores,
)
from reproduction.experiments.contestants import PUBLISHED, Task, contestants
from reproduction.published import COLUMNS, COMPARED
from shoal.algorithms.rounds.dbscan import FEATURES_MAX
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats

ALPHA: Final = 0.05


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of k algorithms over n comparisons; 1 is best."""

    names: tuple[str, ...]
    mean: Floats
    """(k,)"""
    comparisons: int
    friedman_p: float
    """probability of ranks as different as these if all algorithms were equally good; NaN for fewer
    than 3 of them"""
    critical_difference: float
    """mean ranks that differ by less do not differ significantly (Nemenyi, 5 %)"""

    def of(self, name: str) -> float:
        """The mean rank of one algorithm."""
        return float(self.mean[self.names.index(name)])

    def differ(self, a: str, b: str) -> bool:
        """Whether both tests find a difference between two algorithms."""
        return self.friedman_p < ALPHA and abs(self.of(a) - self.of(b)) >= self.critical_difference

    def groups(self) -> list[tuple[str, ...]]:
        """The largest groups of algorithms, best first, in which no two differ by the critical
        difference."""
        order = sorted(self.names, key=self.of)
        found: list[tuple[str, ...]] = []
        for place, first in enumerate(order):
            group = tuple(
                name
                for name in order[place:]
                if self.of(name) - self.of(first) < self.critical_difference
            )
            if len(group) > 1 and not (found and set(group) <= set(found[-1])):
                found.append(group)
        return found


def rank(scores: Sequence[Mapping[str, float]], names: Sequence[str]) -> Ranking:
    """The scores of `names` in each comparison -> their ranks, the highest score first, equal ones
    at their mean rank.

    Raises `InvalidData` without comparisons, or with fewer than two algorithms.
    """
    if not scores or len(names) < 2:
        raise InvalidData(
            f"{len(names)} algorithms in {len(scores)} comparisons cannot be ranked; run at least "
            "two"
        )
    from scipy import stats  # noqa: PLC0415 - an extra that edge clients do without

    table = np.array([[scored[name] for name in names] for scored in scores])
    n, k = table.shape
    p = float("nan")
    if k > 2:
        # Where every comparison is a tie there is nothing that could differ.
        p = (
            float(stats.friedmanchisquare(*table.T).pvalue)
            if (np.ptp(table, axis=1) > 0).any()
            else 1.0
        )
    ranks = _ranks_of(table)
    q = float(stats.studentized_range.ppf(1 - ALPHA, k, np.inf)) / np.sqrt(2)
    return Ranking(
        tuple(names), ranks.mean(axis=0), n, p, q * float(np.sqrt(k * (k + 1) / (6 * n)))
    )


def _ranks_of(scores: Floats) -> Floats:
    """scores (n, algorithms, ...) -> ranks of the algorithms, 1 for the highest score; equal ones
    have their mean."""
    from scipy import stats  # noqa: PLC0415 - an extra that edge clients do without

    return np.asarray(stats.rankdata(-scores, axis=1))


DRAWS: Final = 2000
SEED: Final = 0
DECIMALS: Final = 4
"""decimals of the scores in tables 3 and 4"""


def printed(name: str, split: Split, dataset: str, score: str) -> Figure:
    """The figure that table 3 or 4 has for an algorithm of `COLUMNS`, by the paper's name of the
    data set."""
    if name == "fcac":
        return published.FCAC[split][dataset][score]
    return COMPARED["fedfcm" if name == "ffcm" else name][split][dataset][score]


def chance_deviations(
    splits: Sequence[Split], datasets: Sequence[str], trials: int
) -> dict[str, float]:
    """Standard deviation of the mean rank of each algorithm of `COLUMNS` when the experiment is
    repeated.

    A mean over `trials` and a printed one over 20 differ by a normal number with the variance sd^2
    (1 / trials + 1 / 20), where `sd` is the printed deviation of a trial. The three scores of one
    algorithm on one split of one data set are scores of the same labels and move together. Scores
    are ranked as printed (`as_printed`).
    """
    cells = [(split, dataset) for split in splits for dataset in datasets]
    figures = [
        [[printed(name, *cell, score) for score in SCORES] for name in COLUMNS] for cell in cells
    ]
    mean = np.array([[[figure.mean for figure in column] for column in cell] for cell in figures])
    sd = np.array([[[figure.sd for figure in column] for column in cell] for cell in figures])
    generator = np.random.default_rng(SEED)
    scale = np.sqrt(1 / trials + 1 / published.TRIALS)
    drawn = (
        mean + scale * generator.normal(size=(len(cells), len(COLUMNS), 1)) * sd
        for _ in range(DRAWS)
    )
    ranks = [_ranks_of(scores.round(DECIMALS)).mean(axis=(0, 2)) for scores in drawn]
    return dict(zip(COLUMNS, np.std(ranks, axis=0).tolist(), strict=True))


TRIALS: Final = 5
NOISE_TRIALS: Final = 2
"""trials of settings with noise, which are four times as many settings"""
BAND: Final = 3.0
"""deviations by chance of a mean rank (`rank_chance`) within which it agrees; not for ffcm, because
the settings behind the column FedFCM are not published and no reading of its paper gives its
figures"""
FORM: Final = python_format(".2f")


TEXT: Final = f"""\
Published: tables 3 and 4 of the FCAC paper (N. Masuyama and others, 2023) print a rank beside every
figure; the mean ranks here are of the same data sets. In brackets is the deviation by chance: how
far the mean rank moves if the experiment is repeated and every mean varies as its published
deviation says. A mean rank agrees within {BAND:g} of these. Scores of the paper's algorithms that
are equal to its four decimals are ties. No band is claimed for ffcm, the column FedFCM, whose
settings are not published; its figures differ (`shoal reproduce ffcm`), and where it is better
here, others are a rank worse.

All algorithms get the same raw rows, splits and noise. Given the number of classes are kmeans,
kfed, ffcm, mufc, gmm, fcm and spectral; cluster_tree, density_tree, dbscan, fcac and cae find their
own. fcac learns rows in the order of its authors' program, by class; cluster_tree and density_tree
in random order, cluster_tree with an update every 500 rows. density_tree counts without noise of
its own. cae and kmeans work on all rows in one place, or as if they did. dbscan takes at most
{FEATURES_MAX} features, so it is ranked on the data sets that it takes. The ranks of cluster_tree
are of a version in which a cluster without readings could still be joined to another one; of eight
trials compared since, seven are the same, and one has a slightly higher score.

Each data set, split, epsilon and score is one comparison, as in the paper. Comparisons by three
scores on one data set are not independent, so the tests find a difference significant too easily;
the ranks do not depend on that.
"""


class Scope(NamedTuple):
    """Which comparisons are ranked together."""

    name: str
    splits: tuple[Split, ...]
    epsilon: float | None
    every_epsilon: bool = False

    def has(self, comparison: Comparison) -> bool:
        """Whether a comparison is one of these."""
        return comparison.split in self.splits and (
            self.every_epsilon or comparison.epsilon == self.epsilon
        )


class Comparison(NamedTuple):
    """The scores of all algorithms that are compared with each other."""

    dataset: str
    split: Split
    epsilon: float | None
    score: str
    values: Mapping[str, float]
    """mean over trials by algorithm"""


def scopes(epsilons: Iterable[float | None]) -> list[Scope]:
    """IID, non-IID and both without noise, both for each epsilon, and everything."""
    given = list(epsilons)
    found: list[Scope] = []
    if None in given:
        found += [Scope("IID", ("iid",), None), Scope("non-IID", ("niid",), None)]
        found.append(Scope("both", FCAC_SPLITS, None))
    found += [
        Scope(f"epsilon {epsilon:g}", FCAC_SPLITS, epsilon)
        for epsilon in given
        if epsilon is not None
    ]
    if len(given) > 1:
        found.append(Scope("all", FCAC_SPLITS, None, every_epsilon=True))
    return found


def _run(setting: Setting, trial: int) -> dict[str, float]:
    """The scores of one algorithm; none at all for data that it does not take."""
    dataset = data_of(setting)
    task = Task(clients_of(setting, dataset, trial), dataset.rows, len(dataset.classes), trial)
    try:
        labels = contestants()[setting["algorithm"]](task)
    except SettingsError:
        if setting["algorithm"] in PUBLISHED:
            raise
        return {}
    return scores(dataset.labels, labels)


def comparisons(
    results: Sequence[tuple[Setting, Result]], measures: Sequence[str]
) -> list[Comparison]:
    """One comparison for each data set, split, epsilon and score."""
    found: dict[tuple[str, Split, float | None, str], dict[str, float]] = {}
    for setting, result in results:
        for score in measures:
            values = found.setdefault((setting.dataset, setting.split, setting.epsilon, score), {})
            if score in result.measured:
                values[setting["algorithm"]] = result.measured[score].mean
    return [Comparison(*key, values) for key, values in found.items()]


def as_printed(found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with as many decimals of each score as the paper prints.

    Where no algorithm finds any structure, as in hill_valley, scores of k-means and k-FED differ in
    the fifth decimal, by roundings that depend on the processor. Such scores are ties.
    """
    return [
        comparison._replace(
            values={name: round(value, DECIMALS) for name, value in comparison.values.items()}
        )
        for comparison in found
    ]


def ranking(found: Sequence[Comparison], scope: Scope, names: Sequence[str]) -> Ranking:
    """The ranks of these algorithms in one scope. Raises `InvalidData`."""
    return rank([comparison.values for comparison in found if scope.has(comparison)], names)


def published_mean(name: str, splits: Sequence[Split], datasets: Sequence[str]) -> float | None:
    """The mean of the ranks that the paper prints for an algorithm on these data sets; None if it
    has none."""
    known = [key for dataset in datasets if (key := fcac_name(dataset)) is not None]
    if name not in published.COLUMNS or len(known) != len(datasets):
        return None
    column = published.COLUMNS.index(name)
    digits = [
        int(ranks[column])
        for split in splits
        for key in known
        for ranks in published.RANKS[split][key]
    ]
    return sum(digits) / len(digits)


def published_figure(
    name: str, scope: Scope, datasets: Sequence[str], trials: int
) -> Figure | None:
    """The mean printed rank of an algorithm on these data sets, with its deviation by chance beside
    `trials` trials."""
    mean = (
        None
        if scope.epsilon or scope.every_epsilon
        else published_mean(name, scope.splits, datasets)
    )
    if mean is None:
        return None
    known = tuple(fcac_name(dataset) or dataset for dataset in datasets)
    return Figure(mean, _chance(scope.splits, known, trials)[name])


@cache
def _chance(splits: tuple[Split, ...], datasets: tuple[str, ...], trials: int) -> dict[str, float]:
    return chance_deviations(splits, datasets, trials)


def rank_results(
    comparison: str, found: Sequence[Comparison], names: Sequence[str], trials: int, compared: bool
) -> list[Result]:
    """Mean ranks of these algorithms in every scope, one result each, best first.

    `compared`: beside the printed ranks on the same data sets, with the verdict.
    """
    datasets = list(dict.fromkeys(comparison.dataset for comparison in found))
    in_scope = {
        scope: ranking(found, scope, names)
        for scope in scopes(dict.fromkeys(comparison.epsilon for comparison in found))
    }
    first = next(iter(in_scope.values()))
    results = []
    for name in sorted(names, key=first.of):
        measured = {scope.name: Figure(ranked.of(name)) for scope, ranked in in_scope.items()}
        published = {
            scope.name: figure
            for scope in in_scope
            if compared and (figure := published_figure(name, scope, datasets, trials)) is not None
        }
        agrees = {
            scope: abs(measured[scope].mean - figure.mean) <= BAND * figure.sd
            for scope, figure in published.items()
            if name != "ffcm"
        }
        results.append(
            Result({"among": comparison, "algorithm": name}, trials, measured, published, agrees)
        )
    return results


def complete(found: Sequence[Comparison], names: Sequence[str]) -> list[str]:
    """Return the algorithms that have a score in every comparison."""
    return [name for name in names if all(name in comparison.values for comparison in found)]


EXPERIMENT: Final = Experiment(
    name="ranks",
    title="Rank all algorithms on the FCAC paper's data, with Friedman and Nemenyi tests, beside "
    "its average ranks.",
    trials=TRIALS,
    splits=FCAC_SPLITS,
    datasets=tuple(FCAC_DATASETS),
    variants=(),
    formats=dict.fromkeys(SCORES, python_format(".4f")),
    run=_run,
    published=lambda setting: {},
    agrees=lambda setting, measure, measured, printed: None,
)
"""its settings have the key `algorithm`"""
