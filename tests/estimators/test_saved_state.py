"""Saving and restoring an estimator, without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidState
from shoal.estimators.base import NotFittedError
from shoal.estimators.fcac import FCAC
from shoal.protocol.codec import pack, unpack

ROWS = np.random.default_rng(1).normal(size=(400, 3))


def saved(model: FCAC) -> Any:
    return unpack(pack(model.state()))


def test_a_model_without_rows_is_saved_and_restored() -> None:
    model = FCAC().fit(ROWS)
    with pytest.raises(NotFittedError):
        model.restore(saved(FCAC())).predict(ROWS[:2])
    assert not hasattr(model, "labels_")


@pytest.mark.parametrize("cut", [1, 9, 10, 57, 399])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_restored_model_continues_bit_for_bit(cut: int, clients: int) -> None:
    through = FCAC(clients=clients).partial_fit(ROWS[:cut])
    restored = FCAC(clients=clients).restore(saved(through))
    np.testing.assert_array_equal(restored.predict(ROWS), through.predict(ROWS))
    for model in (through, restored):
        model.partial_fit(ROWS[cut:])
    assert pack(restored.state()) == pack(through.state())


def test_names_and_named_clients_are_saved() -> None:
    model = FCAC(random_state=np.int64(5))
    model.learn_one({"b": 1.0, "a": 2.0})
    model.partial_fit(ROWS[:50, :2], clients=["north", "south"] * 25)
    restored = FCAC(random_state=5).restore(saved(model))
    assert restored.feature_names_in_.tolist() == ["a", "b"]
    assert pack(restored.state()) == pack(model.state())


def test_a_state_is_a_copy() -> None:
    model = FCAC().partial_fit(ROWS[:100])
    state = model.state()
    before = pack(state)
    model.partial_fit(ROWS[100:])
    assert pack(state) == before


def spoil(state: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    inner = state
    *way, last = path.split(".")
    for name in way:
        inner = inner[name]
    if value is None and last != "names":
        del inner[last]
    else:
        inner[last] = value
    return state


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 1),
        ("estimator", "KMeans"),
        ("parameters.clients", 4),
        ("names", ["a", "b"]),
        ("names", [1, 2, 3]),
        ("federation", "gone"),
        ("federation", None),
        ("width", None),
        ("federation.version", 9),
        ("federation.absorptions", -1),
        ("federation.width", 5),
        ("federation.clients", {}),
        ("federation.clients", None),
        ("federation.server", None),
        ("federation.server.vigilance", float("nan")),
        ("federation.clients.0", FCAC().fit(np.eye(2)).state()["federation"]["clients"]["0"]),
        ("federation.clients.0.half", None),
        ("federation.clients.0.earlier", None),
    ],
)
def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(path: str, value: Any) -> None:
    state = spoil(saved(FCAC().fit(ROWS)), path, value)
    model = FCAC().fit(ROWS[:50])
    before = pack(model.state())
    labels = model.labels_
    with pytest.raises(InvalidState):
        model.restore(state)
    assert pack(model.state()) == before
    assert model.labels_ is labels


def test_names_without_rows_are_refused() -> None:
    with pytest.raises(InvalidState):
        FCAC().restore(spoil(saved(FCAC()), "names", ["a"]))
