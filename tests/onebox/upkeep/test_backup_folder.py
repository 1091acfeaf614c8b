"""`shoal backup` and `shoal restore`: of one moment, whole, and honest about what came after."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.client_nodes.bootstrap import RESTORED, open_client
from shoal.config.settings import load_config
from shoal.errors import InvalidState, SettingsError, ShoalError
from shoal.onebox.upkeep import backup as backups
from shoal.onebox.upkeep.backup import MANIFEST, back_up
from shoal.onebox.upkeep.restore import check_backup, restore
from shoal.runtime.helper_state import make_helper_state
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.house.federation_processes import (
    prepare_federation,
    replayed_model,
    start_all,
    undisturbed_updates,
    wait_for_updates,
)
from tests.house.processes import kill_all
from tests.house.small_federation import (
    CLIENTS,
    clock,
    contents,
    create_federation,
    final_model,
    run_to_end,
    updates_by_client,
)
from tests.house.test_readers import digests

BACKUPS = 2
"""one while processes start, and one while they go on"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation that has stopped, with a helper's state."""
    folder = tmp_path_factory.mktemp("backup") / "data"
    folder.mkdir()
    run_to_end(create_federation(folder, CLIENTS[:1], readings=120, pool_clients=1), CLIENTS[:1])
    make_helper_state(folder / "helper", bytes(32))
    return folder


@pytest.fixture(scope="module")
def whole(stopped: Path) -> Path:
    """A backup of it."""
    out = stopped.parent / "whole"
    back_up(stopped, out)
    return out


def test_backups_of_running_processes_go_on_with_every_reading_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    file = prepare_federation(data, "sqlite:federation.db")
    processes = start_all(file, rate=600)
    try:
        wait_for_updates(processes, file, 3)
        for number in range(BACKUPS):
            back_up(data, tmp_path / f"backup-{number}")
            wait_for_updates(processes, file)
    finally:
        kill_all(processes)
    for number in range(BACKUPS):
        again = tmp_path / f"again-{number}"
        restore(tmp_path / f"backup-{number}", again, nothing_since=True)
        config = load_config(again / file.name)
        published_before = updates_by_client(config)
        run_to_end(again / file.name)
        published = updates_by_client(config)
        for client in CLIENTS:
            scratch = tmp_path / f"undisturbed-{number}"
            expected = undisturbed_updates(config, client, scratch)
            assert len(expected) >= len(published_before.get(client, {}))
            assert sorted(published[client]) == list(range(1, len(expected) + 1))
            for sequence, update in enumerate(expected, start=1):
                assert {contents(copy) for copy in published[client][sequence]} == {update}
        model = final_model(again / file.name)
        assert model == replayed_model(config, tmp_path / f"replay-{number}.db")


def test_a_backup_changes_nothing_and_has_all_but_what_is_made_again(
    stopped: Path, whole: Path, tmp_path: Path
) -> None:
    before = digests(stopped)
    manifest = back_up(stopped, tmp_path / "out")
    assert digests(stopped) == before
    left_out = {"server/history.db", "helper/helper.db", "helper"}
    kept = {name for name, digest in before.items() if digest != "folder"}
    assert manifest["files"].keys() == kept - left_out
    assert manifest["left_out"] == ["helper/helper.db"]
    assert (tmp_path / "out" / "clients/attic/noise.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "out" / "clients/attic/checkpoint.db").stat().st_mode & 0o777 == 0o600
    assert check_backup(whole)["clients"] == {"attic": {"folder": "clients/attic"}}


def test_a_restored_client_does_not_go_on_unless_nothing_was_published_since(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "restored"
    ended = CliRunner().invoke(shoal, ["restore", str(whole), str(folder)])
    assert ended.exit_code == 0, ended.exception
    assert "--after-restore attic --lost-windows N" in ended.output
    config = load_config(folder / "federation.toml")
    with (
        pytest.raises(InvalidState, match=r"--after-restore attic`.*delete .*restored\.txt"),
        open_client(config, "attic", clock=clock),
    ):
        pass
    with resumed(open_server(config, clock=clock)) as server:
        server.step()
    (folder / "clients/attic" / RESTORED).unlink()
    with resumed(open_client(config, "attic", clock=clock)) as client:
        client.step()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("clients/attic/ledger.db", "not as it was made"),
        ("server/checkpoint.db", "missing"),
        ("added.db", "no file of the backup"),
        (MANIFEST, "no backup that is whole"),
        ("formats", "reads .*; restore it with shoal 9.9"),
    ],
)
def test_a_backup_that_is_not_as_it_was_made_is_refused(
    whole: Path, tmp_path: Path, file: str, words: str
) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(whole, backup)
    if file == "clients/attic/ledger.db":
        content = bytearray((backup / file).read_bytes())
        content[len(content) // 2] ^= 1
        (backup / file).write_bytes(content)
    elif file == "added.db":
        (backup / file).write_bytes(b"")
    elif file == "formats":
        manifest = json.loads((backup / MANIFEST).read_text(encoding="utf-8"))
        manifest |= {"shoal": "9.9", "formats": {"ledger": 99}}
        (backup / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    else:
        (backup / file).unlink()
    with pytest.raises(ShoalError, match=words):
        restore(backup, tmp_path / "restored", nothing_since=True)
    assert {path.name for path in tmp_path.iterdir()} == {"backup"}


def test_a_folder_with_files_is_not_replaced(whole: Path, stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has files; move it away first"):
        restore(whole, stopped, nothing_since=True)
    with pytest.raises(SettingsError, match="name a new folder, outside of"):
        back_up(stopped, stopped / "inside")
    (tmp_path / "empty").mkdir()
    restore(whole, tmp_path / "empty", nothing_since=True)
    assert (tmp_path / "empty/federation.toml").exists()


def test_a_backup_that_was_interrupted_is_none(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backups, "sync_tree", full)
    with pytest.raises(SettingsError, match="No space left on device"):
        back_up(stopped, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
