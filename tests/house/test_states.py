"""A federation of three clients with the algorithm states: killed, rebuilt, and labelled in the
server's numbers."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.states_streams import dwells
from shoal.client_nodes.labelling.labelled_readings import LabelledReadings
from shoal.client_nodes.labelling.relabel import relabel_readings
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.kernels.arrays import Ints
from shoal.onebox.federation import OneBox
from shoal.protocol.events import ClusterEventMessage, SiteEvent
from shoal.protocol.topics import SITE_EVENTS
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.request_publishing import request_name, request_quarantine
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.house.small_federation import (
    CLIENTS,
    FILE,
    all_records,
    clock,
    model_bytes,
    write_readings,
)
from tests.house.test_same_log_same_model import replay

N = 3_000


def federation_file(folder: Path, mode: str = 'mode = "off"') -> Path:
    settings = {
        "name": "house",
        "publish_readings": 400,
        "batch_readings_max": 280,
        "pool_clients": 1,
    }
    text = FILE.format(**settings, batch_updates_max=4, address="sqlite:federation.db")
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', mode)
    text = text.replace('"fcac"', '"states"\noptions = { evaluate_every = 1_000 }')
    path = folder / "federation.toml"
    path.write_text(text, encoding="utf-8")
    return path


def truth_of(number: int) -> Ints:
    """(n,) the planted state of a client: 120 readings each on average, and at no even times."""
    return dwells(np.random.default_rng(number), N, 2, 120)


def write_planted(config: Config) -> None:
    """Two states in turn, two deviations apart in each of two columns, at each client at a level
    of its own. On 20 other streams of this strength the learner found both, with an adjusted Rand
    index of .94 at least."""
    for number, name in enumerate(CLIENTS):
        rng = np.random.default_rng([number, 1])
        values = rng.normal(size=(N, 2)) + 2.0 * truth_of(number)[:, None]
        values += [20.0 + 3 * number, 50.0]
        write_readings(config, name, values.tolist())


def labels_of(config: Config, client: str) -> list[int | None]:
    with closing(open_client_log(config, client)) as log:
        blocks = LabelledReadings(log, "clusters", 2).all()
        labels = [label for block in blocks for label in block.labels]
    return [None if label is None else label.identity for label in labels]


def changes_of(config: Config, client: str) -> list[int]:
    """The readings at which this client reported that it had changed its state, in order."""
    with closing(open_client_log(config, client)) as log:
        events = [SiteEvent.decode(record.value) for record in latest(log, SITE_EVENTS).values()]
    return sorted(int(event.id.split("/")[2]) for event in events if event.kind == "state_changed")


def test_three_clients_share_states_and_kills_a_rebuild_and_batches_give_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(federation_file(tmp_path))
    write_planted(config)
    with caplog.at_level(logging.WARNING, "shoal"), OneBox(config, CLIENTS, clock=clock) as box:
        for _ in range(9):  # killed between two looks for states
            box.step()
    assert "model_experimental" in caplog.text
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        status = box.server.models()["clusters"].status()
        view = box.server.models()["clusters"].view
        expected = model_bytes(box.server)
        metrics = box.server.metrics.registry
        name = "shoal_state_dwell_readings"
        labels = {"model": "clusters", "cluster": "1", "name": ""}
        dwell = metrics.get_sample_value(name, labels)
    assert view is not None
    assert view.states is not None
    assert len(view.centres) == 2
    assert status.snapshot is not None
    assert status.snapshot.arrays["clients"].tolist() == [3, 3]
    np.testing.assert_allclose(view.states.dwell, 120, rtol=0.4)
    assert dwell is not None
    assert 70 < dwell < 170
    assert [cluster.identity for cluster in status.lineage.known] == [0, 1]
    for number, client in enumerate(CLIENTS):
        planted = np.flatnonzero(np.diff(truth_of(number)))
        told = changes_of(config, client)
        # Told once states can be relied on, and then after the window of labels and a confirmation.
        assert told, client
        assert all(np.any((reading - 120 < planted) & (planted < reading)) for reading in told)
    for batch, stop_every in ((1, None), (7, 3)):
        assert replay(config, tmp_path / f"{batch}.db", batch, stop_every) == expected
    truth = np.concatenate([truth_of(number) for number in range(len(CLIENTS))])
    found = []
    for client in CLIENTS:
        relabel_readings(config, client)
        found += labels_of(config, client)
    assert None not in found
    same = max(np.mean((np.array(found) == number) == (truth == 1)) for number in (0, 1))
    assert same > 0.95
    other = config.model_copy(
        update={"client": config.client.model_copy(update={"batch_readings_max": 31})}
    )
    relabel_readings(other, CLIENTS[0])
    assert labels_of(config, CLIENTS[0]) == found[:N]


def events_of(config: Config) -> list[tuple[str, int, int | None]]:
    records = all_records(config.log.address, config.contract.events_topic)
    events = [ClusterEventMessage.decode(record.value) for record in records]
    return [
        (event.kind, event.cluster, event.other) for event in events if event.kind != "share_moved"
    ]


def test_states_are_born_unlearnt_and_rebuilt_with_their_names_and_without_an_event_twice(
    tmp_path: Path,
) -> None:
    config = load_config(federation_file(tmp_path))
    write_planted(config)
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
    born = [("birth", 0, None), ("parted", 1, 0)]
    assert events_of(config) == born
    with closing(open_log(config.log)) as log:
        request_name(config, log, "clusters", 1, "lit")
        request_quarantine(config, log, "garden", "unlearn", "")
    with OneBox(config, CLIENTS[:2], clock=clock) as box:
        box.run_until_idle()
        status = box.server.models()["clusters"].status()
    assert [(own.identity, own.name) for own in status.lineage.known] == [(0, ""), (1, "lit")]
    assert status.snapshot is not None
    assert status.snapshot.arrays["clients"].tolist() == [2, 2]
    told = [*born, ("named", 1, None)]
    assert events_of(config) == told
    shutil.rmtree(config.server.folder)
    with resumed(open_server(config, clock=clock, rebuild=True)) as server:
        while server.step():
            pass
        rebuilt = server.models()["clusters"].status()
    assert rebuilt.snapshot is not None
    np.testing.assert_array_equal(rebuilt.snapshot.arrays["dwell"], status.snapshot.arrays["dwell"])
    assert events_of(config) == told


def test_terms_that_protect_more_than_single_readings_are_refused(tmp_path: Path) -> None:
    terms = 'mode = "formal"\nunit = "user"\ncounts_epsilon = 1\nreadings_per_window_max = 4'
    with pytest.raises(SettingsError, match="states learns from noisy rows"):
        resolve(load_config(federation_file(tmp_path, terms)).contract)
