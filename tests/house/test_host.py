"""A host serves many clients in one process as processes of their own do."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms.registry import (
    algorithm_names,
    counting_names,
    rounds_algorithm,
    rounds_names,
)
from shoal.client_nodes import host as host_module
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.host import Host
from shoal.client_nodes.host_metrics import HostMetrics
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, SettingsError
from shoal.protocol.messages import Update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.federation_text import federation_text
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    contents,
    create_federation,
    give_noise_keys,
    updates_by_client,
    weather,
    write_readings,
)

READINGS = 150
PAIR = CLIENTS[:2]
MODES: dict[str, dict[str, Any]] = {
    "off": {"window_readings": 100},
    "paper": {"epsilon_nominal_per_feature": 20},
    "formal": {"epsilon_per_reading": 20, "counts_epsilon": 4, "window_readings": 100},
}


def federation_of_all(folder: Path, mode: str) -> Path:
    """A federation that has learnt nothing, with a model of each algorithm that the mode allows."""
    folder.mkdir()
    names = [name for name in algorithm_names() if mode != "paper" or name not in counting_names()]
    models: list[dict[str, Any]] = []
    for name in names:
        model: dict[str, Any] = {"name": name.replace("_", "-"), "algorithm": name}
        if name in rounds_names() and rounds_algorithm(name).takes("clusters"):
            model["options"] = {"clusters": 3}
        models.append(model)
    file = folder / "federation.toml"
    text = federation_text(
        "house",
        privacy={"mode": mode, **MODES[mode]},
        models=models,
        log={"address": "sqlite:federation.db"},
        client={"folder": "clients", "publish_readings": 40, "publish_s": 86400},
        server={"folder": "server", "port": 0},
    )
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    for seed, client in enumerate(PAIR):
        write_readings(config, client, weather(READINGS, seed), notes_times=True)
    give_noise_keys(folder, PAIR)
    with resumed(open_server(config, clock=clock)) as server:
        server.step()
    return file


def published(config: Config) -> dict[str, list[bytes]]:
    """Every update in the log, encoded, by client in the order of publication.

    One that was published again after a restart is there once: readers drop the others.
    """
    updates: dict[str, list[bytes]] = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        assert record.value is not None
        client = Update.decode(record.value, record.headers).client
        of_client = updates.setdefault(client, [])
        if record.value not in of_client:
            of_client.append(record.value)
    return updates


def serve(host: Host) -> None:
    """Step until no client has anything to do."""
    while host.step():
        pass


@pytest.mark.parametrize("mode", MODES)
def test_what_clients_of_a_host_publish_is_that_of_processes_of_their_own(
    tmp_path: Path, mode: str
) -> None:
    own = load_config(federation_of_all(tmp_path / "own", mode))
    shutil.copytree(tmp_path / "own", tmp_path / "hosted")
    hosted = load_config(tmp_path / "hosted" / "federation.toml")
    for client in PAIR:
        with resumed(open_client(own, client, clock=clock)) as node:
            while node.step():
                pass
    with closing(Host(hosted, clock=clock)) as host:
        serve(host)
    learnt = published(own)
    assert set(learnt) == set(PAIR)
    assert published(hosted) == learnt
    # The requests of a server, which clients answer from their windows.
    with resumed(open_server(own, clock=clock)) as server:
        while server.step():
            pass
    for name in ("alone", "together"):
        shutil.copytree(tmp_path / "own", tmp_path / name)
    alone = load_config(tmp_path / "alone" / "federation.toml")
    together = load_config(tmp_path / "together" / "federation.toml")
    for client in PAIR:
        with resumed(open_client(alone, client, clock=clock)) as node:
            while node.step():
                pass
    with closing(Host(together, clock=clock)) as host:
        serve(host)
    assert published(together) == published(alone)
    assert published(alone) != learnt, "requests were answered"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A federation of three clients with fixed noise keys, whose server has begun."""
    file = create_federation(tmp_path, readings=200)
    give_noise_keys(tmp_path, CLIENTS)
    with resumed(open_server(load_config(file), clock=clock)) as server:
        server.step()
    return file


def test_a_host_that_ends_after_every_step_loses_and_repeats_nothing(file: Path) -> None:
    copy = shutil.copytree(file.parent, file.parent / "copy")
    config = load_config(file)
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    restarted = load_config(copy / file.name)
    busy = True
    while busy:
        with closing(Host(restarted, clock=clock)) as host:
            # The first step of a client opens it, which counts as something done.
            host.step()
            busy = host.step()
    assert published(restarted) == published(config)
    assert published(config)


def test_a_killed_host_goes_on_and_each_reading_counts_once(file: Path) -> None:
    config = load_config(file)
    arguments = ["host", "--config", str(file), "--no-wait"]
    processes: list[Process] = []
    with killed_on_exit(processes):
        process = Process(arguments, file.parent / "host.log")
        processes.append(process)
        wait_until(lambda: len(updates_by_client(config)) > 0)
        process.kill()
        again = Process([*arguments, "--until-idle", "0.5"], file.parent / "host.log")
        processes.append(again)
        again.end()
    for updates in updates_by_client(config).values():
        readings = 0
        for same_number in updates.values():
            assert len({contents(update) for update in same_number}) == 1
            readings += same_number[0].readings
        assert readings == 200
    assert set(updates_by_client(config)) == set(CLIENTS)


def test_an_error_of_one_client_costs_the_others_nothing(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(file)
    (config.client.folder / "cellar" / "noise.key").write_bytes(b"too short")
    metrics = HostMetrics()
    with closing(Host(config, metrics=metrics, clock=clock)) as host:
        serve(host)
        assert set(host.failures()) == {"cellar"}
    assert set(updates_by_client(config)) == {"attic", "garden"}
    left_out = [record for record in caplog.records if record.message == "client_left_out"]
    assert [getattr(record, "fields", {})["client"] for record in left_out] == ["cellar"]
    value = metrics.registry.get_sample_value
    assert value("shoal_host_clients", {"state": "left_out"}) == 1
    for client in ("attic", "garden"):
        (config.client.folder / client / "noise.key").write_bytes(b"too short")
    host = Host(config, clock=clock)
    with closing(host), pytest.raises(InvalidState, match="3 of 3 clients were left out"):
        serve(host)


def test_a_client_beyond_clients_max_is_refused_and_those_that_have_learnt_come_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(create_federation(tmp_path, ["garden"], readings=60))
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    write_readings(config, "attic", weather(60, 1))
    with closing(Host(config, clients_max=1, clock=clock)) as host:
        serve(host)
        assert list(host.clients) == ["garden"]
        assert host.refused == {"attic"}
    refused = [record for record in caplog.records if record.message == "client_refused"]
    assert [getattr(record, "fields", {})["client"] for record in refused] == ["attic"]
    with pytest.raises(SettingsError, match="2 clients are named"):
        Host(config, ["attic", "garden"], clients_max=1)


def test_a_new_device_begins_by_itself_and_one_with_many_readings_takes_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "LOOK_EVERY_S", 0.0)
    config = load_config(create_federation(tmp_path, ["attic"], readings=2000))
    with closing(Host(config, clock=clock)) as host:
        host.step()
        read = host.clients["attic"].totals["read"]
        write_readings(config, "new", weather(50, 1))
        host.step()
        assert host.clients["new"].totals["read"] == 51, "with the one that is rejected"
        assert read < host.clients["attic"].totals["read"] < 2000
        serve(host)
        assert host.totals()["learned"] == 2050


def test_metrics_of_a_host_are_sums_and_the_clients_that_are_furthest_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SHOW_EVERY_S", 0.0)
    monkeypatch.setattr(host_module, "SHOW_RATIO", 0.0)
    monkeypatch.setattr(host_module, "LAG_EVERY_S", 0.0)
    config = load_config(create_federation(tmp_path, ["attic", "garden"], readings=60))
    write_readings(config, "attic", weather(1500, 1))
    metrics = HostMetrics(on_site=False, client_names={"attic": "Dach", "garden": "Garten"})
    value = metrics.registry.get_sample_value
    with closing(Host(config, metrics=metrics, clock=clock)) as host:
        host.step()
        lag = value("shoal_host_lag_records")
        assert lag is not None
        assert lag > 0
        assert value("shoal_host_worst_lag_records", {"client": "attic"}) == lag
        assert value("shoal_host_worst_lag_records", {"client": "garden"}) is None
        assert value("shoal_client_info", {"client": "attic", "name": "Dach"}) == 1
        assert value("shoal_client_info", {"client": "garden", "name": "Garten"}) is None
        serve(host)
        read = host.totals()["read"]
    assert value("shoal_host_readings_total", {"result": "read"}) == read
    assert value("shoal_host_lag_records") == 0
    assert value("shoal_host_clients", {"state": "open"}) == 2
    assert value("shoal_host_readings_total", {"result": "rejected"}) is None, "may be read by all"
    again = HostMetrics()
    with closing(Host(config, metrics=again, clock=clock)) as host:
        serve(host)
    # What was read before this process is not counted again.
    assert again.registry.get_sample_value("shoal_host_readings_total", {"result": "read"}) == 0


def test_a_host_without_a_client_says_so_and_where_it_has_looked(tmp_path: Path) -> None:
    file = create_federation(tmp_path, [])
    arguments = ["host", "--config", str(file), "--until-idle", "0.1"]
    process = Process(arguments, tmp_path / "host.log")
    with killed_on_exit([process]):
        process.end(2)
    assert "no_clients" in process.log_text()
    assert f"no folder in {tmp_path / 'clients'} has a readings log" in process.log_text()


def test_a_broker_does_not_tell_which_clients_there_are(tmp_path: Path) -> None:
    file = create_federation(tmp_path, [])
    text = file.read_text(encoding="utf-8") + '[readings]\naddress = "kafka://127.0.0.1:1"\n'
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="name each one with --name"):
        Host(load_config(file))
