"""Writing results: JSON for programs and a Markdown table for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def out_option(name: str) -> Callable[[Command], Command]:
    """The option of a benchmark that names the folder for its results."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("benchmarks/results"),
        show_default=True,
        help=f"Folder for {name}.json and {name}.md.",
    )


def folder_option(
    name: str, content: str, *, required: bool = False, envvar: str | None = None
) -> Callable[[Command], Command]:
    """An option that names a folder which is there, and what it holds."""
    folder = click.Path(path_type=Path, exists=True, file_okay=False)
    return click.option(name, type=folder, help=content, required=required, envvar=envvar)


data_option = folder_option("--data", "The folder of data sets.", required=True)
"""the option of a benchmark that measures on sensor files only"""
streams_option = folder_option(
    "--data",
    "Folder of NAME.csv.gz files for the real streams (or SHOAL_DATA); without it there are none.",
    envvar="SHOAL_DATA",
)
"""the option of a benchmark that measures on made streams, and on real ones where they are"""


def quick_option(what: str) -> Callable[[Command], Command]:
    """The option that runs a small part of a benchmark, `what` of it, for the tests."""
    return click.option(
        "--quick", is_flag=True, help=f"{what}: shows that it runs; no figures to keep."
    )


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Median and range of repeated measurements."""
    return {"median": median(figures), "low": min(figures), "high": max(figures)}


def write(folder: Path, name: str, measured: dict[str, Any], markdown: str) -> None:
    """Write `name`.json and `name`.md into `folder`, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (folder / f"{name}.md").write_text(markdown, encoding="utf-8")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines)) + "\n"


def rounded(figure: float) -> str:
    """A number with three significant digits: 95 200, 3.21, 0.0457."""
    if figure >= 100:
        digits = 10 ** max(0, len(str(int(figure))) - 3)
        return f"{round(figure / digits) * digits:,}".replace(",", " ")
    return f"{figure:.3g}"
