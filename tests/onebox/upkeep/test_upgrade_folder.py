"""`shoal upgrade`: all or nothing, in one step, with what was kept, and never beside a process."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.formats import Format
from shoal.cli.main import shoal
from shoal.errors import CheckpointInUse, InvalidState, SettingsError
from shoal.onebox.upkeep import upgrade as upgrading
from shoal.onebox.upkeep.databases import NUMBERS
from shoal.onebox.upkeep.upgrade import beside, undo, upgrade
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.base import TopicSettings
from shoal.transports.sqlite.log import SqliteLog
from tests.house.small_federation import CLIENTS, create_federation, final_model, run_to_end
from tests.house.test_readers import digests

NEXT = "ALTER TABLE about ADD COLUMN noted TEXT"
"""what a later version might change of its checkpoints"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation that has stopped."""
    folder = tmp_path_factory.mktemp("upgrade") / "data"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        # Rows as older layouts have them, too, are one record each.
        patched.setattr("shoal.transports.sqlite.records.PACKED_ROWS", 10**9)
        file = create_federation(folder, CLIENTS[:1], readings=120, pool_clients=1)
        run_to_end(file, CLIENTS[:1])
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(stopped, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def older(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder beside a version whose checkpoints and logs have the next format."""

    def next_checkpoint(db: sqlite3.Connection) -> None:
        db.execute(NEXT)
        db.execute("UPDATE about SET value = ? WHERE name = 'format'", (NUMBERS["checkpoint"] + 1,))

    def next_log(db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA user_version = {NUMBERS['log'] + 1}")

    numbers = {**NUMBERS, "checkpoint": NUMBERS["checkpoint"] + 1, "log": NUMBERS["log"] + 1}
    steps: dict[tuple[str, int], Callable[[sqlite3.Connection], None]] = {
        ("checkpoint", NUMBERS["checkpoint"]): next_checkpoint,
        ("log", NUMBERS["log"]): next_log,
    }
    monkeypatch.setattr(upgrading, "NUMBERS", numbers)
    monkeypatch.setattr(upgrading, "STEPS", steps)
    monkeypatch.setattr("shoal.runtime.checkpoint.FORMAT", numbers["checkpoint"])
    return folder


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def names_beside(folder: Path) -> set[str]:
    return {path.name for path in folder.parent.iterdir()}


def test_a_folder_in_the_formats_of_this_version_is_left_as_it_is(folder: Path) -> None:
    before = digests(folder)
    ended = CliRunner().invoke(shoal, ["upgrade", str(folder)])
    assert ended.exit_code == 0
    assert ended.output.startswith(f"{folder}: all files ")
    assert ended.output.count("\n") == 1
    assert digests(folder) == before
    assert names_beside(folder) == {"data"}


def test_every_file_is_upgraded_and_what_was_is_kept(older: Path) -> None:
    before = digests(older)
    done = upgrade(older)
    assert {(database.path.name, database.kind) for database in done.changed} == {
        ("checkpoint.db", "checkpoint"),
        ("federation.db", "log"),
        ("readings.db", "log"),
    }
    assert done.kept == beside(older, "before-upgrade")
    assert digests(done.kept) == before, "to the bit"
    with Checkpoint(older / "server/checkpoint.db", "server of house") as checkpoint:
        assert checkpoint.load() is not None
    key = older / "clients/attic/noise.key"
    assert key.stat().st_mode == (done.kept / "clients/attic/noise.key").stat().st_mode
    assert names_beside(older) == {"data", "data.before-upgrade"}
    # And back, which is possible as long as nobody has written.
    undo(older)
    assert digests(older) == before
    assert names_beside(older) == {"data"}
    with pytest.raises(SettingsError, match="nothing to undo"):
        undo(older)


def test_an_upgrade_is_not_undone_once_a_process_has_written(older: Path) -> None:
    upgrade(older)
    execute(older / "clients/attic/ledger.db", "UPDATE accounts SET claimed = claimed + 1")
    with pytest.raises(InvalidState, match=r"ledger\.db: has changed .* under a new name"):
        undo(older)
    assert names_beside(older) == {"data", "data.before-upgrade"}
    shutil.copy(beside(older, "before-upgrade") / "federation.db", older)
    with pytest.raises(SettingsError, match="folder before the last upgrade: move it away"):
        upgrade(older)


@pytest.mark.parametrize(
    ("file", "statement", "words"),
    [
        ("clients/attic/ledger.db", "UPDATE about SET value = 99", "newer than"),
        ("clients/attic/ledger.db", "UPDATE about SET value = 2", "older than this version"),
        ("clients/attic/readings.db", "PRAGMA user_version = 99", "newer than"),
        ("server/checkpoint.db", "UPDATE state SET digest = x'00'", "not as it was saved"),
        ("server/checkpoint.db", "UPDATE about SET value = 'x'", "no number"),
    ],
)
def test_one_file_that_is_not_accepted_keeps_all_as_they_are(
    older: Path, file: str, statement: str, words: str
) -> None:
    name = "" if "state" in statement or "PRAGMA" in statement else " WHERE name = 'format'"
    execute(older / file, statement + name)
    before = digests(older)
    with pytest.raises(InvalidState, match=words):
        upgrade(older)
    assert digests(older) == before
    assert names_beside(older) == {"data"}


def test_a_state_in_another_form_keeps_all_as_they_are(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Format("server", "shoal.privacy.formal:STATE_VERSION")
    monkeypatch.setattr("shoal.onebox.upkeep.databases.STATES", {"server of ": form})
    before = digests(older)
    with pytest.raises(InvalidState, match=r"state of server of house has form \d+, .* reads 1"):
        upgrade(older)
    assert digests(older) == before


def test_an_upgrade_is_refused_while_a_process_has_a_file_open(older: Path) -> None:
    before = digests(older)
    # An idle process: it reads and writes nothing at present.
    program = (
        "import sys\nfrom shoal.transports.sqlite.log import SqliteLog\n"
        "log = SqliteLog(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()\nlog.close()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(older / "federation.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(CheckpointInUse, match="in use by a running process; stop all"):
            upgrade(older)
        holder.communicate("")
    assert digests(older) == before
    assert names_beside(older) == {"data"}
    upgrade(older)


class Killed(BaseException):
    """The process ends at once."""


@pytest.mark.parametrize("call", ["copy_tree", "sync_tree", "exchange", "sync_folder"])
def test_a_kill_leaves_the_folder_as_it_was_or_upgraded(
    older: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = digests(older)
    original = getattr(upgrading, call)

    def then_killed(*arguments: Path) -> None:
        original(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(upgrading, call, then_killed)
        # A killed process removes nothing.
        patched.setattr(upgrading.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            upgrade(older)
    if call == "exchange":
        assert digests(beside(older, "upgrading")) == before
    else:
        assert digests(older) == before
    upgrade(older)
    assert digests(beside(older, "before-upgrade")) == before
    assert names_beside(older) == {"data", "data.before-upgrade"}
    undo(older)
    assert digests(older) == before


def test_a_log_elsewhere_must_be_readable_too(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(SqliteLog(other)) as log:
        log.ensure("house.updates", TopicSettings())
    file = folder / "federation.toml"
    file.write_text(file.read_text("utf-8").replace("sqlite:federation.db", f"sqlite:{other}"))
    assert CliRunner().invoke(shoal, ["upgrade", str(folder), "--config", str(file)]).exit_code == 0
    execute(other, "PRAGMA user_version = 99")
    ended = CliRunner().invoke(shoal, ["upgrade", str(folder), "--config", str(file)])
    assert "the log is in layout 99" in str(ended.exception)


def test_an_upgraded_federation_goes_on_as_an_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    """From the oldest layout of the log that there are steps from."""
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(folder, undisturbed)
    for path in (folder / "federation.db", folder / "clients/attic/readings.db"):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for (table,) in db.execute(
                "SELECT name FROM sqlite_master WHERE name GLOB 'rows_[0-9]*_[0-9]'"
            ).fetchall():
                [batches] = db.execute(f"SELECT count(batch_records) FROM {table}").fetchone()
                assert batches == 0, "rows of layout 2 are one record each"
                db.execute(f"ALTER TABLE {table} DROP COLUMN batch_records")
                db.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
                db.execute(f"ALTER TABLE {table} RENAME TO records{table.removeprefix('rows')}")
            db.execute("ALTER TABLE marks DROP COLUMN loose")
            db.execute("PRAGMA user_version = 2")
    ended = CliRunner().invoke(
        shoal, ["upgrade", str(folder), "--config", str(folder / "federation.toml")]
    )
    assert ended.exit_code == 0, ended.exception
    for place in (folder, undisturbed):
        run_to_end(place / "federation.toml", CLIENTS[:1])
    assert final_model(folder / "federation.toml") == final_model(undisturbed / "federation.toml")
