"""Peers of `States` on the same series, from a folder that has them and what they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np

from benchmarks.results import table
from shoal.kernels.arrays import Floats, Ints

PEER_SECONDS: Final = 60.0
"""processor seconds that a peer has for a series"""
WHOLE: Final = "whole series"
STREAM: Final = "stream"


ENVIRONMENT: Final = {
    "NUMBA_NUM_THREADS": "1",
    # Of its layers of threads the one whose process may be forked after a call.
    "NUMBA_THREADING_LAYER": "workqueue",
    "OMP_NUM_THREADS": "1",
}


class Peer(NamedTuple):
    """What is measured beside `States`."""

    key: str
    """its name in `benchmarks.states_peer_process`"""
    package: str
    shown: str
    reads: str
    """what it must have before it answers"""
    one_column: bool = False
    """whether it takes series of one column only"""


PEERS: Final = (
    Peer("pelt", "ruptures", "PELT, segments", WHOLE),
    Peer("hmm", "hmmlearn", "Gaussian HMM by BIC", WHOLE),
    Peer("clasp", "claspy", "ClaSP, segments", WHOLE),
    Peer("class", "claspy", "ClaSS, segments", STREAM, one_column=True),
    Peer("clap", "claspy", "CLaP", WHOLE),
)
PACKAGES: Final = tuple(dict.fromkeys(peer.package for peer in PEERS))


def reads_of(name: str) -> str:
    """What a learner must have before it answers."""
    return {peer.shown: peer.reads for peer in PEERS}.get(name, STREAM)


class Labelled(NamedTuple):
    """What a peer says of some series."""

    labels: list[Ints]
    """(n,) of each; one state where it did not end"""
    seconds: float
    """processor seconds, those of what did not end with it"""
    ended: int


def versions(folder: Path) -> dict[str, str]:
    """The versions of the peers in a folder."""
    found = {package.name: package.version for package in distributions(path=[str(folder)])}
    return {name: found[name] for name in (*PACKAGES, "numpy") if name in found}


def label(
    folder: Path, peer: Peer, series: Sequence[Floats], seconds: float = PEER_SECONDS
) -> Labelled:
    """The labels of each series (n, d) by a peer, in a process that has the folder on its path and
    ends after so many processor seconds for a series."""
    path = os.pathsep.join([str(folder.resolve()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as work:
        file = Path(work, "series.npz")
        np.savez(file, *series)
        name = "benchmarks.states_peer_process"
        run = subprocess.run(
            [sys.executable, "-m", name, peer.key, str(seconds), str(file), work],
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        labels = []
        ended = 0
        for place, rows in enumerate(series):
            found = Path(work, f"{place}.npy")
            ended += found.exists()
            labels.append(np.load(found) if found.exists() else np.zeros(len(rows), np.int64))
    taken = [float(figure) for figure in re.findall(r"^seconds (.+)$", run.stdout, re.M)]
    return Labelled(labels, sum(taken), ended)


def label_parts(
    folder: Path, parts: dict[str, list[Floats]], names: Sequence[str]
) -> Iterator[tuple[Peer, str, Labelled]]:
    """Each peer of these names that the folder has, on each part that it can take."""
    known = versions(folder)
    for peer in PEERS:
        if peer.key not in names:
            continue
        if peer.package not in known:
            click.echo(f"{peer.shown}: {peer.package} is not in {folder}")
            continue
        for part, series in parts.items():
            if not peer.one_column or series[0].shape[1] == 1:
                yield peer, part, label(folder, peer, series)


def peers_page(peers: dict[str, Any], public: Sequence[dict[str, Any]]) -> str:
    """The section of the page; `public`: cells of ours on all series."""
    if not peers:
        return ""
    cells = peers["cells"]
    parts = list(dict.fromkeys(cell["part"] for cell in cells))
    by_key = {(cell["learner"], cell["part"]): cell for cell in cells}
    lines = []
    for name in dict.fromkeys(cell["learner"] for cell in cells):
        entries = []
        ended = []
        seconds = 0.0
        for part in parts:
            cell = by_key.get((name, part))
            if cell is None:
                entries.append("-")
                continue
            entries.append(f"{np.mean(cell['ami']):.3f} / {np.mean(cell['covering']):.3f}")
            seconds += cell["seconds"]
            ended.append(f"{cell.get('ended', cell['series'])} of {cell['series']}")
        lines.append([name, reads_of(name), *entries, ", ".join(ended), f"{seconds:.0f}"])
    shown = {cell["learner"] for cell in cells}
    used = {"numpy", *(peer.package for peer in PEERS if peer.shown in shown)}
    listed = ", ".join(
        f"{name} {version}" for name, version in peers["versions"].items() if name in used
    )
    every = peers["every"]
    part_of_them = f" on every {every}th series of both" if every > 1 else ""
    # So few series may be easier or harder than the others.
    beside = "".join(
        f" On all {cell['series']} series of {cell['part']} `States` has"
        f" {np.mean(cell['ami']):.3f} / {np.mean(cell['covering']):.3f}."
        for cell in public
        if cell["learner"] == "States" and cell["part"] in parts
    )
    head = ["AMI / covering", "reads", *parts, "ended", "seconds"]
    return (
        f"\n### Peers on the same series\n\nIn one run{part_of_them}, by {listed}, in processes of"
        " their own. PELT looks for changes of the mean of blocks of 8 readings, the hidden Markov"
        " model takes the number of states, up to 6, by BIC. A peer has"
        f" {PEER_SECONDS:.0f} processor seconds for a series; one on which it did not end counts"
        " as one state. Segments count as a state each. `States` looks once"
        f" here, at the end of each series, as a stream may at any time."
        f"{beside if every > 1 else ''}\n\n{table(head, lines)}"
    )
