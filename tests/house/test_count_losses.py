"""Private counts after losses: whatever is deleted or restored from an older copy, a ledger holds
at least what was published, or the client refuses with words, or all that it publishes is of new
readings."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import closing
from itertools import filterfalse, product
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.config.settings import load_config
from shoal.errors import InvalidState, ShoalError
from shoal.privacy.ledger import LEDGER, account, read_spending
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.house.counting_federation import create, rooms, run
from tests.house.lost_parts import STATES, lose
from tests.house.small_federation import write_readings

CLIENT = "attic"
WINDOW = 50
FILES = {
    "checkpoint": f"clients/{CLIENT}/checkpoint.db*",
    "ledger": f"clients/{CLIENT}/{LEDGER}*",
    "readings": f"clients/{CLIENT}/readings.db*",
    "key": f"clients/{CLIENT}/noise.key*",
    "server": "server/*.db*",
    "log": "federation.db*",
}
"""the parts of a federation, and the files that hold each"""


def assignments() -> list[tuple[str, ...]]:
    """A state for each part: all lost, and each state of a part with each of every other one (an
    orthogonal array of 27 rows).

    Not all restored from copies of one moment: then nothing is left that could tell, and
    `shoal client --after-restore` is the cure (tests/client_nodes/test_after_restore.py).
    """
    found = [tuple(["lost"] * len(FILES))]
    for a, b, c in product(range(3), repeat=3):
        point = (a, b, c, (a + b) % 3, (a + c) % 3, (b + 2 * c) % 3)
        found.append(tuple(STATES[value] for value in point))
    return list(dict.fromkeys(found))


class Moments(NamedTuple):
    """A federation, copies of its folder from two moments, and what was published until then."""

    file: Path
    early: Path
    late: Path
    published: set[bytes]


def published(file: Path) -> set[bytes]:
    """The different noisy counts of the client in the log."""
    config = load_config(file)
    counts = set()
    with closing(open_log(config.log)) as log:
        log.ensure(config.contract.updates_topic)
        topic = config.contract.updates_topic
        records, _ = log.read(topic, beginning(log, topic))
    for record in records:
        if Update.headers()[0] in record.headers:
            update = Update.decode(record.value, record.headers)
            if update.arrays:
                counts.add(pack(dict(update.arrays)))
    return counts


def charged(file: Path) -> int:
    """The windows that the ledger of the client holds; 0 without one."""
    config = load_config(file)
    try:
        accounts = read_spending(config.client.folder / CLIENT / LEDGER)
    except InvalidState:
        return 0
    return sum(model.windows for model in accounts[account(CLIENT, "house")].models)


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    """After two published windows, and after four."""
    top = tmp_path_factory.mktemp("losses")
    folder = top / "house"
    folder.mkdir()
    file = create(folder, 2 * WINDOW, window=WINDOW, grow=WINDOW, clients=(CLIENT,))
    run(file, clients=(CLIENT,))
    shutil.copytree(folder, top / "early")
    write_readings(load_config(file), CLIENT, rooms(2 * WINDOW, 1))
    run(file, clients=(CLIENT,))
    shutil.copytree(folder, top / "late")
    truth = published(file)
    assert len(truth) == charged(file) == 4
    return Moments(file, top / "early", top / "late", truth)


def put(moments: Moments, states: Iterable[str]) -> None:
    """Put the folder into a state: each part kept, restored or deleted."""
    lose(moments.file.parent, moments.early, moments.late, FILES, states)


def check(moments: Moments, states: tuple[str, ...]) -> None:
    """Put the folder into a state, run the federation, and compare the ledger with what was
    published."""
    put(moments, states)
    write_readings(load_config(moments.file), CLIENT, rooms(WINDOW, 2))
    refused = ""
    try:
        run(moments.file, clients=(CLIENT,))
    except ShoalError as why:
        refused = str(why)
    more = published(moments.file) - moments.published
    if refused and not more:
        return
    # Where the server alone refuses, its clients have gone on, and their ledgers must say so.
    of_new_readings = states[list(FILES).index("readings")] == "lost" and len(more) <= 1
    assert of_new_readings or charged(moments.file) >= len(moments.published | more), (
        states,
        refused,
    )


@pytest.mark.parametrize("states", assignments(), ids="-".join)
def test_no_loss_makes_a_ledger_less_than_what_was_published(
    moments: Moments, states: tuple[str, ...]
) -> None:
    check(moments, states)


def is_beyond_telling(states: tuple[str, ...]) -> bool:
    """Whether the client is of an older moment, and nothing is left that knows a later one: the log
    is of that moment too, or it is lost with the server that has read it.

    A noise key never changes, so that a copy of it is the key. `shoal client --after-restore` is
    the cure.
    """
    state_of = dict(zip(FILES, states, strict=True))
    told_by = {state_of[part] for part in ("checkpoint", "ledger", "readings")}
    if told_by != {"copy"} or state_of["key"] == "lost":
        return False
    return state_of["log"] == "copy" or (state_of["log"], state_of["server"]) == ("lost", "lost")


@pytest.mark.integration
def test_no_loss_of_any_subset_of_the_files_makes_a_ledger_less_than_what_was_published(
    moments: Moments,
) -> None:
    every = list(filterfalse(is_beyond_telling, product(STATES, repeat=len(FILES))))
    assert len(every) == 3**6 - 8
    wrong = []
    for states in every:
        try:
            check(moments, states)
        except AssertionError as found:
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)
