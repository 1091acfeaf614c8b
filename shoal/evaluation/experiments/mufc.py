"""MUFC as the FCAC paper ran it, with k-means++ seeds alone and with full k-means on the clients."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.algorithms.rounds.mufc import MUFC
from shoal.evaluation.experiment import Experiment, Setting, data_of
from shoal.evaluation.experiments.compared import DATASETS, FORMATS, published_column, run_one_shot, three_deviations
from shoal.evaluation.published import TRIALS
from shoal.evaluation.splits import FCAC_SPLITS


def _run(setting: Setting, trial: int) -> dict[str, float]:
    # The authors' cells are 1 / sqrt(number of rows) of the range wide.
    return run_one_shot(MUFC, setting, trial, cells=max(1, round(np.sqrt(len(data_of(setting).rows)))))


TEXT: Final = """\
Published: the column MUFC in tables 3 and 4 of the FCAC paper. The band is three of our deviations over 20 trials.
k-means++ seeds alone are the paper's client half; the form with full k-means on clients has no published figures.
"""
EXPERIMENT: Final = Experiment(
    name="mufc",
    title="Run MUFC as the FCAC paper did and compare with its column of tables 3 and 4.",
    trials=TRIALS,
    splits=FCAC_SPLITS,
    datasets=DATASETS,
    variants=((("local", "seeds"),), (("local", "kmeans"),)),
    formats=FORMATS,
    run=_run,
    published=lambda setting: published_column("mufc", setting) if setting["local"] == "seeds" else {},
    agrees=three_deviations,
    text=TEXT,
)
