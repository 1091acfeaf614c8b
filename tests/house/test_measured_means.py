"""What is told of the means of a private state is what was measured of it.

A small state parts from a large one by its temperature. Its light differs as well, which its own
counts show days later: until then only that of the large state is counted well enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import Config
from shoal.kernels.arrays import Floats
from shoal.protocol.history import (
    DAY_S,
    PLACES_S,
    known_means,
)
from shoal.server_node.history.changes import Changes, Span, Spans, find_changes
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from tests.house.planted_rooms import A_DAY, START, run_rooms

DAYS = 20
END = int(START) + DAYS * DAY_S
TEMPERATURE, LIGHT, SOUND = range(3)
USUAL = np.array([20.0, 600.0, 60.0])
WARM = np.array([40.0, 300.0, 60.0])
SPREAD = np.array([1.5, 60.0, 3.0])
RANGE = np.array([50.0, 1000.0, 100.0])
"""of the features, which begin at 0"""
NEAR = 0.04
"""part of its range by which a mean of private counts may be wrong"""


def machine(seed: int) -> Floats:
    """(n, 3) readings of a machine that is warm, and dim, for an hour of each day."""
    generator = np.random.default_rng(seed)
    hour = np.arange(DAYS * A_DAY) % A_DAY / 12
    is_warm = (hour >= 6) & (hour < 7)
    return np.where(is_warm[:, None], WARM, USUAL) + SPREAD * generator.normal(
        size=(DAYS * A_DAY, 3)
    )


@dataclass(frozen=True)
class Told:
    """The federation, its history, and the identity of the small state."""

    config: Config
    file: Path
    history: HistoryReader
    warm: int

    def means(self) -> dict[int, Floats]:
        """Start of each bin of six hours with readings of the small state -> its means (3,), NaN
        where they are not known."""
        found = {}
        for counted in self.history.each_bin("clusters", PLACES_S, int(START), END):
            table = counted.place_table()
            for identity, means in zip(table[:, 0].tolist(), known_means(table), strict=True):
                if identity == self.warm:
                    found[counted.start] = means * RANGE
        return found

    @property
    def measured(self) -> int:
        """The start of the first bin of six hours in which its light is known."""
        means = self.means()
        return min(start for start, places in means.items() if np.isfinite(places[LIGHT]))

    def changes(self, before: Span, after: Span) -> Changes:
        spans = Spans(before, after, PLACES_S)
        return find_changes(self.history, self.config.resolved.contract, "clusters", spans, ())


@pytest.fixture(scope="module", params=[1, 2])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("machines")
    rooms = {f"machine-{n}": machine(10 * request.param + n) for n in range(3)}
    config = run_rooms(folder, rooms, noise=True)
    history = HistoryReader(config.server.folder / HISTORY_FILE)
    found = {}
    for counted in history.each_bin("clusters", PLACES_S, int(START), END):
        table = counted.place_table()
        found |= dict(zip(table[:, 0].tolist(), known_means(table), strict=True))
    assert len(found) == 2
    warm = max(found, key=lambda identity: float(found[identity][TEMPERATURE]))
    return Told(config, folder / "rooms.toml", history, warm)


def test_a_mean_is_recorded_once_the_own_counts_of_a_state_show_it(told: Told) -> None:
    means = np.array(list(told.means().values()))
    is_known = np.isfinite(means)
    wrong = np.abs(means - WARM) > NEAR * RANGE
    assert not wrong.any(), means[wrong.any(axis=1)]
    assert is_known[:, TEMPERATURE].any(), "the cut was made by it"
    assert set(is_known[:, LIGHT].tolist()) == {True, False}, "what the test is about"


def test_no_change_is_told_of_a_feature_that_never_moved(told: Told) -> None:
    measured = told.measured
    whole = told.changes(Span(int(START), measured), Span(measured, END))
    of_warm = [moved.feature for moved in whole.moved if moved.cluster == told.warm]
    assert "Temperature" in of_warm
    assert "Light" not in of_warm, "nothing is known of it before"
    middle = (measured + END) // 2 // PLACES_S * PLACES_S
    later = told.changes(Span(measured, middle), Span(middle, END))
    by = {moved.feature: moved.by for moved in later.moved if moved.cluster == told.warm}
    assert abs(by["Light"]) < NEAR * RANGE[LIGHT], "it is compared from then on"
    ran = CliRunner().invoke(shoal, ["changes", "--config", str(told.file)])
    assert ran.exception is None, ran.output
    assert ": Light " not in ran.stdout, ran.stdout
