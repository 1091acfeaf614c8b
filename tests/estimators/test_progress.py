"""Long fits: what they show, and where they end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import shoal
from shoal.errors import SettingsError

ROWS = np.random.default_rng(2).normal(size=(3000, 2))
STREAMING = [
    shoal.FCAC(clients=2),
    shoal.ClusterTree(clients=2),
    shoal.DensityTree(low=-5, high=5, epsilon=None),
]
IN_ROUNDS = [shoal.FederatedKMeans(5, init="box"), shoal.FederatedGMM(5, tol=0.0)]


@pytest.mark.parametrize("model", [*STREAMING, *IN_ROUNDS], ids=lambda one: type(one).__name__)
def test_at_its_limit_a_fit_ends_with_what_is_learnt(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model.set_params(max_seconds=1e-9, verbose=True)
    with pytest.warns(
        shoal.StoppedEarly, match="stopped at max_seconds = 1e-09 after [0-9]+ of at most"
    ) as found:
        model.fit(ROWS)
    assert len(found) == 1
    assert issubclass(shoal.StoppedEarly, ConvergenceWarning)
    assert f"{type(model).__name__}: " in capsys.readouterr().err
    assert model.predict(ROWS).shape == (3000,)
    if model in IN_ROUNDS:
        assert model.n_rounds_ == 1
    else:
        # The rest can be learnt afterwards, and a saved state does not depend on the clock.
        model.partial_fit(ROWS)
        assert not {"verbose", "max_seconds"} & set(model.state()["parameters"])
    model.set_params(max_seconds=600, verbose=False).fit(ROWS[:600])
    assert capsys.readouterr().err == ""


def test_a_limit_that_is_none_is_refused() -> None:
    for wrong in (shoal.FCAC(max_seconds=0), shoal.FederatedKMeans(2, max_seconds=-1)):
        with pytest.raises(SettingsError, match="max_seconds"):
            wrong.fit(ROWS[:50])
