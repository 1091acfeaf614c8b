"""Models in rounds over replayed clients: what a server would compute from the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.config.resolved import resolve
from shoal.onebox.replay import rounds
from shoal.onebox.replay.engine import LocalEngine
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import windows_of
from shoal.onebox.replay.run import replay
from shoal.server_node.models.rounds import init_hint_for
from tests.replay.plant_files import CLIENTS, plan_of


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, files: list[Path]) -> ReplayPlan:
    """A replay whose clients keep 50 rows, without its models."""
    plan = plan_of(tmp_path_factory.mktemp("rounds"), files, window_rows=50)
    replay(plan, LocalEngine(1))
    return plan


def answers(
    plan: ReplayPlan, name: str, params: dict[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """The answers of all clients, by name."""
    windows = dict(window for part in range(plan.parts) for window in windows_of(plan, part))
    assert sorted(windows) == CLIENTS
    return [
        dict(rounds_algorithm(name).answer(params, windows[client])) for client in sorted(windows)
    ]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["kmeans", "fcm", "gmm"])
def test_a_round_is_that_of_a_server_up_to_the_rounding_of_its_sums(
    done: ReplayPlan, number: int
) -> None:
    model = done.contract.in_rounds[number]
    assert model.rounds is not None
    algorithm = model.rounds.algorithm
    rounds_max = model.declared.rounds.rounds_max
    hint = init_hint_for(done.contract, model, None)
    assert hint is not None
    params = algorithm.start(model.options, done.contract.width, hint)
    for _ in range(rounds_max):
        params = algorithm.combine(params, answers(done, algorithm.name, params))
    found = rounds.run_rounds(done, LocalEngine(1), model)
    assert (found.rounds, found.answers) == (rounds_max, len(CLIENTS))
    for name, array in params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-9, err_msg=name)


def test_the_model_is_written_as_arrays(done: ReplayPlan) -> None:
    model = done.contract.in_rounds[0]
    found = rounds.run_rounds(done, LocalEngine(1), model)
    with np.load(done.folder / f"model-{model.name}.npz") as written:
        assert set(written) == set(found.params)
        np.testing.assert_array_equal(written["centre"], found.params["centre"])


def test_a_window_holds_the_newest_rows_alone(done: ReplayPlan) -> None:
    windows = [rows for part in range(done.parts) for _, rows in windows_of(done, part)]
    assert {len(rows) for rows in windows} == {50}


def test_a_client_with_too_few_rows_does_not_answer(done: ReplayPlan) -> None:
    contract = done.contract.contract
    models = [
        model.model_copy(update={"rounds": model.rounds.model_copy(update={"rows_min": 51})})
        if model.algorithm == "kmeans"
        else model
        for model in contract.models
    ]
    strict = replace(done, contract=resolve(contract.model_copy(update={"models": tuple(models)})))
    found = rounds.run_rounds(strict, LocalEngine(1), strict.contract.in_rounds[0])
    assert (found.rounds, found.answers) == (0, 0)


def test_a_tree_of_many_levels_gives_the_flat_sums(
    done: ReplayPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = done.contract.in_rounds[2]
    flat = rounds.run_rounds(done, LocalEngine(1), model)
    monkeypatch.setattr(rounds, "FAN_IN", 2)
    assert rounds.run_rounds(done, LocalEngine(1), model).digest == flat.digest
