"""What a producer says of the readings that clients will reject or clip: names, numbers and places,
never a value."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.errors import InvalidData, InvalidState
from shoal.privacy.base import Bounds
from shoal.protocol.reading_faults import ClippingCounts, FaultCounts, fault_of
from tests.house.small_federation import write_federation

SECRETS = ("4711", "0815")


def rows(n: int, *, wrong: bool) -> str:
    """CSV of n readings: every 20th beyond the bounds of warm; every 50th no number, or `wrong`
    all."""
    lines = ["warm,damp"]
    for number in range(n):
        warm = "4711" if number % 20 == 7 else str(number % 30)
        lines.append(f'{warm},"x\n0815"' if wrong or number % 50 == 9 else f"{warm},{number % 90}")
    return "\n".join(lines) + "\n"


def produce(folder: Path, text: str, *more: str) -> tuple[str, BaseException | None]:
    """What the producer prints, and its error."""
    (folder / "site.csv").write_text(text, encoding="utf-8")
    command = [
        "producer",
        "--config",
        str(write_federation(folder)),
        str(folder / "site.csv"),
        *more,
    ]
    ended = CliRunner().invoke(shoal, command)
    error = None if isinstance(ended.exception, SystemExit) else ended.exception
    assert not any(secret in ended.output + str(error) for secret in SECRETS)
    return ended.output, error


def test_a_producer_counts_what_clients_will_reject_and_clip_with_the_line_of_the_first(
    tmp_path: Path,
) -> None:
    printed, error = produce(tmp_path, "\n" + rows(400, wrong=False))
    assert error is None
    # Below a blank line and the header; a cell in quotes has two lines, and the second counts.
    assert "8 not_a_number in damp, the first in site.csv, line 13:" in printed
    assert "warm (5%; all of them of client client-1; the first in site.csv, line 10)." in printed
    assert "shoal init --diff" in printed


def test_clipped_readings_are_told_with_the_client_that_most_are_of_as_its_owner_calls_it(
    tmp_path: Path,
) -> None:
    lines = ["site,warm,damp"]
    for number in range(400):
        # Of 40 clipped readings 30 are of the second client, and the first one is of the other.
        warm = "4711" if number in range(20, 30) or number in range(360, 390) else "20"
        lines.append(f"{'Haus' if number < 200 else 'Büro Süd'},{warm},{number % 90}")
    printed, error = produce(tmp_path, "\n".join(lines), "--split", "column:site", "--json")
    assert error is None
    (clipped,) = json.loads(printed.splitlines()[-1])["clipped"]
    assert clipped == {
        "feature": "warm",
        "share": 0.1,
        "client": "Büro Süd",
        "client_share": 0.75,
        "first": "site.csv, line 22",
    }


def test_the_first_clipped_reading_is_that_of_the_source_and_no_gap_is_one() -> None:
    counts = ClippingCounts(["warm", "damp"], Bounds([0, 0], [1, 1]))
    assert counts.clipped() == []
    counts.add("b", [8, 9], np.array([[2.0, np.nan], [-1.0, 0.5]]))
    counts.add("a", [2, 3], np.array([[0.5, np.nan], [3.0, 0.5]]))
    counts.add("c", [], np.empty((0, 2)))
    (clipped,) = counts.clipped({3: "line 5"}, {"b": "B"})
    assert clipped == ("warm", 0.75, "B", pytest.approx(2 / 3), "line 5")
    assert re.findall(r"\d+%?|\bB\b", clipped.text()) == ["75%", "66%", "B", "5"]


def test_a_producer_whose_readings_are_all_unusable_ends_with_the_likely_cause(
    tmp_path: Path,
) -> None:
    printed, error = produce(tmp_path, rows(30, wrong=True), "--json")
    assert isinstance(error, InvalidData)
    assert "none of the 30 readings" in str(error)
    assert "30 not_a_number in damp" in str(error)
    totals = json.loads(printed.splitlines()[-1])
    first = "site.csv, line 3"
    assert totals["rejected"] == [
        {"reason": "not_a_number", "feature": "damp", "readings": 30, "first": first}
    ]
    assert produce(tmp_path, rows(30, wrong=True))[1] is None, "nothing was new"


@pytest.mark.parametrize(
    "state",
    [
        [["odd", 0, 1, [0, 0]]],
        [["missing", 2, 1, [0, 0]]],
        [["missing", 0, -1, [0, 0]]],
        [["missing", 0]],
        4,
    ],
)
def test_damaged_counts_of_a_checkpoint_are_refused(state: object) -> None:
    with pytest.raises(InvalidState, match="damaged"):
        FaultCounts(["warm"]).restore(state)


def test_no_values_and_none_too_many_are_of_no_single_feature() -> None:
    assert [fault_of(values, 1) for values in ([], [1.0, 2.0])] == [("width", None)] * 2
    assert FaultCounts(["warm"]).rejected() == []


def test_the_first_reading_is_that_of_the_source_though_another_clients_come_before() -> None:
    counts = FaultCounts(["warm"])
    fault = fault_of([None], 1)
    assert fault is not None
    for number in (8, 12, 3, 5):
        counts.add(fault, number)
    assert counts.first_numbers == [3]
