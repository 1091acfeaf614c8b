"""Clusters that are new to a client: what is found of planted visits, and how often chance does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from shoal.client_nodes.labelling.visits import DAYS_MAX, SAMPLED_MAX, Visit, Visits
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack

A_DAY = 48
LENGTH = 5


def places_of(identities: np.ndarray) -> np.ndarray:
    """(n, 1) rows in unit coordinates: each cluster has a place of its own."""
    return identities[:, None] / 100.0


def by_place(rows: np.ndarray) -> np.ndarray:
    return np.rint(rows[:, 0] * 100.0).astype(np.int64)


class Client:
    """Readings of whole days, one after the other, as a client follows them."""

    def __init__(self, per_month: float = 1.0) -> None:
        self.visits = Visits(1, LENGTH, per_month)
        self.read = 0

    def day(
        self, day: int, identities: Sequence[int], relabel=by_place, pieces: int = 1
    ) -> list[Visit]:
        found = []
        for piece in np.array_split(np.array(identities), pieces):
            places = [(0, self.read + n) for n in range(len(piece))]
            visit = self.visits.follow(
                piece, places_of(piece), places, ["0"] * len(piece), day, relabel
            )
            self.read += len(piece)
            if visit is not None:
                found.append(visit)
        return found

    def usual_days(self, first: int, last: int, identities: Sequence[int] = (1,) * A_DAY) -> None:
        for day in range(first, last):
            assert self.day(day, identities) == []


def outage(length: int = 12, identity: int = 2) -> list[int]:
    return [1] * 20 + [identity] * length + [1] * (A_DAY - 20 - length)


def test_no_readings_are_no_trouble() -> None:
    client = Client()
    assert client.day(0, []) == []
    client.visits.restore(unpack(pack(client.visits.state())))


def test_a_client_in_a_state_that_it_was_never_in_is_found_once() -> None:
    client = Client()
    client.usual_days(0, 40)
    (visit,) = client.day(40, outage())
    assert (visit.identity, visit.readings) == (2, LENGTH)
    assert visit.position == 20 + LENGTH - 1
    assert (visit.earlier_days, visit.visited_days) == (40, 0)
    client.usual_days(41, 75)
    (again,) = client.day(75, outage())
    assert (again.earlier_days, again.visited_days) == (75, 1), "almost never is rare, too"
    assert client.day(76, outage()) == [], "it has been reported"


@pytest.mark.parametrize(("per_month", "first"), [(1.0, 12), (0.5, 23), (3.0, 4)])
def test_the_first_alarm_is_possible_after_30_days_over_e_and_the_rate(
    per_month: float, first: int
) -> None:
    for days in (first - 1, first):
        client = Client(per_month)
        client.usual_days(0, days)
        assert len(client.day(days, outage())) == (days == first)


def test_without_a_rate_nothing_is_reported() -> None:
    client = Client(0.0)
    client.usual_days(0, 40)
    assert client.day(40, outage()) == []


def test_single_readings_that_go_astray_are_no_visit() -> None:
    client = Client()
    client.usual_days(0, 40)
    assert client.day(40, [1, 1, 2, 2, 1] * 9) == []
    assert client.day(40, [1, 1, 2, -1, 2, 2, -1, 2, 2]), "readings of no cluster end no visit"


def test_a_cluster_that_has_parted_from_a_usual_one_is_not_new() -> None:
    client = Client()
    rng = np.random.default_rng(0)
    usual = np.where(rng.random((40, A_DAY)) < 0.3, 1, 2)
    for day, identities in enumerate(usual):
        # One cluster, 7, had both places.
        places = [(0, day * A_DAY + n) for n in range(A_DAY)]
        client.visits.follow(
            np.full(A_DAY, 7),
            places_of(identities),
            places,
            ["0"] * A_DAY,
            day,
            lambda rows: by_place(rows) * 0 + 7,
        )
    assert client.day(40, outage()) == []
    is_usual = client.visits.usual_here(40, 1, by_place)
    assert is_usual(1)
    assert is_usual(2)
    assert not is_usual(3)


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.1, 0.5])
def test_clusters_that_come_at_random_raise_no_more_alarms_than_promised(rate: float) -> None:
    """Days that are exchangeable: any may bring a cluster that no other day has."""
    alarms = 0
    for seed in range(10):
        client = Client(1.0)
        is_new = np.random.default_rng(seed).random(120) < rate
        for day, brings_new in enumerate(is_new.tolist()):
            identities = [1] * LENGTH + [100 + day] * LENGTH * brings_new
            alarms += len(client.day(day, identities))
    assert alarms <= 10 * 120 / 30
    assert alarms > 0 or rate > 0.03


def test_the_result_does_not_depend_on_batches_or_restarts() -> None:
    rng = np.random.default_rng(3)
    days = [np.repeat(rng.choice([1, 1, 1, 2, 3, 4], 6), 8).tolist() for _ in range(30)]
    days += [[*day[:20], *[9] * 8, *day[28:]] for day in days[:2]]
    ends = []
    for pieces in (1, 5):
        client = Client(3.0)
        found = []
        for day, identities in enumerate(days):
            found += [visit.identity for visit in client.day(day, identities, pieces=pieces)]
            restored = Visits(1, LENGTH, 3.0)
            restored.restore(unpack(pack(client.visits.state())))
            client.visits = restored
        ends.append((found, pack(client.visits.state())))
    assert ends[0] == ends[1]
    assert 9 in ends[0][0]


def test_readings_that_come_late_are_not_judged_and_belong_to_their_day() -> None:
    client = Client()
    client.usual_days(0, 40)
    client.usual_days(41, 42)
    assert client.day(40, outage()) == []
    assert client.visits.usual_here(42, 1, by_place)(2)


def test_memory_is_bounded_and_a_damaged_state_is_refused() -> None:
    client = Client()
    client.usual_days(0, DAYS_MAX + 3, (1,) * LENGTH)
    state = client.visits.state()
    assert len(state["days"]) == DAYS_MAX
    assert np.unique(state["sampled_day"], return_counts=True)[1].max() <= SAMPLED_MAX
    damaged = [
        {"days": state["days"][::-1]},
        {"sampled_day": state["sampled_day"] * 0},
        {"sampled": state["sampled"][:-1]},
        {"runs": [{"device": "0", "identity": -1, "readings": 2}]},
    ]
    for wrong in damaged:
        with pytest.raises(InvalidState):
            Visits(1, LENGTH, 1.0).restore({**state, **wrong})
