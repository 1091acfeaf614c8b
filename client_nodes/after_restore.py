"""Replaces a client whose machine was restored together with the federation's log.

Copies of one moment agree with each other: nothing on the machine is left that knows what the
client has published since. Going on, it would publish the same readings with other noise, and its
ledger would hold less than was spent. So it goes on under a new name, with a new noise key and a
new readings log, and no reading of the old log is released a second time. The ledger goes with it:
it keeps the account of the old name, which is charged for what was published since the copy, and
limits and budgets count that account as well.

In this order, each step on the disk before the next: charge, retire the old key, move the ledger.
After a kill the next start repeats what is missing; a charge may then count twice, never too
little.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.client_nodes.bootstrap import (
    NOISE_KEY,
    checkpoint_owner,
    ledger_fingerprint,
    open_checkpoint,
)
from shoal.client_nodes.releases import released_places
from shoal.config.base import check_client_name
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError
from shoal.files import sync_folder
from shoal.privacy import load_or_create_key
from shoal.privacy.ledger import LEDGER, Ledger, MaskedRelease, Release, read_spending
from shoal.protocol.signatures import read_client_key
from shoal.protocol.topics import READINGS, ensure_local_topics
from shoal.runtime.logs import open_client_log
from shoal.telemetry.events import log_event

if TYPE_CHECKING:
    from shoal.privacy.masked import Masked

RETIRED_KEY: Final = "noise.key.retired"
"""name of the noise key of a client that another one has replaced"""
AFTER_RESTORE: Final = b"published after the copy from which this client was restored"
"""plan of a charge for a window of which nothing else is known"""


class Lost(NamedTuple):
    """The most that a client can have published since the copy."""

    windows: int
    readings: int


def replace_client(
    config: Config,
    old: str,
    new: str,
    windows: int,
    clock: Callable[[], float] = time.time,
) -> None:
    """Let client `new` take the place of `old`, whose folder and log are copies of one moment.

    `windows`: the most windows that `old` can have published since that moment; those that the
    readings left in its log can have been in are charged if they are more, and with hidden presence
    those that the clock has closed since. Does nothing where it is done.
    Raises `SettingsError` for names or settings with which it cannot be; `InvalidState` where
    `old` is no client with a ledger, or `new` is one already.
    """
    check_client_name(old)
    check_client_name(new)
    _check_settings(config, old, new)
    # Before anything is changed: the new client would not start without it.
    read_client_key(config.client.signing_key_file, new)
    folder = config.client.folder / old
    key = folder / NOISE_KEY
    retired = folder / RETIRED_KEY
    ledger_before = config.readings_folder / old / LEDGER
    ledger_after = config.readings_folder / new / LEDGER
    owner = checkpoint_owner(config, old)
    is_moved = ledger_after.exists() and owner in read_spending(ledger_after)
    if retired.exists() and not key.exists() and is_moved:
        return
    if (config.client.folder / new / NOISE_KEY).exists() or (
        ledger_after.exists() and not is_moved
    ):
        raise InvalidState(
            f"there is a client {new} already: give the client that replaces {old} a name that"
            " none had before"
        )
    ledger_file = ledger_after if is_moved else ledger_before
    if not ledger_file.exists() or not (key.exists() or retired.exists()):
        raise InvalidState(
            f"{folder} is not the folder of a client that has a noise key and a ledger, so there"
            f" is no account to keep: check the name {old} and [client] folder"
        )
    if key.exists():
        lost = _charge_and_retire(config, old, ledger_file, windows, clock())
        log_event(
            "client_replaced",
            logging.WARNING,
            client=new,
            former=old,
            windows=lost.windows,
            readings=lost.readings,
            ledger=str(ledger_after),
            next=f"let producers write to {new} from now on (--name or the column that names"
            f" clients), with readings that {old} never had; start no copy of {folder} again",
        )
    if not is_moved:
        _move(ledger_before, ledger_after)


def _check_settings(config: Config, old: str, new: str) -> None:
    if old == new:
        raise SettingsError(
            f"--after-restore {old} replaces the client {old}: --name is a new name, which no"
            " client had before"
        )
    if not config.resolved.mode.formal:
        raise SettingsError(
            f'--after-restore keeps the ledger of {old}, and mode = "{config.resolved.mode.name}"'
            " guarantees nothing, so that there is none: start the client under a new name"
        )
    if config.readings.address or config.host.client:
        raise SettingsError(
            "--after-restore is for a client whose readings are in a folder that was restored with"
            " it. The log of these readings is elsewhere, and has noted what was released of it:"
            " start the client under its own name, which it refuses if the folder is older"
        )


def _charge_and_retire(config: Config, old: str, file: Path, windows: int, now: float) -> Lost:
    """Charge the account of `old` for the most that it can have published, and retire its key."""
    contract = config.resolved
    owner = checkpoint_owner(config, old)
    with ExitStack() as stack:
        # Its lock: a client that still runs would publish on.
        checkpoint = stack.enter_context(open_checkpoint(config, old))
        log = stack.enter_context(closing(open_client_log(config, old)))
        ensure_local_topics(log, config.client)
        folder = config.client.folder / old
        noise_key = load_or_create_key(folder / NOISE_KEY)
        ledger = stack.enter_context(Ledger(file, owner, ledger_fingerprint(noise_key)))
        released = released_places(log, owner)
        left = 0
        for partition, (first, end) in log.bounds(READINGS).items():
            left += max(0, end - max(first, released.get(partition, 0)))
        if contract.mode.unit.hides_presence:
            closed = _closed_by_clock(contract, checkpoint.load(), now)
        else:
            charged_at = ledger.last_charge()
            seconds = math.inf if charged_at is None else max(0.0, now - charged_at)
            closed = _windows_of(contract, left, seconds)
        most = max(windows, closed)
        window = contract.contract.privacy.window_readings
        lost = Lost(most, max(windows * window, left))
        _charge(ledger, contract, lost, now)
        (folder / NOISE_KEY).rename(folder / RETIRED_KEY)
        sync_folder(folder)
    return lost


def _windows_of(contract: ResolvedContract, readings: int, seconds: float) -> int:
    """The most windows in which this many readings can have been, in so many seconds."""
    if not readings:
        return 0
    privacy = contract.contract.privacy
    # The window that was open at the time of the copy may have been closed by the first of them.
    full = readings // privacy.window_readings + 1
    if contract.mode.unit.name == "reading":
        # A window that the clock closes early has fewer readings: one spends once, in either.
        return full
    # A user, or a client, spends as much in a window that the clock has closed before it was full,
    # with at least one reading in each.
    by_clock = readings if math.isinf(seconds) else math.ceil(seconds / privacy.window_s)
    return min(readings + 1, full + by_clock)


def _closed_by_clock(contract: ResolvedContract, state: Any, now: float) -> int:
    """The windows that close by the clock alone, since the one that is open in the saved state."""
    if state is None:
        return 0
    begun = state["windows"]["clock_window"]
    if begun is None:
        return 0
    # Windows begin later by a phase, which is less than one of them.
    newest = math.floor(now / contract.contract.privacy.window_s)
    return max(0, newest - int(begun) + 1)


def _charge(ledger: Ledger, contract: ResolvedContract, lost: Lost, now: float) -> None:
    mode = contract.mode
    window = contract.contract.privacy.window_readings
    epsilon_of_stream: dict[str, float] = {}
    for model in contract.counted:
        assert model.counts is not None
        if mode.masked:
            cost = cast("Masked", mode).window_nano
            first = ledger.masked_windows(model.name)
            for number in range(first, first + lost.windows):
                # Whatever the budget is: it is spent already.
                release = MaskedRelease(model.name, number, window, cost)
                ledger.charge_masked(release, now, None, None, is_published=True)
            continue
        # Models that learn from the same counts are charged once.
        epsilon_of_stream[model.counts.stream] = model.epsilon or 0.0
    for stream, epsilon in epsilon_of_stream.items():
        first = ledger.windows(stream)
        releases = [
            Release(stream, number, AFTER_RESTORE, b"", window, epsilon, mode.unit.name)
            for number in range(first, first + lost.windows)
        ]
        ledger.charge(releases, now)
    if contract.rows_epsilon is not None and lost.readings:
        # At whichever places: the sum counts.
        stops = ledger.row_stops() or {0: 0}
        partition, stop = max(stops.items())
        ledger.charge_rows({partition: (stop, stop + lost.readings)}, contract.rows_epsilon)


def _move(before: Path, after: Path) -> None:
    # A process that has the ledger open would charge the file that was moved, or a part of it.
    if before.with_name(before.name + "-wal").exists():
        raise InvalidState(
            f"another process has {before} open: stop the clients of all federations that use these"
            " readings, and start again"
        )
    after.parent.mkdir(parents=True, exist_ok=True)
    before.rename(after)
    sync_folder(after.parent)
    sync_folder(before.parent)
