"""A region is held to what a client is held to: signatures and the contract; and it contributes
nothing in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.keys import keys
from shoal.config.settings import load_config
from shoal.errors import ContractDiffers
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from tests.house.counting_federation import rooms
from tests.house.region_federations import (
    REGIONS,
    UPSTREAM,
    WORLD,
    RegionNodes,
    file_of,
    running_region,
    write_file,
    write_world,
)
from tests.house.small_federation import clock, write_readings

MODEL = "points"
READINGS = 300


def copy_of(folder: Path, name: str, region: str, *changes: tuple[str, str]) -> None:
    """Give a region a copy of the file of another federation, as a client of that has it, as its
    upstream file."""
    text = file_of(folder, name).read_text(encoding="utf-8").partition("[upstream]")[0]
    for old, new in (("sqlite:federation.db", f"sqlite:../{name}/federation.db"), *changes):
        assert old in text
        text = text.replace(old, new)
    (file_of(folder, region).parent / "above.toml").write_text(text, encoding="utf-8")
    file = file_of(folder, region)
    own = file.read_text(encoding="utf-8").replace(f'"../{name}/federation.toml"', '"above.toml"')
    file.write_text(own, encoding="utf-8")


def run_to_end(nodes: Sequence[RegionNodes | ServerNode]) -> None:
    while any([node.step() for node in nodes]):  # noqa: C419 - each takes its step
        pass


def known(server: ServerNode) -> dict[str, int]:
    """client or region -> readings that the server has absorbed of it."""
    return {name: readings for name, _, readings, _ in server.models()[MODEL].clients.totals()}


def test_an_upstream_federation_with_signatures_rejects_a_region_without_one(
    tmp_path: Path,
) -> None:
    write_world(tmp_path, READINGS, models=[MODEL])
    world = write_file(tmp_path, WORLD, 'client_keys = "keys"\n', [MODEL])
    CliRunner().invoke(
        keys, ["new", "--config", str(world), "--name", "north"], catch_exceptions=False
    )
    key = 'folder = "clients"\nsigning_key_file = "../world/keys/{client}.key"'
    copy_of(tmp_path, WORLD, "north", ('folder = "clients"', key))
    with ExitStack() as stack:
        regions = [
            stack.enter_context(running_region(file_of(tmp_path, name), REGIONS[name]))
            for name in REGIONS
        ]
        server = stack.enter_context(resumed(open_server(load_config(world), clock=clock)))
        run_to_end([*regions, server])
        assert known(server) == {"north": 2 * READINGS}
        assert set(server.status().rejected) == {"signature"}


def test_a_region_with_another_contract_of_the_upstream_federation_than_its_own_is_rejected(
    tmp_path: Path,
) -> None:
    """The upstream federation has changed its file since the region was given a copy of it."""
    write_world(tmp_path, READINGS, models=[MODEL])
    older = ("epsilon_per_reading = 200", "epsilon_per_reading = 190")
    copy_of(tmp_path, WORLD, "south", older)
    south = file_of(tmp_path, "south")
    south.write_text(south.read_text(encoding="utf-8").replace(*older), encoding="utf-8")
    with ExitStack() as stack:
        regions = [
            stack.enter_context(running_region(file_of(tmp_path, name), REGIONS[name]))
            for name in REGIONS
        ]
        # Before the upstream server has published its contract, with which a region compares its
        # own.
        run_to_end(regions)
        server = stack.enter_context(
            resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock))
        )
        run_to_end([server])
        assert known(server) == {"north": 2 * READINGS}
        assert set(server.status().rejected) == {"contract"}
        with pytest.raises(
            ContractDiffers, match="epsilon_per_reading: ours 190; the federation's 200"
        ):
            run_to_end(regions)


def test_a_ring_of_federations_is_found_by_their_updates_and_counts_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each region has a copy of the file above it, without the section that leads on: as on three
    machines."""
    ring = {"alps": "baltic", "baltic": "cape", "cape": "alps"}
    for seed, (name, above) in enumerate(ring.items()):
        file = write_file(tmp_path, name, UPSTREAM.format(above=above, publish_s=86400), [MODEL])
        write_readings(load_config(file), f"client-{name}", rooms(READINGS, seed))
    for name, above in ring.items():
        copy_of(tmp_path, above, name)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(running_region(file_of(tmp_path, name), [f"client-{name}"]))
            for name in ring
        ]
        run_to_end(nodes)
        contributed = {}
        for node, name in zip(nodes, ring, strict=True):
            totals = known(node.server)
            assert totals.pop(f"client-{name}") == READINGS
            (below,) = {key for key, above in ring.items() if above == name}
            contributed[below] = totals.pop(below, 0)
            assert totals == {}
            assert contributed[below] <= (len(ring) - 1) * READINGS
            assert name not in "/".join(
                region.path for region in node.server.status().regions
            ).split("/")
    assert contributed["alps"] == READINGS
    assert contributed["baltic"] > READINGS, (
        "also what has come from alps; cape, where the ring closes, may give none"
    )
    refused = [
        record.__dict__["fields"]
        for record in caplog.records
        if record.getMessage() == "contribution_rejected"
    ]
    assert {record["reason"] for record in refused} == {"cycle"}
