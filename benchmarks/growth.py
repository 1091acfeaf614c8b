"""How time, memory, disk and bytes grow with readings, clients, nodes, features, clusters, models
and regions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks.grown_federation import CONTRIBUTE_READINGS, Size
from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD, check_proc
from benchmarks.results import quick_option, rounded, table, write

FITTED = 3
"""number of sizes, the largest, that slopes are computed from: what a process takes at its start
hides growth among the smallest"""
TOLERANCE = 0.15
"""tolerance of a slope: twice as much may take 2^0.15 = 1.11 times what is proportional"""
HEADS = {
    "client_s": "clients, CPU s",
    "server_s": "server, CPU s",
    "upstream_s": "upstream, CPU s",
    "memory_mib": "memory, MiB",
    "client_bytes": "state of clients, KiB",
    "server_bytes": "state of the server, KiB",
    "log_bytes": "federation's log, KiB",
    "update_bytes": "updates, bytes per reading",
}


class Axis(NamedTuple):
    """One size of a federation that is varied, and how fast its costs may grow."""

    size: str
    """a field of `Size`"""
    quick: Sequence[int]
    usual: Sequence[int]
    more: Sequence[int]
    """further ones, with --long"""
    base: Size
    exponents: Mapping[str, float]
    """cost -> the most that it may grow: as this power of the size. Costs that are not here are not
    judged"""

    def sizes(self, quick: bool, longer: bool) -> list[int]:
        """Those of a quick, a usual or a long run."""
        return list(self.quick) if quick else [*self.usual, *(self.more if longer else ())]


LINEAR = dict.fromkeys(
    ("client_s", "server_s", "memory_mib", "client_bytes", "server_bytes", "log_bytes"), 1.0
)
REGIONS = "regions"
BOUNDED = {"memory_mib": 0.0, "client_bytes": 0.0, "server_bytes": 0.0}
AXES = (
    # The log keeps updates until its retention removes them; nothing else may hold on to readings.
    Axis(
        "readings",
        (2_000, 4_000),
        (10_000, 100_000, 10**6, 10**7),
        (10**8,),
        Size(),
        LINEAR | BOUNDED,
    ),
    Axis("clients", (1, 2), (1, 10, 100, 1_000, 10_000), (), Size(readings=1_000), LINEAR),
    # Each row is compared with each node; the server also keeps an edge where nodes are neighbours.
    Axis("nodes", (10, 20), (50, 100, 200, 400), (800,), Size(epsilon_per_feature=5.0), LINEAR),
    Axis("features", (2, 4), (2, 8, 32, 128), (512,), Size(), LINEAR),
    Axis("clusters", (4, 8), (8, 32, 128), (512,), Size(nodes=1_000), LINEAR),
    Axis("models", (1, 2), (1, 2, 4, 8), (16,), Size(readings=50_000), LINEAR),
    Axis(
        REGIONS,
        (1, 2),
        (1, 2, 4, 8),
        (16,),
        Size(readings=10_000, clients=4),
        LINEAR | {"upstream_s": 1.0},
    ),
)
QUICK_READINGS = 1_500
"""readings of each client, on all axes but that of readings"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("Small sizes, in seconds")
@click.option(
    "--long", "longer", is_flag=True, help="Largest sizes too, as 10^8 readings. Half an hour more."
)
@click.option(
    "--axis",
    "names",
    multiple=True,
    type=click.Choice([axis.size for axis in AXES]),
    help="Only these.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("benchmarks/results"),
    show_default=True,
    help="Folder for growth.json, growth.md and growth.svg.",
)
def main(quick: bool, longer: bool, names: tuple[str, ...], out: Path) -> None:
    """Run federations of many sizes, each in a process of its own, one size varied at a time. Half
    an hour; Linux."""
    check_proc()
    kernels = os.environ.get("SHOAL_KERNELS") or (
        "compiled" if find_spec("numba") and not quick else "numpy"
    )
    flags = " --quick" * quick + " --long" * longer + "".join(f" --axis {name}" for name in names)
    made_by = f"python -m benchmarks growth{flags}"
    machine = facts(("shoal", "numpy", "msgpack", "numba"))
    found = earlier(out) if names else {}
    run(Size(readings=1_000), kernels)  # which compiles the kernels where that has not been done
    for axis in AXES:
        if not names or axis.size in names:
            about = {"made_by": made_by, "machine": facts(())}
            found[axis.size] = about | measured(axis, axis.sizes(quick, longer), kernels, quick)
    axes = [found[axis.size] for axis in AXES if axis.size in found]
    result = {"made_by": made_by, "machine": machine, "kernels": kernels, "axes": axes}
    write(out, "growth", result, markdown(result))
    if find_spec("matplotlib"):
        from benchmarks.growth_picture import draw  # noqa: PLC0415 - the extra plot

        draw(result, out / "growth.svg")
    click.echo(f"written to {out}/growth.json and {out}/growth.md")


def earlier(folder: Path) -> dict[str, Any]:
    """The axes of the results in a folder, by name; those that are measured again are replaced."""
    file = folder / "growth.json"
    if not file.exists():
        return {}
    result = json.loads(file.read_text(encoding="utf-8"))
    # A run of all axes before they could be measured one by one has its command and machine once,
    # for all of them.
    about = {"made_by": result["made_by"], "machine": result["machine"]}
    return {axis["axis"]: about | axis for axis in result["axes"]}


def measured(axis: Axis, sizes: Sequence[int], kernels: str, quick: bool = False) -> dict[str, Any]:
    """The costs at each size, and the slope of each cost."""
    base = replace(axis.base, readings=QUICK_READINGS) if quick else axis.base
    points = []
    for number in sizes:
        size = replace(base, **{axis.size: number})
        points.append({"size": number, "readings": size.readings_total} | run(size, kernels))
        click.echo(
            f"{time.strftime('%H:%M:%S')} {axis.size} = {number}: {points[-1]['client_s']:.2f}"
            " CPU s"
        )
    slopes = {cost: slope(sizes, [point[cost] for point in points]) for cost in axis.exponents}
    return {
        "axis": axis.size,
        "base": asdict(base),
        "points": points,
        "slopes": slopes,
        "exponents": dict(axis.exponents),
        "faster": sorted(
            cost for cost, value in slopes.items() if value > axis.exponents[cost] + TOLERANCE
        ),
    }


def run(size: Size, kernels: str) -> dict[str, Any]:
    """The costs of a federation that runs in a process of its own. Raises RuntimeError if it
    fails."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.grown_federation", json.dumps(asdict(size))],
        capture_output=True,
        text=True,
        env=ONE_THREAD | {"SHOAL_KERNELS": kernels},
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{size}:\n{ended.stderr[-2000:]}")
    costs: dict[str, Any] = json.loads(ended.stdout)
    return costs


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size with which a cost grows: the slope of the line through the logarithms
    of the largest."""
    x = np.log(sizes[-FITTED:])
    y = np.log(np.maximum(costs[-FITTED:], 1e-9))
    return float(np.polyfit(x, y, 1)[0])


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    faster = [
        f"{axis['axis']}: {HEADS[cost]}" for axis in result["axes"] for cost in axis["faster"]
    ]
    parts = [
        f"# Growth\n\nMade by `{result['made_by']}`; do not edit.\n",
        (
            "Slopes are powers: at 1 a cost doubles with the size, at 0 it stays; the largest"
            " three sizes count. *May* is the most that a cost may grow; beyond it by more than"
            f" {TOLERANCE:g} it grows faster than it must.\n"
        ),
        (
            "Faster than they must: " + "; ".join(faster)
            if faster
            else "Nothing grows faster than it must."
        )
        + "\n",
        "![Costs by size](growth.svg)\n",
        *(_axis_table(axis) for axis in result["axes"]),
        (
            "A federation of FCAC with formal privacy on the embedded log, in one process: each"
            " client learns readings of one day in blocks of 20 000, and the server absorbs what"
            " it has published. Each region has four clients and contributes after"
            f" {rounded(CONTRIBUTE_READINGS)} readings; times and states of servers, and logs, are"
            " those of all regions, nodes and clusters the upstream server's. Memory is the peak"
            f" of the process; state is what is on the disk. Kernels: {result['kernels']}.\n"
        ),
        one_line(result["machine"]) + "\n",
    ]
    return "\n".join(parts)


def _axis_table(axis: dict[str, Any]) -> str:
    heads = {
        cost: head
        for cost, head in HEADS.items()
        if cost != "upstream_s" or axis["axis"] == REGIONS
    }
    lines = [
        [
            rounded(point["size"]),
            *(_shown(cost, point) for cost in heads),
            str(point["nodes"]),
            str(point["clusters"]),
        ]
        for point in axis["points"]
    ]
    slopes = axis["slopes"]
    may = axis["exponents"]
    lines.append(
        [
            "**slope**",
            *(f"**{slopes[cost]:.2f}**" if cost in slopes else "" for cost in heads),
            "",
            "",
        ]
    )
    lines.append(["may", *(f"{may[cost]:g}" if cost in may else "" for cost in heads), "", ""])
    heading = [axis["axis"], *heads.values(), "nodes of the server", "clusters"]
    machine = axis["machine"]
    made = (
        f"`{axis['made_by']}`, {machine['measured_at']}, {machine['cpu']}, load"
        f" {machine['load_average_1min']} before"
    )
    return f"## {axis['axis'].capitalize()}\n\n{table(heading, lines)}\n{made}.\n"


def _shown(cost: str, point: dict[str, Any]) -> str:
    if cost == "update_bytes":
        return rounded(point[cost] / point["readings"])
    return rounded(point[cost] / 1024 if cost.endswith("_bytes") else point[cost])
