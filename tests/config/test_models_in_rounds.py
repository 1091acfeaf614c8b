"""What a federation agrees on about rounds, what a call is, and what the border makes of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.policies import Policy
from shoal.config.contract import Contract, Rounds, parse_contract
from shoal.config.models import check_models, round_policy
from shoal.config.privacy import privacy_mode
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.round_request import RoundRequest, new_round_request, round_request_of
from shoal.protocol.validation import Validator

FEATURES = [{"name": "warm", "low": 0, "high": 1}, {"name": "damp", "low": 0, "high": 1}]
CENTRES = np.array([[0.2, 0.8], [0.7, 0.2]])
WEIGHT = np.array([3.0, 0.0])
CALL = {"deadline": 1e9, "fraction": 0.5, "rows_min": 20}


def agreed(*models: dict[str, Any]) -> Contract:
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    return parse_contract(tables | {"models": list(models)})


def heaps(algorithm: str = "kmeans", **other: Any) -> dict[str, Any]:
    return {"name": "heaps", "algorithm": algorithm, "options": {"clusters": 2}, **other}


CONTRACT = agreed(heaps())
BORDER = Validator(CONTRACT)


def a_call(**other: Any) -> Snapshot:
    """What an honest server says."""
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
        privacy=privacy_mode(CONTRACT).statement(),
        arrays={"centre": CENTRES, "weight": WEIGHT},
        made_at=1e9,
        round=1,
        round_request=CALL,
    )
    return replace(snapshot, **other)


def an_answer(**other: Any) -> Update:
    """What an honest client says."""
    update = Update(
        federation="plant",
        contract=CONTRACT.digest,
        model="heaps",
        algorithm="kmeans",
        client="attic",
        sequence=1,
        readings=30,
        privacy=privacy_mode(CONTRACT).statement(),
        arrays=rounds_algorithm("kmeans").answer({"centre": CENTRES, "weight": WEIGHT}, np.full((30, 2), 0.5)),
        made_at=1e9,
        round=1,
    )
    return replace(update, **other)


# The contract.


def test_a_table_of_rounds_left_out_empty_or_of_defaults_is_the_same() -> None:
    defaults = Rounds().model_dump(exclude_none=True)
    written: list[dict[str, Any]] = [{}, {"rounds": {}}, {"rounds": defaults}]
    digests = {agreed(heaps(**rounds)).digest for rounds in written}
    assert len(digests) == 1
    assert agreed(heaps(rounds={"quorum": 1})).digest == agreed(heaps(rounds={"quorum": 1.0})).digest


@pytest.mark.parametrize("name", sorted(Rounds.model_fields))
def test_whatever_is_agreed_otherwise_is_another_contract(name: str) -> None:
    other = {"between": "cache", "fraction": 0.5, "quorum": 0.5, "decay": 0.25}.get(name, 7)
    assert agreed(heaps(rounds={name: other})).digest != CONTRACT.digest


@pytest.mark.parametrize(
    "wrong",
    [
        {"fraction": 0},
        {"fraction": 1.1},
        {"quorum": 0},
        {"deadline_s": 0},
        {"rows_min": 0},
        {"rounds_max": 0},
        {"rounds_max": 2.5},
        {"tolerance": -1},
        {"wake_s": 0},
        {"between": "never"},
        {"decay": 1},
        {"cache_rounds": -1},
        {"late_rounds": True},
        {"patience": 3},
    ],
)
def test_rounds_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        agreed(heaps(rounds=wrong))


@pytest.mark.parametrize("algorithm", rounds_names())
def test_every_algorithm_can_be_agreed_on_and_has_a_policy(algorithm: str) -> None:
    options = {"clusters": 2} if "clusters" in rounds_algorithm(algorithm).options else {}
    contract = agreed({"name": "heaps", "algorithm": algorithm, "options": options})
    check_models(contract)
    assert round_policy(contract.models[0]).kind == ("decay" if rounds_algorithm(algorithm).additive else "cache")


def test_what_was_agreed_of_the_time_between_rounds_is_what_is_done() -> None:
    rounds = {"between": "cache", "decay": 0.25, "cache_rounds": 2, "late_rounds": 1}
    assert round_policy(agreed(heaps(rounds=rounds)).models[0]) == Policy(
        "cache", decay=0.25, cache_rounds=2, late_rounds=1
    )


def test_sums_that_are_none_cannot_decay() -> None:
    with pytest.raises(SettingsError, match=r"models\.heaps.*cannot decay"):
        check_models(agreed(heaps("kmeans_local", rounds={"between": "decay"})))


def test_an_option_that_an_algorithm_does_not_have_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"models\.heaps.*no option"):
        check_models(agreed(heaps(options={"clusters": 2, "k": 3})))


def test_as_many_as_another_model_finds_needs_another_model() -> None:
    alone = heaps(options={})
    with pytest.raises(SettingsError, match="add one of fcac, or give a number"):
        check_models(agreed(alone))
    check_models(agreed(alone, {"name": "clusters", "algorithm": "fcac"}))


def test_an_algorithm_without_rounds_takes_no_table_of_them() -> None:
    with pytest.raises(SettingsError, match="fcac has no rounds"):
        check_models(agreed({"name": "clusters", "algorithm": "fcac", "rounds": {}}))


# Calls.


def test_a_snapshot_that_asks_for_nothing_is_no_call() -> None:
    assert round_request_of(a_call(round_request=None)) is None


def test_a_call_is_read_as_it_was_made() -> None:
    call = new_round_request(Rounds(deadline_s=5, fraction=0.5, rows_min=7), "heaps", number=3, version=9, now=100.0)
    assert round_request_of(a_call(round=3, version=9, round_request=call.table())) == call
    assert (call.deadline, call.fraction, call.rows_min) == (105.0, 0.5, 7)


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
def test_a_call_that_cannot_be_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageRejected, match="malformed"):
        BORDER.check_snapshot(a_call(round_request={**CALL, **wrong} if wrong else {}))


def test_what_a_newer_server_adds_to_a_call_is_ignored() -> None:
    BORDER.check_snapshot(a_call(round_request={**CALL, "colour": "red"}))


def test_a_whole_federation_is_called_or_the_part_that_was_agreed() -> None:
    clients = [f"client-{n}" for n in range(2000)]
    for fraction in (0.05, 0.5, 1.0):
        call = RoundRequest("heaps", 1, 1, 1e9, fraction, 20)
        asked = sum(call.selects(CONTRACT, client) for client in clients)
        assert abs(asked / len(clients) - fraction) < 0.05


def test_who_is_asked_is_the_same_on_every_machine_and_another_each_time() -> None:
    clients = [f"client-{n}" for n in range(12)]
    drawn = [
        "".join(str(int(RoundRequest("heaps", 1, v, 0.0, 0.5, 1).selects(CONTRACT, c))) for c in clients)
        for v in (1, 2)
    ]
    assert drawn == ["010000110011", "101100111001"]
    other = [RoundRequest("others", 1, 1, 0.0, 0.5, 1).selects(CONTRACT, client) for client in clients]
    assert "".join(str(int(asked)) for asked in other) not in drawn


# The border.


def test_honest_calls_and_answers_pass() -> None:
    BORDER.check_snapshot(a_call())
    BORDER.check_snapshot(a_call(round_request=None))
    BORDER.check_update(an_answer())


def test_an_answer_names_its_round_and_has_rows_enough_behind_it() -> None:
    for reason, wrong in (("malformed", {"round": None}), ("bounds", {"readings": 19})):
        with pytest.raises(MessageRejected) as rejected:
            BORDER.check_update(an_answer(**wrong))
        assert rejected.value.reason == reason


@pytest.mark.parametrize("name", sorted(rounds_algorithm("kmeans").update))
def test_an_answer_of_another_form_is_refused(name: str) -> None:
    arrays = dict(an_answer().arrays)
    wrong = [
        {other: array for other, array in arrays.items() if other != name},
        {**arrays, name: arrays[name].astype(np.float32)},
        {**arrays, name: arrays[name][..., None]},
        {**arrays, name: arrays[name] * np.nan},
    ]
    for each in wrong:
        with pytest.raises(MessageRejected):
            BORDER.check_update(an_answer(arrays=each))


def test_a_snapshot_says_its_round_and_holds_centres_where_rows_can_be() -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("malformed", {"round": None}),
        ("bounds", {"arrays": {"centre": CENTRES + 1, "weight": WEIGHT}}),
        ("arrays", {"arrays": {"centre": CENTRES, "weight": WEIGHT[:1]}}),
        ("arrays", {"clusters": 2}),
        ("arrays", {"nodes": 3}),
    ]
    for reason, parts in wrong:
        with pytest.raises(MessageRejected) as rejected:
            BORDER.check_snapshot(a_call(**parts))
        assert rejected.value.reason == reason
