"""Commands that read change no file: of a federation that has stopped, one whose server was killed,
and one in folders that this user may not write."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log, open_log_to_read
from shoal.transports.base import TopicSettings, beginning
from tests.house.small_federation import clock, create_federation, run_to_end

READERS = {
    "anomalies": "--config {file}",
    "changes": "--config {file}",
    "check": "{file} --log --changes",
    "events list": "--config {file}",
    "history cycles": "--config {file}",
    "history export": "--config {file}",
    "labels export": "--config {file} --name attic",
    "picture": "--config {file} --out {out}.png",
    "privacy report": "--config {file}",
    "quarantine": "list --config {file}",
    "rejected list": "--config {file}",
    "rejected show": "--config {file} house.updates/0/0",
    "rules": "--config {file}",
    "snapshot export": "--config {file} --out {out}.json",
}
"""command -> its arguments, for each that reads files of a federation and is no process"""
ENDS = {"rejected show": 4, "rules": 2}
"""exit codes of those that find nothing here: no message is rejected, and no model predicts"""
WRITERS = {
    "client",
    "helper",
    "host",
    "page",
    "producer",
    "replica",
    "run",
    "server",
    "clients forget",
    "confirm",
    "enroll",
    "events forward",
    "labels relabel",
    "mute",
    "name",
    "rejected requeue",
    "replay",
    "topics ensure",
    "unlearn",
    "upgrade",
    "wake",
    "backup",
    "restore",
}
"""processes, and commands that publish or make something in the federation"""
APART = {
    "demo",
    "init",
    "kernels",
    "mcp",
    "privacy audit",
    "reproduce",
    "keys operator",
    "keys helper",
    "keys new",
    "keys server",
    "keys token",
}
"""commands that have nothing to do with the files of a federation"""
WITHOUT_RIGHTS = ("events list", "history export", "labels export", "privacy report")
"""the kinds of files: the log of the federation, those of a client, and its ledger"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation that has stopped."""
    folder = tmp_path_factory.mktemp("readers") / "house"
    folder.mkdir()
    run_to_end(create_federation(folder, readings=200))
    return folder


def digests(folder: Path) -> dict[str, str]:
    """file -> its digest, of all in a folder; but for the index by which processes share a file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.endswith("-shm"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.is_dir():
            found[name] = "folder"
    return found


def run(command: str, folder: Path, out: Path) -> None:
    """Run a reader; it ends as it should."""
    arguments = READERS[command].format(file=folder / "federation.toml", out=out)
    ended = CliRunner().invoke(shoal, [*command.split(), *arguments.split()])
    error = ended.exception
    code = getattr(error, "exit_code", 1) if error is not None else 0
    assert code == ENDS.get(command, 0), (command, ended.output, error)


def commands(group: click.Command, above: str = "") -> Iterator[str]:
    """All commands, those of groups below them."""
    if not isinstance(group, click.Group) or above.strip() in APART:
        yield above.strip()
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, f"{above} {name}")


def test_every_command_is_known_to_read_or_to_write() -> None:
    assert set(commands(shoal)) == {*READERS, *WRITERS, *APART}


def test_reading_a_federation_that_has_stopped_changes_no_file(
    federation: Path, tmp_path: Path
) -> None:
    before = digests(federation)
    for command in READERS:
        run(command, federation, tmp_path / "out")
        assert digests(federation) == before, command
    assert not list(federation.rglob("*-shm")), "and none appears"


def test_reading_a_federation_whose_server_was_killed_changes_no_file(
    federation: Path, tmp_path: Path
) -> None:
    running = tmp_path / "running"
    shutil.copytree(federation, running)
    killed = tmp_path / "killed"
    config = load_config(running / "federation.toml")
    with resumed(open_server(config, clock=clock)) as server, closing(open_log(config.log)) as log:
        log.ensure("written", TopicSettings())
        log.publish("written", b"not in the file itself yet")
        log.flush()
        assert not server.step()
        # What a kill leaves: the file is copied with its write-ahead log.
        shutil.copytree(running, killed)
    assert (killed / "federation.db-wal").stat().st_size > 0
    before = digests(killed)
    for command in READERS:
        run(command, killed, tmp_path / "out")
        assert digests(killed) == before, command


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Nothing in a folder may be written by this user, who is not root meanwhile."""
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with ExitStack() as stack:
        stack.callback(lambda: [path.chmod(0o700) for path in paths])
        if os.geteuid() == 0:
            for above in folder.parents:
                if above.stat().st_mode & 0o005 != 0o005:
                    stack.callback(above.chmod, above.stat().st_mode & 0o777)
                    above.chmod(0o755)
            os.seteuid(65534)
            stack.callback(os.seteuid, 0)
        yield


def test_a_federation_is_read_in_folders_that_may_not_be_written(
    federation: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(federation, copy)
    out = tmp_path / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    # What they import is loaded while this user may still read the code.
    for command in WITHOUT_RIGHTS:
        run(command, copy, out / "first")
    with without_rights(copy):
        for command in WITHOUT_RIGHTS:
            run(command, copy, out / "second")


def test_a_log_that_is_not_there_is_empty_and_is_not_made(tmp_path: Path) -> None:
    file = create_federation(tmp_path, clients=())
    config = load_config(file)
    with closing(open_log_to_read(config.log)) as log:
        log.ensure("house.events", TopicSettings(partitions=2))
        assert log.bounds("house.events") == {0: (0, 0), 1: (0, 0)}
        assert log.read("house.events", {0: 0, 1: 0}) == ([], {0: 0, 1: 0})
        assert not (tmp_path / "federation.db").exists()
        with closing(open_log(config.log)) as writer:
            writer.ensure("house.events", TopicSettings(partitions=2))
            writer.publish("house.events", b"now")
            writer.flush()
            [record], _ = log.read("house.events", beginning(log, "house.events"))
            assert record.value == b"now"
        with closing(open_log(config.log)) as writer:
            writer.ensure("house.events")
            writer.publish("house.events", b"after the log was closed and opened again")
            writer.flush()
        records, _ = log.read("house.events", beginning(log, "house.events"))
        assert len(records) == 2
