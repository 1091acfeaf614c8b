"""What earlier versions have written: read by today's, or refused in one line that says what to do.

`promised/` has a federation of each version that is promised something: its file, its log, and the
folders of a server and two clients (`shoal producer --synthetic plant`, 6 000 readings, a named
cluster). `before-0.1` is of November 2026.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.house.test_readers import digests

PROMISED = sorted((Path(__file__).parent / "promised").glob("*.tar.gz"))
OLDER_LOG = ".db: in layout 2 of an older shoal"
REFUSED = {
    "server --until-idle 1 --no-page": OLDER_LOG,
    "client --name client-1 --until-idle 1": OLDER_LOG,
    "privacy report": "was written by another version of shoal",
    "snapshot export --out clusters.json": OLDER_LOG,
    "events list": OLDER_LOG,
    "topics ensure": OLDER_LOG,
}
"""commands that the versions before the first release are refused by, with what they say"""


@pytest.fixture(scope="module", params=PROMISED, ids=lambda path: path.name.removesuffix(".tar.gz"))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that version has left it."""
    folder = tmp_path_factory.mktemp("written")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "shoal"), *words.split(), "--config", "plant.toml"]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_kept_is_refused_with_words(written: Path, words: str) -> None:
    before = digests(written)
    ended = run(written, words)
    assert ended.returncode in (2, 4, 5)
    assert REFUSED[words] in ended.stderr.splitlines()[-1]
    assert ended.stderr.splitlines()[-1].startswith("shoal: ")
    assert digests(written) == before, "and left as it was"
