"""Opening a server: its checkpoint in its folder, and its status on the board while it runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogUnavailable
from shoal.protocol.published_contract import CONTRACT_KEY
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import STATUS_PER_S, StatusUpdater, initial_status, open_server
from shoal.server_node.report.status import StatusBoard
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.federation_text import federation_text
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import Clock, an_update

FILE = federation_text(log={"address": "sqlite:federation.db"}, server={"folder": "."})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "plant.toml"
    path.write_text(FILE)
    return load_config(path)


def test_the_board_has_a_status_before_the_first_step(config: Config) -> None:
    status = initial_status(config, 5.0)
    assert not status.ready
    assert status.models["clusters"].waiting_for
    assert StatusBoard(status).status is status


def test_a_server_locks_its_checkpoint_while_it_is_open(config: Config) -> None:
    for _ in range(2):
        with resumed(open_server(config)) as server:
            assert not server.step()
    with (
        resumed(open_server(config)),
        pytest.raises(InvalidState, match="is server of plant running already"),
        resumed(open_server(config)),
    ):
        pass


def test_a_server_that_is_opened_publishes_nothing_before_it_is_resumed(config: Config) -> None:
    with open_server(config) as server, closing(open_log(config.log)) as log:
        assert not latest(log, config.contract.snapshots_topic)
        server.resume()
        assert list(latest(log, config.contract.snapshots_topic)) == [CONTRACT_KEY]


def test_the_status_is_renewed_a_few_times_a_second_and_stays_when_the_server_has_ended(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    clock = Clock(0.0)
    site.send(an_update(site.contract))
    with site.server() as server:
        board = StatusBoard(server.status())
        updater = StatusUpdater(board, clock)
        with updater.until_closed(server):
            updater.update(server)
            first = board.status
            assert first.lag_records == 1
            assert server.step()
            updater.update(server)
            assert board.status is first, "not before every step"
            clock.now += 1 / STATUS_PER_S
            updater.update(server)
            assert board.status.lag_records == 0
            assert board.status.ready
            site.send(an_update(site.contract, "attic", 2))
            server.step()
    last = board.status.models["clusters"].snapshot
    assert last is not None
    assert last.updates == 2, "the newest status is shown at the end"
    assert not board.status.ready


def test_a_server_that_ends_with_an_error_leaves_the_status_before_it(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    with site.server() as server:
        board = StatusBoard(server.status())
        before = board.status
        with pytest.raises(LogUnavailable), StatusUpdater(board).until_closed(server):
            raise LogUnavailable("a broker does not answer")
    assert before.ready
    assert board.status == replace(before, ready=False)


def test_a_status_never_changes(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    with site.server() as server:
        before = server.status()
        site.send(an_update(site.contract))
        server.step()
        assert before.models["clusters"].snapshot is None
        assert len(before.models["clusters"].history) == 0
        assert before.rejected == {}
