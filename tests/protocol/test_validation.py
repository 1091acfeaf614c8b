"""Validation: messages of another federation, or impossible under this contract, are rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.registry import streaming_algorithm, streaming_names
from shoal.algorithms.streaming import ArraySpec, Contribution
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.rejected import REASONS
from shoal.protocol.validation import ROWS_MAX, Validator
from tests.examples import examples
from tests.small_plant import FORMAL, OFF, PAPER, a_snapshot, an_update, nodes_at, plant

CONTRACT = plant()
UPDATE = an_update(CONTRACT)
SNAPSHOT = a_snapshot(CONTRACT)
VALIDATOR = Validator(resolve(CONTRACT))


def reason_of(message: Update | Snapshot) -> str:
    admit: Callable[[Any], None] = (
        VALIDATOR.check_update if isinstance(message, Update) else VALIDATOR.check_snapshot
    )
    with pytest.raises(MessageRejected) as rejected:
        admit(message)
    assert rejected.value.reason in REASONS
    return rejected.value.reason


def with_array(message: Update | Snapshot, name: str, array: Any) -> Any:
    return replace(message, arrays=dict(message.arrays) | {name: array})


def changed(message: Update | Snapshot, name: str, change: Callable[[Any], object]) -> Any:
    """One array changed in place, in a copy."""
    array = message.arrays[name].copy()
    change(array)
    return with_array(message, name, array)


def test_an_update_and_a_snapshot_without_a_node_can_be_true() -> None:
    empty = nodes_at(np.empty((0, 2)))
    VALIDATOR.check_update(replace(UPDATE, arrays=empty, readings=0))
    half = streaming_algorithm("fcac").server({}, 2)
    VALIDATOR.check_snapshot(replace(SNAPSHOT, arrays=half.snapshot(), clusters=0, nodes=0))


@pytest.mark.parametrize("privacy", [OFF, FORMAL, PAPER], ids=lambda privacy: privacy["mode"])
def test_honest_messages_come_in_after_travelling(privacy: dict[str, Any]) -> None:
    contract = plant(privacy)
    border = Validator(resolve(contract))
    update = an_update(contract)
    snapshot = a_snapshot(contract)
    border.check_update(Update.decode(update.encode(), Update.headers()))
    border.check_snapshot(Snapshot.decode(snapshot.encode(), Snapshot.headers()))


@pytest.mark.parametrize("message", [UPDATE, SNAPSHOT], ids=["update", "snapshot"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"federation": "plant2"}, "federation"),
        ({"contract": "0" * 32}, "contract"),
        ({"model": "other"}, "model"),
        ({"algorithm": "kmeans"}, "model"),
        ({"privacy": {}}, "privacy"),
        ({"privacy": resolve(plant(FORMAL)).statement}, "privacy"),
    ],
)
def test_what_belongs_elsewhere_is_refused(
    message: Any, change: dict[str, Any], reason: str
) -> None:
    assert reason_of(replace(message, **change)) == reason


@pytest.mark.parametrize(
    "contract", [plant(FORMAL), plant(PAPER), plant(models=("clusters", "more"))]
)
def test_a_message_made_under_another_contract_is_refused(contract: Contract) -> None:
    assert reason_of(an_update(contract)) == "contract"


def test_a_privacy_statement_is_compared_to_the_bit() -> None:
    statement = dict(UPDATE.privacy)
    VALIDATOR.check_update(replace(UPDATE, privacy=dict(reversed(statement.items()))))
    lies: list[dict[str, Any]] = [
        {"formal": 0},
        {"formal": True},
        {"nominal": 0.0},
        {"epsilon": 0.0},
        {"epsilon_per_feature": [1.0]},
        {"extra": None},
    ]
    for lie in lies:
        assert reason_of(replace(UPDATE, privacy=statement | lie)) == "privacy"
    formal = plant(FORMAL)
    exact = dict(an_update(formal).privacy)
    with pytest.raises(MessageRejected, match="privacy"):
        Validator(resolve(formal)).check_update(an_update(formal, privacy=exact | {"epsilon": 100}))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "arrays"),
        ({"weight": UPDATE.arrays["weight"]}, "arrays"),
        (dict(UPDATE.arrays) | {"more": np.zeros(1)}, "arrays"),
        (dict(UPDATE.arrays) | {"count": UPDATE.arrays["count"].astype(np.float64)}, "arrays"),
        (dict(UPDATE.arrays) | {"count": UPDATE.arrays["count"].astype(np.int64)}, "arrays"),
        (dict(UPDATE.arrays) | {"count": UPDATE.arrays["count"][:-1]}, "arrays"),
        (dict(UPDATE.arrays) | {"count": UPDATE.arrays["count"][:, None]}, "arrays"),
        (dict(UPDATE.arrays) | {"weight": UPDATE.arrays["weight"][:, :1]}, "arrays"),
        (dict(UPDATE.arrays) | {"weight": UPDATE.arrays["weight"].astype(np.float32)}, "arrays"),
        (dict(UPDATE.arrays) | {"weight": UPDATE.arrays["weight"].ravel()}, "arrays"),
        (dict(UPDATE.arrays) | {"weight": np.array(1.0)}, "arrays"),
        (nodes_at(np.zeros((ROWS_MAX + 1, 2))), "oversized"),
    ],
)
def test_arrays_of_another_form_than_declared_are_refused(
    arrays: dict[str, Any], reason: str
) -> None:
    assert reason_of(replace(UPDATE, arrays=arrays)) == reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    assert reason_of(changed(UPDATE, "weight", lambda weight: weight.put(1, value))) == "not_finite"
    assert reason_of(changed(SNAPSHOT, "sigma", lambda sigma: sigma.put(0, value))) == "not_finite"
    assert (
        reason_of(changed(SNAPSHOT, "centre", lambda centre: centre.put(0, value))) == "not_finite"
    )


@pytest.mark.parametrize("value", [-1e-6, 1 + 1e-6, 1e300, -1e300])
def test_a_node_where_no_reading_can_put_it_is_refused(value: float) -> None:
    assert reason_of(changed(UPDATE, "weight", lambda weight: weight.put(0, value))) == "bounds"
    assert reason_of(changed(SNAPSHOT, "centre", lambda centre: centre.put(0, value))) == "bounds"


@pytest.mark.parametrize("privacy", [FORMAL, PAPER], ids=lambda privacy: privacy["mode"])
def test_noise_may_carry_a_node_beyond_its_bounds_but_not_for_ever(privacy: dict[str, Any]) -> None:
    contract = plant(privacy)
    border = Validator(resolve(contract))
    (low, high) = resolve(contract).mode.row_range()
    for edge, outwards in ((low, -1), (high, 1)):
        update = an_update(contract)
        update.arrays["weight"][0] = edge
        border.check_update(update)
        update.arrays["weight"][0, 1] += outwards * 1e-6
        with pytest.raises(MessageRejected, match="bounds"):
            border.check_update(update)


@pytest.mark.parametrize("count", [0, -1, np.iinfo(np.int32).min])
def test_a_node_with_a_count_below_one_is_rejected(count: int) -> None:
    assert reason_of(changed(UPDATE, "count", lambda counts: counts.put(0, count))) == "bounds"
    assert reason_of(changed(SNAPSHOT, "count", lambda counts: counts.put(0, count))) == "bounds"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sigma", 0.0),
        ("sigma", -1.0),
        ("cluster", -1),
        ("cluster", 10**6),
        ("cluster", SNAPSHOT.clusters),
        ("edge", -1),
        ("edge", SNAPSHOT.nodes),
        ("edge_age", 0),
        ("centre_weight", 0.5),
    ],
)
def test_a_snapshot_that_would_lead_its_readers_astray_is_refused(name: str, value: float) -> None:
    assert len(SNAPSHOT.arrays[name])
    assert reason_of(changed(SNAPSHOT, name, lambda array: array.put(0, value))) == "bounds"


@pytest.mark.parametrize("change", [{"clusters": SNAPSHOT.clusters + 1}, {"nodes": 0}])
def test_a_snapshot_that_counts_otherwise_than_it_holds_is_refused(change: dict[str, Any]) -> None:
    assert reason_of(replace(SNAPSHOT, **change)) == "arrays"


@settings(max_examples=examples(400))
@given(st.data())
def test_an_update_with_flipped_bytes_is_refused_or_can_be_absorbed(data: st.DataObject) -> None:
    value = bytearray(UPDATE.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    reason = None
    try:
        update = Update.decode(bytes(value), Update.headers())
        VALIDATOR.check_update(update)
        half = streaming_algorithm("fcac").server({}, 2)
        half.absorb([Contribution(update.client, update.sequence, update.arrays)], b"")
        half.snapshot()
    except MessageRejected as rejected:
        reason = rejected.reason
    assert reason is None or reason in REASONS


@settings(max_examples=examples(400))
@given(st.data())
def test_a_snapshot_with_flipped_bytes_is_refused_or_can_be_asked(data: st.DataObject) -> None:
    value = bytearray(SNAPSHOT.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    reason = None
    try:
        snapshot = Snapshot.decode(bytes(value), Snapshot.headers())
        VALIDATOR.check_snapshot(snapshot)
        found = streaming_algorithm("fcac").predict(
            snapshot.arrays, np.array([[0.5, 0.5], [0.0, 1.0]])
        )
        assert (found < snapshot.clusters).all()
    except MessageRejected as rejected:
        reason = rejected.reason
    assert reason is None or reason in REASONS


def test_a_rejection_never_quotes_the_content_of_a_message() -> None:
    sentinel = 0.123456789
    lies = [
        changed(UPDATE, "weight", lambda weight: weight.put([0, 1], [sentinel, 7 + sentinel])),
        changed(UPDATE, "count", lambda counts: counts.put(0, -123456789)),
        replace(UPDATE, privacy={"epsilon": sentinel}),
        with_array(UPDATE, "x123456789", np.zeros(1)),
    ]
    for lie in lies:
        with pytest.raises(MessageRejected) as rejected:
            VALIDATOR.check_update(lie)
        assert "123456789" not in str(rejected.value)


# Models and terms.


def test_models_that_can_be_run_pass() -> None:
    resolve(plant(models=("a", "b")))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"algorithm": "dbscam"}, r"models\.m: unknown algorithm 'dbscam'; there are: .*fcac"),
        ({"algorithm": "fcac", "options": {"speed": 1}}, r"models\.m: fcac has no option 'speed'"),
        (
            {"algorithm": "fcac", "options": {"edge_factor": -1}},
            r"models\.m: fcac option edge_factor",
        ),
    ],
)
def test_models_that_cannot_be_run_are_named(model: dict[str, Any], expected: str) -> None:
    parts: dict[str, Any] = parts_for_contract() | {"models": [{"name": "m", **model}]}
    with pytest.raises(SettingsError, match=expected):
        resolve(parse_contract(parts))


def parts_for_contract() -> dict[str, Any]:
    whole = CONTRACT.model_dump()
    return {
        "federation": {"name": "plant"},
        "features": whole["features"],
        "privacy": {"mode": "off"},
    }


def test_bounds_are_those_of_the_features_in_their_order() -> None:
    bounds = CONTRACT.bounds
    assert bounds.low.tolist() == [-10.0, 0.0]
    assert bounds.high.tolist() == [50.0, 100.0]


def test_every_declared_table_can_be_checked() -> None:
    for algorithm in map(streaming_algorithm, streaming_names()):
        for table in (algorithm.update, algorithm.snapshot):
            names = {
                size for spec in table.values() for size in spec.shape if isinstance(size, str)
            }
            for spec in table.values():
                assert isinstance(spec, ArraySpec)
                assert spec.points_into is None or spec.points_into in names


def test_a_bandwidth_whose_square_is_nothing_is_rejected_because_readers_divide_by_it() -> None:
    contract = plant()
    whole = a_snapshot(contract)
    for sigma in (1e-200, 5e-324):
        arrays = {**whole.arrays, "sigma": np.full_like(whole.arrays["sigma"], sigma)}
        with pytest.raises(MessageRejected, match="whose square is 0"):
            Validator(resolve(contract)).check_snapshot(replace(whole, arrays=arrays))


def test_a_number_whose_square_overflows_is_rejected() -> None:
    """Found by the fuzzer: a client's labels came from directions of length infinity."""
    contract = plant()
    whole = a_snapshot(contract)
    arrays = {**whole.arrays, "centre_weight": np.full_like(whole.arrays["centre_weight"], 1e200)}
    with pytest.raises(MessageRejected, match="overflows"):
        Validator(resolve(contract)).check_snapshot(replace(whole, arrays=arrays))
