"""Replicas that share regions through Kafka: killed, started and stopped while updates come in."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from shoal.transports import open_log
from tests.house.processes import killed_on_exit, wait_until
from tests.house.regions import Committed, assigned, make_regions, replica, snapshot_values


def test_regions_publish_the_same_bits_whichever_replicas_are_killed_started_and_stopped_under_load(
    quix_streams: None, kafka_bootstrap: str, memory_folder: Path
) -> None:
    regions = make_regions(memory_folder, kafka_bootstrap, number=4, readings_each=400)
    part = -(-regions[0].total // 4)  # the last part is a little smaller
    first = replica(regions, "first")
    processes = [first]
    with (
        killed_on_exit(processes),
        closing(Committed(kafka_bootstrap, regions)) as committed,
        closing(open_log(regions[0].config.log)) as log,
    ):

        def feed() -> None:
            for region in regions:
                region.feed(log, part)

        feed()
        committed.wait(regions)

        processes.append(second := replica(regions, "second"))
        wait_until(lambda: assigned(second) > 0)
        feed()
        committed.wait(regions)

        assert assigned(first) > 0
        feed()
        first.kill()
        committed.wait(regions)

        processes[0] = first = first.restarted()
        feed()
        wait_until(lambda: assigned(second) < 4 * 4)
        assert second.stop() == 0
        committed.wait(regions)
        assert first.stop() == 0

    for region in regions:
        expected = snapshot_values(region, region.expected())
        assert region.fed == region.total
        assert committed.snapshots[region] == expected, region.file.parent.name
