"""The parts of a report: chapters, and tables of figures for people (Markdown, terminal) and for programs (JSON)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from reproduction.experiment import Experiment, Figure, Formats, Result


@dataclass(frozen=True)
class Table:
    """One table of a chapter: results, beside published figures where there are any."""

    results: Sequence[Result]
    formats: Formats
    text: str = ""
    """Markdown above the table"""


@dataclass(frozen=True)
class Picture:
    """One picture of a chapter."""

    path: Path
    """in the folder of the report"""
    caption: str


@dataclass(frozen=True)
class Chapter:
    """What one experiment has found."""

    name: str
    title: str
    text: str
    """Markdown: the source, the protocol, and how near a figure must be to the published one"""
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class ReportOptions:
    """How much of each experiment the report is to have."""

    data: Path | None
    """folder of the data sets; None: only what needs none"""
    out: Path
    """folder of the report, for pictures and finished trials"""
    jobs: int
    trials: int | None
    """of each setting; None: each experiment's own number"""
    quick: bool
    """small data and few trials: the form of the report, not its figures"""
    store: Path
    """the file of finished trials"""


@dataclass(frozen=True)
class Study:
    """An experiment that is not trials of one function: its own command, and its chapter of the report."""

    name: str
    title: str
    """one line for --help"""
    command: click.Command
    chapter: Callable[[ReportOptions], Chapter]
    experiment: Experiment | None = None
    """whose trials its worker processes run"""


Line = tuple[str, ...]
LABELS: Final[dict[str, str]] = {
    "dataset": "data set",
    "ari": "ARI",
    "ami": "AMI",
    "nmi": "NMI",
    "iid": "IID",
    "niid": "non-IID",
    "kp": "few classes",
    "label": "by class",
    "sector": "sectors",
    "pooled_dbscan": "DBSCAN on all rows",
}
"""how keys, measures and values of keys are shown where their names do not read well"""
VERDICTS: Final = {True: "agrees", False: "differs", None: ""}


def as_json(results: Sequence[Result]) -> str:
    """{"rows": [...]}: the keys of a result, `trials`, and `metrics` by name with `mean`, `sd` and `published`.

    `published` is the mean as printed; it and `sd` are null where there is none.
    """
    return json.dumps({"rows": [as_row(result) for result in results]}, indent=2)


def as_markdown(results: Sequence[Result], formats: Formats) -> str:
    """The table in Markdown, with columns aligned so that it reads well as it is.

    Where something was published a line has one measure, published beside obtained; otherwise a line has one result
    and a column for each measure.
    """
    headings, blocks = _table(results, formats)
    return drawn([headings, *(line for block in blocks for line in block)])


def drawn(lines: Sequence[Line]) -> str:
    """A table in Markdown with aligned columns; its headings come first."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    found = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    found.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(found)


def show(results: Sequence[Result], formats: Formats) -> None:
    """Print the table: drawn by rich on a terminal if it is installed, as Markdown otherwise."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console  # noqa: PLC0415 - needed on a terminal only
            from rich.table import Table  # noqa: PLC0415 - needed on a terminal only
        except ImportError:
            pass
        else:
            headings, blocks = _table(results, formats)
            table = Table(*headings)
            for block in blocks:
                for line in block:
                    table.add_row(*line)
                table.add_section()
            Console().print(table)
            return
    click.echo(as_markdown(results, formats))


def _table(results: Sequence[Result], formats: Formats) -> tuple[Line, list[list[Line]]]:
    """Headings, and the lines of each result."""
    keys = [label(name) for name in results[0].keys] if results else []
    if any(result.published for result in results):
        return (*keys, "measure", "published", "obtained", ""), [_compared(result, formats) for result in results]
    measures = [name for name in formats if any(name in result.measured for result in results)]
    lines = [
        (*key_cells(result.keys), *(figure_cell(result.measured, name, formats) for name in measures))
        for result in results
    ]
    return (*keys, *map(label, measures)), [[line] for line in lines]


def _compared(result: Result, formats: Formats) -> list[Line]:
    head = key_cells(result.keys)
    empty = [""] * len(head)
    return [
        (
            *(head if place == 0 else empty),
            label(name),
            figure_cell(result.published, name, formats),
            figure_cell(result.measured, name, formats),
            VERDICTS[result.agrees.get(name)],
        )
        for place, name in enumerate(name for name in formats if name in result.measured)
    ]


def key_cells(keys: Mapping[str, Any]) -> list[str]:
    """The values of a result's keys as a table shows them."""
    return [f"{value:g}" if isinstance(value, float) else label(str(value)) for value in keys.values()]


def figure_cell(figures: Mapping[str, Figure], name: str, formats: Formats) -> str:
    """A figure as a table shows it; "-" where there is none."""
    return figures[name].written(formats[name]) if name in figures else "-"


def label(name: str) -> str:
    """A name as a table shows it."""
    return LABELS.get(name, name)


def as_row(result: Result) -> dict[str, Any]:
    """One result as plain values, as `as_json` writes it."""
    metrics = {
        name: {
            "mean": figure.mean,
            "sd": None if math.isnan(figure.sd) else figure.sd,
            "published": result.published[name].mean if name in result.published else None,
        }
        for name, figure in result.measured.items()
    }
    return {**result.keys, "trials": result.trials, "metrics": metrics}
