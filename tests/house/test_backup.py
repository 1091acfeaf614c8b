"""Backups as docs/how-to/backup.md describes them: an old server checkpoint works, an old log does
not."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.errors import LogError
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from tests.house.federation_processes import undisturbed_updates, updates_by_client
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    contents,
    create_federation,
    final_model,
    run_to_end,
    weather,
    write_readings,
)


@pytest.fixture(params=["sqlite", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def test_a_server_restored_from_an_old_backup_learns_the_rest_again_to_the_same_model(
    address: str, tmp_path: Path
) -> None:
    file = create_federation(tmp_path, readings=200, address=address)
    config = load_config(file)
    run_to_end(file)
    shutil.copytree(config.server.folder, tmp_path / "backup")
    early = final_model(file)
    for seed, client in enumerate(CLIENTS):
        write_readings(config, client, weather(150, 10 + seed), started_at=1e9 + 1000)
    run_to_end(file)
    late = final_model(file)
    shutil.rmtree(config.server.folder)
    shutil.copytree(tmp_path / "backup", config.server.folder)
    assert final_model(file) == early != late
    run_to_end(file, ())
    assert final_model(file) == late


def test_a_stopped_client_whose_folder_was_moved_continues(address: str, tmp_path: Path) -> None:
    file = create_federation(tmp_path, ["attic"], readings=200, pool_clients=1, address=address)
    config = load_config(file)
    with resumed(open_client(config, "attic", clock=clock)) as client:
        assert client.step()
    shutil.move(config.client.folder, tmp_path / "elsewhere")
    moved = config.model_copy(
        update={"client": config.client.model_copy(update={"folder": tmp_path / "elsewhere"})}
    )
    with resumed(open_client(moved, "attic", clock=clock)) as client:
        while client.step():
            pass
    expected = undisturbed_updates(moved, "attic", tmp_path / "undisturbed")
    published = updates_by_client(config)["attic"]
    assert [{contents(update) for update in published[number]} for number in sorted(published)] == [
        {update} for update in expected
    ]


def test_a_log_that_ends_before_the_servers_position_is_refused(tmp_path: Path) -> None:
    file = create_federation(tmp_path, readings=200)
    config = load_config(file)
    run_to_end(file, CLIENTS[:1])
    shutil.copy(tmp_path / "federation.db", tmp_path / "backup.db")
    run_to_end(file)
    for part in tmp_path.glob("federation.db*"):
        part.unlink()
    shutil.copy(tmp_path / "backup.db", tmp_path / "federation.db")
    assert len(all_records(config.log.address, config.contract.updates_topic)) > 0
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    with (
        pytest.raises(LogError, match="the log ends at"),
        resumed(open_server(config, clock=clock)) as server,
    ):
        server.step()
