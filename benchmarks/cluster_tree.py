"""Rows per second of `ClusterTree.fit` beside MiniBatchKMeans and HDBSCAN in the same run, and what
loading the compiled kernels costs the first rows of a process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from sklearn.cluster import HDBSCAN, MiniBatchKMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.forms import FORMS, use
from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, spread, table, write
from shoal import ClusterTree
from shoal.kernels.arrays import Floats
from shoal.kernels.forms import AUTO, COMPILED, NUMPY, VARIABLE

SEED: Final = 6
CLUSTERS: Final = 8
FEATURES: Final = 6
ROWS: Final = 100_000
HDBSCAN_ROWS: Final = 10_000
"""its time grows with the square of the rows"""
TURNS: Final = 5
FIRST_ROWS: Final = 5_000
PROCESSES: Final = 5
FIRST: Final = """
import sys, time
import numpy as np
from shoal import ClusterTree
rows = np.load(sys.argv[1])
ClusterTree().fit(rows[:200])
began = time.process_time()
ClusterTree().fit(rows)
print(time.process_time() - began)
"""
"""a program that prints the processor time of the first rows of its process"""


def stream(n: int) -> Floats:
    """n rows around `CLUSTERS` centres in the unit cube."""
    generator = np.random.default_rng(SEED)
    centres = generator.uniform(size=(CLUSTERS, FEATURES))
    return centres[generator.integers(CLUSTERS, size=n)] + generator.normal(0, 0.05, (n, FEATURES))


def rate(learn: Callable[[Floats], object], rows: Floats) -> float:
    """Rows learnt and labelled per second of processor time."""
    gc.collect()
    began = time.process_time()
    learn(rows)
    return len(rows) / (time.process_time() - began)


def turns_of(n: int, turns: int, hdbscan_rows: int) -> dict[str, list[float]]:
    """Rows per second of each learner in each turn."""
    rows = stream(n)
    few = rows[:hdbscan_rows]
    FORMS[COMPILED].load()
    rates: dict[str, list[float]] = {
        name: []
        for name in ("ClusterTree", "ClusterTree, NumPy's form", "MiniBatchKMeans", "HDBSCAN")
    }
    for _ in range(turns):
        use(COMPILED)
        rates["ClusterTree"].append(rate(lambda table: ClusterTree().fit(table), rows))
        # One pass over all rows, as ours: by default it ends once it hardly improves.
        kmeans = MiniBatchKMeans(
            CLUSTERS, n_init=1, max_iter=1, max_no_improvement=None, random_state=SEED
        )
        rates["MiniBatchKMeans"].append(rate(kmeans.fit, rows))
        rates["HDBSCAN"].append(rate(HDBSCAN(copy=True).fit, few))
        use(NUMPY)
        rates["ClusterTree, NumPy's form"].append(rate(lambda table: ClusterTree().fit(table), few))
    return rates


def first_rows(folder: Path, n: int, processes: int) -> dict[str, dict[str, float]]:
    """Processor seconds of the first n rows of a process, by the choice of kernels, in turns."""
    file = folder / "first_rows.npy"
    np.save(file, stream(n))
    took: dict[str, list[float]] = {AUTO: [], NUMPY: []}
    try:
        for _ in range(processes):
            for choice, seconds in took.items():
                environment = {**os.environ, VARIABLE: choice, "OPENBLAS_NUM_THREADS": "1"}
                ended = subprocess.run(
                    [sys.executable, "-c", FIRST, str(file)],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                seconds.append(float(ended.stdout))
    finally:
        file.unlink()
    return {choice: spread(seconds) for choice, seconds in took.items()}


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few rows, in seconds")
@out_option("cluster_tree")
def main(quick: bool, out: Path) -> None:
    """Measure ClusterTree beside MiniBatchKMeans and HDBSCAN on six features. A full run takes a
    minute or two."""
    machine = facts(("shoal", "numpy", "numba", "scikit-learn"))
    n, turns, hdbscan_rows = (6_000, 2, 1_000) if quick else (ROWS, TURNS, HDBSCAN_ROWS)
    out.mkdir(parents=True, exist_ok=True)
    with threadpool_limits(limits=1):
        rates = turns_of(n, turns, hdbscan_rows)
    first = first_rows(out, FIRST_ROWS, 1 if quick else PROCESSES)
    ours = np.array(rates["ClusterTree"])
    learners = {}
    for name, values in rates.items():
        ratios = ours / np.array(values)
        learners[name] = {
            "rows": n if name in ("ClusterTree", "MiniBatchKMeans") else hdbscan_rows,
            "rows_per_s": spread(values),
            "ours_by_theirs": spread(ratios.tolist()),
        }
    result = {
        "made_by": "python -m benchmarks cluster_tree" + " --quick" * quick,
        "machine": machine,
        "features": FEATURES,
        "learners": learners,
        "first_rows": {"rows": FIRST_ROWS, "seconds": first},
    }
    write(out, "cluster_tree", result, markdown(result))
    click.echo(f"written to {out}/cluster_tree.json and {out}/cluster_tree.md")


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        [
            name,
            f"{found['rows']:,}",
            rounded(found["rows_per_s"]["median"]),
            f"{rounded(found['rows_per_s']['low'])} to {rounded(found['rows_per_s']['high'])}",
            f"×{rounded(found['ours_by_theirs']['median'])}",
        ]
        for name, found in result["learners"].items()
    ]
    first = [
        [choice, rounded(seconds["median"]), f"{seconds['low']:.3g} to {seconds['high']:.3g}"]
        for choice, seconds in result["first_rows"]["seconds"].items()
    ]
    return "\n".join(
        [
            "# ClusterTree beside other libraries\n",
            f"Made by `{result['made_by']}`; do not edit.\n",
            table(["learner", "rows", "rows/s", "lowest to highest", "ClusterTree learns"], lines),
            (
                f"`fit` of {result['features']} features with labels of all rows; {CLUSTERS} "
                "Gaussian clusters. Processor time of one thread, all learners in turns: the last "
                "column is the median of the ratios of turns. HDBSCAN (scikit-learn's) takes fewer "
                "rows, as its time grows with their square.\n"
            ),
            (
                f"## The first {result['first_rows']['rows']:,} rows of a process\n\nProcessor "
                "seconds, by `SHOAL_KERNELS`: `auto` loads the compiled kernels once they are "
                "worth it.\n"
            ),
            table(["SHOAL_KERNELS", "seconds", "lowest to highest"], first),
            one_line(result["machine"]) + "\n",
        ]
    )
