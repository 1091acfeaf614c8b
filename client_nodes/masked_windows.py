"""Windows of masked counts: a client counts a window, clips the counts, charges and masks them.

A window is as in `count_windows`, but for two things. The first one is as long as any other: all
clients answer the same rounds. And a window stays here until a batch has had it: a client that is
late for a round answers the next one with the same window, which is charged once because it is
unmasked once. Meanwhile the next window fills; when it is full nothing more is read, so that
readings wait in their own log.

Everything that a message depends on is in its nonce, and so in its masks: a message made again
after a kill has the same bytes, and no two vectors ever have the same mask. The ledger is charged
before a message goes to the outbox.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, cast

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.count_windows import CountWindows, check_unit_rows
from shoal.client_nodes.intake import Batch
from shoal.client_nodes.own_updates import Found, masked_digest
from shoal.client_nodes.publisher import EncodedUpdate, Publisher
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.errors import InvalidState, SettingsError
from shoal.kernels.arrays import Bools, Ints
from shoal.privacy.ledger import MaskedRelease
from shoal.privacy.masked import Masked, clip_order, readings_within
from shoal.protocol.masked import (
    PLAN_BYTES,
    MaskedCounts,
    OpenRound,
    bytes_of,
    log_name,
    message_name,
)
from shoal.runtime.checkpoint import OutboxRecord, pairs_of, positions_of
from shoal.saved_state import BoolArray, FloatArray, SavedState, Whole, state_type
from shoal.telemetry.events import log_event
from shoal.transports.base import Positions

DROP: Final = "refuse"
"""setting by which windows are left out at the limit of the budget; otherwise they wait"""
NEVER_SENT: Final = (0, -1)
"""no round, and no window"""


@state_type
class PendingState(SavedState):
    """A window that some batch still has to take."""

    rows: Annotated[Rows, FloatArray("n", "d", gaps=True)]
    valid: Annotated[Bools, BoolArray("n")]
    number: int


@state_type
class MaskedModelState(SavedState):
    """What was sent and charged of one model."""

    sent_round: int
    sent_window: Annotated[int, Whole(least=-1)]
    sent_from: list[list[int]]
    """[partition, offset]: the end of the log when that was made"""
    charged: int
    fingerprint: str


@state_type
class MaskedWindowsState(SavedState):
    """The window that waits for its round, and what each model has sent."""

    pending: PendingState | None
    masked: dict[str, MaskedModelState]
    """name of the model -> its part"""


class PendingWindow(NamedTuple):
    """A window that some batch still has to take."""

    rows: Rows
    valid: Bools
    number: int


class MaskedModel:
    """The client half of one model that learns from masked counts."""

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        client: str,
        noise_key: bytes,
        log: bytes,
    ) -> None:
        """`log`: the identity of the topic of updates."""
        from shoal.privacy.masks import (  # noqa: PLC0415 - needs an extra
            client_public,
            client_secret,
            pair_key,
        )

        assert model.counts is not None
        self._contract = contract
        self._model = model
        self._client = client
        self._mode = cast("Masked", contract.mode)
        self._counter = model.counts.algorithm.counter(model.options, contract.width)
        self._version = 0
        names = contract.federation, contract.digest, model.name
        self._secret = client_secret(noise_key, names)
        self._public = client_public(self._secret)
        # The log's name is in it: messages in a log that was created anew have other masks, and so
        # never show the difference to those of the log before.
        self._pairs = [
            pair_key(self._secret, helper.key, (*names, helper.name, client, log_name(log)))
            for helper in self._mode.helpers
        ]
        self._public_name = client.encode() + b"\0" + model.name.encode()
        self._cohort = f"{contract.federation}/{model.name}".encode()
        self.sent_for = NEVER_SENT
        """newest round that was answered, and with which window"""
        self.sent_from: Positions = {}
        """the end of the log of updates when that answer was made: it comes behind"""
        self.charged = 0
        """one more than the number of the newest window that was charged"""

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def fingerprint(self) -> str:
        """Whether key, client and contract are those of an earlier run."""
        # Not the masks, which differ from log to log.
        named = (helper.name.encode() + b"\0" + helper.key for helper in self._mode.helpers)
        own = self._public + self._client.encode() + b"\0"
        return hashlib.sha256(own + b"".join(named)).hexdigest()[:16]

    def needs_answer(self, window: PendingWindow, opened: OpenRound | None) -> bool:
        """Whether a message of this window for the open round is due."""
        if opened is None or self.is_taken(window, opened):
            return False
        # Another round, not a later one: a forged round with a large number, answered once, must
        # not keep the client from answering for ever.
        return self.sent_for != (opened.round, window.number)

    def is_taken(self, window: PendingWindow, opened: OpenRound | None) -> bool:
        """Whether a batch has had the window."""
        return opened is not None and opened.answered_window(self._client) >= window.number

    def adopt(self, snapshots: Snapshots, opened: OpenRound) -> bool:
        """Whether the plan of the open round is here."""
        newest = snapshots.newest(self.name)
        if newest is not None and newest.version != self._version:
            self._counter.adopt(newest.arrays)
            self._version = newest.version
        return self._counter.plan_digest[:PLAN_BYTES] == opened.plan

    def make_message(self, window: PendingWindow, opened: OpenRound) -> MaskedCounts:
        """Count the window for the open round, under the plan that was adopted, and mask the
        counts."""
        from shoal.privacy.masks import mask, synthetic_nonce  # noqa: PLC0415 - needs an extra

        # The clip bounds what one client changes in the sum, whatever it measures: readings count
        # in a public random order until their counts reach it, the rest does not.
        counts_of = partial(self._count, window, opened.round)
        order = clip_order(self._public_name, window.number, len(window.rows))
        counted, _ = readings_within(counts_of, window.valid, order, self._mode.clip_squared)
        counts: Ints = counted.counts
        # The nonce is made from the counts: equal messages have equal bytes after a kill, and
        # different counts never have the same mask, whose difference would show theirs.
        name = message_name(opened.round, window.number, opened.plan)
        nonce = synthetic_nonce(self._secret, name, counts.astype("<i8").tobytes())
        named = message_name(opened.round, window.number, opened.plan, nonce)
        # Modulo 2^32 a mask is uniform, so a masked count is uniform too, whatever the count is.
        masked = counts.astype(np.uint32)
        for pair in self._pairs:
            masked += mask(pair, named, len(counts))
        self.sent_for = (opened.round, window.number)
        return MaskedCounts(
            self._contract.federation,
            self._contract.digest,
            self.name,
            client=self._client,
            key=self._public,
            round=opened.round,
            window=window.number,
            places=len(window.rows),
            plan=opened.plan,
            nonce=nonce,
            counts=bytes_of(masked),
        )

    def state(self) -> MaskedModelState:
        sent_round, sent_window = self.sent_for
        return MaskedModelState(
            sent_round=sent_round,
            sent_window=sent_window,
            sent_from=pairs_of(self.sent_from),
            charged=self.charged,
            fingerprint=self.fingerprint,
        )

    def restore(self, saved: MaskedModelState) -> None:
        self.sent_for = (saved.sent_round, saved.sent_window)
        self.sent_from = positions_of(saved.sent_from)
        self.charged = saved.charged

    def _count(self, window: PendingWindow, round_: int, valid: Bools) -> Any:
        return self._counter.count(
            window.rows, valid, self._public_name, window.number, (self._cohort, round_)
        )


class MaskedWindows(CountWindows):
    """The open window of a client, the one that waits for a batch, and the models that count it."""

    def __init__(
        self,
        contract: ResolvedContract,
        client: str,
        *parts: Any,
        log: bytes,
        ends: Callable[[], Positions],
    ) -> None:
        """See `CountWindows`; `log`: the identity of the topic of updates, `ends`: where it
        ends."""
        super().__init__(contract, client, *parts)
        self._ends = ends
        self._contract = contract
        noise_key: bytes = parts[3]
        self._mode = cast("Masked", contract.mode)
        if not self._mode.helpers:
            regions = ", ".join(self._mode.regions)
            raise SettingsError(
                f"{contract.federation} is a federation of regions, {regions}: start the client"
                " with the file of its region, whose helpers it relies on"
            )
        publisher: Publisher = parts[0]
        self._digests = publisher.digests
        self._masked = [
            MaskedModel(contract, model, client, noise_key, log) for model in contract.counted
        ]
        self._pending: PendingWindow | None = None
        self._drops = False
        """whether windows are left out when the budget of the span is spent"""
        self._over_budget = -1
        """number of the newest window for which it was spent"""
        self._noted: tuple[int, float] | None = None
        """number of the open window and the time, as the ledger has them of the windows passed"""

    def at_limit(self, action: str) -> None:
        """What to do where the budget of the span is spent: `pause` or `refuse`."""
        self._drops = action == DROP

    @property
    def room(self) -> int:
        """Number of readings that may be read now."""
        # Never a whole window besides the one that waits: it would be closed at once.
        windows = 1 if self._pending is not None else 2
        return windows * self._size - 1 - len(self._rows)

    def add(
        self, batch: Batch, now: float, allows_window: Callable[[], bool] = lambda: True
    ) -> list[EncodedUpdate]:
        """Add the readings of a batch, and answer the open rounds. Raises as the log does.

        `allows_window` is not called: the budget of these windows is that of the contract.
        """
        self._add_places(batch, now)
        self._note_passed(now)
        updates: list[EncodedUpdate] = []
        self._snapshots.follow()
        while self._next_window(now):
            updates += self._answer(now)
            if not self._is_done():
                break
            self._pending = None
            self.closed += 1
        return updates

    def _add_places(self, batch: Batch, now: float) -> None:
        if not batch.records:
            return
        places = self._in_order(batch)
        if self._opened_at is None:
            self._opened_at = now
        counted = self._user_readings.admit(places.valid, places.users, places.times)
        self._rows = np.concatenate([self._rows, places.rows])
        self._valid = np.concatenate([self._valid, counted])

    def _next_window(self, now: float) -> bool:
        """Whether a window waits for a batch; closes the open one for it if it is full or old."""
        if self._pending is not None:
            return True
        if not len(self._rows):
            return False
        if len(self._rows) < self._size and not self._is_overdue(now):
            return False
        size = min(len(self._rows), self._size)
        # Copies, so that a window does not keep the rows of all that were read with it.
        self._pending = PendingWindow(
            self._rows[:size].copy(), self._valid[:size].copy(), self.closed
        )
        self._rows = self._rows[size:].copy()
        self._valid = self._valid[size:].copy()
        self._opened_at = now if len(self._rows) else None
        self._places += size
        return True

    def _answer(self, now: float) -> list[EncodedUpdate]:
        """Messages for the rounds that are open and have not had this window."""
        window = self._pending
        assert window is not None
        updates = []
        for model in self._masked:
            opened = self._snapshots.open_round(model.name)
            if opened is None or not model.needs_answer(window, opened):
                continue
            if not model.adopt(self._snapshots, opened):
                continue
            # Before the message is made: a kill in between costs budget that nothing was published
            # for, and never the reverse.
            if self._charge(model, window, now):
                updates.append(self._make_update(model, window, opened))
        return updates

    def _make_update(
        self, model: MaskedModel, window: PendingWindow, opened: OpenRound
    ) -> EncodedUpdate:
        model.sent_from = self._ends()
        message = model.make_message(window, opened)
        value = message.encode()
        self._digests.add(model.name, opened.round, masked_digest(value))
        agreed = self._contract.contract
        key = agreed.update_key(model.name)
        record = OutboxRecord(agreed.updates_topic, value, key, message.headers())
        return EncodedUpdate(model.name, [record])

    def _charge(self, model: MaskedModel, window: PendingWindow, now: float) -> bool:
        """Whether the window is charged; not where the budget of the span is spent."""
        assert self._ledger is not None
        mode = self._mode
        release = MaskedRelease(model.name, window.number, len(window.rows), mode.window_nano)
        if self._ledger.charge_masked(release, now, mode.span_s, mode.span_nano):
            model.charged = max(model.charged, window.number + 1)
            return True
        # Logged once for a window, however often the step comes back to it.
        if self._over_budget != window.number:
            self._over_budget = window.number
            log_event(
                "masked_budget_spent",
                logging.WARNING,
                model=model.name,
                window=window.number,
                action=DROP if self._drops else "pause",
            )
        return False

    def _note_passed(self, now: float) -> None:
        """Tell the ledger which windows have passed: the span of the budget is as many of them as
        it has by the clock."""
        if self._mode.span_s is None:
            return
        window_s = self._privacy.window_s
        # Most steps need no look into the file.
        if self._noted is not None:
            window, noted_at = self._noted
            if window == self.closed and 0.0 <= now - noted_at < window_s:
                return
        assert self._ledger is not None
        ahead_s = self._ledger.pass_windows(self.closed, now, window_s)
        self._noted = self.closed, now
        if ahead_s:
            log_event("masked_clock_ahead", logging.WARNING, seconds=round(ahead_s))

    def _is_done(self) -> bool:
        """Whether every model has had the window, or it is left out."""
        window = self._pending
        assert window is not None
        left_out = self._drops and self._over_budget == window.number
        for model in self._masked:
            if model.is_taken(window, self._snapshots.open_round(model.name)):
                continue
            # A window that is charged may be in a batch already, and is never left out.
            if not left_out or model.charged > window.number:
                return False
        return True

    def _open_state(self) -> dict[str, Any]:
        pending = None
        if self._pending is not None:
            pending = PendingState(**self._pending._asdict())
        masked = {model.name: model.state() for model in self._masked}
        own = MaskedWindowsState(pending=pending, masked=masked)
        return {**super()._open_state(), **own.saved()}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`, also where the ledger or the noise key is another one."""
        saved = MaskedWindowsState.read(state, {"d": self._contract.width})
        for model in self._masked:
            own = saved.masked.get(model.name)
            if own is None or own.fingerprint != model.fingerprint:
                raise InvalidState(
                    "the checkpoint belongs to another noise key, client name or contract. Restore"
                    " those it was made with, or start under a new client name"
                )
            model.restore(own)
        if saved.pending is not None:
            check_unit_rows(saved.pending.rows, self._contract.learns_gaps)
            self._pending = PendingWindow(
                saved.pending.rows, saved.pending.valid, saved.pending.number
            )
        # Last, because it compares the ledger with what the models have charged.
        super().restore(state)

    @property
    def sent_from(self) -> Positions:
        """The end of the log when the oldest of the newest answers of the models was made."""
        least: Positions = {}
        for model in self._masked:
            for partition, offset in model.sent_from.items():
                least[partition] = min(offset, least.get(partition, offset))
        return least

    def check_log(self, found: Found | None, waiting: Iterable[OutboxRecord], now: float) -> None:
        """Begin a further life of the log where it lacks what was published: it was restored from
        an older copy, and helpers with it may have forgotten what they have unmasked.

        `found`: what the log has; None: it was not looked at. `waiting`: what is perhaps not
        published yet.
        """
        if found is None:
            return
        have = set(found.masked)
        for record in waiting:
            if ("type", MaskedCounts.TYPE.encode()) in record.headers:
                message = MaskedCounts.decode(record.value, record.headers)
                have.add((message.model, message.round))
        for model in self._masked:
            sent_round, _ = model.sent_for
            if model.sent_for == NEVER_SENT or (model.name, sent_round) in have:
                continue
            # Where retention has removed records, that it is not there tells nothing.
            if all(
                found.first.get(partition, 0) <= offset
                for partition, offset in model.sent_from.items()
            ):
                log_event(
                    "masked_counts_gone",
                    logging.WARNING,
                    model=model.name,
                    round=sent_round,
                )
                self.reset_published(now)
                return

    def reset_published(self, now: float) -> None:
        """The federation's log was created anew: what was sent is gone, and is sent again.

        Helpers may have unmasked the window that waits. So in each further life of the log it is
        another window, under a number that was never charged: it is charged once more, within the
        budget, before it is sent. What the outbox still holds has the masks of the log before.
        """
        window = self._pending
        newest = max((model.charged for model in self._masked), default=0)
        for model in self._masked:
            model.sent_for = NEVER_SENT
            model.sent_from = {}
        if window is None or newest <= window.number:
            return
        self._pending = window._replace(number=newest)
        self.closed = newest

    @property
    def due_at(self) -> float:
        """See `CountWindows.due_at`."""
        return -math.inf

    @property
    def open_places(self) -> int:
        pending = 0 if self._pending is None else len(self._pending.rows)
        return len(self._rows) + pending

    def check_ledger(self) -> None:
        if self._ledger is not None:
            charged = {model.name: model.charged for model in self._masked}
            self._ledger.check_masked(charged, self.closed)

    def begun_with(self, places: int) -> int:
        places += self.open_places
        return self.closed + -(-max(0, places) // self._size)

    @property
    def _size(self) -> int:
        return self._privacy.window_readings
