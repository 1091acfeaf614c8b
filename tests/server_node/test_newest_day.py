"""The newest day beside the same times of earlier days: weekends and nights are no moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, DAY_S, HistoryBin
from shoal.server_node.history.newest_day import NewestDay
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.lineage.events import ClusterEvent, EventKind
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, plant

START = 19_723 * DAY_S
"""2024-01-01, a Monday"""
USED, EMPTY = 1, 2
CLIENTS = (0, 1)
FIRST, LAST = 9 * 3600, 17 * 3600
"""times between which an office is used, from Monday to Friday"""


def publish(
    store: HistoryStore, days: range, *, holiday: bool = False, clients: tuple[int, ...] = CLIENTS
) -> None:
    """Publish half hours of offices of which each has one reading in a minute."""
    records = []
    for day in days:
        for at in range(0, DAY_S, COARSE_S):
            works = day % 7 < 5 and FIRST <= at < LAST and not holiday
            counts = [USED if works else EMPTY, 30 * len(clients)]
            fed = [number for client in clients for number in (client, 30)]
            start = START + day * DAY_S + at
            digest = plant().digest
            counted = HistoryBin.of(
                "plant", digest, "clusters", COARSE_S, start, 1, counts, fed, []
            )
            records.append(HistoryRecord(counted.record_key, counted))
    store.apply(records)


@pytest.fixture
def store() -> Iterator[HistoryStore]:
    with closing(HistoryStore(resolve(plant()))) as opened:
        publish(opened, range(18))
        yield opened


def shares(store: HistoryStore, end_day: int, since: float = 0.0) -> tuple[float, float] | None:
    """The share of `USED` in the day before this one begins, and its usual one."""
    # The half hour that has begun is not compared.
    publish(store, range(end_day, end_day + 1), clients=())
    day = NewestDay()
    day.read(store, "clusters", START + end_day * DAY_S)
    return day.share(USED, since)


WORKED = (LAST - FIRST) / DAY_S


def test_a_working_day_after_a_weekend_and_a_weekend_are_as_usual(store: HistoryStore) -> None:
    assert shares(store, 15) == (pytest.approx(WORKED), pytest.approx(WORKED)), "a Monday"
    publish(store, range(18, 27))
    assert shares(store, 27) == (0.0, 0.0), "a Saturday"


def test_a_holiday_differs_by_what_is_usual(store: HistoryStore) -> None:
    publish(store, range(18, 19), holiday=True)
    assert shares(store, 19) == (0.0, pytest.approx(WORKED))


def test_nothing_is_said_of_too_few_days_or_of_other_clients(store: HistoryStore) -> None:
    newest = START + 17 * DAY_S
    assert shares(store, 18, since=newest - 2 * DAY_S) is None, "known for two days"
    assert shares(store, 18, since=newest - 3 * DAY_S) is not None
    publish(store, range(18, 19), holiday=True, clients=(0,))
    assert shares(store, 19) is None, "one of two offices is silent"
    nothing = NewestDay()
    nothing.read(NOTHING_PUBLISHED, "clusters", START)
    assert nothing.share(USED, 0.0) is None
    assert NewestDay().share(USED, 0.0) is None


def test_a_move_is_told_with_its_usual_share_and_one_that_is_usual_is_looked_at_again(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=1)
    site.clock.now = START + 400.0 * DAY_S

    def send(sequence: int, at: float) -> None:
        times = {"made_at": at, "newest_reading_at": at}
        site.send(an_update(site.contract, client="attic", sequence=sequence, rows=60, **times))

    send(1, START + 60.0)
    with site.server() as server:
        while server.step():
            pass
        publish(server._history, range(18))
        publish(server._history, range(18, 19), holiday=True)
        send(2, START + 19.0 * DAY_S + 60.0)
        while server.step():
            pass
        publisher = server.models()["clusters"]._publisher
        known = Cluster(USED, slot=0, reported_share=0.02, since=float(START))
        lineage = Lineage(clusters={USED: known, EMPTY: replace(known, identity=EMPTY)})
        event = ClusterEvent(EventKind.SHARE_MOVED, USED, share=0.02, share_before=0.3)
        after, [told] = publisher._lasting_moves(lineage, [event])
        assert (told.share, told.share_before) == (0.0, pytest.approx(WORKED))
        assert after.clusters[USED].reported_share == 0.02
        # Nothing of the time before that is compared.
        young = lineage.clusters | {USED: replace(known, since=START + 17.0 * DAY_S)}
        after, none = publisher._lasting_moves(replace(lineage, clusters=young), [event])
        assert none == []
        assert after.clusters[USED].reported_share == 0.3, "it is looked at with the next snapshot"
