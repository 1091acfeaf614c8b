"""Federated k-means by sums and by averages of local fits, beside Lloyd's algorithm on all rows in
one place.

The FCAC paper's column k-means is of all rows in one place, which rounds of sums equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from reproduction.experiment import Experiment, Figure, Setting, clients_of, data_of, scores
from reproduction.experiments.one_shot import DATASETS, FORMATS, published_column, three_deviations
from reproduction.published import TRIALS
from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.algorithms.rounds.kmeans_local import KMEANS_LOCAL
from shoal.kernels.matching import matched_distance
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds

ROUNDS: Final = 100
VARIANTS: Final = (("sums", "kfed"), ("sums", "box"), ("weighted", "kfed"), ("unweighted", "kfed"))
"""how answers are combined, and where rounds start: from a round of k-FED, or anywhere in the box
of the rows"""


def _run(setting: Setting, trial: int) -> dict[str, float]:
    dataset = data_of(setting)
    clients = clients_of(setting, dataset, trial)
    k = len(dataset.classes)
    d = dataset.rows.shape[1]
    init = bounding_box(clients, trial)
    if setting["start"] == "kfed":
        init = kfed_hint(k, clients, init, int(np.sqrt(k)) + 1 if setting.split == "kp" else 0)
    by_sums = KMEANS.start({"clusters": k}, d, init)
    pooled = run_rounds(KMEANS, by_sums, [np.concatenate(clients)], rounds_max=ROUNDS).params
    if setting["average"] == "sums":
        params = run_rounds(KMEANS, by_sums, clients, rounds_max=ROUNDS).params
    else:
        by_averages = KMEANS_LOCAL.start({"clusters": k, "average": setting["average"]}, d, init)
        params = run_rounds(KMEANS_LOCAL, by_averages, clients, rounds_max=ROUNDS).params
    difference = matched_distance(pooled["centre"], params["centre"])
    return {
        **scores(dataset.labels, KMEANS.predict(params, dataset.rows)),
        "difference": difference,
    }


def _published(setting: Setting) -> Mapping[str, Figure]:
    if setting["average"] != "sums" or setting["start"] != "kfed":
        return {}
    column = published_column("kmeans", setting)
    return {**column, "difference": Figure(0.0, 0.0)} if column else {}


TEXT: Final = """\
Published: the column k-means in tables 3 and 4 of the FCAC paper, which is of all rows in one
place. The band is three of our deviations over 20 trials. By sums, started from k-FED's centres,
`difference` is the distance of the centres from those of Lloyd's algorithm on all rows in one
place, from the same start: 0 up to rounding, whichever client holds which rows. Without published
figures: averages of local fits, and starts anywhere in the range of the data.
"""
EXPERIMENT: Final = Experiment(
    name="kmeans",
    title="Run federated k-means, by sums and by both averages, beside Lloyd's algorithm on all "
    "rows in one place.",
    trials=TRIALS,
    splits=("iid", "niid", "kp"),
    datasets=("s_set1", *DATASETS),
    variants=tuple((("average", average), ("start", start)) for average, start in VARIANTS),
    formats=FORMATS,
    run=_run,
    published=_published,
    agrees=three_deviations,
    text=TEXT,
)
