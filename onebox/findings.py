"""What the demo has found, in words and units, and how it agrees with what is known of the office."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from server_node.description import Description, describe
from server_node.models.base import ServedModel
from shoal.algorithms.registry import load_algorithm
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds

CLUSTERS_DESCRIBED_MAX = 2


@dataclass(frozen=True)
class Office:
    """The readings that ship with shoal, with what is known of them."""

    rows: NDArray[np.float64]
    """(n, d) in the units of the contract"""
    occupied: NDArray[np.int64]
    """(n,) 1 where somebody was in the room"""
    time: NDArray[np.datetime64]
    """(n,) when each was read, local time of the room"""


def read_office(contract: Contract) -> Office:
    """The rows of the shipped file with the features of the contract."""
    text = gzip.decompress(files("onebox").joinpath("occupancy.csv.gz").read_bytes()).decode()
    lines = list(csv.DictReader(text.splitlines()))
    rows = [[float(line[feature.name]) for feature in contract.features] for line in lines]
    occupied = np.array([int(line["label"]) for line in lines])
    return Office(np.array(rows), occupied, np.array([line["date"] for line in lines], dtype="datetime64[s]"))


def labels_of(model: ServedModel, contract: Contract, office: Office) -> NDArray[np.int64]:
    """(n,) the identity of the cluster of each row by the newest snapshot; -1 where there is none."""
    snapshot = model.snapshot
    if snapshot is None:
        return np.full(len(office.rows), -1, dtype=np.int64)
    unit = declared_bounds(contract).to_unit(office.rows)
    number = load_algorithm(snapshot.algorithm).predict(snapshot.arrays, unit)
    identity_of = model.lineage.of_number
    return np.array([identity_of.get(one, -1) for one in number.tolist()], dtype=np.int64)


def sentences(model: ServedModel, contract: Contract, office: Office) -> list[str]:
    """What was found: the number of clusters, and the largest of them with the features that set them apart."""
    if model.view is None or not model.lineage.known:
        return ["No cluster was found."]
    labels = labels_of(model, contract, office)
    described = describe(model.view, contract)
    text_of = {
        identity: _in_a_sentence(described[number], contract) for number, identity in model.lineage.of_number.items()
    }
    share = {identity: float(np.mean(labels == identity)) for identity in text_of}
    name_of = names(model, contract)
    n = len(text_of)
    largest = sorted(text_of, key=lambda identity: (-share[identity], identity))
    states = [f"{name_of[one]}, {100 * share[one]:.0f} % of the readings" for one in largest]
    found = [f"The office has {n} state{'s' * (n > 1)}: {_listed(states)}."]
    return found + [f"In cluster {one}, {text_of[one]}." for one in largest[:CLUSTERS_DESCRIBED_MAX]]


def occupancy(model: ServedModel, contract: Contract, office: Office) -> str:
    """One sentence on when somebody was in the room: in the cluster in which that was so most often, and elsewhere."""
    labels = labels_of(model, contract, office)
    shares = {int(one): float(office.occupied[labels == one].mean()) for one in np.unique(labels[labels >= 0])}
    if not shares:
        return ""
    most = max(shares, key=lambda identity: (shares[identity], -identity))
    others = office.occupied[labels != most]
    elsewhere = f", and in {100 * others.mean():.0f} % of all others" if len(others) else ""
    return f"Somebody was in the room in {100 * shares[most]:.0f} % of the readings of cluster {most}{elsewhere}."


def _in_a_sentence(description: Description, contract: Contract) -> str:
    """Such as "Light is high: 430-560 lux, elsewhere 0-90"."""
    text = description.text(contract)
    for each in description.distinctions:
        name, direction = contract.features[each.feature].name, "high" if each.high else "low"
        text = text.replace(f"{name} {direction}: ", f"{name} is {direction}: ", 1)
    return text


def names(model: ServedModel, contract: Contract) -> dict[int, str]:
    """identity of each known cluster -> its name, or its label such as "Light high" with the identity."""
    if model.view is None:
        return {}
    described = describe(model.view, contract)
    given = {cluster.identity: cluster.name for cluster in model.lineage.known}
    return {
        identity: given[identity] or f"{described[number].label(contract)} (cluster {identity})"
        for number, identity in sorted(model.lineage.of_number.items(), key=lambda pair: pair[1])
    }


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
