"""Row B1: the names of regions in updates fill neither the metrics nor the memory behind them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from shoal.protocol.regions import REGIONS_MAX, RegionUpdate
from shoal.server_node.monitoring import CLIENTS_LABELLED_MAX
from shoal.telemetry.metrics import ServerMetrics
from tests.hostile.keyed_site import KeyedSite
from tests.small_plant import an_update


def test_the_names_of_regions_that_are_gone_leave_the_metrics(tmp_path: Path) -> None:
    site = KeyedSite(tmp_path, False, regions=("north", "south"))
    metrics = ServerMetrics()
    with site.server(metrics=metrics) as node:
        for sequence in range(1, 4):
            for name in ("north", "south"):
                update = an_update(site.contract, name, sequence)
                shared: dict[str, Any] = {
                    field.name: getattr(update, field.name) for field in fields(update)
                }
                arrays = update.arrays | {
                    "part": np.array([len(update.arrays["count"])], dtype=np.int64)
                }
                below = [[f"{name}/{sequence}-{number}", 1] for number in range(REGIONS_MAX - 1)]
                site.send(RegionUpdate(**{**shared, "arrays": arrays}, regions=[[name, 1], *below]))
            while node.step():
                pass
            assert len(node.status().regions) == 2 * REGIONS_MAX
            (family,) = [
                family
                for family in metrics.registry.collect()
                if family.name == "shoal_region_clients"
            ]
            shown = [sample.labels["region"] for sample in family.samples]
            assert len(shown) == CLIENTS_LABELLED_MAX
            assert all(path == "north" or path.startswith(f"north/{sequence}-") for path in shown)
    assert site.reasons() == []
