"""What holds for every served model, whatever its family: the server tells them apart by nothing
else."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import shoal.server_node
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Wake
from shoal.protocol.validation import Validator
from shoal.server_node.models.base import ServedModel
from shoal.server_node.models.factory import make_models
from tests.server_node.rounds_harness import FEATURES, RoundsHarness, contract_with, rows_of
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, plant

FAMILIES = ("streaming", "rounds")
SETTINGS = ServerSettings(pool_clients=1, snapshot_updates=1)


def contract_for(family: str) -> Contract:
    return plant() if family == "streaming" else contract_with()


def model_for(family: str) -> ServedModel:
    contract = contract_for(family)
    (model,) = make_models(resolve(contract), SETTINGS, Validator(resolve(contract))).values()
    return model


def with_snapshot(family: str) -> ServedModel:
    """A model that has processed an update and published a snapshot."""
    contract = contract_for(family)
    model = model_for(family)
    statement = resolve(contract).statement
    if family == "streaming":
        assert model.process(an_update(contract), 0.0).new
    else:
        assert model.on_timer(0.0)
        first = model.take_snapshot({0: 0}, statement, 0.0).snapshot
        answer = RoundsHarness(contract).make_answer("attic", rows_of(1), to=first)
        assert model.process(answer, 0.0).new
        assert model.on_timer(0.0)
    assert model.snapshot_due(0.0)
    model.take_snapshot({0: 1}, statement, 0.0)
    return model


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_new_model_has_no_snapshot_and_nothing_to_show(family: str) -> None:
    model = model_for(family)
    assert (model.snapshot, model.view, model.pending) == (None, None, False)
    assert not model.snapshot_due(1e9)
    assert model.status().waiting_for
    assert len(model.clients) == 0


def test_the_view_of_a_model_is_that_of_its_newest_snapshot(family: str) -> None:
    model = with_snapshot(family)
    assert model.snapshot is not None
    assert model.view is not None
    assert model.view.summary()[:2] == (model.snapshot.clusters, model.snapshot.nodes)
    assert model.status().snapshot is model.snapshot


def test_a_snapshot_is_due_once(family: str) -> None:
    model = with_snapshot(family)
    assert not model.snapshot_due(0.0)


def test_the_wait_for_the_next_snapshot_ends_when_it_is_due() -> None:
    contract = plant()
    settings = ServerSettings(pool_clients=1, snapshot_updates=100, snapshot_s=2.0)
    (model,) = make_models(resolve(contract), settings, Validator(resolve(contract))).values()
    assert model.snapshot_wait_s(10.0) == math.inf, "nothing has come"
    model.process(an_update(contract), 10.0)
    assert model.snapshot_wait_s(10.0) == 0.0
    model.take_snapshot({0: 1}, {}, 10.0)
    assert model.snapshot_wait_s(10.5) == math.inf
    model.process(an_update(contract, sequence=2), 10.5)
    assert not model.snapshot_due(10.5)
    assert model.snapshot_wait_s(10.5) == 1.5
    assert model.snapshot_due(10.5 + model.snapshot_wait_s(10.5))


def test_a_restored_model_is_the_saved_one(family: str) -> None:
    model = with_snapshot(family)
    other = model_for(family)
    state = pack(model.state())
    other.restore(unpack(state))
    assert pack(other.state()) == state
    assert other.view is not None


@pytest.mark.parametrize("state", [{}, {"version": 0}, {"version": 3}])
def test_a_damaged_state_is_rejected(family: str, state: dict[str, int]) -> None:
    with pytest.raises(InvalidState, match="the checkpoint of model"):
        model_for(family).restore(state)


def test_a_wake_request_before_the_first_round_changes_nothing() -> None:
    model = model_for("rounds")
    assert model.rounds is not None
    model.rounds.wake()
    assert model.snapshot is None


def test_a_streaming_model_has_no_rounds() -> None:
    assert model_for("streaming").rounds is None


def test_models_are_in_the_order_of_the_contract_and_those_with_rounds_are_told_apart(
    tmp_path: Path,
) -> None:
    rounds = {"name": "first", "algorithm": "kmeans", "options": {"clusters": 2}}
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    contract = parse_contract(
        tables | {"models": [rounds, {"name": "second", "algorithm": "fcac"}]}
    )
    with ServerFixture(tmp_path, contract).server() as server:
        models = server.models()
        assert list(models) == ["first", "second"]
        assert [model.rounds is not None for model in models.values()] == [True, False]


def test_a_wake_request_is_logged_once_although_it_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = ServerFixture(tmp_path, contract_with())
    wake = Wake("plant", site.contract.digest, "heaps", made_at=1.0)
    site.publish(("heaps", wake.encode(), Wake.headers()))
    with caplog.at_level("INFO", "shoal"), site.server() as server:
        server.step()
        metrics = server.metrics
        site.delete_checkpoint()
    with caplog.at_level("INFO", "shoal"), site.server(rebuild=True, metrics=metrics) as server:
        server.step()
    assert [record.getMessage() for record in caplog.records].count("wake_requested") == 1


def test_nothing_on_the_server_asks_for_the_class_of_a_model() -> None:
    folder = Path(shoal.server_node.__file__).parent
    for path in [*folder.glob("*.py"), *folder.glob("models/*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bisinstance\(", text), path
        if path.name not in ("factory.py", "streaming.py", "rounds.py"):
            assert "StreamingModel" not in text, path
            assert "RoundsModel" not in text, path


def test_a_checkpoint_whose_parameters_could_not_be_published_is_refused() -> None:
    state = unpack(pack(with_snapshot("rounds").state()))
    model_for("rounds").restore(state)
    params = state["rounds"]["params"]
    for damaged in (
        {name: array[:0] for name, array in params.items()},
        {"centre": params["centre"]},
    ):
        with pytest.raises(InvalidState):
            model_for("rounds").restore({**state, "rounds": {**state["rounds"], "params": damaged}})
