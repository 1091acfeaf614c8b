"""The published program of FCAC as a peer of CA+, from a checkout of
https://github.com/Masuyama-lab/FCAC."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import click

from benchmarks.streaming.learners import Peer
from benchmarks.streams import Batch


def published(folder: Path) -> Peer:
    """Its client as a peer. Raises `click.UsageError` without `fcac.py`, or what that imports."""
    spec = importlib.util.spec_from_file_location("fcac", folder / "fcac.py")
    if spec is None or spec.loader is None or not (folder / "fcac.py").exists():
        raise click.UsageError(f"--reference {folder}: there is no fcac.py in it")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        raise click.UsageError(
            f"--reference: the program needs {missing.name}: pip install {missing.name}"
        ) from None
    return Peer(
        "published program",
        lambda d, k, n: Published(module.FCAC()),
        "the client of the authors' Python program, input_signal_client with a call for every row;"
        " ours in batches",
        rows_of_turn=4000,
    )


class Published:
    """The CA+ client of the published program."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def prepare(self, batch: Batch) -> Any:
        return batch.rows

    def learn(self, prepared: Any) -> None:
        self._program.initialization(prepared)
        for row in prepared:
            self._program.input_signal_client(row, prepared)

    def prototypes(self) -> int:
        return int(self._program.G_.number_of_nodes())
