"""Grid DBSCAN by sums: what it finds, what it leaves as noise, and that neither split nor order nor
history matters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.rounds import dbscan
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.rounds.dbscan import DBSCAN, FEATURES_MAX, OCCUPIED_MAX
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.cli.check import check
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.cells import Groups, follow_groups
from shoal.protocol.codec import pack
from tests.examples import examples
from tests.laws.streams import stream

UNIT = InitHint(np.zeros(2), np.ones(2))


def pooled(rows: Floats, **options: Any) -> Params:
    return federated([rows], **options)


def federated(parts: Sequence[Floats], before: Params | None = None, **options: Any) -> Params:
    params = before or DBSCAN.start(options, 2, UNIT)
    return DBSCAN.combine(params, [DBSCAN.answer(params, part) for part in parts])


def squares(*middles: tuple[float, float], rows: int = 50) -> Floats:
    """A small square lattice of rows around each middle."""
    around = np.stack(np.meshgrid(*[np.linspace(-0.02, 0.02, 7)] * 2), axis=-1).reshape(-1, 2)
    return np.concatenate([np.resize(around, (rows, 2)) + middle for middle in middles])


@settings(max_examples=examples(60), deadline=None)
@given(
    kind=st.sampled_from(["blobs", "drift", "heavy tails", "lattice"]),
    seed=st.integers(0, 10**6),
    owners=st.lists(st.integers(0, 6), min_size=300, max_size=300),
    d=st.integers(1, 4),
    cells=st.sampled_from([0, 3, 40]),
)
def test_labels_are_those_of_the_pooled_grid_for_any_split(
    kind: str, seed: int, owners: list[int], d: int, cells: int
) -> None:
    rows = stream(kind, seed, 300, d)
    start = DBSCAN.start({"cells": cells}, d, InitHint(rows.min(axis=0), rows.max(axis=0)))
    parts = [rows[np.array(owners) == client] for client in range(7)]
    split, whole = (
        DBSCAN.combine(start, [DBSCAN.answer(start, part) for part in tables])
        for tables in (parts, [rows])
    )
    assert pack(dict(split)) == pack(dict(whole))
    np.testing.assert_array_equal(DBSCAN.predict(split, rows), DBSCAN.predict(whole, rows))


@settings(max_examples=examples(60), deadline=None)
@given(seeds=st.lists(st.integers(0, 99), min_size=2, max_size=5))
def test_what_was_found_before_makes_no_difference(seeds: list[int]) -> None:
    """The groups follow the changes of each round, and are those of a first round."""
    params = None
    for seed in seeds:
        rows = np.clip(stream("blobs", seed, 250, 2) * 0.2 + 0.5, 0, 1)
        params = federated([rows], params, cells=20)
        assert pack(dict(params)) == pack(dict(pooled(rows, cells=20)))


def test_a_round_looks_at_the_cells_that_have_changed_and_not_at_the_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed."""
    visited = []

    def counted(*arguments: Any) -> Groups:
        found = follow_groups(*arguments)
        visited.append(found.visited)
        return found

    monkeypatch.setattr(dbscan, "follow_groups", counted)
    cells = 60
    rows = (np.stack(np.meshgrid(*[np.arange(40)] * 2), axis=-1).reshape(-1, 2) + 0.5) / cells
    params = federated([rows], cells=cells)
    params = federated([rows, rows[:5] + 0.5 * rows.max()], params)
    federated([rows], params)
    assert visited == [1600, 0, 0], "the five were in cells that are dense already"
    visited.clear()
    params = federated([rows], cells=cells)
    params = federated([rows, np.array([[0.95, 0.95]])], params)
    federated([rows], params)
    assert visited[0] == 1600
    assert visited[1] == 1
    assert visited[2] <= 2


def test_a_replayed_answer_changes_nothing() -> None:
    rows = squares((0.2, 0.2), (0.7, 0.7))
    params = DBSCAN.start({"cells": 20}, 2, UNIT)
    answers = [
        Answer(name, 1, DBSCAN.answer(params, part))
        for name, part in zip("ab", (rows[:60], rows[60:]), strict=True)
    ]
    policy = Policy("cache")
    state, counted = select_answers(policy, PolicyState(), answers, 1)
    once = DBSCAN.combine(params, counted)
    for replay in ([answers[0]], [answers[1], answers[1]], answers):
        state, counted = select_answers(policy, state, replay, 2)
        assert pack(dict(DBSCAN.combine(once, counted))) == pack(dict(once))


def test_an_answer_to_a_later_round_takes_the_place_of_the_earlier_one() -> None:
    """So what counts is each client's newest window, however many answers there were."""
    early = squares((0.2, 0.2))
    late = squares((0.7, 0.2))
    other = squares((0.5, 0.8))
    params = DBSCAN.start({"cells": 20}, 2, UNIT)
    policy = Policy("cache")
    state = PolicyState()
    for number, windows in enumerate(({"a": early, "b": other}, {"a": late}), start=1):
        answers = [
            Answer(name, number, DBSCAN.answer(params, rows)) for name, rows in windows.items()
        ]
        state, counted = select_answers(policy, state, answers, number)
        params = DBSCAN.combine(params, counted)
    assert pack(dict(params)) == pack(dict(pooled(np.concatenate([late, other]), cells=20)))


@pytest.mark.parametrize("times", [2, 7, 100])
def test_a_longer_window_of_the_same_rows_gives_the_same_clusters(times: int) -> None:
    rows = np.clip(stream("blobs", 3, 400, 2) * 0.2 + 0.5, 0, 1)
    short = pooled(rows)
    long = pooled(np.tile(rows, (times, 1)))
    assert len(short["weight"]) >= 2
    np.testing.assert_array_equal(DBSCAN.predict(short, rows), DBSCAN.predict(long, rows))
    np.testing.assert_allclose(long["weight"], times * short["weight"])


def test_border_rows_belong_to_the_nearest_cluster_and_rows_farther_away_are_noise() -> None:
    # Cells of 0.1. The clusters are the cells (2, 2) and (6, 2) alone.
    rows = np.concatenate([np.full((20, 2), 0.25), np.tile([0.65, 0.25], (20, 1))])
    params = pooled(rows, cells=10)
    assert DBSCAN.predict(params, np.array([[0.25, 0.25], [0.65, 0.25]])).tolist() == [0, 1]
    near = np.array(
        [[0.35, 0.25], [0.449, 0.25], [0.451, 0.25], [0.45, 0.25], [0.25, 0.49], [0.25, 0.51]]
    )
    assert DBSCAN.predict(params, near).tolist() == [0, 0, 1, 0, 0, -1]
    narrow = pooled(rows, cells=10, border=0)
    assert DBSCAN.predict(narrow, near).tolist() == [-1] * 6
    assert DBSCAN.predict(narrow, rows).tolist() == [0] * 20 + [1] * 20


def test_cells_that_touch_at_a_corner_are_one_cluster() -> None:
    params = pooled(squares((0.25, 0.25), (0.35, 0.35), (0.75, 0.75)), cells=10)
    assert len(params["weight"]) == 2
    np.testing.assert_allclose(params["centre"], [[0.3, 0.3], [0.75, 0.75]])
    assert params["weight"].tolist() == [100.0, 50.0]


def test_a_small_group_is_noise_until_its_share_is_large_enough() -> None:
    rows = np.concatenate(
        [squares((0.25, 0.25), (0.75, 0.75), rows=495), squares((0.25, 0.75), rows=10)]
    )
    few = pooled(rows, cells=10, min_points=0.1, min_share=0.02)
    assert len(few["weight"]) == 2
    assert DBSCAN.predict(few, np.array([[0.25, 0.75]])).tolist() == [-1]
    assert DBSCAN.view(few).cluster.tolist() == [0, -1, 1]
    assert len(pooled(rows, cells=10, min_points=0.1, min_share=0.01)["weight"]) == 3


def test_where_no_cell_is_dense_everything_is_noise() -> None:
    rows = (np.stack(np.meshgrid(*[np.arange(10)] * 2), axis=-1).reshape(-1, 2) + 0.5) / 10
    params = pooled(rows, cells=10)
    assert len(params["weight"]) == 0
    assert (DBSCAN.predict(params, rows) == -1).all()
    assert DBSCAN.summary(params).clusters == 0
    assert DBSCAN.shift(params, params) == 0.0


def test_the_shift_is_the_share_of_rows_that_changed_their_cluster() -> None:
    apart = squares((0.25, 0.25), (0.75, 0.75))
    joined = squares((0.25, 0.25), (0.35, 0.35))
    first = DBSCAN.start({"cells": 10}, 2, UNIT)
    two = federated([apart], first)
    one = federated([joined], first)
    assert DBSCAN.shift(first, two) == np.inf
    assert DBSCAN.shift(two, federated([apart, apart], two)) == 0.0
    assert DBSCAN.shift(two, one) == 0.5
    three = federated([squares((0.25, 0.25), (0.75, 0.75), (0.25, 0.75))], two)
    assert DBSCAN.shift(two, three) == pytest.approx(1 / 3)
    assert (
        DBSCAN.shift(two, pooled(np.random.default_rng(0).uniform(size=(9, 2)), min_points=1e4))
        == 1.0
    )


def test_a_client_may_leave_out_cells_with_few_rows() -> None:
    rows = np.array([[0.05, 0.05]] * 5 + [[0.55, 0.55]] * 4)
    params = DBSCAN.start({"cells": 10, "count_min": 5}, 2, UNIT)
    assert DBSCAN.answer(params, rows)["count"].tolist() == [5.0]


def test_more_cells_than_an_answer_should_hold_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert OCCUPIED_MAX > 10**5
    monkeypatch.setattr(dbscan, "OCCUPIED_MAX", 3)
    params = DBSCAN.start({}, 2, UNIT)
    with pytest.raises(InvalidData, match="fewer `cells`"):
        DBSCAN.answer(params, np.random.default_rng(0).uniform(size=(50, 2)))


def test_cells_outside_the_grid_and_cells_without_rows_are_refused() -> None:
    params = DBSCAN.start({"cells": 4}, 2, UNIT)
    for cell, count in (([16], [1.0]), ([-1], [1.0]), ([3], [0.0]), ([3], [-2.0])):
        with pytest.raises(InvalidData, match="impossible answer"):
            DBSCAN.combine(params, [{"cell": np.array(cell), "count": np.array(count)}])
    damaged = {
        **params,
        "cell": np.array([3, 1]),
        "count": np.ones(2),
        "group": np.zeros(2, np.int64),
    }
    with pytest.raises(InvalidData, match="ascending"):
        DBSCAN.combine(damaged, [{"cell": np.array([1]), "count": np.ones(1)}])


# Too many features.


def plant(d: int) -> dict[str, Any]:
    features = [{"name": f"x{number}", "low": 0, "high": 1} for number in range(d)]
    tables: dict[str, Any] = {
        "federation": {"name": "plant"},
        "features": features,
        "privacy": {"mode": "off"},
    }
    return tables | {"models": [{"name": "shapes", "algorithm": "dbscan"}]}


def test_seven_features_are_refused_with_what_to_do_instead() -> None:
    resolve(parse_contract(plant(FEATURES_MAX)))
    with pytest.raises(
        SettingsError, match=r"models\.shapes: .*at most 6 features, not 7.*choose spectral"
    ):
        resolve(parse_contract(plant(7)))
    with pytest.raises(SettingsError, match="at most 6"):
        DBSCAN.start({}, 7, InitHint(np.zeros(7), np.ones(7)))


def test_shoal_check_refuses_seven_features_too(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0\nhigh = 1\n' for number in range(7)
    )
    model = '[privacy]\nmode = "off"\n[[models]]\nname = "shapes"\nalgorithm = "dbscan"\n'
    file.write_text('[federation]\nname = "plant"\n' + features + model)
    result = CliRunner().invoke(check, [str(file)])
    assert isinstance(result.exception, SettingsError)
    assert "Leave features out of the contract" in str(result.exception)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cells": 1},
        {"cells": True},
        {"cells": 1001},
        {"min_points": 0},
        {"border": -1},
        {"min_share": 1.5},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        DBSCAN.start(wrong, 2, UNIT)
