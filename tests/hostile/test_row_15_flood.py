"""Row 15: a client that sends without end has a quota; the others are read, and a rebuild refuses
the same records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config.settings import ServerSettings
from shoal.errors import MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import REQUEST_BYTES_MAX, ClusterName, Update
from shoal.server_node.ingest.quotas import BURST_S, Quotas
from shoal.transports.base import Record
from tests.server_node.server_fixture import ServerFixture, models_of, updates_of


def record(at_s: float, partition: int = 0) -> Record:
    return Record("plant.updates", partition, 0, round(1000 * at_s), b"clusters", b"", ())


def passes(quotas: Quotas, client: str, at_s: float, partition: int = 0) -> bool:
    try:
        quotas.check(client, record(at_s, partition))
    except MessageRejected as refused:
        return refused.reason != "quota"
    return True


def test_a_client_may_send_its_rate_and_more_after_a_rest() -> None:
    quotas = Quotas(ServerSettings(client_updates_per_s=2))
    burst = round(2 * BURST_S)
    assert sum(passes(quotas, "flood", 1e9) for _ in range(1000)) == burst
    assert passes(quotas, "calm", 1e9), "each client has its own"
    assert passes(quotas, "flood", 1e9, partition=1), "and in each partition"
    assert sum(passes(quotas, "flood", 1e9 + 10) for _ in range(1000)) == 20
    assert not passes(quotas, "flood", 1e9 - 10**6), "a time before the newest one gives nothing"
    restored = Quotas(ServerSettings(client_updates_per_s=2))
    restored.restore(unpack(pack(quotas.state())))
    assert not passes(restored, "flood", 1e9 + 10)
    assert sum(passes(restored, "flood", 1e9 + 10**6) for _ in range(1000)) == burst


def test_without_a_rate_there_is_no_limit() -> None:
    quotas = Quotas(ServerSettings(client_updates_per_s=0))
    assert all(passes(quotas, "flood", 1e9) for _ in range(100_000))


def test_of_a_flood_of_junk_few_copies_are_kept_and_all_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rate = 0.5
    site = ServerFixture(tmp_path, rejected_kept_per_s=rate)
    junk = [("clusters", bytes([0xC1]) * 40, ClusterName.headers())] * 300
    update = updates_of(site, ("attic", 1))[0]
    foreign = ("clusters", replace(update, federation="other").encode(), Update.headers())
    site.publish(*junk, foreign)
    site.send(update)
    times = [record.timestamp_ms / 1000 for record in site.records_in(site.contract.updates_topic)]
    with site.server() as node:
        while node.step():
            pass
        counted = node.metrics.registry.get_sample_value
        labels = {"reason": "malformed"}
        assert counted("shoal_rejected_messages_total", labels) == 300
        not_kept = counted("shoal_rejected_messages_not_kept_total", labels)
        first = models_of(node)
    kept = site.rejected()
    reasons = [dict(record.headers)["reason"] for record in kept.values()]
    assert reasons.count(b"federation") == 1, "a flood for one reason hides no other one"
    assert reasons.count(b"malformed") == 300 - not_kept
    assert rate * BURST_S <= 300 - not_kept <= rate * (BURST_S + times[-1] - times[0]) + 1
    fields = [vars(event)["fields"] for event in caplog.records if "not_kept" in event.message]
    assert sum(field["messages"] for field in fields) == not_kept
    assert fields[-1]["last"] == 299
    site.delete_checkpoint()
    assert site.run(rebuild=True) == first
    assert site.rejected().keys() == kept.keys(), "a rebuild keeps the same"


def test_a_request_that_is_too_large_is_not_decoded(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    request = ClusterName("plant", site.contract.digest, "clusters", 0, "x", made_at=1e9)
    table = {**unpack(request.encode()), "more": bytes(REQUEST_BYTES_MAX)}
    site.publish(("clusters", pack(table), ClusterName.headers()))
    site.run()
    (record,) = site.rejected().values()
    assert dict(record.headers)["reason"] == b"oversized"


def test_made_up_names_fill_no_memory() -> None:
    quotas = Quotas(ServerSettings(clients_max=10))
    for number in range(1000):
        passes(quotas, f"made-up-{number}", 1e9)
    assert len(pack(quotas.state())) < 2000


def test_a_damaged_state_is_an_error() -> None:
    with pytest.raises(Exception, match="quotas are damaged"):
        Quotas(ServerSettings()).restore({"clients": [[1]]})


def test_a_flood_is_cut_and_the_others_are_read(tmp_path: Path) -> None:
    # Of the first thirty records at once, and then one in two seconds.
    site = ServerFixture(tmp_path, client_updates_per_s=0.5, snapshot_updates=10_000)
    flood = [("flood", number) for number in range(1, 201)]
    calm = [(name, 1) for name in ("attic", "cellar", "garden")]
    site.send(*updates_of(site, *flood[:100], *calm, *flood[100:]))
    first = site.run()
    with site.server() as node:
        totals = {
            client: updates for client, updates, *_ in node.models()["clusters"].clients.totals()
        }
    assert {client: totals[client] for client, _ in calm} == dict.fromkeys(
        ("attic", "cellar", "garden"), 1
    )
    assert 30 <= totals["flood"] < 200
    rejected = set(site.rejected())
    assert len(rejected) == 200 - totals["flood"]
    site.delete_checkpoint()
    assert site.run(rebuild=True) == first
    assert set(site.rejected()) == rejected


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_a_flood_delays_the_update_of_another_client_by_no_more_records_than_its_quota(
    tmp_path: Path, rate: float
) -> None:
    site = ServerFixture(
        tmp_path, client_updates_per_s=rate, snapshot_updates=1, batch_updates_max=1
    )
    site.send(*updates_of(site, *(("flood", number) for number in range(1, 201)), ("calm", 1)))
    times = [record.timestamp_ms / 1000 for record in site.records_in(site.contract.updates_topic)]
    site.run()
    (shown,) = [snapshot for snapshot in site.snapshots() if snapshot.clients == 2]
    before = shown.updates - 1
    assert before <= rate * (BURST_S + times[-1] - times[0])
    assert before >= min(200, rate * BURST_S)
