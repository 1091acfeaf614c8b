"""FederatedTSK as a user of scikit-learn meets it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from shoal.errors import InvalidData, SettingsError
from shoal.estimators.base import NotFittedError
from shoal.estimators.tsk import FederatedTSK
from shoal.kernels.arrays import Floats


def table(seed: int = 0, n: int = 400) -> tuple[Floats, Floats]:
    """Two inputs in very different units, and a target that bends where the first is 20."""
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(size=(n, 2)) * [40.0, 1e5]
    return inputs, np.where(inputs[:, 0] > 20, 3.0 * (inputs[:, 0] - 20), 0.0) + inputs[:, 1] / 1e4


def test_it_follows_a_bend_that_a_line_does_not() -> None:
    inputs, target = table()
    others, wanted = table(1)
    model = FederatedTSK(4).fit(inputs, target)
    assert model.score(others, wanted) > 0.98
    assert model.score(others, wanted) > Ridge().fit(inputs, target).score(others, wanted) + 0.05


def test_the_split_among_clients_does_not_change_the_model() -> None:
    inputs, target = table()
    whole = FederatedTSK(3, init="box").fit(inputs, target)
    clients = np.where(inputs[:, 0] > 30, "warm", "cold")
    apart = FederatedTSK(3, init="box").fit(inputs, target, clients=clients)
    rows = [inputs[clients == name] for name in ("cold", "warm")]
    targets = [target[clients == name] for name in ("cold", "warm")]
    listed = FederatedTSK(3, init="box").fit([*rows, inputs[:0]], [*targets, target[:0]])
    for other in (apart, listed):
        np.testing.assert_allclose(other.predict(inputs), whole.predict(inputs), rtol=1e-6)
        assert other.rules_ == whole.rules_


def test_the_rules_have_the_names_of_the_columns() -> None:
    inputs, target = table()
    frame = pd.DataFrame(inputs, columns=["warm", "light"])
    model = FederatedTSK(2).fit(frame, pd.Series(target, name="power"))
    assert len(model.rules_) == 2
    assert all(rule.startswith("if warm is ") and " then power = " in rule for rule in model.rules_)
    assert model.feature_names_in_.tolist() == ["warm", "light"]
    np.testing.assert_array_equal(model.predict(frame[["light", "warm"]]), model.predict(inputs))
    with pytest.raises(
        InvalidData, match="features warm, dark were given, warm, light were learnt: light missing"
    ):
        model.predict(frame.rename(columns={"light": "dark"}))
    assert FederatedTSK(2).fit(inputs, target).rules_[0].startswith("if x0 is ")


def test_its_error_is_that_of_its_predictions() -> None:
    inputs, target = table()
    model = FederatedTSK(4).fit(inputs, target)
    error = float(np.sqrt(np.square(model.predict(inputs) - target).mean()))
    assert model.rule_base_.error == pytest.approx(error, rel=1e-6)


def test_its_parameters_can_be_searched() -> None:
    inputs, target = table()
    found = GridSearchCV(FederatedTSK(), {"n_clusters": [1, 4]}, cv=3).fit(inputs, target)
    assert found.best_params_ == {"n_clusters": 4}


@pytest.mark.parametrize(
    ("X", "y", "clients", "what"),
    [
        ([[1.0], [2.0]], None, None, "y is None"),
        ([[1.0], [2.0]], [1.0], None, "y has 1 targets, X has 2 rows"),
        ([[1.0], [2.0]], [1.0, np.nan], None, "NaN"),
        ([[1.0], [2.0]], [[1.0, 2.0], [1.0, 2.0]], None, "one target for each row"),
        ([np.ones((2, 1)), np.ones((1, 1))], [[1.0, 2.0], [1.0, 2.0]], None, "targets by client"),
        ([[1.0], [2.0]], ["a", "b"], None, "numbers"),
    ],
)
def test_targets_that_do_not_belong_to_the_rows_are_refused(
    X: Any, y: Any, clients: Any, what: str
) -> None:
    with pytest.raises(InvalidData, match=what):
        FederatedTSK(1).fit(X, y, clients)


def test_it_predicts_nothing_before_it_has_learnt() -> None:
    with pytest.raises(NotFittedError):
        FederatedTSK().predict([[1.0]])
    with pytest.raises(SettingsError, match="consequents"):
        FederatedTSK(consequents="best").fit(*table())
