"""Windows that close by the clock: neither when readings are taken nor how many there are is
published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes import count_windows
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.count_windows import GRACE_S
from shoal.client_nodes.intake import Intake
from shoal.client_nodes.model_counter import ClosedWindow, ModelCounter
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.privacy.ledger import read_spending
from shoal.protocol.readings import USER_ID, Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports.sqlite.log import SqliteLog
from tests.house.counting_federation import create, rooms
from tests.house.small_federation import all_records, contents, updates_by_client

CLIENT = "attic"
BEGIN = 1e9
WINDOW_S = 60.0
READING = "counts_epsilon = 4\nhide_presence = true\nwindow_s = 60"
USER = f'{READING}\nunit = "user"\nreadings_per_window_max = 2'
EVERY_5_S = [5.0 * number for number in range(100)]


class Feed:
    """A client whose readings its log takes in at given times, and a clock that goes by."""

    def __init__(
        self, folder: Path, privacy: str = READING, window: int = 60, **client: Any
    ) -> None:
        folder.mkdir()
        found = load_config(create(folder, 0, privacy=privacy, window=window, clients=()))
        client = {"label": False, **client}
        self.config: Config = found.model_copy(
            update={"client": found.client.model_copy(update=client)}
        )
        self.folder = found.client.folder / CLIENT
        self.folder.mkdir(parents=True)

        self._waiting: list[tuple[float, Any, str]] = []

    def write(
        self, times: Sequence[float], seed: int = 0, user: str = "", value: Any = None
    ) -> None:
        """A reading at each time, in seconds since the beginning: the log takes it in once the
        clock is there."""
        values = rooms(len(times), seed) if value is None else [value] * len(times)
        users = [user or f"{seed} {time}" for time in times]
        self._waiting = sorted(
            [*self._waiting, *zip(times, values, users, strict=True)], key=lambda one: one[0]
        )

    def take_in(self, until: float) -> None:
        """Write the readings up to this time."""
        now = [BEGIN]
        with closing(SqliteLog(self.folder / "readings.db", clock=lambda: now[0])) as log:
            log.ensure(READINGS, READINGS_SETTINGS)
            while self._waiting and self._waiting[0][0] <= until:
                time, value, user = self._waiting.pop(0)
                now[0] = BEGIN + time
                log.publish(
                    READINGS,
                    Reading(now[0], value).encode(),
                    headers=(*Reading.headers(), (USER_ID, user.encode())),
                )
                log.flush()

    def run(self, *until: float) -> None:
        """A process for each of these times, which runs until the clock arrives there."""
        now = [BEGIN]
        for time in until:
            with resumed(open_client(self.config, CLIENT, clock=lambda: now[0])) as node:
                for reached in (now[0], BEGIN + time):
                    now[0] = reached
                    self.take_in(reached - BEGIN)
                    while node.step():
                        pass

    def public(self) -> list[tuple[int, float, float | None, float | None, int]]:
        """All but the arrays of each update."""
        return [
            (
                again[0].readings,
                again[0].made_at,
                again[0].oldest_reading_at,
                again[0].newest_reading_at,
                number,
            )
            for number, again in updates_by_client(self.config).get(CLIENT, {}).items()
        ]


def noted_windows(monkeypatch: pytest.MonkeyPatch) -> list[list[ClosedWindow]]:
    """Lists of the windows that are closed from now on: each goes into the newest list."""
    windows: list[list[ClosedWindow]] = []
    make = ModelCounter.make_update

    def noting(model: ModelCounter, window: ClosedWindow, *more: Any) -> Any:
        windows[-1].append(window)
        return make(model, window, *more)

    monkeypatch.setattr(ModelCounter, "make_update", noting)
    return windows


def test_without_readings_a_client_publishes_the_same_number_of_updates_at_the_same_times(
    tmp_path: Path,
) -> None:
    seen = []
    sizes = []
    for name, times in (
        ("none", []),
        ("some", [70.0]),
        ("steady", EVERY_5_S),
        ("burst", [100.0 + n for n in range(99)]),
    ):
        feed = Feed(tmp_path / name)
        feed.write(times)
        feed.run(500)
        seen.append(feed.public())
        updates = all_records(feed.config.log.address, feed.config.contract.updates_topic)
        sizes.append({len(record.value or b"") for record in updates})
    assert len(seen[0]) == 8
    assert {readings for readings, *_ in seen[0]} == {60}
    assert {newest - oldest for _, _, oldest, newest, _ in seen[0]} <= {WINDOW_S, WINDOW_S + 1}
    assert seen[1:] == [seen[0]] * 3
    assert len(set().union(*sizes)) == 1, "nor does the size of a message tell anything"


@pytest.mark.parametrize(("privacy", "places"), [(READING, 1), (USER, 2)], ids=["reading", "user"])
@pytest.mark.parametrize(
    "crowd", [EVERY_5_S, [31.71, 33.01, 40.21]], ids=["beside others", "in place of others"]
)
def test_a_reading_or_user_more_changes_no_more_places_of_a_window_than_it_may_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: str, places: int, crowd: list[float]
) -> None:
    windows = noted_windows(monkeypatch)
    for name, own in (("without", []), ("with", [31.7] if places == 1 else [31.7, 33.0, 40.2])):
        feed = Feed(tmp_path / name, privacy)
        windows.append([])
        for time in sorted({*crowd, *own}):
            feed.write(
                [time], seed=round(100 * time), user="the one" if time in own and places > 1 else ""
            )
        feed.run(500)
    changed = [
        int((np.any(window.rows != other.rows, axis=1) | (window.valid != other.valid)).sum())
        for window, other in zip(*windows, strict=True)
    ]
    assert 0 < max(changed) <= places
    assert sum(count > 0 for count in changed) == 1


def test_the_server_learns_from_windows_that_close_by_the_clock(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "served")
    feed.write([0.9 * number for number in range(600)])
    feed.run(600)
    with resumed(open_server(feed.config, clock=lambda: BEGIN + 600)) as server:
        while server.step():
            pass
        assert server.status().rejected == {}
        (absorbed,) = server.models()["clusters"].clients.totals()
        assert absorbed[2] == 60 * absorbed[1] >= 9 * 60
    first, *_ = updates_by_client(feed.config)[CLIENT].values()
    assert first[0].privacy["hides_presence"]


def noting(closed: list[bytes]) -> Callable[..., Any]:
    """`ModelCounter.make_update` that also appends the rows of each window that is closed."""
    make = ModelCounter.make_update

    def make_and_note(model: ModelCounter, window: ClosedWindow, *more: Any) -> Any:
        closed.append(window.rows.tobytes() + window.valid.tobytes())
        return make(model, window, *more)

    return make_and_note


def test_windows_depend_on_the_log_and_not_on_when_a_client_reads_it(tmp_path: Path) -> None:
    found = []
    for name, until, batch in (
        ("once", (500,), 100),
        ("often", (90, 200, 231, 500), 100),
        ("by one", (500,), 1),
    ):
        feed = Feed(tmp_path / name, batch_readings_max=batch)
        feed.write(EVERY_5_S)
        monkey = pytest.MonkeyPatch()
        closed: list[bytes] = []
        monkey.setattr(ModelCounter, "make_update", noting(closed))
        feed.run(*until)
        monkey.undo()
        found.append(closed)
    assert len(found[0]) == 8
    assert found[0] == found[1] == found[2]


def test_the_limit_is_reached_after_the_same_windows_with_and_without_readings(
    tmp_path: Path,
) -> None:
    for number, (privacy, cost) in enumerate(((READING, 60 * 4), (USER, 4))):
        for times in ([], EVERY_5_S):
            limit = {"epsilon_max": 3.5 * cost, "at_epsilon_max": "refuse"}
            feed = Feed(tmp_path / f"{number} {len(times)}", privacy, **limit)
            feed.write(times)
            feed.run(500, 900)
            assert len(feed.public()) == 3
            (account,) = read_spending(feed.folder / "ledger.db").values()
            assert account.of_person() == 3 * cost


def test_readings_cannot_wait_at_the_limit_while_windows_go_by(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='Write at_epsilon_max = "refuse"'):
        Feed(tmp_path / "waits", epsilon_max=100.0).run(10)


def test_after_a_long_absence_as_many_new_windows_are_published_with_and_without_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_windows, "ABSENT_WINDOWS_MAX", 5)
    seen = []
    for times in ([], [70.0], [500e3], [1e6 - 200], [200e3 * part for part in range(1, 5)]):
        feed = Feed(tmp_path / f"away {len(seen)}")
        feed.write(times)
        feed.run(10, 1e6)
        seen.append(feed.public())
    assert len(seen[0]) == 6
    assert seen[0][-1][3] is not None
    assert seen[0][-1][3] >= BEGIN + 1e6 - WINDOW_S - GRACE_S - 1
    assert seen[1:] == [seen[0]] * 4
    assert (
        len({str(contents(again[0])) for again in updates_by_client(feed.config)[CLIENT].values()})
        > 1
    )


def test_a_reading_that_the_log_took_in_with_a_clock_ahead_moves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = noted_windows(monkeypatch)
    for name, ahead in (("without", []), ("with", [400.0])):
        feed = Feed(tmp_path / name, batch_readings_max=1)
        windows.append([])
        now = [BEGIN]
        clock = partial(getitem, now, 0)
        with resumed(open_client(feed.config, CLIENT, clock=clock)) as node:
            for time in (20.0, *ahead, *EVERY_5_S[5:9]):
                feed.write([time], seed=round(time))
                # One reading is taken in by a clock that is 400 s ahead.
                now[0] = BEGIN + (time if time < 400 else 24.0)
                feed.take_in(time)
                while node.step():
                    pass
            now[0] = BEGIN + 500
            while node.step():
                pass
    changed = [
        int((np.any(window.rows != other.rows, axis=1) | (window.valid != other.valid)).sum())
        for window, other in zip(*windows, strict=True)
    ]
    assert sum(changed) == 1


def test_a_clock_that_was_far_ahead_does_not_silence_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_windows, "ABSENT_WINDOWS_MAX", 5)
    feed = Feed(tmp_path / "ahead")
    feed.run(10, 1e5, 200, 500)
    before = max(
        number
        for *_, newest, number in feed.public()
        if newest is not None and newest > BEGIN + 9e4
    )
    assert len(feed.public()) >= before + 4


def test_when_a_window_is_published_does_not_depend_on_readings_around_its_end(
    tmp_path: Path,
) -> None:
    published = []
    for number, times in enumerate(
        ([], [1.2], [58.9, 60.1, 60.3], [-5.0, *(0.9 * second for second in range(90))])
    ):
        feed = Feed(tmp_path / str(number))
        now = [BEGIN]
        at: list[float] = []
        clock = partial(getitem, now, 0)
        with resumed(open_client(feed.config, CLIENT, clock=clock)) as node:
            begin = node._windows._begin_of(node._windows._window_at(BEGIN) + 1) - BEGIN
            feed.write([begin + time for time in times], number)
            for tick in range(int(2 * begin) - 20, int(2 * begin) + 150):
                now[0] = BEGIN + tick / 2
                feed.take_in(tick / 2)
                node.step()
                at += [now[0]] * (len(feed.public()) - len(at))
        published.append(at)
    assert len(published[0]) >= 2
    assert published[1:] == [published[0]] * 3


def test_a_client_waits_for_readings_only_until_its_window_ends_and_for_none_once_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    read = Intake.read

    def noting(intake: Intake, timeout_s: float, *more: Any) -> Any:
        waits.append(timeout_s)
        return read(intake, 0.0, *more)

    monkeypatch.setattr(Intake, "read", noting)
    now = [BEGIN]
    with resumed(
        open_client(Feed(tmp_path / "waiting").config, CLIENT, clock=lambda: now[0])
    ) as node:
        while node.step():
            pass
        end = node._windows._begin_of(node._windows._window_at(BEGIN) + 1)
        waits.clear()
        for now[0], timeout_s in (
            (end - 30, 8.0),
            (end - 3, 8.0),
            (end + GRACE_S - 0.5, 0.01),
            (end + GRACE_S, 8.0),
        ):
            node.step(timeout_s)
    assert waits == pytest.approx([8.0, 3.0, 0.0])


def agreed(**more: Any) -> dict[str, Any]:
    return {
        "federation": {"name": "plant"},
        "features": [{"name": "warm", "low": 0, "high": 1}],
        "privacy": {
            "mode": "formal",
            "counts_epsilon": 1,
            "hide_presence": True,
            **more.pop("privacy", {}),
        },
        "models": [{"name": "clusters", "algorithm": more.get("algorithm", "density_tree")}],
    }


@pytest.mark.parametrize(
    "more",
    [
        {"algorithm": "fcac"},
        {"privacy": {"epsilon_per_reading": 4}},
        {"privacy": {"mode": "off", "counts_epsilon": None}},
    ],
    ids=["rows", "terms of rows", "off"],
)
def test_where_the_number_of_readings_shows_anyway_it_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"hide_presence|counts_epsilon"):
        resolve(parse_contract(agreed(**more)))


def test_repeats_by_time_alone_are_refused_beside_it(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "repeats", drop_repeats=True)
    with pytest.raises(SettingsError, match="drop_repeats"):
        feed.run(10)


def test_what_is_hidden_is_said_in_words_and_what_is_not_where_it_is_off() -> None:
    hidden = resolve(parse_contract(agreed())).mode.describe()
    assert "nor how many there are" in hidden.text()
    assert not any("how many there are." in sentence for sentence in hidden.not_covered)
    assert resolve(parse_contract(agreed())).mode.unit.statement()["hides_presence"]
    shown = resolve(parse_contract(agreed(privacy={"hide_presence": False}))).mode.describe()
    assert any("hide_presence = true in [privacy]" in sentence for sentence in shown.not_covered)
    digests = {
        parse_contract(agreed(privacy={"hide_presence": hidden})).digest for hidden in (True, False)
    }
    assert len(digests) == 2
