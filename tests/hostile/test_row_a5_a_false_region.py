"""Row A5: no client can pose as a region, and a region adds up no more windows than its readings
make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.plan import CountingPlan
from shoal.algorithms.streaming import Arrays
from shoal.config.resolved import resolve
from shoal.privacy.count_noise import count_noise
from shoal.protocol.messages import Update
from shoal.protocol.regions import RegionUpdate
from tests.counted_contract import COUNTED, agreed
from tests.hostile.keyed_site import KeyedSite
from tests.server_node.rounds_harness import HEAPS, rows_of

EPSILON = 4.0
WINDOW = 400
CONTRACT = agreed(
    COUNTED | {"options": {"grow_readings": 800}}, counts_epsilon=EPSILON, window_readings=WINDOW
)
HONEST = 10


class CountedSite(KeyedSite):
    """Three clusters, found in windows of honest clients."""

    def find_clusters(self) -> None:
        self.send_windows(HONEST)
        assert self.active() == len(HEAPS)

    def send_windows(self, number: int, clients: Sequence[str] = ("attic",)) -> None:
        """Honest windows of each client one after the other, each counted under the newest plan."""
        noise = count_noise(EPSILON)
        for window, client in product(range(1, number + 1), clients):
            plan = CountingPlan.from_arrays(self.plan(), 2)
            rows = rows_of(window, WINDOW)
            counted = plan.count(rows, np.ones(WINDOW, dtype=np.bool_), client.encode(), window)
            private = counted.counts + noise.draw(
                client.encode() + window.to_bytes(4, "little"), len(counted.counts)
            )
            self.send(self.update(client, counted.update(private), WINDOW, window))
            self.run()

    def plan(self) -> Arrays:
        published = self.snapshots()
        return published[-1].arrays if published else DENSITY_TREE.server({}, 2).snapshot()

    def active(self) -> int:
        arrays = self.snapshots()[-1].arrays
        return int(arrays["active"].sum()) if bool(arrays["found"][0]) else 0

    def update(self, client: str, arrays: Arrays, readings: int, sequence: int = 1) -> Update:
        resolved = resolve(self.contract)
        return Update(
            federation=resolved.federation,
            contract=resolved.digest,
            model="counted",
            algorithm="density_tree",
            client=client,
            sequence=sequence,
            readings=readings,
            privacy=dict(resolved.models["counted"].statement),
            arrays=arrays,
            made_at=1e9,
        )

    def region_update(
        self, client: str, readings: int, windows: int, count: int, sequence: int = 1
    ) -> RegionUpdate:
        """An update that takes readings away in every cell."""
        plan = CountingPlan.from_arrays(self.plan(), 2)
        own = plan.count(np.full((1, 2), 0.5), np.ones(1, dtype=np.bool_), b"x", 1)
        arrays = own.update(np.full_like(own.counts, count))
        blocks = len(arrays["leaf"])
        arrays |= {
            "places": np.array([readings], dtype=np.int64),
            "count": arrays["count"].astype(np.int64),
            "windows": np.full(blocks, windows, dtype=np.int64),
            "exposure": np.full(blocks, readings / blocks),
        }
        update = self.update(client, arrays, readings, sequence)
        shared: dict[str, Any] = {
            field.name: getattr(update, field.name) for field in fields(update)
        }
        return RegionUpdate(**shared, regions=[[client, 1]])


@pytest.mark.parametrize("keyed", [False, True])
def test_a_client_that_poses_as_a_region_is_rejected_and_moves_nothing(
    tmp_path: Path, keyed: bool
) -> None:
    site = CountedSite(tmp_path, keyed, CONTRACT, regions=("north",))
    site.find_clusters()
    model = site.run()
    site.send(site.region_update("attic-2", 4000, windows=20, count=-2))
    assert site.run() == model
    site.delete_checkpoint()
    assert site.run(rebuild=True) == model
    assert site.reasons() == ["client"]


def test_a_region_cannot_claim_the_noise_of_more_windows_than_its_readings_make(
    tmp_path: Path,
) -> None:
    site = CountedSite(tmp_path, False, CONTRACT, regions=("north",))
    site.find_clusters()
    site.send(site.region_update("north", 4000, windows=4000, count=-10))
    site.run()
    assert site.reasons() == ["claims"]
    assert site.active() == len(HEAPS)


def test_named_regions_count_as_clients_beside_those_that_are_named_or_that_are_too_many(
    tmp_path: Path,
) -> None:
    for place, settings in enumerate(({"clients": ("attic",)}, {"clients_max": 1})):
        site = CountedSite(tmp_path / str(place), False, CONTRACT, regions=("north",), **settings)
        site.send_windows(1)
        site.send(site.region_update("north", 400, windows=1, count=0))
        site.run()
        assert site.snapshots()[-1].clients == 2
        assert site.reasons() == []


def test_a_named_region_that_claims_very_many_readings_leaves_clusters_active(
    tmp_path: Path,
) -> None:
    site = CountedSite(tmp_path, False, CONTRACT, regions=("north",))
    site.send_windows(HONEST, ("attic", "cellar", "garden", "hall"))
    site.run()
    assert site.active() == len(HEAPS)
    for number in range(1, 4):
        site.send(site.region_update("north", 100_000, windows=500, count=0, sequence=number))
    site.run()
    assert site.reasons() == []
    assert site.active() == len(HEAPS)


def test_a_region_cannot_take_readings_away_by_noise_that_adds_up(tmp_path: Path) -> None:
    site = CountedSite(tmp_path, False, CONTRACT, regions=("north",))
    site.send_windows(1)
    update = site.region_update("north", 100_000, windows=500, count=0)
    # Made for this test alone.
    update.arrays["count"][: update.arrays["cells"][0]] = -55  # type: ignore[index]  # an array
    site.send(update)
    site.run()
    assert site.reasons() == ["claims"]
