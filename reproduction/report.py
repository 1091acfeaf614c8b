"""The parts of a report: chapters, pictures, and tables for people (Markdown, terminal) and for
programs (JSON)."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import click

from reproduction.experiment import Experiment, Formats, Result
from shoal.errors import MissingExtra


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
    """file in the folder of the report"""
    caption: str


@dataclass(frozen=True)
class Chapter:
    """Findings of one experiment."""

    name: str
    title: str
    text: str
    """Markdown: the source, the protocol, and how near a figure must be to the published one"""
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class ReportOptions:
    """Extent of each experiment in the report."""

    data: Path | None
    """folder of the data sets; None: only what needs none"""
    out: Path
    """folder of the report, for pictures and finished trials"""
    jobs: int
    trials: int | None
    """trials of each setting; None: each experiment's own number"""
    quick: bool
    """small data and few trials: the form of the report, not its figures"""
    store: Path
    """the file of finished trials"""


@dataclass(frozen=True)
class Study:
    """An experiment that is not trials of one function: its own command, and its chapter of the
    report."""

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
Row = Mapping[str, Any]
"""one result as plain values: its keys, `trials`, `metrics`, and `written`: by measure, what tables
show as published, obtained, verdict"""
NOT_KEYS: Final = {"trials", "metrics", "written"}
NONE: Final = "-"
"""text that a table shows where there is no figure"""
VERDICTS: Final = {True: "agrees", False: "differs", None: ""}


def as_json(results: Sequence[Result]) -> str:
    """{"rows": [...]}: the keys of a result, `trials`, and `metrics` by name with `mean`, `sd` and
    `published`.

    `published` is the mean as printed; it and `sd` are null where there is none.
    """
    return json.dumps({"rows": [as_row(result) for result in results]}, indent=2)


def as_markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown, with aligned columns: of one kind of rows, as `row_of` makes them.

    Where something was published a line has one measure, published beside obtained; otherwise a
    line has one result and a column for each measure.
    """
    headings, blocks = _table(rows)
    return drawn([headings, *(line for block in blocks for line in block)])


def drawn(lines: Sequence[Line]) -> str:
    """A table in Markdown with aligned columns; its headings come first."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    found = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    found.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(found)


def require_agreement(results: Sequence[Result], what: str = "a figure") -> None:
    """End the command with exit code 1 unless all figures agree with the published ones."""
    if not all(all(result.agrees.values()) for result in results):
        click.echo(f"{what} does not agree with the published one", err=True)
        raise click.exceptions.Exit(1)


def show(results: Sequence[Result], formats: Formats, *, json_only: bool = False) -> None:
    """Print the table: drawn by rich on a terminal if it is installed, as Markdown otherwise; or as
    JSON."""
    if json_only:
        click.echo(as_json(results))
        return
    rows = [row_of(result, formats) for result in results]
    if sys.stdout.isatty():
        try:
            from rich.console import Console  # noqa: PLC0415 - needed on a terminal only
            from rich.table import Table  # noqa: PLC0415 - needed on a terminal only
        except ImportError:
            pass
        else:
            headings, blocks = _table(rows)
            table = Table(*headings)
            for block in blocks:
                for line in block:
                    table.add_row(*line)
                table.add_section()
            Console().print(table)
            return
    click.echo(as_markdown(rows))


def _table(rows: Sequence[Row]) -> tuple[Line, list[list[Line]]]:
    """Headings, and the lines of each row."""
    keys = [label(name) for name in keys_of(rows[0])] if rows else []
    if any(published != NONE for row in rows for published, _, _ in row["written"].values()):
        return (*keys, "measure", "published", "obtained", ""), [_compared(row) for row in rows]
    measures = list(dict.fromkeys(name for row in rows for name in row["written"]))
    lines = [
        (
            *key_cells(row),
            *(row["written"][name][1] if name in row["written"] else NONE for name in measures),
        )
        for row in rows
    ]
    return (*keys, *map(label, measures)), [[line] for line in lines]


def _compared(row: Row) -> list[Line]:
    head = key_cells(row)
    empty = [""] * len(head)
    return [
        (*(empty if place else head), label(name), *written)
        for place, (name, written) in enumerate(row["written"].items())
    ]


def keys_of(row: Row) -> dict[str, Any]:
    """The runs."""
    return {name: value for name, value in row.items() if name not in NOT_KEYS}


def key_cells(row: Row) -> list[str]:
    """The values of a row's keys as a table shows them."""
    return [
        f"{value:g}" if isinstance(value, float) else label(str(value))
        for value in keys_of(row).values()
    ]


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


def row_of(result: Result, formats: Formats) -> dict[str, Any]:
    """One result with its figures as tables show them."""
    written = {
        name: (
            result.published[name].written(form) if name in result.published else NONE,
            result.measured[name].written(form),
            VERDICTS[result.agrees.get(name)],
        )
        for name, form in formats.items()
        if name in result.measured
    }
    return {**as_row(result), "written": written}


COLOURS = 64
"""colours of a PNG of the gallery: few, so that ten pictures add little to a repository"""
TABLE = {"cmap": "tab10", "vmin": 0, "vmax": 9}


def require_matplotlib() -> None:
    """Raise `MissingExtra` unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("drawing", "plot")


def panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """(figure, its axes (rows, columns)) with shared limits; `size` in inches. Raises
    `MissingExtra`."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that is needed for drawing only

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=True, sharey=True)


def save_small(figure: Any, path: Path) -> None:
    """Write a PNG of few colours."""
    from PIL import Image  # noqa: PLC0415 - installed with matplotlib

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=75)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
