"""No estimator answers with an error of Python, and none quotes a reading."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import shoal
from shoal.errors import ShoalError

ESTIMATORS: list[Any] = []
for name in shoal.__all__:
    if inspect.isclass(getattr(shoal, name)) and hasattr(getattr(shoal, name), "fit"):
        ESTIMATORS.append(getattr(shoal, name))
ROWS = np.random.default_rng(0).uniform(size=(60, 2))
CHECKED = (
    *("n_clusters", "max_rounds", "tol", "fraction", "max_seconds", "epsilon", "interval"),
    *("rebuild_readings", "local_clusters"),
)
"""parameters whose types were not looked at once"""
WRONG: dict[str, Any] = {
    "rows by name": [{"warm": 731.25, "damp": 1.0}] * 4,
    "a table by name": {"warm": [731.25] * 4, "damp": [1.0] * 4},
    "cells by name": [[{"v": 731.25}, 1.0]] * 4,
    "numbers without end": [[10**400, 731.25]] * 4,
    "numbers with a unit": pd.DataFrame({"a": ["731.25 C"] * 4, "b": [1.0] * 4}),
}
WRONG_ROWS: dict[str, Any] = {
    "an array": np.array([731.25, 1.0]),
    "a list": [731.25, "x"],
    "a cell by name": {"a": {"v": 731.25}, "b": 1.0},
    "a text": "731.25;1.0",
}


@pytest.fixture(params=ESTIMATORS, ids=lambda estimator: estimator.__name__)
def estimator(request: pytest.FixtureRequest) -> Any:
    return request.param


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(ShoalError) as refused:
        call()
    return str(refused.value)


@pytest.mark.parametrize("kind", WRONG)
def test_a_table_that_is_none_is_refused_without_a_reading(estimator: Any, kind: str) -> None:
    for method in ("fit", "partial_fit", "learn_many"):
        if hasattr(estimator, method):
            said = refusal_of(lambda called=method: getattr(estimator(), called)(WRONG[kind]))
            assert "731" not in said
    if "by name" in kind and "cells" not in kind:
        assert "pandas.DataFrame" in refusal_of(lambda: estimator().fit(WRONG[kind]))


@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_a_row_without_names_teaches_no_names(estimator: Any, kind: str) -> None:
    if not hasattr(estimator, "learn_one"):
        return
    said = refusal_of(lambda: estimator().learn_one(WRONG_ROWS[kind]))
    assert "731" not in said
    # A row of a DataFrame has names.
    estimator().learn_one(pd.DataFrame(ROWS, columns=["a", "b"]).iloc[0])


def test_a_parameter_of_another_type_is_refused_by_its_name(estimator: Any) -> None:
    parameters = inspect.signature(estimator).parameters
    # The target of a regression.
    more = [ROWS[:, 0]] if estimator is shoal.FederatedTSK else []
    for parameter in CHECKED:
        if parameter in parameters:
            said = refusal_of(lambda p=parameter: estimator(**{p: "many"}).fit(ROWS, *more))
            assert f"{parameter} = 'many'" in said
    if "n_clusters" in parameters:
        assert "n_clusters = None" in refusal_of(
            lambda: estimator(n_clusters=None).fit(ROWS, *more)
        )
