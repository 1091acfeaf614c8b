"""Row B6: names and all other requests are signed where clients sign, taken once, and have a
quota."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState
from shoal.protocol.messages import ClusterName, Update
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.signatures import HEADER, signature
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.server_node.ingest.quotas import BURST_S
from shoal.server_node.ingest.requests import REQUESTS, TakenRequests, request_signer
from shoal.transports.base import Headers
from tests.hostile.keyed_site import KeyedSite
from tests.server_node.server_fixture import updates_of
from tests.server_node.test_quarantine import ask

MOMENTS = itertools.count(1_000_000_000.0)
Published = tuple[str, bytes, Headers]


def named(site: KeyedSite, name: str, *, signed: bool = True) -> Published:
    """A request to name the cluster 0, as `shoal name` and the page publish it."""
    request = ClusterName("plant", site.contract.digest, "clusters", 0, name, made_at=next(MOMENTS))
    headers = ClusterName.headers()
    record = OutboxRecord(site.contract.updates_topic, request.encode(), b"clusters", headers)
    more = request_signer(site.settings)(record) if signed else ()
    return key_of(site), request.encode(), headers + more


def key_of(site: KeyedSite) -> str:
    """The key that all that publish requests give them."""
    return site.contract.update_key("clusters").decode()


def name_of(site: KeyedSite) -> str:
    with site.server() as node:
        return node.status().models["clusters"].lineage.clusters[0].name


def site_with_a_cluster(folder: Path, keyed: bool, **settings: float) -> KeyedSite:
    site = KeyedSite(folder, keyed, **settings)
    site.send(*updates_of(site, ("attic", 1), ("attic", 2)))
    site.run()
    return site


def test_where_clients_sign_only_an_operator_names_clusters(tmp_path: Path) -> None:
    site = site_with_a_cluster(tmp_path, keyed=True)
    key, value, headers = named(site, "forged", signed=False)
    own = signature(b"attic".ljust(32, b"\0"), site.contract.updates_topic, value, ClusterName.TYPE)
    as_update = signature(
        b"attic".ljust(32, b"\0"), site.contract.updates_topic, value, Update.TYPE
    )
    site.publish((key, value, headers), (key, value, (*headers, (HEADER, own))))
    site.publish((key, value, (*headers, (HEADER, as_update))), named(site, "north"))
    site.run()
    assert (name_of(site), site.reasons()) == ("north", ["signature"] * 3)


def test_every_request_is_signed_where_clients_sign(tmp_path: Path) -> None:
    sign = request_signer(ServerSettings(client_keys=tmp_path))
    for kind in REQUESTS:
        record = OutboxRecord("plant.updates", b"value", b"clusters", kind.message_type.headers())
        assert sign(record)[0][0] == HEADER, kind
    assert sign(OutboxRecord("plant.snapshots", b"value", b"clusters", Update.headers())) == ()


@pytest.mark.parametrize("keyed", [False, True])
def test_a_name_that_is_published_again_changes_nothing(tmp_path: Path, keyed: bool) -> None:
    site = site_with_a_cluster(tmp_path, keyed)
    first = named(site, "north")
    second = named(site, "south")
    site.publish(first, second, first)
    site.run()
    site.publish(second, first)  # what was taken is in the checkpoint
    site.run()
    assert (name_of(site), site.reasons()) == ("south", ["repeated"] * 3)
    site.delete_checkpoint()
    site.run(rebuild=True)
    assert (name_of(site), site.reasons()) == (
        "south",
        ["repeated"] * 3,
    ), "and in a rebuild the same"
    ask(site, "attic", "unlearn")
    site.run()
    assert site.reasons() == ["repeated"] * 3, (
        "nor do requests that are read once more keep themselves out"
    )


def test_a_name_from_the_future_does_not_keep_others_from_being_newer(tmp_path: Path) -> None:
    site = site_with_a_cluster(tmp_path, keyed=False)
    for made_at, name in ((2.5e11, "for ever"), (time.time(), "now")):
        request = ClusterName("plant", site.contract.digest, "clusters", 0, name, made_at=made_at)
        site.publish(("clusters", request.encode(), ClusterName.headers()))
    site.run()
    assert (name_of(site), site.reasons()) == ("now", ["malformed"])


@pytest.mark.parametrize("keyed", [False, True])
def test_requests_of_each_type_have_a_quota_which_repeated_ones_do_not_use_up(
    tmp_path: Path, keyed: bool
) -> None:
    site = site_with_a_cluster(tmp_path, keyed, requests_taken_per_s=0.1)
    burst = round(0.1 * BURST_S)
    first = named(site, "first")
    site.publish(*[first] * 50, *(named(site, f"name {number}") for number in range(50)))
    site.run()
    refused = site.reasons().count("quota")
    assert 30 < refused <= 50 - burst + 1
    assert name_of(site) == f"name {49 - refused}"
    ask(site, "attic", "quarantine")
    with site.server() as node:
        node.step()
        assert len(node.status().quarantined) == 1, (
            "a flood of names takes nothing from other requests"
        )
    reasons = site.reasons()
    site.delete_checkpoint()
    site.run(rebuild=True)
    assert site.reasons() == reasons


def test_requests_above_their_quota_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """To read one takes several times as long: 30 000 delayed an honest update by seconds."""
    site = site_with_a_cluster(tmp_path, keyed=False, requests_taken_per_s=0.1)
    burst = round(0.1 * BURST_S)
    broken = (b"\xc1 is no message", ClusterName.headers())
    # Under the key of no model, a flood takes nothing from what operators publish.
    site.publish(*[("any", *broken)] * 50, named(site, "north"))
    site.run()
    assert (name_of(site), site.reasons()) == (
        "north",
        ["malformed"] * burst + ["quota"] * (50 - burst),
    )
    # Under that key one after the other is taken until the quota ends, and the rest is not read.
    site.publish(*[named(site, f"name {number}") for number in range(burst)])
    site.publish(*[(key_of(site), *broken)] * 50)
    site.run()
    assert site.reasons()[50:] == ["quota"] * 51
    reasons = site.reasons()
    site.delete_checkpoint()
    site.run(rebuild=True)
    assert site.reasons() == reasons


def test_a_flood_of_refused_records_is_not_stored_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock alone decides, and the flood is not read again after it."""
    saved: list[bytes] = []
    save = Checkpoint.save

    def counted(checkpoint: Checkpoint, *state: Any) -> int:
        saved.append(b"")
        return save(checkpoint, *state)

    monkeypatch.setattr(Checkpoint, "save", counted)
    site = site_with_a_cluster(
        tmp_path, keyed=False, rejected_kept_per_s=1.0 / BURST_S, batch_updates_max=5
    )
    site.publish(*[("any", b"\xc1", ClusterName.headers())] * 60)
    site.send(*updates_of(site, ("attic", 3)))
    saved.clear()
    site.run()
    stored = len(saved)
    # The copy of the first, and the update behind all.
    assert stored <= 3, "13 batches"
    saved.clear()
    site.run()
    assert not saved
    assert site.reasons() == ["malformed"]


def test_requests_about_what_is_not_there_fill_no_register(tmp_path: Path) -> None:
    site = site_with_a_cluster(tmp_path, keyed=False)
    for number in range(20):
        request = ClusterName(
            "plant", site.contract.digest, "clusters", 10**6 + number, "x", made_at=next(MOMENTS)
        )
        site.publish(("clusters", request.encode(), ClusterName.headers()))
    site.run()
    with site.server() as node:
        assert node._taken.state() == {"newest": {}}
    assert site.reasons() == ["cluster"] * 20


def test_a_damaged_list_of_taken_requests_is_not_restored() -> None:
    taken = TakenRequests()
    taken.remember(
        QuarantineRequest("plant", "d", "clusters", "attic", "quarantine", "", made_at=1.0)
    )
    restored = TakenRequests()
    restored.restore(taken.state())
    assert restored.state() == taken.state()
    with pytest.raises(InvalidState, match="newest must be a mapping"):
        restored.restore({"newest": [["quarantine", "clusters"]]})
