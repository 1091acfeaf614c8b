"""Clocks that are wrong: the readings of all others stay in their month."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.onebox.run_command import run_command
from shoal.producers.init_command import init_command
from shoal.protocol.history import pairs
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from tests.field.planted import planted, written

ROWS = 3000
MARCH = (datetime(2024, 3, 1, tzinfo=UTC).timestamp(), datetime(2024, 4, 1, tzinfo=UTC).timestamp())
BIN_S = 21_600
WRONG = {
    "one clock that was never set": {1501: 5.0},
    "many clocks": {
        **{40 + 130 * place: 5.0 + place for place in range(22)},
        **{3: 7.0, 1777: MARCH[0] - 10 * 86_400.0, 2998: 6.0},
    },
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_clock_takes_no_other_reading_out_of_its_month(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_SERVER_PORT", "0")
    wrong = WRONG[kind]
    times = []
    for row in range(ROWS):
        seconds = wrong.get(row, MARCH[0] + 60.0 * row)
        times.append(datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    written(tmp_path / "a.csv", {"time": times, **planted(ROWS)})
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    result = CliRunner().invoke(run_command, ["a.toml", "a.csv", "--no-wait", "--no-browser"])
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.rglob(HISTORY_FILE)
    in_march = 0
    for bin_of_readings in HistoryReader(file).each_bin("clusters", BIN_S, *MARCH):
        in_march += sum(readings for _, readings in pairs(bin_of_readings.clusters))
    assert in_march >= ROWS - len(wrong)
