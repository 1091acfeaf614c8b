"""Long fits: what they show, and where they end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

import shoal
from shoal.errors import SettingsError
from shoal.estimators.base import Progress

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
    # At the line above, not at one of the library.
    assert [warning.filename for warning in found] == [__file__]
    with pytest.warns(shoal.StoppedEarly) as found_in_pipeline:
        make_pipeline(model).fit(ROWS)
    assert {warning.filename for warning in found_in_pipeline} == {__file__}
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


def test_progress_names_the_total_and_the_time_left_and_renews_one_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("shoal.estimators.base.time.monotonic", lambda: now[0])

    def shown(progress: Progress, *spans: float) -> str:
        for span in spans:
            now[0] += span
            progress.advance(200)
        progress.finish(1000, shoal.FCAC())
        return capsys.readouterr().err

    rows = "200 of 1000 rows in 2 s, about 8 s left\n400 of 1000 rows in 4 s, about 6 s left\n"
    assert shown(Progress(1000, verbose=True), 2, 2, 0.1) == rows + "FCAC: 600 rows in 4.1 s\n"
    limited = Progress(1000, verbose=True, max_seconds=5)
    assert shown(limited, 2).startswith("200 of 1000 rows in 2 s, at most 3 s left\n")
    rounds = Progress(1000, verbose=True, unit="rounds", at_most=True)
    assert shown(rounds, 2).startswith("200 of at most 1000 rounds in 2 s, at most 8 s left\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    first, second, third = shown(Progress(1000, verbose=True), 20, 2).split("\r")[1:]
    assert first == "200 of 1000 rows in 20 s, about 80 s left"
    # Spaces over the end of a longer line, so that nothing of it is left.
    assert second == "400 of 1000 rows in 22 s, about 33 s left"
    assert third == "FCAC: 400 rows in 22.0 s".ljust(len(second)) + "\n"


def test_a_limit_that_is_none_is_refused() -> None:
    for wrong in (shoal.FCAC(max_seconds=0), shoal.FederatedKMeans(2, max_seconds=-1)):
        with pytest.raises(SettingsError, match="max_seconds"):
            wrong.fit(ROWS[:50])
