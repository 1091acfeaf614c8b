"""Masked counts after losses: whatever is deleted or restored, a ledger holds at least what was
unmasked, or the process refuses with words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import filterfalse, product
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from shoal.cli.privacy import privacy as privacy_command
from shoal.errors import InvalidState, ShoalError
from shoal.privacy.gaussian import epsilon_of
from shoal.privacy.ledger import LEDGER, NANO, account, read_spending
from shoal.privacy.masked import Masked
from shoal.privacy.masks import helper_public
from shoal.protocol.masked import CloseRound, HelperSum, MaskedCounts, signed_counts, words_of
from shoal.runtime.helper_state import make_helper_state
from tests.house.lost_parts import STATES, lose
from tests.house.masked_federation import MaskedFederation
from tests.house.test_masked import decoded, publish

FIRST = "c0"
"""the client whose readings are looked at"""
AWAY = "c2"
"""the client that is away after a loss"""


def unmasked(federation: MaskedFederation) -> set[bytes]:
    """The batches with a message of the first client that a helper has answered: each has noise of
    its own."""
    sums = {answer.batch for answer in decoded(federation, HelperSum)}
    places = {
        record.offset
        for record in federation.records(MaskedCounts.TYPE)
        if MaskedCounts.decode(record.value, record.headers).client == FIRST
    }
    return {
        close.batch
        for close in decoded(federation, CloseRound)
        if close.batch in sums and places & set(close.places)
    }


def charged(federation: MaskedFederation) -> int:
    """The windows that the ledger of the first client holds; 0 without one."""
    try:
        accounts = read_spending(federation.config.client.folder / FIRST / LEDGER)
    except InvalidState:
        return 0
    masked = accounts[account(FIRST, "plant")].masked
    return sum(model.windows for model in masked)


def test_each_life_of_a_log_is_charged_and_all_of_them_within_the_budget(tmp_path: Path) -> None:
    privacy = "budget_windows = 4\nbudget_days = 30"
    federation = MaskedFederation(tmp_path, clients=5, helpers=1, privacy=privacy)
    federation.feed(1)
    truth = 0
    for life in range(6):
        # Others are late: the first client is in a batch, and does not learn of it.
        federation.run(
            clients=[FIRST, *federation.names[1:3]],
            until=lambda _: bool(decoded(federation, HelperSum)),
        )
        truth += len(unmasked(federation))
        assert truth <= charged(federation) <= 4
        assert charged(federation) == min(life + 1, 4)
        federation.lose_log()
    arguments = ["report", "--config", str(federation.file), "--name", FIRST]
    report = CliRunner().invoke(privacy_command, [*arguments, "--json"], catch_exceptions=False)
    client = json.loads(report.stdout)["clients"][FIRST]
    assert client["masked"][0]["windows"] == charged(federation) >= truth
    mode = federation.config.resolved.mode
    assert isinstance(mode, Masked)
    rho = truth * mode.window_nano / NANO
    assert client["person_epsilon"] >= epsilon_of(rho, mode.delta), "the report states the truth"
    assert client["person_epsilon"] <= mode.values["epsilon"]


def test_messages_of_a_log_that_was_lost_are_not_unmasked_from_another_one(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, clients=3, helpers=1)
    federation.feed(1)
    federation.run()
    recorded = decoded(federation, MaskedCounts)
    closed = decoded(federation, CloseRound)[0]
    federation.lose_log()
    with federation.helper("h0") as helper:
        publish(federation, *recorded, closed)
        while helper.step():
            pass
    assert decoded(federation, HelperSum) == [], "these windows were unmasked before"
    # Even a helper that has forgotten them takes off other masks.
    folder = federation.key_file("h0").parent
    (folder / "helper.db").unlink()
    make_helper_state(folder, helper_public(federation.secret("h0")))
    with federation.helper("h0") as helper:
        while helper.step():
            pass
    (answer,) = decoded(federation, HelperSum)
    total = sum(words_of(message.counts) for message in recorded) - words_of(answer.total)
    assert abs(signed_counts(total)).min() > 10_000, "masks and no counts"


FILES = {
    "checkpoint": f"clients/{FIRST}/checkpoint.db*",
    "ledger": f"clients/{FIRST}/{LEDGER}*",
    "readings": f"clients/{FIRST}/readings.db*",
    "helper": "h0/helper.db*",
    "server": "server/*.db*",
    "log": "federation.db*",
}
"""the parts of a federation, and the files that hold each"""


def is_beyond_telling(states: tuple[str, ...]) -> bool:
    """Whether client and helper are of one older moment, and so is the log, or it is lost with the
    server: nothing is left that knows a later moment (`shoal client --after-restore`)."""
    state_of = dict(zip(FILES, states, strict=True))
    older = {state_of[part] for part in ("checkpoint", "ledger", "readings", "helper")}
    rest = (state_of["log"], state_of["server"])
    return older == {"copy"} and (rest[0] == "copy" or rest == ("lost", "lost"))


def assignments() -> list[tuple[str, ...]]:
    """A state for each part: each part alone, all deleted, all copies but the ledger, and each
    state of a part with each of every other one (an orthogonal array of 27 rows, from the points
    of a space over three elements)."""
    # Only the ledger knows the later moment, and helpers have forgotten it; then only the client,
    # whose message the log and the helper lack.
    found = [tuple(STATES[part != "ledger"] for part in FILES)]
    found.append(("kept", "kept", "kept", "copy", "copy", "copy"))
    for changed in (1, 2):
        found.append(tuple([STATES[changed]] * len(FILES)))
        for place in range(len(FILES)):
            alone = [STATES[0]] * len(FILES)
            alone[place] = STATES[changed]
            found.append(tuple(alone))
    for a, b, c in product(range(3), repeat=3):
        point = (a, b, c, (a + b) % 3, (a + c) % 3, (b + 2 * c) % 3)
        found.append(tuple(STATES[value] for value in point))
    return list(filterfalse(is_beyond_telling, dict.fromkeys(found)))


class Moments(NamedTuple):
    """A federation, and copies of its folder from two moments."""

    federation: MaskedFederation
    early: Path
    late: Path


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    """After one unmasked window, and after two."""
    top = tmp_path_factory.mktemp("losses")
    folder = top / "plant"
    folder.mkdir()
    federation = MaskedFederation(folder, clients=4, helpers=1, window=10)
    clients = federation.names[:3]
    federation.feed(2, clients)
    federation.run(clients, until=lambda _: len(decoded(federation, HelperSum)) == 1)
    shutil.copytree(folder, top / "early")
    federation.run(clients)
    assert len(unmasked(federation)) == charged(federation) == 2
    shutil.copytree(folder, top / "late")
    return Moments(federation, top / "early", top / "late")


def put(moments: Moments, states: Iterable[str]) -> None:
    """Put the folder into a state: each part kept, restored or deleted."""
    lose(moments.federation.folder, moments.early, moments.late, FILES, states)


def check(moments: Moments, states: tuple[str, ...]) -> None:
    """Put the folder into a state, run the federation, and compare the ledger with what was
    unmasked."""
    federation = moments.federation
    put(moments, ["kept"] * len(FILES))
    truth = unmasked(federation)
    put(moments, states)
    # In the place of one client there is another one, so that no batch is as it was: the same one
    # would have the same noise. They have more windows than the first client sends again.
    clients = [name for name in federation.names if name != AWAY]
    federation.feed(1, [FIRST], first=2)
    federation.feed(2, clients[1:2], first=2)
    federation.feed(4, clients[2:])
    refused = ""
    try:
        federation.run(clients)
    except ShoalError as why:
        refused = str(why)
    more = unmasked(federation) - truth
    holds = charged(federation) >= len(truth | more)
    assert holds or (refused and not more), (
        f"{states}: {len(truth | more)} were unmasked: {refused}"
    )


@pytest.mark.parametrize("states", assignments(), ids="-".join)
def test_no_loss_makes_a_ledger_less_than_what_was_unmasked(
    moments: Moments, states: tuple[str, ...]
) -> None:
    check(moments, states)


def test_a_client_restored_with_log_and_helper_spends_more_than_its_ledger_holds(
    moments: Moments,
) -> None:
    with pytest.raises(AssertionError, match="4 were unmasked"):
        check(moments, ("copy",) * len(FILES))


def test_a_client_that_alone_was_not_restored_charges_its_newest_window_anew(
    moments: Moments, caplog: pytest.LogCaptureFixture
) -> None:
    """Others fill the batch of the round that it has answered before, so that it sends the window
    for the next one, and the helper has forgotten that it unmasked it."""
    federation = moments.federation
    put(moments, ["kept"] * len(FILES))
    truth = unmasked(federation)
    put(moments, ("kept", "kept", "kept", "copy", "copy", "copy"))
    for client in federation.names[1:]:
        folder = federation.folder / "clients" / client
        shutil.rmtree(folder, ignore_errors=True)
        if (moments.early / "clients" / client).exists():
            shutil.copytree(moments.early / "clients" / client, folder)
    federation.feed(1, [FIRST], first=2)
    federation.feed(4, federation.names[1:3], first=1)
    federation.feed(6, federation.names[3:])
    federation.run()
    assert len(truth | unmasked(federation)) == charged(federation) == 4
    assert "masked_counts_gone" in caplog.text


@pytest.mark.integration
# In parts, as each has a limit of time: all rows take a quarter of an hour on a busy machine.
@pytest.mark.parametrize("first", list(product(STATES, repeat=2)), ids="-".join)
def test_no_loss_of_any_subset_of_the_files_makes_a_ledger_less_than_what_was_unmasked(
    moments: Moments, first: tuple[str, ...]
) -> None:
    rows = [(*first, *rest) for rest in product(STATES, repeat=len(FILES) - len(first))]
    wrong = []
    for states in filterfalse(is_beyond_telling, rows):
        try:
            check(moments, states)
        except AssertionError as found:
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)
