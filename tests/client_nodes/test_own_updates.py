"""A client that runs from an older copy of its folder finds in the log what it has published since,
and stops."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes import own_updates
from shoal.client_nodes.own_updates import OwnUpdates
from shoal.client_nodes.shared_files import SharedLog
from shoal.config.resolved import resolve
from shoal.errors import InvalidState, LogError, SettingsError
from shoal.protocol.conflicts import AUTHOR_HEADER, PublishedDigests
from shoal.transports.base import Positions, Record
from shoal.transports.sqlite.log import SqliteLog
from tests.client_nodes.site import Site, readings


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def publish(site: Site, seed: int) -> None:
    """Fifty readings, and the update that is due after them."""
    site.add_readings(readings(50, seed))
    site.run()


@pytest.fixture
def older(site: Site) -> Site:
    """A site whose checkpoint is of before its second update, in the same log."""
    publish(site, 1)
    old = site.folder / "older.db"
    shutil.copy(site.folder / "checkpoint.db", old)
    publish(site, 2)
    for file in site.folder.glob("checkpoint.db*"):
        file.unlink()
    old.rename(site.folder / "checkpoint.db")
    return site


def start(site: Site) -> None:
    with site.node():
        pass


def test_an_older_checkpoint_stops_the_start_with_what_to_do_before_anything_is_published(
    older: Site,
) -> None:
    before = len(older.published())
    with pytest.raises(
        InvalidState, match=r"update 2 .* Restore the newest copy .* start under a new client name"
    ):
        start(older)
    assert len(older.published()) == before


def test_a_lost_checkpoint_stops_the_start_even_if_the_key_is_there(site: Site) -> None:
    publish(site, 1)
    for file in site.folder.glob("checkpoint.db*"):
        file.unlink()
    with pytest.raises(InvalidState, match="does not know it"):
        start(site)


def test_the_newest_checkpoint_starts_again_and_again(site: Site) -> None:
    for seed in range(3):
        publish(site, seed)
    start(site)
    assert {update.sequence for update in site.updates()} == {1, 2, 3}


def test_another_update_under_a_known_number_stops_the_start(site: Site) -> None:
    """Two copies of one folder, run one after the other, have published different updates of one
    number."""
    publish(site, 1)
    copy = Site(site.folder.with_name("copy"))
    shutil.rmtree(copy.folder)
    shutil.copytree(site.folder, copy.folder)
    publish(site, 2)
    publish(copy, 3)
    theirs = copy.published()[-1]
    with site.federation() as log:
        log.publish(site.contract.updates_topic, theirs.value, theirs.key, theirs.headers)
        log.flush()
    with pytest.raises(InvalidState, match="update 2"):
        start(site)


@pytest.mark.parametrize("forged", [b"", b"12345678"])
def test_a_process_without_the_key_cannot_stop_a_client_by_publishing_in_its_name(
    site: Site, forged: bytes
) -> None:
    publish(site, 1)
    copy = Site(site.folder.with_name("copy"))
    publish(copy, 2)
    publish(copy, 3)
    theirs = copy.published()[-1]
    headers = tuple(
        (name, forged if name == AUTHOR_HEADER else value) for name, value in theirs.headers
    )
    with site.federation() as log:
        log.publish(site.contract.updates_topic, theirs.value, theirs.key, headers)
        log.flush()
    start(site)


def test_what_was_looked_at_once_is_not_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(site, 1)
    with site.node() as node:
        site.clock.now += own_updates.SEEN_EVERY_S
        site.add_readings(readings(50, 2))
        while node.step():
            pass
        site.clock.now += own_updates.SEEN_EVERY_S
        site.add_readings(readings(50, 3))
        while node.step():
            pass
    places = []
    read = SqliteLog.read

    def noting_read(
        self: SqliteLog, topic: str, at: dict[int, int], *more: Any, **named: Any
    ) -> Any:
        if topic == site.contract.updates_topic:
            places.append(at[0])
        return read(self, topic, at, *more, **named)

    monkeypatch.setattr(SqliteLog, "read", noting_read)
    start(site)
    assert min(places) >= 2, "the first updates were looked at by earlier runs"


def test_only_the_newest_records_are_looked_at(
    older: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_updates, "RECORDS_MAX", 1)
    with pytest.raises(InvalidState):
        start(older)
    monkeypatch.setattr(own_updates, "RECORDS_MAX", 0)
    start(older)


@pytest.fixture
def forbidden(older: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A client with an older checkpoint that may not read the updates."""
    read = SqliteLog.read

    def forbidden(self: SqliteLog, topic: str, *more: Any, **named: Any) -> Any:
        if topic == older.contract.updates_topic:
            raise LogError("an access rule forbids it")
        return read(self, topic, *more, **named)

    monkeypatch.setattr(SqliteLog, "read", forbidden)
    return older


def test_a_client_that_may_not_read_the_updates_does_not_start(forbidden: Site) -> None:
    before = (forbidden.folder / "checkpoint.db").read_bytes()
    with pytest.raises(SettingsError, match=r"may not read plant.updates .* accept_unseen = true"):
        start(forbidden)
    assert (forbidden.folder / "checkpoint.db").read_bytes() == before


def test_it_starts_with_a_warning_where_that_is_accepted(
    forbidden: Site, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden.settings = forbidden.settings.model_copy(update={"accept_unseen": True})
    with caplog.at_level("WARNING", logger="shoal"):
        start(forbidden)
    assert "own_updates_unread" in caplog.text


def test_a_new_client_that_may_not_read_the_updates_is_refused_at_its_first_start(
    forbidden: Site,
) -> None:
    """And not at its second one, when it has published."""
    with forbidden.federation() as log:
        new = OwnUpdates(log, resolve(forbidden.contract), "cellar", bytes(32), key_is_new=True)
        with pytest.raises(SettingsError, match="client cellar may not read"):
            new.check(PublishedDigests(), {})


def test_clients_of_a_host_that_begin_at_different_places_read_the_log_once(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_updates, "READ_RECORDS", 10)
    topic = site.contract.updates_topic
    reads: list[int] = []
    with closing(SqliteLog(tmp_path / "log.db")) as log:
        log.ensure(topic)
        for number in range(57):
            log.publish(topic, b"update %d" % number)
        log.flush()
        read = log.read

        def counted(
            topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
        ) -> tuple[Sequence[Record], Positions]:
            reads.append(at[0])
            return read(topic, at, limit, timeout_s)

        monkeypatch.setattr(log, "read", counted)
        shared = SharedLog(log)
        shared.begin()
        seen: list[int] = []
        for offset in (3, 8, 12, 27):
            own = OwnUpdates(shared, resolve(site.contract), f"c{offset}", bytes(32))
            own.restore({"seen": [[0, offset]]})
            records = own._records({0: offset}, own.ends())
            seen.append(len(list(records)))
        shared.end()
    assert seen == [54, 49, 45, 30], "all that is behind the place of each"
    assert sorted(reads) == [3, 8, 10, 12, 20, 27, 30, 40, 50]
