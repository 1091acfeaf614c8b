"""The times that updates state, in a mode with a guarantee: those of the readings, or of their
arrival."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.producers.publisher import ReadingsPublisher
from shoal.producers.source import SourceReadings
from shoal.protocol.messages import Update
from shoal.protocol.readings import NUMBER, Reading, number_contents, number_of, stored_times
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.service import resumed
from shoal.transports.base import Record
from shoal.transports.sqlite.log import SqliteLog
from tests.house.counting_federation import create, rooms
from tests.house.small_federation import updates_by_client

CLIENT = "attic"
ARRIVAL = 2e9
TAKEN = 1e9 + 0.75
WINDOW = 50
ROWS_MODEL = '[[models]]\nname = "rows"\nalgorithm = "fcac"\n'


def updates_of(
    folder: Path,
    times: str,
    taken: list[float | None],
    values: Any = None,
    privacy: str = "counts_epsilon = 4",
    models: str = "",
) -> dict[str, list[Update]]:
    """model -> the updates of a client whose log takes readings in a second apart, from `ARRIVAL`.

    `taken`: event time of each reading.
    """
    folder.mkdir()
    privacy += f'\ntimes = "{times}"'
    file = create(folder, 0, privacy=privacy, window=WINDOW, models=models, clients=())
    config = load_config(file)
    own = config.client.folder / CLIENT
    own.mkdir(parents=True)
    now = [ARRIVAL]
    values = rooms(len(taken), 0) if values is None else values
    with closing(SqliteLog(own / "readings.db", clock=lambda: now[0])) as log:
        publisher = ReadingsPublisher(log, READINGS, "source", None, READINGS_SETTINGS)
        for number, (time, row) in enumerate(zip(taken, values, strict=True)):
            publisher.publish([number], SourceReadings([CLIENT], [time], [row], [""]))
            publisher.flush()
            now[0] += 1.0
    with resumed(open_client(config, CLIENT, clock=lambda: now[0])) as node:
        while node.step():
            pass
    found: dict[str, list[Update]] = {}
    for whole in updates_by_client(config).get(CLIENT, {}).values():
        for update in whole:
            found.setdefault(update.model, []).append(update)
    return found


def spans(updates: list[Update]) -> list[tuple[float | None, float | None, int]]:
    return [
        (update.oldest_reading_at, update.newest_reading_at, update.readings) for update in updates
    ]


def minutes(n: int) -> list[float | None]:
    return [TAKEN + 60.0 * number for number in range(n)]


def test_public_times_are_those_of_the_readings_and_arrival_those_of_the_log(
    tmp_path: Path,
) -> None:
    public = updates_of(tmp_path / "public", "public", minutes(3 * WINDOW))["clusters"]
    arrival = updates_of(tmp_path / "arrival", "arrival", minutes(3 * WINDOW))["clusters"]
    assert len(public) == len(arrival) >= 3
    place = 0
    for time, other in zip(public, arrival, strict=True):
        last = place + time.readings - 1
        # Down to whole seconds.
        assert time.oldest_reading_at == 1e9 + 60.0 * place
        assert time.newest_reading_at == 1e9 + 60.0 * last
        assert (other.oldest_reading_at, other.newest_reading_at) == (
            ARRIVAL + place,
            ARRIVAL + last,
        )
        assert time.made_at == other.made_at == ARRIVAL + last, "made when it had come"
        place += time.readings


def test_updates_of_noisy_rows_state_the_same_kind_of_times(tmp_path: Path) -> None:
    privacy = "counts_epsilon = 4\nepsilon_per_reading = 20"
    for times, first, step in (("public", 1e9, 60.0), ("arrival", ARRIVAL, 1.0)):
        folder = tmp_path / times
        found = updates_of(folder, times, minutes(100), privacy=privacy, models=ROWS_MODEL)["rows"]
        assert spans(found) == [
            (first, first + 49 * step, 50),
            (first + 50 * step, first + 99 * step, 50),
        ]


def test_a_reading_that_is_rejected_or_out_of_bounds_moves_no_public_time(tmp_path: Path) -> None:
    seen = []
    for name, value in (("valid", [20.0, 50.0]), ("missing", [None, 5.0]), ("far", [1e9, -1e9])):
        values: list[Any] = [list(row) for row in rooms(2 * WINDOW, 0).tolist()]
        # Those that decide: the first and the last of all.
        values[0] = values[-1] = value
        found = updates_of(tmp_path / name, "public", minutes(2 * WINDOW), values)["clusters"]
        seen.append(spans(found))
    assert seen[0] == seen[1] == seen[2]


def test_readings_without_times_state_none(tmp_path: Path) -> None:
    found = updates_of(tmp_path / "none", "public", [None] * (2 * WINDOW))["clusters"]
    assert {(oldest, newest) for oldest, newest, _ in spans(found)} == {(None, None)}


def test_a_time_far_after_its_arrival_is_left_out(tmp_path: Path) -> None:
    taken = minutes(2 * WINDOW)
    taken[3] = ARRIVAL + 1e6
    found = updates_of(tmp_path / "ahead", "public", taken)["clusters"]
    newest = [end for _, end, _ in spans(found) if end is not None]
    assert max(newest) < 1e9 + 60.0 * 2 * WINDOW


def test_a_clock_of_1970_moves_no_window(tmp_path: Path) -> None:
    taken = minutes(3 * WINDOW)
    strange = list(taken)
    strange[70] = strange[90] = 0.0
    found = [
        updates_of(tmp_path / name, "public", times)["clusters"]
        for name, times in (("all", taken), ("strange", strange))
    ]
    assert spans(found[0]) == spans(found[1])


def test_number_and_time_of_a_reading_are_read_back_from_its_header() -> None:
    contents = number_contents([0, 17, 18], [None, 1.7e9 + 0.9, -5.5])
    assert contents == [b"0", b"17 1700000000", b"18 -6"]
    records = [
        Record(READINGS, 0, 0, 0, None, b"", (*Reading.headers(), (NUMBER, content)))
        for content in [*contents, b"x 5", b"1 5.5", b"1 " + b"9" * 30, b""]
    ]
    assert stored_times(records) == [None, 1.7e9, -6.0, 5.0, None, None, None]
    assert [number_of(record.headers) for record in records] == [0, 17, 18, None, 1, 1, None]
    assert stored_times([]) == []


def privacy_of(**terms: Any) -> dict[str, Any]:
    return {
        "federation": {"name": "a"},
        "features": [{"name": "warm", "low": 0, "high": 50}],
        "privacy": terms,
        "models": [{"name": "tree", "algorithm": "density_tree"}],
    }


def test_public_times_are_refused_where_presence_is_hidden() -> None:
    hidden = {"mode": "formal", "counts_epsilon": 4, "hide_presence": True}
    with pytest.raises(SettingsError, match="hide_presence hides when readings are taken"):
        parse_contract(privacy_of(**hidden, times="public"))
    parse_contract(privacy_of(**hidden, times="arrival"))
    # Without a guarantee they are public in any case.
    parse_contract(privacy_of(mode="off", times="public"))


def test_times_are_part_of_the_contract_and_its_guarantee_says_them() -> None:
    public, arrival, unsaid = (
        resolve(parse_contract(privacy_of(mode="formal", counts_epsilon=4, **times)))
        for times in ({"times": "public"}, {"times": "arrival"}, {})
    )
    assert public.digest != arrival.digest == unsaid.digest
    assert "oldest and its newest reading" in public.mode.describe().text()
    assert "own log took its first" in arrival.mode.describe().text()


def test_records_by_column_and_one_by_one_have_the_same_times(tmp_path: Path) -> None:
    with closing(SqliteLog(tmp_path / "readings.db")) as log:
        publisher = ReadingsPublisher(log, READINGS, "source", None, READINGS_SETTINGS)
        times: list[float | None] = [1e9 + number / 2 for number in range(40)]
        publisher.publish(
            range(40), SourceReadings([CLIENT] * 40, times, np.zeros((40, 2)), [""] * 40)
        )
        publisher.flush()
        by_column, _ = log.read(READINGS, {0: 0})
    wanted = [float(int(1e9 + number / 2)) for number in range(40)]
    assert stored_times(by_column) == stored_times(list(by_column)) == wanted
