"""The ledgers of all clients of a host are in one file, which is never behind what they publish."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes import site_intake
from shoal.client_nodes.bootstrap import HOST_CHECKPOINTS
from shoal.client_nodes.host import Host
from shoal.client_nodes.releases import Releases
from shoal.client_nodes.shared_files import SharedFiles, SharedLog
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState
from shoal.privacy.ledger import LEDGER, Ledger, LedgersFile, Release, account, read_spending
from shoal.protocol.messages import Update
from shoal.read_only import read_unchanged
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.runtime.site_readings import SiteReadings
from shoal.server_node.bootstrap import open_server
from tests.house.counted_hosts import WINDOW, text_of
from tests.house.power_cut import THINNED, cut_at_every_call
from tests.house.small_federation import CLIENTS, all_records, clock, give_noise_keys
from tests.house.test_group_hosts import updates_of
from tests.house.test_host import serve
from tests.house.test_site_log import identify_by_name, keyed, write_site

READINGS = 70
FOREIGN = "client mouse of house"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose readings come in one log, and of which a server has begun."""
    identify_by_name(monkeypatch)
    # Small steps, so that there are many moments between them.
    monkeypatch.setattr(site_intake, "RECORDS_READ_MAX", 50)
    monkeypatch.setattr(site_intake, "TAKE_IN_S", 0.0)
    folder = tmp_path / "site"
    folder.mkdir()
    file = folder / "federation.toml"
    file.write_text(text_of({"client": "key", "address": "sqlite:site-log.db"}), encoding="utf-8")
    config = load_config(file)
    give_noise_keys(folder, CLIENTS, of_host=True)
    with resumed(open_server(config, clock=clock)) as server:
        server.step()
    send(config, READINGS)
    return file


def send(config: Config, readings: int, seed: int = 0) -> None:
    for number, name in enumerate(CLIENTS):
        write_site(config, keyed(name, readings, seed + number))


def run(file: Path) -> None:
    """Check what a cut has left, and go on until nothing is to be done."""
    config = load_config(file)
    check_ledgers_are_ahead(config)
    with closing(Host(config, clock=clock)) as host:
        serve(host)
        assert not host.failures()


def check_ledgers_are_ahead(config: Config) -> None:
    """What is published is charged."""
    windows: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for (client, model, *_), readings in readings_of(config).items():
        if model == "tree":
            windows[client] += 1
        else:
            rows[client] += readings
    charged = spending_of(config)
    for client, count in windows.items():
        (spent,) = charged[account(client, "house")].models
        assert spent.windows >= count, f"{client} has published more windows than are charged"
    for client, count in rows.items():
        noised = charged[account(client, "house")].rows
        assert noised is not None
        assert noised.places >= count, f"{client} has published more rows than are charged"


def readings_of(config: Config) -> dict[tuple[str, str, int, int], int]:
    """The readings of every update in the log by client, model, number and chunk."""
    readings = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = Update.decode(record.value or b"", record.headers)
        readings[update.client, update.model, update.sequence, update.chunk] = update.readings
    return readings


def spending_of(config: Config) -> dict[str, Any]:
    """The accounts of all clients, wherever they are."""
    accounts = {}
    folder = config.client.folder
    for ledger in (*folder.glob(f"*/{LEDGER}"), *folder.glob(LEDGER)):
        # One without tables yet is none: a kill has left it at its beginning.
        if read_unchanged(ledger, has_tables):
            accounts.update(read_spending(ledger))
    return accounts


def has_tables(ledger: sqlite3.Connection) -> bool:
    return bool(ledger.execute("SELECT 1 FROM sqlite_master").fetchall())


def outcome(file: Path) -> Any:
    """What was published, and what it has cost."""
    config = load_config(file)
    costs = {}
    for owner, spent in spending_of(config).items():
        assert spent.rows is not None
        # Rows are charged with what a step has read beyond them.
        assert READINGS // WINDOW * WINDOW <= spent.rows.places <= READINGS
        costs[owner] = (spent.models, spent.windows)
    assert set(costs) == {account(name, "house") for name in CLIENTS}
    assert not list(config.client.folder.glob(f"*/{LEDGER}*"))
    return updates_of(config), costs


@pytest.mark.timeout(1200)
@THINNED
def test_a_host_that_is_killed_at_any_call_has_charged_what_it_has_published(
    file: Path, tmp_path: Path, every: int
) -> None:
    methods = [
        (SiteReadings, "take_in"),
        (Ledger, "charge"),
        (Ledger, "charge_rows"),
        (LedgersFile, "_commit"),
        (Checkpoint, "save"),
        (SharedFiles, "marking"),
        (SharedFiles, "publishing"),
        (Releases, "note"),
        (SharedLog, "publish"),
        (SharedLog, "end"),
        (Checkpoint, "delete_published"),
    ]
    updates, costs = cut_at_every_call(methods, file, tmp_path / "cuts", run, outcome, every)
    assert {client for client, *_ in updates} == set(CLIENTS)
    for models, _ in costs.values():
        assert models[0].windows >= READINGS // WINDOW


def put_apart(config: Config) -> None:
    """Make of the file with all ledgers one for each client, as hosts had them before."""
    shared = config.client.folder / LEDGER
    for name in CLIENTS:
        own = config.client.folder / name / LEDGER
        shutil.copy(shared, own)
        with closing(sqlite3.connect(own)) as ledger:
            for table in ("accounts", "releases", "noised", "masked", "budgets", "passed"):
                others = (account(name, "house"),)
                ledger.execute(f"DELETE FROM {table} WHERE owner <> ?", others)
            ledger.commit()
    shared.unlink()


@pytest.fixture
def used(file: Path) -> Config:
    """The same site, whose clients have published, each with a ledger of its own."""
    run(file)
    config = load_config(file)
    put_apart(config)
    return config


@pytest.mark.timeout(1200)
def test_ledgers_of_their_own_are_taken_over_whatever_call_is_cut(
    file: Path, used: Config, tmp_path: Path
) -> None:
    before = spending_of(used)
    sent = updates_of(used)
    send(used, WINDOW, seed=10)
    methods = [
        (LedgersFile, "adopt"),
        (LedgersFile, "_commit"),
        (LedgersFile, "_delete_adopted"),
        (Path, "unlink"),
        (Checkpoint, "save"),
    ]

    def costs(file: Path) -> Any:
        config = load_config(file)
        assert not list(config.client.folder.glob(f"*/{LEDGER}*"))
        accounts = spending_of(config)
        models = {owner: (spent.models, spent.windows) for owner, spent in accounts.items()}
        return updates_of(config), models

    updates, models = cut_at_every_call(methods, file, tmp_path / "cuts", run, costs)
    for place, value in sent.items():
        assert updates[place] == value
    assert len(updates) > len(sent)
    for owner, spent in before.items():
        assert models[owner][0][0].windows > spent.models[0].windows


def older(folder: Path, name: str, use: Callable[[], None]) -> None:
    """Let a file of the host be as it was before it was used."""
    copies = {path: path.read_bytes() for path in folder.glob(f"{name}*")}
    use()
    for path in folder.glob(f"{name}*"):
        path.unlink()
    for path, content in copies.items():
        path.write_bytes(content)


def lose(folder: Path) -> None:
    for path in folder.glob(f"{LEDGER}*"):
        path.unlink()


def check_refused(config: Config, reason: str) -> None:
    before = updates_of(config)
    send(config, WINDOW, seed=20)
    with closing(Host(config, clock=clock)) as host, pytest.raises(InvalidState, match=reason):
        serve(host)
    assert updates_of(config) == before


def test_a_host_whose_file_of_ledgers_is_lost_or_older_publishes_nothing(file: Path) -> None:
    run(file)
    config = load_config(file)
    lost = load_config(shutil.copytree(file.parent, file.parent.parent / "lost") / file.name)
    lose(lost.client.folder)
    check_refused(lost, "is missing or older than the checkpoint|in another ledger")

    def use() -> None:
        send(config, WINDOW, seed=10)
        run(file)

    older(config.client.folder, LEDGER, use)
    check_refused(config, "is missing or older than the checkpoint")


def test_a_host_whose_checkpoints_are_older_than_its_ledgers_publishes_nothing(
    file: Path,
) -> None:
    run(file)
    config = load_config(file)

    def use() -> None:
        send(config, WINDOW, seed=10)
        run(file)

    older(config.client.folder, HOST_CHECKPOINTS, use)
    before = updates_of(config)
    with closing(Host(config, clock=clock)) as host, pytest.raises(InvalidState):
        serve(host)
    assert updates_of(config) == before


def test_a_ledger_of_its_own_with_more_than_the_host_s_is_refused(file: Path, used: Config) -> None:
    name = CLIENTS[0]
    own = used.client.folder / name / LEDGER
    kept = own.read_bytes()
    # So that all clients are opened.
    send(used, WINDOW, seed=5)
    run(file)
    assert not own.exists()
    own.write_bytes(kept)
    # As it was taken over: what a kill before its deletion leaves.
    send(used, WINDOW, seed=30)
    run(file)
    assert not own.exists()
    own.write_bytes(kept)
    fingerprint = sqlite3.connect(own).execute("SELECT fingerprint FROM accounts").fetchone()[0]
    with Ledger(own, account(name, "house"), fingerprint) as ledger:
        ledger.charge([Release("tree", 99, b"p" * 32, b"c" * 32, WINDOW, 4.0)], 1.0)
    with closing(Host(used, clock=clock)) as host:
        send(used, WINDOW, seed=10)
        serve(host)
        assert set(host.failures()) == {name}
        assert "lacks" in str(host.failures()[name])
    assert own.exists()


def test_a_ledger_with_accounts_of_others_is_not_taken_over(used: Config) -> None:
    own = used.client.folder / CLIENTS[0] / LEDGER
    Ledger(own, FOREIGN, "0123").close()
    with closing(Host(used, clock=clock)) as host:
        send(used, WINDOW, seed=10)
        serve(host)
        assert "accounts of others" in str(host.failures()[CLIENTS[0]])


def test_a_ledger_of_its_own_that_was_never_begun_is_none(file: Path) -> None:
    config = load_config(file)
    own = config.client.folder / CLIENTS[0] / LEDGER
    own.touch()
    run(file)
    assert not own.exists()
    assert len(spending_of(config)) == len(CLIENTS)
