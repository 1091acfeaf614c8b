"""Honest updates and answers are accepted whatever the algorithm, the privacy mode and the rows;
forged ones are not.

The last test makes sure that no installed algorithm is without a check of its claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.algorithms.registry import (
    algorithm_names,
    counting_names,
    load_algorithm,
    rounds_algorithm,
    rounds_names,
    streaming_algorithm,
    streaming_names,
)
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.streaming import Arrays
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.errors import MessageRejected
from shoal.protocol.messages import Update
from shoal.protocol.validation import Validator
from tests.examples import examples
from tests.laws.test_rounds_laws import VARIANTS

MODES: dict[str, dict[str, Any]] = {
    "off": {"mode": "off"},
    "paper": {"mode": "paper", "epsilon_nominal_per_feature": 3},
    "formal": {"mode": "formal", "epsilon_per_reading": 50},
    "formal-strong": {"mode": "formal", "epsilon_per_reading": 0.2},
}
KEY = bytes(32)
SOURCE = bytes(16)
laws = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
CASES = [(name, options) for name in rounds_names() for options in VARIANTS.get(name, [{}])]


def contract_of(
    algorithm: str, privacy: dict[str, Any], d: int, options: dict[str, Any]
) -> Contract:
    features = [{"name": f"f{number}", "low": -5 * number - 1, "high": 3} for number in range(d)]
    model: dict[str, Any] = {"name": "model", "algorithm": algorithm, "options": options}
    if algorithm in rounds_names():
        asked = {"clusters": 3} if rounds_algorithm(algorithm).takes("clusters") else {}
        model |= {"options": {**asked, **options}, "rounds": {"rows_min": 1}}
    tables = {
        "federation": {"name": "plant"},
        "features": features,
        "privacy": privacy,
        "models": [model],
    }
    return parse_contract(tables)


def private_rows(contract: Contract, n: int, seed: int, kind: str) -> NDArray[np.float64]:
    """(k, d) rows as a client of this contract learns them: k is n, or less where the mode
    withholds rows."""
    mode = resolve(contract).mode
    rng = np.random.default_rng(seed)
    d = contract.width
    unit = {
        "uniform": rng.random((n, d)),
        "clusters": np.clip(
            rng.random((3, d))[rng.integers(0, 3, n)] + rng.normal(0, 0.01, (n, d)), 0, 1
        ),
        "corners": rng.integers(0, 2, (n, d)).astype(np.float64),
        "equal": np.full((n, d), rng.random()),
    }[kind]
    places = np.column_stack([np.zeros(n, dtype=np.int64), np.arange(n)])
    return mode.mechanism(KEY, "attic", SOURCE).privatise(mode.bounds.from_unit(unit), places).rows


def message(contract: Contract, arrays: Arrays, readings: int, **other: Any) -> Update:
    model = contract.models[0]
    return Update(
        federation=contract.federation,
        contract=contract.digest,
        model=model.name,
        algorithm=model.algorithm,
        client="attic",
        sequence=1,
        readings=readings,
        privacy=resolve(contract).statement,
        arrays=arrays,
        made_at=1e9,
        **other,
    )


def first_params(contract: Contract, clusters: int, seed: int) -> Params:
    model = contract.models[0]
    d = contract.width
    hint = InitHint(np.zeros(d), np.ones(d), seed)
    algorithm = rounds_algorithm(model.algorithm)
    asked = {"clusters": clusters} if algorithm.takes("clusters") else {}
    return algorithm.start({**model.options, **asked}, d, hint)


streams = {
    "n": st.integers(1, 90),
    "d": st.integers(1, 4),
    "seed": st.integers(0, 999),
    "kind": st.sampled_from(["uniform", "clusters", "corners", "equal"]),
}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{'-'.join(map(str, case[1].values()))}")
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    found: tuple[str, dict[str, Any]] = request.param
    return found


# Examples are spread over the privacy modes, which change the rows, and not a line of what is
# checked.
@settings(laws, max_examples=examples(16))
@given(**streams, mode=st.sampled_from(list(MODES)), clusters=st.integers(1, 5))
def test_every_honest_answer_is_accepted_in_every_round(
    case: tuple[str, dict[str, Any]], mode: str, n: int, d: int, seed: int, kind: str, clusters: int
) -> None:
    name, options = case
    # A contract with a model that predicts one feature from others has two features at least.
    assume(d > 1 or load_algorithm(name).regression is None)
    contract = contract_of(name, MODES[mode], d, options)
    algorithm = rounds_algorithm(name)
    validator = Validator(resolve(contract))
    parts = [private_rows(contract, n, seed + number, kind) for number in range(3)]
    params = [first_params(contract, clusters, seed)]
    for number in range(4):
        answers = []
        for rows in (part for part in parts if len(part)):
            # An answer may be late: it is checked against newer parameters too, as long as it
            # counts.
            earlier = params[max(0, number - 1)]
            in_epoch = algorithm.epoch(earlier) == algorithm.epoch(params[-1])
            arrays = algorithm.answer(earlier if in_epoch else params[-1], rows)
            answer = message(contract, arrays, len(rows), round=number + 1)
            validator.check_update(answer)
            validator.check_answer_claims(answer, params[-1])
            answers.append(algorithm.answer(params[-1], rows))
            validator.check_answer_claims(replace(answer, arrays=answers[-1]), params[-1])
        params.append(algorithm.combine(params[-1], answers))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", [name for name in streaming_names() if name not in counting_names()]
)
@laws
@given(**streams, lost=st.booleans())
def test_every_honest_update_is_accepted(
    name: str, mode: str, n: int, d: int, seed: int, kind: str, lost: bool
) -> None:
    contract = contract_of(name, MODES[mode], d, {})
    half = streaming_algorithm(name).client({}, d)
    validator = Validator(resolve(contract))
    waiting = 0
    for number in range(4):
        rows = private_rows(contract, n * (1 + 9 * (number == 2)), seed + number, kind)
        half.learn(rows)
        waiting += len(rows)
        if lost and number == 2:
            half.reset_published()
        arrays = half.contribute()
        if any(len(array) for array in arrays.values()):
            validator.check_update(message(contract, arrays, waiting))
            waiting = 0


def _without_count(stats: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return (
        _with_first(_with_first(stats, ("count", "mass"), 0.0), ("sum",), 1e9)
        if "sum" in stats
        else stats
    )


def _with_first(
    stats: dict[str, NDArray[Any]], names: tuple[str, ...], value: float
) -> dict[str, NDArray[Any]]:
    forged = {name: array.copy() for name, array in stats.items()}
    for name in names:
        if name in forged and forged[name].size:
            forged[name].flat[0] = value
    return forged


FORGERIES: dict[str, Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]] = {
    "one mass is more than all readings": lambda stats: _with_first(
        stats, ("count", "mass", "support"), 101.0
    ),
    "a mass is below 0": lambda stats: _with_first(stats, ("count", "mass", "support"), -1.0),
    "a sum lies beyond the bounds": lambda stats: _with_first(stats, ("sum", "total"), 1e9),
    "a sum lies below the bounds": lambda stats: _with_first(stats, ("sum", "total"), -1e3),
    "a sum without a count": _without_count,
    "the moments are too large": lambda stats: _with_first(
        stats, ("second", "spread", "square"), 1e154
    ),
    "a variance is below 0": lambda stats: _with_first(stats, ("second", "spread", "square"), -1.0),
    "a likelihood beyond any rows": lambda stats: _with_first(stats, ("likelihood",), 1e300),
    "an inertia beyond any rows": lambda stats: _with_first(stats, ("inertia",), 1e300),
    "products of features beyond any rows": lambda stats: _with_first(stats, ("gram",), 1e154),
    "a negative square among products": lambda stats: _with_first(stats, ("gram",), -1.0),
    "products with the target beyond any rows": lambda stats: _with_first(stats, ("cross",), 1e6),
    "a target without variance": lambda stats: _with_first(stats, ("energy",), 0.0),
    "other rows than readings": lambda stats: _with_first(stats, ("rows",), 7.0),
}


def test_an_answer_whose_claims_do_not_agree_is_rejected(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    contract = contract_of(name, MODES["off"], 2, options)
    validator = Validator(resolve(contract))
    params = first_params(contract, 3, 1)
    honest = dict(rounds_algorithm(name).answer(params, private_rows(contract, 100, 3, "clusters")))
    rejections = {}
    for forgery, forge in FORGERIES.items():
        forged = forge(honest)
        if all((forged[key] == honest[key]).all() for key in honest):
            continue  # this algorithm sends nothing of the kind
        if "cell" in forged and "count" in forged and (forged["count"] < 0).any():
            forged["count"] = -forged["count"] * 1000
        rejections[forgery] = "accepted"
        try:
            validator.check_answer_claims(message(contract, forged, 100, round=1), params)
        except MessageRejected as rejected:
            rejections[forgery] = rejected.reason
    assert rejections
    assert set(rejections.values()) == {"claims"}, rejections


def test_more_readings_than_the_contract_allows_are_rejected() -> None:
    contract = contract_of("kmeans", MODES["off"], 2, {"clusters": 3})
    params = first_params(contract, 3, 1)
    rows = np.full((1001, 2), 0.5)
    answer = message(contract, rounds_algorithm("kmeans").answer(params, rows), 1001, round=1)
    Validator(resolve(contract)).check_update(answer)
    agreed = contract.models[0].model_copy(update={"readings_max": 1000})
    tighter = contract.model_copy(update={"models": (agreed,)})
    with pytest.raises(MessageRejected, match="readings_max") as rejected:
        Validator(resolve(tighter)).check_update(replace(answer, contract=tighter.digest))
    assert rejected.value.reason == "bounds"


def test_every_installed_algorithm_checks_its_claims() -> None:
    for name in algorithm_names():
        assert load_algorithm(name).check_claims is not None, (
            f"{name} accepts whatever its clients claim"
        )
