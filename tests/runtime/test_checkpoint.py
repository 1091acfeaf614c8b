"""The checkpoint: as before or as after a save, whatever kills the process, and never silently
empty."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidState, LogUnavailable, SettingsError, ShoalError
from shoal.protocol.codec import PART_DEPTH_MAX, StoredPart, pack, unpack
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from tests.examples import examples
from tests.forked_python import nodes

OWNER = "client attic of plant"


def outbox_record(number: int) -> OutboxRecord:
    return OutboxRecord(
        "plant.updates", b"value %d" % number, b"clusters", (("type", b"update"), ("v", b"1"))
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "checkpoint.db"


@pytest.fixture
def checkpoint(path: Path) -> Iterator[Checkpoint]:
    with Checkpoint(path, OWNER) as opened:
        yield opened


def test_a_new_checkpoint_is_empty(checkpoint: Checkpoint, path: Path) -> None:
    assert checkpoint.load() is None
    assert checkpoint.pending() == []
    assert sorted(
        file.name for file in path.parent.iterdir() if not file.name.startswith("checkpoint.db-")
    ) == ["checkpoint.db"]


def test_an_empty_state_is_not_no_state(checkpoint: Checkpoint) -> None:
    checkpoint.save({})
    assert checkpoint.load() == {}


def test_state_and_outbox_are_kept_over_a_reopening(path: Path) -> None:
    state = {
        "version": 1,
        "half": {"weight": np.arange(6.0).reshape(2, 3), "none": None},
        "name": "ä",
        "raw": b"\0",
    }
    silent = OutboxRecord("t", None, None, ())
    with Checkpoint(path, OWNER) as first:
        first.save(state, [outbox_record(1), silent])
    with Checkpoint(path, OWNER) as second:
        assert pack(second.load()) == pack(state)
        assert second.pending() == [(1, outbox_record(1)), (2, silent)]


def test_only_the_newest_state_is_kept_but_every_record(checkpoint: Checkpoint) -> None:
    for n in range(3):
        checkpoint.save({"n": n}, [outbox_record(n)])
    assert checkpoint.load() == {"n": 2}
    assert [record for _, record in checkpoint.pending()] == [
        outbox_record(0),
        outbox_record(1),
        outbox_record(2),
    ]


def test_published_records_are_deleted_by_the_next_save(checkpoint: Checkpoint) -> None:
    checkpoint.save({}, [outbox_record(1), outbox_record(2), outbox_record(3)])
    assert [number for number, _ in checkpoint.pending(after=2)] == [3]
    checkpoint.save({}, [outbox_record(4)], published_up_to=2)
    assert [record for _, record in checkpoint.pending()] == [outbox_record(3), outbox_record(4)]


def test_record_numbers_are_never_used_again(path: Path) -> None:
    with Checkpoint(path, OWNER) as first:
        first.save({}, [outbox_record(1), outbox_record(2)])
        first.save({}, [], published_up_to=2)
    with Checkpoint(path, OWNER) as second:
        second.save({}, [outbox_record(3)])
        assert second.pending() == [(3, outbox_record(3))]


def test_a_state_that_cannot_be_written_changes_nothing(checkpoint: Checkpoint) -> None:
    checkpoint.save({"n": 1}, [outbox_record(1)])
    with pytest.raises(TypeError):
        checkpoint.save({"n": object()}, [outbox_record(2)])
    # No database can hold such a value, so the save fails.
    unsaved = outbox_record(2)._replace(value=object())  # type: ignore[arg-type]  # tested
    with pytest.raises(TypeError):
        checkpoint.save({"n": 2}, [unsaved])
    assert checkpoint.load() == {"n": 1}
    assert checkpoint.pending() == [(1, outbox_record(1))]


def parts_in(path: Path) -> dict[int, bytes]:
    """The rows of parts, read while no process has the file open."""
    with closing(sqlite3.connect(path)) as file:
        return dict(file.execute("SELECT number, value FROM parts"))


def test_a_part_is_in_its_place_again_after_a_reopening(path: Path) -> None:
    window = StoredPart({"rows": np.arange(6.0).reshape(2, 3)})
    answer = StoredPart([1, None, "ä"])
    state = {"deep": {"window": window, "list": [answer, window]}, "n": 1}
    with Checkpoint(path, OWNER) as first:
        first.save(state)
        assert pack(first.load()) == pack(state)
    with Checkpoint(path, OWNER) as second:
        assert pack(second.load()) == pack(state)


def test_a_part_is_written_once_and_deleted_when_no_state_has_it(path: Path) -> None:
    large = StoredPart(bytes(100_000))
    other = StoredPart("other")
    with Checkpoint(path, OWNER) as first:
        first.save({"n": 1, "parts": [large]})
    assert len(parts_in(path)) == 1
    with Checkpoint(path, OWNER) as second:
        second.save({"n": 2, "parts": [large]})
        written = second._file.total_changes
        second.save({"n": 3, "parts": [large, other]})
        second.save({"n": 4, "parts": [large, other]})
        # The rows of the two states and of `other`; `large` is not written again.
        assert second._file.total_changes - written == 3
        assert second.load() == {"n": 4, "parts": [large.value, "other"]}
        second.save({"n": 5, "parts": [other]})
    assert list(map(unpack, parts_in(path).values())) == ["other"]
    with Checkpoint(path, OWNER) as third:
        third.save({"n": 6})
        assert third.load() == {"n": 6}
    assert parts_in(path) == {}


def test_equal_parts_are_stored_by_themselves(path: Path) -> None:
    with Checkpoint(path, OWNER) as checkpoint:
        checkpoint.save({"parts": [StoredPart("same"), StoredPart("same")]})
        assert checkpoint.load() == {"parts": ["same", "same"]}
    assert len(parts_in(path)) == 2


def test_a_save_that_fails_knows_no_part_of_its_own(checkpoint: Checkpoint) -> None:
    part = StoredPart("whole")
    # No database can hold such a value, so the save fails.
    unsaved = outbox_record(2)._replace(value=object())  # type: ignore[arg-type]  # tested
    with pytest.raises(TypeError):
        checkpoint.save({"part": part}, [unsaved])
    with pytest.raises(TypeError):
        checkpoint.save({"part": StoredPart(object())})
    checkpoint.save({"part": part})
    assert checkpoint.load() == {"part": "whole"}


def test_a_state_that_could_not_be_loaded_is_not_saved(checkpoint: Checkpoint) -> None:
    deep: Any = StoredPart("innermost")
    for _ in range(PART_DEPTH_MAX - 1):
        deep = [deep]
    checkpoint.save({"deep": deep})
    assert pack(checkpoint.load()) == pack({"deep": deep})
    for wrong in ([deep], StoredPart([[deep]])):
        with pytest.raises(TypeError, match="nested deeper"):
            checkpoint.save({"deep": wrong})
    assert pack(checkpoint.load()) == pack({"deep": deep})


def test_a_state_is_as_large_as_it_is_with_its_parts(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.runtime.checkpoint.STATE_BYTES_MAX", 4000)
    large = [StoredPart(bytes(1000)) for _ in range(4)]
    for kept in (large[:3], large[1:], large[:1], [large[3]] * 9, large[:3]):
        checkpoint.save({"parts": kept})
    for parts, rest in ((large, b""), (large[:3], bytes(1000)), ([], bytes(4000))):
        with pytest.raises(
            InvalidState, match=r"a state of 40\d\d bytes is too large, at most 4000 can be saved"
        ):
            checkpoint.save({"parts": parts, "rest": rest})
    assert pack(checkpoint.load()) == pack({"parts": large[:3]})


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM parts", "UPDATE parts SET value = x'a0'", "UPDATE parts SET value = 'text'"],
)
def test_a_damaged_part_is_noticed(path: Path, damage: str) -> None:
    with Checkpoint(path, OWNER) as checkpoint:
        checkpoint.save({"window": StoredPart(bytes(10))})
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(damage)
    with Checkpoint(path, OWNER) as checkpoint, pytest.raises(InvalidState, match="damaged"):
        checkpoint.load()


def test_a_whole_part_in_the_place_of_another_is_never_taken_for_it(path: Path) -> None:
    state = {"a": StoredPart("x"), "b": StoredPart("y")}
    with Checkpoint(path, OWNER) as checkpoint:
        checkpoint.save(state)
    for swap in ("UPDATE parts SET number = -number", "UPDATE parts SET number = number + 3"):
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(swap)
    with Checkpoint(path, OWNER) as checkpoint:
        assert checkpoint.load() == {"a": "x", "b": "y"}
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "UPDATE parts SET value = (SELECT value FROM parts WHERE number = 2) WHERE number = 1"
        )
    with (
        Checkpoint(path, OWNER) as checkpoint,
        pytest.raises(InvalidState, match="a part of the state is gone"),
    ):
        checkpoint.load()


def test_a_part_of_an_earlier_process_under_the_same_number_is_noticed(path: Path) -> None:
    with Checkpoint(path, OWNER) as first:
        first.save({"window": StoredPart("older")})
    with closing(sqlite3.connect(path)) as file:
        older = file.execute("SELECT * FROM parts").fetchall()
    with Checkpoint(path, OWNER) as second:
        second.save({"window": StoredPart("newer")})
        assert second.load() == {"window": "newer"}
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM parts")
        file.executemany("INSERT INTO parts VALUES (?, ?)", older)
    with Checkpoint(path, OWNER) as checkpoint, pytest.raises(InvalidState, match="damaged"):
        checkpoint.load()


def test_closing_twice_is_harmless_and_using_a_closed_one_is_not_called_damage(path: Path) -> None:
    opened = Checkpoint(path, OWNER)
    opened.close()
    opened.close()
    with pytest.raises(sqlite3.ProgrammingError):
        opened.load()


# One owner.

OPENING = """
import sys
from pathlib import Path
from shoal.runtime.checkpoint import Checkpoint
Checkpoint(Path(sys.argv[1]), sys.argv[2])
"""


def test_the_checkpoint_of_another_owner_is_refused(path: Path) -> None:
    Checkpoint(path, OWNER).close()
    with pytest.raises(
        InvalidState, match=f"the checkpoint of {OWNER}, not of server of plant; give each process"
    ):
        Checkpoint(path, "server of plant")
    Checkpoint(path, OWNER).close()


@pytest.mark.parametrize("saves", [0, 1])
def test_a_second_process_of_the_same_owner_is_refused(
    checkpoint: Checkpoint, path: Path, saves: int
) -> None:
    for _ in range(saves):
        checkpoint.save({"n": 1})
    result = nodes().run_text(path, OWNER, program=OPENING)
    assert result.stderr.rstrip().endswith(
        f"in use by another process; is {OWNER} running already?"
    )
    checkpoint.save({"n": 2}, [outbox_record(1)])
    assert checkpoint.load() == {"n": 2}


def test_a_process_cannot_open_it_twice_before_it_is_closed(path: Path) -> None:
    with Checkpoint(path, OWNER), pytest.raises(InvalidState, match="in use"):
        Checkpoint(path, OWNER)
    Checkpoint(path, OWNER).close()


@pytest.mark.parametrize("without", [[], ["parts"], ["parts", "state", "outbox"]], ids=str)
def test_another_format_version_is_refused_whatever_tables_it_has(
    path: Path, without: list[str]
) -> None:
    """The advice for a damaged file would cost a client a second epsilon."""
    Checkpoint(path, OWNER).close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE about SET value = '1' WHERE name = 'format'")
        for table in without:
            file.execute(f"DROP TABLE {table}")
        file.execute("PRAGMA journal_mode=DELETE")
    before = path.read_bytes()
    advice = (
        r"run that version\. .* a client under a new name, and a server in a new folder with"
        r" --rebuild"
    )
    with pytest.raises(InvalidState, match=f"written by another version of shoal; {advice}"):
        Checkpoint(path, OWNER)
    assert path.read_bytes() == before, "and nothing is written to it"


def test_a_file_that_tells_no_version_is_damaged(path: Path) -> None:
    Checkpoint(path, OWNER).close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM about WHERE name = 'format'")
    with pytest.raises(InvalidState, match="not a checkpoint, or only a part of one"):
        Checkpoint(path, OWNER)


# Kills.

SAVING = """
import hashlib, sys
from pathlib import Path
from shoal.protocol.codec import StoredPart, pack
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord

def records(n):
    body = bytes(n * 997 % 50_000)
    headers = (("n", b"%d" % n),)
    return [OutboxRecord("t", b"%d.%d" % (n, k) + body, b"k", headers) for k in range(2)]

def state(n):
    large = hashlib.shake_256(b"%d" % n).digest(1 + n * 7919 % 300_000)
    return {"n": n, "large": large, "parts": parts[:n] + [part(n)]}

def part(n):
    return StoredPart(bytes(n * 4999 % 90_000))

parts = [part(100 + n) for n in range(3)]

if __name__ == "__main__":
    with Checkpoint(Path(sys.argv[1]), "saver") as checkpoint:
        n = (checkpoint.load() or {"n": 0})["n"]
        print("ready", flush=True)
        while True:
            n += 1
            checkpoint.save(state(n), records(n), published_up_to=2 * (n - 2))
            print(n, flush=True)
"""


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_it_as_before_or_after_a_save(
    path: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    os.mkfifo(output)
    made: dict[str, Any] = {"__name__": "saving"}
    exec(SAVING, made)
    chance = random.Random(7)
    saved = 0
    for _ in range(25):
        child = nodes().start([str(path)], output, Path(os.devnull), tmp_path, program=SAVING)
        with output.open(encoding="utf-8") as lines:
            result = [lines.readline() for _ in range(chance.randrange(12))]
            child.send_signal(signal.SIGKILL)
            result += lines.readlines()
        child.wait()
        acknowledged = max(
            [
                saved,
                *(int(line) for line in result if line.strip().isdigit() and line.endswith("\n")),
            ]
        )
        if not path.exists():
            continue  # killed before anything was saved
        with Checkpoint(path, "saver") as checkpoint:
            state = checkpoint.load()
            saved = 0 if state is None else state["n"]
            assert saved in {acknowledged, acknowledged + 1}
            assert state is None or pack(state) == pack(made["state"](saved))
            kept = [
                record for n in range(max(1, saved - 1), saved + 1) for record in made["records"](n)
            ]
            assert [record for _, record in checkpoint.pending()] == kept
    assert saved > 10, "enough was saved for kills to hit"


@pytest.mark.long
@pytest.mark.parametrize("call", ["os.link", "os.fsync", "secrets.token_hex", "sqlite3.connect"])
def test_a_kill_while_the_file_is_created_leaves_none_or_a_whole_one(path: Path, call: str) -> None:
    module, name = call.split(".")
    program = (
        "import os, secrets, sqlite3, sys; from pathlib import Path; from shoal.runtime.checkpoint"
        f" import Checkpoint\nreal = {call}\n{module}.{name} = lambda *a, **k: (real(*a, **k),"
        " os._exit(9))\nCheckpoint(Path(sys.argv[1]), sys.argv[2])"
    )
    assert nodes().run(path, OWNER, program=program).returncode == 9
    with Checkpoint(path, OWNER) as checkpoint:
        assert checkpoint.load() is None
        checkpoint.save({"n": 1})


# Damage.


def whole(folder: Path) -> Path:
    """A closed checkpoint with a state and two parts over many pages, and a few outbox records."""
    path = folder / "checkpoint.db"
    parts = [StoredPart(bytes(range(256)) * 50), StoredPart({"rows": np.arange(2000.0)})]
    with Checkpoint(path, OWNER) as checkpoint:
        for n in range(3):
            checkpoint.save(
                {"n": n, "large": bytes(range(256)) * 100, "parts": parts}, [outbox_record(n)]
            )
    return path


def read_all(path: Path) -> bytes:
    """State and outbox, as bytes."""
    with Checkpoint(path, OWNER) as checkpoint:
        records = [[number, list(record)] for number, record in checkpoint.pending()]
        return pack([checkpoint.load(), records])


def outcome(path: Path) -> bytes | str:
    """State and outbox, or the text of the error."""
    try:
        return read_all(path)
    except InvalidState as rejected:
        return str(rejected)


@pytest.fixture(scope="module")
def intact() -> Iterator[tuple[bytes, bytes]]:
    """The bytes of an undamaged file, and its state and outbox."""
    with tempfile.TemporaryDirectory() as folder:
        path = whole(Path(folder))
        yield path.read_bytes(), read_all(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(100),
        bytes(40_000),
        b"not a checkpoint\n" * 100,
        b"SQLite format 3\0",
        b"SQLite format 3\0" + bytes(4080),
    ],
    ids=["empty", "zeros", "many zeros", "text", "magic", "page"],
)
def test_a_file_of_another_kind_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.db"
    path.write_bytes(content)
    with pytest.raises(
        InvalidState, match=r"damaged .*Restore it from a backup, or move the folder away"
    ):
        Checkpoint(path, OWNER)
    assert path.read_bytes() == content, "and nothing is written to it"


def test_another_sqlite_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE customers (name)")
    before = path.read_bytes()
    with pytest.raises(InvalidState, match="not a checkpoint"):
        Checkpoint(path, OWNER)
    assert path.read_bytes() == before


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, intact: tuple[bytes, bytes]) -> None:
    content, saved_content = intact
    path = tmp_path / "checkpoint.db"
    for length in {*range(0, len(content), 1024), len(content) - 1}:
        path.write_bytes(content[:length])
        result = outcome(path)
        assert isinstance(result, str) or (
            result == saved_content and length >= len(content) - 4096
        ), length


@pytest.mark.parametrize("filler", [0x00, 0xFF])
def test_a_page_overwritten_is_refused_or_was_not_in_use(
    tmp_path: Path, intact: tuple[bytes, bytes], filler: int
) -> None:
    content, saved_content = intact
    path = tmp_path / "checkpoint.db"
    refusals = 0
    for start in range(0, len(content), 4096):
        path.write_bytes(content[:start] + bytes([filler]) * 4096 + content[start + 4096 :])
        result = outcome(path)
        assert isinstance(result, str) or result == saved_content, start
        refusals += isinstance(result, str)
    assert refusals > len(content) // 4096 // 2


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_are_refused_or_hit_what_was_not_in_use(
    tmp_path: Path, intact: tuple[bytes, bytes], data: st.DataObject
) -> None:
    content = bytearray(intact[0])
    saved_content = intact[1]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "checkpoint.db"
    path.write_bytes(bytes(content))
    result = outcome(path)
    assert isinstance(result, str) or result == saved_content


def test_a_damaged_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = whole(tmp_path)
    content = path.read_bytes()
    assert content.count(b"tableoutbox") == 1
    path.write_bytes(content.replace(b"tableoutbox", b"table\x8cutbox", 1))
    with pytest.raises(InvalidState, match="damaged"):
        Checkpoint(path, OWNER)


def test_a_state_that_was_removed_is_noticed(tmp_path: Path) -> None:
    path = whole(tmp_path)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM state")
    with pytest.raises(InvalidState, match="the state is gone"):
        read_all(path)


def test_an_identity_that_was_removed_is_noticed(tmp_path: Path) -> None:
    path = whole(tmp_path)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM holders")
    with pytest.raises(InvalidState, match="damaged"):
        Checkpoint(path, OWNER)


def test_a_copy_of_a_closed_checkpoint_is_a_backup(tmp_path: Path) -> None:
    path = whole(tmp_path)
    saved_content = read_all(path)
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    path.write_bytes(b"")
    shutil.copy(backup, path)
    assert read_all(path) == saved_content


# Full disks and access rights.

FULL = """
import resource, sys
from pathlib import Path
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.errors import LogUnavailable
with Checkpoint(Path(sys.argv[1]), sys.argv[2]) as checkpoint:
    checkpoint.save({"n": 1}, [OutboxRecord("t", b"1", None, ())])
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        checkpoint.save(
            {"n": 2, "large": bytes(1_000_000)},
            [OutboxRecord("t", b"2", None, ())],
            published_up_to=1,
        )
    except LogUnavailable as full:
        print(full)
    assert checkpoint.load() == {"n": 1}, "as before"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    checkpoint.save({"n": 3}, [OutboxRecord("t", b"3", None, ())])
"""


@pytest.mark.skipif(os.name != "posix", reason="limits of file sizes are POSIX")
def test_a_full_disk_is_retriable_and_nothing_is_lost(path: Path) -> None:
    result = nodes().run_text(path, OWNER, program=FULL)
    assert result.returncode == 0, result.stderr
    assert "cannot be written" in result.stdout
    assert "make room" in result.stdout
    with Checkpoint(path, OWNER) as checkpoint:
        assert checkpoint.load() == {"n": 3}
        assert [record.value for _, record in checkpoint.pending()] == [b"1", b"3"]


def test_a_full_disk_is_retriable_and_missing_rights_are_not() -> None:
    assert LogUnavailable.retriable
    assert not SettingsError.retriable
    assert not InvalidState.retriable


def test_a_folder_in_place_of_the_file_raises(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be a file that this user may write"):
        Checkpoint(tmp_path, OWNER)


def test_a_file_in_place_of_the_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("")
    with pytest.raises(SettingsError, match="name a folder that this user may write"):
        Checkpoint(tmp_path / "memory" / "deeper" / "checkpoint.db", OWNER)


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from shoal.runtime.checkpoint import Checkpoint
from shoal.errors import ShoalError
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    Checkpoint(Path(sys.argv[1]), sys.argv[2])
except ShoalError as refused:
    print(type(refused).__name__, refused)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
@pytest.mark.parametrize("case", ["folder", "file", "hidden"])
def test_a_path_that_this_user_may_not_write_raises(open_folder: Path, case: str) -> None:
    path = open_folder / "checkpoint.db"
    if case == "file":
        Checkpoint(path, OWNER).close()
        path.chmod(0o444)
    open_folder.chmod(0o000 if case == "hidden" else 0o555)
    result = nodes().run_text(path, OWNER, program=UNPRIVILEGED, cwd=Path("/"))
    open_folder.chmod(0o755)
    assert result.stdout.startswith("SettingsError"), result
    assert "this user may write" in result.stdout


def test_every_error_is_one_of_ours(tmp_path: Path) -> None:
    for wrong in (Path("/dev/null/x/checkpoint.db"), tmp_path):
        with pytest.raises(ShoalError):
            Checkpoint(wrong, OWNER)


def test_a_checkpoint_keeps_little_of_its_file_in_memory(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "checkpoint.db", "a") as checkpoint:
        assert checkpoint._file.execute("PRAGMA cache_size").fetchone() == (-256,)  # KiB
