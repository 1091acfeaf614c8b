"""States in time: public streams whose states are known, own streams, and streams without states.

The public streams are two files of arrays, `tssb.npz` and `skab.npz`, with `NAME/rows` (n, d),
`NAME/changes` (the positions of changes) and `NAME/states` (the state of each segment) for each
series: the time series segmentation benchmark (75 series of one column) and SKAB (34 runs of eight
columns), as github.com/ermshaua/classification-label-profile has them. Thresholds were chosen on
every second series of TSSB, "odd", and on own streams; nothing on "even" and SKAB. claspy, hmmlearn
and ruptures are measured on these where `--peers` has them. A part can be measured alone
(`--part`): the results file keeps the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from scipy.stats import beta
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import folder_option, out_option, quick_option, table, write
from benchmarks.states_ablation import (
    Stream,
    ablation_page,
    kernels_page,
    measure_ablation,
    measure_kernels,
)
from benchmarks.states_cost import cost_page, measure_cost
from benchmarks.states_fleet import measure_fleet
from benchmarks.states_noise import measure_noise, noise_page
from benchmarks.states_peers import PEERS, STREAM, WHOLE, label_parts, peers_page, versions
from benchmarks.states_sensors import measure_sensors, sensors_page
from benchmarks.states_streams import autoregressive as autoregressive_rows
from benchmarks.states_streams import dwells
from shoal.estimators.states import States
from shoal.kernels.arrays import Floats, Ints

SEEDS: Final = (31, 32)
"""seeds of own streams with states"""
NULL_SEEDS: Final = 6
"""streams of each kind without states, of one column and of eight; a third as many of three"""
NULL_SEEDS_OF_OTHERS: Final = 2
"""as many of the strict learner"""
NULL_BASE: Final = 90_000
OWN_READINGS: Final = 10_000
NULL_READINGS: Final = (2_000, 5_000, 12_000)
NULL_READINGS_OF_MACHINE: Final = (1_100,)
"""readings of streams of eight columns, as runs of SKAB have"""


class NullShape(NamedTuple):
    """Columns, seeds of each kind, and the lengths of streams without states."""

    columns: int
    seeds: int
    readings: tuple[int, ...]


NULL_SHAPES: Final = (
    NullShape(1, NULL_SEEDS, NULL_READINGS),
    NullShape(3, NULL_SEEDS // 3, NULL_READINGS),
    NullShape(8, NULL_SEEDS, NULL_READINGS_OF_MACHINE),
)
DWELLS: Final = (100, 200, 500, 2_000)


class Published(NamedTuple):
    """Mean AMI and covering as published; None where there is no figure."""

    name: str
    reads: str
    """what it must have before it answers"""
    tssb: tuple[float | None, float]
    skab: tuple[float | None, float] | None


PUBLISHED: Final = (
    # By the authors of CLaP.
    Published("CLaP", WHOLE, (0.771, 0.855), (0.354, 0.634)),
    Published("HDP-HSMM", WHOLE, (0.170, 0.449), (0.608, 0.842)),
    Published("Time2State", WHOLE, (0.398, 0.405), (0.340, 0.507)),
    # By the authors of ClaSS: segmentations, of which only the covering is known.
    Published("ClaSS", STREAM, (None, 0.807), None),
    Published("DDM", STREAM, (None, 0.523), None),
    Published("FLOSS", STREAM, (None, 0.484), None),
    Published("BOCD", STREAM, (None, 0.464), None),
    Published("ADWIN", STREAM, (None, 0.391), None),
)


class Series(NamedTuple):
    """Rows (n, d), and the true state of each."""

    name: str
    rows: Floats
    truth: Ints


Learner = Callable[[Floats], Ints]


def public(folder: Path, name: str) -> list[Series]:
    """The series of a file, in its order."""
    file = np.load(folder / f"{name}.npz")
    names = dict.fromkeys(key.split("/")[0] for key in file.files)
    series = []
    for series_name in names:
        rows = file[f"{series_name}/rows"].astype(np.float64)
        edges = np.concatenate([[0], file[f"{series_name}/changes"], [len(rows)]]).astype(np.int64)
        truth = np.repeat(
            np.unique(file[f"{series_name}/states"], return_inverse=True)[1], np.diff(edges)
        )
        series.append(Series(series_name, rows, truth))
    return series


def covering(truth: Ints, labels: Ints) -> float:
    """Mean over readings of the best overlap (Jaccard) of their true segment with a segment of
    `labels`, both (n,)."""
    true_edges = _edges(truth)
    edges = _edges(labels)
    covered = 0.0
    for first, end in pairwise(true_edges):
        shared = np.clip(np.minimum(end, edges[1:]) - np.maximum(first, edges[:-1]), 0, None)
        either = (end - first) + np.diff(edges) - shared
        covered += (end - first) * float((shared / either).max())
    return covered / len(truth)


def _edges(labels: Ints) -> Ints:
    return np.concatenate([[0], np.flatnonzero(np.diff(labels)) + 1, [len(labels)]])


def one_state(rows: Floats) -> Ints:
    """One state always."""
    return np.zeros(len(rows), dtype=np.int64)


def own_learners() -> dict[str, Learner]:
    """Ours, and what stands beside it."""
    return {
        "States": lambda rows: States().fit(rows).labels_,
        "States, strict": lambda rows: States(strict=True).fit(rows).labels_,
        "one state": one_state,
    }


def measure_public(
    folder: Path, every: int, learners: dict[str, Learner]
) -> Iterator[dict[str, Any]]:
    """Mean AMI and covering of each learner on each part of the public streams."""
    for part, series in public_parts(folder, every).items():
        for name, learner in learners.items():
            begun = time.process_time()
            labels = [learner(own.rows) for own in series]
            seconds = time.process_time() - begun
            yield _compared(part, name, series, labels, seconds)


def public_parts(folder: Path, every: int) -> dict[str, list[Series]]:
    """Every so-many-th series of each part of the public streams."""
    tssb = public(folder, "tssb")
    parts = {"TSSB odd": tssb[::2], "TSSB even": tssb[1::2], "SKAB": public(folder, "skab")}
    return {part: whole[::every] for part, whole in parts.items()}


def _compared(
    part: str, name: str, series: list[Series], labels: list[Ints], seconds: float
) -> dict[str, Any]:
    pairs = list(zip(series, labels, strict=True))
    ami = [adjusted_mutual_info_score(own.truth, found) for own, found in pairs]
    covered = [covering(own.truth, found) for own, found in pairs]
    click.echo(f"{part}, {name}: {np.mean(ami):.3f} {np.mean(covered):.3f}")
    return {
        "part": part,
        "learner": name,
        "series": len(series),
        "ami": ami,
        "covering": covered,
        "states": [len(np.unique(found)) for _, found in pairs],
        "true_states": [len(np.unique(own.truth)) for own, _ in pairs],
        "seconds": seconds,
    }


def measure_peers(
    data: Path, folder: Path, every: int, names: Sequence[str], known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Mean AMI and covering of ours and of each peer of the folder on the series on which nothing
    was chosen; `known`: cells of earlier runs, of which those of other peers are kept."""
    parts = public_parts(data, every)
    del parts["TSSB odd"]
    rows = {part: [own.rows for own in series] for part, series in parts.items()}
    cells = []
    for name, learner in own_learners().items():
        for part, series in parts.items():
            begun = time.process_time()
            labels = [learner(own.rows) for own in series]
            cells.append(_compared(part, name, series, labels, time.process_time() - begun))
    for peer, part, found in label_parts(folder, rows, names):
        cell = _compared(part, peer.shown, parts[part], found.labels, found.seconds)
        cells.append({**cell, "ended": found.ended})
    measured = {cell["learner"] for cell in cells}
    kept = [cell for cell in known if cell["learner"] not in measured]
    order = [*own_learners(), *(peer.shown for peer in PEERS)]
    cells = sorted([*cells, *kept], key=lambda cell: order.index(cell["learner"]))
    return {"versions": versions(folder), "every": every, "cells": cells}


def autoregressive(rng: np.random.Generator, n: int, phi: float) -> Floats:
    """(n,) of variance 1."""
    return autoregressive_rows(rng, n, 1, phi)[:, 0]


def with_states(kind: str, dwell: float, seed: int) -> Series:
    """Rows (n, 2) that are in two states in turn, for a gamma-distributed time of this mean."""
    rng = np.random.default_rng([seed, int(dwell)])
    n = OWN_READINGS
    lengths = np.maximum(3, rng.gamma(4, dwell / 4, int(4 * n / dwell) + 20)).astype(np.int64)
    truth = np.repeat(np.arange(len(lengths)) % 2, lengths)[:n]
    phi = 0.9 if kind == "level 2 sd, AR .9" else 0.5
    rows = np.stack([autoregressive(rng, n, phi) for _ in range(2)], axis=1)
    if kind.startswith("level"):
        rows += float(kind.split()[1]) * truth[:, None] / np.sqrt(2)
    if kind == "spread x 2":
        rows *= 1.0 + truth[:, None]
    if kind == "rhythm":
        period = np.where(truth, 17, 29)
        rows = 0.5 * rows + np.sin(2 * np.pi * np.arange(n) / period)[:, None]
    if kind == "correlation":
        rows[:, 1] = np.where(truth, 0.9, -0.9) * rows[:, 0] + 0.44 * rows[:, 1]
    return Series(kind, rows, truth)


KINDS: Final = (
    "level 2 sd",
    "level 3 sd",
    "level 2 sd, AR .9",
    "spread x 2",
    "rhythm",
    "correlation",
)


def measure_own(quick: bool) -> Iterator[dict[str, Any]]:
    """Mean adjusted Rand index on own streams with states, by kind and dwell."""
    for kind in ("level 3 sd",) if quick else KINDS:
        for dwell in DWELLS[:1] if quick else DWELLS:
            streams = [with_states(kind, dwell, seed) for seed in SEEDS[: 1 if quick else None]]
            learner = own_learners()["States"]
            found = [adjusted_rand_score(own.truth, learner(own.rows)) for own in streams]
            line = {"kind": kind, "dwell": dwell, "learner": "States", "ari": found}
            click.echo(str(line))
            yield line


class Returning(NamedTuple):
    """How a stream of states that return is made."""

    dwell: int
    """mean readings of a dwell"""
    columns: int
    states: int


RETURNING: Final = tuple(
    Returning(*cell) for cell in product((20, 50, 100, 200, 400), (2, 4, 8), (2, 3))
)
"""thirty streams"""
RETURNING_SEEDS: Final = (7101,)


def returning(cell: Returning, seed: int) -> Series:
    """Rows (10 000, d) of states of which every two are 3 deviations apart, AR .5 within them."""
    rng = np.random.default_rng([seed, *cell])
    means = np.zeros((cell.states, cell.columns))
    if cell.states <= cell.columns:
        means = (
            3 / np.sqrt(2) * np.linalg.qr(rng.normal(size=(cell.columns,) * 2))[0][: cell.states]
        )
    else:
        angles = 2 * np.pi * np.arange(cell.states) / cell.states + rng.uniform(0, 2 * np.pi)
        corners = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        means[:, :2] = 3 / (2 * np.sin(np.pi / cell.states)) * corners
    truth = dwells(rng, OWN_READINGS, cell.states, cell.dwell)
    rows = [autoregressive(rng, OWN_READINGS, 0.5) for _ in range(cell.columns)]
    name = f"dwell {cell.dwell}, {cell.columns} columns, {cell.states} states"
    return Series(name, np.stack(rows, axis=1) + means[truth], truth)


def measure_returning(quick: bool) -> Iterator[dict[str, Any]]:
    """Number found and adjusted Rand index on thirty streams of states that return."""
    for cell in RETURNING[6:7] if quick else RETURNING:
        streams = [returning(cell, seed) for seed in RETURNING_SEEDS[: 1 if quick else None]]
        labels = [own_learners()["States"](own.rows) for own in streams]
        pairs = list(zip(streams, labels, strict=True))
        line = {
            **cell._asdict(),
            "learner": "States",
            "found": [len(np.unique(found)) for _, found in pairs],
            "ari": [float(adjusted_rand_score(own.truth, found)) for own, found in pairs],
        }
        click.echo(str(line))
        yield line


def measure_nulls(quick: bool) -> Iterator[dict[str, Any]]:
    """How many streams without states each learner takes for several, by kind and columns."""
    shapes = (NullShape(1, 1, NULL_READINGS[:1]),) if quick else NULL_SHAPES
    for columns, seeds, readings in shapes:
        for kind, make in NULLS.items():
            streams = []
            for seed in range(seeds):
                rng = np.random.default_rng([NULL_BASE, seed, columns])
                n = int(rng.choice(readings))
                streams.append(np.stack([make(rng, n) for _ in range(columns)], axis=1))
            for name in ("States", "States, strict"):
                few = max(1, NULL_SEEDS_OF_OTHERS * seeds // NULL_SEEDS)
                used = streams if name == "States" else streams[:few]
                false = [len(np.unique(own_learners()[name](rows))) > 1 for rows in used]
                yield {
                    "kind": kind,
                    "columns": columns,
                    "learner": name,
                    "false": sum(false),
                    "streams": len(used),
                }
                click.echo(f"{kind}, {columns} columns, {name}: {sum(false)} of {len(used)}")


ABLATION_BASE: Final = 91_000
"""seeds of streams without states on which ingredients are switched off"""
ABLATION_SEEDS: Final = 2
ABLATION_DWELLS: Final = (100, 500)


def streams_of_study(data: Path | None, quick: bool, several: bool) -> list[Stream]:
    """Streams on which variants of `States` are compared: every second series of the public
    streams, own streams, and streams without states.

    `several`: of several columns only; otherwise those without states have one."""
    streams = []
    if data is not None:
        parts = {"SKAB odd": public(data, "skab")[::2]}
        if not several:
            parts = {"TSSB odd": public(data, "tssb")[::2]} | parts
        for source, found in parts.items():
            for own in found[:: 19 if quick else 1]:
                streams.append(Stream(source, own.rows, own.truth))
    for kind in KINDS[: 1 if quick else None]:
        for dwell in ABLATION_DWELLS[: 1 if quick else None]:
            own = with_states(kind, dwell, SEEDS[0])
            streams.append(Stream("own", own.rows, own.truth))
    columns = 3 if several else 1
    for make in list(NULLS.values())[: 1 if quick else None]:
        for seed in range(1 if quick else ABLATION_SEEDS):
            rng = np.random.default_rng([ABLATION_BASE, seed, columns])
            n = int(rng.choice(NULL_READINGS[: 1 if quick else None]))
            rows = np.stack([make(rng, n) for _ in range(columns)], axis=1)
            streams.append(Stream("null", rows, np.zeros(n, dtype=np.int64)))
    return streams


def cycle(rng: np.random.Generator, n: int, period: float = 0.0) -> Floats:
    """(n,) a sine of a random phase, and of a random period of 24 to 300 where none is given."""
    period = period or int(rng.integers(24, 300))
    waves: Floats = np.sin(2 * np.pi * np.arange(n) / period + rng.uniform(0, 2 * np.pi))
    return waves


def heartbeats(rng: np.random.Generator, n: int) -> Floats:
    """(n,) narrow peaks at times that vary."""
    period = int(rng.integers(24, 300))
    shift = period * 0.06 * autoregressive(rng, n, 0.95)
    phase = ((np.arange(n) + shift) % period) / period
    beats: Floats = np.exp(-((phase - 0.5) ** 2) / 0.003) + 0.05 * rng.normal(size=n)
    return beats


NULLS: Final[dict[str, Callable[[np.random.Generator, int], Floats]]] = {
    "independent": lambda rng, n: rng.normal(size=n),
    "AR .9": lambda rng, n: autoregressive(rng, n, 0.9),
    "AR .99": lambda rng, n: autoregressive(rng, n, 0.99),
    "AR .999": lambda rng, n: autoregressive(rng, n, 0.999),
    "random walk": lambda rng, n: np.cumsum(rng.normal(size=n)),
    "walk and noise": lambda rng, n: 0.1 * np.cumsum(rng.normal(size=n)) + rng.normal(size=n),
    "cycle": lambda rng, n: cycle(rng, n) + 0.3 * rng.normal(size=n),
    "clean cycle": lambda rng, n: cycle(rng, n) + 0.02 * rng.normal(size=n),
    "daily cycle": lambda rng, n: cycle(rng, n, 1_440) + 0.3 * rng.normal(size=n),
    "square cycle": lambda rng, n: np.sign(cycle(rng, n)) + 0.3 * rng.normal(size=n),
    "cycle and AR .9": lambda rng, n: cycle(rng, n) + 0.3 * autoregressive(rng, n, 0.9),
    "trend": lambda rng, n: 3 * np.arange(n) / n + rng.normal(size=n),
    "volatility": lambda rng, n: rng.normal(size=n) * np.exp(0.5 * autoregressive(rng, n, 0.98)),
    "heavy tails": lambda rng, n: rng.standard_t(3, size=n),
    "heartbeats": heartbeats,
}
"""streams in which nothing changes for good"""


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    text = f"# States in time\n\nMade by `{result['made_by']}`.\n"
    if result["public"]:
        text += _public_page(result["public"])
    text += peers_page(result["peers"], result["public"])
    text += _own_page(result["own"]) + _returning_page(result["returning"])
    text += _nulls_page(result["nulls"])
    if result["fleet"]:
        fleet = result["fleet"]
        text += (
            "\n## 34 runs of SKAB as 34 clients\n\nEach client's features are in units of its own"
            " change from tile to tile in its first 20 tiles; sums of their products over all"
            f" clients make shared axes. AMI {fleet['ami']:.3f}, covering {fleet['covering']:.3f};"
            f" of {fleet['null_clients']} clients of fleets without states"
            f" {fleet['false_clients']} are taken for several states. A study in this benchmark:"
            " clients of `States` have axes of their own.\n"
        )
    text += (
        sensors_page(result["sensors"])
        + ablation_page(result["ablation"])
        + kernels_page(result["kernels"])
        + noise_page(result["noise"])
        + cost_page(result["cost"])
    )
    # Parts that were measured alone are of another time, and so of another version.
    parts_at: dict[str, list[str]] = {}
    for part, measured_at in result["when"].items():
        if result[part]:
            parts_at.setdefault(measured_at, []).append(part)
    if len(parts_at) > 1:
        listed = "; ".join(f"{', '.join(parts)} {at}" for at, parts in parts_at.items())
        text += f"\nParts were measured at different times: {listed}.\n"
    return text + f"\n{one_line(result['machine'])}\n"


def _public_page(cells: list[dict[str, Any]]) -> str:
    parts = list(dict.fromkeys(cell["part"] for cell in cells))
    by_key = {(cell["learner"], cell["part"]): cell for cell in cells}
    lines = []
    for name in dict.fromkeys(cell["learner"] for cell in cells):
        entries = []
        for part in parts:
            cell = by_key[name, part]
            entries.append(_entry(float(np.mean(cell["ami"])), float(np.mean(cell["covering"]))))
        seconds = sum(by_key[name, part]["seconds"] for part in parts)
        lines.append([name, STREAM, *entries, f"{seconds:.0f}"])
    for known in PUBLISHED:
        entries = []
        for part in parts:
            figures = known.skab if part == "SKAB" else known.tssb
            entries.append("-" if figures is None else _entry(*figures))
        lines.append([f"{known.name} (published)", known.reads, *entries, ""])
    counts = ", ".join(f"{part}: {by_key['States', part]['series']} series" for part in parts)
    head = ["AMI / covering", "reads", *parts, "seconds"]
    return (
        f"\n## Public streams\n\nMean over series ({counts}) of adjusted mutual information with"
        " the true states, and of covering of the true segments. Thresholds of `States` were chosen"
        " on TSSB odd; published figures of TSSB are of odd and even together. A segmentation has"
        f" no states that return: each of its segments counts as one.\n\n{table(head, lines)}"
    )


def _entry(ami: float | None, covered: float) -> str:
    return f"{'-' if ami is None else f'{ami:.3f}'} / {covered:.3f}"


def _own_page(cells: list[dict[str, Any]]) -> str:
    by_key = {(cell["kind"], cell["dwell"]): cell["ari"] for cell in cells}
    dwells = list(dict.fromkeys(cell["dwell"] for cell in cells))
    lines = []
    for kind in dict.fromkeys(cell["kind"] for cell in cells):
        entries = []
        for dwell in dwells:
            entries.append(f"{np.mean(by_key[kind, dwell]):.2f}")
        lines.append([kind, *entries])
    head = ["two states that differ by", *(f"dwell {dwell}" for dwell in dwells)]
    return (
        f"\n## Own streams\n\n{OWN_READINGS} readings of two columns, AR .5 within states. Mean"
        f" adjusted Rand index.\n\n{table(head, lines)}"
    )


def _returning_page(cells: list[dict[str, Any]]) -> str:
    if not cells:
        return ""
    lines = []
    for name in dict.fromkeys(cell["learner"] for cell in cells):
        for dwell in dict.fromkeys(cell["dwell"] for cell in cells):
            own = [cell for cell in cells if (cell["learner"], cell["dwell"]) == (name, dwell)]
            right, ari = _counted(own)
            median = f"{np.median(ari):.2f}" if ari else "-"
            lines.append([name, str(dwell), right, median])
        own = [cell for cell in cells if cell["learner"] == name]
        right, ari = _counted(own)
        span = f"{np.median(ari):.2f}, {min(ari):.2f} to {max(ari):.2f}" if ari else "-"
        lines.append([name, "all", right, span])
    head = ["learner", "dwell", "number right", "ARI where it is right, median"]
    return (
        f"\n## States that return\n\n{OWN_READINGS} readings of 2, 4 or 8 columns in 2 or 3 states,"
        " every two 3 deviations apart, AR .5 within them, a state followed by another one by"
        f" chance.\n\n{table(head, lines)}"
    )


def _counted(cells: Sequence[dict[str, Any]]) -> tuple[str, list[float]]:
    """In how many streams the number is right, and the index where it is."""
    pairs = [
        (found == cell["states"], ari)
        for cell in cells
        for found, ari in zip(cell["found"], cell["ari"], strict=True)
    ]
    right = [ari for is_right, ari in pairs if is_right]
    return f"{len(right)} of {len(pairs)}", right


def upper_bound(false: int, streams: int) -> float:
    """The share below which the true one is with a confidence of .95 (Clopper and Pearson 1934)."""
    if false >= streams:
        return 1.0
    return float(beta.ppf(0.95, false + 1, streams - false))


def _nulls_page(cells: list[dict[str, Any]]) -> str:
    lines = []
    for name in dict.fromkeys(cell["learner"] for cell in cells):
        for columns in (*dict.fromkeys(cell["columns"] for cell in cells), None):
            own = [
                cell
                for cell in cells
                if cell["learner"] == name and columns in (None, cell["columns"])
            ]
            if not own:
                continue
            false = sum(cell["false"] for cell in own)
            streams = sum(cell["streams"] for cell in own)
            kinds = dict.fromkeys(cell["kind"] for cell in own)
            by_kind = {
                kind: sum(cell["false"] for cell in own if cell["kind"] == kind) for kind in kinds
            }
            shown = "; ".join(f"{kind} {count}" for kind, count in by_kind.items() if count)
            bound = f"{100 * upper_bound(false, streams):.1f} %"
            lines.append([name, str(columns or "all"), f"{false} of {streams}", bound, shown])
    head = ["learner", "columns", "false", "at most (95 %)", "by kind"]
    return (
        f"\n## Streams without states\n\nStreams of {len(NULLS)} kinds that were taken for several"
        " states, and the share below which the true one is with a confidence of .95 (Clopper and"
        f" Pearson). Those of eight columns have {NULL_READINGS_OF_MACHINE[0]} readings, the others"
        f" {NULL_READINGS[0]} to {NULL_READINGS[-1]}.\n\n{table(head, lines)}"
    )


PARTS: Final = (
    "public",
    "peers",
    "own",
    "returning",
    "nulls",
    "fleet",
    "sensors",
    "ablation",
    "kernels",
    "noise",
    "cost",
)


class Choice(NamedTuple):
    """What is measured, and on what."""

    quick: bool
    every: int
    data: Path | None
    sensors: Path | None
    peers: Path | None
    peer_names: tuple[str, ...]
    known: dict[str, Any]
    """the results file of an earlier run; empty where all is measured anew"""

    def measured(self, part: str) -> Any:
        """What the results file has of a part; empty where its data are not given."""
        measures: dict[str, Callable[[], Any]] = {
            "public": self._public,
            "peers": self._peers,
            "own": lambda: list(measure_own(self.quick)),
            "returning": lambda: list(measure_returning(self.quick)),
            "nulls": lambda: list(measure_nulls(self.quick)),
            "fleet": self._fleet,
            "sensors": self._sensors,
            "ablation": lambda: measure_ablation(self._streams(False)),
            "kernels": lambda: list(measure_kernels(self._streams(True))),
            "noise": lambda: list(measure_noise(self.quick)),
            "cost": lambda: list(measure_cost(self.quick)),
        }
        return measures[part]()

    def _public(self) -> list[dict[str, Any]]:
        if self.data is None:
            return []
        return list(measure_public(self.data, 19 if self.quick else self.every, own_learners()))

    def _peers(self) -> dict[str, Any]:
        if self.data is None or self.peers is None:
            return {}
        known = dict(self.known.get("peers", ())).get("cells", [])
        every = 19 if self.quick else self.every
        return measure_peers(self.data, self.peers, every, self.peer_names, known)

    def _streams(self, several: bool) -> list[Stream]:
        return streams_of_study(self.data, self.quick, several)

    def _fleet(self) -> dict[str, Any] | None:
        if self.data is None:
            return None
        series = [(own.rows, own.truth) for own in public(self.data, "skab")]
        return measure_fleet(series, {} if self.quick else NULLS, covering)

    def _sensors(self) -> list[dict[str, Any]]:
        return [] if self.sensors is None else list(measure_sensors(self.sensors, self.quick))


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few streams")
@click.option(
    "--every",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Of the public series only every so-many-th.",
)
@folder_option("--data", "Folder with tssb.npz and skab.npz.")
@folder_option("--sensors", "Folder of sensor files.")
@folder_option(
    "--peers",
    "Folder that claspy, hmmlearn and ruptures are installed in: make .venv/states-peers.",
)
@click.option(
    "--peer",
    "peer_names",
    multiple=True,
    default=[peer.key for peer in PEERS],
    type=click.Choice([peer.key for peer in PEERS]),
    help="Measure this peer alone, and keep the others of the results file; again for several.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Measure this part alone, and keep the others of the results file; again for several.",
)
@click.option(
    "--pictures",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw the pictures of docs/how-to/states.md into this folder, and measure nothing.",
)
@out_option("states")
def main(  # noqa: PLR0913, PLR0917 - the options of a command
    quick: bool,
    every: int,
    data: Path | None,
    sensors: Path | None,
    peers: Path | None,
    peer_names: tuple[str, ...],
    parts: tuple[str, ...],
    pictures: Path | None,
    out: Path,
) -> None:
    """Measure the states that `States` finds, beside one state always, and peers."""
    if pictures is not None:
        # matplotlib is needed for pictures alone.
        drawn = import_module("benchmarks.states_pictures").draw(pictures)
        click.echo("\n".join(f"drawn: {path}" for path in drawn))
        return
    machine = facts(["shoal", "numpy", "scikit-learn"])
    made_by = "python -m benchmarks states"
    made_by += " --quick" * quick + f" --every {every}" * (every > 1)
    folders = {"data": data, "sensors": sensors, "peers": peers}
    made_by += "".join(f" --{name} FOLDER" for name, folder in folders.items() if folder)
    result: dict[str, Any] = dict.fromkeys(PARTS, ())
    known: dict[str, Any] = {}
    if parts and (out / "states.json").exists():
        known = json.loads((out / "states.json").read_text(encoding="utf-8"))
        result |= known
    result |= {"made_by": known.get("made_by", made_by), "machine": machine}
    when: dict[str, str] = dict(result.get("when", {}))
    result["when"] = when
    choice = Choice(quick, every, data, sensors, peers, peer_names, known)
    with threadpool_limits(limits=1):
        for part in parts or PARTS:
            result[part] = choice.measured(part)
            when[part] = machine["measured_at"]
    write(out, "states", result, markdown(result))
    click.echo(f"written to {out}/states.json and {out}/states.md")
