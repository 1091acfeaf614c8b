"""What defaults of algorithms in rounds are worth on labelled tables: the server of k-FED, first
centres, and the number of clusters by the gap statistic.

Every feature is brought to a standard deviation of 1 and a mean of 0, and the rows are dealt to
clients in three ways. Costs are sums of squared distances to the nearest centre, relative to those
of scikit-learn's k-means on all rows in one place, the best of five starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import folder_option, out_option, quick_option, table, write
from benchmarks.steadiness.sensors import Table, read
from shoal.algorithms.rounds.kfed import KFED
from shoal.estimators.federated import FederatedKMeans
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest
from shoal.simulation.rounds import bounding_box

CHOOSING: Final = {
    "iris": load_iris,
    "wine": load_wine,
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}
"""tables of scikit-learn on which the defaults were chosen, with optdigits"""
REPORTING: Final = {
    "pendigits": Table("pendigits"),
    "waveform": Table("waveform_v1"),
    "phoneme": Table("phoneme"),
    "wall_robot": Table("wall_robot"),
    "wine_quality": Table("wine_quality_red"),
    "mozilla4": Table("mozilla4", ("id",)),
    "magic": Table("magic_telescope", ("ID",)),
    "gas": Table("gas_drift_8of10", ("batch", "concentration")),
    "xclara": Table("xclara"),
    "s_set1": Table("s_set1"),
}
"""files of other tables"""
ROWS_MAX: Final = 1500
CLIENTS_MAX: Final = 10
CLIENT_ROWS_MIN: Final = 20
SEEDS: Final = (11, 12)
KFED_FORMS: Final = (
    ("farthest", "unweighted"),
    ("farthest", "weighted"),
    ("seeded", "unweighted"),
    ("seeded", "weighted"),
)
"""`pick` and `average`: the paper's first, the defaults last"""
STARTS: Final = ("kfed", "box")
GAP_MOST: Final = 20


@dataclass(frozen=True)
class Labelled:
    """A table with the class of each row."""

    name: str
    role: str
    """whether the defaults were chosen on it"""
    rows: Floats
    classes: Ints

    @property
    def clusters(self) -> int:
        """The number of classes."""
        return len(np.unique(self.classes))


def labelled(name: str, role: str, rows: Floats, classes: Ints) -> Labelled:
    """At most `ROWS_MAX` rows, standardised, without features that never change."""
    if len(rows) > ROWS_MAX:
        kept = np.random.default_rng(1).permutation(len(rows))[:ROWS_MAX]
        rows = rows[kept]
        classes = classes[kept]
    spread = rows.std(axis=0)
    rows = (rows - rows.mean(axis=0))[:, spread > 0.0] / spread[spread > 0.0]
    return Labelled(name, role, rows, np.unique(classes, return_inverse=True)[1])


def tables(data: Path | None, quick: bool) -> Iterator[Labelled]:
    """The tables of scikit-learn, and those of the folder."""
    for name, load in CHOOSING.items():
        if not quick or name == "iris":
            bunch = load()
            yield labelled(name, "choosing", bunch.data, bunch.target)
    if data is not None:
        yield labelled("optdigits", "choosing", *read(data, Table("optdigits")))
        for name, file in REPORTING.items():
            yield labelled(name, "reporting", *read(data, file))


def dealt_evenly(classes: Ints, clients: int, seed: int) -> list[Ints]:
    """Rows of every class on each client."""
    return np.array_split(np.random.default_rng(seed).permutation(len(classes)), clients)


def dealt_by_class(classes: Ints, clients: int, seed: int) -> list[Ints]:
    """Rows of two runs of classes on each client."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(classes))
    runs = np.array_split(order[np.argsort(classes[order], kind="stable")], 2 * clients)
    turn = generator.permutation(2 * clients)
    return [
        np.concatenate([runs[turn[2 * client]], runs[turn[2 * client + 1]]])
        for client in range(clients)
    ]


def dealt_by_dirichlet(classes: Ints, clients: int, seed: int) -> list[Ints]:
    """Of each class a share on each client that a Dirichlet distribution of 0.1 draws."""
    generator = np.random.default_rng(seed)
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for number in np.unique(classes):
        own = generator.permutation(np.flatnonzero(classes == number))
        ends = np.cumsum(generator.dirichlet(np.full(clients, 0.1)))[:-1] * len(own)
        for part, some in zip(parts, np.split(own, ends.astype(np.int64)), strict=True):
            part.append(some)
    joined = [np.concatenate(part) for part in parts]
    return [part for part in joined if len(part) >= CLIENT_ROWS_MIN]


DEALINGS: Final[dict[str, Callable[[Ints, int, int], list[Ints]]]] = {
    "IID": dealt_evenly,
    "by class": dealt_by_class,
    "Dirichlet .1": dealt_by_dirichlet,
}


def cost_of(rows: Floats, centres: Floats) -> float:
    """The sum of squared distances of the rows to their nearest centres."""
    return float(nearest(rows, centres)[1].sum())


def agreement(data: Labelled, centres: Floats) -> float:
    """Adjusted Rand index of the nearest centres and the classes."""
    return float(adjusted_rand_score(data.classes, nearest(data.rows, centres)[0]))


def measured_kfed(data: Labelled, clients: list[Floats], seed: int) -> dict[str, Floats]:
    """The centres of each form of k-FED's server, of the same answers."""
    box = bounding_box(clients, seed)
    width = data.rows.shape[1]
    answers = [
        KFED.answer(KFED.start({"clusters": data.clusters}, width, box), rows) for rows in clients
    ]
    centres = {}
    for pick, average in KFED_FORMS:
        start = KFED.start(
            {"clusters": data.clusters, "pick": pick, "average": average}, width, box
        )
        centres[f"{pick}, {average}"] = KFED.combine(start, answers)["centre"]
    return centres


def measured(data: Labelled, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Costs relative to pooled k-means, and agreement, of each dealing: means over the seeds."""
    pooled = KMeans(data.clusters, n_init=5, random_state=0).fit(data.rows).cluster_centers_
    least = cost_of(data.rows, pooled)
    count = max(3, min(CLIENTS_MAX, len(data.rows) // 50))
    for dealing, deal in DEALINGS.items():
        costs: dict[str, list[float]] = {}
        scores: dict[str, list[float]] = {}
        dead = []
        for seed in seeds:
            clients = [data.rows[own] for own in deal(data.classes, count, seed)]
            centres = measured_kfed(data, clients, seed)
            for init in STARTS:
                fitted = FederatedKMeans(data.clusters, init=init, random_state=seed).fit(clients)
                centres[f"k-means, {init}"] = fitted.cluster_centers_
                if init == "box":
                    dead.append(data.clusters - len(np.unique(fitted.labels_)))
            for name, found in centres.items():
                costs.setdefault(name, []).append(cost_of(data.rows, found) / least)
                scores.setdefault(name, []).append(agreement(data, found))
        yield {
            "table": data.name,
            "role": data.role,
            "clusters": data.clusters,
            "dealing": dealing,
            "cost": {name: float(np.mean(values)) for name, values in costs.items()},
            "ari": {name: float(np.mean(values)) for name, values in scores.items()},
            "dead": float(np.mean(dead)),
            "pooled_ari": agreement(data, pooled),
        }


def gap_of(data: Labelled) -> dict[str, Any]:
    """The number that "gap" chooses, and whether it warns that there may be more."""
    clients = [data.rows[own] for own in dealt_evenly(data.classes, 5, SEEDS[0])]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        chosen = FederatedKMeans("gap", max_clusters=GAP_MOST, max_rounds=1).fit(clients)
    warned = any("at least" in str(warning.message) for warning in given)
    return {
        "table": data.name,
        "classes": data.clusters,
        "chosen": int(chosen.n_clusters_),
        "warned": warned,
    }


def summary(cells: Sequence[dict[str, Any]], role: str) -> list[list[str]]:
    """Rows of the table of geometric means of the cost, by form and dealing."""
    lines = []
    for name in cells[0]["cost"]:
        line = [name]
        for dealing in DEALINGS:
            own = [cell for cell in cells if cell["role"] == role and cell["dealing"] == dealing]
            if not own:
                return []
            costs = [cell["cost"][name] for cell in own]
            score = float(np.mean([cell["ari"][name] for cell in own]))
            mean = float(np.exp(np.mean(np.log(costs))))
            line.append(f"{mean:.3f} (at most {max(costs):.2f}), ARI {score:.3f}")
        lines.append(line)
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    cells = result["cells"]
    parts = [f"# Defaults of algorithms in rounds\n\nMade by `{result['made_by']}`; do not edit.\n"]
    parts.append((__doc__ or "").strip())
    for role, title in (
        ("choosing", "Tables on which the defaults of k-FED were chosen"),
        ("reporting", "Other tables"),
    ):
        lines = summary(cells, role)
        if lines:
            names = ", ".join(
                dict.fromkeys(cell["table"] for cell in cells if cell["role"] == role)
            )
            head = ["server of k-FED (pick, average), or k-means by sums from", *DEALINGS]
            parts.append(f"\n## {title}\n\n{names}. Geometric mean of the costs.\n")
            parts.append(table(head, lines))
    lines = []
    for cell in cells:
        figures = [f"{cell['cost'][name]:.3f}" for name in cell["cost"]]
        lines.append([cell["table"], cell["dealing"], *figures, f"{cell['dead']:.1f}"])
    head = ["table", "dealing", *cells[0]["cost"], "centres without rows from box"]
    parts.append("\n## Each table\n\n" + table(head, lines))
    lines = [
        [gap["table"], str(gap["classes"]), str(gap["chosen"]), "yes" if gap["warned"] else "no"]
        for gap in result["gaps"]
    ]
    head = ["table", "classes", f'"gap", at most {GAP_MOST}', "warns: at least as many"]
    parts.append("\n## The number by the gap statistic\n\n" + table(head, lines))
    parts.append(one_line(result["machine"]) + "\n")
    return "\n".join(parts)


@click.command(context_settings={"max_content_width": 100})
@quick_option("One small table")
@folder_option("--data", "Folder of NAME.csv.gz files, for the tables that nothing was chosen on.")
@out_option("rounds_tables")
def main(quick: bool, data: Path | None, out: Path) -> None:
    """Measure defaults of algorithms in rounds on labelled tables."""
    seeds = SEEDS[:1] if quick else SEEDS
    cells: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    machine = facts(("shoal", "numpy", "scikit-learn"))
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Of scales and centres without rows: both are counted here.
        warnings.simplefilter("ignore", UserWarning)
        for labelled_table in tables(data, quick):
            cells.extend(measured(labelled_table, seeds))
            gaps.append(gap_of(labelled_table))
            click.echo(f"{labelled_table.name}: {gaps[-1]}")
    made_by = "python -m benchmarks rounds.tables" + " --quick" * quick
    made_by += " --data FOLDER" * (data is not None)
    result = {"made_by": made_by, "machine": machine, "cells": cells, "gaps": gaps}
    write(out, "rounds_tables", result, markdown(result))
    click.echo(f"written to {out}/rounds_tables.json and {out}/rounds_tables.md")


if __name__ == "__main__":
    main()
