"""Row B7: a small Parquet file with billions of bytes of readings is refused before anything is
written."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from shoal.errors import SettingsError
from shoal.onebox.replay import plan
from shoal.onebox.replay.plan import make_plan
from shoal.onebox.replay.replay_command import replay_command
from tests.house.small_federation import write_federation
from tests.replay.plant_files import COLUMNS, KEY, config

ROWS = 1_000_000
ROW_BYTES = 8 * 5
"""of a client, a time, a number, and two values"""


def bomb(folder: Path, groups: int) -> Path:
    """A file of so many million equal readings."""
    file = folder / "bomb.parquet"
    table = pa.table(
        {
            "room": pa.array(["room"]).take(pa.array(np.zeros(ROWS, dtype=np.int64))),
            **{name: np.ones(ROWS) for name in ("time", "warm", "damp")},
        }
    )
    with parquet.ParquetWriter(file, table.schema) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return file


def test_a_file_that_unpacks_to_far_more_than_it_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "READINGS_BYTES_LEAST", 10**6)
    file = bomb(tmp_path, 2)
    assert file.stat().st_size < 100_000
    words = [
        "--config",
        str(write_federation(tmp_path)),
        "--client-column",
        "room",
        "--time-column",
        "time",
        str(file),
    ]
    ended = CliRunner().invoke(replay_command, [*words, "--folder", str(tmp_path / "replay")])
    assert isinstance(ended.exception, SettingsError)
    assert "--bytes-max" in str(ended.exception)
    assert not (tmp_path / "replay").exists()


def test_the_limit_is_a_setting_and_the_disk_is_another(tmp_path: Path) -> None:
    file = bomb(tmp_path, 1)
    folder = tmp_path / "replay"
    assert make_plan(config(), COLUMNS, [file], folder, KEY).readings == ROWS
    with pytest.raises(SettingsError, match="--bytes-max"):
        make_plan(config(), COLUMNS, [file], folder, KEY, bytes_max=ROWS * ROW_BYTES - 1)
    many = [file] * (2 + shutil.disk_usage(tmp_path).free // (ROWS * ROW_BYTES))
    with pytest.raises(SettingsError, match="are free in"):
        make_plan(config(), COLUMNS, many, folder, KEY, bytes_max=2**62)
