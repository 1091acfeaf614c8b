"""Rows per second of CA+ and nodes per second of CAEFC, by d and K, beside other clusterers in the
same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, spread, table, write
from benchmarks.streaming.goals import WIDE, goal_table, judged
from benchmarks.streaming.learners import (
    DBSTREAM_PEER,
    DENSTREAM_PEER,
    FORMS,
    KMEANS,
    KMEANS_BY_ROW,
    NUMPY_CLIENT,
    Client,
    Learner,
    Peer,
    Server,
    numpy_server,
)
from benchmarks.streaming.published import published
from benchmarks.streaming.turns import take_turns, warm
from benchmarks.streams import Batch, Blobs, in_batches, updates
from shoal.kernels.forms import COMPILED

SEED = 2
BATCH_ROWS = 256
CLIENT_PEERS = (NUMPY_CLIENT, KMEANS, KMEANS_BY_ROW, DBSTREAM_PEER, DENSTREAM_PEER)
ARRAY_PEERS = (NUMPY_CLIENT, KMEANS)
SERVER_PEERS = (KMEANS, DBSTREAM_PEER, DENSTREAM_PEER)
SLOW = "MiniBatchKMeans by one, DBSTREAM, DenStream and the published program"
"""peers with `rows_by_one` or `rows_of_turn`"""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    widths: tuple[int, ...]
    centres: tuple[int, ...]
    centres_flat: tuple[int, ...]
    """centres for d = 2, so close that CA+ gives several of them one node"""
    walk_rows: int
    walk_rows_client: int
    warm_nodes: int
    turn_rows: int
    turns: int


FULL = Size((2, 16, 64), (50, 100, 200, 500), (50, 100, 200, 800), 8000, 2000, 4000, 8000, 7)
QUICK = Size((2, 16), (20,), (20,), 1500, 500, 600, 200, 3)


class Cell(NamedTuple):
    """One network on one stream."""

    network: str
    d: int
    centres: int
    options: dict[str, Any]
    ours: Callable[[], Learner]
    peers: Sequence[Peer]
    before: list[Batch]
    slices: list[list[Batch]]


@click.command(context_settings={"max_content_width": 100})
@quick_option("Small streams, in seconds")
@click.option(
    "--d",
    "widths",
    multiple=True,
    type=click.Choice(["2", "16", "64", "784"]),
    help="Only this number of features.",
)
@click.option(
    "--centres", type=click.Choice(["50", "100", "200", "500"]), help="Only this number of centres."
)
@out_option("streaming")
@click.option(
    "--reference",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help=(
        "A checkout of the published program (github.com/Masuyama-lab/FCAC), measured too. It needs"
        " networkx."
    ),
)
def main(
    quick: bool, widths: tuple[str, ...], centres: str | None, out: Path, reference: Path | None
) -> None:
    """Measure CA+ and CAEFC beside MiniBatchKMeans, DBSTREAM and DenStream on Gaussian blobs.

    Processor time of one thread; ours and each peer take turns on the same rows, so the ratios hold
    on a busy machine too. A full run takes five to twelve minutes.
    """
    size = QUICK if quick else FULL
    if widths:
        size = replace(size, widths=tuple(map(int, widths)))
    if centres is not None:
        size = replace(size, centres=(int(centres),), centres_flat=(int(centres),))
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "numba", "scikit-learn", "river"))
    client_peers = (*CLIENT_PEERS, *([] if reference is None else [published(reference)]))
    FORMS[COMPILED].load()
    measured: list[dict[str, Any]] = []
    with threadpool_limits(limits=1):
        for cell in chain(client_cells(size, client_peers), server_cells(size)):
            measured.append(measure(cell))
            click.echo(_progress(measured[-1]))
    result = {
        "made_by": (
            "python -m benchmarks streaming"
            + " --quick" * quick
            + "".join(f" --d {width}" for width in widths)
            + (f" --centres {centres}" if centres else "")
            + " --reference CHECKOUT" * (reference is not None)
        ),
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "timing": {
            "clock": "process CPU time",
            "threads": 1,
            "turns": size.turns,
            "turn_rows": size.turn_rows,
        },
        "peers": {peer.name: peer.description for peer in client_peers},
        "goals": judged(measured),
        "cells": measured,
    }
    write(out, "streaming", result, markdown(result))
    click.echo(f"written to {out}/streaming.json and {out}/streaming.md")


def client_cells(size: Size, peers: Sequence[Peer]) -> Iterator[Cell]:
    """CA+ on rows, default options, for every width and number of centres."""
    for d in size.widths:
        for centres in size.centres_flat if d == 2 else size.centres:
            stream = Blobs(d, centres, size.walk_rows, SEED)
            before = in_batches(stream.draw(size.walk_rows), size.walk_rows)
            slices = [
                in_batches(stream.draw(size.turn_rows), BATCH_ROWS) for _ in range(size.turns)
            ]
            yield Cell(
                "CA+",
                d,
                centres,
                {},
                partial(Client, d, COMPILED),
                ARRAY_PEERS if d == WIDE else peers,
                before,
                slices,
            )


def server_cells(size: Size) -> Iterator[Cell]:
    """CAEFC on the updates of ten clients. By default it keeps few nodes (measured once for each
    width), so its cost by K is measured with `diversity_nodes_min` equal to the number of centres.
    """
    for d in size.widths:
        for centres in size.centres if d != WIDE else ():
            batches = updates(
                d,
                centres,
                size.walk_rows_client,
                size.warm_nodes + size.turns * size.turn_rows,
                SEED,
            )
            pooled, *slices = _cut(batches, [size.warm_nodes] + size.turns * [size.turn_rows])
            before = [Batch(*map(np.concatenate, zip(*pooled, strict=True)))]
            for nodes_min in (10, centres) if centres == size.centres[-1] else (centres,):
                options = {"diversity_nodes_min": nodes_min}
                ours = partial(Server, d, options, COMPILED)
                peers = (numpy_server(options), *SERVER_PEERS)
                yield Cell("CAEFC", d, centres, options, ours, peers, before, slices)


def measure(cell: Cell) -> dict[str, Any]:
    """Ours beside each peer in turn. Ours starts again for each peer, so it is the same network
    every time."""
    sizes = []
    rates = []
    peers = []
    for peer in cell.peers:
        ours = warm(cell.ours(), cell.before)
        first = sum(len(batch.rows) for batch in cell.before)
        theirs = warm(peer.make(cell.d, ours.prototypes(), first), cell.before)
        sizes.append(ours.prototypes())
        turns = take_turns(theirs, ours, _turns_for(peer, cell.slices))
        sizes.append(ours.prototypes())
        if peer.rows_by_one is None and peer.rows_of_turn is None:
            rates += turns.ours
        peers.append(
            {
                "name": peer.name,
                "prototypes": theirs.prototypes(),
                "rows_per_s": spread(turns.peer),
                "ours_rows_per_s": spread(turns.ours),
                "ratio": turns.ratio(),
            }
        )
    return {
        "network": cell.network,
        "d": cell.d,
        "centres": cell.centres,
        "options": cell.options,
        "nodes_mean": sum(sizes) / len(sizes),
        "rows_per_s": spread(rates),
        "peers": peers,
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page: a table for each network, then how to read it."""
    parts = [f"# Rows per second\n\nMade by `{result['made_by']}`; do not edit.\n"]
    for network, unit in (("CA+", "rows/s"), ("CAEFC", "nodes/s")):
        cells = [cell for cell in result["cells"] if cell["network"] == network]
        if not cells:
            continue
        names = [peer["name"] for peer in cells[0]["peers"]]
        options = list(cells[0]["options"])
        head = ["d", "centres", *options, f"{network} nodes", f"{network} {unit}", *names]
        parts.append(f"## {network}\n\n" + table(head, [_line(cell, names) for cell in cells]))
    parts.append(goal_table(result["goals"]))
    parts.append(
        f"{rounded(result['timing']['turn_rows'])} rows a turn, {result['timing']['turns']} turns:"
        " median (lowest to highest), CPU time of one thread, compiled kernels. A peer's column:"
        " its rows/s on the same rows (how many prototypes it had), and how many times as many"
        " rows ours learnt per second in the same turns. CA+ has default options; of CAEFC's,"
        " diversity_nodes_min is 10 by default.\n\nThe number of ours is the mean of those before"
        f" and after the turns with each peer. {SLOW} take the first rows of each turn only, so"
        " ours has learnt less in their turns; the NumPy form has as many nodes as ours after"
        " whole turns, MiniBatchKMeans as many as ours before them.\n"
    )
    parts.append(
        "".join(f"- **{name}**: {description}.\n" for name, description in result["peers"].items())
    )
    return "\n".join([*parts, one_line(result["machine"]) + "\n"])


def _cut(batches: Sequence[Batch], sizes: Sequence[int]) -> list[list[Batch]]:
    """Cut a list of batches into parts of at least `sizes` rows."""
    rest = iter(batches)
    parts: list[list[Batch]] = []
    for size in sizes:
        part: list[Batch] = []
        while (
            sum(len(batch.rows) for batch in part) < size
            and (batch := next(rest, None)) is not None
        ):
            part.append(batch)
        parts.append(part)
    return [part for part in parts if part]


def _turns_for(peer: Peer, slices: Sequence[list[Batch]]) -> list[list[Batch]]:
    if peer.rows_by_one is None:
        return [
            _cut(part, [peer.rows_of_turn])[0] if peer.rows_of_turn else part for part in slices
        ]
    return [
        in_batches(np.concatenate([batch.rows for batch in part])[: peer.rows_by_one], 1)
        for part in slices
    ]


def _line(cell: dict[str, Any], names: Sequence[str]) -> list[str]:
    own = f"**{_span(cell['rows_per_s'])}**"
    beside = {
        peer["name"]: (
            f"{rounded(peer['rows_per_s']['median'])} ({peer['prototypes']}), "
            f"×{rounded(peer['ratio']['median'])}"
        )
        for peer in cell["peers"]
    }
    stream = (cell["d"], cell["centres"], *cell["options"].values())
    return [
        *map(str, stream),
        f"{cell['nodes_mean']:.0f}",
        own,
        *(beside.get(name, "-") for name in names),
    ]


def _span(figures: dict[str, float]) -> str:
    return f"{rounded(figures['median'])} ({rounded(figures['low'])} to {rounded(figures['high'])})"


def _progress(cell: dict[str, Any]) -> str:
    ratios = ", ".join(
        f"×{rounded(peer['ratio']['median'])} {peer['name']}" for peer in cell["peers"]
    )
    own = rounded(cell["rows_per_s"]["median"])
    return f"{cell['network']} d {cell['d']}, {cell['nodes_mean']:.0f} nodes: {own}/s; {ratios}"
