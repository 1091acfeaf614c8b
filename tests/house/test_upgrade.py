"""What earlier versions have written: read by today's, or refused in one line that says what to do.

`promised/` has a federation of each version that is promised something: its file, its log, and the
folders of a server and two clients (`shoal producer --synthetic plant`, 6 000 readings, a named
cluster). `before-0.1` is of November 2026.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.forked_python import nodes
from tests.house.test_readers import digests

PROMISED = sorted((Path(__file__).parent / "promised").glob("*.tar.gz"))
READ = {"events list": "night shift", "history export": "night shift"}
"""commands that read what they have published, once the log is upgraded"""
OLDER_LOG = ".db: in layout 2 of an older shoal"
OLDER_CHECKPOINT = "checkpoint.db: written by another version of shoal; run that version"
REFUSED = {
    "server --until-idle 1 --no-page": OLDER_CHECKPOINT,
    "client --name client-1 --until-idle 1": OLDER_CHECKPOINT,
    "privacy report": "was written by another version of shoal",
    "snapshot export --out clusters.json": OLDER_LOG,
    "events list": OLDER_LOG,
    "topics ensure": OLDER_LOG,
    "upgrade data": "Nothing was changed",
}
"""commands that the versions before the first release are refused by, with what they say"""


@pytest.fixture(scope="module", params=PROMISED, ids=lambda path: path.name.removesuffix(".tar.gz"))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that version has left it."""
    folder = tmp_path_factory.mktemp("written")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def upgraded(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log alone of that version, upgraded to today's."""
    folder = tmp_path_factory.mktemp("upgraded")
    (folder / "data").mkdir()
    shutil.copy(written / "plant.toml", folder)
    shutil.copy(written / "data" / "federation.db", folder / "data")
    assert "format 2 to" in run(folder, "upgrade data").stdout
    return folder


def run(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    ended = nodes().run_text(*words.split(), "--config", "plant.toml", cwd=folder)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


@pytest.mark.parametrize("words", READ)
def test_a_log_that_was_upgraded_is_read(upgraded: Path, words: str) -> None:
    ended = run(upgraded, words)
    assert (ended.returncode, READ[words] in ended.stdout) == (0, True), ended.stderr


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_kept_is_refused_with_words(written: Path, words: str) -> None:
    before = digests(written)
    ended = run(written, words)
    assert ended.returncode in (2, 4, 5)
    assert REFUSED[words] in ended.stderr.splitlines()[-1]
    assert ended.stderr.splitlines()[-1].startswith("shoal: ")
    assert digests(written) == before, "and left as it was"
