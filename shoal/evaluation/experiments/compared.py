"""What the experiments with the algorithms that the FCAC paper compares itself with have in common.

Protocol (section 5.3): raw feature values, the paper's splits, as many clusters as there are classes, on clients too.
Published: the columns of tables 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.rounds.simulation import bounding_box, run_rounds
from shoal.evaluation import published_rounds
from shoal.evaluation.experiment import Setting, clients_of, data_of, within
from shoal.evaluation.results import Figure, python_format
from shoal.evaluation.scores import SCORES, scores

DATASETS: Final = ("phoneme", "optdigits", "pendigits")
FORMATS: Final = {**dict.fromkeys(SCORES, python_format(".4f")), "difference": python_format(".2g")}
SAME: Final = 1e-9
"""largest distance between centres that differ by rounding only"""


def run_one_shot(algorithm: RoundsAlgorithm, setting: Setting, trial: int, **more: object) -> dict[str, float]:
    """One trial of an algorithm with one round; `more` are options beside `clusters` and the setting's parameters."""
    dataset = data_of(setting)
    clients = clients_of(setting, dataset, trial)
    options = {"clusters": len(dataset.classes), **dict(setting.keys), **more}
    params = run_rounds(
        algorithm, algorithm.start(options, dataset.rows.shape[1], bounding_box(clients, trial)), clients
    ).params
    return scores(dataset.labels, algorithm.predict(params, dataset.rows))


def published_column(column: str, setting: Setting) -> Mapping[str, Figure]:
    """The figures of one column of tables 3 and 4 for a setting, by score; none for settings that the paper lacks."""
    if not setting.in_fcac_paper:
        return {}
    return published_rounds.COMPARED[column][setting.split].get(setting.fcac_name, {})


def _band(setting: Setting, measure: str, measured: Figure) -> float | None:
    return 3 * measured.sd if measure in SCORES else SAME


three_deviations = within(_band)
"""scores agree within three of their deviations, centres to rounding"""
