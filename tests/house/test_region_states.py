"""Regions whose clients share states: the sums of each are passed on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks.states_streams import dwells
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

N = 2_100
"""readings of a client: the window is found from 1 000, and states are looked for after 700"""


def without_noise(file: Path) -> None:
    """Noise is by a key of the federation, and other noise in each run."""
    text = file.read_text(encoding="utf-8")
    noisy = text[text.index('mode = "formal"') : text.index("times =")]
    file.write_text(text.replace(noisy, 'mode = "off"\n'), encoding="utf-8")


@pytest.mark.integration
def test_a_state_has_one_number_in_a_federation_of_regions(tmp_path: Path) -> None:
    without_noise(write_file(tmp_path, WORLD, models=["states"], times="public"))
    number = 0
    for region, clients in REGIONS.items():
        more = UPSTREAM.format(above=WORLD, publish_s=86400.0)
        file = write_file(tmp_path, region, more, ["states"], times="public")
        without_noise(file)
        for client in clients:
            state = dwells(np.random.default_rng(number), N, 2, 90)
            noise = np.random.default_rng([number, 1]).normal(size=(N, 2))
            values = [10.0 + number, 50.0] + noise + 5.0 * state[:, None]
            write_readings(load_config(file), client, values.tolist(), notes_times=True)
            number += 1
    run_world(tmp_path)
    with ExitStack() as stack:
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock))
        )
        model = world.models()["states"]
        assert world.status().rejected == {}
        assert model.view is not None
        assert model.view.states is not None
        assert model.snapshot is not None
        assert model.snapshot.arrays["clients"].tolist() == [2, 2], "of both regions"
        np.testing.assert_allclose(model.view.states.dwell, 90, rtol=0.4)
        assert 0.97 * 4 * N < model.view.centre_mass.sum() <= 4 * N
        for name in REGIONS:
            region = stack.enter_context(
                running_region(file_of(tmp_path, name), ())
            ).server.models()["states"]
            assert region.snapshot is not None
            assert region.snapshot.reading_s == pytest.approx(1.0, abs=0.05)
            assert region.snapshot.arrays["clients"].tolist() == [2, 2]
