"""What was unusual in a span of a history of which it is known what was: an outage, a client that
is silent, a feature that has moved, and a holiday."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.history import (
    COARSE_S,
    DAY_S,
    NO_CLUSTER,
    PLACE_UNKNOWN,
    PLACES_S,
    HistoryBin,
    HistoryNames,
    pack_table,
)
from shoal.server_node.history.anomalies import (
    NOISY_CELLS,
    WITHOUT_NOISE,
    Anomalies,
    ShareScale,
    earlier_spans,
    find_anomalies,
    listed,
    predicted,
    unseen_changes,
    whole_span,
)
from shoal.server_node.history.changes import Span
from shoal.server_node.outputs.anomalies_command import lines_of
from shoal.transports import open_log
from tests.counted_contract import COUNTED, agreed
from tests.server_node import test_web_history
from tests.server_node.test_web_history import CONTRACT, client_of, stored

MONDAY = 1_609_718_400
"""2021-01-04T00:00:00Z"""
DAYS = 35
MODEL = CONTRACT.models[0].name
CLIENTS = ["attic", "cellar", "server"]
DAY, NIGHT, HOT = 1, 2, 3
RATE = 30
"""readings of each client in half an hour"""
OUTAGE = Span(MONDAY + 30 * DAY_S + 10 * 3600, MONDAY + 30 * DAY_S + 13 * 3600)
"""a Wednesday: the server room is hot for three hours"""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Days are those of the server's time zone, and what is planted here is planted in UTC: a
    developer's own zone would move evenings into another day."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Office:
    """Half hours of three rooms for five weeks: day and night, and weekends at night alone."""

    def __init__(self, contract: Any, seed: int = 0) -> None:
        self.origin = (contract.federation, contract.digest, MODEL)
        self.rng = np.random.default_rng(seed)
        halves = DAYS * DAY_S // COARSE_S
        self.starts = MONDAY + COARSE_S * np.arange(halves)
        hour = self.starts % DAY_S / 3600
        is_work = ((self.starts - MONDAY) // DAY_S % 7 < 5) & (hour >= 7) & (hour < 18)
        share = np.where(is_work, 0.9, 0.05)
        self.cells = np.zeros((halves, 3, 4), dtype=np.int64)
        """readings by half hour, client and cluster"""
        for client in range(2):
            by_day = self.rng.binomial(
                RATE, np.clip(share + self.rng.normal(0, 0.03, halves), 0, 1)
            )
            self.cells[:, client, DAY] = by_day
            self.cells[:, client, NIGHT] = RATE - by_day
        # The server room knows one state.
        self.cells[:, 2, NIGHT] = RATE
        self.warm = self.rng.normal(0.5, 0.005, (DAYS * DAY_S // PLACES_S, 4, 2))
        """means of two features by six hours and cluster, in unit coordinates"""

    def within(self, span: Span) -> Any:
        return (self.starts >= span.first) & (self.starts < span.end)

    def messages(self) -> list[Any]:
        labels = [[DAY, "day", ""], [NIGHT, "", "light low"], [HOT, "", "warm high"]]
        messages: list[Any] = [HistoryNames(*self.origin, CLIENTS, labels)]
        messages += [self.bin(COARSE_S, place, 1) for place in range(len(self.starts))]
        whole = PLACES_S // COARSE_S
        messages += [self.bin(PLACES_S, place, whole) for place in range(len(self.warm))]
        return messages

    def bin(self, width: int, place: int, halves: int) -> HistoryBin:
        cells = self.cells[place * halves : (place + 1) * halves].sum(axis=0)
        start = int(self.starts[place * halves])
        clusters = flat((number or NO_CLUSTER, n) for number, n in enumerate(cells.sum(axis=0)))
        clients = flat(enumerate(cells.sum(axis=1)))
        if width == COARSE_S:
            return HistoryBin.of(*self.origin, width, start, place + 1, clusters, clients, [])
        rows = []
        places = []
        for client, row in enumerate(cells.tolist()):
            for number, n in enumerate(row):
                rows += [client, number or NO_CLUSTER, n] if n else []
        for number in (DAY, NIGHT, HOT):
            if cells[:, number].sum():
                means = np.rint(10_000 * self.warm[place, number]).astype(int).tolist()
                places.append([number, *means, int(cells[:, number].sum())])
        counted = HistoryBin.of(*self.origin, width, start, place + 1, clusters, clients, rows)
        fields = vars(counted) | {"places": pack_table(np.array(places)), "features": 2}
        return HistoryBin(**fields)


def flat(table: Any) -> list[int]:
    return [int(number) for row in sorted(table) if row[1] for number in row]


class Bins:
    """A history in memory."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.kept: dict[int, list[HistoryBin]] = {}
        for message in messages[1:]:
            self.kept.setdefault(message.width_s, []).append(message)
        self._names = messages[0] if messages else None

    def extent(self, model: str, width_s: int) -> tuple[int, int] | None:
        bins = self.kept.get(width_s)
        return (bins[0].start, bins[-1].start) if bins else None

    def each_bin(self, model: str, width_s: int, first: float, last: float) -> Iterator[HistoryBin]:
        return (counted for counted in self.kept.get(width_s, ()) if first <= counted.start <= last)

    def names(self, model: str) -> HistoryNames | None:
        return self._names


file = test_web_history.file
FEATURE = CONTRACT.features[0]
RANGE = FEATURE.high - FEATURE.low


def outage() -> Office:
    office = Office(CONTRACT)
    hot = office.within(OUTAGE)
    office.cells[hot, 2, NIGHT] = 0
    office.cells[hot, 2, HOT] = RATE
    return office


def found(office: Office, span: Span) -> Anomalies:
    return find_anomalies(Bins(office.messages()), CONTRACT, MODEL, span)


EVER = Span(MONDAY, MONDAY + DAYS * DAY_S)
FIFTY_BINS = Span(MONDAY, MONDAY + 50 * PLACES_S)


def with_unknown(message: Any, identity: int, feature: int, span: Span) -> Any:
    """A bin as it is where a mean of a cluster is not known in this span."""
    if not isinstance(message, HistoryBin) or message.places is None:
        return message
    if not span.first <= message.start < span.end:
        return message
    table = message.place_table()
    table[table[:, 0] == identity, 1 + feature] = PLACE_UNKNOWN
    return replace(message, places=pack_table(table))


def day_of(span: Span) -> Span:
    first = span.first // DAY_S * DAY_S
    return Span(first, first + DAY_S)


def test_an_outage_of_one_room_is_what_ranks_first_among_clients_states_and_hours() -> None:
    anomalies = found(outage(), day_of(OUTAGE))
    assert len(anomalies.earlier) == 22, "a Wednesday is beside days from Monday to Friday"
    first = anomalies.clients[0]
    assert (first.client, first.cluster, first.title) == ("server", HOT, "cluster 3 (warm high)")
    assert first.observed == pytest.approx(3 / 24)
    assert first.expected == 0
    assert first.chance < 1e-6
    assert listed(anomalies.clients, 0.01)[1].cluster == NIGHT, "which it was in for less"
    assert {client.client for client in listed(anomalies.clients, 0.01)} == {"server"}
    state = anomalies.states[0]
    assert state.cluster == HOT
    assert state.observed == pytest.approx(3 / 24 / 3)
    hours = listed(anomalies.hours, 0.01)
    starts = sorted(hour.start for hour in hours if hour.cluster == HOT)
    outage_starts = range(OUTAGE.first, OUTAGE.end, COARSE_S)
    assert set(starts) <= set(outage_starts)
    assert len(starts) >= len(outage_starts) - 1, "a half hour of 90 readings may be too few"
    assert listed(anomalies.features, 0.01) == []


NOISE = 20.0
"""standard deviation of the noise of a private count of a window"""


def privately_counted(hot_readings: int) -> Office:
    """The office as private counts of windows of six hours show it, with so many readings of the
    server room in the hot state on the day of the outage."""
    office = Office(CONTRACT)
    day = np.flatnonzero(office.within(day_of(OUTAGE)))
    halves = hot_readings // RATE
    hot = day[(len(day) - halves) // 2 :][:halves]
    office.cells[hot, 2, NIGHT] = 0
    office.cells[hot, 2, HOT] = RATE
    window = PLACES_S // COARSE_S
    of_windows = office.cells.reshape(-1, window, 3, 4).sum(axis=1)
    noisy = of_windows + office.rng.laplace(0.0, NOISE / np.sqrt(2.0), of_windows.shape)
    noisy[:, :, 0] = 0.0
    counted = np.maximum(noisy, 0.0)
    # An update is spread over its span, and has as many readings as it claims.
    counted *= RATE / counted.sum(axis=2, keepdims=True)
    office.cells = np.repeat(np.rint(counted).astype(np.int64), window, axis=0)
    return office


def test_what_the_noise_of_private_counts_hides_is_said_and_a_larger_outage_ranks_first() -> None:
    day = day_of(OUTAGE)
    nothing = found(privately_counted(0), day)
    [least] = [change for change in unseen_changes(nothing, 0.01) if change.client == "server"]
    # Of 48 half hours; four windows have twice the noise of one.
    assert least.readings == pytest.approx(48 * RATE, abs=48)
    assert 2 * NOISE < least.least < 16 * NOISE
    small = found(privately_counted(2 * RATE), day)
    for of_kind in (small.clients, small.features, small.states, small.hours):
        assert not listed(of_kind, 0.01)
    [told] = [line for line in lines_of(small) if "cannot be told from" in line]
    assert re.search(r"server: from \d+ of 1,\d{3} on", told), told
    # What the figures of a day on which nothing happened promise.
    large = found(privately_counted(-(-least.least // RATE) * RATE + 2 * RATE), day)
    clients = listed(large.clients, 0.01)
    assert {(client.client, client.cluster) for client in clients} == {
        ("server", HOT),
        ("server", NIGHT),
    }


def test_no_change_is_seen_where_a_client_was_in_every_state_and_none_without_earlier_spans() -> (
    None
):
    office = Office(CONTRACT)
    swings = office.rng.integers(0, 2, DAYS).repeat(48) * RATE
    office.cells[:, 0, DAY] = swings
    office.cells[:, 0, NIGHT] = RATE - swings
    anomalies = found(office, day_of(OUTAGE))
    worst = unseen_changes(anomalies, 0.01)[0]
    assert worst.client == "attic"
    assert worst.least > worst.readings
    assert any(f"attic: none of its {worst.readings:,}" in line for line in lines_of(anomalies))
    assert unseen_changes(anomalies, 0.0) == []
    early = found(office, Span(MONDAY + 3 * DAY_S, MONDAY + 4 * DAY_S))
    assert unseen_changes(early, 0.01) == []


def with_times(office: Office, apart_since: list[list[int]]) -> Bins:
    """The history of an office whose clusters are told apart since these times alone."""
    names, *bins = office.messages()
    return Bins([replace(names, apart_since=apart_since), *bins])


def test_a_state_is_compared_with_spans_since_it_is_told_apart_alone() -> None:
    office = outage()
    # In the first two weeks each reading is counted to all three states alike.
    mixed = office.starts < MONDAY + 14 * DAY_S + 3600
    office.cells[mixed] = office.cells[mixed].sum(axis=1, keepdims=True) // 3
    span = day_of(OUTAGE)
    whole = found(office, span)
    since = MONDAY + 14 * DAY_S + 3600
    clear = find_anomalies(
        with_times(office, [[DAY, since], [NIGHT, since]]), CONTRACT, MODEL, span
    )
    in_night = {(client.client, client.cluster): client for client in clear.clients}
    assert in_night["server", NIGHT].earlier < len(clear.earlier) == len(whole.earlier)
    assert in_night["server", NIGHT].chance < 1e-3
    before = {(client.client, client.cluster): client for client in whole.clients}
    assert before["server", NIGHT].chance > 0.01, "beside days that were mixed it is not unusual"
    # A day that is whole, and so after the one in which the clusters were found.
    later = [there for there in clear.earlier if there.first >= MONDAY + 15 * DAY_S]
    assert [(state.cluster, state.since, state.earlier) for state in clear.apart] == [
        (DAY, since, len(later)),
        (NIGHT, since, len(later)),
    ]
    lines = lines_of(clear)
    assert (
        'Readings of cluster 1 "day" are told apart from those of other clusters since'
        f" 2021-01-18 01:00 alone. It is compared with {len(later)} earlier spans, of the time"
        " since then." in lines
    )


def test_of_a_span_before_its_states_are_told_apart_nothing_is_listed_and_that_is_said() -> None:
    office = outage()
    since = OUTAGE.end
    source = with_times(office, [[state, since] for state in (DAY, NIGHT, HOT)])
    anomalies = find_anomalies(source, CONTRACT, MODEL, day_of(OUTAGE))
    assert listed(anomalies.states, 0.01) == listed(anomalies.hours, 0.01) == []
    assert listed(anomalies.clients, 0.01) == listed(anomalies.features, 0.01) == []
    assert {state.earlier for state in anomalies.apart} == {0}
    assert sum("It is compared with no earlier span." in line for line in lines_of(anomalies)) == 3


def test_the_noise_of_counts_is_as_large_in_a_share_of_none_as_in_others() -> None:
    scale = ShareScale(0.1)
    for share in (0.0, 0.01, 0.4, 1.0):
        assert scale.share(scale.angle(share)) == pytest.approx(share, abs=1e-12)
        assert WITHOUT_NOISE.variance(share, 50) == pytest.approx(1 / 50)
        assert scale.variance(share, 50) < 1 / 50
    # A step of the share is a step of the angle of nearly the same size, at 0 as at 1/10.
    first = scale.angle(0.02) - scale.angle(0.0)
    assert first < 1.5 * (scale.angle(0.12) - scale.angle(0.10))
    assert WITHOUT_NOISE.angle(0.02) > 4 * (WITHOUT_NOISE.angle(0.12) - WITHOUT_NOISE.angle(0.10))
    counted = resolve(agreed(COUNTED, counts_epsilon=4.0, window_readings=100)).models["counted"]
    variance = counted.options["noise_variance"]
    assert variance > 0.0
    assert ShareScale.of(counted).noise == pytest.approx(NOISY_CELLS * variance / 100)
    assert ShareScale.of(resolve(CONTRACT).models[MODEL]) == WITHOUT_NOISE


def test_the_hours_of_an_outage_are_compared_with_days_of_the_same_kind() -> None:
    anomalies = found(outage(), OUTAGE)
    assert len(anomalies.earlier) == 22, "Mondays to Fridays of four weeks and two days before"
    assert {span.first % DAY_S for span in anomalies.earlier} == {10 * 3600}
    assert anomalies.clients[0].client == "server"
    assert (anomalies.wide.first, anomalies.wide.end) == (
        OUTAGE.first - 4 * 3600,
        OUTAGE.end + 5 * 3600,
    )


def test_of_days_on_which_nothing_happened_nearly_nothing_is_listed() -> None:
    some = 0
    days = 0
    for seed in range(2):
        source = Bins(Office(CONTRACT, seed).messages())
        for day in range(24, 35):
            first = MONDAY + day * DAY_S
            span = Span(first, first + 6 * 3600 + day % 3 * 7200)
            anomalies = find_anomalies(source, CONTRACT, MODEL, span)
            kinds = (anomalies.clients, anomalies.features, anomalies.states, anomalies.hours)
            some += any(listed(kind, 0.01) for kind in kinds)
            days += 1
    assert some <= 2, f"of {days} spans each has a chance of 1 in 100 for anything at all"


def test_a_silent_client_and_one_that_sends_twice_as_much_are_found_by_their_readings() -> None:
    office = Office(CONTRACT)
    day = Span(MONDAY + 29 * DAY_S, MONDAY + 30 * DAY_S)
    office.cells[office.within(day), 0] = 0
    office.cells[office.within(day), 1] *= 2
    clients = {(client.client, client.title): client for client in found(office, day).clients}
    assert clients["attic", ""].observed == 0
    assert clients["attic", ""].expected == 48 * RATE
    assert clients["attic", ""].chance < 1e-6
    assert clients["cellar", ""].observed == 2 * 48 * RATE
    assert clients["cellar", ""].chance < 1e-6
    assert clients["server", ""].chance == 1.0


def test_a_feature_that_has_moved_within_one_state_is_found_in_its_unit() -> None:
    office = Office(CONTRACT)
    day = Span(MONDAY + 32 * DAY_S, MONDAY + 33 * DAY_S)
    office.warm[32 * 4 : 33 * 4, NIGHT, 0] += 0.05
    anomalies = found(office, day)
    (feature,) = listed(anomalies.features, 0.01)
    assert (feature.feature, feature.cluster) == (CONTRACT.features[0].name, NIGHT)
    assert feature.observed == pytest.approx(FEATURE.low + RANGE * 0.55, abs=0.01 * RANGE)
    assert feature.expected == pytest.approx(FEATURE.low + RANGE * 0.5, abs=0.01 * RANGE)
    assert feature.earlier == 24, "days from Monday to Friday"


def test_a_mean_is_compared_where_it_is_known_alone() -> None:
    office = Office(CONTRACT)
    # As the mean of the cluster that it parted from would be.
    office.warm[:40, NIGHT, 0] = 0.9
    messages = [with_unknown(message, NIGHT, 0, FIFTY_BINS) for message in office.messages()]
    anomalies = find_anomalies(Bins(messages), CONTRACT, MODEL, day_of(OUTAGE))
    of_night = {
        feature.feature: feature for feature in anomalies.features if feature.cluster == NIGHT
    }
    assert of_night[FEATURE.name].expected == pytest.approx(FEATURE.low + RANGE / 2, rel=0.01)
    names = [feature.name for feature in CONTRACT.features]
    assert of_night[names[0]].earlier < of_night[names[1]].earlier
    never = [with_unknown(message, NIGHT, 0, EVER) for message in office.messages()]
    anomalies = find_anomalies(Bins(never), CONTRACT, MODEL, day_of(OUTAGE))
    of_night = {
        feature.feature: feature for feature in anomalies.features if feature.cluster == NIGHT
    }
    assert set(of_night) == {names[1]}


def test_a_holiday_is_unusual_in_its_states_and_hours_of_work_and_in_no_feature() -> None:
    office = Office(CONTRACT)
    day = Span(MONDAY + 31 * DAY_S, MONDAY + 32 * DAY_S)
    holiday = office.within(day)
    office.cells[holiday, :2, NIGHT] += office.cells[holiday, :2, DAY]
    office.cells[holiday, :2, DAY] = 0
    work = Span(day.first + 8 * 3600, day.first + 17 * 3600)
    anomalies = found(office, work)
    assert {state.cluster for state in listed(anomalies.states, 0.01)} == {DAY, NIGHT}
    assert {client.client for client in listed(anomalies.clients, 0.01)} == {"attic", "cellar"}
    assert len(listed(anomalies.hours, 0.01)) == 18, "each half hour of it"
    assert listed(anomalies.features, 0.01) == []
    whole = found(office, day)
    assert {state.cluster for state in listed(whole.states, 0.01)} == {DAY, NIGHT}
    assert {client.client for client in listed(whole.clients, 0.01)} == {"attic", "cellar"}


def test_with_too_few_earlier_spans_no_chance_is_known() -> None:
    office = outage()
    early = Span(MONDAY + 3 * DAY_S, MONDAY + 4 * DAY_S)
    anomalies = found(office, early)
    assert (len(anomalies.earlier), anomalies.compared) == (3, 0)
    assert "fewer than 5 nothing" in lines_of(anomalies)[-1]
    first = found(office, Span(MONDAY, MONDAY + DAY_S))
    assert (first.earlier, first.compared) == ([], 0)
    assert first.readings == 48 * 3 * RATE


def test_a_history_without_pairs_of_client_and_cluster_says_so() -> None:
    office = outage()
    bare = []
    for message in office.messages():
        if isinstance(message, HistoryBin) and message.width_s == PLACES_S:
            bare.append(HistoryBin(**vars(message) | {"cells": pack_table(np.empty((0, 3), int))}))
        else:
            bare.append(message)
    anomalies = find_anomalies(Bins(bare), CONTRACT, MODEL, day_of(OUTAGE))
    assert not anomalies.has_clients
    assert {client.title for client in anomalies.clients} == {""}
    assert any("too many pairs" in line for line in lines_of(anomalies))


def test_spans_are_whole_half_hours_within_the_history() -> None:
    source = Bins(Office(CONTRACT).messages())
    end = MONDAY + DAYS * DAY_S
    assert whole_span(source, MODEL, None, None) == Span(end - DAY_S, end)
    assert whole_span(source, MODEL, MONDAY + 100.0, MONDAY + 1900.0) == Span(
        MONDAY, MONDAY + 2 * COARSE_S
    )
    assert whole_span(source, MODEL, 0.0, None) == Span(MONDAY, end)
    for first, last in ((end + 10.0, None), (MONDAY + 5.0 * DAY_S, MONDAY + DAY_S), (None, 5.0)):
        with pytest.raises(SettingsError, match="the span is empty"):
            whole_span(source, MODEL, first, last)
    with pytest.raises(SettingsError, match="no history yet"):
        whole_span(Bins([]), MODEL, None, None)


def days_back(span: Span, oldest: int = MONDAY) -> list[float]:
    return [(span.first - earlier.first) / DAY_S for earlier in earlier_spans(span, oldest)]


def test_spans_are_beside_days_of_the_same_kinds_and_longer_ones_beside_weeks() -> None:
    wednesday = MONDAY + 30 * DAY_S
    assert days_back(Span(wednesday, wednesday + DAY_S))[:5] == [1, 2, 5, 6, 7]
    # None overlaps another one, and none reaches into a weekend.
    assert days_back(Span(wednesday, wednesday + 2 * DAY_S))[:4] == [2, 6, 8, 13]
    assert days_back(Span(wednesday, wednesday + 3 * DAY_S)) == [
        3,
        6,
        9,
        12,
        15,
        18,
        21,
        24,
        27,
        30,
    ]
    first_saturday = Span(MONDAY + 5 * DAY_S, MONDAY + 6 * DAY_S)
    assert days_back(first_saturday) == [], "beside working days a weekend would be unusual"
    friday_evening = MONDAY + 32 * DAY_S + 18 * 3600
    assert days_back(Span(friday_evening, friday_evening + 12 * 3600)) == [*range(1, 29)]
    assert days_back(Span(wednesday, wednesday + 10 * DAY_S)) == [14, 28]


def test_a_chance_is_what_it_says_and_equal_values_show_no_certainty() -> None:
    rng = np.random.default_rng(4)
    chances = np.array(
        [predicted(float(row[0]), row[1:].tolist(), 0.0) for row in rng.normal(3, 2, (4000, 11))]
    )
    assert 0.035 < np.mean(chances < 0.05) < 0.065
    assert np.mean(chances < 0.01) < 0.016
    assert predicted(5.0, [5.0] * 9, 0.0) == 1.0
    assert predicted(6.0, [5.0] * 9, 0.0) == 0.0
    assert 0.05 < predicted(6.0, [5.0] * 9, 1.0) < 1.0
    assert predicted(6.0, [5.0] * 4, 1.0) == 1.0


def test_the_command_and_the_api_give_the_same(file: Path, tmp_path: Path) -> None:
    config = load_config(file)
    office = outage()
    messages = office.messages()
    office.origin = (config.contract.federation, config.contract.digest, MODEL)
    with closing(open_log(config.log)) as log:
        for message in office.messages():
            key = message.record_key
            log.publish(config.contract.history_topic, message.encode(), key, message.headers())
        log.flush()
    words = ["anomalies", "--config", str(file), "--from", "2021-02-03", "--to", "2021-02-04"]
    text = CliRunner().invoke(shoal, words, catch_exceptions=False).output
    assert "\nClients\n  server: cluster 3 (warm high), 12.5 %, expected 0.0 %, chance" in text
    assert "\nFeatures\n" not in text
    assert "\nStates\n  cluster 3 (warm high): 4.2 %, expected 0.0 %" in text
    assert "2021-02-03 10:00 (30 minutes): cluster 3 (warm high), 33.3 %, expected 0.0 %" in text
    told = json.loads(CliRunner().invoke(shoal, [*words, "--json"], catch_exceptions=False).output)
    client = client_of(stored(tmp_path / "page", messages))
    span = "from=2021-02-03T00:00:00Z&to=2021-02-04T00:00:00Z"
    answer = client.get(f"/v1/anomalies?{span}")
    assert answer.status_code == 200, answer.text
    assert answer.json() == told
    nothing = client.get(f"/v1/anomalies?{span}&chance=0").json()
    assert (nothing["states"], nothing["compared"]) == ([], told["compared"])
    for query in (f"?from={MONDAY + 9e6}", "?from=x", "?chance=2", f"?to={MONDAY - 1}"):
        assert client.get(f"/v1/anomalies{query}").status_code == 400, query
    assert client_of(None).get("/v1/anomalies").status_code == 404
