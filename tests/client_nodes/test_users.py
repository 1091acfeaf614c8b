"""A user as the privacy unit: at most so many readings of one user are counted in a window, and a
window costs once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.user_readings import UserReadings, UserReadingsState
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState
from shoal.kernels.arrays import Ints
from shoal.privacy.base import READING, PrivacyUnit
from shoal.privacy.count_noise import CountMechanism
from shoal.privacy.ledger import read_spending
from shoal.protocol.readings import USER_ID, Reading
from shoal.protocol.topics import READINGS, REJECTED
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.house.counting_federation import create, rooms
from tests.house.small_federation import clock, updates_by_client

EPSILON = 4.0
MOST = 3
WINDOW = 50
USERS = f'counts_epsilon = {EPSILON}\nunit = "user"\nreadings_per_window_max = {MOST}'


def federation(folder: Path, users: Sequence[str | None], window: int = WINDOW) -> Config:
    """One client, with a reading of each of these users in turn; None: a reading without a
    user id."""
    config = load_config(create(folder, 0, privacy=USERS, window=window, clients=("attic",)))
    with closing(open_client_log(config, "attic")) as log:
        for number, (user, values) in enumerate(zip(users, rooms(len(users), 1), strict=True)):
            own = () if user is None else ((USER_ID, user.encode()),)
            log.publish(
                READINGS, Reading(1e9 + number, values).encode(), headers=(*Reading.headers(), *own)
            )
        log.flush()
    return config


def run(config: Config, steps: int | None = None) -> None:
    """Until idle, or so many steps."""
    with resumed(open_client(config, "attic", clock=clock)) as node:
        while (steps is None or steps > 0) and node.step():
            steps = None if steps is None else steps - 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """window -> readings that were counted in it, before noise."""
    found: dict[int, int] = {}
    real = CountMechanism.release

    def release(
        self: CountMechanism, counts: Ints, window: tuple[int, int, int], plan: bytes
    ) -> Ints:
        found[window[0]] = int(counts.sum())
        return real(self, counts, window, plan)

    monkeypatch.setattr(CountMechanism, "release", release)
    return found


def test_a_window_counts_at_most_so_many_readings_of_one_user(
    tmp_path: Path, counted: dict[int, int]
) -> None:
    run(federation(tmp_path, ["busy"] * 200))
    assert counted
    assert set(counted.values()) == {MOST}, "in every window again"


def test_users_with_few_readings_are_counted_whole(tmp_path: Path, counted: dict[int, int]) -> None:
    config = federation(tmp_path, [f"user {number // MOST}" for number in range(200)])
    run(config)
    sizes = {
        number - 1: again[0].readings
        for number, again in updates_by_client(config)["attic"].items()
    }
    assert counted == sizes


def test_what_is_published_has_as_many_readings_whichever_users_they_are_from(
    tmp_path: Path,
) -> None:
    published = []
    for name, users in (("one", ["busy"] * 200), ("many", [str(number) for number in range(200)])):
        (tmp_path / name).mkdir()
        config = federation(tmp_path / name, users)
        run(config)
        updates = updates_by_client(config)["attic"]
        published.append(
            [
                (number, again[0].readings, len(again[0].encode()))
                for number, again in updates.items()
            ]
        )
    sizes, others = ([update[:2] for update in window] for window in published)
    assert sizes == others


@pytest.mark.parametrize("steps", [1, 2])
def test_a_restart_forgets_no_reading_of_a_user(
    tmp_path: Path, counted: dict[int, int], steps: int
) -> None:
    config = federation(tmp_path, ["busy", "idle"] * 200, window=300)
    small = config.model_copy(
        update={"client": config.client.model_copy(update={"batch_readings_max": 20})}
    )
    for _ in range(20):
        run(small, steps)
    run(small)
    assert counted
    assert set(counted.values()) == {2 * MOST}


def test_a_reading_without_a_user_id_is_rejected_and_keeps_its_place(
    tmp_path: Path, counted: dict[int, int]
) -> None:
    config = federation(tmp_path, [None, "", "known", None] * 50)
    run(config)
    assert sum(again[0].readings for again in updates_by_client(config)["attic"].values()) >= 150
    assert max(counted.values()) == MOST
    with closing(open_log(f"sqlite:{config.client.folder / 'attic' / 'readings.db'}")) as log:
        records, _ = log.read(REJECTED, beginning(log, REJECTED))
    assert {dict(record.headers)["reason"] for record in records} == {b"user"}


def test_a_window_costs_a_user_its_epsilon_once(tmp_path: Path) -> None:
    config = federation(tmp_path, [str(number % 9) for number in range(300)])
    run(config)
    spending = read_spending(config.client.folder / "attic" / "ledger.db")["client attic of house"]
    (model,) = spending.models
    assert model.windows > 3
    assert spending.of_person() == EPSILON * model.windows
    assert spending.of_person(2) == 2 * EPSILON, "two readings lie in two windows at most"


@pytest.mark.parametrize("batch", [1, 70])
def test_the_limit_of_a_ledger_counts_windows(tmp_path: Path, batch: int) -> None:
    config = federation(tmp_path, [str(number) for number in range(300)])
    more = {"epsilon_max": 3.5 * EPSILON, "batch_readings_max": batch}
    limited = config.model_copy(update={"client": config.client.model_copy(update=more)})
    for _ in range(2):
        run(limited)
        spending = read_spending(config.client.folder / "attic" / "ledger.db")[
            "client attic of house"
        ]
        assert [model.windows for model in spending.models] == [3], "also after a restart"
    raised = config.model_copy(
        update={"client": config.client.model_copy(update={"epsilon_max": 4 * EPSILON})}
    )
    run(raised)
    spending = read_spending(config.client.folder / "attic" / "ledger.db")["client attic of house"]
    assert spending.of_person() == 4 * EPSILON


def test_a_rejected_reading_is_no_reading_of_its_user() -> None:
    open_window = UserReadings(PrivacyUnit("user", 2))
    valid = np.array([False, True, False, True, True])
    assert open_window.admit(valid, [b"a"] * 5, [None] * 5).tolist() == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_a_repeat_is_recognised_by_user_and_time_and_in_one_window_alone() -> None:
    open_window = UserReadings(PrivacyUnit("user", 2), drop_repeats=True)
    users = [b"a", b"b", b"a", b"b", b"a", b"b", b"b"]
    times = [1.0, 1.0, 1.0, 2.0, None, None, 3.0]
    expected = [True, True, False, True, True, False, False]
    assert (
        open_window.admit(np.ones(3, dtype=np.bool_), users[:3], times[:3]).tolist() == expected[:3]
    )
    again = UserReadings(PrivacyUnit("user", 2), drop_repeats=True)
    again.restore(open_window.state())
    assert again.admit(np.ones(4, dtype=np.bool_), users[3:], times[3:]).tolist() == expected[3:]
    again.clear()
    assert again.admit(np.ones(1, dtype=np.bool_), [b"a"], [1.0]).tolist() == [True]


def test_readings_as_the_unit_need_no_users() -> None:
    valid = np.array([True, False, True])
    assert UserReadings(READING).admit(valid, [], []).tolist() == valid.tolist()


@pytest.mark.parametrize(
    "damage",
    [
        {"users": None},
        {"users": ["a", "b"]},
        {"users": [b"a", b"a"]},
        {"number": np.array([0, 2])},
        {"number": np.array([0])},
        {"time": np.array([1.0, np.inf])},
    ],
)
def test_a_damaged_checkpoint_is_noticed(damage: dict[str, Any]) -> None:
    whole = {"users": [b"a", b"b"], "number": np.array([0, 1]), "time": np.array([1.0, np.nan])}
    UserReadingsState.read(whole)
    with pytest.raises(InvalidState):
        UserReadingsState.read({**whole, **damage})
