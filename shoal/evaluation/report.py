"""What was obtained beside what was published: as a table for people, as JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from shoal.evaluation.published import METRICS, TRIALS, Figure, Metric, Split

HEADINGS = ("data set", "split", "score", "published", "obtained", "")
SPLIT_NAMES: dict[Split, str] = {"iid": "IID", "niid": "non-IID"}
METRIC_NAMES: dict[Metric, str] = {"ari": "ARI", "ami": "AMI", "nmi": "NMI", "nodes": "nodes", "clusters": "clusters"}


@dataclass(frozen=True)
class Row:
    """One data set under one split; `printed` is None where the paper has no figure for what was run."""

    dataset: str
    split: Split
    trials: int
    found: Mapping[Metric, Figure]
    printed: Mapping[Metric, Figure] | None

    def agrees(self) -> bool:
        """Whether every published figure came out again; true where nothing was published."""
        printed = self.printed or {}
        return all(self.found[metric].agrees(figure, metric) for metric, figure in printed.items())


def as_json(rows: Sequence[Row]) -> str:
    """{"rows": [...]}; "published" is the mean as printed, or null."""
    return json.dumps({"rows": [_plain(row) for row in rows]}, indent=2)


def as_markdown(rows: Sequence[Row]) -> str:
    """A table that reads well as it is and in a page."""
    cells = [HEADINGS, *(line for row in rows for line in _lines(row))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    drawn = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    drawn.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(drawn)


def show(rows: Sequence[Row]) -> None:
    """Print the table: drawn by rich on a terminal that has it, as Markdown otherwise."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console  # noqa: PLC0415 - only where people look
            from rich.table import Table  # noqa: PLC0415 - tables in colour are an extra
        except ImportError:
            pass
        else:
            table = Table(*HEADINGS)
            for row in rows:
                for line in _lines(row):
                    table.add_row(*line)
                table.add_section()
            Console().print(table)
            return
    click.echo(as_markdown(rows))


def _lines(row: Row) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for metric in METRICS:
        found, printed = row.found[metric], (row.printed or {}).get(metric)
        # The paper's figures are of 20 trials; with fewer there is nothing to agree with.
        comparable = printed is not None and row.trials == TRIALS
        verdict = "" if not comparable else "same" if printed and found.agrees(printed, metric) else "differs"
        head = (row.dataset, SPLIT_NAMES[row.split]) if metric == METRICS[0] else ("", "")
        said = "-" if printed is None else printed.said(metric)
        lines.append((*head, METRIC_NAMES[metric], said, found.said(metric), verdict))
    return lines


def _plain(row: Row) -> dict[str, Any]:
    printed = row.printed or {}
    metrics = {
        metric: {
            "mean": row.found[metric].mean,
            "sd": row.found[metric].sd,
            "published": printed[metric].mean if metric in printed else None,
        }
        for metric in METRICS
    }
    return {"dataset": row.dataset, "split": row.split, "trials": row.trials, "metrics": metrics}
