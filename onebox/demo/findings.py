"""Findings of the demo in words and units, and its models side by side: what each learns from, and
its cost."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.kernels.arrays import Dates, Floats, Ints
from shoal.server_node.models.base import ServedModel
from shoal.server_node.report.types import Cluster, Clustering, FeatureView
from shoal.text import counted

CLUSTERS_DESCRIBED_MAX = 2


@dataclass(frozen=True)
class Office:
    """The readings that ship with shoal, and when somebody was in the room."""

    rows: Floats
    """readings (n, d) in the units of the contract"""
    occupied: Ints
    """1 (n,) where somebody was in the room"""
    time: Dates
    """times (n,) of the readings, local time of the room"""


def read_office(contract: Contract) -> Office:
    """The rows of the shipped file with the features of the contract."""
    text = gzip.decompress(
        files("shoal.onebox.demo").joinpath("occupancy.csv.gz").read_bytes()
    ).decode()
    lines = list(csv.DictReader(text.splitlines()))
    rows = [[float(line[feature.name]) for feature in contract.features] for line in lines]
    occupied = np.array([int(line["label"]) for line in lines])
    return Office(
        np.array(rows), occupied, np.array([line["date"] for line in lines], dtype="datetime64[s]")
    )


def labels_of(model: ServedModel, contract: ResolvedContract, office: Office) -> Ints:
    """(n,) the identity of the cluster of each row by the newest snapshot; -1 where there is
    none."""
    snapshot = model.snapshot
    if snapshot is None:
        return np.full(len(office.rows), -1, dtype=np.int64)
    unit = contract.bounds.to_unit(office.rows)
    number = contract.models[snapshot.model].algorithm.predict(snapshot.arrays, unit)
    identity_of = model.lineage.of_number
    return np.array([identity_of.get(cluster, -1) for cluster in number.tolist()], dtype=np.int64)


def sentences(clustering: Clustering) -> list[str]:
    """Findings: the number of clusters, and the largest of them with the features that set them
    apart."""
    clusters = [cluster for cluster in clustering.clusters if cluster.text]
    if not clusters:
        return ["No cluster was found."]
    # By identity where shares are equal, so that the sentence is the same in every run.
    clusters.sort(key=lambda cluster: (-(cluster.share or 0.0), cluster.identity))
    n = len(clusters)
    states = []
    for cluster in clusters:
        share = ""
        if cluster.share is not None:
            share = f", {100 * cluster.share:.0f} % of the readings"
        states.append(f"{title(cluster)}{share}")
    lines = [f"The office has {counted(n, 'state')}: {_listed(states)}."]
    for cluster in clusters[:CLUSTERS_DESCRIBED_MAX]:
        text = _in_a_sentence(cluster.text, clustering.features)
        lines.append(f"In cluster {cluster.identity}, {text}.")
    return lines


def occupancy(model: ServedModel, contract: ResolvedContract, office: Office) -> str:
    """One sentence on when somebody was in the room: in the cluster with most of it, and
    elsewhere."""
    labels = labels_of(model, contract, office)
    shares = {
        int(cluster): float(office.occupied[labels == cluster].mean())
        for cluster in np.unique(labels[labels >= 0])
    }
    if not shares:
        return ""
    # Of equal shares the older cluster: its identity is smaller.
    most = max(shares, key=lambda identity: (shares[identity], -identity))
    others = office.occupied[labels != most]
    elsewhere = ""
    if len(others):
        elsewhere = f", and in {100 * others.mean():.0f} % of all others"
    return (
        f"Somebody was in the room in {100 * shares[most]:.0f} % of the readings of cluster"
        f" {most}{elsewhere}."
    )


def _in_a_sentence(text: str, features: Sequence[FeatureView]) -> str:
    """Such as "Light is high: 430-560 lux, elsewhere 0-90"."""
    for feature in features:
        for direction in ("high", "low", "medium"):
            text = text.replace(f"{feature.name} {direction}: ", f"{feature.name} is {direction}: ")
    return text


def title(cluster: Cluster) -> str:
    """The name of a cluster, or its label such as "Light high" with the identity."""
    return cluster.name or f"{cluster.label} (cluster {cluster.identity})"


def names(clustering: Clustering) -> dict[int, str]:
    """identity of each known cluster with nodes -> its title."""
    return {cluster.identity: title(cluster) for cluster in clustering.clusters if cluster.text}


def _listed(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


HEADINGS = ("model", "algorithm", "learns from", "epsilon", "clusters", "agreement")


@dataclass(frozen=True)
class Result:
    """Findings of one model, and their price."""

    model: str
    algorithm: str
    learns_from: str
    epsilon: float | None
    """epsilon of one reading"""
    clusters: int
    """number of clusters known at the end"""
    agreement: float
    """adjusted Rand index of its clusters with the occupancy of the room"""
    labels: Ints
    """identities (n,) of the clusters of the readings, -1 for none"""

    def as_json(self) -> dict[str, Any]:
        """All but the labels."""
        return {name: value for name, value in asdict(self).items() if name != "labels"}


def results(
    models: Mapping[str, ServedModel], contract: ResolvedContract, office: Office
) -> list[Result]:
    """One for each model, in the order of the contract."""
    return [
        _result(model, models[name], contract, office) for name, model in contract.models.items()
    ]


def _result(
    model: ResolvedModel, served: ServedModel, contract: ResolvedContract, office: Office
) -> Result:
    labels = labels_of(served, contract, office)
    return Result(
        model.name,
        model.algorithm.name,
        model.family.learns_from,
        model.epsilon,
        len(served.lineage.known),
        round(adjusted_rand(office.occupied, labels), 3),
        labels,
    )


def adjusted_rand(classes: Ints, labels: Ints) -> float:
    """classes (n,), labels (n,) -> the adjusted Rand index: 1 for equal partitions, 0 on average by
    chance.

    Source: L. Hubert, P. Arabie, "Comparing partitions" (1985), equation 5. It needs no
    scikit-learn.
    """
    rows, columns = (np.unique(names, return_inverse=True)[1] for names in (classes, labels))
    table = np.zeros((rows.max(initial=0) + 1, columns.max(initial=0) + 1), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    together, in_rows, in_columns = (
        _pairs(counts) for counts in (table, table.sum(axis=1), table.sum(axis=0))
    )
    # A single reading has no pairs, and 0 / 0 would be no number.
    chance = in_rows * in_columns / max(_pairs(np.array([len(rows)])), 1.0)
    most = (in_rows + in_columns) / 2
    # Both are one group, or both are single rows: there is no pair about which they could differ.
    if most == chance:
        return 1.0
    return (together - chance) / (most - chance)


def _pairs(counts: Ints) -> float:
    return float((counts * (counts - 1)).sum()) / 2


def table(compared: list[Result]) -> list[str]:
    """A line of headings, and a line for each model."""
    rows = [HEADINGS, *(_cells(result) for result in compared)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    is_number = [False, False, False, True, True, True]
    lines = []
    for row in rows:
        cells = []
        for cell, width, right in zip(row, widths, is_number, strict=True):
            cells.append(cell.rjust(width) if right else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _cells(result: Result) -> tuple[str, ...]:
    epsilon = "none" if result.epsilon is None else f"{result.epsilon:g}"
    return (
        result.model,
        result.algorithm,
        result.learns_from,
        epsilon,
        str(result.clusters),
        f"{result.agreement:.2f}",
    )


def price(contract: ResolvedContract) -> str:
    """Cost of a reading in each model and in all, in one or two sentences."""
    total = contract.total_epsilon
    assert total is not None, "the demo has a guarantee"
    noisy = [model for model in contract.models.values() if model.family.takes_rows]
    parts = [
        f"{model.epsilon:g} in the private counts of {model.name}" for model in contract.counted
    ]
    if noisy:
        names = ", ".join(model.name for model in noisy)
        parts.append(f"{noisy[0].epsilon:g} in the noisy rows that {names} share")
    if len(parts) == 1:
        return f"A reading costs epsilon {parts[0]}, and nothing else is published."
    return f"A reading costs epsilon {total:g} in all: {' and '.join(parts)}."
