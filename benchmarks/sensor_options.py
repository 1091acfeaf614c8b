"""Clusters of sensor files by algorithm and by what one may turn: the figures of
docs/how-to/believe.md."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, table, write
from benchmarks.steadiness.sensors import Table, read
from shoal import FCAC, ClusterTree, DensityTree, FederatedGMM, FederatedKMeans
from shoal.estimators.states import States
from shoal.kernels.arrays import Floats

READINGS: Final = 8000
ENDS: Final = 0.001, 0.999
"""quantiles of a feature that are brought to 0 and 1"""
SPECK: Final = 0.01
"""share of the readings below which a cluster is a speck"""
FILES: Final = {
    "UCI Air Quality": Table(
        "air_quality_uci", ("timestamp", "CO_GT", "C6H6_GT", "NOx_GT", "NO2_GT", "T")
    ),
    "Beijing PM2.5": Table("beijing_pm25", ("timestamp", "cbwd", "pm2.5", "Is", "Ir")),
    "SKAB valves": Table("skab_valves", ("datetime", "run", "changepoint")),
    "C-MAPSS FD001 engines": Table("cmapss_fd001_train", ("unit", "cycle")),
    "NOAA weather": Table("noaa_weather"),
    "UCI Occupancy": Table("occupancy", ("date", "part", "HumidityRatio")),
}


class Choice(NamedTuple):
    """An algorithm with options: rows (n, d) in 0 to 1 -> the cluster of each (n,), -1 for none."""

    algorithm: str
    turned: str
    labels: Callable[[Floats], Any]


def _fitted(kind: Callable[..., Any], rows: Floats, **options: Any) -> Any:
    return kind(**options).fit(rows).predict(rows)


def _of_density(rows: Floats, **options: Any) -> Any:
    return _fitted(partial(DensityTree, low=0.0, high=1.0, random_state=0), rows, **options)


def _states(rows: Floats) -> Any:
    return States().fit(rows).labels_


def _choices() -> list[Choice]:
    def of(name: str, fit: Callable[..., Any], *turned: dict[str, Any]) -> list[Choice]:
        words = [
            ", ".join(f"{option} = {value}" for option, value in options.items())
            for options in turned
        ]
        return [
            Choice(name, word or "default", partial(fit, **options))
            for word, options in zip(words, turned, strict=True)
        ]

    trees = partial(_fitted, ClusterTree)
    fcac = partial(_fitted, FCAC)
    means = partial(_fitted, FederatedKMeans)
    mixtures = partial(_fitted, FederatedGMM)
    return [
        *of(
            "ClusterTree",
            trees,
            {},
            {"split_significance": 3.0},
            {"split_significance": 2.0},
            {"cells_max": 4000},
        ),
        *of(
            "DensityTree",
            _of_density,
            {},
            {"epsilon": None},
            {"cut_significance": 2.5},
            {"depth": 0.2},
        ),
        *of("FCAC", fcac, {}, {"edge_factor": 0.3}, {"similarity": "cae"}),
        *of("k-means", means, *({"n_clusters": choice} for choice in ("silhouette", "gap"))),
        *of("mixture", mixtures, *({"n_clusters": choice} for choice in ("silhouette", "bic"))),
        Choice("States", "default", _states),
    ]


def scaled(rows: Floats) -> Floats:
    """rows (n, d) between 0 and 1, without features that are the same everywhere."""
    low, high = np.quantile(rows, ENDS, axis=0)
    varying = high > low
    found: Floats = np.clip((rows[:, varying] - low[varying]) / (high - low)[varying], 0.0, 1.0)
    return found


def measured(rows: Floats, choice: Choice) -> dict[str, Any]:
    """Clusters, those of them that are specks, the share of the largest, and seconds of processor
    time."""
    began = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        labels = np.asarray(choice.labels(rows))
    _, sizes = np.unique(labels[labels >= 0], return_counts=True)
    shares = sizes / max(1, len(labels))
    return {
        "clusters": len(shares),
        "specks": int((shares < SPECK).sum()),
        "largest": float(shares.max(initial=0.0)),
        "seconds": time.process_time() - began,
    }


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the files. [default: SHOAL_DATA]",
)
@quick_option("Few readings and files")
@out_option("sensor_options")
def main(data: Path | None, quick: bool, out: Path) -> None:
    """Count the clusters of sensor files by algorithm and option, from the first 8 000 readings of
    one client."""
    folder = data or Path(os.environ.get("SHOAL_DATA", "data"))
    machine = facts(("shoal", "numpy"))
    files = dict(list(FILES.items())[-1:]) if quick else FILES
    found: dict[str, dict[str, Any]] = {}
    choices = _choices()
    with threadpool_limits(limits=1):
        for name, file in files.items():
            if not (folder / f"{file.file}.csv.gz").exists():
                raise click.UsageError(
                    f"{folder} has no {file.file}.csv.gz; name the folder with --data or SHOAL_DATA"
                )
            rows = scaled(read(folder, file)[0][: 600 if quick else READINGS])
            results = {f"{c.algorithm}: {c.turned}": measured(rows, c) for c in choices}
            found[name] = {"readings": len(rows), "features": rows.shape[1], "of": results}
            click.echo(f"{name} is done", err=True)
    result = {
        "made_by": "python -m benchmarks sensor_options" + " --quick" * quick,
        "machine": machine,
        "files": found,
    }
    write(out, "sensor_options", result, markdown(result))


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    files = result["files"]
    names = list(next(iter(files.values()))["of"])
    lines = [[name, *(_cell(file["of"][name]) for file in files.values())] for name in names]
    head = [
        "clusters (of them specks)",
        *(f"{name}, {file['features']}" for name, file in files.items()),
    ]
    took = [
        [name, *(rounded(file["of"][name]["seconds"]) for file in files.values())] for name in names
    ]
    return "\n".join(
        [
            f"# What to turn, on sensor files\n\nMade by `{result['made_by']}`; do not edit.\n",
            (
                f"The first {READINGS:,} complete readings of each file, with its number of"
                f" features, scaled to 0-1 between the quantiles {ENDS[0]:g} and {ENDS[1]:g}; one"
                f" client. A speck has less than {SPECK:.0%} of the readings.\n"
            ),
            table(head, lines),
            table(["seconds of processor time", *files], took),
            one_line(result["machine"]) + "\n",
        ]
    )


def _cell(one: dict[str, Any]) -> str:
    return f"{one['clusters']}" + (f" ({one['specks']})" if one["specks"] else "")
