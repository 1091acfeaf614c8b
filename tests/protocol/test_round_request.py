"""Round requests: what a snapshot asks clients for, which clients are asked, and the checks of
requests and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.config.contract import Rounds, parse_contract
from shoal.config.resolved import resolve
from shoal.errors import MessageRejected
from shoal.protocol.messages import (
    RoundRequest,
    Snapshot,
    Update,
    new_round_request,
    round_request_of,
)
from shoal.protocol.validation import Validator

CENTRES = np.array([[0.2, 0.8], [0.7, 0.2]])
WEIGHT = np.array([3.0, 0.0])
REQUEST = {"deadline": 1e9, "fraction": 0.5, "rows_min": 20}

CONTRACT = parse_contract(
    {
        "federation": {"name": "plant"},
        "features": [{"name": "warm", "low": 0, "high": 1}, {"name": "damp", "low": 0, "high": 1}],
        "privacy": {"mode": "off"},
        "models": [{"name": "heaps", "algorithm": "kmeans", "options": {"clusters": 2}}],
    }
)
VALIDATOR = Validator(resolve(CONTRACT))


def a_snapshot_with(**other: Any) -> Snapshot:
    """A valid snapshot of the server, with these fields changed."""
    snapshot = Snapshot(
        federation="plant",
        contract=CONTRACT.digest,
        model="heaps",
        algorithm="kmeans",
        version=1,
        positions=[[0, 0]],
        updates=0,
        readings=0,
        clients=0,
        clusters=1,
        nodes=2,
        pooled=0,
        privacy=resolve(CONTRACT).statement,
        arrays={"centre": CENTRES, "weight": WEIGHT},
        made_at=1e9,
        round=1,
        round_request=REQUEST,
    )
    return replace(snapshot, **other)


def an_answer(**other: Any) -> Update:
    """A valid answer of a client, with these fields changed."""
    update = Update(
        federation="plant",
        contract=CONTRACT.digest,
        model="heaps",
        algorithm="kmeans",
        client="attic",
        sequence=1,
        readings=30,
        privacy=resolve(CONTRACT).statement,
        arrays=rounds_algorithm("kmeans").answer(
            {"centre": CENTRES, "weight": WEIGHT}, np.full((30, 2), 0.5)
        ),
        made_at=1e9,
        round=1,
    )
    return replace(update, **other)


def test_a_snapshot_without_a_request_asks_for_nothing() -> None:
    assert round_request_of(a_snapshot_with(round_request=None)) is None


def test_a_round_request_is_read_as_it_was_made() -> None:
    request = new_round_request(
        Rounds(deadline_s=5, fraction=0.5, rows_min=7), "heaps", number=3, version=9, now=100.0
    )
    assert (
        round_request_of(a_snapshot_with(round=3, version=9, round_request=request.table()))
        == request
    )
    assert (request.deadline, request.fraction, request.rows_min) == (105.0, 0.5, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"deadline": "soon"},
        {"deadline": True},
        {"deadline": float("inf")},
        {"fraction": 0.0},
        {"fraction": 1.5},
        {"fraction": float("nan")},
        {"rows_min": 0},
        {"rows_min": 2.0},
    ],
)
def test_an_invalid_round_request_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageRejected, match="malformed"):
        VALIDATOR.check_snapshot(
            a_snapshot_with(round_request={**REQUEST, **wrong} if wrong else {})
        )


def test_unknown_fields_of_a_round_request_are_ignored() -> None:
    VALIDATOR.check_snapshot(a_snapshot_with(round_request={**REQUEST, "colour": "red"}))


def test_the_fraction_of_the_clients_in_the_contract_is_asked() -> None:
    clients = [f"client-{n}" for n in range(2000)]
    for fraction in (0.05, 0.5, 1.0):
        request = RoundRequest("heaps", 1, 1, 1e9, fraction, 20)
        asked = sum(request.selects(CONTRACT.federation, client) for client in clients)
        assert abs(asked / len(clients) - fraction) < 0.05


def test_the_selection_is_the_same_on_every_machine_and_differs_between_requests() -> None:
    clients = [f"client-{n}" for n in range(12)]
    drawn = [
        "".join(
            str(int(RoundRequest("heaps", 1, v, 0.0, 0.5, 1).selects(CONTRACT.federation, c)))
            for c in clients
        )
        for v in (1, 2)
    ]
    assert drawn == ["010000110011", "101100111001"]
    other = [
        RoundRequest("others", 1, 1, 0.0, 0.5, 1).selects(CONTRACT.federation, client)
        for client in clients
    ]
    assert "".join(str(int(asked)) for asked in other) not in drawn


# Validation.


def test_valid_requests_and_answers_pass() -> None:
    VALIDATOR.check_snapshot(a_snapshot_with())
    VALIDATOR.check_snapshot(a_snapshot_with(round_request=None))
    VALIDATOR.check_update(an_answer())


def test_an_answer_needs_its_round_and_enough_rows() -> None:
    for reason, wrong in (("malformed", {"round": None}), ("bounds", {"readings": 19})):
        with pytest.raises(MessageRejected) as rejected:
            VALIDATOR.check_update(an_answer(**wrong))
        assert rejected.value.reason == reason


@pytest.mark.parametrize("name", sorted(rounds_algorithm("kmeans").update))
def test_an_answer_with_other_arrays_is_rejected(name: str) -> None:
    arrays = dict(an_answer().arrays)
    wrong = [
        {other: array for other, array in arrays.items() if other != name},
        {**arrays, name: arrays[name].astype(np.float32)},
        {**arrays, name: arrays[name][..., None]},
        {**arrays, name: arrays[name] * np.nan},
    ]
    for value in wrong:
        with pytest.raises(MessageRejected):
            VALIDATOR.check_update(an_answer(arrays=value))


def test_a_snapshot_needs_its_round_and_centres_where_rows_can_be() -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("malformed", {"round": None}),
        ("bounds", {"arrays": {"centre": CENTRES + 1, "weight": WEIGHT}}),
        ("arrays", {"arrays": {"centre": CENTRES, "weight": WEIGHT[:1]}}),
        ("arrays", {"clusters": 2}),
        ("arrays", {"nodes": 3}),
    ]
    for reason, parts in wrong:
        with pytest.raises(MessageRejected) as rejected:
            VALIDATOR.check_snapshot(a_snapshot_with(**parts))
        assert rejected.value.reason == reason
