"""A slow write is one line of the log, at most once a minute for each file."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.telemetry.slow_files import SAID_AGAIN_S, SLOW_S, noting_slowness


def test_a_slow_write_is_told_once_a_minute_also_where_it_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0

    def write(file: Path | None, took_s: float) -> None:
        nonlocal now
        with noting_slowness(file, lambda: now):
            now += took_s
            if file == tmp_path / "failing":
                raise OSError("the disk fails")

    write(tmp_path / "quick", SLOW_S / 2)
    write(None, SLOW_S)
    assert caplog.messages == []
    write(tmp_path / "slow", SLOW_S)
    write(tmp_path / "slow", SLOW_S)
    with pytest.raises(OSError, match="the disk fails"):
        write(tmp_path / "failing", SLOW_S)
    told = [record.__dict__["fields"] for record in caplog.records]
    assert told == [
        {"file": str(tmp_path / name), "took_s": SLOW_S} for name in ("slow", "failing")
    ]
    now += SAID_AGAIN_S
    write(tmp_path / "slow", SLOW_S)
    assert len(caplog.records) == 3
