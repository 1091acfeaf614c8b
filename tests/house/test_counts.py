"""Federations whose model learns from private counts: what is found, what is charged, and what a
power cut changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.errors import InvalidState
from shoal.privacy.ledger import Ledger, read_spending
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.sqlite.log import SqliteLog
from tests.house.counting_federation import CLIENTS, create, rooms, run
from tests.house.power_cut import THINNED, cut_at_every_call
from tests.house.small_federation import (
    all_records,
    clock,
    contents,
    give_noise_keys,
    updates_by_client,
    write_readings,
)


def found(file: Path) -> Any:
    """The status of the model."""
    with resumed(open_server(load_config(file), clock=clock)) as server:
        return server.models()["clusters"].view


def test_three_clusters_are_found_at_an_epsilon_of_four_and_every_window_is_charged(
    tmp_path: Path,
) -> None:
    file = create(tmp_path, 6000, window=200, grow=1000)
    run(file)
    view = found(file)
    assert len(view.centres) == 3
    wanted = np.array([[15, 80], [30, 50], [45, 20]]) / [60, 100]
    assert np.abs(view.centres[:, None] - wanted).sum(axis=2).min(axis=0).max() < 0.05
    config = load_config(file)
    for client, updates in updates_by_client(config).items():
        (spent,) = read_spending(config.client.folder / client / "ledger.db")[
            f"client {client} of house"
        ].models
        assert (spent.model, spent.windows, spent.epsilon) == ("clusters", len(updates), 4.0)
        assert spent.places == sum(again[0].readings for again in updates.values())
        assert {again[0].privacy["epsilon"] for again in updates.values()} == {4.0}


def test_without_noise_there_is_no_ledger(tmp_path: Path) -> None:
    file = create(tmp_path, 1000, mode="off", privacy="")
    run(file)
    assert len(found(file).centres) == 3
    assert not (tmp_path / "clients" / "attic" / "ledger.db").exists()


def test_rows_and_counts_go_side_by_side_and_their_epsilons_add_up(tmp_path: Path) -> None:
    file = create(
        tmp_path,
        1000,
        privacy="counts_epsilon = 4\nepsilon_per_reading = 200",
        models=(
            '[[models]]\nname = "published"\nalgorithm = "fcac"\n'
            '[[models]]\nname = "careful"\nalgorithm = "density_tree"\ncounts_epsilon = 1'
        ),
    )
    run(file)
    config = load_config(file)
    assert config.resolved.total_epsilon == 205
    spent, limit = config.resolved.epsilon_spent
    assert 204 < spent <= limit == 205
    with resumed(open_server(config, clock=clock)) as server:
        assert all(model.snapshot is not None for model in server.models().values())
        assert {
            name: model.snapshot.privacy["epsilon"] for name, model in server.models().items()
        } == {
            "clusters": 4,
            "published": 200,
            "careful": 1,
        }
    account = read_spending(tmp_path / "clients" / "attic" / "ledger.db")["client attic of house"]
    assert [model.epsilon for model in account.models] == [1.0, 4.0]


def test_whether_a_reading_is_rejected_does_not_move_a_window(tmp_path: Path) -> None:
    """A rejected reading in place of a valid one changes neither when updates come nor from how
    many readings.

    Times of updates are those at which the logs took readings in: both federations are fed by the
    same clock.
    """
    seen = []
    for valid in (True, False):
        folder = tmp_path / str(valid)
        folder.mkdir()
        file = create(folder, 300, clients=())
        config = load_config(file)
        for client in CLIENTS:
            write_readings(config, client, rooms(300, 1), log_clock=lambda: 1e9 + 300)
            log = SqliteLog(config.client.folder / client / "readings.db", clock=lambda: 1e9 + 301)
            value = rooms(1, 2)[0] if valid else [1.0, "wet"]
            log.publish(READINGS, Reading(1e9 + 300, value).encode(), headers=Reading.headers())
            log.flush()
            write_readings(config, client, rooms(300, 3), 1e9 + 301, log_clock=lambda: 1e9 + 602)
            log.close()
        run(file)
        seen.append(
            {
                client: [
                    (n, again[0].readings, again[0].newest_reading_at)
                    for n, again in updates.items()
                ]
                for client, updates in updates_by_client(config).items()
            }
        )
    assert seen[0] == seen[1]


def test_the_times_of_private_counts_are_those_of_the_log_whatever_the_newest_reading_is(
    tmp_path: Path,
) -> None:
    """An undecodable reading has no time; its place has one."""
    config = load_config(create(tmp_path, 30, window=400))
    address = f"sqlite:{config.client.folder / 'attic' / 'readings.db'}"
    log = open_log(address)
    log.publish(READINGS, b"wet", headers=Reading.headers())
    log.close()
    records = all_records(address, READINGS)
    now = [1e9]
    with resumed(open_client(config, "attic", clock=lambda: now[0])) as client:
        while client.step():
            pass
        now[0] += config.contract.privacy.window_s + 0.25
        client.step()
    (update,) = [again[0] for again in updates_by_client(config)["attic"].values()]
    oldest, newest = (record.timestamp_ms // 1000 for record in (records[0], records[-1]))
    assert (update.oldest_reading_at, update.newest_reading_at, update.made_at) == (
        oldest,
        newest,
        newest,
    )


def test_a_window_that_is_not_full_is_counted_when_its_time_is_over(tmp_path: Path) -> None:
    file = create(tmp_path, 30, window=400)
    config = load_config(file)
    now = [1e9]
    with resumed(open_client(config, "attic", clock=lambda: now[0])) as client:
        while client.step():
            pass
        assert updates_by_client(config) == {}
        now[0] += config.contract.privacy.window_s
        client.step()
    assert [again[0].readings for again in updates_by_client(config)["attic"].values()] == [31]


# Power cuts.


def run_clients(file: Path) -> None:
    """The clients one after the other, under the first plan; a window depends on the readings log
    alone."""
    for client in CLIENTS:
        with resumed(open_client(load_config(file), client, clock=clock)) as node:
            while node.step():
                pass


def outcome(file: Path) -> dict[str, Any]:
    config = load_config(file)
    found: dict[str, Any] = {}
    for client, updates in updates_by_client(config).items():
        for again in updates.values():
            assert len({contents(update) for update in again}) == 1, "two answers for one window"
        found[client] = {number: contents(again[0]) for number, again in updates.items()}
        (spent,) = read_spending(config.client.folder / client / "ledger.db")[
            f"client {client} of house"
        ].models
        assert spent.windows >= len(updates), "the ledger is below what was spent"
        found[f"{client} spent"] = spent
    return found


@THINNED
def test_a_power_cut_changes_no_window_and_the_ledger_is_never_below_what_was_spent(
    memory_folder: Path, every: int
) -> None:
    folder = memory_folder / "run"
    folder.mkdir()
    file = create(folder, 400)
    give_noise_keys(folder, CLIENTS)
    calls = ((Ledger, "charge"), (Checkpoint, "save"), (SqliteLog, "publish"), (SqliteLog, "flush"))
    cut_at_every_call(calls, file, memory_folder, run_clients, outcome, every)


@THINNED
def test_a_window_is_not_answered_under_a_second_plan_whatever_is_cut(
    memory_folder: Path, every: int
) -> None:
    folder = memory_folder / "run"
    folder.mkdir()

    def one_answer_each(file: Path) -> bool:
        outcome(file)
        return True

    calls = ((Ledger, "charge"), (Checkpoint, "save"))
    cut_at_every_call(calls, create(folder, 600), memory_folder, run, one_answer_each, 3 * every)


# The ledger.


def test_a_ledger_that_does_not_fit_stops_the_start_with_what_to_do(tmp_path: Path) -> None:
    file = create(tmp_path, 400)
    run_clients(file)
    config = load_config(file)
    folder = config.client.folder / "attic"
    saved = (folder / "ledger.db").read_bytes()

    def start() -> None:
        with resumed(open_client(config, "attic", clock=clock)):
            pass

    start()
    (folder / "ledger.db").unlink()
    with pytest.raises(InvalidState, match="missing or older than the checkpoint"):
        start()
    (folder / "ledger.db").write_bytes(b"no database" * 1000)
    with pytest.raises(InvalidState, match="no ledger that can be read"):
        start()
    shutil.copy(config.client.folder / "cellar" / "ledger.db", folder / "ledger.db")
    with pytest.raises(InvalidState, match="missing or older than the checkpoint"):
        start()
    (folder / "ledger.db").write_bytes(saved)
    start()


def test_a_checkpoint_older_than_the_ledger_is_refused(tmp_path: Path) -> None:
    file = create(tmp_path, 400)
    config = load_config(file)
    folder = config.client.folder / "attic"
    with resumed(open_client(config, "attic", clock=clock)) as client:
        client.step()
    old = (folder / "checkpoint.db").read_bytes()
    run_clients(file)
    for leftover in folder.glob("checkpoint.db-*"):
        leftover.unlink()
    (folder / "checkpoint.db").write_bytes(old)
    with (
        pytest.raises(InvalidState, match="older than the ledger"),
        resumed(open_client(config, "attic", clock=clock)),
    ):
        pass


def test_no_reading_is_in_any_record_that_leaves_the_client(tmp_path: Path) -> None:
    file = create(tmp_path, 400)
    run(file)
    config = load_config(file)
    values = [np.float64(value).tobytes() for value in rooms(400, 0).ravel()]
    unit = [
        np.float64(value).tobytes() for value in ((rooms(400, 0) - [-10, 0]) / [60, 100]).ravel()
    ]
    for topic in (
        config.contract.updates_topic,
        config.contract.snapshots_topic,
        config.contract.events_topic,
    ):
        for record in all_records(config.log.address, topic):
            assert record.value is not None
            assert not any(value in record.value for value in values + unit)
