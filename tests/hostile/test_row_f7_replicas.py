"""Row F7: two replicas under one name, on one machine or on two, and records that only replicas
write, forged.

Kafka fences the older one of two producers with one transactional id. Both go on trying; what is
committed is exact.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from shoal.server_node.replicas.replica_command import changelog_topic
from shoal.transports import open_log
from tests.house.processes import Process, killed_on_exit
from tests.house.regions import Committed, make_regions, replica, snapshot_values


def elsewhere(process: Process, folder: Path) -> Process:
    """The same replica with a folder of its own for its state, as on another machine."""
    files = []
    for file in (Path(argument) for argument in process.arguments if argument.endswith(".toml")):
        text = file.read_text(encoding="utf-8")
        assert "[replica]" in text
        copy = file.with_name(f"elsewhere-{file.name}")
        copy.write_text(
            re.sub(r"\[replica\]\n(folder = .*\n)?", f'[replica]\nfolder = "{folder}"\n', text),
            "utf-8",
        )
        files.append((str(file), str(copy)))
    arguments = process.arguments
    for before, after in files:
        arguments = [after if argument == before else argument for argument in arguments]
    return Process(arguments, folder.with_suffix(".txt"))


@pytest.mark.integration
@pytest.mark.parametrize("apart", [True, False], ids=["two machines", "one machine"])
def test_two_replicas_of_one_name_commit_each_update_once(
    quix_streams: None, kafka_bootstrap: str, memory_folder: Path, apart: bool
) -> None:
    (region,) = regions = make_regions(memory_folder, kafka_bootstrap, number=1, readings_each=300)
    part = -(-region.total // 3)
    processes = [replica(regions, "twin")]
    with (
        killed_on_exit(processes),
        closing(Committed(kafka_bootstrap, regions)) as committed,
        closing(open_log(region.config.log)) as log,
    ):
        region.feed(log, part)
        committed.wait(regions)
        processes.append(
            elsewhere(processes[0], memory_folder / "other") if apart else processes[0].restarted()
        )
        region.feed(log, part)
        committed.wait(regions)
        assert any(process.running() for process in processes)
        survivors = [process for process in processes if process.running()]
        if len(survivors) == 2:
            survivors[0].kill()
        region.feed(log, part)
        committed.wait(regions)
    assert region.fed == region.total
    assert committed.snapshots[region] == snapshot_values(region, region.expected())


@pytest.mark.integration
def test_a_changelog_that_another_has_written_into_ends_a_replica_in_words(
    quix_streams: None, kafka_bootstrap: str, memory_folder: Path
) -> None:
    (region,) = regions = make_regions(memory_folder, kafka_bootstrap, number=1, readings_each=300)
    first = replica(regions, "first")
    with (
        killed_on_exit([first]),
        closing(Committed(kafka_bootstrap, regions)) as committed,
        closing(open_log(region.config.log)) as log,
    ):
        region.feed(log, region.total)
        committed.wait(regions)
        first.kill()
        changelog = changelog_topic(
            region.config.replica.group, region.config.contract.updates_topic
        )
        log.publish(changelog, b"{}", b"a key of another", ())
        log.flush()
        second = replica(regions, "second")
        second.end(5)
        assert "that no replica has written" in second.log_text()
