"""What was released is in the readings log: with all else lost, or on a second host, nothing is
released again."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.budget import Budget
from shoal.client_nodes.releases import Releases
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, SettingsError
from shoal.privacy.ledger import Ledger, read_spending
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, RELEASES, readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_readings
from shoal.runtime.service import resumed
from shoal.transports.base import latest
from tests.house.counting_federation import create, rooms
from tests.house.small_federation import all_records, clock, updates_by_client

CLIENT = "attic"


@pytest.fixture(params=["folder", pytest.param("kafka", marks=pytest.mark.external)])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A client with readings in its folder, or on a broker of its site."""
    file = create(tmp_path, 200, clients=())
    if request.param == "kafka":
        broker = request.getfixturevalue("kafka_bootstrap")
        section = f'[readings]\naddress = "kafka://{broker}"\n[server]\n'
        text = file.read_text(encoding="utf-8").replace("[server]\n", section)
        file.write_text(
            text.replace('name = "house"', f'name = "house-{uuid.uuid4().hex}"'), encoding="utf-8"
        )
    found = load_config(file)
    (found.client.folder / CLIENT).mkdir(parents=True)
    with closing(open_readings(found, CLIENT)) as log:
        log.ensure(READINGS, readings_settings(found.client))
        for number, reading in enumerate(rooms(200, 0)):
            log.publish(
                READINGS, Reading(1e9 + number, reading).encode(), headers=Reading.headers()
            )
        log.flush()
    return found


def run(config: Config, steps: int = 1000) -> None:
    with resumed(open_client(config, CLIENT, clock=clock)) as node:
        while steps and node.step():
            steps -= 1


def folder(config: Config) -> Path:
    return config.client.folder / CLIENT


def lose(config: Config, *names: str) -> None:
    for name in names:
        for path in folder(config).glob(f"{name}*"):
            path.unlink()


def published(config: Config) -> int:
    return len(all_records(config.log.address, config.contract.updates_topic))


def test_a_client_whose_checkpoint_key_and_ledger_are_lost_releases_nothing_again(
    config: Config,
) -> None:
    run(config)
    before = published(config)
    assert before
    lose(config, "checkpoint.db", "noise.key", "ledger.db")
    for _ in range(2):
        with pytest.raises(
            InvalidState, match=r"has released its readings up to place \d+ .* start under a new"
        ):
            run(config)
    assert not (folder(config) / "noise.key").exists()
    assert published(config) == before


def test_a_new_checkpoint_beside_the_old_key_does_not_make_a_client_new(config: Config) -> None:
    run(config)
    # The federation's log is lost too, which would show the client what it has published.
    Path(config.log.address.removeprefix("sqlite:")).unlink()
    lose(config, "checkpoint.db")
    Checkpoint(
        folder(config) / "checkpoint.db", f"client {CLIENT} of {config.contract.federation}"
    ).close()
    with pytest.raises(InvalidState, match=r"older than the ledger|has released its readings"):
        run(config)


def test_a_second_host_is_refused_before_it_publishes(config: Config, tmp_path: Path) -> None:
    """The host of before may have another federation's client on these readings: its ledger is what
    is missing."""
    run(config)
    elsewhere = tmp_path / "elsewhere"
    other = config.model_copy(
        update={"client": config.client.model_copy(update={"folder": elsewhere})}
    )
    if not config.readings.address:
        (elsewhere / CLIENT).mkdir(parents=True)
        shutil.copy(folder(config) / "readings.db", elsewhere / CLIENT / "readings.db")
    before = published(config)
    with pytest.raises(InvalidState, match=r"has released its readings|another ledger"):
        run(other)
    for file in ("checkpoint.db", "noise.key"):
        (elsewhere / CLIENT / file).unlink(missing_ok=True)
    renamed = other.model_copy(
        update={"contract": other.contract.model_copy(update={"federation": "another"})}
    )
    if config.readings.address:
        topic = f"{config.contract.federation}.{{client}}.readings"
        renamed = renamed.model_copy(
            update={"readings": renamed.readings.model_copy(update={"topic": topic})}
        )
    with pytest.raises(InvalidState, match="a readings log has one, for all federations"):
        run(renamed)
    assert not (elsewhere / CLIENT / "noise.key").exists()
    assert published(config) == before


def test_two_hosts_that_start_together_on_one_log_are_two_no_longer_once_one_has_released(
    config: Config,
) -> None:
    with (
        closing(open_readings(config, CLIENT)) as log,
        closing(open_readings(config, CLIENT)) as same,
    ):
        names = ("first", "second")
        ledgers = [
            Ledger(folder(config) / f"{name}.db", "client attic of house", name) for name in names
        ]
        first = Releases(log, "client attic of house")
        second = Releases(same, "client attic of house")
        for notes, ledger in zip((first, second), ledgers, strict=True):
            notes.resume(ledger, has_state=False)
        for place, notes in ((50, first), (60, first)):
            notes.add({0: place})
            notes.note()
        second.add({0: 50})
        with pytest.raises(InvalidState, match="another ledger"):
            second.note()
        first.add({0: 70})
        first.note()
        older = Releases(log, "client attic of house")
        older.restore({"released": [[0, 69]]})
        with pytest.raises(InvalidState, match=r"place 70, and its checkpoint knows of 69"):
            older.resume(ledgers[0], has_state=True)
        third = Releases(log, "client attic of house")
        third.restore({"released": [[0, 70]]})
        third.resume(ledgers[0], has_state=True)
        third.add({0: 80})
        third.note()
        first.add({0: 90})
        with pytest.raises(InvalidState, match="another process has released readings of this log"):
            first.note()
        without_state = Releases(log, "client attic of house")
        without_state.restore({"released": [[0, 80]]})
        with pytest.raises(InvalidState, match="its checkpoint or this key is lost"):
            without_state.resume(ledgers[0], has_state=False)
        with pytest.raises(InvalidState, match="another ledger"):
            Releases(log, "client attic of office").resume(ledgers[1], has_state=False)


def test_the_note_of_a_copy_does_not_hide_that_of_the_original_where_both_note_at_once(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(open_readings(config, CLIENT)) as log,
        closing(open_readings(config, CLIENT)) as same,
    ):
        ledger = Ledger(folder(config) / "one.db", "client attic of house", "key")
        original = Releases(log, "client attic of house")
        copy = Releases(same, "client attic of house")
        for notes in (original, copy):
            notes.resume(ledger, has_state=True)
            notes.add({0: 50})
        look = copy._read

        def look_and_be_overtaken(until: Any = None) -> Any:
            found = look(until)
            if until is None:
                original.note()
            return found

        monkeypatch.setattr(copy, "_read", look_and_be_overtaken)
        with pytest.raises(InvalidState, match="another process has released readings of this log"):
            copy.note()
        original.add({0: 60})
        original.note()
        again = Releases(log, "client attic of house")
        again.restore({"released": [[0, 60]]})
        again.resume(ledger, has_state=True)
        again.add({0: 70})
        again.note()
        assert len(latest(log, RELEASES)) == 1, "the notes of earlier processes are gone"


def test_of_two_hosts_whose_first_notes_cross_the_one_that_took_its_own_back_leaves_none(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(open_readings(config, CLIENT)) as log,
        closing(open_readings(config, CLIENT)) as same,
    ):
        ledgers = [
            Ledger(folder(config) / f"{name}.db", "client attic of house", name)
            for name in ("first", "second")
        ]
        first = Releases(log, "client attic of house")
        second = Releases(same, "client attic of house")
        for notes, ledger in zip((first, second), ledgers, strict=True):
            notes.resume(ledger, has_state=False)
            notes.add({0: 50})
        publish = same.publish

        def crossing(*record: Any) -> None:
            if record[1] is not None:
                first.note()
            publish(*record)

        monkeypatch.setattr(same, "publish", crossing)
        with pytest.raises(InvalidState, match="another ledger"):
            second.note()
        again = Releases(log, "client attic of house")
        again.restore({"released": [[0, 50]]})
        again.resume(ledgers[0], has_state=True)
        with pytest.raises(InvalidState, match=r"another ledger|place 50"):
            Releases(same, "client attic of house").resume(ledgers[1], has_state=False)


def counted(names: list[str], name: str, call: Callable[..., None]) -> Callable[..., None]:
    """The method, which also appends its name."""

    def called(*given: Any, **named: Any) -> None:
        names.append(name)
        call(*given, **named)

    return called


def test_only_the_first_note_of_a_process_waits_for_the_disk_and_none_is_read_back(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_readings(config, CLIENT)) as log:
        notes = Releases(log, "client attic of house")
        notes.resume(
            Ledger(folder(config) / "one.db", "client attic of house", "key"), has_state=True
        )
        flushes: list[str] = []
        for name in {"flush", "flush_unsynced"}.intersection(dir(log)):
            # Of the class, as one of them calls the other.
            monkeypatch.setattr(type(log), name, counted(flushes, name, getattr(type(log), name)))
        monkeypatch.setattr(
            log, "read", lambda *_, **__: pytest.fail("no other process has written")
        )
        for place in (50, 60, 70):
            notes.add({0: place})
            notes.note()
        monkeypatch.undo()
        assert flushes[0] == "flush"
        if not config.readings.address:
            assert flushes[1:] == ["flush_unsynced", "flush"] * 2
        assert [note.places for note in Releases(log, "client attic of house")._notes.values()] == [
            {0: 70}
        ]


def test_what_a_kill_kept_from_the_log_is_noted_before_it_is_published(config: Config) -> None:
    with (
        pytest.MonkeyPatch.context() as kill,
        resumed(open_client(config, CLIENT, clock=clock)) as node,
    ):

        def dies(_: Releases) -> None:
            raise KeyboardInterrupt

        kill.setattr(Releases, "note", dies)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - one of the steps is killed
            while node.step():
                pass
    assert published(config) == 0, "nothing is published before the note"
    with (
        resumed(open_client(config, CLIENT, clock=clock)),
        closing(open_readings(config, CLIENT)) as log,
    ):
        assert published(config) > 0
        assert len(latest(log, RELEASES)) == 1
    run(config)


def shared(config: Config, tmp_path: Path, **client: object) -> Config:
    """Another federation on the same site and the same readings."""
    (tmp_path / "office").mkdir()
    file = create(tmp_path / "office", 0, clients=())
    text = file.read_text(encoding="utf-8").replace(
        'name = "house"', f'name = "office-{uuid.uuid4().hex}"'
    )
    lines = f'[readings]\nfolder = "{config.client.folder}"\n'
    if config.readings.address:
        topic = f"{config.contract.federation}.{{client}}.readings"
        lines += f'address = "{config.readings.address}"\ntopic = "{topic}"\n'
    file.write_text(text.replace("[server]\n", f"{lines}[server]\n"), encoding="utf-8")
    found = load_config(file)
    return found.model_copy(update={"client": found.client.model_copy(update=client)})


def test_two_federations_of_a_site_read_one_log_and_spend_from_one_ledger(
    config: Config, tmp_path: Path
) -> None:
    office = shared(config, tmp_path)
    run(config)
    run(office)
    run(config)
    accounts = read_spending(folder(config) / "ledger.db")
    assert len(accounts) == 2
    for config_of_site in (config, office):
        spent = accounts[f"client {CLIENT} of {config_of_site.contract.federation}"]
        places = sum(
            again[0].readings for again in updates_by_client(config_of_site)[CLIENT].values()
        )
        assert places > 100
        assert spent.of_person() == 4 * places
    assert not (office.client.folder / CLIENT / "ledger.db").exists()


def test_the_limit_of_a_client_counts_what_other_federations_have_spent(
    config: Config, tmp_path: Path
) -> None:
    run(config)
    spent = sum(
        account.of_person() for account in read_spending(folder(config) / "ledger.db").values()
    )
    office = shared(config, tmp_path, epsilon_max=spent + 4 * 60)
    with resumed(open_client(office, CLIENT, clock=clock)) as node:
        while node.step():
            pass
        assert node.totals["read"] == 60


@pytest.mark.parametrize("action", ["pause", "refuse"])
def test_two_federations_that_read_at_once_do_not_pass_the_limit_together(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    limits = {"epsilon_max": 4 * 90.0, "at_epsilon_max": action, "batch_readings_max": 30}
    configs = [
        config.model_copy(update={"client": config.client.model_copy(update=limits)}),
        shared(config, tmp_path, **limits),
    ]
    # As if the other one had always charged a moment after this one looked.
    monkeypatch.setattr(Budget, "_read_others", lambda budget: None)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(resumed(open_client(site_config, CLIENT, clock=clock)))
            for site_config in configs
        ]
        for _ in range(6):
            for node in nodes:
                node.step()
    accounts = read_spending(folder(config) / "ledger.db")
    assert 4 * 30 <= sum(account.of_person() for account in accounts.values()) <= 4 * 90
    if action == "pause":
        assert sum(node.totals["read"] for node in nodes) == 90, "the others wait in their log"


def test_a_federation_that_guarantees_nothing_does_not_share_readings_that_a_ledger_counts(
    config: Config, tmp_path: Path
) -> None:
    run(config)
    (tmp_path / "open").mkdir()
    file = create(tmp_path / "open", 0, mode="off", privacy="", clients=())
    # The client's log of readings may be on a broker that other tests share.
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text.replace('name = "house"', f'name = "house-{uuid.uuid4().hex}"'), encoding="utf-8"
    )
    other = load_config(file)
    readings = config.readings.model_copy(update={"folder": config.client.folder})
    with pytest.raises(SettingsError, match="give this federation readings of its own"):
        run(other.model_copy(update={"readings": readings}))
