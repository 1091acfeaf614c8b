"""Round requests that no server has made, such as one without a centre: refused before a kernel
runs, in both forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import load_algorithm, rounds_algorithm
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.view import Summary
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.errors import InvalidData, MessageRejected
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot
from shoal.protocol.validation import Validator
from shoal.simulation.rounds import run_rounds
from tests.client_nodes.site import Site
from tests.kernels.kinds import blobs
from tests.small_plant import snapshot_with

pytestmark = pytest.mark.usefixtures("form")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kmeans": ("kmeans", {}),
    "kmeans_local": ("kmeans_local", {"steps": 3}),
    "fcm": ("fcm", {}),
    "fcm of another fuzzifier": ("fcm", {"fuzzifier": 1.7}),
    "ffcm": ("ffcm", {}),
    "gmm full": ("gmm", {"covariance": "full"}),
    "gmm tied": ("gmm", {"covariance": "tied"}),
    "gmm diag": ("gmm", {"covariance": "diag"}),
    "gmm_local": ("gmm_local", {"covariance": "spherical"}),
    "tsk conditions": ("tsk", {}),
    "tsk consequents": ("tsk", {"condition_rounds": 0}),
    "spectral": ("spectral", {"landmarks": 9}),
}
"""algorithms in rounds whose answers need a centre or a landmark"""


def rows_of(d: int) -> Floats:
    return np.clip(blobs(np.random.default_rng(d), d), 0.0, 1.0)


def honest(case: str, d: int) -> Params:
    """Parameters after two rounds."""
    name, options = CASES.get(case, (case, {}))
    algorithm = rounds_algorithm(name)
    asked = {"clusters": 3} if algorithm.takes("clusters") else {}
    params = algorithm.start({**asked, **options}, d, InitHint(np.zeros(d), np.ones(d)))
    return run_rounds(algorithm, params, [rows_of(d)], rounds_max=2, tolerance=0.0).params


def without_centres(case: str, d: int) -> Params:
    """Arrays that agree with each other, of no centre and no landmark."""
    name, _ = CASES[case]
    sizes = {"k", "q"} if case == "gmm tied" else {"k", "q", "c"}
    table = rounds_algorithm(name).snapshot
    return {
        value: array[:0] if table[value].shape[0] in sizes else array
        for value, array in honest(case, d).items()
    }


@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("case", CASES)
def test_an_answer_to_no_centres_is_refused(case: str, d: int) -> None:
    algorithm = rounds_algorithm(CASES[case][0])
    algorithm.answer(honest(case, d), rows_of(d))
    for rows in (rows_of(d), rows_of(d)[:1], rows_of(d)[:0]):
        with pytest.raises(
            InvalidData, match="must hold one row at least; the round request is damaged"
        ):
            algorithm.answer(without_centres(case, d), rows)


@pytest.mark.parametrize("case", CASES)
def test_predictions_from_no_centres_are_none_or_refused(case: str) -> None:
    algorithm = rounds_algorithm(CASES[case][0])
    params = without_centres(case, 2)
    try:
        assert (algorithm.predict(params, rows_of(2)) == -1).all()
    except InvalidData:
        assert algorithm.name in {"gmm", "gmm_local", "tsk"}


def test_more_rules_than_a_model_can_have_are_refused() -> None:
    table = rounds_algorithm("tsk").snapshot
    params = {
        name: np.repeat(array, 400, axis=0) if table[name].shape[0] == "k" else array
        for name, array in honest("tsk conditions", 2).items()
    }
    with pytest.raises(InvalidData, match="more rules than a model can have"):
        rounds_algorithm("tsk").answer(params, rows_of(2))


def test_more_landmarks_than_a_model_can_have_are_refused() -> None:
    params = dict(honest("spectral", 2))
    for name, spec in rounds_algorithm("spectral").snapshot.items():
        if spec.shape[0] == "q":
            params[name] = np.repeat(params[name], 50, axis=0)
    with pytest.raises(InvalidData, match="landmark must hold at most 400 rows"):
        rounds_algorithm("spectral").answer(params, rows_of(2))


FEATURES = [{"name": "warm", "low": 0, "high": 1}, {"name": "damp", "low": 0, "high": 1}]


def contract_of(case: str) -> Contract:
    name, options = CASES.get(case, (case, {}))
    clusters = {"clusters": 3} if rounds_algorithm(name).takes("clusters") else {}
    model = {
        "name": "heaps",
        "algorithm": name,
        "options": {**clusters, **options},
        "rounds": {"rows_min": 10},
    }
    if name == "tsk":
        model["options"]["target"] = "damp"
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    return parse_contract({**tables, "models": [model]})


def request_of(site: Site, params: Params, version: int) -> Snapshot:
    """A round request with these parameters, which agrees with itself as far as it can."""
    contract = site.contract
    now = site.clock.now
    algorithm = load_algorithm(contract.models[0].algorithm)
    try:
        sizes = algorithm.summary(params)
    except InvalidData:
        sizes = Summary(0, 0, 0)
    request = {"deadline": now + 100.0, "fraction": 1.0, "rows_min": 10}
    model = contract.models[0]
    return snapshot_with(
        contract,
        model,
        params,
        sizes,
        version=version,
        made_at=now,
        round=version,
        round_request=request,
    )


@pytest.mark.parametrize("case", CASES)
def test_a_client_rejects_a_request_without_centres_and_answers_the_next_one(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, contract_of(case), window_rows=100)
    site.add_readings(rows_of(2)[:50])
    found = []
    with caplog.at_level("WARNING", logger="shoal"), site.node() as node:
        for version, params in enumerate((without_centres(case, 2), honest(case, 2)), 1):
            with site.federation() as log:
                log.publish(
                    site.contract.snapshots_topic,
                    request_of(site, params, version).encode(),
                    b"heaps",
                    Snapshot.headers(),
                )
                log.flush()
            while node.step():
                pass
            found.append([update.round for update in site.updates()])
    assert [record.getMessage() for record in caplog.records] == ["snapshot_rejected"]
    assert found == [[], [2]]


@pytest.mark.parametrize("case", CASES)
def test_a_request_without_centres_is_rejected_where_it_is_made_and_received(
    case: str, tmp_path: Path
) -> None:
    site = Site(tmp_path, contract_of(case))
    validator = Validator(resolve(site.contract))
    validator.check_snapshot(request_of(site, honest(case, 2), 1))
    with pytest.raises(MessageRejected, match=r"is empty|must hold one row at least"):
        validator.check_snapshot(request_of(site, without_centres(case, 2), 1))


DAMAGED: dict[str, tuple[str, dict[str, Any]]] = {
    "a covariance that is singular": ("gmm full", {"spread": -1.0}),
    "a landmark of a cluster beyond the last": ("spectral", {"cluster": 3}),
    "a landmark of a cluster before none": ("spectral", {"cluster": -2}),
    "a cell beyond the grid": ("dbscan", {"cell": 10**9}),
    "a cell in no group": ("dbscan", {"group": -1}),
    "a grid of no cells": ("dbscan", {"cells": 0}),
    "a target that is no feature": ("tsk conditions", {"target": 2}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_request_that_cannot_be_is_rejected(name: str, tmp_path: Path) -> None:
    case, values = DAMAGED[name]
    site = Site(tmp_path, contract_of(case))
    params = dict(honest(case, 2))
    Validator(resolve(site.contract)).check_snapshot(request_of(site, params, 1))
    for field, value in values.items():
        params[field] = np.full_like(params[field], value)
    with pytest.raises(MessageRejected) as rejected:
        Validator(resolve(site.contract)).check_snapshot(request_of(site, params, 1))
    assert rejected.value.reason == "arrays"
    assert "the round request is damaged" in rejected.value.detail
