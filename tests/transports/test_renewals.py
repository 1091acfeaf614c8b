"""Renewals of a lease that are shown without a write to the disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.transports.sqlite.renewals import HOLDER_BYTES, RenewalLocks

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux: other systems have no such locks"
)
SHOW = """
import sys
from pathlib import Path
from shoal.transports.sqlite.renewals import RenewalLocks
locks = RenewalLocks(Path(sys.argv[1]))
for count in (5, 6):
    assert locks.show("one", count)
    print(count, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "federation.db"
    path.touch(0o640)
    return path


@pytest.fixture
def holder(log: Path) -> Iterator[RenewalLocks]:
    with closing(RenewalLocks(log)) as locks:
        yield locks


@pytest.fixture
def watcher(log: Path) -> Iterator[RenewalLocks]:
    with closing(RenewalLocks(log)) as locks:
        yield locks


def test_another_process_sees_each_renewal_until_the_holder_is_killed(
    log: Path, watcher: RenewalLocks
) -> None:
    assert watcher.shown("one") is None
    with subprocess.Popen(
        [sys.executable, "-c", SHOW, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for count in (5, 6):
            assert int(process.stdout.readline()) == count
            assert watcher.shown("one") == count
            process.stdin.write("\n" * (count == 5))
            process.stdin.flush()
        process.kill()
    assert watcher.shown("one") is None


def test_renewals_of_one_holder_are_not_those_of_another(
    holder: RenewalLocks, watcher: RenewalLocks
) -> None:
    assert holder.show("one", 3)
    assert watcher.shown("two") is None
    assert watcher.show("two", 4)
    assert (holder.shown("two"), watcher.shown("one")) == (4, 3)


def test_renewals_are_counted_from_0_again(holder: RenewalLocks, watcher: RenewalLocks) -> None:
    assert holder.show("one", HOLDER_BYTES - 1)
    assert watcher.shown("one") == HOLDER_BYTES - 1
    assert holder.show("one", HOLDER_BYTES)
    assert watcher.shown("one") == 0


def test_a_renewal_writes_nothing_and_has_the_rights_of_the_log(
    log: Path, holder: RenewalLocks
) -> None:
    for count in range(3):
        assert holder.show("one", count)
    (file,) = [path for path in log.parent.iterdir() if path != log]
    assert (file.name, file.stat().st_size) == ("federation.db-lease", 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_holder_whose_file_was_deleted_is_seen_again_with_its_next_renewal(
    log: Path, holder: RenewalLocks, watcher: RenewalLocks
) -> None:
    assert holder.show("one", 1)
    assert watcher.shown("one") == 1
    log.with_name("federation.db-lease").unlink()
    assert watcher.shown("one") is None
    assert holder.show("one", 2)
    assert watcher.shown("one") == 2


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may read every file")
def test_who_may_not_read_the_file_cannot_tell_that_a_holder_has_ended(
    log: Path, holder: RenewalLocks, watcher: RenewalLocks
) -> None:
    assert holder.show("one", 1)
    log.with_name("federation.db-lease").chmod(0)
    with pytest.raises(SettingsError, match="give this user the rights"):
        watcher.shown("one")
