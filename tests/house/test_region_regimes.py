"""Regions whose clients answer what the upstream federation asks of regimes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from shoal.config.settings import load_config
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.house.region_federations import (
    REGIONS,
    UPSTREAM,
    WORLD,
    file_of,
    run_world,
    running_region,
    write_file,
)
from tests.house.small_federation import clock, write_readings


def test_regions_find_the_regimes_of_all_their_clients_together(tmp_path: Path) -> None:
    write_file(tmp_path, WORLD, models=["states"], times="public")
    number = 0
    for region, clients in REGIONS.items():
        more = UPSTREAM.format(above=WORLD, publish_s=86400.0)
        file = write_file(tmp_path, region, more, ["states"], times="public")
        for client in clients:
            state = (np.arange(700) + 37 * number) // 100 % 2
            noise = np.random.default_rng(number).normal(size=(700, 2))
            values = [10.0 + number, 50.0] + noise + 5.0 * state[:, None]
            write_readings(load_config(file), client, values.tolist(), notes_times=True)
            number += 1
    run_world(tmp_path)
    with ExitStack() as stack:
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock))
        )
        view = world.models()["states"].view
        assert world.status().rejected == {}
        assert view is not None
        assert view.regimes is not None
        assert len(view.centres) == 2
        np.testing.assert_allclose(view.regimes.dwell, 100, rtol=0.4)
        assert view.centre_mass.sum() > 2_500
        for name in REGIONS:
            region = stack.enter_context(
                running_region(file_of(tmp_path, name), ())
            ).server.models()["states"]
            assert region.view is not None
            assert region.snapshot is not None
            assert region.snapshot.reading_s == pytest.approx(1.0, abs=0.05)
            np.testing.assert_array_equal(region.view.identity, view.identity)
