"""Reconstruction from successive round centroids: it succeeds without noise, and finds no reading
in `formal`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.kmeans import answer, combine, start
from shoal.kernels.arrays import Floats
from shoal.onebox.audit import rounds
from shoal.onebox.audit.rounds import Round, audit_reconstruction, audit_rounds, reconstruct
from shoal.onebox.audit.statistics import LossFinding
from shoal.privacy import RowRange
from tests.privacy.audited import audited_config, model_of

BOX = RowRange(np.zeros(2), np.ones(2))


def attacked(folder: Path, *, off: bool) -> LossFinding:
    config = audited_config(folder, off=off)
    return audit_rounds(
        config, model_of(config, "kmeans"), folder / "run", np.random.default_rng(0)
    )


def test_readings_are_reconstructed_from_rounds_without_noise(tmp_path: Path) -> None:
    loss = attacked(tmp_path, off=True).loss
    assert loss.hits == loss.guesses > 0.8 * rounds.READINGS
    assert loss.low > 2


def test_in_formal_mode_no_reading_is_reconstructed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack works as well as before: it finds the noisy rows, which are no readings."""
    found: list[int] = []

    def counting(each: list[Round], box: RowRange) -> Floats:
        rows = reconstruct(each, box)
        found.append(len(rows))
        return rows

    monkeypatch.setattr(rounds, "reconstruct", counting)
    finding = attacked(tmp_path, off=False)
    assert found[0] > 0.5 * rounds.READINGS
    assert (finding.loss.guesses, finding.refuted) == (0, False)


def lloyd(rows: Floats, k: int, seed: int) -> list[Round]:
    """What rounds of k-means on these rows publish."""
    params = start({"clusters": k}, rows.shape[1], InitHint(np.zeros(2), np.ones(2), seed))
    params = [params]
    for _ in range(10):
        params.append(combine(params[-1], [answer(params[-1], rows)]))
    return [
        Round(a["centre"], b["weight"], b["weight"][:, None] * b["centre"])
        for a, b in pairwise(params)
    ]


def test_without_rounds_or_rows_nothing_is_found() -> None:
    assert reconstruct([], BOX).shape == (0, 2)
    assert reconstruct(lloyd(np.empty((0, 2)), 3, 0), BOX).shape == (0, 2)


def test_a_single_row_is_found() -> None:
    row = np.array([[0.25, 0.75]])
    np.testing.assert_allclose(reconstruct(lloyd(row, 3, 0), BOX), row, atol=1e-12)


def test_rows_that_always_stay_together_are_not_found() -> None:
    rows = np.repeat([[0.2, 0.2], [0.8, 0.8]], 5, axis=0) + np.random.default_rng(0).normal(
        0, 0.01, (10, 2)
    )
    assert len(reconstruct(lloyd(rows, 2, 0)[2:], BOX)) == 0


def test_decoys_are_guessed_where_they_were_learnt_instead() -> None:
    members = np.array([[0.1, 0.1], [0.2, 0.2]])
    decoys = np.array([[0.9, 0.9], [0.8, 0.8]])
    loss = audit_reconstruction(np.array([[0.1, 0.1], [0.8, 0.8]]), members, decoys)
    assert (loss.trials, loss.guesses, loss.hits) == (2, 2, 1)
