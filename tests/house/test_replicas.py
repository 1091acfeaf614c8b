"""Replicas that share regions through Kafka: killed, started and stopped while updates come in."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from kafka import KafkaAdminClient, TopicPartition

from shoal.protocol.published_contract import CONTRACT_KEY
from shoal.transports import open_log
from tests.house.processes import killed_on_exit, wait_until
from tests.house.regions import (
    PARTITIONS,
    Committed,
    assigned,
    make_regions,
    replica,
    snapshot_values,
)
from tests.house.small_federation import all_records
from tests.kafka_broker import Broker, free_ports


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.integration)])
def test_regions_publish_the_same_bits_whichever_replicas_are_killed_started_and_stopped_under_load(
    quix_streams: None,
    kafka_bootstrap: str,
    memory_folder: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = pytest.importorskip("tests.telemetry.collector").Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    regions = make_regions(memory_folder, kafka_bootstrap, number=number, readings_each=400)
    part = -(-regions[0].total // 4)  # the last part is a little smaller
    first = replica(regions, "first")
    processes = [first]
    with (
        closing(collector),
        killed_on_exit(processes),
        closing(Committed(kafka_bootstrap, regions)) as committed,
        closing(open_log(regions[0].config.log)) as log,
    ):

        def feed() -> None:
            for region in regions:
                region.feed(log, part)

        feed()
        regions[0].feed_nonsense(log)
        committed.wait(regions)

        processes.append(second := replica(regions, "second"))
        wait_until(lambda: bool(assigned(second)))
        feed()
        committed.wait(regions)

        assert assigned(first)
        feed()
        first.kill()
        committed.wait(regions)

        processes[0] = first = first.restarted()
        feed()
        wait_until(lambda: len(assigned(second)) < len(regions) * PARTITIONS)
        assert second.stop() == 0
        committed.wait(regions)
        assert first.stop() == 0

    for region in regions:
        expected = snapshot_values(region, region.expected())
        assert region.fed == region.total
        assert committed.snapshots[region] == expected, region.file.parent.name
        # What was published before a kill and never committed is committed later, to the bit.
        seen = all_records(region.config.log.address, region.config.contract.snapshots_topic)
        assert {message.value for message in seen if message.key != CONTRACT_KEY} == set(expected)
    rejected = all_records(regions[0].config.log.address, regions[0].config.contract.rejected_topic)
    assert len({record.key for record in rejected}) == 4
    exported = collector.resources()
    assert {resource["service.name"] for resource in exported} == {"shoal-replica"}
    assert {resource["service.instance.id"] for resource in exported} == {"first"}
    federations = [region.config.contract.federation for region in regions]
    assert [resource["shoal.federation"] for resource in exported] == federations
    spans = collector.spans_of_resources()
    traced = {resource["shoal.federation"] for resource, span in spans if span.name == "snapshot"}
    assert traced == set(federations)


@pytest.mark.integration
@pytest.mark.parametrize("harm", ["damaged", "absent"])
def test_a_store_that_is_lost_is_made_again_from_the_changelog(
    quix_streams: None, kafka_bootstrap: str, memory_folder: Path, harm: str
) -> None:
    (region,) = regions = make_regions(memory_folder, kafka_bootstrap, number=1, readings_each=200)
    processes = [replica(regions, "first")]
    with (
        killed_on_exit(processes),
        closing(Committed(kafka_bootstrap, regions)) as committed,
        closing(open_log(region.config.log)) as log,
    ):
        region.feed(log, region.total // 2)
        committed.wait(regions)
        processes[0].kill()
        store = region.config.replica.folder / "first"
        files = [path for path in store.rglob("*") if path.is_file()]
        assert files
        for path in files:
            if harm == "absent":
                path.unlink()
            else:
                path.write_bytes(b"\xa5" * path.stat().st_size)
        processes[0] = processes[0].restarted()
        region.feed(log, region.total - region.total // 2)
        committed.wait(regions)
        assert processes[0].stop() == 0
    assert committed.snapshots[region] == snapshot_values(region, region.expected())


@pytest.mark.integration
def test_a_replica_goes_on_after_an_outage_and_ends_where_retention_was_faster(
    quix_streams: None, own_broker: Broker, memory_folder: Path
) -> None:
    (region,) = regions = make_regions(
        memory_folder, own_broker.bootstrap, number=1, readings_each=200
    )
    part = -(-region.total // 3)
    port = free_ports(1)
    text = region.file.read_text(encoding="utf-8")
    region.file.write_text(f"{text}metrics_port = {port}\n", encoding="utf-8")
    federation = region.config.contract.federation

    def shows(series: str, value: int) -> bool:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return any(line.startswith(series) and line.endswith(f" {value:.1f}") for line in lines)

    processes = [replica(regions, "only")]
    with (
        killed_on_exit(processes),
        closing(Committed(own_broker.bootstrap, regions)) as committed,
        closing(open_log(region.config.log)) as log,
    ):
        region.feed(log, part)
        committed.wait(regions)

        own_broker.kill()
        own_broker.start()
        region.feed(log, part)
        committed.wait(regions)
        assert committed.snapshots[region] == snapshot_values(region, region.expected())
        of_region = f'federation="{federation}"'
        wait_until(lambda: shows(f"shoal_consumer_lag_records{{{of_region}", 0))
        assert shows(f'shoal_updates_total{{{of_region},result="absorbed"', region.fed)
        assert processes[0].stop() == 0

        region.feed(log, part)
        topic = region.config.contract.updates_topic
        with closing(KafkaAdminClient(bootstrap_servers=own_broker.bootstrap)) as admin:
            ends = {
                TopicPartition(topic, place): end
                for place, (_, end) in log.bounds(topic).items()
                if end
            }
            admin.delete_records(ends)
        processes[0] = processes[0].restarted()
        processes[0].end(4)
        assert "removed by retention before a replica had read them" in processes[0].log_text()
