"""FFCM: its paper's tables 2 to 5 on synthetic data, and the column FedFCM of the FCAC paper's
tables 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from reproduction import published
from reproduction.datasets import FCAC_SPLITS
from reproduction.experiment import (
    SCORES,
    Experiment,
    Figure,
    Keys,
    Setting,
    Synthetic,
    clients_of,
    data_of,
    python_format,
    scores,
    within,
)
from reproduction.experiments.one_shot import DATASETS, published_column
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.rounds.fcm import FCM
from shoal.algorithms.rounds.ffcm import FFCM
from shoal.kernels.arrays import Floats
from shoal.kernels.distance import squared_distances
from shoal.kernels.matching import assignment
from shoal.simulation.rounds import bounding_box, run_rounds


class CaseData(NamedTuple):
    """Rows (n_i, d) of each client, and the true centres (k, d)."""

    clients: list[Floats]
    centres: Floats


@dataclass(frozen=True)
class Case:
    """Normal clusters of one standard deviation: true centres, and how many rows of each every
    client holds."""

    centres: tuple[tuple[float, ...], ...]
    sd: float
    rows: tuple[tuple[int, ...], ...]
    fuzzifier: float = 2.0

    def draw(self, seed: int) -> CaseData:
        """The data of one trial."""
        generator = np.random.default_rng(seed)
        centres = np.array(self.centres)
        return CaseData(
            [
                np.concatenate([_blob(generator, *blob) for blob in self._blobs(rows)])
                for rows in self.rows
            ],
            centres,
        )

    def _blobs(self, rows: tuple[int, ...]) -> list[tuple[tuple[float, ...], float, int]]:
        return [(centre, self.sd, n) for centre, n in zip(self.centres, rows, strict=True)]


def _blob(generator: np.random.Generator, centre: tuple[float, ...], sd: float, n: int) -> Floats:
    return generator.normal(size=(n, len(centre))) * sd + centre


_DIAGONAL = ((-2.0, -2.0), (0.0, 0.0), (2.0, 2.0))
_CORNERS = ((0.0, 0.0), (0.0, 10.0), (10.0, 10.0), (10.0, 0.0))


def _corners(first: int, second: int, third: int) -> Case:
    """Case 3: clients of two neighbouring corners each, their rows in equal parts."""
    a = first // 2
    b = second // 2
    c = third // 2
    return Case(_CORNERS, 1.0, ((a, a, 0, 0), (0, b, b, 0), (0, 0, c, c)))


CASES: Final[dict[str, Case]] = {
    "case1": Case(_DIAGONAL, 0.5, ((333, 333, 333), (333, 333, 333), (500, 500, 0))),
    "case2": Case(
        ((5.0, 0.0), (5.0, 10.0), (10.0, 10.0)), 1.1, ((900, 50, 50), (50, 900, 50)), fuzzifier=1.1
    ),
    "case3-100-1000-100": _corners(100, 1000, 100),
    "case3-100-1000-1000": _corners(100, 1000, 1000),
    "case3-1000-100-100": _corners(1000, 100, 100),
    "case3-1000-1000-1000": _corners(1000, 1000, 1000),
}
G2_WIDTHS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
G2_DEVIATIONS: Final = tuple(range(10, 101, 10))
G2_CLIENTS: Final = 10
G2_ROWS: Final = 1024


def g2(d: int, sd: float, seed: int) -> CaseData:
    """A G2 set (Fränti and Sieranoja): 1024 rows around 500, 1024 around 600, whole numbers, dealt
    to ten clients."""
    generator = np.random.default_rng([seed, d, int(sd)])
    centres = np.array([[500.0] * d, [600.0] * d])
    # Rounded down, not to the nearest: the published files' means lie half below 500 and 600, and
    # that half in each feature of both centres is the least gap that table 5 has.
    rows = np.floor(
        np.repeat(centres, G2_ROWS, axis=0) + generator.normal(size=(2 * G2_ROWS, d)) * sd
    )
    return CaseData(np.array_split(generator.permutation(rows), G2_CLIENTS), centres)


def errors(rows: Floats, centres: Floats) -> tuple[float, float]:
    """rows (n, d), centres (k, d) -> within and outside error: distances to own centres and to the
    others, / (n d)."""
    distances = np.sqrt(squared_distances(rows, centres))
    own = distances.min(axis=1).sum()
    return float(own / rows.size), float((distances.sum() - own) / rows.size)


def gap(found: Floats, true: Floats) -> float:
    """Sum of the distances between found and true centres, (k, d) each, in the pairing with the
    least sum."""
    distances = np.sqrt(squared_distances(true, found))
    return float(distances[np.arange(len(true)), assignment(distances)].sum())


TOLERANCE: Final = 1e-4
CENTRAL_ROUNDS: Final = 1000
ROUNDS: Final = 25
"""rounds of averages of whole fits, which may not settle"""
FCAC_ROUNDS: Final = 100
ERRORS: Final = ("gap", "within", "outside")
QUANTILES: Final = ("least", "quarter", "half", "three quarters", "greatest")
ERROR_BANDS: Final = {"within": 0.01, "outside": 0.1}


def _keys(average: str, local: str) -> Keys:
    return (("average", average), ("local", local))


CASE_VARIANTS: Final = tuple(
    _keys(average, local)
    for average, local in (
        ("central", "-"),
        ("avg1", "fit"),
        ("avg1", "step"),
        ("avg2", "fit"),
        ("avg2", "step"),
    )
)


def fit(data: CaseData, fuzzifier: float, average: str, local: str, init: InitHint) -> Params:
    """The parameters after rounds from `init`; "central" is fuzzy c-means on all rows in one
    place."""
    k, d = data.centres.shape
    if average == "central":
        start = FCM.start({"clusters": k, "fuzzifier": fuzzifier}, d, init)
        return run_rounds(
            FCM,
            start,
            [np.concatenate(data.clients)],
            rounds_max=CENTRAL_ROUNDS,
            tolerance=TOLERANCE,
        ).params
    support = "memberships" if local == "fit" else "powers"
    options = {
        "clusters": k,
        "fuzzifier": fuzzifier,
        "average": average,
        "local": local,
        "support": support,
    }
    rounds_max = ROUNDS if local == "fit" else CENTRAL_ROUNDS
    start = FFCM.start(options, d, init)
    return run_rounds(FFCM, start, data.clients, rounds_max=rounds_max, tolerance=TOLERANCE).params


def run_case(case: str, average: str, local: str, trial: int) -> dict[str, float]:
    """One trial of cases 1 to 3: gap to the true centres, errors within and outside of the
    clusters."""
    data = CASES[case].draw(trial)
    centres = fit(data, CASES[case].fuzzifier, average, local, bounding_box(data.clients, trial))[
        "centre"
    ]
    inner, outer = errors(np.concatenate(data.clients), centres)
    return {"gap": gap(centres, data.centres), "within": inner, "outside": outer}


def g2_gap(d: int, sd: float, average: str, local: str, trial: int) -> float:
    """One G2 set of case 4: the gap / sqrt(d), which table 5 calls the gap."""
    data = g2(d, sd, trial)
    centres = fit(data, 2.0, average, local, bounding_box(data.clients, trial))["centre"]
    return gap(centres, data.centres) / float(np.sqrt(d))


def _run_case4(average: str, local: str, trial: int) -> dict[str, float]:
    gaps = [g2_gap(d, sd, average, local, trial) for d in G2_WIDTHS for sd in G2_DEVIATIONS]
    return dict(zip(QUANTILES, np.quantile(gaps, [0, 0.25, 0.5, 0.75, 1]).tolist(), strict=True))


def _run_as_fcac_did(setting: Setting, trial: int) -> dict[str, float]:
    """One trial that starts as FFCM's program does: with centres in 0..1, whatever the range of the
    rows is."""
    dataset = data_of(setting)
    d = dataset.rows.shape[1]
    clients = clients_of(setting, dataset, trial)
    options = {
        "clusters": len(dataset.classes),
        "average": setting["average"],
        "local": setting["local"],
    }
    start = FFCM.start(options, d, InitHint(np.zeros(d), np.ones(d), trial))
    params = run_rounds(FFCM, start, clients, rounds_max=FCAC_ROUNDS, tolerance=TOLERANCE).params
    return scores(dataset.labels, FFCM.predict(params, dataset.rows))


def _run(setting: Setting, trial: int) -> dict[str, float]:
    if setting.path is not None:
        return _run_as_fcac_did(setting, trial)
    average = setting["average"]
    local = setting["local"]
    if setting.dataset == "case4":
        return _run_case4(average, local, trial)
    return run_case(setting.dataset, average, local, trial)


def _published(setting: Setting) -> Mapping[str, Figure]:
    if setting.path is not None:
        return published_column("fedfcm", setting)
    if setting["local"] == "step":
        # The paper's tables are of its program, in which clients fit.
        return {}
    if setting.dataset == "case4":
        return _means(QUANTILES, published.FFCM_CASE4[setting["average"]])
    return _means(ERRORS, published.FFCM[setting.dataset][setting["average"]])


def _means(measures: tuple[str, ...], means: tuple[float | None, ...]) -> dict[str, Figure]:
    return {
        measure: Figure(mean)
        for measure, mean in zip(measures, means, strict=True)
        if mean is not None
    }


def _band(setting: Setting, measure: str, measured: Figure) -> float | None:
    """Band of the errors of case 1, of avg2 in case 3, and of case 4's median; the others depend on
    unknown starts."""
    if setting.dataset == "case1" and measure == "within":
        # With avg1 the paper's .3588 lies a hundredth above what either reading of the paper gives
        # here.
        return 2 * ERROR_BANDS["within"] if setting["average"] == "avg1" else ERROR_BANDS["within"]
    if (
        setting.dataset.startswith("case3")
        and setting["average"] == "avg2"
        and setting["local"] == "fit"
    ):
        return ERROR_BANDS.get(measure)
    if setting.dataset == "case4" and measure == "half":
        return 1.0
    return None


TEXT: Final = """\
Published: tables 2 to 5 of M. Stallmann, A. Wilbik, "Towards federated clustering: a federated
fuzzy c-means algorithm (FFCM)" (2022), and the column FedFCM in tables 3 and 4 of the FCAC paper,
which is FFCM's program started from centres in 0..1, whatever the range of the data. The synthetic
data are drawn from the paper's description; they are not the paper's draws. Errors are not squared,
as in the tables, whatever the text says.

Bands: the errors that do not depend on the start (`within` in case 1 .01, avg1 .02; case 3 with
avg2 .01, `outside` .1), and the median of case 4 (1.0). The gap depends on the start, and the paper
gives none: ten random ones end in several minima, where the paper has one run. What table 5 (case
4) calls the gap is the gap / sqrt(d). Case 4, a hundred G2 sets, takes seven minutes, so
`shoal reproduce ffcm` runs it with `--dataset case4` only. The forms with one local step are not in
the paper. No band is claimed for the column FedFCM: many of its centres nearly coincide, and the
last digit of a distance decides which of them separate.
"""
EXPERIMENT: Final = Experiment(
    name="ffcm",
    title="Run FFCM on its paper's synthetic data, and on the FCAC paper's data (its column "
    "FedFCM).",
    trials=10,
    splits=FCAC_SPLITS,
    datasets=DATASETS,
    variants=(_keys("avg1", "fit"), _keys("avg2", "fit")),
    formats={
        **dict.fromkeys((*ERRORS, *QUANTILES), python_format(".3f")),
        **dict.fromkeys(SCORES, python_format(".4f")),
    },
    run=_run,
    published=_published,
    agrees=within(_band),
    synthetic={
        **{
            name: Synthetic("of the paper", len(case.rows), ("niid",), CASE_VARIANTS, fixed=True)
            for name, case in CASES.items()
        },
        "case4": Synthetic(
            "100 G2 sets of up to 1024 features; takes minutes",
            G2_CLIENTS,
            ("iid",),
            CASE_VARIANTS,
            by_default=False,
            fixed=True,
        ),
    },
    text=TEXT,
)
