"""`shoal reproduce continual`: the continual-learning scenario of the FCAC paper, measured and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from shoal.errors import SettingsError
from shoal.evaluation import workers
from shoal.evaluation.continual import MODES, SCHEDULE, Mode, Round, run, subsets
from shoal.evaluation.continual_picture import draw
from shoal.evaluation.published import Figure
from shoal.evaluation.scores import figure

Runs = dict[tuple[Mode, int], list[Round]]

MEASURES: Final[dict[str, tuple[str, Callable[[Round], float]]]] = {
    "ari": (".3f", lambda row: row.ari),
    "nodes": (".1f", lambda row: row.nodes),
    "clusters": (".1f", lambda row: row.clusters),
    "bytes": (".0f", lambda row: row.bytes_sent),
    "kept": (".4f", lambda row: min(row.kept.values())),
    "covered": (".3f", lambda row: min(row.covered.values())),
    "found": (".4f", lambda row: min(row.found.values())),
}
"""what is measured after each round; shares are those of the worst subset"""


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Runs, of as many seeds from 0.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Draw the run of seed 0 into this file.")
@click.option("--jobs", type=click.IntRange(1), default=workers.usable_cores, help="Processes; all cores without it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def continual(seeds: int, out: Path | None, jobs: int, as_json: bool) -> None:
    """Two clients and a server learn three Gaussians in three rounds: is anything lost on the way?"""
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    runs: Runs = {}
    planned = [(mode, seed) for mode in MODES for seed in range(seeds)]
    for job, rounds in workers.spread(_run, planned, jobs):
        runs[job] = rounds
        click.echo(f"contribute {job[0]}, seed {job[1]}: done", err=True)
    if out is not None:
        draw(runs["changed", 0], subsets(0), out)
        click.echo(f"drawn: {out}", err=True)
    measured = {
        (mode, number): _measured([runs[mode, seed][number] for seed in range(seeds)])
        for mode in MODES
        for number in range(len(SCHEDULE))
    }
    click.echo(_as_json(measured, seeds) if as_json else _as_markdown(measured))


def _run(job: tuple[Mode, int]) -> list[Round]:
    mode, seed = job
    return run(seed, mode)


def _measured(rounds: list[Round]) -> dict[str, Figure]:
    return {name: figure([measure(row) for row in rounds]) for name, (_, measure) in MEASURES.items()}


def _as_json(measured: dict[tuple[Mode, int], dict[str, Figure]], seeds: int) -> str:
    rows = [
        {
            "contribute": mode,
            "round": number + 1,
            "seeds": seeds,
            "metrics": {name: {"mean": found.mean, "sd": found.sd} for name, found in figures.items()},
        }
        for (mode, number), figures in measured.items()
    ]
    return json.dumps({"rows": rows}, indent=2)


def _as_markdown(measured: dict[tuple[Mode, int], dict[str, Figure]]) -> str:
    lines = ["| contribute | round | " + " | ".join(MEASURES) + " |", "|---" * (2 + len(MEASURES)) + "|"]
    for (mode, number), figures in measured.items():
        cells = [f"{figures[name].mean:{form}} ({figures[name].sd:{form}})" for name, (form, _) in MEASURES.items()]
        lines.append(f"| {mode} | {number + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
