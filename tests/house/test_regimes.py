"""A federation of three clients with the algorithm regimes: asked and answered through the log, killed and rebuilt."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from onebox.federation import OneBox
from onebox.replay.plan import _check_replayable
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from tests.house.small_federation import CLIENTS, FILE, clock, model_bytes, write_readings
from tests.house.test_same_log_same_model import replay


def federation_file(folder: Path, mode: str = 'mode = "off"') -> Path:
    settings = {"name": "house", "publish_readings": 100, "batch_readings_max": 70, "pool_clients": 3}
    text = FILE.format(**settings, batch_updates_max=4, address="sqlite:federation.db")
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', mode).replace('"fcac"', '"regimes"')
    path = folder / "federation.toml"
    path.write_text(text.replace("label = true", "label = false"), encoding="utf-8")
    return path


def write_regimes(config: Config, n: int) -> None:
    """Two regimes of 100 readings each in turn, at each client at levels of its own."""
    for number, name in enumerate(CLIENTS):
        rng = np.random.default_rng(number)
        state = (np.arange(n) + 37 * number) // 100 % 2
        values = [20.0 + 3 * number, 50.0] + rng.normal(size=(n, 2)) + 4.0 * state[:, None]
        write_readings(config, name, values.tolist())


def test_three_clients_find_regimes_and_a_rebuild_and_restarts_give_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(federation_file(tmp_path))
    write_regimes(config, 1_200)
    with caplog.at_level(logging.WARNING, "shoal"), OneBox(config, CLIENTS, clock=clock) as box:
        for _ in range(12):  # killed in the middle of a look
            box.step()
    assert "model_experimental" in caplog.text
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        view = box.server.models()["clusters"].view
        assert view is not None
        assert view.regimes is not None
        assert len(view.centres) == 2
        assert view.regimes.n_changes >= 20
        np.testing.assert_allclose(view.regimes.dwell, 100, rtol=0.4)
        expected = model_bytes(box.server)
    for batch, stop_every in ((1, None), (7, 3)):
        assert replay(config, tmp_path / f"{batch}.db", batch, stop_every) == expected


def test_private_counts_are_refused(tmp_path: Path) -> None:
    terms = 'mode = "formal"\nunit = "user"\ncounts_epsilon = 1\nreadings_per_window_max = 4'
    with pytest.raises(SettingsError, match="regimes learns from noisy rows"):
        resolve(load_config(federation_file(tmp_path, terms)).contract)


def test_a_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="answer what the server asks"):
        _check_replayable(load_config(federation_file(tmp_path)))
