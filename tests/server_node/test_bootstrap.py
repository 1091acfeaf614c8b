"""A server at home: its memory in its folder, and its picture on the board while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_node.bootstrap import STATUS_PER_S, Watched, initial_status, open_server
from server_node.status import StatusBoard
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState
from tests.server_node.server_fixture import Room
from tests.small_plant import Clock, an_update

FILE = """
[federation]
name = "plant"
[[features]]
name = "warm"
low = -10
high = 50
[[features]]
name = "damp"
low = 0
high = 100
[privacy]
mode = "off"
[[models]]
name = "clusters"
algorithm = "fcac"
[log]
address = "sqlite:federation.db"
[server]
folder = "."
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "plant.toml"
    path.write_text(FILE)
    return load_config(path)


def test_before_the_first_step_the_board_has_a_picture(config: Config) -> None:
    picture = initial_status(config, 5.0)
    assert not picture.ready
    assert picture.models["clusters"].waiting_for
    assert StatusBoard(picture).status is picture


def test_a_server_remembers_in_its_folder_and_lets_go_of_it(config: Config) -> None:
    for _ in range(2):
        with open_server(config) as server:
            assert not server.step()
    with (
        open_server(config),
        pytest.raises(InvalidState, match="is server of plant running already"),
        open_server(config),
    ):
        pass


def test_the_picture_is_renewed_a_few_times_a_second_and_stays_when_the_server_has_ended(tmp_path: Path) -> None:
    room, clock = Room(tmp_path), Clock(0.0)
    room.say(an_update(room.contract))
    with room.server() as server:
        board = StatusBoard(server.status())
        watched = Watched(server, board, clock)
        first = board.status
        assert first.lag_records == 1
        assert watched.step()
        assert board.status is first, "not at every step"
        clock.now += 1 / STATUS_PER_S
        assert not watched.step()
        assert board.status.lag_records == 0
        snapshot = board.status.models["clusters"].snapshot
        assert snapshot is not None
        assert board.status.ready
        watched.leave()
    assert board.status.models["clusters"].snapshot is snapshot
    assert not board.status.ready


def test_a_picture_that_was_taken_does_not_change(tmp_path: Path) -> None:
    room = Room(tmp_path)
    with room.server() as server:
        before = server.status()
        room.say(an_update(room.contract))
        server.step()
        assert before.models["clusters"].snapshot is None
        assert len(before.models["clusters"].history) == 0
        assert before.rejected == {}
