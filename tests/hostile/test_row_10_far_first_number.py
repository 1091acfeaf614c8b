"""Row 10: an update in a client's name with the largest number there is does not make its own
updates repeated ones."""

from __future__ import annotations

from pathlib import Path

from shoal.kernels.constants import COUNT_MAX
from tests.server_node.server_fixture import ServerFixture, updates_of


def test_the_clients_own_updates_are_absorbed_whatever_number_was_sent_first(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    site.send(*updates_of(site, ("attic", COUNT_MAX - 5)))
    site.run()
    site.send(*updates_of(site, ("attic", 1), ("attic", 2), ("attic", 1), ("attic", 3)))
    site.run()
    assert site.snapshots()[-1].updates == 4
    with site.server() as node:
        assert node.models()["clusters"].clients.totals()[0][1] == 4
    assert not site.rejected()


def test_far_numbers_sent_between_the_clients_own_change_nothing_for_it(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=1000)
    far = [COUNT_MAX - 10_000 * n for n in range(1, 20)]
    named = [("attic", number) for n, message in enumerate(far, start=1) for number in (message, n)]
    site.send(*updates_of(site, *named))
    site.run()
    with site.server() as node:
        # What is no jump downwards from the newest run is refused; every number of the client's own
        # is processed.
        clients = node.models()["clusters"].clients
        assert all(clients.knows("attic", number) for number in range(1, 20))
    site.send(*updates_of(site, ("attic", 20)))
    site.run()
    assert site.snapshots()[-1].updates > 20


def test_a_known_client_cannot_be_moved_ahead(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    site.send(*updates_of(site, ("attic", 1), ("attic", COUNT_MAX - 5), ("attic", 2)))
    site.run()
    assert site.snapshots()[-1].updates == 2
    assert [dict(record.headers)["reason"] for record in site.rejected().values()] == [b"sequence"]
