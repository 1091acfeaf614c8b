"""Whom readings concern, by `shoal init`: the file for each answer, judged by `shoal check`."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from shoal.cli.check import check
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError, ShoalError
from shoal.privacy.formal import EPSILON_WEAK
from shoal.producers import sampled_messages
from shoal.producers.column_types import Sample
from shoal.producers.files.source import FilesSettings
from shoal.producers.init_command import init_command
from shoal.producers.message_times import Sampled
from shoal.producers.producer_command import producer
from shoal.producers.subjects import persons_per_window

# Valid as a public key in a contract; nobody has the private one.
KEY = "1" * 128
PERSONS = ("--concerns", "persons", "--person-column", "badge")
CLIENT = ("--concerns", "client")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str, answers: str | None = None) -> Result:
    result = CliRunner().invoke(init_command, arguments, input=answers)
    if result.exception and not isinstance(result.exception, ShoalError | SystemExit):
        raise result.exception
    return result


def write_homes(
    rows: int,
    clients: int = 1,
    badges: int = 40,
    minutes: int = 10,
    features: int = 2,
    shared: bool = False,
) -> None:
    """a.csv: clients in turn, each with a reading every `minutes`, of one of its badges, which are
    numbers; `shared`: of the badges of all clients."""
    names = [f"x{number}" for number in range(features)]
    lines = [",".join(["time", "house", "badge", *names])]
    for row in range(rows):
        at = minutes * 60 * (row // clients)
        badge = 5000 + 37 * (row // clients) % badges
        if not shared:
            badge += 10_000 * (row % clients)
        cells = [f"{(37 + 2 * number) * row % 97 / 7:.3f}" for number in range(features)]
        lines.append(",".join([f"{1_700_000_000 + at}", f"h{row % clients}", f"{badge}", *cells]))
    Path("a.csv").write_text("\n".join(lines) + "\n")


def written() -> Config:
    return load_config(Path("a.toml"))


def checked(*arguments: str) -> dict[str, Any]:
    """What `shoal check` says of the file that was written."""
    result = CliRunner().invoke(check, ["a.toml", "--json", *arguments], catch_exceptions=False)
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_the_data_of_nobody_are_public_and_a_device_is_what_is_taken_without_an_answer() -> None:
    write_homes(3000)
    texts = {}
    for arguments in (
        (),
        ("--private",),
        ("--concerns", "device"),
        ("--private", "--concerns", "device"),
        ("--public",),
        ("--concerns", "nobody"),
        ("--public", "--concerns", "nobody"),
    ):
        assert init("a.csv", *arguments).exit_code == 0, arguments
        privacy = written().contract.privacy
        texts[arguments] = Path("a.toml").read_text()
        public = "--public" in arguments or "nobody" in arguments
        assert (privacy.mode, privacy.unit) == ("off" if public else "formal", "reading")
        Path("a.toml").unlink()
    assert len(set(texts.values())) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--private", "--concerns", "nobody"), "nobody needs it: leave one of them out"),
        (("--public", "--concerns", "device"), "--concerns device says who needs it"),
        (("--public", *PERSONS), "--concerns persons says who needs it"),
        (("--public", "--person-column", "badge"), "--concerns persons says who needs it"),
        (("--concerns", "device", "--person-column", "badge"), "not with --concerns device"),
        (("--concerns", "persons"), "needs --person-column"),
        (("--concerns", "persons", "--person-column", "nothing"), "column 'nothing' is missing"),
        ((*PERSONS, "--client-column", "badge"), "say --concerns client"),
        ((*PERSONS, "--helper-key", KEY), "goes with --concerns client"),
        (("--clients", "100"), "--clients goes with"),
        ((*CLIENT, "--clients", "300", "--helper-key", "abc"), "128 hexadecimal digits"),
    ],
)
def test_what_contradicts_itself_or_lacks_something_is_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    write_homes(3000, clients=2)
    result = init("a.csv", *arguments)
    assert isinstance(result.exception, SettingsError)
    assert words in str(result.exception)
    assert not Path("a.toml").exists()


ANSWERS = (
    # arguments, unit of the file or None for a refusal, and what the data are.
    (PERSONS, None, {"rows": 6000, "badges": 40}),
    (PERSONS, None, {"rows": 3000, "badges": 3}),
    (PERSONS, None, {"rows": 60, "badges": 10}),
    ((*PERSONS, "--clients", "100"), "user", {"rows": 6000, "badges": 40}),
    ((*PERSONS, "--clients", "100"), None, {"rows": 6000, "badges": 20}),
    ((*PERSONS, "--clients", "3"), "user", {"rows": 6000, "badges": 1400, "minutes": 1}),
    ((*PERSONS, "--clients", "2000"), "user", {"rows": 3000, "badges": 90, "minutes": 180}),
    (CLIENT, None, {"rows": 4000, "clients": 40}),
    (CLIENT, None, {"rows": 4000, "clients": 120, "minutes": 1}),
    (CLIENT, None, {"rows": 4000, "clients": 40, "minutes": 90}),
    ((*CLIENT, "--clients", "120000"), "user", {"rows": 600, "clients": 2, "minutes": 30}),
    ((*CLIENT, "--helper-key", KEY), "client", {"rows": 4000, "clients": 120}),
    ((*CLIENT, "--helper-key", KEY), None, {"rows": 4000, "clients": 90}),
    (
        (*CLIENT, "--helper-key", KEY, "--clients", "150"),
        "client",
        {"rows": 300, "clients": 1, "minutes": 90},
    ),
    (
        (*CLIENT, "--helper-key", KEY, "--clients", "150"),
        None,
        {"rows": 900, "clients": 1, "features": 9},
    ),
    (
        (*CLIENT, "--helper-key", KEY, "--helper-key", "2" * 128, "--clients", "150"),
        "client",
        {"rows": 900, "clients": 1, "minutes": 1},
    ),
)


@pytest.mark.parametrize(("arguments", "unit", "data"), ANSWERS)
def test_people_are_proposed_no_unit_that_the_check_condemns(
    arguments: tuple[str, ...], unit: str | None, data: dict[str, int]
) -> None:
    write_homes(**data)
    result = init("a.csv", *arguments)
    if unit is None:
        assert isinstance(result.exception, SettingsError)
        assert "useful result" in str(result.exception)
        assert "--clients N where more" in str(result.exception)
        assert not Path("a.toml").exists()
        return
    assert result.exit_code == 0, result.output or result.exception
    config = written()
    privacy = config.contract.privacy
    assert privacy.unit == unit
    assert privacy.times == "arrival", "the hour tells something of a person"
    assert "badge" not in {feature.name for feature in config.contract.features} or (
        "persons" not in arguments
    )
    clients = data.get("clients", 1)
    if "--clients" in arguments:
        clients = int(arguments[arguments.index("--clients") + 1])
    found = checked("--clients", str(clients))
    assert found["advice"] == []
    assert found["privacy_statement"]["mode"] == privacy.mode
    files = config.source("files")
    assert isinstance(files, FilesSettings)
    if unit == "client":
        assert privacy.mode == "masked"
        assert files.user_column is None or not files.user_column
        (need,) = found["needs"]
        assert need["advised"]
        assert "more than its budget" not in need["text"]
        assert "shoal helper --config a.toml --key h1.key" in result.output
        assert "shoal run" not in result.output
    else:
        assert files.user_column == ("badge" if "persons" in arguments else "house")
        assert found["user"]["advised"]
        assert found["user"]["epsilon"] <= EPSILON_WEAK, "of all windows, not of one"
        assert config.client.epsilon_max == found["user"]["epsilon"]
        assert found["user"]["text"] in result.output
        assert "Clusters show after 2 windows" in result.output


def test_a_refusal_says_how_many_it_takes_and_that_number_is_enough() -> None:
    # Badges that are alike at all clients are a third feature, where they are no persons.
    write_homes(4000, clients=10, shared=True)
    words = str(init("a.csv", *CLIENT).exception)
    assert "with 10 clients, each a person" in words
    assert "2 windows cost epsilon 8" in words
    assert "takes 120,000 clients to show clusters" in words
    assert "(--helper-key) take 106 clients" in words
    for clients, helper, refused in (
        ("119999", [], True),
        ("120000", [], False),
        ("105", ["--helper-key", KEY], True),
        ("106", ["--helper-key", KEY], False),
    ):
        result = init("a.csv", *CLIENT, "--clients", clients, *helper)
        assert isinstance(result.exception, SettingsError) == refused, clients
        if not refused:
            Path("a.toml").replace("last.toml")
    Path("last.toml").rename("a.toml")
    # With three features, 100 clients would take longer than the budget of 30 days.
    few, enough = (checked("--clients", number)["needs"][0]["text"] for number in ("105", "106"))
    assert "more than its budget" in few
    assert "more than its budget" not in enough


def test_persons_at_several_clients_are_refused_as_each_client_spends_on_them() -> None:
    write_homes(900, clients=3, shared=True)
    words = str(init("a.csv", *PERSONS, "--clients", "200").exception)
    assert "has readings at 3 clients" in words
    assert "spends epsilon 8" in words
    assert not Path("a.toml").exists()
    header, *lines = Path("a.csv").read_text().splitlines()
    # Without the column of clients, which is the second.
    rest = [",".join([line.split(",")[0], *line.split(",")[2:]]) for line in (header, *lines)]
    Path("a.csv").write_text("\n".join(rest) + "\n")
    assert init("a.csv", *PERSONS, "--clients", "200").exit_code == 0
    assert checked()["user"]["advised"]


def test_the_file_for_persons_feeds_readings_with_their_user_ids() -> None:
    write_homes(900, clients=2)
    result = init("a.csv", *PERSONS, "--clients", "200")
    assert "  badge  person: " in result.output
    assert "5000" not in result.output + Path("a.toml").read_text()
    fed = CliRunner().invoke(producer, ["--config", "a.toml", "a.csv", "--json"])
    assert fed.exception is None
    assert json.loads(fed.stdout)["published"] == 900


def typed_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, answers: str, *arguments: str
) -> tuple[str, BaseException | None]:
    """What a terminal shows of init where somebody types the answers, and the error it ends in."""
    person, terminal = pty.openpty()
    error = None
    with (
        os.fdopen(person, "r+b", buffering=0) as keyboard,
        os.fdopen(os.dup(terminal)) as keys,
        os.fdopen(terminal, "w") as screen,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdin", keys)
        patched.setattr(sys, "stdout", screen)
        keyboard.write(answers.encode())
        try:
            init_command.main(list(arguments), standalone_mode=False)
        except (SettingsError, click.Abort) as raised:
            error = raised
        screen.write(END_OF_OUTPUT)
        screen.flush()
        shown = ""
        # A terminal gives what was written to it in pieces, first the echo of the answers.
        while END_OF_OUTPUT not in shown and select.select([keyboard], [], [], 10.0)[0]:
            shown += keyboard.read(4096).decode()
    return shown, error


END_OF_OUTPUT = "<end of output>"
QUESTION = "Whom do the readings concern?"


def test_a_terminal_is_asked_whom_the_readings_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    write_homes(3000, badges=90)
    for answers, arguments, mode, unit in (
        ("nobody\n", (), "off", "reading"),
        ("\n", (), "formal", "reading"),
        ("people\ndevice\n", (), "formal", "reading"),
        ("persons\nbadge\n", ("--clients", "100"), "formal", "user"),
        ("client\n", ("--helper-key", KEY, "--clients", "200"), "masked", "client"),
        ("badge\n", ("--concerns", "persons", "--clients", "100"), "formal", "user"),
    ):
        shown, error = typed_on_a_terminal(monkeypatch, answers, "a.csv", *arguments)
        assert error is None
        assert (QUESTION in shown) == ("--concerns" not in arguments)
        assert ("Column that names the person" in shown) == ("badge" in answers)
        assert ("'people' is not one of" in shown) == ("people" in answers)
        privacy = written().contract.privacy
        assert (privacy.mode, privacy.unit) == (mode, unit)
        Path("a.toml").unlink()
    for answers, words in (("client\n", "no privacy unit gives"), ("persons\nno\n", "is missing")):
        _, error = typed_on_a_terminal(monkeypatch, answers, "a.csv")
        assert words in str(error)
    for arguments in (("--private",), ("--public",), ("--concerns", "device")):
        shown, _ = typed_on_a_terminal(monkeypatch, "", "a.csv", *arguments)
        assert QUESTION not in shown
        Path("a.toml").unlink()


def test_a_client_that_no_column_names_cannot_be_the_user_of_a_reading() -> None:
    Path("a.csv").write_text(
        "warm,damp\n" + "".join(f"{37 * n % 97},{41 * n % 89}\n" for n in range(600))
    )
    result = init("a.csv", *CLIENT, "--clients", "150000")
    assert "no column names the client" in str(result.exception)
    assert init("a.csv", *CLIENT, "--clients", "150", "--helper-key", KEY).exit_code == 0
    assert checked("--clients", "150")["needs"][0]["advised"]


def test_a_sheet_names_no_persons_and_takes_the_column_as_it_is_said() -> None:
    Path("sheet.csv").write_text("name,lower,upper\nwarm,0,50\n")
    result = init("--sheet", "sheet.csv", "--out", "a.toml", *PERSONS)
    assert result.exit_code == 0, result.exception
    assert "How many persons a window has" in result.output
    files = written().source("files")
    assert isinstance(files, FilesSettings)
    assert files.user_column == "badge"
    found = checked()
    assert found["advice"] == []
    assert found["user"]["advised"]


def test_persons_of_a_window_are_counted_client_by_client() -> None:
    rows = [
        ["a", "p1"],
        ["b", "p1"],
        ["a", "p1"],
        ["b", "p2"],
        ["a", "p2"],
        ["b", ""],
        ["a", "p2"],
        ["b", None],
        ["a", "p9"],
    ]
    sample = Sample(["home", "who"], rows, len(rows))
    # Windows of a: p1 p1, p2 p2, and one that is not full; of b: p1 p2, and two of nobody.
    assert persons_per_window(sample, "who", "home", 2) == (1 + 1 + 2 + 0) / 4
    assert persons_per_window(sample, "who", "home", 10) == (3 + 2) / 2
    assert persons_per_window(sample, "who", "", 20) == 3
    assert persons_per_window(sample._replace(head=2), "who", "", 2) == 1


def messages(topic: str, badge: str = "who.badge") -> list[Sampled]:
    """Of two rooms in turn, ten minutes apart; `topic` has a place for the room."""
    sampled = []
    for number in range(1200):
        at = 1_700_000_000.0 + 600 * (number // 2)
        fields = {
            "ts": at,
            "room": f"r{number % 2}",
            badge: f"p{number % 2}-{37 * (number // 2) % 60}",
            "warm": 37 * number % 97 / 7,
            "damp": 41 * number % 89 / 7,
        }
        sampled.append(Sampled(topic.format(number % 2), fields, at))
    return sampled


@pytest.mark.parametrize("kind", ["kafka", "mqtt"])
def test_messages_have_the_person_in_the_field_that_becomes_user_id(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Log:
        def close(self) -> None: ...

    monkeypatch.setattr(sampled_messages.KAFKA, "open", lambda *_: Log(), raising=False)
    for name in ("_from_kafka", "_from_mqtt"):
        monkeypatch.setattr(sampled_messages, name, lambda *_: messages("hall/{}/air"))
    look = [f"--{kind}", "host:1", "--topic", "hall/+/air", "--out", "a.toml"]
    look += ["--clients", "150000"]
    result = init(*look, "--concerns", "persons", "--person-column", "who.badge")
    assert result.exit_code == 0, result.exception
    config = written()
    assert config.contract.privacy.unit == "user"
    assert config.source(kind).model_dump()["user_id"] == "who.badge"
    assert [feature.name for feature in config.contract.features] == ["warm", "damp"]
    assert checked()["advice"] == []
    Path("a.toml").unlink()
    refused = init(*look, "--concerns", "persons", "--person-column", "nothing")
    assert "no such field" in str(refused.exception)
    refused = init(*look, "--concerns", "client")
    if kind == "mqtt":
        # A level of the topic names the client, and no field of the message.
        assert "whose it is in a field" in str(refused.exception)
    else:
        assert config.source(kind).model_dump()["client"] == "room"
        assert written().source(kind).model_dump()["user_id"] == "room"
