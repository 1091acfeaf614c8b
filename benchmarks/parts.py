"""Steadiness of parts on sensor streams: how often their number and names change, and how many
readings change part."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, table, write
from benchmarks.sensor_options import scaled
from benchmarks.steadiness.sensors import SENSORS, Table, read
from shoal import ClusterTree
from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract, parse_contract
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest
from shoal.kernels.lloyd import best_kmeans
from shoal.protocol.parts import Part, part_numbers
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.parts import Parts

CLIENTS: Final = 4
SNAPSHOT_READINGS: Final = 200
PROBES: Final = 1_000
"""readings of a stream whose part is looked up after each snapshot"""
ONE: Final = Lineage(clusters={0: Cluster(0)})
STREAMS: Final = {
    **SENSORS,
    "cmapss": Table("cmapss_fd001_train", ("unit", "cycle")),
    "nab": Table("nab_known_cause", ("timestamp", "series")),
    "wisdm": Table("wisdm_transformed", ("window_id", "user", "XAVG")),
}


def contract_of(width: int) -> Contract:
    """A federation of this many numbers between 0 and 1."""
    features = [{"name": f"feature {j}", "low": 0.0, "high": 1.0} for j in range(width)]
    models = [{"name": "clusters", "algorithm": "cluster_tree"}]
    given = {
        "federation": {"name": "parts"},
        "features": features,
        "privacy": {"mode": "off"},
        "models": models,
    }
    return parse_contract(given)


def as_one(view: ClusteringView) -> ClusteringView:
    """The same nodes, in one cluster."""
    return replace(view, cluster=np.zeros(len(view.nodes), dtype=np.int64))


def anew(view: ClusteringView, probes: Floats, k: int) -> Ints:
    """(n,) the cell of each probe by k-means that begins anew, numbered by size: what parts would
    be without memory."""
    nodes = np.clip(view.nodes, 0, 1)
    centres = best_kmeans(nodes, k, 0, 4, 50, view.mass)
    held = np.bincount(nearest(nodes, centres)[0], view.mass, len(centres))
    return nearest(probes, centres[np.argsort(-held, kind="stable")])[0]


def measured(rows: Floats) -> dict[str, Any]:
    """What changes from snapshot to snapshot on one stream (n, d)."""
    contract = contract_of(rows.shape[1])
    parts = Parts()
    learner = ClusterTree(clients=CLIENTS)
    algorithm = load_algorithm("cluster_tree")
    probes = rows[:: max(1, len(rows) // PROBES)][:PROBES]
    before: Sequence[Part] = ()
    was = np.empty(0, dtype=np.int64)
    was_anew = np.empty(0, dtype=np.int64)
    counts = {"numbers": 0, "names": 0, "with": 0, "one": 0, "snapshots": 0}
    moved = []
    moved_anew = []
    spent = []
    for at in range(0, len(rows), SNAPSHOT_READINGS):
        learner.partial_fit(rows[at : at + SNAPSHOT_READINGS])
        view = algorithm.view(learner._federation.server.snapshot())
        began = time.process_time()
        found = parts.follow(as_one(view), ONE, contract, min(len(rows), at + SNAPSHOT_READINGS))
        spent.append(time.process_time() - began)
        now = part_numbers(found, probes, contract.features)
        counts["snapshots"] += 1
        counts["one"] += int(len(view.centres) == 1)
        counts["with"] += bool(found)
        counts["numbers"] += bool(before) and [part.number for part in found] != [
            part.number for part in before
        ]
        if found and len(found) == len(before):
            counts["names"] += sum(
                part.label != other.label for part, other in zip(found, before, strict=True)
            )
            moved.append(float((now != was).mean()))
            now_anew = anew(view, probes, len(found))
            if len(was_anew):
                moved_anew.append(float((now_anew != was_anew).mean()))
            was_anew = now_anew
        before = found
        was = now
    per = 1_000 / max(1, counts["with"] * SNAPSHOT_READINGS)
    return {
        "readings": len(rows),
        "features": rows.shape[1],
        "one": counts["one"] / counts["snapshots"],
        "with": counts["with"] / counts["snapshots"],
        "parts": len(before),
        "labels": [part.label for part in before],
        "numbers": counts["numbers"] * per,
        "names": counts["names"] * per,
        "moved": float(np.sum(moved)) * per,
        "moved_anew": float(np.sum(moved_anew)) * per,
        "usual_ms": 1e3 * float(np.median(spent)),
        "most_ms": 1e3 * max(spent),
    }


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the files. [default: SHOAL_DATA]",
)
@quick_option("One file, few readings")
@out_option("parts")
def main(data: Path | None, quick: bool, out: Path) -> None:
    """Measure how steady the parts of cluster_tree are on sensor streams, all of whose nodes count
    as one cluster."""
    folder = data or Path(os.environ.get("SHOAL_DATA", "data"))
    machine = facts(("shoal", "numpy"))
    streams = {"office": STREAMS["office"]} if quick else STREAMS
    found: dict[str, dict[str, Any]] = {}
    with threadpool_limits(limits=1):
        for name, stream in streams.items():
            if not (folder / f"{stream.file}.csv.gz").exists():
                raise click.UsageError(
                    f"{folder} has no {stream.file}.csv.gz; name the folder with --data or"
                    " SHOAL_DATA"
                )
            rows = scaled(read(folder, stream)[0])
            found[name] = measured(rows[:3_000] if quick else rows)
            click.echo(f"{name}: {found[name]}", err=True)
    result = {
        "made_by": "python -m benchmarks parts" + " --quick" * quick,
        "machine": machine,
        "streams": found,
    }
    write(out, "parts", result, markdown(result))


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        [
            name,
            f"{stream['readings']:,}",
            str(stream["features"]),
            f"{stream['one']:.0%}",
            f"{stream['with']:.0%}",
            str(stream["parts"]),
        ]
        + [rounded(stream[key]) for key in ("numbers", "names")]
        + [f"{stream[key]:.1%}" for key in ("moved", "moved_anew")]
        + [rounded(stream[key]) for key in ("usual_ms", "most_ms")]
        for name, stream in result["streams"].items()
    ]
    head = [
        "stream",
        "readings",
        "features",
        "one cluster",
        "with parts",
        "parts at the end",
        "number changes",
    ]
    head += ["name changes", "change part", "k-means anew", "ms", "at most"]
    return "\n".join(
        [
            f"# How steady parts are\n\nMade by `{result['made_by']}`; do not edit.\n",
            (
                "Sensor files in the order of time, each feature from 0 to 1 between its"
                f" quantiles; cluster_tree of {CLIENTS} clients, a snapshot every"
                f" {SNAPSHOT_READINGS} readings, all nodes taken for one cluster. *One cluster*:"
                " share of the snapshots in which there really is one. Changes are for each 1 000"
                " readings with parts, names of all parts together; *change part* is the share of"
                f" {PROBES:,} fixed readings of the stream, beside k-means of as many cells that"
                " begins anew. Milliseconds are of processor time, for each snapshot.\n"
            ),
            table(head, lines),
            one_line(result["machine"]) + "\n",
        ]
    )
