"""A slow write is one line of the log, at most once a minute for each file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from shoal.runtime.site_readings import SiteReadings, TakenIn
from shoal.telemetry import slow_files
from shoal.telemetry.slow_files import SAID_AGAIN_S, SLOW_S, noting_slowness
from tests.house.counting_federation import create, run


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


def test_every_file_that_a_federation_writes_would_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every write is a slow one here."""
    file = create(tmp_path, 120, clients=["attic"])
    monkeypatch.setattr(slow_files, "SLOW_S", 0.0)
    monkeypatch.setattr(slow_files, "_SAID_AT", {})
    run(file, ["attic"])
    with closing(SiteReadings(tmp_path / "site.db", 10**6)) as site:
        site.take_in([TakenIn("attic", 0, (), b"value")], b"source", {}, {0: 1})
    told = {
        record.__dict__["fields"]["file"]
        for record in caplog.records
        if record.message == "write_slow"
    }
    client = tmp_path / "clients" / "attic"
    server = tmp_path / "server"
    assert told == {
        str(path)
        for path in [
            tmp_path / "federation.db",
            tmp_path / "site.db",
            client / "readings.db",
            client / "checkpoint.db",
            client / "ledger.db",
            server / "checkpoint.db",
            server / "history.db",
        ]
    }
