"""An experiment: the adjusted Rand index of random labels, whose expected value is 0 (Hubert and
Arabie, 1985)."""

from __future__ import annotations

import numpy as np

from reproduction.experiment import (
    Experiment,
    Figure,
    Setting,
    Synthetic,
    python_format,
    scores,
    within,
)

ROWS = 500
TRIALS = 20


def run(setting: Setting, trial: int) -> dict[str, float]:
    """The index of one draw; everything random in it follows from the number of the trial."""
    classes, labels = np.random.default_rng(trial).integers(setting["clusters"], size=(2, ROWS))
    return {"ari": scores(classes, labels)["ari"]}


def band(setting: Setting, measure: str, measured: Figure) -> float:
    """Three standard errors of the mean over the trials."""
    return 3.0 * measured.sd / TRIALS**0.5


VARIANTS = ((("clusters", 2),), (("clusters", 10),))
CHANCE = Experiment(
    name="chance",
    title="Score random labels: their adjusted Rand index is 0 on average.",
    trials=TRIALS,
    splits=("iid",),
    datasets=(),
    variants=VARIANTS,
    synthetic={
        "random": Synthetic(f"{ROWS} rows of random classes", 1, ("iid",), VARIANTS, fixed=True)
    },
    formats={"ari": python_format(".4f")},
    run=run,
    published=lambda setting: {"ari": Figure(0.0)},
    agrees=within(band),
    text=(
        "Published: L. Hubert and P. Arabie (1985). The band is three standard errors of the"
        " mean.\n"
    ),
)
