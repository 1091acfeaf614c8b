"""Times of day and of the week in names of clusters: given when days show them, and by chance
hardly ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.streaming import Contribution
from shoal.config.resolved import resolve
from shoal.protocol.codec import pack, unpack
from shoal.protocol.history import COARSE_S, DAY_S, HistoryBin
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.history.times import (
    FALSE_NAMES_MAX,
    OF_THE_DAY,
    TIMES,
    Evidence,
    Times,
    likelihood_ratio,
)
from shoal.server_node.report.build import Reports
from shoal.server_node.report.description import describe
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, plant

MONDAY = int(datetime(2024, 1, 1).timestamp())
STEP_S = 2 * COARSE_S
HOURS = DAY_S // STEP_S
Chance = Callable[[int, int], float]
"""(day, hour) -> the chance that a reading falls to cluster 0, else to cluster 1"""


def names_over(
    days: int,
    chance: Chance,
    seed: int = 1,
    times: Times | None = None,
    first_day: int = 0,
    given: dict[int, str] | None = None,
) -> list[dict[int, str]]:
    """The words for the names after each day, of a history of 12 readings an hour."""
    rng = np.random.default_rng(seed)
    watch = times or Times()
    given = given or {0: "", 1: ""}
    found = []
    with closing(HistoryStore(resolve(plant()))) as store:
        for day in range(first_day, first_day + days):
            bins = []
            for hour in range(HOURS):
                own = int(rng.binomial(12, chance(day, hour)))
                tables = [0, own, 1, 12 - own], [0, 12], []
                start = MONDAY + day * DAY_S + hour * STEP_S
                bins.append(
                    HistoryBin.of("plant", plant().digest, "clusters", COARSE_S, start, 1, *tables)
                )
            store.apply(
                [HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins]
            )
            given = dict(watch.look(store, "clusters", MONDAY + (day + 1) * DAY_S, given))
            found.append(given)
    return found


def test_a_cluster_of_working_hours_has_its_time_within_a_fortnight_and_keeps_it() -> None:
    names = names_over(60, lambda _, hour: 0.8 if 8 <= hour < 18 else 0.05)
    first = next(day for day, given in enumerate(names) if given[0])
    assert first < 14
    assert {given[0] for given in names[first:]} == {"by day"}
    assert names[-1] == {0: "by day", 1: "in the evening or at night"}


@pytest.mark.parametrize(
    ("hours", "words"), [((22, 23, 0, 1, 2, 3, 4, 5), "at night"), ((19, 20), "in the evening")]
)
def test_the_shortest_part_of_the_day_that_holds_most_readings_is_named(
    hours: tuple[int, ...], words: str
) -> None:
    assert names_over(16, lambda _, hour: 0.7 if hour in hours else 0.02)[-1][0] == words


def test_weekends_are_named_after_a_quarter_of_a_year_and_together_with_the_hours() -> None:
    def at_home(day: int, hour: int) -> float:
        return 0.9 * (day % 7 >= 5 and 6 <= hour < 18)

    names = names_over(13 * 7, at_home)
    assert names[-1][0] == "by day at weekends"
    assert not any("week" in given[0] for given in names[: 8 * 7])


def slow(seed: int) -> Chance:
    """Runs of many days in one cluster, then in the other."""
    runs = np.random.default_rng(seed).random(100) < 0.5
    return lambda day, _: 0.95 if runs[day // 4] else 0.05


def bursts(seed: int) -> Chance:
    """Hours in which all readings fall to a cluster that has none else, every other day."""
    begins = {int(begin) for begin in np.random.default_rng(seed).integers(0, 60 * HOURS, 30)}
    return lambda day, hour: float(any(day * HOURS + hour - back in begins for back in range(3)))


def drift(seed: int) -> Chance:
    """A share that grows all the time: each evening it is larger than on the morning before."""
    return lambda day, hour: 0.1 + 0.8 * (day * HOURS + hour) / (60 * HOURS) + seed / 1e6


@pytest.mark.parametrize("kind", [slow, bursts, drift])
def test_what_does_not_depend_on_the_hour_gets_no_time(kind: Callable[[int], Chance]) -> None:
    given = [names for seed in range(3) for names in names_over(60, kind(seed), seed)]
    assert not [names for names in given if any(names.values())]


def test_the_evidence_exceeds_its_bound_by_chance_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(3)
    bound = 20.0
    higher = np.cumsum(rng.random((300, 90)) < 0.5, axis=1)
    ever = [
        any(likelihood_ratio(int(n), seen, 0.5) >= bound for seen, n in enumerate(row, 1))
        for row in higher
    ]
    assert np.mean(ever) <= 1 / bound + 0.03
    assert likelihood_ratio(0, 0, 0.5) == pytest.approx(1.0)
    assert likelihood_ratio(5000, 5000, 0.5) > 1e200, "no overflow after many years"
    assert likelihood_ratio(12, 12, 0.5) > len(TIMES) * 2 / FALSE_NAMES_MAX


def test_a_time_is_taken_away_once_most_readings_fall_elsewhere() -> None:
    times = Times()
    before = names_over(20, lambda _, hour: 0.8 if 6 <= hour < 18 else 0.05, times=times)
    assert before[-1][0] == "by day"
    turned = names_over(
        90, lambda _, hour: 0.05 if 6 <= hour < 18 else 0.8, 2, times, 20, before[-1]
    )
    names = [given[0] for given in turned]
    assert names[-1] == "in the evening or at night"
    assert sum(after != name for name, after in pairwise(names)) <= 2


def test_saved_times_go_on_alike_and_nothing_gives_nothing() -> None:
    def by_day(_: int, hour: int) -> float:
        return 0.8 if 6 <= hour < 18 else 0.05

    saved = Times()
    whole = Times()
    names_over(9, by_day, times=saved)
    names_over(9, by_day, times=whole)
    again = Times()
    again.restore(unpack(pack(saved.state())))
    assert again == whole
    assert Times().look(NOTHING_PUBLISHED, "clusters", None, {0: ""}) == {0: ""}
    watch = Times()
    assert [
        watch.look(NOTHING_PUBLISHED, "clusters", MONDAY + day * DAY_S, {}) for day in range(3)
    ] == [{}] * 3
    names_over(3, by_day, times=watch)
    watch = Times()
    assert watch == Times()
    assert Evidence().mostly(0.5) == 0.0
    assert sum(time.length <= 0.5 for time in OF_THE_DAY) == len(OF_THE_DAY), (
        "else bursts would count for them"
    )


def test_a_server_names_its_clusters_by_the_time_keeps_that_and_publishes_it(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=6)
    site.clock.now = MONDAY + 1e7
    algorithm = resolve(site.contract).models["clusters"].algorithm
    for day in range(20):
        updates = []
        for place, hour in enumerate((2, 7, 11, 15, 19, 21)):
            sequence = 6 * day + place + 1
            at = MONDAY + day * DAY_S + hour * 3600.0
            half = algorithm.client({}, 2)
            middle = (0.2, 0.2) if 6 <= hour < 18 else (0.8, 0.8)
            half.learn(np.clip(np.random.default_rng(sequence).normal(middle, 0.04, (40, 2)), 0, 1))
            one = an_update(site.contract, sequence=sequence, made_at=at, newest_reading_at=at)
            updates.append(
                replace(one, arrays=Contribution("attic", sequence, half.contribute()).arrays)
            )
        site.send(*updates)
        site.run()
    (*_, snapshot) = site.snapshots()
    assert {cluster.time for cluster in snapshot.cluster_identities} == {
        "by day",
        "in the evening or at night",
    }
    site.delete_checkpoint()
    site.run(rebuild=True)
    with site.server() as server:
        status = server.status()
        model = status.models["clusters"]
        found = Reports().clustering(status, "clusters").clusters
        assert model.snapshot is not None
        view = algorithm.view(model.snapshot.arrays)
    assert {cluster.label.rsplit(", ")[-1] for cluster in found} == {
        "mostly by day",
        "mostly in the evening or at night",
    }
    assert all(
        text.endswith(("fall by day", "at night")) for text in (cluster.text for cluster in found)
    )
    alone = describe(view, site.contract, {0: "at night"})
    assert alone[0].label.endswith(", mostly at night")
