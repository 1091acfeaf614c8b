"""Round of masked counts of a model: the server collects a batch, closes it, waits for all helpers,
and learns the sum.

Everything but the end of a round follows from the log alone, and that is a record of the log
itself, so a rebuild gives the same models. In a region the upstream federation decides what is
counted: the plan of a round is a record of the log too, with which the round opens. Of several
messages of a client in a round the first counts. A message that is not in the batch is dropped: its
client sends the window again in a later round, and no window is unmasked twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Final, cast

import numpy as np

from shoal.algorithms.counting import Counted
from shoal.algorithms.streaming import Arrays
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.errors import MessageRejected
from shoal.kernels.arrays import Ints, Words32
from shoal.privacy.masked import Masked
from shoal.protocol.codec import StoredPart
from shoal.protocol.masked import (
    CLIENTS_MAX,
    PLAN_BYTES,
    BatchEntry,
    CloseRound,
    HelperSum,
    MaskedCounts,
    OpenRound,
    RoundPlan,
    batch_digest,
    packed_answered,
    packed_offsets,
    signed_counts,
    words_of,
)
from shoal.protocol.messages import Snapshot, Update
from shoal.saved_state import SavedState, Whole, require, state_type
from shoal.server_node.ingest.requests import Applied
from shoal.server_node.ingest.suspects import (
    HelperCheck,
    HelperCheckState,
    Suspects,
    SuspectsState,
    is_check,
)
from shoal.server_node.models.streaming import StreamingBase
from shoal.server_node.regions.following import FollowingModel
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.transports.base import Record

COHORT: Final = "cohort"
"""the client that a batch counts as in snapshots and histories: its counts do not show which
clients are in it"""
SUM_DEVIATIONS: Final = 6.0
"""standard deviations of its noise by which the sum of all counts may lie outside of what its
readings allow"""
COUNT_DEVIATIONS: Final = 12.0
"""the same for a single count: wider, as every one of many thousands of counts has to be within"""


@state_type
class ModelRoundState(SavedState):
    """Saved state of `ModelRound`: messages as they travelled, and decisions by the clock."""

    number: Annotated[int, Whole(least=1)]
    announced: int
    answered: dict[str, int]
    expected: int
    suspects: SuspectsState
    helper_check: HelperCheckState
    offsets: list[int]
    """bytes of the messages"""
    messages: list[bytes]
    partition: int
    first_at: float | None
    is_open: bool
    plan_sent: bool
    waits_since: float | None
    close_sent: bool
    closed: bytes | None
    sums: list[bytes]

    def check(self) -> None:
        require(len(self.offsets) == len(self.messages), "not every message has an offset")


class ModelRound:
    """The open round of one model."""

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        served: StreamingBase,
        log: str,
        contribute: Callable[[Update, float, int], None] = lambda *_: None,
        upstream: UpstreamState | None = None,
    ) -> None:
        """`log`: the name of the log, see `shoal.protocol.masked.log_name`.

        `upstream`: the upstream federation, to which batches are passed on by `contribute`;
        None: there is none, or it does not have the model."""
        assert model.counts is not None
        self._contract = contract
        self._model = model
        self._served = served
        self._contribute = contribute
        self._upstream = upstream
        self._upstream_checks = None if upstream is None else upstream.validator
        self._helpers = {helper.name: helper.key for helper in contract.mode.helpers}
        self._terms: Mapping[str, float] = contract.mode.values
        self._batch_max = min(CLIENTS_MAX, cast("Masked", contract.mode).batch_max)
        self._counter = model.counts.algorithm.counter(model.options, contract.width)
        self.cohort = f"{contract.federation}/{model.name}".encode()
        self.number = 1
        self.announced = 0
        """the newest round that was announced to clients"""
        self.answered: dict[str, int] = {}
        """client -> number of its newest window that a batch has had; clients that are new or asked
        last are last"""
        self._expected = 0
        """clients that answered the round before"""
        self._suspects = Suspects()
        self._check = HelperCheck(contract, model, log)
        self._empty_round()

    def _empty_round(self) -> None:
        self._messages: dict[int, tuple[MaskedCounts, StoredPart]] = {}
        """offset -> message"""
        self._by_client: dict[str, int] = {}
        self._partition = 0
        self._first_at: float | None = None
        """time at which the first of them was read, by the server's clock"""
        self._is_open = self._upstream is None
        """whether clients count it; a region's round is opened by its plan"""
        self._plan_sent = False
        self._waits_since: float | None = None
        """time since which the plan is waited for, by the server's clock"""
        self._close_sent = False
        self._closed: CloseRound | None = None
        self._sums: dict[str, HelperSum] = {}
        self._adopt()

    def _adopt(self) -> None:
        """Ask for counts under the model's newest plan."""
        self._counter.adopt(self._served.plan)
        self.plan = self._counter.plan_digest[:PLAN_BYTES]
        none = np.empty((0, self._contract.width))
        # Of no rows: what a sum that was counted under this plan is put into, to be an update.
        self._blank: Counted = self._counter.count(
            none, np.empty(0, np.bool_), b"", 0, (self.cohort, self.number)
        )
        self.cells = len(self._blank.counts)

    def take_counts(self, message: MaskedCounts, record: Record) -> Applied:
        """Collect one message. Raises `MessageRejected`."""
        is_early = message.round == self.number and not self._is_open
        if message.round > self.number or is_early:
            raise MessageRejected(
                "sequence", f"round {message.round} is not open yet; round {self.number} is next"
            )
        if message.window <= self.answered.get(message.client, -1):
            # Its client does not know that the window was taken: it must be among those that the
            # next round names.
            self.answered[message.client] = self.answered.pop(message.client)
            return Applied()
        # Too late: its client sends the window again in a later round.
        if message.round < self.number or self._closed is not None:
            return Applied()
        self._check_counts(message)
        known = self._by_client.get(message.client)
        if known is not None:
            if self._messages[known][0] != message:
                raise MessageRejected(
                    "conflict", "its client has sent other counts for this round before"
                )
            return Applied()
        self._messages[record.offset] = (message, StoredPart(record.value or b""))
        self._by_client[message.client] = record.offset
        self._partition = record.partition
        return Applied()

    def _check_counts(self, message: MaskedCounts) -> None:
        """Raises `MessageRejected` for counts that cannot be of the open round."""
        if (message.plan, message.cells) != (self.plan, self.cells):
            raise MessageRejected(
                "arrays", "it was counted under another plan than that of its round"
            )
        if message.places > self._contract.contract.privacy.window_readings:
            raise MessageRejected("claims", "it has more readings than a window")

    def note_first(self, now: float) -> None:
        """Note when the first message of the round was read."""
        if self._messages and self._first_at is None:
            self._first_at = now

    def take_close(self, close: CloseRound) -> Applied:
        """End the round. Raises `MessageRejected`."""
        # Published again after a kill.
        if close.round < self.number or close == self._closed:
            return Applied()
        if close.round == self.number and self._closed is not None:
            raise MessageRejected(
                "conflict", f"round {close.round} has been closed with another batch before"
            )
        if close.round > self.number:
            raise MessageRejected("sequence", f"round {close.round} is not open yet")
        clients = self._check_batch(close)
        self._closed = close
        # Invented clients answer a check alone, and are not waited for in the next round.
        if not is_check(clients):
            self._expected = len(self._messages)
        # In the order of the batch, as its digest has them.
        self._messages = {offset: self._messages[offset] for offset in close.places}
        fields = self._fields(clients=str(len(clients)))
        return Applied("masked_round_closed", fields=fields)

    def _check_batch(self, close: CloseRound) -> list[str]:
        """The clients of the batch of the open round. Raises `MessageRejected` for another one."""
        are_here = all(offset in self._messages for offset in close.places)
        if not are_here or close.partition != self._partition:
            raise MessageRejected("malformed", "its batch has messages that did not come")
        if not self._terms["batch_min"] <= len(close.places) <= self._batch_max:
            raise MessageRejected("malformed", f"its batch has {len(close.places)} clients")
        clients = [self._messages[offset][0].client for offset in close.places]
        # The server knows the masks of invented clients: with them, a batch could have a single
        # client, whose counts the server would read.
        if not is_check(clients) and any(is_check([client]) for client in clients):
            raise MessageRejected("malformed", "its batch has clients and invented ones")
        is_of_plan = (close.plan, close.cells) == (self.plan, self.cells)
        if not is_of_plan or close.batch != self._digest(close.places):
            raise MessageRejected("malformed", "its digest is not that of its batch")
        return clients

    def take_plan(self, message: RoundPlan) -> Applied:
        """Open the round of a region, under the plan of an upstream snapshot. Raises
        `MessageRejected`."""
        if self._upstream_checks is None:
            raise MessageRejected("model", "only in a region a round has a plan of its own")
        if message.round > self.number:
            raise MessageRejected("sequence", f"round {message.round} is not next")
        # Published again after a kill.
        if message.round < self.number or self._is_open:
            return Applied()
        if message.snapshot:
            snapshot = Snapshot.decode(message.snapshot, Snapshot.headers())
            self._upstream_checks.check_snapshot(snapshot)
            cast("FollowingModel", self._served).follow(snapshot)
            self._adopt()
        self._is_open = True
        return Applied()

    def due_plan(self, now: float) -> RoundPlan | None:
        """The plan that opens the round of a region, where it is due: with a new upstream snapshot,
        which has what the round before has contributed, or after a time without one."""
        if self._upstream is None or self._is_open or self._plan_sent:
            return None
        if self._waits_since is None:
            self._waits_since = now
        # A clock that was set back must not lengthen the wait.
        self._waits_since = min(self._waits_since, now)
        value = b""
        newest = self._upstream.newest(self._model.name)
        if newest is not None and cast("FollowingModel", self._served).is_behind(newest):
            value = newest.encode()
        elif now < self._waits_since + self._terms["batch_s"]:
            return None
        self._plan_sent = True
        return RoundPlan(
            self._contract.federation, self._contract.digest, self._model.name, self.number, value
        )

    def take_sum(self, message: HelperSum, now: float, made_at: float) -> Applied:
        """Take a helper's sum, and unmask and absorb the batch with the last one. Raises
        `MessageRejected`.

        `made_at`: when the log took it in.
        """
        key = self._helpers.get(message.helper)
        if key is None:
            raise MessageRejected("client", f"{message.helper} is no helper of the contract")
        self._check_signed(message, key)
        # Published again after a kill.
        if message.round < self.number:
            return Applied()
        batch = None if self._closed is None else self._closed.batch
        if message.round != self.number or message.batch != batch:
            raise MessageRejected("malformed", "it is not for the batch of the open round")
        # The first counts: the mean of two, each with noise of its own, would have less.
        known = self._sums.setdefault(message.helper, message)
        if known.total != message.total:
            fields = self._fields(helper=message.helper)
            return Applied("helper_sums_differ", logging.ERROR, fields)
        if len(message.total) != 4 * self.cells:
            del self._sums[message.helper]
            raise MessageRejected("arrays", "it has other cells than its round")
        if len(self._sums) < len(self._helpers):
            return Applied()
        return self._unmask(now, made_at)

    def _check_signed(self, message: HelperSum, key: bytes) -> None:
        from shoal.privacy.masks import (  # noqa: PLC0415 - needs an extra, in this mode only
            is_signed,
        )

        if not is_signed(key, message.signature, message.signed_content):
            raise MessageRejected("signature", "it is not signed by the helper it names")

    def _unmask(self, now: float, made_at: float) -> Applied:
        """Absorb the sum of the batch, and open the next round."""
        messages = [message for message, _ in self._messages.values()]
        # A round of invented clients, whose sum the server knows: it judges the helpers and is
        # never learnt.
        if is_check(message.client for message in messages):
            return self._judge_helpers([message.entry for message in messages], now)
        total = unmasked(
            [words_of(message.counts) for message in messages],
            [words_of(helper_sum.total) for helper_sum in self._sums.values()],
        )
        places = sum(message.places for message in messages)
        clients = str(len(messages))
        if self._is_possible(total, places):
            self._absorb(total, places, now, made_at)
            self._suspects.absorbed(message.client for message in messages)
            self._check.note_absorbed()
            fields = self._fields(clients=clients)
            applied = Applied("masked_round_absorbed", fields=fields)
        else:
            self._check.note_void(now)
            left_out = self._suspects.void({message.client: message.key for message in messages})
            fields = self._fields(clients=clients, left_out=left_out or "")
            applied = Applied("masked_round_void", logging.ERROR, fields)
        # Also of a void batch: helpers have unmasked these windows, and never will again.
        self.answered |= {message.client: message.window for message in messages}
        self.number += 1
        self._empty_round()
        return applied

    def _judge_helpers(self, entries: list[BatchEntry], now: float) -> Applied:
        """Find the helpers that are wrong, and open the next round.

        No client's window was in this one.
        """
        assert self._closed is not None
        if self._check.judge(self._closed, entries, self._sums, now + self._terms["batch_s"]):
            self._suspects.trust_helpers()
        wrong = self._check.wrong
        applied = Applied("masked_helpers_checked", fields=self._fields())
        if wrong:
            self._suspects.blame_helpers()
            faults = "; ".join(f"{helper}: {fault}" for helper, fault in sorted(wrong.items()))
            fields = self._fields(helpers=faults)
            applied = Applied("masked_helper_wrong", logging.ERROR, fields)
        self.number += 1
        self._empty_round()
        return applied

    def _fields(self, **fields: str) -> dict[str, str]:
        """The fields of an event of the open round."""
        return {"model": self._model.name, "round": str(self.number)} | fields

    def due_check(self, now: float) -> list[MaskedCounts]:
        """The messages of invented clients that make the open round a check of helpers, where that
        is due."""
        is_collecting = self._is_open and not self._close_sent and self._closed is None
        if not is_collecting or not self._check.is_due(now):
            return []
        return self._check.make_messages(self.number, self.plan, self.cells)

    def _is_possible(self, total: Ints, places: int) -> bool:
        """Whether these can be counts of this many readings with the noise of all helpers, rather
        than masks."""
        deviation = math.sqrt(self._model.options["noise_variance"])
        of_sum = SUM_DEVIATIONS * deviation * math.sqrt(len(total))
        of_count = COUNT_DEVIATIONS * deviation
        in_reach = bool(((total >= -of_count) & (total <= places + of_count)).all())
        return in_reach and -of_sum <= int(total.sum()) <= places + of_sum

    def _absorb(self, total: Ints, places: int, now: float, made_at: float) -> None:
        arrays = {**self._blank.update(total), "places": np.array([places], dtype=np.int64)}
        update = Update(
            federation=self._contract.federation,
            contract=self._contract.digest,
            model=self._model.name,
            algorithm=self._model.algorithm.name,
            client=COHORT,
            # The number of the round, so that a rebuild numbers the batches alike.
            sequence=self.number,
            readings=places,
            privacy=self._model.statement,
            arrays=arrays,
            made_at=made_at,
        )
        self._served.process(update, now)
        if self._upstream is not None:
            clients = self.answered.keys() | {
                message.client for message, _ in self._messages.values()
            }
            contribution = replace(update, arrays=self._passed_on(arrays, places))
            self._contribute(contribution, now, len(clients))

    def _passed_on(self, arrays: Arrays, places: int) -> Arrays:
        """The noisy sum as the upstream federation takes it: with the number of noises in it, one
        of each helper."""
        aggregation = self._model.streaming.aggregation
        assert aggregation is not None, "checked when the upstream federation was loaded"
        aggregator = aggregation.aggregator(self._model.options, self._contract.width)
        aggregator.add(arrays, places)
        passed_on = aggregator.contribute()
        return {**passed_on, "windows": passed_on["windows"] * len(self._helpers)}

    def due_close(self, now: float) -> CloseRound | None:
        """The end of the round, where it is due."""
        if self._close_sent or self._closed is not None or self._first_at is None:
            return None
        # A clock that was set back must not lengthen the wait.
        self._first_at = min(self._first_at, now)
        chosen = self._batch_clients(now)
        if len(chosen) < self._terms["batch_min"]:
            return None
        self._close_sent = True
        # The others send their windows again for the next round.
        offsets = sorted(self._by_client[client] for client in chosen)[: self._batch_max]
        return CloseRound(
            self._contract.federation,
            self._contract.digest,
            self._model.name,
            self.number,
            self.plan,
            self.cells,
            self._partition,
            packed_offsets(offsets),
            self._digest(offsets),
        )

    def _batch_clients(self, now: float) -> list[str]:
        """The clients of the batch that is due; none where none is."""
        assert self._first_at is not None
        if self._check.secrets:
            return [client for client in self._by_client if client in self._check.secrets]
        # With a wrong helper a batch would be void, and its windows would be lost.
        if self._check.wrong:
            return []
        # All that answered the round before are here: waiting longer would gain nothing.
        is_complete = 0 < self._expected <= len(self._messages)
        is_late = now >= self._first_at + self._terms["batch_s"]
        if not is_late and not is_complete:
            return []
        keys = {
            client: self._messages[offset][0].key
            for client, offset in self._by_client.items()
            if not is_check([client])
        }
        return self._suspects.chosen(keys, int(self._terms["batch_min"]), fill=is_late)

    def announcement(self) -> OpenRound | None:
        """The open round, if it is not announced to clients yet."""
        if self.announced == self.number or not self._is_open:
            return None
        self.announced = self.number
        answered = packed_answered(self.answered)
        contract = self._contract
        return OpenRound(
            contract.federation, contract.digest, self._model.name, self.number, self.plan, answered
        )

    @property
    def wrong_helpers(self) -> Mapping[str, str]:
        """helper -> what is wrong with it, by the newest check."""
        return self._check.wrong

    @property
    def waits_for(self) -> list[str]:
        """The helpers whose sums are missing in a closed round."""
        if self._closed is None:
            return []
        return [name for name in self._helpers if name not in self._sums]

    def _digest(self, offsets: list[int]) -> bytes:
        entries: list[BatchEntry] = [self._messages[offset][0].entry for offset in offsets]
        contract = self._contract
        return batch_digest(
            (contract.federation, contract.digest, self._model.name),
            self.number,
            self.plan,
            self.cells,
            entries,
        )

    def state(self) -> ModelRoundState:
        """The state for `restore`."""
        values = [part for _, part in self._messages.values()]
        return ModelRoundState(
            number=self.number,
            announced=self.announced,
            answered=self.answered,
            expected=self._expected,
            suspects=self._suspects.state(),
            helper_check=self._check.state(),
            offsets=list(self._messages),
            # A stored part comes back as its bytes.
            messages=cast("list[bytes]", values),
            partition=self._partition,
            first_at=self._first_at,
            is_open=self._is_open,
            plan_sent=self._plan_sent,
            waits_since=self._waits_since,
            close_sent=self._close_sent,
            closed=None if self._closed is None else self._closed.encode(),
            sums=[helper_sum.encode() for helper_sum in self._sums.values()],
        )

    def restore(self, state: ModelRoundState) -> None:
        """Become the saved one; the model has been restored before. Raises `MessageRejected`."""
        self.number = state.number
        self.announced = state.announced
        self.answered = state.answered
        self._expected = state.expected
        self._suspects.restore(state.suspects)
        self._check.restore(state.helper_check)
        self._empty_round()
        for offset, value in zip(state.offsets, state.messages, strict=True):
            message = MaskedCounts.decode(value, MaskedCounts.headers())
            self._messages[offset] = (message, StoredPart(value))
            self._by_client[message.client] = offset
        self._partition = state.partition
        self._first_at = state.first_at
        self._is_open = state.is_open
        self._plan_sent = state.plan_sent
        self._waits_since = state.waits_since
        self._close_sent = state.close_sent
        if state.closed is not None:
            self._closed = CloseRound.decode(state.closed, CloseRound.headers())
        for value in state.sums:
            helper_sum = HelperSum.decode(value, HelperSum.headers())
            self._sums[helper_sum.helper] = helper_sum


def unmasked(messages: list[Words32], sums: list[Words32]) -> Ints:
    """Masked counts (cells,) of a batch, and the sums (cells,) of all helpers -> the counts with
    noise (cells,)."""
    # Words of 32 bits that wrap: masks are uniform modulo 2^32, and cancel only in that arithmetic.
    total = np.zeros(len(sums[0]), dtype=np.uint32)
    for masked in messages:
        total += masked
    for helper_sum in sums:
        total -= helper_sum
    return signed_counts(total)
