"""k-FED and MUFC as the FCAC paper ran them, and what experiments have in common with which it
compares itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from reproduction import published
from reproduction.datasets import FCAC_SPLITS
from reproduction.experiment import (
    SCORES,
    Experiment,
    Figure,
    Setting,
    clients_of,
    data_of,
    python_format,
    scores,
    within,
)
from reproduction.published import TRIALS
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.rounds.kfed import KFED
from shoal.algorithms.rounds.mufc import MUFC
from shoal.simulation.rounds import bounding_box, run_rounds

DATASETS: Final = ("phoneme", "optdigits", "pendigits")
FORMATS: Final = {**dict.fromkeys(SCORES, python_format(".4f")), "difference": python_format(".2g")}
SAME: Final = 1e-9
"""largest distance between centres that differ by rounding only"""


def run_one_shot(
    algorithm: RoundsAlgorithm, setting: Setting, trial: int, **more: object
) -> dict[str, float]:
    """One trial of an algorithm with one round; `more` are options beside `clusters` and the
    setting's parameters."""
    dataset = data_of(setting)
    clients = clients_of(setting, dataset, trial)
    options = {"clusters": len(dataset.classes), **dict(setting.keys), **more}
    params = run_rounds(
        algorithm,
        algorithm.start(options, dataset.rows.shape[1], bounding_box(clients, trial)),
        clients,
    ).params
    return scores(dataset.labels, algorithm.predict(params, dataset.rows))


def published_column(column: str, setting: Setting) -> Mapping[str, Figure]:
    """The figures of one column of tables 3 and 4 for a setting, by score; none for settings that
    the paper lacks."""
    if not setting.in_fcac_paper:
        return {}
    return published.COMPARED[column][setting.split].get(setting.fcac_name, {})


def _band(setting: Setting, measure: str, measured: Figure) -> float | None:
    return 3 * measured.sd if measure in SCORES else SAME


three_deviations = within(_band)
"""scores agree within three of their deviations, centres to rounding"""


def _run_kfed(setting: Setting, trial: int) -> dict[str, float]:
    # The start is the paper's in both forms, so that they differ by the means alone.
    return run_one_shot(KFED, setting, trial, pick="farthest")


KFED_TEXT: Final = """\
Published: the column k-FED in tables 3 and 4 of the FCAC paper. The band is three of our deviations
over 20 trials. Unweighted means on the server are the paper's; the form with weighted means has no
published figures.
"""
KFED_EXPERIMENT: Final = Experiment(
    name="kfed",
    title="Run k-FED as the FCAC paper did and compare with its column of tables 3 and 4.",
    trials=TRIALS,
    splits=FCAC_SPLITS,
    datasets=DATASETS,
    variants=((("average", "unweighted"),), (("average", "weighted"),)),
    formats=FORMATS,
    run=_run_kfed,
    published=lambda setting: (
        published_column("kfed", setting) if setting["average"] == "unweighted" else {}
    ),
    agrees=three_deviations,
    text=KFED_TEXT,
)


def _run_mufc(setting: Setting, trial: int) -> dict[str, float]:
    # The authors' cells are 1 / sqrt(number of rows) of the range wide.
    return run_one_shot(
        MUFC, setting, trial, cells=max(1, round(np.sqrt(len(data_of(setting).rows))))
    )


MUFC_TEXT: Final = """\
Published: the column MUFC in tables 3 and 4 of the FCAC paper. The band is three of our deviations
over 20 trials. k-means++ seeds alone are the paper's client half; the form with full k-means on
clients has no published figures.
"""
MUFC_EXPERIMENT: Final = Experiment(
    name="mufc",
    title="Run MUFC as the FCAC paper did and compare with its column of tables 3 and 4.",
    trials=TRIALS,
    splits=FCAC_SPLITS,
    datasets=DATASETS,
    variants=((("local", "seeds"),), (("local", "kmeans"),)),
    formats=FORMATS,
    run=_run_mufc,
    published=lambda setting: (
        published_column("mufc", setting) if setting["local"] == "seeds" else {}
    ),
    agrees=three_deviations,
    text=MUFC_TEXT,
)
