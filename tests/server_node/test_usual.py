"""Whether what happens now is usual, from the bins of earlier days at the same time."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.history.usual import EARLIER_BINS_MIN, LIKE_DAYS_MIN, Usual, usual
from tests.server_node.web_statuses import a_contract

CONTRACT = a_contract()
WEDNESDAY = int(datetime(2026, 3, 18, 10, 0).timestamp())
"""ten o'clock where the test runs: days are those of the people at the server"""
SATURDAY = int(datetime(2026, 3, 21, 10, 0).timestamp())


def days_before(now: int, days: int) -> int:
    return int((datetime.fromtimestamp(now) - timedelta(days=days)).timestamp())


def a_bin(
    start: int,
    clusters: dict[int, int],
    width: int = COARSE_S,
    clients: dict[int, int] | None = None,
) -> HistoryBin:
    flat = [number for pair in clusters.items() for number in pair]
    of_clients = [number for pair in (clients or {}).items() for number in pair]
    return HistoryBin.of(
        CONTRACT.federation, CONTRACT.digest, "fcac", width, start, 1, flat, of_clients, []
    )


def found(folder: Path, *bins: HistoryBin) -> Usual:
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    store.apply([HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins])
    store.close()
    answer = usual(HistoryReader(folder / HISTORY_FILE), "fcac")
    assert answer is not None
    return answer


def test_nothing_is_said_before_the_first_bin_and_while_the_file_is_away(tmp_path: Path) -> None:
    HistoryStore(resolve(CONTRACT), tmp_path / HISTORY_FILE).close()
    assert usual(HistoryReader(tmp_path / HISTORY_FILE), "fcac") is None
    assert usual(HistoryReader(tmp_path / "away.db"), "fcac") is None


def test_nothing_is_called_usual_before_three_like_days(tmp_path: Path) -> None:
    days = [a_bin(days_before(WEDNESDAY, back), {0: 10}) for back in range(1, LIKE_DAYS_MIN)]
    weekend = [a_bin(days_before(WEDNESDAY, back), {0: 10}) for back in (3, 4, 10, 11)]
    answer = found(tmp_path, *days, *weekend, a_bin(WEDNESDAY, {0: 10}, FINE_S))
    assert (answer.like_days, answer.likeness, answer.likeness_range, answer.ranges) == (
        2,
        None,
        None,
        {},
    )


def test_the_same_shares_as_on_other_days_are_wholly_alike(tmp_path: Path) -> None:
    days = [a_bin(days_before(WEDNESDAY, back), {0: 30, 1: 10}) for back in (1, 2, 5)]
    answer = found(tmp_path, *days, a_bin(WEDNESDAY, {0: 300, 1: 100}, FINE_S))
    assert (answer.like_days, answer.weekend) == (3, False)
    assert answer.likeness == pytest.approx(1.0)
    assert answer.likeness_range == pytest.approx((1.0, 1.0))
    assert answer.ranges == {
        0: pytest.approx((0.75, 0.75, 0.75)),
        1: pytest.approx((0.25, 0.25, 0.25)),
    }


def test_likeness_falls_by_the_share_that_lies_in_other_clusters(tmp_path: Path) -> None:
    shares = [(1, {0: 10}), (2, {0: 8, 1: 2}), (5, {0: 6, 1: 4})]
    days = [a_bin(days_before(WEDNESDAY, back), clusters) for back, clusters in shares]
    answer = found(tmp_path, *days, a_bin(WEDNESDAY, {0: 3, 2: 7}, FINE_S))
    assert answer.likeness == pytest.approx(0.3)
    assert answer.likeness_range == pytest.approx((0.7, 1.0)), (
        "each day against the mean of the two others"
    )
    assert answer.ranges[0] == pytest.approx((0.6, 0.8, 1.0))
    assert answer.ranges[2] == pytest.approx((0.0, 0.0, 0.0))


def test_weekend_days_are_compared_with_weekend_days_only(tmp_path: Path) -> None:
    other_weekends = [a_bin(days_before(SATURDAY, back), {1: 5}) for back in (6, 7, 13, 14)]
    working_days = [a_bin(days_before(SATURDAY, back), {0: 5}) for back in (1, 2, 3, 4, 5)]
    answer = found(tmp_path, *other_weekends, *working_days, a_bin(SATURDAY, {1: 5}, FINE_S))
    assert (answer.like_days, answer.weekend) == (4, True)
    assert answer.likeness == pytest.approx(1.0)


def test_only_the_same_time_of_day_is_compared(tmp_path: Path) -> None:
    at_ten = [a_bin(days_before(WEDNESDAY, back), {0: 5}) for back in (1, 2, 5)]
    at_noon = [a_bin(days_before(WEDNESDAY, back) + 4 * COARSE_S, {1: 500}) for back in (1, 2, 5)]
    answer = found(tmp_path, *at_ten, *at_noon, a_bin(WEDNESDAY, {0: 5}, FINE_S))
    assert answer.likeness == pytest.approx(1.0)


def test_new_readings_are_those_of_no_known_cluster_in_the_last_hour(tmp_path: Path) -> None:
    earlier = [
        a_bin(WEDNESDAY - COARSE_S * back, {0: 99, NO_CLUSTER: 1})
        for back in range(1, EARLIER_BINS_MIN + 1)
    ]
    hour = [a_bin(WEDNESDAY - FINE_S * back, {0: 5, NO_CLUSTER: 5}, FINE_S) for back in range(3)]
    older = a_bin(WEDNESDAY - FINE_S * 12, {NO_CLUSTER: 1000}, FINE_S)
    answer = found(tmp_path, *earlier, *hour, older)
    assert answer.new == pytest.approx(0.5)
    assert answer.new_usual == pytest.approx(0.01)


def test_with_few_earlier_half_hours_no_share_of_new_readings_is_called_usual(
    tmp_path: Path,
) -> None:
    earlier = [a_bin(WEDNESDAY - COARSE_S * back, {0: 9}) for back in range(1, EARLIER_BINS_MIN)]
    answer = found(tmp_path, *earlier, a_bin(WEDNESDAY, {0: 5}, FINE_S))
    assert (answer.new, answer.new_usual) == (0.0, None)


def test_a_replay_of_the_past_is_judged_at_its_own_time(tmp_path: Path) -> None:
    then = int(datetime(2015, 2, 10, 9, 30).timestamp())
    days = [a_bin(days_before(then, back), {0: 5}) for back in (1, 4, 5)]
    answer = found(tmp_path, *days, a_bin(then, {0: 5}, FINE_S))
    assert (answer.newest, answer.oldest) == (then, days_before(then, 5))
    assert answer.likeness == pytest.approx(1.0)


FOUR = {0: 10, 1: 10, 2: 10, 3: 10}
"""readings of four rooms, of which the last is always in cluster 1 and the others in cluster 0"""


@pytest.mark.parametrize(
    ("clients", "like_days"),
    [
        (FOUR, 3),
        ({0: 10, 1: 10, 2: 10}, 0),
        ({0: 10, 1: 10, 2: 10, 3: 3}, 0),
        ({**FOUR, 4: 10}, 0),
    ],
    ids=["all", "one silent", "one ended within the half hour", "one more"],
)
def test_days_are_compared_that_have_readings_of_the_same_clients(
    tmp_path: Path, clients: dict[int, int], like_days: int
) -> None:
    """A room that is silent is no change of what the others do."""
    days = [a_bin(days_before(WEDNESDAY, back), {0: 30, 1: 10}, clients=FOUR) for back in (1, 2, 5)]
    others = sum(readings for client, readings in clients.items() if client != 3)
    shares = {0: others, 1: clients.get(3, 0)}
    answer = found(tmp_path, *days, a_bin(WEDNESDAY, shares, FINE_S, clients))
    assert answer.like_days == like_days
    assert answer.likeness == (pytest.approx(1.0) if like_days else None)


def test_of_many_clients_a_few_may_be_silent(tmp_path: Path) -> None:
    everybody = dict.fromkeys(range(20), 10)
    days = [a_bin(days_before(WEDNESDAY, n), {0: 200}, clients=everybody) for n in (1, 2, 5)]
    some = dict.fromkeys(range(18), 10)
    assert found(tmp_path, *days, a_bin(WEDNESDAY, {0: 180}, FINE_S, some)).like_days == 3


def test_a_bin_that_is_not_over_is_not_compared(tmp_path: Path) -> None:
    days = [a_bin(days_before(WEDNESDAY, back), {0: 30, 1: 10}) for back in (1, 2, 5)]
    over = a_bin(WEDNESDAY, {0: 30, 1: 10}, FINE_S)
    begun = a_bin(WEDNESDAY + FINE_S, {1: 1000}, FINE_S)
    answer = found(tmp_path, *days, over, begun)
    assert answer.newest == WEDNESDAY + FINE_S
    assert answer.likeness == pytest.approx(1.0)
