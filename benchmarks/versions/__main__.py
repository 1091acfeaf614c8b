"""The processor time of clients and servers in this version and in another one, in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD
from benchmarks.results import out_option, rounded, spread, table, write
from benchmarks.versions import work
from shoal.kernels.forms import NUMPY

HERE = Path(__file__).parent.parent.parent
PARTS = {
    "client": ("clients, per reading learnt", work.UPDATE_READINGS),
    "batches": ("server, per update, default settings", 1),
    "single": ("server, per update, a checkpoint and a snapshot for each", 1),
    "answer": ("clients, per answer in rounds", 1),
    "combine": ("server, per answer in rounds", 1),
}
"""part -> its name in the table, and how many of its units an update or an answer has"""


@click.command(context_settings={"max_content_width": 100})
@click.argument("reference", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option("--updates", default=400, show_default=True, help="And answers, of all clients together, in each turn.")
@click.option("--turns", default=7, show_default=True, help="Turns of both versions.")
@click.option("--quick", is_flag=True, help="Few updates, in seconds: shows that it runs; no figures to keep.")
@out_option("versions")
def main(reference: Path, updates: int, turns: int, quick: bool, out: Path) -> None:
    """Compare this version with the one in REFERENCE, a checkout such as `git worktree add` makes.

    Both run in this Python, with the packages that are installed in it. About two minutes.
    """
    updates, turns = (work.ANSWERING, 1) if quick else (max(1, updates // work.ANSWERING) * work.ANSWERING, turns)
    machine = facts(("numpy", "msgpack"))
    figures = [turn_of(reference, updates, number) for number in range(turns)]
    parts = {}
    for part, (_, units) in PARTS.items():
        ours, theirs = ([turn[which][part] / updates / units for turn in figures] for which in (0, 1))
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        parts[part] = {"seconds": spread(ours), "reference_seconds": spread(theirs), "ratio": spread(ratios)}
    result = {
        "made_by": "python -m benchmarks.versions REFERENCE" + " --quick" * quick,
        "machine": machine,
        "commit": commit(HERE),
        "reference": commit(reference),
        "updates": updates,
        "turns": turns,
        "nodes": [[turn[which]["nodes"] for turn in figures] for which in (0, 1)],
        "parts": parts,
    }
    write(out, "versions", result, markdown(result))
    for part, (name, _) in PARTS.items():
        click.echo(f"{name}: {parts[part]['ratio']['median']:.3f} times the processor time of the reference")
    click.echo(f"written to {out}/versions.json and {out}/versions.md")


def turn_of(reference: Path, updates: int, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of this version and of the reference; every second turn begins with the reference."""
    if number % 2:
        theirs = measured(reference, updates, number)
        return measured(HERE, updates, number), theirs
    return measured(HERE, updates, number), measured(reference, updates, number)


def measured(tree: Path, updates: int, seed: int) -> dict[str, Any]:
    """The figures of one run of the code in `tree`, in a process of its own."""
    # Without -P the folder of the script, and with it modules named like those of other packages, would come first.
    command = [sys.executable, "-P", str(Path(work.__file__).resolve()), str(updates), str(seed)]
    # Compiled kernels, which older versions lack, would hide all other differences.
    environment = ONE_THREAD | {"PYTHONPATH": str(tree), "SHOAL_KERNELS": NUMPY}
    ended = subprocess.run(command, env=environment, cwd=os.sep, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(ended.stdout)
    if Path(figures["tree"]) != tree or (figures["absorbed"], figures["answered"]) != (updates, updates):
        raise RuntimeError(f"not the work of {tree}: {ended.stdout}")
    return figures


def commit(tree: Path) -> str:
    """The commit that is checked out, with a `+` where files have been changed since; empty if git does not know."""
    command = ["git", "-C", str(tree), "describe", "--always", "--abbrev=10", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    lines = []
    for part, (name, _) in PARTS.items():
        found = result["parts"][part]
        seconds = (f"{rounded(1e6 * found[key]['median'])} µs" for key in ("seconds", "reference_seconds"))
        ratio = found["ratio"]
        lines.append([name, *seconds, f"**{ratio['median']:.3f}**", f"{ratio['low']:.3f} to {ratio['high']:.3f}"])
    head = ["processor time", result["commit"], f"reference, {result['reference']}", "ratio", "in single turns"]
    return "\n".join(
        [
            f"# The path in two versions\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(head, lines),
            f"{work.DIMENSIONS} features. Updates: FCAC, formal privacy, {work.CLIENTS} clients, "
            f"{work.UPDATE_READINGS} readings in each. "
            f"Answers: k-means, {work.ANSWERING} clients, windows of {work.WINDOW_ROWS} rows. "
            f"{result['updates']} of each in each of {result['turns']} turns; medians of the turns. "
            f"NumPy's form of the kernels. {same_work(result['nodes'])}\n",
            one_line(result["machine"]) + "\n",
        ]
    )


def same_work(nodes: list[list[int]]) -> str:
    """Whether both versions have learnt the same from the same readings and the same noise."""
    ours, theirs = nodes
    if ours == theirs:
        return "Both learnt models of the same size in every turn."
    return f"Their models differ, and with them their work: {ours} nodes, and {theirs} in the reference."


if __name__ == "__main__":
    main()
