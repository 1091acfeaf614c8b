"""Clients whose shares differ from those of all others: planted ones are reported by their names,
holidays and rooms that are always different are not, and false alarms are as few as asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.resolved import resolve
from shoal.protocol.codec import pack, unpack
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import DAY_S, PLACES_S, HistoryBin
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.history.unlike import (
    ALARM_DAYS_MAX,
    MEAN_DAYS,
    UnlikeFinding,
    UnlikeWatch,
)
from shoal.server_node.node import ServerNode
from shoal.server_node.report.build import Reports
from shoal.server_node.report.event_messages import sentence
from shoal.server_node.report.lineage.events import ClusterEvent, EventKind
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, plant

START = 19_723 * DAY_S
"""2024-01-01, a Monday"""
DAYS = 35
"""days before anything is planted"""
READINGS = 72
"""readings of a client in a bin: one in 5 minutes"""
BY_DAY, BY_NIGHT, FAULT = 1, 2, 3
KNOWN = (BY_DAY, BY_NIGHT, FAULT)
BINS = DAY_S // PLACES_S

Cells = Mapping[tuple[int, int], int]
"""(client, cluster) -> readings"""
Moved = Callable[[int, int], float]
"""(client, day) -> part of its readings that are in `FAULT`"""


def nobody(client: int, day: int) -> float:
    return 0.0


def an_office(rng: np.random.Generator, used: float, moved: float) -> dict[int, int]:
    """Readings by cluster of six hours in which a room is used for a part of the time."""
    # Rooms are used for longer on one day than on another.
    used = float(np.clip(used * rng.normal(1.0, 0.1), 0.0, 1.0))
    parts = [(1 - moved) * used, (1 - moved) * (1 - used), moved]
    return dict(zip(KNOWN, rng.multinomial(READINGS, parts).tolist(), strict=True))


def offices(seed: int, day: int, clients: int, moved: Moved, holiday: bool = False) -> list[Cells]:
    """The four bins of one day of offices that are used from Monday to Friday."""
    rng = np.random.default_rng([seed, day])
    works = day % 7 < 5 and not holiday
    bins: list[Cells] = []
    for part in range(BINS):
        used = 0.7 if works and part in (1, 2) else 0.0
        cells = {}
        for client in range(clients):
            of_client = an_office(rng, used, moved(client, day))
            cells.update({(client, identity): n for identity, n in of_client.items() if n})
        bins.append(cells)
    return bins


def publish(store: HistoryStore, day: int, bins: list[Cells]) -> None:
    """Write the bins of one day."""
    records = []
    for part, cells in enumerate(bins):
        clusters: dict[int, int] = {}
        clients: dict[int, int] = {}
        flat = []
        for (client, identity), readings in sorted(cells.items()):
            clusters[identity] = clusters.get(identity, 0) + readings
            clients[client] = clients.get(client, 0) + readings
            flat += [client, identity, readings]
        tables = [
            [number for pair in sorted(counts.items()) for number in pair]
            for counts in (clusters, clients)
        ]
        start = START + day * DAY_S + part * PLACES_S
        digest = plant().digest
        counted = HistoryBin.of("plant", digest, "clusters", PLACES_S, start, 1, *tables, flat)
        records.append(HistoryRecord(counted.record_key, counted))
    store.apply(records)


def look(watch: UnlikeWatch, store: HistoryStore, day: int, **given: Any) -> list[UnlikeFinding]:
    """What is found once this day is published and two bins of the next one have begun."""
    options = {"known": KNOWN, "per_month": 1.0, **given}
    end = START + (day + 1) * DAY_S
    found = watch.look(store, "clusters", end, **options)
    return found + watch.look(store, "clusters", end + PLACES_S, **options)


@pytest.fixture
def store() -> Iterator[HistoryStore]:
    with closing(HistoryStore(resolve(plant()))) as opened:
        yield opened


def follow(
    store: HistoryStore, days: range, moved: Moved = nobody, clients: int = 5, **given: Any
) -> tuple[UnlikeWatch, dict[int, list[UnlikeFinding]]]:
    """A watch of these days, and what it has found, by the day."""
    watch = UnlikeWatch()
    found = {}
    for day in days:
        publish(store, day, offices(1, day, clients, moved))
        of_day = look(watch, store, day, **given)
        if of_day:
            found[day] = of_day
    return watch, found


def test_false_alarms_are_at_most_one_a_client_and_month(store: HistoryStore) -> None:
    clients = 5
    days = 150
    _, found = follow(store, range(days), clients=clients)
    begun = [finding for of_day in found.values() for finding in of_day if finding.unlike]
    # No more than one for each of five clients in a month; the first month is learnt.
    assert len(begun) <= clients * (days / 30 - 1)
    assert all(day >= 29 for day in found), "one of thirty days needs thirty days"


def test_one_client_that_differs_is_reported_the_day_after_with_its_cluster_and_ends(
    store: HistoryStore,
) -> None:
    fault = range(DAYS, DAYS + 4)

    def moved(client: int, day: int) -> float:
        return 0.5 if client == 3 and day in fault else 0.0

    watch, found = follow(store, range(DAYS + 8), moved)
    of_fault = {day: of_day for day, of_day in found.items() if day >= DAYS}
    # The end is seen once no day of the fault is part of the mean.
    assert list(of_fault) == [fault.start, fault.stop + MEAN_DAYS - 1]
    [begun] = of_fault[fault.start]
    assert begun.unlike
    assert begun.client == 3
    assert begun.identity == FAULT
    assert begun.share == pytest.approx(0.5 / MEAN_DAYS, abs=0.05)
    assert begun.fellow_share == 0.0
    [ended] = of_fault[fault.stop + MEAN_DAYS - 1]
    assert (ended.unlike, ended.client) == (False, 3)
    assert watch.unlike == []
    assert set(watch.unlikeness) == set(range(5))
    assert max(watch.unlikeness.values()) < 0.2


def test_a_holiday_and_a_room_that_always_differs_are_not_reported(store: HistoryStore) -> None:
    watch = UnlikeWatch()
    found = []
    for day in range(DAYS + 3):
        bins = offices(2, day, 3, nobody, holiday=day >= DAYS)
        with_server_room = [{**cells, (3, FAULT): READINGS} for cells in bins]
        publish(store, day, with_server_room)
        of_day = look(watch, store, day)
        found += of_day if day >= DAYS else []
        assert 3 not in {finding.client for finding in of_day}
    assert found == []
    assert watch.unlikeness[3] == 1.0


def test_a_client_that_has_lost_its_only_fellow_is_not_the_one_reported(
    store: HistoryStore,
) -> None:
    watch = UnlikeWatch()
    found = []
    for day in range(DAYS + 2):
        bins = offices(3, day, 2, lambda client, day: 0.6 if client and day >= DAYS else 0.0)
        publish(store, day, [{**cells, (2, 4): READINGS} for cells in bins])
        of_day = look(watch, store, day)
        found += of_day if day >= DAYS else []
    assert [(finding.unlike, finding.client) for finding in found] == [(True, 1)]
    assert watch.unlikeness[0] == pytest.approx(watch.unlikeness[1]), "both are as far apart"


def test_a_client_whose_fellows_are_silent_is_compared_with_those_that_are_not(
    store: HistoryStore,
) -> None:
    watch = UnlikeWatch()
    found = []
    for day in range(DAYS + 2):
        offices_of_day = offices(4, day, 4, nobody)
        # Three clients that are always alike, and an office alone with them on the last days.
        bins = []
        for cells in offices_of_day:
            kept = {key: n for key, n in cells.items() if day < DAYS or key[0] == 0}
            bins.append({**kept, **{(client, 4): READINGS for client in (4, 5, 6)}})
        publish(store, day, bins)
        of_day = look(watch, store, day)
        found += of_day if day >= DAYS else []
    assert found == []
    assert watch.unlikeness[0] == 1.0


def test_a_client_is_compared_by_the_mean_of_three_days_in_bins_with_readings_of_both(
    store: HistoryStore,
) -> None:
    # The second is in each state as often as the first, six hours later, and never at the same
    # hours; the third is always in one of them, but sends in the first half of a day alone.
    both = [BY_DAY, BY_DAY, BY_NIGHT, BY_NIGHT]
    for day in range(5):
        bins: list[Cells] = []
        for part in range(BINS):
            cells = {(0, both[part]): READINGS, (1, both[part - 2]): READINGS}
            if part < 2:
                cells[2, BY_NIGHT] = READINGS
            bins.append(cells)
        publish(store, day, bins)
    watch = UnlikeWatch()
    look(watch, store, 4)
    assert watch.unlikeness == {
        0: pytest.approx(0.0, abs=1e-12),
        1: pytest.approx(0.0, abs=1e-12),
        2: pytest.approx(0.0, abs=1e-12),
    }
    # A day on which the first is in another state is a third of what it is compared by.
    changed = {(0, FAULT): READINGS, (1, BY_NIGHT): READINGS, (2, BY_NIGHT): READINGS}
    publish(store, 5, [changed] * BINS)
    look(watch, store, 5)
    assert watch.unlikeness[0] == pytest.approx(1 / 3)


def test_a_machine_that_stands_still_at_weekends_stays_unlike_until_it_is_as_it_was(
    store: HistoryStore,
) -> None:
    """Four machines make two products by day; the last one of them the first product alone, and
    from a Monday on for three weeks something else."""
    changed = range(DAYS, DAYS + 21)
    other_product = 4
    watch = UnlikeWatch()
    found = []
    for day in range(DAYS + 32):
        rng = np.random.default_rng([5, day])
        bins: list[Cells] = []
        for part in range(BINS):
            cells: dict[tuple[int, int], int] = {}
            for machine in range(4):
                making = BY_DAY
                if machine < 3 and part == 2:
                    making = other_product
                if machine == 3 and day in changed:
                    making = FAULT
                works = day % 7 < 5 and part in (1, 2)
                at_work = int(rng.integers(60, READINGS)) if works else 0
                cells[machine, BY_NIGHT] = READINGS - at_work
                if at_work:
                    cells[machine, making] = at_work
            bins.append(cells)
        publish(store, day, bins)
        for finding in look(watch, store, day, known=(*KNOWN, other_product)):
            found.append((day, finding.unlike, finding.client))
    [begun, ended] = [finding for finding in found if finding[0] >= DAYS]
    assert begun[1:] == (True, 3)
    assert ended[1:] == (False, 3)
    assert begun[0] < changed.start + 3
    assert changed.stop <= ended[0] < changed.stop + 7


def test_what_lasts_becomes_usual(store: HistoryStore) -> None:
    watch, found = follow(
        store,
        range(DAYS + ALARM_DAYS_MAX + 35),
        lambda client, day: 0.5 if client == 0 and day >= DAYS else 0.0,
    )
    of_client = {
        day: finding.unlike
        for day, of_day in found.items()
        for finding in of_day
        if finding.client == 0 and day >= DAYS
    }
    assert of_client == {DAYS: True, DAYS + ALARM_DAYS_MAX: False}
    assert 0 not in {unlike.client for unlike in watch.unlike}


def test_a_watch_that_is_saved_and_one_made_anew_from_the_history_know_the_same(
    store: HistoryStore,
) -> None:
    whole = UnlikeWatch()
    saved = UnlikeWatch()
    found = []
    for day in range(DAYS + 3):
        bins = offices(5, day, 4, lambda client, day: 0.5 if client == 2 and day >= DAYS else 0.0)
        publish(store, day, bins)
        expected = look(whole, store, day)
        assert look(saved, store, day) == expected
        found += expected
        if day % 10 == 0 or day >= DAYS:
            again = UnlikeWatch()
            again.restore(unpack(pack(saved.state())))
            saved = again
    assert found
    assert saved == whole
    assert [(unlike.client, unlike.since) for unlike in whole.unlike] == [(2, START + DAYS * DAY_S)]
    rebuilt = UnlikeWatch()
    assert look(rebuilt, store, DAYS + 2) == [], "a rebuild repeats no report"
    assert rebuilt.unlike == whole.unlike
    assert rebuilt.unlikeness == whole.unlikeness


def test_two_clients_bins_without_pairs_and_no_history_are_never_judged(
    store: HistoryStore,
) -> None:
    watch, found = follow(
        store, range(DAYS), lambda client, day: float(client and day > 30), clients=2
    )
    assert found == {}
    assert watch.unlikeness == {}, "of two clients either may be the unlike one"
    nothing = UnlikeWatch()
    assert nothing.look(NOTHING_PUBLISHED, "clusters", None, KNOWN, 1.0) == []
    assert nothing.look(NOTHING_PUBLISHED, "clusters", START, KNOWN, 1.0) == []
    assert nothing.look(NOTHING_PUBLISHED, "clusters", START + 2 * DAY_S, KNOWN, 1.0) == []
    assert nothing.unlike == []


def test_the_event_names_the_client_and_says_how_it_differs() -> None:
    event = ClusterEvent(EventKind.UNLIKE_OTHERS, 3, share=0.62, share_before=0.08, client="pump-7")
    text = sentence(event, "cluster 3", None)
    assert text.startswith("client pump-7 is unlike all others: ")
    assert re.findall(r"\d+ %|cluster \d", text) == ["62 %", "cluster 3", "8 %"]
    new = ClusterEvent(EventKind.BIRTH, 3, share=0.01, client="pump-7")
    text = sentence(new, "cluster 3", None)
    assert text.startswith("cluster 3 is new: 1 % ")
    assert text.endswith(" of pump-7")
    again = ClusterEvent(EventKind.LIKE_OTHERS_AGAIN, 3, client="pump-7")
    assert sentence(again, "cluster 3", None).startswith("client pump-7 ")
    assert sentence(again, "cluster 3", None).endswith(" no more than usual again")


def test_a_server_publishes_the_event_once_and_shows_it_as_metric_and_in_the_report(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=1, client_names={"garage": "Garage Süd"})
    site.clock.now = START + 400.0 * DAY_S
    clients = ("attic", "cellar", "garage", "kitchen")
    sequence = 0

    def send(moment: float) -> None:
        nonlocal sequence
        sequence += 1
        for client in clients:
            update = an_update(
                site.contract,
                client=client,
                sequence=sequence,
                rows=60,
                made_at=moment,
                newest_reading_at=moment,
            )
            site.send(update)

    def step(server: ServerNode) -> None:
        while server.step():
            pass

    send(START + 60.0)
    with site.server() as server:
        step(server)
        [known, *_] = (cluster.identity for cluster in server.models()["clusters"].lineage.known)
        for day in range(1, DAYS + 1):
            bins = offices(6, day, 4, lambda client, day: 0.5 if client == 2 and day == DAYS else 0)
            # A cluster that the model does not know cannot be named.
            renamed = {BY_DAY: known, BY_NIGHT: 98, FAULT: 99}
            named = [
                {(client, renamed[identity]): n for (client, identity), n in cells.items()}
                for cells in bins
            ]
            publish(server._history, day, named)
        for hours in (1, 7, 13):
            send(START + (DAYS + 1) * DAY_S + hours * 3600.0)
            step(server)
        labels = {"model": "clusters", "client": "garage"}
        unlikeness = server.metrics.registry.get_sample_value("shoal_client_unlikeness", labels)
        assert unlikeness == pytest.approx(0.5 / MEAN_DAYS, abs=0.05)
        status = server.status()
    clustering = Reports().clustering(status, "clusters")
    assert [vars(unlike) for unlike in clustering.unlike] == [
        {"client": "garage", "since": START + DAYS * DAY_S}
    ]
    events = unlike_events(site)
    assert [(event.client, event.cluster) for event in events] == [("garage", known)]
    assert "client Garage Süd is unlike" in events[0].text
    site.run()
    assert unlike_events(site) == events, "found once"


def unlike_events(site: ServerFixture) -> list[ClusterEventMessage]:
    records = site.records_in(site.contract.events_topic)
    events = [ClusterEventMessage.decode(record.value) for record in records]
    return [event for event in events if event.kind in {"unlike_others", "like_others_again"}]
