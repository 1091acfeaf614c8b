"""Two processes that run from copies of one folder: the server notices, and both stop while they
run."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.topics import requeue
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.client_nodes.snapshots import LOOK_EVERY_S
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState
from shoal.protocol.conflicts import AUTHOR_HEADER, CONFLICTS_KEY, INCARNATION_HEADER, ConflictList
from shoal.protocol.messages import Update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import Headers, Record, latest
from tests.house.counting_federation import create, rooms
from tests.house.small_federation import all_records, clock, write_readings

CLIENT = "attic"
COUNTS = ("density_tree", "counts_epsilon = 4")
ROWS = ("fcac", "epsilon_per_reading = 200")


class Clones:
    """A client that has published, and a copy of its folder."""

    def __init__(self, folder: Path, first: str, privacy: str) -> None:
        self.file = create(folder, 100, first=first, privacy=privacy, clients=(CLIENT,))
        # Labels would read all snapshots, and so the list of conflicts.
        self.file.write_text(
            self.file.read_text("utf-8").replace("label = true", "label = false"), encoding="utf-8"
        )
        self.config = load_config(self.file)
        self.now = 1e9
        self._stack = ExitStack()
        with resumed(open_client(self.config, CLIENT, clock=clock)) as node:
            run(node)
        self.copied = self.config.model_copy(
            update={"client": self.config.client.model_copy(update={"folder": folder / "copy"})}
        )
        shutil.copytree(self.config.client.folder, folder / "copy")

    def start(self, config: Config) -> ClientNode:
        return self._stack.enter_context(
            resumed(open_client(config, CLIENT, clock=lambda: self.now))
        )

    def feed(self, config: Config, seed: int) -> None:
        write_readings(config, CLIENT, rooms(100, seed))

    def serve(self) -> None:
        with resumed(open_server(self.config, clock=clock)) as server:
            while server.step():
                pass

    def conflicts(self) -> ConflictList | None:
        with closing(open_log(self.config.log)) as log:
            record = latest(log, self.config.contract.snapshots_topic).get(CONFLICTS_KEY)
        return None if record is None else ConflictList.decode(record.value, record.headers)

    def publish(self, value: bytes, headers: Headers) -> None:
        with closing(open_log(self.config.log)) as log:
            log.publish(
                self.config.contract.updates_topic,
                value,
                self.config.contract.update_key("clusters"),
                headers,
            )
            log.flush()

    def records(self) -> list[Record]:
        return all_records(self.config.log.address, self.config.contract.updates_topic)

    def __enter__(self) -> Clones:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def run(node: ClientNode) -> None:
    while node.step():
        pass


@pytest.mark.parametrize(("first", "privacy"), [COUNTS, ROWS], ids=["counts", "rows"])
def test_two_processes_of_one_client_are_noticed_and_both_stop_while_they_run(
    first: str, privacy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Clones(tmp_path, first, privacy) as clones:
        original = clones.start(clones.config)
        copy = clones.start(clones.copied)
        for config, node, seed in (
            (clones.config, original, 1),
            (clones.copied, copy, 2),
            (clones.config, original, 3),
        ):
            clones.feed(config, seed)
            run(node)
        with caplog.at_level("ERROR", logger="shoal"):
            clones.serve()
        assert caplog.text.count("client_copied") == 1
        conflicts = clones.conflicts()
        assert conflicts is not None
        assert [(copy.model, copy.client) for copy in conflicts.copies] == [("clusters", CLIENT)]
        published = len(clones.records())
        clones.now += LOOK_EVERY_S
        for config, node in ((clones.config, original), (clones.copied, copy)):
            clones.feed(config, 4)
            with pytest.raises(InvalidState, match=f"two processes publish as client {CLIENT}"):
                run(node)
        assert len(clones.records()) == published, "neither has published anything more"


def test_a_client_that_starts_again_and_again_is_one_process_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Clones(tmp_path, *COUNTS) as clones, caplog.at_level("ERROR", logger="shoal"):
        for seed in range(3):
            clones.feed(clones.config, seed)
            with resumed(open_client(clones.config, CLIENT, clock=clock)) as node:
                run(node)
        # Somebody publishes old records again: they are repeated.
        for record in clones.records()[:2]:
            clones.publish(record.value or b"", record.headers)
        clones.serve()
        assert len({dict(record.headers)[INCARNATION_HEADER] for record in clones.records()}) == 4
        assert clones.conflicts() is None
        assert "client_copied" not in caplog.text


def test_without_the_noise_key_nobody_can_stop_a_client_by_old_incarnations(tmp_path: Path) -> None:
    with Clones(tmp_path, *COUNTS) as clones:
        node = clones.start(clones.config)
        clones.feed(clones.config, 1)
        run(node)
        newest = clones.records()[-1]
        update = Update.decode(newest.value, newest.headers)
        own = dict(newest.headers)
        for number, incarnation in enumerate((b"newer111", own[INCARNATION_HEADER])):
            forged = replace(update, sequence=update.sequence + 10 + number).encode()
            marks = ((AUTHOR_HEADER, own[AUTHOR_HEADER]), (INCARNATION_HEADER, incarnation))
            clones.publish(forged, (*Update.headers(), *marks))
        clones.serve()
        conflicts = clones.conflicts()
        assert conflicts is not None
        assert conflicts.copies, "the server cannot know who has published them"
        clones.feed(clones.config, 2)
        run(node)
        assert len(clones.records()) > len(conflicts.copies)


def test_a_rejected_update_that_is_published_again_is_of_no_process(tmp_path: Path) -> None:
    with Clones(tmp_path, *COUNTS) as clones:
        early = clones.records()[0]
        damaged = replace(Update.decode(early.value, early.headers), contract="0" * 16).encode()
        clones.publish(damaged, early.headers)
        clones.serve()
        (rejected,) = all_records(clones.config.log.address, clones.config.contract.rejected_topic)
        arguments = ["--config", str(clones.file), dict(rejected.headers)["origin"].decode()]
        assert CliRunner().invoke(requeue, arguments, catch_exceptions=False).exit_code == 0
        again = clones.records()[-1]
        assert again.value == damaged
        assert INCARNATION_HEADER not in dict(again.headers)
