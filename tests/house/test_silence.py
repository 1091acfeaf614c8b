"""A host puts clients away that are silent, which changes nothing of what they publish."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.host import Host
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config, load_config
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports.sqlite.log import SqliteLog
from tests.federation_text import federation_text
from tests.house.small_federation import clock, create_federation, give_noise_keys, weather
from tests.house.test_host import published, serve
from tests.house.test_site_log import identify_by_name, identity_of


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("in_one_log", [False, True])
def test_a_client_that_was_put_away_publishes_what_one_that_was_not_does(
    tmp_path: Path, in_one_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a day of silence, with updates by the clock before and after it."""
    identify_by_name(monkeypatch)
    results = []
    for idle_days in (0.0, 0.5):
        folder = tmp_path / str(idle_days)
        folder.mkdir()
        time = ManualClock()
        config = silent_federation(folder, idle_days, in_one_log)
        with closing(Host(config, clock=time)) as host:
            for readings, pause_s, is_away in (
                (25, 5.0, False),
                (7, 30.0, False),
                (0, 40_000.0, False),
                (0, 50_000.0, True),
                (6, 5.0, False),
                (0, 20.0, False),
                (0, 90_000.0, True),
                (40, 1.0, False),
            ):
                if readings:
                    add_readings(config, "garden", readings)
                serve(host)
                time.now += pause_s
                serve(host)
                serve(host)
                garden = host.clients["garden"]
                assert garden.is_away == (is_away and idle_days > 0)
                assert garden.is_open != garden.is_away
            assert host.totals()["learned"] == 78
        results.append(published(config))
        # One that was silent before the host is started again needs not be waited for.
        set_saved_at(config, time.now - 90_000)
        with closing(Host(config, clock=time)) as host:
            serve(host)
            # Where all are in one log, a host opens what has nothing to do for its next reading.
            assert host.clients["garden"].is_away == (idle_days > 0 or in_one_log)
    assert results[0] == results[1]
    assert len(results[0]["garden"]) == 3


def set_saved_at(config: Config, moment: float) -> None:
    """Let the newest checkpoint of "garden" be of this moment."""
    if not config.host.client:
        os.utime(config.client.folder / "garden" / "checkpoint.db", (moment, moment))
        return
    with closing(sqlite3.connect(config.client.folder / "checkpoints.db")) as file, file:
        file.execute("UPDATE state SET saved_at = ?", (moment,))


def silent_federation(folder: Path, idle_days: float, in_one_log: bool) -> Config:
    """A federation whose clients publish every 10 s, and whose server has begun."""
    file = create_federation(folder, [])
    give_noise_keys(folder, ["garden"], of_host=in_one_log)
    text = file.read_text(encoding="utf-8").replace("publish_s = 86400", "publish_s = 10", 1)
    text = text.replace("label = true", "label = false")
    text += f'[host]\nidle_days = {idle_days}\naddress = "sqlite:site-log.db"\n'
    if in_one_log:
        text += 'client = "key"\n'
    file.write_text(text, encoding="utf-8")
    with resumed(open_server(load_config(file), clock=clock)) as server:
        server.step()
    return load_config(file)


def add_readings(config: Config, client: str, readings: int) -> None:
    """Append readings to the log of a client, or of its site."""
    path = str(config.client.folder / client / "readings.db")
    key = None
    if config.host.client:
        path = config.host.address.partition(":")[2]
        key = client.encode()
    with closing(SqliteLog(path, clock=clock, new_identity=lambda: identity_of(client))) as log:
        log.ensure(READINGS, READINGS_SETTINGS)
        for number, values in enumerate(weather(readings, readings)):
            reading = Reading(1e9 + number, values)
            log.publish(READINGS, reading.encode(), key, reading.headers())
        log.flush()


@pytest.mark.parametrize(
    ("mode", "reason"), [("off", "model .*: clients answer"), ("formal", "hide_presence")]
)
def test_clients_that_publish_in_silence_are_not_put_away_and_it_is_said_why(
    tmp_path: Path, mode: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    models = [{"name": "groups", "algorithm": "kmeans", "options": {"clusters": 2}}]
    privacy: dict[str, Any] = {"mode": mode}
    if mode == "formal":
        models = [{"name": "tree", "algorithm": "density_tree"}]
        privacy |= {"counts_epsilon": 4, "window_readings": 100, "hide_presence": True}
    file = tmp_path / "federation.toml"
    text = federation_text("house", privacy=privacy, models=models) + "[host]\nidle_days = 1\n"
    file.write_text(text, encoding="utf-8")
    with closing(Host(load_config(file), clock=clock)):
        [kept] = [record for record in caplog.records if record.message == "clients_kept_open"]
    assert re.search(reason, getattr(kept, "fields", {})["reason"])


@pytest.mark.parametrize("model", ["fcac", "density_tree"])
def test_clients_whose_idle_turns_are_left_out_publish_what_those_that_step_do(
    tmp_path: Path,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With updates by number and by the clock, which is also set back, stores of what no update
    has, and readings that are rejected."""
    identify_by_name(monkeypatch)
    is_idle = ClientNode.is_idle
    results = []
    logged = []
    left_out: list[bool] = []
    caplog.set_level(logging.INFO)

    def steps_always(node: ClientNode) -> bool:
        left_out.append(is_idle(node))
        if left_out[-1]:
            before = node.stored_end, node.has_unstored, node.totals
            assert not node.advance()
            assert before == (node.stored_end, node.has_unstored, node.totals)
        return False

    for name in ("steps", "idle"):
        folder = tmp_path / name
        folder.mkdir()
        time = ManualClock()
        config = silent_federation(folder, 0.0, in_one_log=True)
        if model == "density_tree":
            config = counting_federation(folder)
        monkeypatch.setattr(ClientNode, "is_idle", steps_always if name == "steps" else is_idle)
        with closing(Host(config, clock=time)) as host:
            generator = random.Random(7)
            for _ in range(60):
                readings = generator.choice([0, 0, 1, 2, 5, 25])
                if readings:
                    add_readings(config, "garden", readings)
                if readings == 2:
                    add_rejected(config)
                serve(host)
                time.now += generator.choice([1.0, 4.0, 15.0, 61.0, 301.0, 950.0, -30.0])
                for _ in range(2):
                    serve(host)
            add_readings(config, "garden", 25)
            for _ in range(2):
                add_rejected(config)
                serve(host)
            # The second of the two is logged a minute later, though nothing is read meanwhile.
            for pause_s in (20.0, 20.0, 30.0):
                time.now += pause_s
                serve(host)
            logged.append([record.message for record in caplog.records].count("readings_rejected"))
            # So are updates made after the clock was set back.
            add_readings(config, "garden", 5)
            serve(host)
            for pause_s in (-500.0, 20.0, 900.0):
                time.now += pause_s
                serve(host)
            assert host.totals()["rejected"] > 3
        caplog.clear()
        results.append(published(config))
    assert results[0] == results[1]
    assert logged[0] == logged[1] > 1
    assert len(results[0]["garden"]) >= 10
    assert any(left_out)
    assert not all(left_out)


def counting_federation(folder: Path) -> Config:
    """The same with a model that learns from counts, in short windows."""
    file = folder / "federation.toml"
    text = file.read_text(encoding="utf-8")
    privacy = 'mode = "formal"\ncounts_epsilon = 4\nwindow_readings = 20\nwindow_s = 900'
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', privacy)
    text = text.replace('algorithm = "fcac"', 'algorithm = "density_tree"')
    for old in folder.glob("federation.db*"):
        old.unlink()
    shutil.rmtree(folder / "server", ignore_errors=True)
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    with resumed(open_server(config, clock=clock)) as server:
        server.step()
    return config


def add_rejected(config: Config) -> None:
    """Append a reading that cannot be learnt to the log of the site."""
    with closing(SqliteLog(config.host.address.partition(":")[2], clock=clock)) as log:
        headers = Reading.headers()
        log.publish(config.host.topic, b"no reading", b"garden", headers)
        log.flush()
