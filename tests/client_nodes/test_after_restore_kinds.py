"""A client that was restored together with the log, in federations of each kind: hidden presence,
users as the privacy unit, signed updates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.client_nodes.after_restore import replace_client
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, SettingsError
from shoal.privacy.ledger import LEDGER, Spending, account, read_spending
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.client_nodes.test_presence import BEGIN, CLIENT, EVERY_5_S, READING, USER, Feed
from tests.house.small_federation import clock, updates_by_client, weather, write_readings
from tests.house.test_signed_updates import (
    create_signed_federation,
    make_key,
    rejected,
    updates_of_signed,
)

NEW = "attic-2"
COPIED_AT = 200.0
"""seconds after the beginning, as all times here"""
RESTORED_AT = 500.0
WINDOW_S = 60
USERS_WITHOUT_HIDING = (
    f'counts_epsilon = 4\nwindow_s = {WINDOW_S}\nunit = "user"\nreadings_per_window_max = 2'
)


def spent(config: Config, folder: str, client: str) -> Spending:
    ledger = config.client.folder / folder / LEDGER
    return read_spending(ledger)[account(client, config.contract.federation)]


def run(feed: Feed, *times: float, client: str = CLIENT) -> None:
    """One process of the client, whose clock is at each of these times in turn."""
    now = [times[0]]
    with resumed(open_client(feed.config, client, clock=lambda: BEGIN + now[0])) as node:
        for time in times:
            now[0] = time
            feed.take_in(time)
            while node.step():
                pass


def restored(feed: Feed, copy: Path, *times: float) -> Spending:
    """Run the client until `RESTORED_AT` with a stop at each of the times, and put back the copy of
    `COPIED_AT`; what it had spent in truth."""
    folder = feed.folder.parent.parent
    run(feed, 0.0, COPIED_AT)
    shutil.copytree(folder, copy)
    run(feed, COPIED_AT, *times, RESTORED_AT)
    truth = spent(feed.config, CLIENT, CLIENT)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    assert spent(feed.config, CLIENT, CLIENT).of_person() < truth.of_person()
    return truth


@pytest.mark.parametrize("privacy", [READING, USER], ids=["reading", "user"])
def test_with_hidden_presence_the_clock_says_how_many_windows_are_lost(
    tmp_path: Path, privacy: str
) -> None:
    feed = Feed(tmp_path / "plant", privacy)
    feed.write(EVERY_5_S)
    truth = restored(feed, tmp_path / "copy")
    config = feed.config
    replace_client(config, CLIENT, NEW, windows=0, clock=lambda: BEGIN + RESTORED_AT)
    kept = spent(config, NEW, CLIENT)
    assert kept.of_person() >= truth.of_person()
    # A window begins at another time at each client, so that one may be charged too many at each
    # end.
    assert kept.models[0].windows <= truth.models[0].windows + 2
    with pytest.raises(InvalidState, match=r"noise\.key is missing"):
        run(feed, RESTORED_AT)
    before = set(updates_by_client(config)[CLIENT])
    times = [RESTORED_AT + WINDOW_S * number for number in range(4)]
    run(feed, *times, client=NEW)
    own = spent(config, NEW, NEW)
    assert own.models[0].windows == len(updates_by_client(config)[NEW]) > 0, (
        "it publishes windows by the clock, empty ones too"
    )
    assert set(updates_by_client(config)[CLIENT]) == before


def test_with_users_the_windows_that_the_clock_closes_are_charged_too(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "plant", USERS_WITHOUT_HIDING)
    feed.write(EVERY_5_S)
    stops = [COPIED_AT + 10.0 * number for number in range(1, 30)]
    truth = restored(feed, tmp_path / "copy", *stops)
    config = feed.config
    before = spent(config, CLIENT, CLIENT).models[0].windows
    lost = truth.models[0].windows - before
    readings = (RESTORED_AT - COPIED_AT) / 5
    places = config.contract.privacy.window_readings
    assert lost > readings // places + 1, "readings alone do not tell how many windows there were"
    said = int(readings // places + (RESTORED_AT - COPIED_AT) // WINDOW_S) + 1
    assert said >= lost, "what docs/how-to/backup.md says is enough"
    replace_client(config, CLIENT, NEW, windows=said, clock=lambda: BEGIN + RESTORED_AT)
    assert spent(config, NEW, CLIENT).of_person() >= truth.of_person()


def test_readings_of_users_left_in_the_log_can_have_been_in_more_windows_than_they_fill(
    tmp_path: Path,
) -> None:
    feed = Feed(tmp_path / "plant", USERS_WITHOUT_HIDING)
    feed.write([10.0 * number for number in range(20)])
    run(feed, 0.0, 50.0, 120.0)
    config = feed.config
    before = spent(config, CLIENT, CLIENT).models[0].windows
    feed.take_in(COPIED_AT)
    left = 7
    replace_client(config, CLIENT, NEW, windows=0, clock=lambda: BEGIN + RESTORED_AT)
    kept = spent(config, NEW, CLIENT).models[0].windows
    assert 1 < kept - before <= left + 1


def test_a_signed_client_is_replaced_once_the_new_one_has_a_key_and_is_absorbed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "plant"
    folder.mkdir()
    file = create_signed_federation(folder, ("attic",))
    config = load_config(file)
    with resumed(open_client(config, "attic", clock=clock)) as node:
        node.step()
    shutil.copytree(folder, tmp_path / "copy")
    with resumed(open_client(config, "attic", clock=clock)) as node:
        while node.step():
            pass
    truth = spent(config, "attic", "attic")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(SettingsError, match="signing key"):
        replace_client(config, "attic", NEW, windows=0, clock=clock)
    assert (config.client.folder / "attic" / LEDGER).exists(), "nothing was changed"
    make_key(file, NEW)
    replace_client(config, "attic", NEW, windows=0, clock=clock)
    assert spent(config, NEW, "attic").of_person() >= truth.of_person()
    write_readings(config, NEW, weather(120, seed=9))
    with resumed(open_client(config, NEW, clock=clock)) as node:
        while node.step():
            pass
    with resumed(open_server(config, clock=clock)) as server:
        while server.step():
            pass
        absorbed = {
            client: updates for client, updates, *_ in server.models()["clusters"].clients.totals()
        }
    assert rejected(config) == []
    assert absorbed[NEW] == len(updates_of_signed(config, NEW)) > 0
    assert absorbed["attic"] == len(updates_of_signed(config, "attic")) > 0
