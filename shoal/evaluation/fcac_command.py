"""`shoal reproduce fcac`: tables 3 and 4 of the FCAC paper, run again on the data sets of a folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click

from shoal.errors import SettingsError, ShoalError
from shoal.evaluation import datasets, published, report, scores, splits, workers
from shoal.evaluation.datasets import Dataset, Fill
from shoal.evaluation.fcac_protocol import Outcome, Trial, run
from shoal.evaluation.published import METRICS, SPLITS, Split

Key = tuple[str, Split]


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    data: Path | None
    names: tuple[str, ...]
    trials: int
    split: Literal["iid", "niid", "both"]
    epsilon: float | None
    clients: int | None
    fill: Fill
    jobs: int
    as_json: bool
    check: bool


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="SHOAL_DATA",
    show_envvar=True,
    help="Folder of NAME.csv.gz files: a header, numeric features, a last column `label`.",
)
@click.option(
    "--dataset", "names", multiple=True, metavar="NAME", help="May be repeated; without it, the paper's that are there."
)
@click.option("--trials", type=click.IntRange(1), default=published.TRIALS, show_default=True)
@click.option("--split", type=click.Choice([*SPLITS, "both"]), default="both", show_default=True)
@click.option(
    "--epsilon",
    type=click.FloatRange(0, min_open=True),
    help="The paper's Laplace noise, per feature; without it, no noise.",
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    help="Without it, the paper's number; for other data one per 400 rows, from 2 to 50.",
)
@click.option(
    "--fill",
    type=click.Choice(list(get_args(Fill))),
    default="refuse",
    show_default=True,
    help="What to do about missing cells.",
)
@click.option("--jobs", type=click.IntRange(1), default=workers.usable_cores, help="Processes; all cores without it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--check", is_flag=True, help="Exit with 1 when a published figure does not come out to its last digit.")
def fcac(**options: Any) -> None:
    """Run FCAC as its paper did and print what was published beside what was obtained."""
    asked = Asked(**options)
    paths = _paths(asked)
    planned: list[Trial] = []
    rejected: list[ShoalError] = []
    for path in paths:
        try:
            planned += _planned(path, asked)
        except ShoalError as reason:
            rejected.append(reason)
            if len(paths) > 1:
                click.echo(f"refused: {reason}", err=True)
    rows = _rows(_run_all(planned, asked.jobs))
    if rows and asked.as_json:
        click.echo(report.as_json(rows))
    elif rows:
        report.show(rows)
    if rejected:
        # What could be run was run and printed; the first refusal decides how the command ends.
        raise rejected[0]
    if asked.check and not all(row.agrees() for row in rows):
        click.echo("a published figure did not come out again", err=True)
        raise click.exceptions.Exit(1)


def _paths(asked: Asked) -> list[Path]:
    if asked.data is None:
        raise SettingsError("say where the data are, with --data FOLDER or SHOAL_DATA: a folder of NAME.csv.gz files")
    if asked.check and (asked.trials != published.TRIALS or asked.epsilon is not None):
        raise SettingsError(
            f"--check compares the paper's {published.TRIALS} trials without noise; leave the others out"
        )
    if not asked.names:
        return datasets.papers_files(asked.data)
    return list(dict.fromkeys(datasets.find(asked.data, name) for name in asked.names))


def _planned(path: Path, asked: Asked) -> list[Trial]:
    """All trials of one data set. Raises what reading and dealing it out raise."""
    dataset = datasets.read(path, asked.fill)
    for note in dataset.notes:
        click.echo(note, err=True)
    chosen: Sequence[Split] = SPLITS if asked.split == "both" else (asked.split,)
    clients = {split: _clients(dataset, split, asked.clients) for split in chosen}
    return [
        Trial(path, asked.fill, split, clients[split], number, asked.epsilon)
        for split in chosen
        for number in range(asked.trials)
    ]


def _clients(dataset: Dataset, split: Split, asked: int | None) -> int:
    key = datasets.known_as(dataset.name)
    number = asked or (datasets.KNOWN[key].clients if key else splits.usual_clients(len(dataset.rows)))
    if split == "iid":
        return number
    if asked:
        splits.dealt(dataset.labels, number, split, 0)
        return number
    found = splits.feasible_clients(dataset.labels, number)
    if found != number:
        click.echo(f"{dataset.name}: too small for {number} clients in the non-IID split, {found} are used", err=True)
    return found


def _run_all(planned: Sequence[Trial], jobs: int) -> dict[Key, list[tuple[Trial, Outcome]]]:
    """The outcomes by data set and split, in the order planned; a line on stderr as each group is complete."""
    groups: dict[Key, list[tuple[Trial, Outcome]]] = {}
    sizes: dict[Key, int] = {}
    for trial in planned:
        groups.setdefault(trial.key, [])
        sizes[trial.key] = sizes.get(trial.key, 0) + 1
    with click.progressbar(length=len(planned), label="trials", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        for trial, outcome in workers.spread(run, planned, jobs):
            group = groups[trial.key]
            group.append((trial, outcome))
            bar.update(1)
            if len(group) == sizes[trial.key] and not sys.stderr.isatty():
                click.echo(f"{' '.join(trial.key)}: {len(group)} trials done", err=True)
    return groups


def _rows(groups: dict[Key, list[tuple[Trial, Outcome]]]) -> list[report.Row]:
    rows = []
    for (name, split), group in groups.items():
        outcomes = [outcome for _, outcome in sorted(group, key=lambda pair: pair[0].number)]
        found = {metric: scores.figure([getattr(outcome, metric) for outcome in outcomes]) for metric in METRICS}
        key = datasets.known_as(name)
        trial = group[0][0]
        as_published = key and trial.epsilon is None and trial.clients == datasets.KNOWN[key].clients
        printed = published.FCAC[split][key] if key and as_published else None
        rows.append(report.Row(name, split, len(outcomes), found, printed))
    return rows
