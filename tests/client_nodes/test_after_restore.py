"""A client whose folder and federation log were restored from one moment is replaced by another:
nothing is released twice, and the ledger holds at least what was published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.client_nodes import after_restore
from shoal.client_nodes.after_restore import replace_client
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, SettingsError
from shoal.privacy.ledger import LEDGER, Spending, account, read_spending
from shoal.runtime.service import resumed
from tests.house.counting_federation import create, rooms
from tests.house.masked_federation import MaskedFederation
from tests.house.small_federation import clock, updates_by_client, write_readings

OLD, NEW = "attic", "attic-2"
ROWS = '[[models]]\nname = "rows"\nalgorithm = "cluster_tree"\n'
WINDOW = 50
UNUSABLE = 2
"""records without a usable reading that `write_readings` adds"""


class Restored(NamedTuple):
    """A federation that was restored from a copy, and what its client had spent by then."""

    file: Path
    config: Config
    truth: Spending


def step_client(config: Config, client: str, steps: int = 1000) -> None:
    with resumed(open_client(config, client, clock=clock)) as node:
        while steps and node.step():
            steps -= 1


def spent(config: Config, folder: str, client: str) -> Spending:
    ledger = config.client.folder / folder / LEDGER
    return read_spending(ledger)[account(client, config.contract.federation)]


@pytest.fixture
def restored(tmp_path: Path) -> Restored:
    folder = tmp_path / "plant"
    folder.mkdir()
    privacy = "counts_epsilon = 4\nepsilon_per_reading = 20"
    file = create(folder, 400, privacy=privacy, models=ROWS, window=WINDOW, clients=(OLD,))
    config = load_config(file)
    step_client(config, OLD, steps=2)
    shutil.copytree(folder, tmp_path / "copy")
    step_client(config, OLD)
    truth = spent(config, OLD, OLD)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    return Restored(file, config, truth)


def test_the_old_account_is_kept_and_charged_for_all_that_was_published(
    restored: Restored,
) -> None:
    config = restored.config
    before = spent(config, OLD, OLD)
    assert before.of_person() < restored.truth.of_person(), "the copy knows of less"
    replace_client(config, OLD, NEW, windows=0)
    kept = spent(config, NEW, OLD)
    assert kept.models[0].windows >= restored.truth.models[0].windows
    assert kept.rows is not None
    assert restored.truth.rows is not None
    assert kept.rows.places >= restored.truth.rows.places
    assert kept.of_person() >= restored.truth.of_person()
    assert not (config.client.folder / OLD / LEDGER).exists(), "there is one ledger"
    replace_client(config, OLD, NEW, windows=100)
    assert spent(config, NEW, OLD) == kept, "it is done once"


def test_windows_of_readings_that_are_gone_are_charged_as_the_operator_says(
    restored: Restored,
) -> None:
    config = restored.config
    before = spent(config, OLD, OLD)
    assert before.rows is not None
    replace_client(config, OLD, NEW, windows=30)
    kept = spent(config, NEW, OLD)
    assert kept.models[0].windows == before.models[0].windows + 30
    assert kept.rows is not None
    assert kept.rows.places == before.rows.places + 30 * WINDOW


def test_the_new_client_releases_its_own_readings_alone_and_limits_count_both_accounts(
    restored: Restored,
) -> None:
    config = restored.config
    published = set(updates_by_client(config)[OLD])
    replace_client(config, OLD, NEW, windows=0)
    write_readings(config, NEW, rooms(120, seed=9))
    step_client(config, NEW)
    own = spent(config, NEW, NEW)
    assert own.rows is not None
    assert own.rows.places == 120 + UNUSABLE
    assert set(updates_by_client(config)[OLD]) == published
    with pytest.raises(InvalidState, match=r"noise\.key is missing"):
        step_client(config, OLD)
    # The old account alone has spent more than this, so nothing of the new one is allowed.
    client = config.client.model_copy(update={"epsilon_max": 100.0, "person_readings": 10**6})
    write_readings(config, NEW, rooms(120, seed=10))
    step_client(config.model_copy(update={"client": client}), NEW)
    assert spent(config, NEW, NEW) == own


@pytest.mark.parametrize("fails", ["_move", "sync_folder"])
def test_a_kill_between_its_steps_leaves_what_the_next_start_completes(
    restored: Restored, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    config = restored.config
    monkeypatch.setattr(after_restore, fails, killed)
    with pytest.raises(KeyboardInterrupt):
        replace_client(config, OLD, NEW, windows=0)
    monkeypatch.undo()
    with pytest.raises(InvalidState):
        step_client(config, OLD)
    replace_client(config, OLD, NEW, windows=0)
    assert spent(config, NEW, OLD).of_person() >= restored.truth.of_person()
    write_readings(config, NEW, rooms(60, seed=9))
    step_client(config, NEW)
    assert spent(config, NEW, NEW).models[0].windows


def test_the_command_replaces_the_client_and_says_what_to_do_next(restored: Restored) -> None:
    write_readings(restored.config, NEW, rooms(60, seed=9))
    command = ["client", "--config", str(restored.file), "--name", NEW, "--until-idle", "0"]
    command += ["--no-wait", "--after-restore", OLD]
    lacking = CliRunner().invoke(shoal, command)
    assert lacking.exit_code == 2
    assert "--lost-windows" in lacking.output
    result = CliRunner().invoke(shoal, [*command, "--lost-windows", "3"])
    assert result.exit_code == 0, result.output
    assert f"let producers write to {NEW}" in result.output
    assert spent(restored.config, NEW, NEW).rows is not None
    report = ["privacy", "report", "--config", str(restored.file), "--name", NEW]
    told = CliRunner().invoke(shoal, report)
    assert told.exit_code == 0, told.output
    assert account(OLD, "house") in told.output
    assert f"spent       {NEW}  noisy rows" in told.output
    assert "in 2 accounts" in told.output


def test_a_name_that_is_taken_and_a_client_without_a_ledger_are_refused(
    restored: Restored,
) -> None:
    config = restored.config
    with pytest.raises(SettingsError, match="new name"):
        replace_client(config, OLD, OLD, windows=0)
    with pytest.raises(InvalidState, match="no account to keep"):
        replace_client(config, "cellar", NEW, windows=0)
    write_readings(config, "cellar", rooms(60, seed=9))
    step_client(config, "cellar")
    with pytest.raises(InvalidState, match="there is a client cellar already"):
        replace_client(config, OLD, "cellar", windows=0)
    brokers = config.readings.model_copy(update={"address": "kafka://localhost:1"})
    with pytest.raises(SettingsError, match="its own name"):
        replace_client(config.model_copy(update={"readings": brokers}), OLD, NEW, windows=0)
    assert spent(config, OLD, OLD), "nothing was changed"
    assert (config.client.folder / OLD / "noise.key").exists()


def test_a_mode_without_a_guarantee_has_no_account_to_keep(tmp_path: Path) -> None:
    config = load_config(create(tmp_path, 10, mode="off", privacy="", first="cluster_tree"))
    with pytest.raises(SettingsError, match="start the client under a new name"):
        replace_client(config, OLD, NEW, windows=0)


def test_lost_windows_of_masked_counts_are_charged_beyond_any_budget(tmp_path: Path) -> None:
    privacy = "budget_windows = 2\nbudget_days = 30"
    federation = MaskedFederation(tmp_path, clients=3, helpers=1, window=10, privacy=privacy)
    federation.feed(1)
    federation.run()
    name = federation.names[0]
    replace_client(federation.config, name, "c9", windows=5, clock=federation.clock)
    (entry,) = read_spending(federation.config.client.folder / "c9" / LEDGER)[
        account(name, "plant")
    ].masked
    assert entry.windows == 6
