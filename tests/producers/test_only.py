"""A part of a split on its own: what a producer at one site replays."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.errors import SettingsError
from shoal.producers.files.split import split_of
from shoal.producers.pacing import Pacing
from shoal.producers.producer_command import producer
from shoal.producers.pump import Pump
from shoal.producers.source import SourceReading
from tests.producers.running_producer import (
    Clock,
    all_of,
    comparable,
    csv_of,
    logs_in,
    plain_rows,
    replay,
    stored_in,
)

RULES = ["column:label", "round-robin", "blocks", "label-skew:label", "dirichlet:label:0.3"]


def by_client(rows: list[SourceReading]) -> dict[str, list[tuple[Any, ...]]]:
    ordered = sorted(rows, key=lambda row: row.client)
    return {
        client: comparable(list(theirs))
        for client, theirs in groupby(ordered, key=lambda row: row.client)
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return csv_of(tmp_path / "a.csv", plain_rows(100))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_parts_of_all_clients_are_the_whole_and_no_row_is_in_two(
    file: Path, rule: str, shuffle: bool
) -> None:
    whole = by_client(all_of(replay(file, split=split_of(rule, 3, 0), seed=4)))
    for client, rows in whole.items():
        part = all_of(
            replay(file, split=split_of(rule, 3, 0), seed=4, only=client, shuffle=shuffle)
        )
        assert {row.client for row in part} == {client}
        assert sorted(comparable(part), key=repr) == sorted(rows, key=repr)
        assert shuffle or comparable(part) == rows


def test_a_part_is_a_source_of_its_own(file: Path) -> None:
    sources = [replay(file, only=only) for only in (None, "client-1", "client-2")]
    assert len({source.identity for source in sources}) == 3
    assert replay(file, only="client-1").identity == sources[1].identity


def test_a_part_begins_again_with_its_own_rows(file: Path) -> None:
    once = all_of(replay(file, split=split_of("round-robin", 5, 0), only="client-2"))
    looped = replay(file, split=split_of("round-robin", 5, 0), only="client-2", loop=True)
    rows = looped.read(50)
    assert [list(row.values) for row in rows] == [list(row.values) for row in once + once + once][
        :50
    ]
    assert [row.time for row in rows] == sorted(row.time for row in rows if row.time is not None)


@pytest.mark.parametrize("skipped", [0, 1, 19, 20, 21, 45])
def test_a_place_in_a_part_is_found_again(file: Path, skipped: int) -> None:
    def part() -> Any:
        return replay(file, split=split_of("round-robin", 5, 0), only="client-2", loop=True)

    later = part()
    later.skip(skipped)
    assert comparable(later.read(30)) == comparable(part().read(skipped + 30)[skipped:])


def test_producers_of_their_own_feed_what_one_producer_would(file: Path, tmp_path: Path) -> None:
    for client in ("client-1", "client-2"):
        pump = Pump(replay(file, only=client), logs_in(tmp_path / "sites"), clock=Clock())
        while not pump.finished:
            pump.step()
        pump.close()
    pump = Pump(replay(file), logs_in(tmp_path / "one"), clock=Clock())
    while not pump.finished:
        pump.step()
    pump.close()
    alone = stored_in(tmp_path / "sites")
    together = stored_in(tmp_path / "one")
    assert {c: [list(s.values) for s in rows] for c, rows in alone.items()} == {
        c: [list(s.values) for s in rows] for c, rows in together.items()
    }


def test_live_readings_have_the_time_at_which_they_are_fed(file: Path, tmp_path: Path) -> None:
    clock = Clock(0.0)
    wall = Clock(1.7e9)
    pump = Pump(
        replay(file), logs_in(tmp_path / "live"), clock=clock, pacing=Pacing(rate=1.0, wall=wall)
    )
    while not pump.finished:
        pump.step()
        clock.now += 1.0
        wall.now += 1.0
    pump.close()
    rows = stored_in(tmp_path / "live")
    assert [stored.time for stored in rows["client-1"]][:3] == [1.7e9, 1.7e9 + 2, 1.7e9 + 4]
    assert sum(map(len, rows.values())) == 100


def test_a_client_without_a_row_is_an_error(file: Path) -> None:
    with pytest.raises(
        SettingsError, match="no row belongs to client 'client-9' by the split round-robin:3"
    ):
        all_of(replay(file, split=split_of("round-robin", 3, 0), only="client-9"))


def test_a_stream_that_is_made_has_no_parts(file: Path, tmp_path: Path) -> None:
    config = tmp_path / "plant.toml"
    config.write_text(
        CliRunner().invoke(producer, ["--synthetic", "plant", "--print-federation"]).output
    )
    ended = CliRunner().invoke(
        producer, ["--config", str(config), "--synthetic", "plant", "--only", "client-1"]
    )
    assert isinstance(ended.exception, SettingsError)
    assert "--only means nothing with --synthetic" in str(ended.exception)
