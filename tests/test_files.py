"""Files that appear whole, and files that hold secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.resolved import resolve
from shoal.errors import SettingsError
from shoal.files import atomic_file, read_password, read_secret, write_secret
from shoal.privacy.ledger import Ledger
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.history.store import HistoryStore
from shoal.transports.sqlite.log import SqliteLog
from tests.small_plant import plant


def read(path: Path) -> bytes:
    return read_secret(path, 10, kind="test key", risk="read it", remedy="make another")


def test_a_file_appears_only_when_it_is_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with atomic_file(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), atomic_file(tmp_path / "made") as temporary:
        temporary.write_text("half") and tmp_path.write_text("a folder takes no text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("replace", "content"), [(False, "old"), (True, "new")])
def test_an_existing_file_is_kept_unless_it_is_to_be_replaced(
    tmp_path: Path, replace: bool, content: str
) -> None:
    path = tmp_path / "made"
    path.write_text("old")
    with atomic_file(path, replace=replace) as temporary:
        temporary.write_text("new")
    assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("replace", ["False", "True"])
@pytest.mark.parametrize("call", ["os.open", "os.fsync", "os.link", "Path.replace"])
def test_a_kill_at_any_call_leaves_the_old_file_or_the_whole_new_one(
    tmp_path: Path, call: str, replace: str
) -> None:
    owner, name = call.split(".")
    program = (
        "import os, sys; from pathlib import Path; from shoal.files import write_secret\n"
        f"real = {call}\n"
        f"{owner}.{name} = lambda *a, **k: (real(*a, **k), os._exit(9))\n"
        f"write_secret(Path(sys.argv[1]), b'whole', replace={replace})"
    )
    path = tmp_path / "key"
    called = subprocess.run([sys.executable, "-c", program, path], check=False).returncode == 9
    assert called or call == ("os.link" if replace == "True" else "Path.replace")
    if path.exists():
        assert path.read_bytes() == b"whole"
    write_secret(path, b"whole")
    assert read(path) == b"whole"


def test_only_its_owner_may_read_a_secret_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_secret(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_only_its_owner_may_read_a_database_under_the_usual_umask(tmp_path: Path) -> None:
    """They hold readings, models and what was spent of the budget."""
    before = os.umask(0o022)
    try:
        databases = [
            SqliteLog(tmp_path / "log.db"),
            Checkpoint(tmp_path / "checkpoint.db", "a"),
            Ledger(tmp_path / "ledger.db", "a", "key"),
            HistoryStore(resolve(plant()), tmp_path / "history.db"),
        ]
        databases[0].ensure("readings")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        for database in databases:
            database.close()
    finally:
        os.umask(before)
    assert {"log.db-wal", "history.db-wal"} <= modes.keys()
    assert len(modes) >= 6
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_a_secret_that_others_have_any_right_to_is_not_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_secret(path, b"secret")
    path.chmod(mode)
    with pytest.raises(
        SettingsError,
        match=rf"test key .*key is open to others \(mode {mode:o}\), who could read it",
    ):
        read(path)


def test_a_secret_longer_than_allowed_is_read_one_byte_beyond_it_and_no_further(
    tmp_path: Path,
) -> None:
    write_secret(tmp_path / "key", b"s" * 1000)
    assert read(tmp_path / "key") == b"s" * 11


def test_a_secret_that_is_not_there_is_the_callers_error_to_explain(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "key")


def test_a_password_is_the_text_of_its_file_without_spaces_around_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" secret\n")
    assert read_password(file, "log") == "secret"


def test_a_password_that_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with pytest.raises(
        SettingsError, match=r"\[log\] .*password: cannot be read \(FileNotFoundError\)"
    ):
        read_password(file, "log")
    file.write_bytes(b"secret\xff")
    with pytest.raises(SettingsError, match="UnicodeDecodeError") as told:
        read_password(file, "log")
    assert "secret" not in str(told.value)
