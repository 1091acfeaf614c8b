"""A helper of masked counts: it takes the masks off the sum of a batch, once, and adds its noise.

It reads the log itself and does not rely on the server: which messages a batch has, under which
plan, and how many clients they are from. Of each client it unmasks every window once, in whatever
round; of each round one batch. What it answers is stored before it is published. The same question
again gets the same bytes; any other one about a round that was answered, or about a window that
was, is refused. That outlives the log: where it was created anew, windows that were unmasked from
the one before are refused, and its messages have other masks.

If its folder was restored from an older copy, the log shows it: it has sums of this helper that the
folder does not know. Then the helper stops, because it could unmask a window a second time with
other noise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from shoal.config.resolved import ResolvedContract
from shoal.errors import InvalidState, LogUnavailable, MessageRejected, SettingsError
from shoal.helper_node.metrics import HelperMetrics
from shoal.helper_node.model_sums import ModelSums, Refused, Sent, sent_in
from shoal.privacy.masked import Masked
from shoal.privacy.masks import helper_public, is_signed, mask, noise_seed, pair_key, sign
from shoal.protocol.masked import (
    SIGNATURE_BYTES,
    BatchEntry,
    CloseRound,
    HelperSum,
    MaskedCounts,
    bytes_of,
    check_envelope,
    log_name,
)
from shoal.runtime.checkpoint import (
    Checkpoint,
    Outbox,
    OutboxRecord,
    Required,
    SavedPart,
    SavedParts,
    SavedValue,
    pairs_of,
    positions_of,
    required_version,
)
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning, read_next

STATE_VERSION: Final = 5
BATCH_RECORDS: Final = 500
WAIT_S: Final = 10.0
"""wait for records that the log says are there"""


class HelperNode:
    """One helper of a federation. `resume` once, then `step` again and again."""

    def __init__(
        self,
        contract: ResolvedContract,
        secret: bytes,
        log: Log,
        checkpoint: Checkpoint,
        metrics: HelperMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`secret`: the 32 bytes of the helper's key.

        Raises `SettingsError` for a helper that the contract lacks.
        """
        self.name = helper_name(contract, secret)
        self._resolved = contract
        self._contract = contract.contract
        self._secret = secret
        self._mode = cast("Masked", contract.mode)
        self._noise = self._mode.noise()
        self._log = log
        self._checkpoint = checkpoint
        self._clock = clock
        self._outbox = Outbox(checkpoint, log)
        self.metrics = metrics or HelperMetrics()
        self._topic = self._contract.updates_topic
        self._positions: Positions = {}
        self._read_up_to: Positions = {}
        """partition -> offset of the record that is processed, or was last"""
        self._identity = ""
        """identity of the log, once it is resumed"""
        self._log_name = ""
        """the same, as it is among the names of masks"""
        self._log_before = ""
        """identity of the log whose records it has read; empty before the first"""
        self._models = {model.name: ModelSums() for model in contract.counted}
        self._keys = frozenset(self._contract.update_key(name) for name in self._models)
        """keys of the records of these models"""
        self._pairs: dict[tuple[str, str, bytes], bytes] = {}
        """(model, client, its public key) -> the key that this helper shares with the client"""

    def resume(self) -> None:
        """Restore the checkpoint, and publish its outbox again. Once, before the first step.

        Raises `InvalidState` for a checkpoint of another contract or helper, and for one that
        is older than sums of this helper in the log; and as the log does.
        """
        self._saved = self._saved_parts()
        identity = self._log.identity(self._topic)
        self._log_name = log_name(identity)
        self._identity = identity.hex()
        state = self._checkpoint.load()
        if state is not None:
            self._saved.restore(state)
        if self._log_before != self._identity:
            # Created anew, or the first one: nothing of it is known, and what was unmasked stays.
            self._positions = beginning(self._log, self._topic)
            for sums in self._models.values():
                sums.begin_log()
        # Before the outbox is published: an older folder must not add a further sum first.
        self._check_own_sums()
        self._outbox.publish_pending()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Read the log, answer what is asked, store, publish. False when there was nothing to do.

        Raises `LogUnavailable` (try again later), `LogError` and `OffsetOutOfRange`. After an error
        this node must not step again: a new one resumes from the checkpoint.
        """
        records, after = read_next(
            self._log, self._topic, self._positions, BATCH_RECORDS, timeout_s, False
        )
        answers: list[OutboxRecord] = []
        for record in records:
            self._read_up_to[record.partition] = record.offset
            answers += self._process(record)
        self._positions = after
        now = self._clock()
        if answers or self._outbox.should_store(len(records), BATCH_RECORDS, now):
            self._outbox.store(self._saved.state(), answers, now)
            self.metrics.checkpoint_at.set(now)
            self._outbox.publish_pending()
        return bool(records)

    @property
    def rounds(self) -> dict[str, int]:
        """model -> newest round that was answered."""
        return {name: sums.round for name, sums in self._models.items()}

    def _process(self, record: Record) -> list[OutboxRecord]:
        kind = dict(record.headers).get("type", b"")
        # Before it is decoded, which takes the longest of a message that is not for a model here.
        if record.key not in self._keys:
            return []
        try:
            if kind == MaskedCounts.TYPE.encode():
                message = MaskedCounts.decode(record.value, record.headers)
                is_kept = self._model(message).keep(message, record)
                result = "kept" if is_kept else "no_room"
                self.metrics.messages.labels(result=result).inc()
            elif kind == CloseRound.TYPE.encode():
                return self._answered(CloseRound.decode(record.value, record.headers))
        # Other processes may write to the log: an unreadable message must not stop a helper.
        except MessageRejected:
            self.metrics.messages.labels(result="rejected").inc()
        return []

    def _model(self, message: MaskedCounts | CloseRound | HelperSum) -> ModelSums:
        check_envelope(message, self._contract.federation, self._resolved.digest)
        model = self._models.get(message.model)
        if model is None:
            raise MessageRejected("model", "no such model in the contract")
        return model

    def _answered(self, close: CloseRound) -> list[OutboxRecord]:
        """The record that answers the end of a round; none where it is refused."""
        model = self._model(close)
        # The stored bytes, so that a repeated question is answered without another draw of noise.
        if (close.round, close.batch) == (model.round, model.batch):
            return [self._record(close.model, model.answer)]
        try:
            read_again = self._read_again(close, model.not_kept(close))
            entries = model.checked_batch(close, int(self._mode.values["batch_min"]), read_again)
        except Refused as why:
            self.metrics.rounds.labels(model=close.model, result="refused").inc()
            log_event(
                "helper_refused",
                logging.WARNING,
                model=close.model,
                round=close.round,
                reason=str(why),
            )
            return []
        answer = self._sum(close, entries).encode()
        # Noted before it is sent; `step` stores both in one transaction.
        model.answered(close, entries, answer)
        self.metrics.rounds.labels(model=close.model, result="answered").inc()
        self.metrics.clients.labels(model=close.model).set(len(entries))
        log_event("helper_answered", model=close.model, round=close.round, clients=len(entries))
        return [self._record(close.model, answer)]

    def _read_again(self, close: CloseRound, offsets: list[int]) -> dict[int, Sent]:
        """offset -> message of the batch of a round that so many messages were sent for that there
        was no room for this one.

        Other processes may write to the log, so that a flood of messages under made-up names must
        not keep those of clients from being unmasked.
        """
        wanted = set(offsets)
        messages: dict[int, Sent] = {}
        if not offsets or offsets[-1] >= self._read_up_to.get(close.partition, 0):
            return messages
        at = {close.partition: offsets[0]}
        while at[close.partition] <= offsets[-1]:
            records, after = self._log.read(self._topic, at, BATCH_RECORDS, WAIT_S)
            if not records and after == at:
                raise LogUnavailable(f"records of {self._topic} do not come a second time")
            for record in records:
                message = self._counts_in(record) if record.offset in wanted else None
                if message is not None and message.model == close.model:
                    messages[record.offset] = sent_in(message)
            at = after
        return messages

    def _counts_in(self, record: Record) -> MaskedCounts | None:
        """The masked counts of this federation in a record; None for another record."""
        try:
            message = MaskedCounts.decode(record.value, record.headers)
            self._model(message)
        except MessageRejected:
            return None
        return message

    def _sum(self, close: CloseRound, entries: list[BatchEntry]) -> HelperSum:
        """The sum of the masks of a batch, less this helper's noise."""
        # Whole numbers modulo 2^32: masks cancel exactly, and an overflow is a part of the sum.
        total = np.zeros(close.cells, dtype=np.uint32)
        for entry in entries:
            name = entry.name(close.round, close.plan)
            total += mask(self._pair(close, entry), name, close.cells)
        # A function of the batch: the same question has the same noise, also before an older state.
        seed = noise_seed(self._secret, close.batch)
        # A negative number becomes its remainder modulo 2^32, as sums of counts have it.
        total -= self._noise.draw(seed, close.cells).astype(np.uint32)
        value = bytes_of(total)
        names = (close.federation, close.contract, close.model)
        unsigned = HelperSum(
            *names, self.name, close.round, close.batch, value, bytes(SIGNATURE_BYTES)
        )
        return replace(unsigned, signature=sign(self._secret, unsigned.signed_content))

    def _pair(self, close: CloseRound, entry: BatchEntry) -> bytes:
        place = (close.model, entry.client, entry.key)
        # Kept, as an agreement on a key takes 95 µs and a mask of 250 cells 4.
        if place not in self._pairs:
            names = (
                close.federation,
                close.contract,
                close.model,
                self.name,
                entry.client,
                self._log_name,
            )
            try:
                self._pairs[place] = pair_key(self._secret, entry.key, names)
            except SettingsError:
                # A client whose public key is a point of low order has no masks that anything
                # could protect. Its batch is void, and must not stop the helper.
                self._pairs[place] = bytes(32)
        return self._pairs[place]

    def _record(self, model: str, answer: bytes) -> OutboxRecord:
        return OutboxRecord(
            self._topic, answer, self._contract.update_key(model), HelperSum.headers()
        )

    def _check_own_sums(self) -> None:
        """Raises `InvalidState` if the log has a sum of this helper that its folder lacks."""
        own = helper_public(self._secret)
        bounds = self._log.bounds(self._topic)
        ends = {partition: end for partition, (_, end) in bounds.items()}
        # A copy: the same records are processed after this, from the position that the helper has.
        at = dict(self._positions)
        while any(at.get(partition, 0) < end for partition, end in ends.items()):
            records, after = self._log.read(self._topic, at, BATCH_RECORDS, WAIT_S)
            for record in records:
                self._check_own_sum(record, own)
            if not records and after == at:
                # No start without them: one may be a sum that this folder does not know.
                raise LogUnavailable(f"the records of {self._topic} before its end do not come")
            at = after

    def _check_own_sum(self, record: Record, own: bytes) -> None:
        if HelperSum.headers()[0] not in record.headers:
            return
        try:
            published = HelperSum.decode(record.value, record.headers)
            model = self._model(published)
        except MessageRejected:
            # What is no sum of this federation can be written by others, and stops no helper.
            return
        is_newest = (published.round, published.batch) == (model.round, model.batch)
        is_newest |= published.batch == model.batch_before
        if published.helper != self.name or published.round < model.round or is_newest:
            return
        # Only the key of this helper signs its sums: a forged one stops no helper.
        if is_signed(own, published.signature, published.signed_content):
            raise InvalidState(
                f"the log has the sum of helper {self.name} for round {published.round} of model"
                f" {published.model}, and its folder does not know it: the folder is older than"
                " what the helper has published, or a copy runs elsewhere. Restore the newest copy"
                " of the folder; going on could unmask a window twice"
            )

    def _saved_parts(self) -> SavedParts:
        whole = "the helper's checkpoint"
        wrong = (
            "the helper's state belongs to another {}; name the folder that was made with its key"
        )
        required = {
            "version": required_version(STATE_VERSION, whole),
            "contract": Required(self._resolved.digest, InvalidState(wrong.format("contract"))),
            "helper": Required(self.name, InvalidState(wrong.format("helper"))),
        }
        parts: dict[str, SavedPart] = {
            "log": SavedValue(lambda: self._identity, self._restore_log),
            "positions": SavedValue(lambda: pairs_of(self._positions), self._restore_positions),
        }
        for name, sums in self._models.items():
            parts[f"model {name}"] = sums
        return SavedParts(whole, parts, required)

    def _restore_log(self, identity: Any) -> None:
        self._log_before = str(identity)

    def _restore_positions(self, pairs: Any) -> None:
        self._positions = positions_of(pairs)


def helper_name(contract: ResolvedContract, secret: bytes) -> str:
    """The name of the helper with this secret in the contract. Raises `SettingsError`."""
    if not contract.mode.masked:
        raise SettingsError(
            'a helper unmasks counts of mode = "masked"; this federation has'
            f' "{contract.mode.name}"'
        )
    public = helper_public(secret)
    for helper in contract.mode.helpers:
        if helper.key == public:
            return helper.name
    for region, helpers in contract.mode.regions.items():
        if public in {helper.key for helper in helpers}:
            raise SettingsError(
                f"this is the key of a helper of region {region}: give it the file of {region}"
            )
    raise SettingsError(
        "no helper of the contract has this key: put what `shoal keys helper` has printed for it"
        " into [[privacy.helpers]] of the file that all members have"
    )
