"""Disks, rights and files that are not what they must be: one clear line each, and nothing
harmed."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from shoal.errors import LogError, LogUnavailable
from shoal.runtime.checkpoint import Checkpoint, Outbox, OutboxRecord
from shoal.transports import open_log
from shoal.transports.base import UNREADABLE, RecordBatch, beginning
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.reader import SqliteLogReader
from shoal.transports.sqlite.schema import SCHEMA_VERSION, add_checksums, add_packing

TOPIC = "readings"


def run(program: str, *arguments: str) -> str:
    """What a Python program of its own prints; it may spoil its own process as it likes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(path: Path, records: int = 1) -> Path:
    with closing(SqliteLog(path)) as log:
        log.ensure(TOPIC)
        for number in range(records):
            # Random, as rows of equal values would take a page together.
            log.publish(TOPIC, b"%d" % number + random.Random(number).randbytes(1000))
    return path


@pytest.mark.skipif(os.name != "posix", reason="locks as POSIX has them")
def test_a_second_log_in_a_process_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """A lost lock would let another process delete the write-ahead log that is in use."""
    path = written(tmp_path / "log.db")
    take_shared_bytes = """
        import fcntl, sys
        with open(sys.argv[1], "r+b") as file:
            try:  # SHARED_FIRST and SHARED_SIZE of SQLite's os.h
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
                print("free")
            except OSError:
                print("locked")
    """
    with closing(SqliteLog(path)) as first:
        assert len(first.read(TOPIC, {0: 0})[0]) == 1
        with closing(SqliteLog(path)) as second:
            assert len(second.read(TOPIC, {0: 0})[0]) == 1
        assert run(take_shared_bytes, str(path)) == "locked\n"
    assert run(take_shared_bytes, str(path)) == "free\n"


def test_a_full_disk_is_worth_a_retry_and_the_retry_stores_everything_once(tmp_path: Path) -> None:
    program = """
        import resource, sys
        from shoal.errors import LogUnavailable
        from shoal.transports import open_log

        log = open_log(sys.argv[1])
        log.ensure("t")
        log.publish("t", b"before")
        log.flush()
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        for number in range(100):
            log.publish("t", bytes(10_000), key=b"%d" % number)
        for _ in range(3):
            try:
                log.flush()
            except LogUnavailable as error:
                print("refused:", error)
        print("readable:", log.bounds("t"), len(log.read("t", {0: 0})[0]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.flush()
        log.flush()
        records, _ = log.read("t", {0: 0})
        keys = [int(record.key) for record in records[1:]]
        print("stored:", log.bounds("t"), keys == list(range(100)))
        log.close()
    """
    *rejected, readable, stored = run(program, f"sqlite:{tmp_path}/log.db").splitlines()
    assert len(rejected) == 3
    assert all(line.startswith("refused: log") and "disk" in line for line in rejected)
    assert readable == "readable: {0: (0, 1)} 1"
    assert stored == "stored: {0: (0, 101)} True"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter: pytest's own lets no other user in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        folder.chmod(0o755)


def test_a_log_without_write_permission_is_named(open_folder: Path) -> None:
    path = written(open_folder / "log.db")
    path.chmod(0o444)
    open_folder.chmod(0o555)
    program = """
        import os, sys
        from shoal.config.extension_settings import TRANSPORTS
        from shoal.errors import SettingsError
        from shoal.transports import open_log
        from shoal.transports.sqlite.log import SqliteLog
        TRANSPORTS.load("sqlite")  # while this user may still read the code
        if os.geteuid() == 0:  # root may write everything
            os.setuid(65534)
        for address in sys.argv[1:]:
            try:
                log = open_log(address)
                log.ensure("another")
            except SettingsError as error:
                print(error)
    """
    lines = run(program, f"sqlite:{path}", f"sqlite:{open_folder}/new.db").splitlines()
    assert len(lines) == 2
    assert f"log {path}: not writable; give this user the right" in lines[0]
    assert f"log {open_folder}/new.db: cannot be opened; check that the folder exists" in lines[1]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    text = b"time,temperature\n" * 10_000
    path.write_bytes(text)
    with pytest.raises(LogError, match=r"log .*log\.db: not a log of shoal; give another path"):
        open_log(str(path))
    assert path.read_bytes() == text
    assert [file.name for file in tmp_path.iterdir()] == ["log.db"]


def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE topics (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(LogError, match="another program"):
        open_log(str(path))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["log.db"]


def test_a_log_of_a_newer_layout_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "log.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer = f"layout {SCHEMA_VERSION + 1}, this shoal knows {SCHEMA_VERSION}; upgrade shoal"
    with pytest.raises(LogError, match=newer):
        open_log(str(path))


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    written(path)
    with closing(open_log(str(path))) as log:
        assert log.bounds(TOPIC) == {0: (0, 1)}


def make_many(folder: Path, together: Barrier) -> None:
    for number in range(40):
        together.wait(60)
        written(folder / f"{number}.db")


def test_many_processes_make_one_log_at_once_and_none_is_turned_away(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(4)
    makers = [spawn.Process(target=make_many, args=(tmp_path, together)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 4
    for number in range(40):
        with closing(SqliteLog(tmp_path / f"{number}.db")) as log:
            assert log.bounds(TOPIC) == {0: (0, 4)}


def test_a_log_that_is_locked_when_it_is_opened_is_worth_a_retry(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LogUnavailable, match="another process held the lock too long"):
            SqliteLog(path, wait_s=0.0)
        other.execute("ROLLBACK")
    written(path)


def test_a_log_half_made_when_the_power_was_cut_is_made_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as db:  # as far as making a log gets before its tables
        db.execute("PRAGMA page_size = 16384")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0
    written(path)
    with closing(open_log(str(path))) as log:
        assert log.bounds(TOPIC) == {0: (0, 1)}


@pytest.mark.parametrize("page", range(1, 20))
def test_a_damaged_page_is_refused_or_harmless_but_never_another_error(
    tmp_path: Path, page: int
) -> None:
    path = written(tmp_path / "log.db", records=200)
    pages = bytearray(path.read_bytes())
    assert len(pages) > 12 * 16384
    start = min(page * 16384, len(pages) - 16384)
    pages[start : start + 2000] = b"\xa5" * 2000
    path.write_bytes(pages)
    with suppress(LogError), closing(open_log(str(path))) as log:
        records, _ = log.read(TOPIC, beginning(log, TOPIC))
        log.publish(TOPIC, b"on")
        log.flush()
        assert len(records) == 200


def test_a_truncated_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path / "log.db", records=200)
    os.truncate(path, 3 * 16384)
    with (
        pytest.raises(LogError, match="damaged; move it away"),
        closing(open_log(str(path))) as log,
    ):
        log.read(TOPIC, beginning(log, TOPIC))


def test_a_damaged_name_that_cannot_even_be_quoted_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "log.db", records=1)
    content = path.read_bytes()
    assert b"rows_1_0" in content
    path.write_bytes(content.replace(b"rows_1_0", b"\x8cows_1_0", 1))
    with (
        pytest.raises(LogError, match="damaged; move it away"),
        closing(open_log(str(path))) as log,
    ):
        log.ensure(TOPIC)


@pytest.mark.parametrize("column", ["first", "next", "bytes", "loose"])
def test_a_place_that_is_no_number_is_a_damaged_file(column: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.db")
    with closing(sqlite3.connect(path)) as db, db:
        # Columns of SQLite hold values of any type.
        db.execute(f"UPDATE marks SET {column} = 'far'")
    with closing(SqliteLog(path)) as log:
        with pytest.raises(LogError, match="damaged"):
            log.bounds(TOPIC)
        with pytest.raises(LogError, match="damaged"):
            log.read(TOPIC, {0: 0})


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE time",
        "DELETE FROM time",
        "UPDATE time SET now_ms = 'x'",
        "UPDATE time SET boot = x'ff', steady_ms = 1.5",
    ],
)
def test_the_time_of_a_log_is_made_again_where_it_is_damaged(damage: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(damage)
    before_ms = 1000 * time.time() - 1
    with closing(SqliteLog(path)) as log:
        log.ensure(TOPIC)
        log.publish(TOPIC, b"after")
        log.flush()
        *_, newest = log.read(TOPIC, {0: 0})[0]
    assert newest.value == b"after"
    assert before_ms <= newest.timestamp_ms <= 1000 * time.time()


def in_two_ways(path: Path) -> Path:
    """A log with five records in rows of their own, a batch of six in one row, and one more."""
    with closing(SqliteLog(path)) as log:
        log.ensure(TOPIC)
        for number in range(5):
            log.publish(TOPIC, b"one %d" % number, b"key", (("n", b"%d" % number),))
            log.flush()
        log.publish_batch(TOPIC, RecordBatch([b"of a batch"] * 6, (("n", b"5"),)), 0)
        log.publish(TOPIC, b"last")
    return path


@pytest.mark.parametrize(
    "damage",
    [
        "value = CAST(replace(CAST(value AS TEXT), 'o', 'p') AS BLOB)",
        "value = NULL",
        "value = CAST(value AS TEXT)",
        "key = x'6b'",
        "headers = NULL",
        "timestamp_ms = timestamp_ms + 1",
        "size = size + 64",
        "batch_records = coalesce(batch_records, 0) + 1",
        "batch_records = CASE WHEN batch_records IS NULL THEN 1.5 END",
        "checksum = checksum + 1",
        "checksum = NULL",
    ],
)
def test_a_row_that_has_changed_is_left_out_and_said(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = in_two_ways(tmp_path / "log.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE rows_1_0 SET {damage} WHERE offset IN (3, 5)")
    with closing(SqliteLog(path)) as log, closing(SqliteLogReader(path)) as reader:
        records, after = log.read(TOPIC, {0: 0})
        assert reader.read(TOPIC, {0: 0}) == (records, after)
        assert [record.offset for record in records] == list(range(12))
        assert after == {0: 12}
        unreadable = [record for record in records if record.value is None]
        assert [record.offset for record in unreadable] == [3, *range(5, 11)]
        assert all(UNREADABLE in dict(record.headers) for record in unreadable)
        assert records[-1].value == b"last"
        # The same from every position, so that a reader that stopped within the row goes on.
        for position in range(12):
            assert log.read(TOPIC, {0: position})[0] == records[position:]
            assert log.read(TOPIC, {0: position}, limit=1)[0] == records[position : position + 1]
    damaged = [entry for entry in caplog.records if entry.msg == "log_row_damaged"]
    said = [vars(entry)["fields"] for entry in damaged]
    assert {(fields["offset"], fields["records"]) for fields in said} == {(3, 1), (5, 6)}
    assert all(fields["written_after"] <= fields["written_before"] for fields in said)


def test_what_an_outbox_has_published_last_is_given_again_where_it_was_damaged(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "log.db", records=0)
    for start in ("first", "after a kill"):
        with (
            closing(Checkpoint(tmp_path / "checkpoint.db", "client")) as checkpoint,
            closing(SqliteLog(path)) as log,
        ):
            outbox = Outbox(checkpoint, log)
            checkpoint.load()
            if start == "first":
                record = OutboxRecord(TOPIC, b"update", b"key", ())
                outbox.store({"state": 1}, [record], 1.0)
            outbox.publish_pending()
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE rows_1_0 SET value = x'00' WHERE offset = 0")
    with closing(SqliteLog(path)) as log:
        assert [record.value for record in log.read(TOPIC, {0: 0})[0]] == [None, b"update"]


def test_an_upgraded_log_has_the_checksums_that_a_new_one_has(tmp_path: Path) -> None:
    path = in_two_ways(tmp_path / "log.db")
    with closing(SqliteLog(path)) as log:
        before = list(log.read(TOPIC, {0: 0})[0])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        checksums = db.execute("SELECT offset, checksum FROM rows_1_0").fetchall()
        db.execute("ALTER TABLE rows_1_0 DROP COLUMN checksum")
        db.execute("ALTER TABLE marks DROP COLUMN loose")
        add_checksums(db)
        add_packing(db)
        assert db.execute("SELECT offset, checksum FROM rows_1_0").fetchall() == checksums
    with closing(SqliteLog(path)) as log:
        assert list(log.read(TOPIC, {0: 0})[0]) == before
