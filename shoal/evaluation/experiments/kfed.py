"""k-FED as the FCAC paper ran it, with plain and with weighted means on the server."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.rounds.kfed import KFED
from shoal.evaluation.experiment import Experiment, Setting
from shoal.evaluation.experiments.compared import DATASETS, FORMATS, published_column, run_one_shot, three_deviations
from shoal.evaluation.published import TRIALS
from shoal.evaluation.splits import FCAC_SPLITS


def _run(setting: Setting, trial: int) -> dict[str, float]:
    return run_one_shot(KFED, setting, trial)


TEXT: Final = """\
Published: the column k-FED in tables 3 and 4 of the FCAC paper. The band is three of our deviations over 20 trials.
Unweighted means on the server are the paper's; the form with weighted means has no published figures.
"""
EXPERIMENT: Final = Experiment(
    name="kfed",
    title="Run k-FED as the FCAC paper did and compare with its column of tables 3 and 4.",
    trials=TRIALS,
    splits=FCAC_SPLITS,
    datasets=DATASETS,
    variants=((("average", "unweighted"),), (("average", "weighted"),)),
    formats=FORMATS,
    run=_run,
    published=lambda setting: published_column("kfed", setting) if setting["average"] == "unweighted" else {},
    agrees=three_deviations,
    text=TEXT,
)
