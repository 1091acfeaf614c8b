"""Checkpoints that do not match, gaps in the log, and records stored but not published."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.settings import LogSettings
from shoal.errors import InvalidState, MessageRejected, OffsetOutOfRange
from shoal.protocol.messages import Snapshot
from tests.server_node.server_fixture import ServerFixture, updates_of
from tests.small_plant import an_update, plant


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def test_a_checkpoint_of_another_contract_is_rejected(site: ServerFixture) -> None:
    site.send(an_update(site.contract))
    site.run()
    other = plant({"mode": "formal", "epsilon_per_reading": 5})
    with (
        pytest.raises(InvalidState, match="another contract; put the old federation file back"),
        site.server(contract=other),
    ):
        pass


def test_a_recreated_log_is_rejected(site: ServerFixture) -> None:
    site.send(an_update(site.contract))
    site.run()
    for file in site.folder.glob("federation.db*"):
        file.unlink()
    with pytest.raises(InvalidState, match="the log was made anew"), site.server():
        pass


def test_updates_removed_before_they_were_read_raise_an_error_unless_gaps_are_accepted(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    site.send(*updates_of(site, ("attic", 1)))
    site.run()
    for n in range(2, 20):
        site.send(*updates_of(site, ("attic", n)))
    with site.server() as server, pytest.raises(OffsetOutOfRange, match="accept_gap = true"):
        server.step()
    site.settings = site.settings.model_copy(update={"accept_gap": True})
    site.run()
    assert site.snapshots()[-1].read_up_to == {0: 19}


def test_after_an_accepted_gap_clients_far_ahead_are_absorbed(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, accept_gap=True)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    site.send(*updates_of(site, ("attic", 1)))
    site.run()
    for n in range(5000, 5010):
        site.send(*updates_of(site, ("attic", n)))
    site.run()
    assert site.rejected() == {}
    assert site.snapshots()[-1].updates > 1


def test_a_stored_but_unpublished_snapshot_is_published_after_a_restart(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(*updates_of(site, ("attic", 1)))
    with site.server() as server:
        # The power goes between remembering and speaking.
        monkeypatch.setattr(server._outbox, "publish_pending", lambda: pytest.fail("cut"))
        with pytest.raises(pytest.fail.Exception):
            server.step()
    assert site.snapshots() == []
    site.run()
    assert [snapshot.updates for snapshot in site.snapshots()] == [1]


def test_an_oversized_snapshot_is_not_stored(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (update,) = updates_of(site, ("attic", 1))
    site.send(update)
    with site.server() as server:
        monkeypatch.setattr(Snapshot, "BYTES_MAX", len(update.encode()) + 1)
        with pytest.raises(MessageRejected, match="fewer nodes"):
            server.step()
        assert server._checkpoint.load() is None
    monkeypatch.undo()
    site.run()
    assert site.snapshots()[-1].updates == 1
