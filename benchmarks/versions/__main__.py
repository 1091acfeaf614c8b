"""The processor time of producers, clients and servers in this version and in another one, in
turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD
from benchmarks.results import out_option, quick_option, rounded, spread, table, write
from benchmarks.versions import work
from shoal.kernels.forms import COMPILED, NUMPY

HERE = Path(__file__).parent.parent.parent
PARTS = {
    "client": ("clients, per reading learnt", work.UPDATE_READINGS),
    "batches": ("server, per update, default settings", 1),
    "single": ("server, per update, a checkpoint and a snapshot for each", 1),
    "answer": ("clients, per answer in rounds", 1),
    "combine": ("server, per answer in rounds", 1),
}
"""part -> its name in the table, and how many of its units an update or an answer has"""
PATH_PARTS = {
    "produced": "producer",
    "learnt": "clients",
    "absorbed": "server",
    "path": "together",
    "numbers": "numbers read from text, alone",
    "arithmetic": "noise and clustering, alone",
    "log": "readings through a log, alone",
}
QUICK_READINGS = 10_000
PATH_KERNELS = COMPILED if find_spec("numba") else NUMPY


@click.command(context_settings={"max_content_width": 100})
@click.argument(
    "reference", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
)
@click.option(
    "--updates",
    default=400,
    show_default=True,
    help="And answers, of all clients together, in each turn.",
)
@click.option(
    "--readings", default=100_000, show_default=True, help="Of the path from a file, in each turn."
)
@click.option("--turns", default=7, show_default=True, help="Turns of both versions.")
@quick_option("Few updates, in seconds")
@out_option("versions")
def main(reference: Path, updates: int, readings: int, turns: int, quick: bool, out: Path) -> None:
    """Compare this version with the one in REFERENCE, a checkout such as `git worktree add` makes.

    Both run in this Python, with the packages that are installed in it. About four minutes.
    """
    updates, turns = (
        (work.ANSWERING, 1)
        if quick
        else (max(1, updates // work.ANSWERING) * work.ANSWERING, turns)
    )
    readings = QUICK_READINGS if quick else readings
    machine = facts(("numpy", "msgpack"))
    figures = [turn_of(reference, updates, number) for number in range(turns)]
    parts = {}
    for part, (_, units) in PARTS.items():
        ours, theirs = (
            [turn[which][part] / updates / units for turn in figures] for which in (0, 1)
        )
        ratios = [seconds / other for seconds, other in zip(ours, theirs, strict=True)]
        parts[part] = {
            "seconds": spread(ours),
            "reference_seconds": spread(theirs),
            "ratio": spread(ratios),
        }
    walked = [turn_of(reference, readings, number, path=True) for number in range(turns)]
    path = {}
    for part in PATH_PARTS:
        ours, theirs = ([turn[which][part] / readings for turn in walked] for which in (0, 1))
        ratios = [seconds / other for seconds, other in zip(ours, theirs, strict=True)]
        path[part] = {
            "seconds": spread(ours),
            "reference_seconds": spread(theirs),
            "ratio": spread(ratios),
        }
    result = {
        "made_by": "python -m benchmarks versions REFERENCE" + " --quick" * quick,
        "machine": machine,
        "commit": commit(HERE),
        "reference": commit(reference),
        "updates": updates,
        "turns": turns,
        "nodes": [[turn[which]["nodes"] for turn in figures] for which in (0, 1)],
        "parts": parts,
        "readings": readings,
        "path_kernels": PATH_KERNELS,
        "path_nodes": [[turn[which]["nodes"] for turn in walked] for which in (0, 1)],
        "path": path,
        "sync_s": spread([turn[0]["sync"] for turn in walked]),
        "load_after": round(os.getloadavg()[0], 2),
    }
    write(out, "versions", result, markdown(result))
    for part, (name, _) in PARTS.items():
        click.echo(
            f"{name}: {parts[part]['ratio']['median']:.3f} times the processor time of the"
            " reference"
        )
    click.echo(
        f"the whole path: {path['path']['ratio']['median']:.3f} times the processor time of the"
        " reference"
    )
    click.echo(f"written to {out}/versions.json and {out}/versions.md")


def turn_of(
    reference: Path, amount: int, number: int, *, path: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of this version and of the reference; every second turn begins with the
    reference.

    The first one does, so that a folder that is no version is known at once.
    """
    if number % 2:
        return measured(HERE, amount, number, path), measured(reference, amount, number, path)
    theirs = measured(reference, amount, number, path)
    return measured(HERE, amount, number, path), theirs


def measured(tree: Path, amount: int, seed: int, path: bool) -> dict[str, Any]:
    """The figures of one run of the code in `tree`, in a process of its own: of `amount` updates
    and answers, or of `amount` readings on the whole path."""
    # Without -P the folder of the script, and with it modules named like those of other packages,
    # would come first.
    script = str(Path(work.__file__).resolve())
    command = [sys.executable, "-P", script, "path" if path else "parts", str(amount), str(seed)]
    # Compiled kernels would hide the other differences of updates and answers.
    kernels = PATH_KERNELS if path else NUMPY
    with tempfile.TemporaryDirectory() as folder:
        write_entry_points(tree, Path(folder))
        path_of_tree = os.pathsep.join([str(tree), folder])
        environment = ONE_THREAD | {"PYTHONPATH": path_of_tree, "SHOAL_KERNELS": kernels}
        ended = subprocess.run(
            command, env=environment, cwd=os.sep, capture_output=True, text=True, check=False
        )
    if ended.returncode:
        raise RuntimeError(f"not the work of {tree}: {ended.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    if path:
        figures["path"] = figures["produced"] + figures["learnt"] + figures["absorbed"]
        done = figures["updates"] == -(-amount // work.PATH_UPDATE_READINGS)
    else:
        done = (figures["absorbed"], figures["answered"]) == (amount, amount)
    if Path(figures["tree"]) != tree or not done:
        raise RuntimeError(f"not the work of {tree}: {ended.stdout}")
    return figures


def write_entry_points(tree: Path, folder: Path) -> None:
    """The entry points of a version that is not installed, as files by which Python finds them: a
    producer would take the sources of the installed version for its own."""
    settings = tree / "pyproject.toml"
    if not settings.exists():
        # Its work says what is missing.
        return
    project = tomllib.loads(settings.read_text(encoding="utf-8"))["project"]
    lines = []
    for group, names in project.get("entry-points", {}).items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {place}" for name, place in names.items()]
    metadata = folder / "shoal-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def commit(tree: Path) -> str:
    """The commit that is checked out, with a `+` where files have been changed since; empty if git
    does not know."""
    command = ["git", "-C", str(tree), "describe", "--always", "--abbrev=10", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    lines = []
    for part, (name, _) in PARTS.items():
        found = result["parts"][part]
        seconds = (
            f"{rounded(1e6 * found[key]['median'])} µs" for key in ("seconds", "reference_seconds")
        )
        ratio = found["ratio"]
        lines.append(
            [
                name,
                *seconds,
                f"**{ratio['median']:.3f}**",
                f"{ratio['low']:.3f} to {ratio['high']:.3f}",
            ]
        )
    head = [
        "processor time",
        result["commit"],
        f"reference, {result['reference']}",
        "ratio",
        "in single turns",
    ]
    ways = []
    for part, name in PATH_PARTS.items():
        found = result["path"][part]
        whole = result["path"]["path"]["seconds"]["median"]
        seconds = (
            f"{1e6 * found[key]['median']:.1f} µs" for key in ("seconds", "reference_seconds")
        )
        ratio = found["ratio"]
        share = f"{found['seconds']['median'] / whole:.0%}"
        ways.append(
            [
                name,
                *seconds,
                share,
                f"**{ratio['median']:.3f}**",
                f"{ratio['low']:.3f} to {ratio['high']:.3f}",
            ]
        )
    path_head = ["processor time of a reading", *head[1:3], "of the whole", *head[3:]]
    return "\n".join(
        [
            f"# The path in two versions\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(head, lines),
            (
                f"{work.DIMENSIONS} features. Updates: FCAC, formal privacy, {work.CLIENTS}"
                f" clients, {work.UPDATE_READINGS} readings in each. Answers: k-means,"
                f" {work.ANSWERING} clients, windows of {work.WINDOW_ROWS} rows."
                f" {result['updates']} of each in each of {result['turns']} turns; medians of the"
                f" turns. NumPy's form of the kernels. {same_work(result['nodes'])}\n"
            ),
            "## A reading from a file to the model\n",
            table(path_head, ways),
            (
                f"{result['readings']} readings of {work.PATH_DIMENSIONS} features from a CSV file"
                f" through a producer, {work.CLIENTS} clients and a server, on the embedded log, by"
                f" default settings (an update is of {work.PATH_UPDATE_READINGS} readings), one"
                f" process after the other; {result['path_kernels']} kernels. What is alone is a"
                " part of the others' work that none of them can do without: numbers by"
                " `numpy.loadtxt`; noise and FCAC by the estimator, without message, log or disk;"
                " readings stored and read once, as producer and client do. A write to the disk"
                f" that waits until it is there took {1e3 * result['sync_s']['median']:.1f} ms"
                f" (median; {1e3 * result['sync_s']['low']:.1f} to"
                f" {1e3 * result['sync_s']['high']:.1f} in single turns)."
                f" {same_work(result['path_nodes'])} Load {result['load_after']} at the end.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )


def same_work(nodes: list[list[int]]) -> str:
    """Whether both versions have learnt the same from the same readings and the same noise."""
    ours, theirs = nodes
    if ours == theirs:
        return "Both learnt models of the same size in every turn."
    return (
        f"Their models differ, and with them their work: {ours} nodes, and {theirs} in the"
        " reference."
    )
