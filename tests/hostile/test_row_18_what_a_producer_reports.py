"""Row 18: a producer on a full disk, with a quote that is never closed, and with an empty file says
what is so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from shoal.config.settings import load_config
from shoal.runtime.logs import open_readings
from tests.house.processes import wait_until
from tests.house.small_federation import write_federation

CLIENTS = ("attic", "cellar")


def producer(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal", "producer", "--config", "federation.toml", *arguments]
    if arguments[-1] == "--full":
        # A file may have 1 MiB: what a full disk does to a process, without one.
        command = ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", *command[:-1]]
    with (folder / "producer.txt").open("w") as errors:
        return subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
        )


def stored(folder: Path) -> dict[str, int]:
    config = load_config(folder / "federation.toml")
    found = {}
    for client in CLIENTS:
        with closing(open_readings(config, client)) as log:
            found[client] = log.bounds("readings")[0][1]
    return found


def test_on_a_full_disk_as_many_readings_are_reported_as_are_stored(tmp_path: Path) -> None:
    write_federation(tmp_path)
    # One client's log is full long before the other's: each batch has readings of both.
    rows = "".join(f"{n % 40},{n % 90},{CLIENTS[n % 10 == 0]}\n" for n in range(60_000))
    (tmp_path / "rows.csv").write_text("warm,damp,site\n" + rows, encoding="utf-8")
    running = producer(
        tmp_path, "rows.csv", "--split", "column:site", "--speed", "max", "--json", "--full"
    )
    log = tmp_path / "producer.txt"
    wait_until(
        lambda: (
            log.read_text(encoding="utf-8").count('"retrying"') >= 3 or running.poll() is not None
        )
    )
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate()
    assert running.returncode == 0, log.read_text(encoding="utf-8")
    totals = json.loads(output)
    assert not totals["finished"]
    assert totals["clients"] == stored(tmp_path)
    assert totals["already_there"] == 0
    # The next run, with room, publishes the rest, and no reading twice.
    again = producer(tmp_path, "rows.csv", "--split", "column:site", "--speed", "max", "--json")
    rest = json.loads(again.communicate()[0])
    assert rest["published"] + totals["published"] == 60_000 == sum(stored(tmp_path).values())


def test_a_quote_that_is_never_closed_costs_its_own_row_and_is_named(tmp_path: Path) -> None:
    write_federation(tmp_path)
    rows = [f"{n % 40},{n % 90}" for n in range(20_000)]
    rows[16] = '"3,4'
    rows[19_990] = '5,"6'
    (tmp_path / "rows.csv").write_text("\n".join(["warm,damp", *rows]) + "\n", encoding="utf-8")
    running = producer(tmp_path, "rows.csv", "--json")
    totals = json.loads(running.communicate()[0])
    assert (totals["published"], totals["faults"]) == (20_000, {"unclosed": 2})
    lines = map(json.loads, (tmp_path / "producer.txt").read_text(encoding="utf-8").splitlines())
    named = [
        (line["file"], line["line"], line["reason"])
        for line in lines
        if line["event"] == "row_unreadable"
    ]
    assert named == [("rows.csv", 18, "unclosed"), ("rows.csv", 19_992, "unclosed")]


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    write_federation(tmp_path)
    for name, text in (("empty.csv", ""), ("header.csv", "warm,damp\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        running = producer(tmp_path, name)
        output, _ = running.communicate()
        assert running.returncode == 0
        assert "the file is empty" in output
        assert "earlier run" not in output
