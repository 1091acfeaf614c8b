"""Files whose readings a client has already are not fed to it again unasked."""

from __future__ import annotations

import gzip
import json
import os
import pty
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.errors import SettingsError
from shoal.producers.producer_command import producer
from shoal.producers.repeats import BEGINNING_BYTES, FED_FILE
from tests.producers.running_producer import csv_of, plain_rows, stored_in
from tests.producers.test_producer_command import FEDERATION

ROWS = 30
Feed = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(FEDERATION)
    csv_of(tmp_path / "a.csv", plain_rows(ROWS))
    return tmp_path


@pytest.fixture
def feed(folder: Path) -> Feed:
    """Runs the command; returns how many readings it has published."""

    def run(*words: str) -> int:
        given = ["--config", "federation.toml", *words, "--json"]
        return int(
            json.loads(CliRunner().invoke(producer, given, catch_exceptions=False).stdout)[
                "published"
            ]
        )

    return run


def stored(folder: Path) -> int:
    return sum(map(len, stored_in(folder / "data" / "clients").values()))


def test_a_copy_is_refused_names_the_client_and_goes_on_when_told(folder: Path, feed: Feed) -> None:
    assert feed("a.csv") == ROWS
    csv_of(folder / "copy.csv", plain_rows(ROWS))
    with pytest.raises(SettingsError) as refused:
        feed("copy.csv")
    for words in (
        "copy.csv begins as a.csv does",
        "fed to client-1",
        "spends its epsilon twice",
        "give --again",
    ):
        assert words in str(refused.value)
    assert stored(folder) == ROWS
    assert feed("copy.csv", "--again") == ROWS
    assert feed("copy.csv") == 0, "it continues where it was"
    assert feed("a.csv") == 0, "as the first one does"


@pytest.mark.parametrize(
    ("rows", "again"),
    [
        (ROWS, ["a.csv", "--clients", "2"]),
        (ROWS, ["a.csv", "--time-column", "t"]),
        (ROWS, ["a.csv", "--only", "client-1"]),
        (ROWS, ["b.csv", "a.csv"]),
        (ROWS, ["a.csv.gz"]),
        (ROWS + 1, ["grown.csv"]),
        (BEGINNING_BYTES // 8, ["grown.csv"]),
    ],
)
def test_other_options_other_names_and_other_files_beside_it_do_not_hide_a_file(
    folder: Path, feed: Feed, rows: int, again: list[str]
) -> None:
    csv_of(folder / "a.csv", plain_rows(rows - (rows > ROWS)))
    csv_of(folder / "b.csv", [(1, 2, 0.5, "x")])
    csv_of(folder / "grown.csv", plain_rows(rows))
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    before = feed("a.csv")
    with pytest.raises(SettingsError, match="fed to client-1 before"):
        feed(*again)
    assert stored(folder) == before


def test_what_is_new_is_fed_without_a_question(folder: Path, feed: Feed) -> None:
    assert feed("a.csv", "--only", "client-1", "--clients", "2") == ROWS // 2
    assert feed("a.csv", "--only", "client-2", "--clients", "2") == ROWS // 2, "another part"
    with pytest.raises(SettingsError, match="fed to client-1, client-2 before"):
        feed("a.csv", "--only", "client-2", "--clients", "3")
    assert feed(str(csv_of(folder / "empty.csv", []))) == 0
    assert feed(str(csv_of(folder / "b.csv", [(1, 2, 0.5, "x")]))) == 1, (
        "only the header is the same"
    )
    csv_of(folder / "b.csv", [(1, 2, 0.5, "x"), (2, 3, 0.5, "x")])
    assert feed("b.csv") == 1, "it has grown"
    csv_of(folder / "short.csv", plain_rows(ROWS - 1))
    kept = folder / "data" / "clients" / "client-1" / FED_FILE
    with kept.open("a") as file:
        file.write('\n["cut sh')
    assert feed("short.csv") == ROWS - 1
    assert len(kept.read_text().splitlines()) == 5, (
        "each source is kept once, also behind a line that was cut short"
    )


@pytest.mark.parametrize(("answer", "published"), [("y", ROWS), ("n", 0)])
def test_on_a_terminal_it_asks(
    folder: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch, answer: str, published: int
) -> None:
    feed("a.csv")
    (folder / "a.csv").rename(folder / "b.csv")
    person, terminal = pty.openpty()
    with (
        os.fdopen(person, "r+b", buffering=0) as typed,
        os.fdopen(os.dup(terminal)) as keys,
        os.fdopen(terminal, "w") as screen,
    ):
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(sys, "stdout", screen)
        typed.write(f"{answer}\n".encode())
        arguments = ["--config", "federation.toml", "b.csv"]
        if published:
            producer.main(arguments, standalone_mode=False)
        else:
            with pytest.raises(SettingsError, match="nothing was fed"):
                producer.main(arguments, standalone_mode=False)
        shown = ""
        # A terminal gives what was written to it in pieces, first the echo of the answer.
        while "same?" not in shown and select.select([typed], [], [], 10.0)[0]:
            shown += typed.read(4096).decode()
    assert "Feed it all the same?" in shown
    assert stored(folder) == ROWS + published
