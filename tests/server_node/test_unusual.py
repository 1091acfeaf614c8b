"""Shares that are unusual for the time of day: reported once, at the rate asked for, and the same
after a restart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shoal.config.resolved import resolve
from shoal.protocol.codec import pack, unpack
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import COARSE_S, DAY_S, HistoryBin
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.history.unusual import (
    LEARNT_BINS,
    RARE_BINS_MIN,
    Finding,
    UnusualWatch,
)
from shoal.server_node.report.event_messages import sentence
from shoal.server_node.report.lineage.events import ClusterEvent, EventKind
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, plant

START = 1_700_000_000 // DAY_S * DAY_S
KNOWN = {1: False, 2: False, 3: False}
DAY = DAY_S // COARSE_S
LEARNT = 42 * DAY
"""half hours of the past that all tests have"""


def shares(rng: Any, place: int, moved: float = 0.0) -> dict[int, int]:
    """Readings by cluster: 1 by day, 2 by night, 3 always; `moved` of them go from 1 and 2 to 3."""
    day = 0.5 + 0.4 * math.sin(2 * math.pi * (place % DAY) / DAY)
    parts = np.array([0.9 * day, 0.9 * (1 - day), 0.1])
    parts = np.append(parts[:2] * (1 - moved), parts[2] + parts[:2].sum() * moved)
    return {identity + 1: int(n) for identity, n in enumerate(rng.multinomial(60, parts)) if n}


class Past(NamedTuple):
    """A watch that has seen six usual weeks, and the history of them."""

    store: HistoryStore
    state: bytes
    found: list[Finding]


def look(
    watch: UnusualWatch, store: HistoryStore, place: int, counts: dict[int, int], **given: Any
) -> list[Finding]:
    """What is found once this half hour is published and the next one has begun."""
    flat = [number for pair in counts.items() for number in pair]
    one = HistoryBin.of(
        "plant", plant().digest, "clusters", COARSE_S, START + place * COARSE_S, 1, flat, [0, 1], []
    )
    store.apply([HistoryRecord(one.record_key, one)])
    options = {"clusters": KNOWN, "per_month": 1.0, **given}
    return watch.look(store, "clusters", START + (place + 1) * COARSE_S, **options)


@pytest.fixture(scope="module")
def past() -> Iterator[Past]:
    rng = np.random.default_rng(1)
    watch = UnusualWatch()
    found = []
    with closing(HistoryStore(resolve(plant()))) as store:
        for place in range(LEARNT):
            found += look(watch, store, place, shares(rng, place))
        yield Past(store, pack(watch.state()), found)


def a_watch(past: Past) -> UnusualWatch:
    watch = UnusualWatch()
    watch.restore(unpack(past.state))
    return watch


def test_usual_weeks_report_no_more_than_was_asked_for(past: Past) -> None:
    begun = [finding for finding in past.found if finding.unusual]
    assert len(begun) <= 2, "in three weeks, at one a month"
    watch = a_watch(past)
    assert watch.added_up > LEARNT_BINS
    assert len(watch.unlikeness) > RARE_BINS_MIN


def test_a_shift_is_reported_soon_and_once_names_its_cluster_and_ends(past: Past) -> None:
    rng = np.random.default_rng(2)
    watch = a_watch(past)
    found = {}
    for place in range(LEARNT, LEARNT + 6 * DAY):
        moved = 0.5 if place < LEARNT + DAY else 0.0
        for finding in look(watch, past.store, place, shares(rng, place, moved)):
            found[place - LEARNT] = finding
    (begun, first), (ended, last) = list(found.items())[:2]
    assert first.unusual
    assert begun <= 12, "within six hours"
    assert first.identity == 3
    assert first.share > 0.4
    assert first.usual < 0.2
    assert not last.unusual
    assert DAY <= ended <= 2 * DAY
    assert last.identity == 3


def test_muted_clusters_are_left_out_and_a_lower_rate_waits_longer(past: Past) -> None:
    def begins(seed: int, moved: float, **given: Any) -> int | None:
        rng = np.random.default_rng(seed)
        watch = a_watch(past)
        for place in range(LEARNT, LEARNT + DAY):
            if any(
                finding.unusual
                for finding in look(watch, past.store, place, shares(rng, place, moved), **given)
            ):
                return place - LEARNT
        return None

    often = begins(4, 0.25, per_month=10.0)
    seldom = begins(4, 0.25, per_month=0.001)
    assert often is not None
    assert seldom is None or seldom > often
    assert begins(5, 0.5) is not None
    assert begins(5, 0.5, clusters=dict.fromkeys(KNOWN, True)) is None


def test_a_watch_that_is_saved_and_one_made_anew_from_the_history_go_on_alike(past: Past) -> None:
    rng = np.random.default_rng(6)
    saved = a_watch(past)
    whole = a_watch(past)
    for place in range(LEARNT, LEARNT + DAY):
        counts = shares(rng, place, 0.5)
        expected = look(whole, past.store, place, counts)
        assert look(saved, past.store, place, counts) == expected
        again = UnusualWatch()
        again.restore(unpack(pack(saved.state())))
        saved = again
    assert whole.unusual
    rebuilt = UnusualWatch()
    newest = START + (LEARNT + DAY - 1) * COARSE_S
    assert rebuilt.look(past.store, "clusters", newest, KNOWN, 1.0) == []
    assert rebuilt.look(past.store, "clusters", newest + COARSE_S, KNOWN, 1.0) == [], (
        "a rebuild repeats nothing"
    )
    assert rebuilt.unusual
    assert rebuilt.unlikeness == whole.unlikeness
    assert rebuilt.total == whole.total


def test_without_a_past_or_a_history_nothing_is_reported() -> None:
    watch = UnusualWatch()
    rng = np.random.default_rng(7)
    assert watch.look(NOTHING_PUBLISHED, "clusters", None, {}, 1.0) == []
    assert watch.look(NOTHING_PUBLISHED, "clusters", START, {}, 1.0) == []
    with closing(HistoryStore(resolve(plant()))) as store:
        for place in range(3 * DAY):
            assert look(watch, store, place, shares(rng, place, 0.9 * (place > 2 * DAY))) == []
        watch = UnusualWatch()
        assert watch == UnusualWatch()


def test_the_event_says_how_much_is_usual() -> None:
    event = ClusterEvent(EventKind.UNUSUAL, 3, share=0.62, share_before=0.08)
    text = sentence(event, "cluster 3", None)
    assert text.startswith("cluster 3 is unusual ")
    assert re.findall(r"\d+ %(?: is usual)?", text) == ["62 %", "8 % is usual"]
    moved = ClusterEvent(EventKind.DWELL_MOVED, 3, share=0.5, dwell=444.0, dwell_before=21.0)
    durations = re.compile(r"\d+ (?:readings|hours|minutes)")
    assert durations.findall(sentence(moved, "cluster 3", None)) == ["440 readings", "21 readings"]
    timed = sentence(moved, "cluster 3", None, 60.0)
    assert durations.findall(timed) == ["7 hours", "21 minutes"]


def events_of(site: ServerFixture) -> list[ClusterEventMessage]:
    events = [
        ClusterEventMessage.decode(record.value)
        for record in site.records_in(site.contract.events_topic)
    ]
    return [event for event in events if event.kind in {"unusual", "usual_again"}]


def test_a_server_publishes_the_event_sets_the_metric_and_goes_on_after_a_kill(
    tmp_path: Path,
) -> None:
    """A watch that has learnt is put into a real server, whose next half hours are unlike all
    others."""
    site = ServerFixture(tmp_path, snapshot_updates=1)
    site.clock.now = START + 1e6
    sent = 0

    def send(place: int) -> None:
        nonlocal sent
        sent += 1
        at = START + place * COARSE_S + 60.0
        site.send(
            an_update(site.contract, sequence=sent, rows=60, made_at=at, newest_reading_at=at)
        )

    for place in range(3):
        send(place)
    with site.server() as server:
        while server.step():
            pass
        publisher: Any = server.models()["clusters"]
        watch = publisher._publisher._watch
        assert watch.seen == START + 2 * COARSE_S
        known = publisher.lineage.known[0].identity
        watch.restore(
            {
                **watch.state(),
                "unlikeness": np.linspace(0, 1e-3, 2 * RARE_BINS_MIN),
                "added_up": LEARNT_BINS,
                "at": START + 2 * COARSE_S,
                "total": 40.0,
            }
        )
        days = [
            HistoryBin.of(
                "plant",
                site.contract.digest,
                "clusters",
                COARSE_S,
                START + 3 * COARSE_S - back * DAY_S,
                1,
                [known, 1, 99, 99],
                [0, 1],
                [],
            )
            for back in range(1, 29)
        ]
        server._history.apply(
            [HistoryRecord(history_bin.record_key, history_bin) for history_bin in days]
        )
        for place in (3, 4, 5):
            send(place)
            while server.step():
                pass
        metric = server.metrics.registry.get_sample_value("shoal_unusual", {"model": "clusters"})
        assert metric == 1.0
        assert watch.unusual
    events = events_of(site)
    assert [event.kind for event in events] == ["unusual"]
    assert events[0].share_before is not None
    assert events[0].cluster != 99, "a cluster that the model does not know"
    assert not events[0].muted
    assert events[0].share > events[0].share_before
    site.run()
    assert {event.id for event in events_of(site)} == {events[0].id}, "found once"
