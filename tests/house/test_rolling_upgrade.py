"""Clients and servers of neighbouring versions run side by side, in both orders, each from a wheel
of its own; then what is older is upgraded in its place.

There is no release yet. So the other wheel is this tree under another version number, which shows
that two installations work together and that no message is bound to a version; `SHOAL_OTHER_WHEEL`
names the wheel of another tree, whose states need not be those of this one as each process goes on
with its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal import __version__
from tests.house.federation_processes import (
    FINISH,
    check_exactly_once,
    parts,
    prepare_federation,
    write_part,
)
from tests.house.small_federation import CLIENTS
from tests.test_wheel import build_wheel, copy_sources

OTHER = os.environ.get("SHOAL_OTHER_WHEEL")
OTHER_VERSION = "0.1.99"

pytestmark = pytest.mark.integration


def unpacked(wheel: Path, folder: Path) -> Path:
    """The folder that a wheel was unpacked into, as an installer does."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of packages: that of this version, and that of another one."""
    folder = tmp_path_factory.mktemp("installations")
    sources = copy_sources(folder / "sources")
    this = build_wheel(sources, folder / "this-wheel")
    if OTHER is None:
        package = sources / "shoal" / "__init__.py"
        text = package.read_text(encoding="utf-8")
        assert f'"{__version__}"' in text
        package.write_text(text.replace(f'"{__version__}"', f'"{OTHER_VERSION}"'), "utf-8")
        other = build_wheel(sources, folder / "other-wheel")
    else:
        other = Path(OTHER)
    return {"this": unpacked(this, folder / "this"), "other": unpacked(other, folder / "other")}


class Command:
    """A process of one installation."""

    def __init__(self, installation: Path, log: Path, *words: str) -> None:
        self._log = log
        # First on the path, so that the packages of this environment are found and its shoal not.
        environment = {**os.environ, "PYTHONPATH": str(installation)}
        with log.open("ab") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shoal", *words],
                env=environment,
                cwd=log.parent,
                stdout=written,
                stderr=written,
            )

    def end(self) -> None:
        """Wait until it ends by itself, in order."""
        assert self._process.wait(280) == 0, self._log.read_text("utf-8")[-2000:]

    def kill(self) -> None:
        """End it where it is still running."""
        self._process.kill()
        self._process.wait()


def feed(installation: Path, file: Path) -> None:
    """Let a producer write the newest part of the readings into the logs of the clients."""
    part = str(file.parent / f"sites-{len(parts(file.parent))}.csv")
    words = ["producer", "--config", str(file), part]
    words += ["--split", "column:site", "--time-column", "time"]
    Command(installation, file.parent / "producer.txt", *words).end()


def run_side_by_side(server: Path, client: Path, file: Path) -> None:
    """Run a server of one installation beside clients of another until none has more to do."""
    folder = file.parent
    config = ["--config", str(file)]
    started = [Command(server, folder / "server.txt", "server", *config, "--no-page", *FINISH)]
    for name in CLIENTS:
        words = ["client", *config, "--name", name, *FINISH]
        started.append(Command(client, folder / f"{name}.txt", *words))
    try:
        for command in reversed(started):
            command.end()
        # The server may have been idle before the last client was done.
        Command(server, folder / "server.txt", "server", *config, "--no-page", *FINISH).end()
    finally:
        for command in started:
            command.kill()


def version_of(installation: Path, folder: Path) -> str:
    log = folder / f"version-{installation.name}.txt"
    Command(installation, log, "--version").end()
    return log.read_text("utf-8")


def test_each_installation_is_of_its_own_version(
    installations: dict[str, Path], tmp_path: Path
) -> None:
    assert version_of(installations["this"], tmp_path).strip().endswith(__version__)
    if OTHER is None:
        assert version_of(installations["other"], tmp_path).strip().endswith(OTHER_VERSION)


@pytest.mark.parametrize("upgraded_first", ["server", "clients"])
def test_a_federation_goes_on_while_its_processes_are_upgraded_one_after_the_other(
    installations: dict[str, Path], tmp_path: Path, upgraded_first: str
) -> None:
    this = installations["this"]
    other = installations["other"]
    file = prepare_federation(tmp_path, "sqlite:federation.db")
    server = this if upgraded_first == "server" else other
    client = other if upgraded_first == "server" else this
    feed(client, file)
    run_side_by_side(server, client, file)
    # Of another tree, states may have another form: then each process goes on as it is.
    if OTHER is None:
        server = client = this
    write_part(tmp_path)
    feed(client, file)
    run_side_by_side(server, client, file)
    if OTHER is None:
        check_exactly_once(file, tmp_path)
