"""Row A1: an observer publishes an operator's release, or unlearning, again byte for byte, and
nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.server_node.ingest.requests import quarantine_records, request_signer
from tests.hostile.keyed_site import KeyedSite
from tests.server_node.server_fixture import updates_of
from tests.server_node.test_quarantine import absorbed_of, reasons, signed_site


def test_a_signed_request_that_is_published_again_changes_nothing(tmp_path: Path) -> None:
    site = signed_site(tmp_path)
    sign = request_signer(site.settings)

    def request(action: str, made_at: float) -> tuple[Any, ...]:
        (record,) = quarantine_records(site.contract, "cellar", action, "", made_at)
        return record.key.decode(), record.value, record.headers + sign(record)

    begun = request("quarantine", 1e9)
    released = request("release", 1e9 + 1)
    again = request("quarantine", 1e9 + 2)
    site.publish(begun, released, again, released, begun, released)
    site.run()
    assert reasons(site) == {"repeated": 3}
    with site.server() as server:
        assert [entry.client for entry in server.status().quarantined] == ["cellar"]
    site.publish(released)
    site.run()
    assert reasons(site) == {"repeated": 4}, "the checkpoint keeps what was taken"
    site.run(rebuild=True)
    with site.server() as server:
        assert [entry.client for entry in server.status().quarantined] == ["cellar"], (
            "a rebuild takes the same requests"
        )


def test_an_unlearning_that_is_published_again_after_a_release_erases_nothing_more(
    tmp_path: Path,
) -> None:
    site = KeyedSite(tmp_path, keyed=True)
    site.send(*updates_of(site, ("attic", 1), ("cellar", 1)))
    sign = request_signer(site.settings)

    def request(action: str, made_at: float) -> tuple[Any, ...]:
        (record,) = quarantine_records(site.contract, "cellar", action, "", made_at)
        return record.key.decode(), record.value, record.headers + sign(record)

    unlearn = request("unlearn", 1e9)
    release = request("release", 1e9 + 1)
    site.publish(unlearn, release)
    site.run()
    site.send(*updates_of(site, ("cellar", 2), ("cellar", 3)))
    model = site.run()
    assert absorbed_of(site, "cellar") == 2
    site.publish(unlearn, unlearn)
    assert site.run() == model
    assert absorbed_of(site, "cellar") == 2
