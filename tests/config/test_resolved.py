"""The resolved contract: what follows from a contract for each model, derived and checked in one
pass."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError

import pytest

from shoal.algorithms.registry import load_algorithm
from shoal.config.resolved import resolve
from shoal.config.settings import Config
from shoal.errors import SettingsError
from tests.counted_contract import COUNTED, ROWS, agreed

ROUNDS = {"name": "rounds", "algorithm": "kmeans", "options": {"clusters": 2}}


def test_each_model_has_its_algorithm_and_what_its_family_needs() -> None:
    contract = resolve(agreed(COUNTED, ROWS, ROUNDS, counts_epsilon=4, epsilon_per_reading=100))
    counted, rows, rounds = contract.models.values()
    assert [model.name for model in contract.models.values()] == ["counted", "rows", "rounds"]
    assert [model.algorithm for model in (counted, rows, rounds)] == [
        load_algorithm(name) for name in ("density_tree", "fcac", "kmeans")
    ]
    assert counted.counts is not None
    assert (counted.counts.stream, counted.rounds, counted.streaming) == (
        "counted",
        None,
        counted.algorithm,
    )
    assert (rows.counts, rows.rounds, rows.options) == (None, None, {})
    assert rounds.rounds is not None
    assert (rounds.rounds.clusters, rounds.rounds.policy.kind, rounds.counts) == (2, "decay", None)
    assert contract.counted == (counted,)
    assert contract.in_rounds == (rounds,)
    assert contract.takes_rows


def test_models_that_learn_from_counts_alone_take_no_rows() -> None:
    assert not resolve(agreed(COUNTED, counts_epsilon=4)).takes_rows


def test_algorithms_that_count_alike_at_one_epsilon_share_a_stream_and_its_price() -> None:
    grid = {"name": "grid", "algorithm": "cluster_tree_from_counts"}
    contract = resolve(
        agreed(
            grid,
            {**grid, "name": "same"},
            {**grid, "name": "own", "counts_epsilon": 2},
            counts_epsilon=4,
        )
    )
    streams = [model.counts.stream for model in contract.counted if model.counts is not None]
    assert streams[0] == streams[1] != streams[2]
    assert contract.total_epsilon == 6
    spent, limit = contract.epsilon_spent
    assert 5.9 < spent <= limit == 6


def test_epsilons_that_are_printed_alike_share_no_stream() -> None:
    grid = {"name": "grid", "algorithm": "cluster_tree_from_counts", "counts_epsilon": 1.0000002}
    contract = resolve(
        agreed(grid, {**grid, "name": "own", "counts_epsilon": 1.0000004}, counts_epsilon=4)
    )
    first, second = (model.counts.stream for model in contract.counted if model.counts is not None)
    assert first != second
    assert contract.total_epsilon == pytest.approx(2.0000006, abs=1e-12), "each has its price"


def test_without_a_guarantee_nothing_has_an_epsilon() -> None:
    contract = resolve(agreed(ROWS, mode="off"))
    assert contract.total_epsilon is None
    assert contract.epsilon_spent == (math.inf, math.inf)
    assert contract.models["rows"].epsilon_spent is None


def test_it_is_that_contract_and_does_not_change() -> None:
    written = agreed(ROWS, epsilon_per_reading=100)
    contract = resolve(written)
    assert contract.contract is written
    assert (contract.digest, contract.width, contract.federation) == (written.digest, 2, "plant")
    assert contract.bounds.high.tolist() == [1, 1]
    assert contract.models["rows"].statement == contract.statement == contract.mode.statement()
    with pytest.raises(FrozenInstanceError):
        contract.digest = ""  # type: ignore[misc]  # that it cannot be set is the test


def test_an_error_names_the_model() -> None:
    with pytest.raises(SettingsError, match=r"^models\.rows: unknown algorithm 'fcak'"):
        resolve(agreed({**ROWS, "algorithm": "fcak"}, mode="off"))


def test_a_file_resolves_its_contract_once_and_a_copy_with_another_contract_anew() -> None:
    config = Config(contract=agreed(ROWS, mode="off"))
    assert config.resolved is config.resolved
    assert config.model_copy(update={"log": config.log}).resolved is config.resolved
    other = config.model_copy(update={"contract": agreed(COUNTED, mode="off")})
    assert list(other.resolved.models) == ["counted"]
    assert list(config.resolved.models) == ["rows"]


def test_it_travels_between_processes() -> None:
    config = Config(contract=agreed(COUNTED, counts_epsilon=4))
    assert pickle.loads(pickle.dumps(config.resolved)).models["counted"].epsilon == 4
    assert pickle.loads(pickle.dumps(config)).resolved.digest == config.resolved.digest
