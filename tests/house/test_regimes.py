"""A federation of three clients with the algorithm regimes: asked and answered through the log,
killed and rebuilt."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from shoal.client_nodes.labelling.labelled_readings import LabelledReadings
from shoal.client_nodes.labelling.relabel import relabel_readings
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.onebox.federation import OneBox
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.labels import Label
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.request_publishing import request_name, request_quarantine
from shoal.transports import open_log
from tests.house.small_federation import (
    CLIENTS,
    FILE,
    all_records,
    clock,
    model_bytes,
    write_readings,
)
from tests.house.test_same_log_same_model import replay


def federation_file(folder: Path, mode: str = 'mode = "off"') -> Path:
    settings = {
        "name": "house",
        "publish_readings": 100,
        "batch_readings_max": 70,
        "pool_clients": 1,
    }
    text = FILE.format(**settings, batch_updates_max=4, address="sqlite:federation.db")
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', mode).replace(
        '"fcac"', '"regimes"'
    )
    path = folder / "federation.toml"
    path.write_text(text, encoding="utf-8")
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


def events_of(config: Config) -> list[tuple[str, int, int | None]]:
    records = all_records(config.log.address, config.contract.events_topic)
    events = [ClusterEventMessage.decode(record.value) for record in records]
    return [
        (event.kind, event.cluster, event.other) for event in events if event.kind != "share_moved"
    ]


def test_regimes_are_born_unlearnt_and_rebuilt_with_their_names_and_without_an_event_twice(
    tmp_path: Path,
) -> None:
    config = load_config(federation_file(tmp_path))
    write_regimes(config, 1_200)
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        metrics = box.server.metrics.registry
        dwells = [
            metrics.get_sample_value(
                "shoal_regime_dwell_readings",
                {"model": "clusters", "cluster": str(regime), "name": ""},
            )
            for regime in (0, 1)
        ]
    born = [("birth", 0, None), ("parted", 1, 0)]
    assert all(dwell is not None and 60 < dwell < 140 for dwell in dwells)
    assert events_of(config) == born
    with closing(open_log(config.log)) as log:
        request_name(config, log, "clusters", 1, "lit")
        request_quarantine(config, log, "garden", "unlearn", "")
    with OneBox(config, CLIENTS[:2], clock=clock) as box:
        box.run_until_idle()
        status = box.server.models()["clusters"].status()
    assert [(cluster.identity, cluster.name) for cluster in status.lineage.known] == [
        (0, ""),
        (1, "lit"),
    ]
    assert status.snapshot is not None
    assert status.snapshot.readings == 2_400
    told = [*born, ("named", 1, None)]
    assert events_of(config) == told, (
        "regimes wait for the first look of the model that begins again"
    )
    shutil.rmtree(config.server.folder)
    with resumed(open_server(config, clock=clock, rebuild=True)) as server:
        while server.step():
            pass
        rebuilt = server.models()["clusters"].status()
    assert rebuilt.snapshot is not None
    np.testing.assert_array_equal(rebuilt.snapshot.arrays["dwell"], status.snapshot.arrays["dwell"])
    assert events_of(config) == told


def calm_and_rough(number: int, n: int) -> np.ndarray:
    """(n,) 1 where client `number` is rough: 200 readings at a time, of the same mean."""
    return (np.arange(n) + 70 * number) // 200 % 2


def write_calm_and_rough(config: Config, first: int, n: int) -> None:
    """The readings from `first` up to `n`."""
    for number, name in enumerate(CLIENTS):
        spread = 1.0 + 3.0 * calm_and_rough(number, n)
        values = [20.0, 50.0] + spread[:, None] * np.random.default_rng(number).normal(size=(n, 2))
        write_readings(config, name, values[first:].tolist(), started_at=1e9 + first)


def labels_of(config: Config, client: str) -> list[Label | None]:
    with closing(open_client_log(config, client)) as log:
        return [
            label for block in LabelledReadings(log, "clusters", 2).all() for label in block.labels
        ]


def test_clients_label_regimes_of_one_mean_and_kills_and_batches_change_no_label(
    tmp_path: Path,
) -> None:
    n = 2_400
    config = load_config(federation_file(tmp_path))
    write_calm_and_rough(config, 0, n - 400)
    for _ in range(9):
        # killed again and again, readings wait for their windows
        with OneBox(config, CLIENTS, clock=clock) as box:
            for _ in range(5):
                box.step()
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        write_calm_and_rough(config, n - 400, n)
        box.run_until_idle()
    waiting = [label is None for label in labels_of(config, "attic")]
    assert 0 < sum(waiting) < 128, "the newest readings wait for the end of their window"
    assert not any(waiting[:-128])
    relabel_readings(config, "attic")
    found = [label.identity if label is not None else None for label in labels_of(config, "attic")]
    other = config.model_copy(
        update={"client": config.client.model_copy(update={"batch_readings_max": 31})}
    )
    relabel_readings(other, "attic")
    assert [
        label.identity if label is not None else None for label in labels_of(config, "attic")
    ] == found
    rough = calm_and_rough(0, n) == 1
    identities = np.array(found)
    assert set(identities) == {0, 1}
    agree = max(np.mean((identities == regime) == rough) for regime in (0, 1))
    assert agree > 0.95, "the nearest mean would be right as often as a coin"


def test_private_counts_are_refused(tmp_path: Path) -> None:
    terms = 'mode = "formal"\nunit = "user"\ncounts_epsilon = 1\nreadings_per_window_max = 4'
    with pytest.raises(SettingsError, match="regimes learns from noisy rows"):
        resolve(load_config(federation_file(tmp_path, terms)).contract)
