"""What each file of a federation can be made from, and what it costs where it is damaged or absent.

The table in docs/reference/files.md is compared with `FILES`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.errors import ShoalError
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.house.small_federation import (
    CLIENTS,
    clock,
    create_federation,
    model_bytes,
    run_to_end,
)

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "files.md"
CLIENT = CLIENTS[0]
GOES_ON = ""
HEADER_BYTES = 100
"""of a database, which are left as they are: without them it is no database at all"""


class Outcome(NamedTuple):
    """What a damage, or an absence, does."""

    text: str
    """as it stands in docs"""
    client: str = GOES_ON
    """a part of the error that the client ends with"""
    server: str = GOES_ON
    """a part of the error that the server ends with"""


class File(NamedTuple):
    """One file."""

    path: str
    documented: str
    """its path in docs"""
    made_from: str
    damaged: Outcome
    absent: Outcome


FILES = (
    File(
        "federation.db",
        "`[log] address`",
        "nothing; a row that has changed is found when it is read and left out (`log_row_damaged`)",
        Outcome("client and server refuse it", "damaged; move it away", "damaged; move it away"),
        Outcome(
            "clients go on in a new log, whose first updates hold all they have learnt; the server"
            " refuses it until it starts in a new folder",
            server="the log was made anew since the checkpoint was saved",
        ),
    ),
    File(
        "federation.db-lease",
        "`[log] address` with `-lease`",
        "nothing is in it",
        Outcome("nothing"),
        Outcome("made again at the next renewal"),
    ),
    File(
        f"clients/{CLIENT}/readings.db",
        "`[client] folder`/NAME/`readings.db`",
        "nothing, but by a producer whose source still has the readings",
        Outcome("the client refuses it; all else goes on", "damaged; move it away"),
        Outcome(
            "the client refuses a new one; all else goes on",
            "the readings log was created anew",
        ),
    ),
    File(
        f"clients/{CLIENT}/checkpoint.db",
        "`[client] folder`/NAME/`checkpoint.db`",
        "nothing; a client under a new name learns from the readings that are left",
        Outcome("the client refuses it; all else goes on", "damaged"),
        Outcome("the client does not start; all else goes on", "checkpoint.db is missing"),
    ),
    File(
        f"clients/{CLIENT}/ledger.db",
        "`[client] folder`/NAME/`ledger.db`",
        "nothing",
        Outcome("the client refuses it; all else goes on", "is no ledger that can be read"),
        Outcome("the client does not start; all else goes on", "the ledger is missing"),
    ),
    File(
        f"clients/{CLIENT}/noise.key",
        "`[client] folder`/NAME/`noise.key`",
        "nothing",
        Outcome("the client refuses it; all else goes on", "under another noise key"),
        Outcome("the client does not start; all else goes on", "noise.key is missing"),
    ),
    File(
        "server/checkpoint.db",
        "`[server] folder`/`checkpoint.db`",
        "the log, as far as it reaches back: `shoal server --rebuild`, to the same model",
        Outcome("the server refuses it; clients go on", server="damaged"),
        Outcome("the server does not start without `--rebuild`; clients go on", server="--rebuild"),
    ),
    File(
        "server/history.db",
        "`[server] folder`/`history.db`",
        "the topic `<federation>.history`",
        Outcome("set aside and made again (`history_set_aside`)"),
        Outcome("made again"),
    ),
)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    kept = HEADER_BYTES if path.suffix == ".db" else 0
    content[kept:] = b"\xa5" * (len(content) - kept)
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The folder of a federation that has stopped, and its model."""
    folder = tmp_path_factory.mktemp("stopped")
    file = create_federation(folder, [CLIENT], readings=120, pool_clients=1)
    run_to_end(file, [CLIENT])
    # Where no server has run as a process there is none.
    (folder / "federation.db-lease").touch()
    return folder, model_of(file)


def model_of(file: Path) -> bytes:
    with resumed(open_server(load_config(file), clock=clock)) as server:
        while server.step():
            pass
        return model_bytes(server)


def run_client(file: Path) -> None:
    with resumed(open_client(load_config(file), CLIENT, clock=clock)) as client:
        while client.step():
            pass


def check(outcome: str, run: Callable[[], object]) -> None:
    """It ends with this error, or goes on."""
    if outcome == GOES_ON:
        run()
        return
    with pytest.raises(ShoalError, match=outcome) as refused:
        run()
    assert not refused.value.retriable, "it is not tried again and again"


@pytest.mark.parametrize("harm", [damage, remove])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.rsplit("/", 1)[-1])
def test_a_lost_file_costs_what_is_documented(
    file: File, harm: Callable[[Path], None], stopped: tuple[Path, bytes], tmp_path: Path
) -> None:
    folder, model = stopped
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    harm(copy / file.path)
    outcome = file.damaged if harm is damage else file.absent
    federation = copy / "federation.toml"
    check(outcome.client, lambda: run_client(federation))

    def the_same_model() -> None:
        assert model_of(federation) == model

    check(outcome.server, the_same_model)


def test_the_table_in_docs_is_that_of_the_tests() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for file in FILES:
        cells = (file.documented, file.made_from, file.damaged.text, file.absent.text)
        assert f"| {' | '.join(cells)} |\n" in text
