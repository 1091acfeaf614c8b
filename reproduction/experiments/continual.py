"""`shoal reproduce continual`: the continual-learning scenario of the FCAC paper (section 5.2,
figures 4 to 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
import numpy as np

from reproduction import report
from reproduction.experiment import (
    Format,
    Result,
    python_format,
    require_scikit_learn,
    scores,
    summary,
)
from reproduction.report import (
    TABLE,
    Chapter,
    Picture,
    ReportOptions,
    Study,
    Table,
    panels,
    require_matplotlib,
)
from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.art_network import ArtNetwork
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.correntropy import cim_blocks
from shoal.runtime import workers

Mode = Literal["changed", "all"]
MODES: Final[tuple[Mode, ...]] = ("changed", "all")

GAUSSIAN_ROWS: Final = 15_000
GAUSSIANS: Final = {
    "A": ((0.0, 0.0), ((1.0, 0.5), (0.5, 1.0))),
    "B": ((-6.0, 6.5), ((1.3, -0.4), (-0.4, 0.8))),
    "C": ((6.5, 5.5), ((0.7, 0.0), (0.0, 1.4))),
}
"""mean (2,) and covariance (2, 2) of each, before scaling"""
SUBSETS: Final = {"A": ("A1", "A2", "A3", "A4"), "B": ("B1", "B2"), "C": ("C1", "C2")}
SCHEDULE: Final = ((("A1",), ("A3",)), (("B1",), ("C1",)), (("A2", "B2"), ("A4", "C2")))
"""the subsets of client 1 and of client 2 in each round"""


@dataclass(frozen=True)
class Round:
    """The state after a round and its measures. Shares are by subset, for each subset learnt so
    far."""

    number: int
    clients: tuple[Floats, Floats]
    """(k_i, 2) nodes of each client"""
    server: Arrays
    """the server's snapshot"""
    ari: float
    """ARI of the server's clusters, over all rows learnt so far"""
    bytes_sent: int
    """bytes that both clients sent in this round, as float64 weights and int64 counts"""
    kept: Mapping[str, float]
    """share of the subset's rows within the vigilance of a node of the client that learnt them"""
    covered: Mapping[str, float]
    """share of the subset's rows within the vigilance of a node of the server, which never saw them
    """
    found: Mapping[str, float]
    """share of the subset's rows in clusters of the server whose majority is its Gaussian"""

    @property
    def nodes(self) -> int:
        return len(self.server["weight"])

    @property
    def clusters(self) -> int:
        return len(self.server["centre"])


MEASURES: Final[dict[str, tuple[Format, Callable[[Round], float]]]] = {
    "ari": (python_format(".3f"), lambda after: after.ari),
    "nodes": (python_format(".1f"), lambda after: after.nodes),
    "clusters": (python_format(".1f"), lambda after: after.clusters),
    "bytes": (python_format(".0f"), lambda after: after.bytes_sent),
    "kept": (python_format(".4f"), lambda after: min(after.kept.values())),
    "covered": (python_format(".3f"), lambda after: min(after.covered.values())),
    "found": (python_format(".4f"), lambda after: min(after.found.values())),
}
"""what is measured after each round, and how it is written; shares are those of the worst subset"""
FORMATS: Final = {name: form for name, (form, _) in MEASURES.items()}


def subsets(seed: int, gaussian_rows: int = GAUSSIAN_ROWS) -> dict[str, Floats]:
    """The eight subsets by name, (n, 2) each, of three Gaussians scaled together to [0, 1]."""
    generator = np.random.default_rng(seed)
    drawn = [
        generator.multivariate_normal(*GAUSSIANS[name], size=gaussian_rows) for name in GAUSSIANS
    ]
    low = np.min(np.concatenate(drawn), axis=0)
    high = np.max(np.concatenate(drawn), axis=0)
    scaled = [(rows - low) / (high - low) for rows in drawn]
    return {
        name: part
        for names, rows in zip(SUBSETS.values(), scaled, strict=True)
        for name, part in zip(names, np.array_split(rows, len(names)), strict=True)
    }


def run(seed: int, mode: Mode, gaussian_rows: int = GAUSSIAN_ROWS) -> list[Round]:
    """Three rounds: both clients learn their subsets in random order and contribute, the server
    absorbs."""
    rows = subsets(seed, gaussian_rows)
    generator = np.random.default_rng([seed, 1])
    clients = [CAPlus(2, contribute=mode) for _ in range(2)]
    server = CAEFC(2)
    learnt: tuple[list[str], list[str]] = ([], [])
    rounds = []
    for number, shares in enumerate(SCHEDULE, start=1):
        sent: list[Contribution] = []
        for client, names, so_far in zip(clients, shares, learnt, strict=True):
            client.learn(generator.permutation(np.concatenate([rows[name] for name in names])))
            so_far.extend(names)
            sent.append(Contribution(f"client-{len(sent) + 1}", number, client.contribute()))
        server.absorb(sent, key=f"{seed} {number}".encode())
        by_client = [{name: rows[name] for name in so_far} for so_far in learnt]
        rounds.append(_measure(number, clients, server, sent, by_client))
    return rounds


def results(runs: Mapping[tuple[Mode, int], Sequence[Round]]) -> list[Result]:
    """One result for each mode and round, over all seeds; the runs are by mode and seed."""
    grouped: dict[tuple[Mode, int], list[Round]] = {}
    for mode in MODES:
        for (run_mode, _), rounds in sorted(runs.items()):
            for after in rounds if run_mode == mode else ():
                grouped.setdefault((mode, after.number), []).append(after)
    return [
        Result(
            {"contribute": mode, "round": number},
            len(group),
            {
                name: summary([measure(after) for after in group])
                for name, (_, measure) in MEASURES.items()
            },
            {},
            {},
        )
        for (mode, number), group in grouped.items()
    ]


def _measure(
    number: int,
    clients: Sequence[CAPlus],
    server: CAEFC,
    sent: Sequence[Contribution],
    learnt: Sequence[Mapping[str, Floats]],
) -> Round:
    kept = {
        name: _covered(client, rows)
        for client, own in zip(clients, learnt, strict=True)
        for name, rows in own.items()
    }
    rows_of = {name: rows for own in learnt for name, rows in own.items()}
    gaussian = {
        name: np.full(len(rows), list(SUBSETS).index(name[0])) for name, rows in rows_of.items()
    }
    cluster = {name: server.predict(rows) for name, rows in rows_of.items()}
    all_gaussians, all_clusters = (
        np.concatenate(list(part.values())) for part in (gaussian, cluster)
    )
    counts = np.zeros((all_clusters.max() + 1, len(SUBSETS)), dtype=np.int64)
    np.add.at(counts, (all_clusters, all_gaussians), 1)
    majority = counts.argmax(axis=1)
    first, second = (client.weights.copy() for client in clients)
    return Round(
        number=number,
        clients=(first, second),
        server=server.snapshot(),
        ari=scores(all_gaussians, all_clusters)["ari"],
        bytes_sent=sum(
            array.nbytes for contribution in sent for array in contribution.arrays.values()
        ),
        kept=kept,
        covered={name: _covered(server, rows) for name, rows in rows_of.items()},
        found={name: float((majority[cluster[name]] == gaussian[name]).mean()) for name in rows_of},
    )


def _covered(network: ArtNetwork, rows: Floats) -> float:
    """Share of the rows (n, 2) within the vigilance of a node; the network would make no new node
    of them."""
    within = 0
    for _, distances in cim_blocks(rows, network.weights, network.mean_sigma):
        within += int((distances.min(axis=1) <= network.vigilance).sum())
    return within / len(rows)


SEEDS: Final = 5
TITLE: Final = (
    "Two clients and a server learn three Gaussians in three rounds: is anything forgotten on the"
    " way?"
)
TEXT: Final = """\
Published: section 5.2 of the FCAC paper, figures 4 to 9, which are pictures without figures; the
data are drawn from its description. `kept` is the least share of a subset's rows, over all subsets
learnt so far, that are within the vigilance of a node of the client that learnt them; `covered`,
the same of the server; `found`, the least share that lies in a cluster of its own Gaussian.
"""


@click.command(help=TITLE)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=SEEDS,
    show_default=True,
    help="Runs, of as many seeds from 0.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the run of seed 0 into this file.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=workers.usable_cores,
    help="Processes; without it, all cores.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def continual(seeds: int, out: Path | None, jobs: int, as_json: bool) -> None:
    """The subcommand."""
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    require_scikit_learn()
    if out is not None:
        require_matplotlib()
    runs = _measured(seeds, jobs)
    if out is not None:
        draw_rounds(runs["changed", 0], subsets(0), SCHEDULE, out)
        click.echo(f"drawn: {out}", err=True)
    report.show(results(runs), FORMATS, json_only=as_json)


def _measured(seeds: int, jobs: int) -> dict[tuple[Mode, int], list[Round]]:
    runs: dict[tuple[Mode, int], list[Round]] = {}
    planned = [(mode, seed) for mode in MODES for seed in range(seeds)]
    for job, rounds in workers.spread(_run, planned, jobs):
        runs[job] = rounds
        click.echo(f"contribute {job[0]}, seed {job[1]}: done", err=True)
    return runs


def _run(job: tuple[Mode, int]) -> list[Round]:
    mode, seed = job
    return run(seed, mode)


def _chapter(options: ReportOptions) -> Chapter:
    runs = _measured(1 if options.quick else options.trials or SEEDS, options.jobs)
    drawn = options.out / "continual.png"
    draw_rounds(runs["changed", 0], subsets(0), SCHEDULE, drawn)
    caption = (
        "Both clients and the server after each round, seed 0 (figures 7 to 9 of the FCAC paper in"
        " one)"
    )
    return Chapter(
        "continual", TITLE, TEXT, [Table(results(runs), FORMATS)], [Picture(drawn, caption)]
    )


POINT_STEP = 5
"""one point of this many is drawn behind the nodes of the continual scenario"""


def draw_rounds(
    rounds: Sequence[Round],
    subsets: Mapping[str, Floats],
    schedule: Sequence[Sequence[Sequence[str]]],
    path: Path,
) -> None:
    """Figures 7 to 9 of the FCAC paper in one: client 1, client 2 and server after each round of
    one run.

    The suffix of `path` gives the format. Raises `MissingExtra`.
    """
    figure, grid = panels(len(rounds), 3, (11, 10.5))
    for after, shares, axes in zip(rounds, schedule, grid, strict=True):
        for number, (nodes, names, axis) in enumerate(
            zip(after.clients, shares, axes[:2], strict=True), start=1
        ):
            _points(axis, np.concatenate([subsets[name] for name in names]))
            axis.scatter(*nodes.T, s=9, color="#1f4e79")
            axis.set_title(
                f"round {after.number}: client {number}, {'+'.join(names)}, {len(nodes)} nodes"
            )
        _points(axes[2], np.concatenate([subsets[name] for names in shares for name in names]))
        _network(axes[2], after)
        axes[2].set_title(
            f"round {after.number}: server, {after.nodes} nodes, {after.clusters} clusters"
        )
    figure.savefig(path, dpi=90)


def _points(axis: Any, rows: Floats) -> None:
    axis.scatter(*rows[::POINT_STEP].T, s=1, color="#d5d5d5")
    axis.set_aspect("equal")
    axis.set_xlim(-0.02, 1.02)
    axis.set_ylim(-0.02, 1.02)
    axis.title.set_fontsize(9)


def _network(axis: Any, after: Round) -> None:
    weight = after.server["weight"]
    cluster = after.server["cluster"]
    for a, b in after.server["edge"]:
        axis.plot(*weight[[a, b]].T, color="#606060", linewidth=0.8)
    axis.scatter(*weight.T, s=16, c=cluster % 10, **TABLE, zorder=2)


STUDY: Final = Study("continual", TITLE, continual, _chapter)
