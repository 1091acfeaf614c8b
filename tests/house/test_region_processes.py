"""Separate processes of an upstream federation and its regions: a region's server is killed, and
nothing is lost."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from pathlib import Path

from shoal.config.settings import load_config
from shoal.protocol.codec import pack
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.region_federations import REGIONS, WORLD, file_of, write_world
from tests.house.small_federation import clock
from tests.house.test_regions import contributions_to, updates_in

MODEL = "cells"


def test_the_server_of_a_region_that_is_killed_goes_on_and_every_reading_counts_once(
    tmp_path: Path,
) -> None:
    write_world(tmp_path, 400, publish_s=0.2, models=[MODEL])

    def server(name: str) -> Process:
        arguments = ["server", "--config", str(file_of(tmp_path, name)), "--no-page"]
        return Process(arguments, tmp_path / f"{name}.txt")

    def client(region: str, name: str) -> Process:
        arguments = [
            "client",
            "--config",
            str(file_of(tmp_path, region)),
            "--name",
            name,
            "--until-idle",
            "1",
        ]
        return Process(arguments, tmp_path / f"{name}.txt")

    def in_world(region: str) -> int:
        """Readings of a region in the upstream federation's log, each contribution once."""
        known = {
            update.sequence: update.readings
            for update in contributions_to(tmp_path).get((region, MODEL), [])
        }
        return sum(known.values())

    def of_clients(region: str) -> int:
        """Readings of the clients of a region in the region's log, each update once."""
        updates = updates_in(load_config(file_of(tmp_path, region)))
        return sum(
            {(update.client, update.sequence): update.readings for update in updates}.values()
        )

    for name in (WORLD, *REGIONS):
        config = load_config(file_of(tmp_path, name))
        with closing(open_log(config.log)) as log:
            ensure_topics(log, config.contract, config.log)
    processes = [server(name) for name in (WORLD, *REGIONS)]
    with killed_on_exit(processes):
        clients = [client(region, name) for region, names in REGIONS.items() for name in names]
        processes += clients
        wait_until(lambda: in_world("north") > 0)
        processes[1].kill()
        processes[1] = processes[1].restarted()
        for process in clients:
            process.end()
        wait_until(lambda: all(0 < of_clients(region) == in_world(region) for region in REGIONS))
        # Until it has restored its checkpoint, a signal ends it before it can end by itself.
        wait_until(lambda: "checkpoint_restored" in processes[1].log_text())
        for process in processes[: 1 + len(REGIONS)]:
            assert process.stop() == 0, process.log_text()
    contents = defaultdict(set)
    for (region, _), updates in contributions_to(tmp_path).items():
        for update in updates:
            contents[region, update.sequence].add(pack(dict(vars(update))))
    assert all(len(same) == 1 for same in contents.values()), (
        "what is published again has the same bytes"
    )
    with resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock)) as world:
        while world.step():
            pass
        known = {name: readings for name, _, readings, _ in world.models()[MODEL].clients.totals()}
        assert world.status().rejected == {}
    assert known == {region: of_clients(region) for region in REGIONS}
