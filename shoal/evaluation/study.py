"""What the report of `shoal reproduce all` is made of: chapters, and experiments that write theirs themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from shoal.evaluation.experiment import Experiment
from shoal.evaluation.results import Formats, Result


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
