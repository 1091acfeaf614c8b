"""States of a client whose readings bear noise before they are learnt: at which epsilon some are
left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.results import table
from benchmarks.states_streams import FEATURES, autoregressive, dwells, means_apart
from shoal.estimators.states import States

EPSILONS: Final = (4.0, 7.0, 10.0, 13.0, 20.0, 30.0, 100.0)
"""of each feature of a reading"""
DWELLS: Final = (200, 500)
READINGS: Final = 10_000
APART: Final = 0.15
"""distance of both levels, as a part of the range of a feature; three deviations within one"""
SEEDS: Final = (9_101, 9_102, 9_103, 9_104)


def measure_noise(quick: bool) -> Iterator[dict[str, Any]]:
    """Adjusted Rand index, and in how many streams two states were found, by epsilon and dwell."""
    for dwell in DWELLS[: 1 if quick else None]:
        for epsilon in EPSILONS[-1:] if quick else (*EPSILONS, None):
            found = []
            ari = []
            for seed in SEEDS[: 1 if quick else None]:
                rng = np.random.default_rng([seed, dwell])
                truth = dwells(rng, READINGS, 2, dwell)
                around = autoregressive(rng, READINGS, FEATURES, 0.5)
                rows = (around + means_apart(rng, 2, 3.0)[truth]) * APART / 3
                if epsilon is not None:
                    # The mechanism draws the same on a grid.
                    rows = rows + rng.laplace(scale=1 / epsilon, size=rows.shape)
                labels = States().fit(rows).labels_
                found.append(len(np.unique(labels)))
                ari.append(float(adjusted_rand_score(truth, labels)))
            line = {"dwell": dwell, "epsilon": epsilon, "found": found, "ari": ari}
            click.echo(str(line))
            yield line


def noise_page(cells: list[dict[str, Any]]) -> str:
    """The section of the page."""
    if not cells:
        return ""
    by_key = {(cell["dwell"], cell["epsilon"]): cell for cell in cells}
    epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
    lines = []
    for dwell in dict.fromkeys(cell["dwell"] for cell in cells):
        entries = []
        for epsilon in epsilons:
            cell = by_key[dwell, epsilon]
            several = sum(number > 1 for number in cell["found"])
            entries.append(f"{np.mean(cell['ari']):.2f}, {several} of {len(cell['found'])}")
        lines.append([str(dwell), *entries])
    head = ["dwell", *("no noise" if e is None else f"ε {e:g}" for e in epsilons)]
    return (
        f"\n## Noise on readings\n\nTwo levels of {FEATURES} features, three deviations and"
        f" {APART:g} of the range apart, AR .5 within them, {READINGS} readings of one client; ε is"
        " of each feature of a reading. Mean adjusted Rand index, and in how many streams more than"
        " one state was found. A client learns from its own readings alone, so more clients do not"
        f" help.\n\n{table(head, lines)}"
    )
