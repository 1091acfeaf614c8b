"""`shoal reproduce pictures`: every algorithm on the same two data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from shoal.algorithms.registry import algorithm_names
from shoal.errors import SettingsError
from shoal.evaluation.gallery import DATA_SETS, found_by
from shoal.evaluation.gallery_picture import draw_data, draw_found


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Draw one PNG for each into this folder.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the data, and of what is drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def pictures(out: Path | None, seed: int, as_json: bool) -> None:
    """Run every algorithm on two small made-up data sets: blobs dealt to all, and clients that hold a part each."""
    if out is not None and not out.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    data = [make(seed) for make in DATA_SETS]
    if out is not None:
        draw_data(data, out / "data.png")
    rows: list[dict[str, Any]] = []
    for name in algorithm_names():
        found = [found_by(name, each, seed) for each in data]
        if out is not None:
            draw_found(data, found, out / f"{name}.png")
        for each, clustering in zip(data, found, strict=True):
            metrics = {"ari": round(clustering.ari, 4)}
            rows.append({"algorithm": name, "dataset": each.name, "rounds": clustering.rounds, "metrics": metrics})
    click.echo(json.dumps({"rows": rows}, indent=2) if as_json else _as_markdown(rows))


def _as_markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| algorithm | data | rounds | ari |", "|---" * 4 + "|"]
    for row in rows:
        ari = row["metrics"]["ari"]
        lines.append(f"| {row['algorithm']} | {row['dataset']} | {row['rounds'] or '-'} | {ari:.2f} |")
    return "\n".join(lines)
