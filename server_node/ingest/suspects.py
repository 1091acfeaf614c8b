"""Who has spoiled a batch of masked counts: a client, found by halves of the suspects, or a helper,
found by a check.

The counts of one client cannot be read. But a sum that is none of counts shows that some message of
its batch had wrong masks or wrong counts. All clients of such a batch are suspects. A later batch
has clients that are none, and half of the suspects: if it is absorbed, they are none either; if it
is void, one of them has spoiled it. A client that was the only suspect in a void batch is left out
from then on.

A helper whose sums are wrong spoils every batch. So no client is left out before some batch has
been absorbed since the first void one, or a check has shown that the helpers are right. And no
batch has all suspects that the one before had: it would spend their windows, and tell nothing.

A check of the helpers is a round of invented clients alone: after a void batch the server answers a
round itself, as many clients as a batch needs, each with nothing but masks. No reading is in it,
and no client's window is spent. What a helper publishes for it must be the sum of these masks but
for its noise. Only the server knows in advance which rounds these are.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.privacy.masked import Masked
from shoal.protocol.masked import (
    NONCE_BYTES,
    BatchEntry,
    CloseRound,
    HelperSum,
    MaskedCounts,
    bytes_of,
    signed_counts,
    words_of,
)
from shoal.saved_state import SavedState, require, state_type


@state_type
class SuspectsState(SavedState):
    """Saved state of `Suspects`."""

    clients: list[str]
    front: int
    helpers_work: bool
    left_out: dict[str, bytes]
    keys: dict[str, bytes]

    def check(self) -> None:
        require(self.front <= len(self.clients), "the front has more than all suspects")
        require(self.keys.keys() == set(self.clients), "a suspect has no key")


class Suspects:
    """The suspects of one model. All follows from the batches in the log, in their order."""

    def __init__(self) -> None:
        self._clients: list[str] = []
        """those that may have spoiled a batch; some of the first `_front` has"""
        self._front = 0
        self._keys: dict[str, bytes] = {}
        """their public keys: with a new one, a client is no suspect"""
        self._helpers_work = False
        """whether a batch was absorbed since there have been suspects"""
        self.left_out: dict[str, bytes] = {}
        """client -> its public key, of those that are left out"""

    def chosen(self, answered: Mapping[str, bytes], batch_min: int, fill: bool = True) -> list[str]:
        """The clients of the next batch, of those that have answered, with their public keys: all
        without suspects.

        With `fill`, more suspects make the batch full where too few others have answered; then a
        void batch tells less.
        """
        suspects = {
            client for client in self._clients if self._keys.get(client) == answered.get(client)
        }
        trusted: list[str] = []
        for client, key in answered.items():
            if client not in suspects and self.left_out.get(client) != key:
                trusted.append(client)
        present = [client for client in self._clients if client in suspects and client in answered]
        front = [client for client in self._clients[: self._front] if client in present]
        half = front[: max(1, self._front // 2)]
        chosen = {*trusted, *half}
        if fill:
            # Those of the front last: one of them has spoiled a batch.
            others = [client for client in present if client not in front] + front[len(half) :]
            missing = max(0, batch_min - len(trusted) - len(half))
            chosen.update(others[:missing])
        # All of the front once more would spend their windows, and tell none of them from another.
        if len(front) == self._front > 1 and chosen.issuperset(front):
            return []
        return sorted(chosen)

    def blame_helpers(self) -> None:
        """Suspect no client: a check has shown that a helper is wrong, who spoils every batch."""
        self._clients = []
        self._front = 0
        self._helpers_work = False

    def trust_helpers(self) -> None:
        """Suspect clients alone: a check has shown that the helpers are right."""
        self._helpers_work = bool(self._clients)

    def absorbed(self, batch: Iterable[str]) -> None:
        """Clear the clients of a batch that was a sum of counts."""
        if not self._clients:
            return
        cleared = set(batch)
        front = [client for client in self._clients[: self._front] if client not in cleared]
        self._clients = [client for client in self._clients if client not in cleared]
        self._front = len(front) or len(self._clients)
        self._helpers_work = bool(self._clients)

    def void(self, batch: Mapping[str, bytes]) -> str | None:
        """Suspect the clients of a batch that was no sum of counts; `batch`: client -> public key.

        Returns the client that is left out from now on, if that is known.
        """
        self._keys |= batch
        if not self._clients:
            # Sorted, so that every run over the log tries the same halves.
            self._clients = sorted(batch)
            self._helpers_work = False
            self._front = len(self._clients)
            return None
        inside = [client for client in self._clients if client in batch]
        outside = [client for client in self._clients if client not in batch]
        if len(inside) == 1 and self._helpers_work:
            spoiler = inside[0]
            self.left_out[spoiler] = batch[spoiler]
            self._clients = outside
            self._front = len(outside)
            return spoiler
        # Another client spoils batches as well: the search begins with those of this batch.
        if not inside:
            inside = sorted(batch)
        # The first one goes to the end, so that the next half is another one.
        self._clients = [*inside[1:], inside[0], *outside]
        self._front = len(inside)
        return None

    def state(self) -> SuspectsState:
        """The state for `restore`."""
        return SuspectsState(
            clients=list(self._clients),
            front=self._front,
            helpers_work=self._helpers_work,
            left_out=dict(sorted(self.left_out.items())),
            keys={client: self._keys[client] for client in self._clients},
        )

    def restore(self, state: SuspectsState) -> None:
        """Become the saved ones."""
        self._clients = state.clients
        self._front = state.front
        self._helpers_work = state.helpers_work
        self.left_out = state.left_out
        self._keys = state.keys


PREFIX: Final = "helper-check-"
"""start of the names of invented clients; no batch has such a one beside others"""
REACH: Final = 12.0
"""standard deviations of noise: more on one count is no noise, but a wrong sum

Masks are uniform over 32 bits, so that a wrong sum is far beyond it in nearly every count."""
TOO_LITTLE: Final = 4.75
"""standard deviations below which the squares of noise, added up, are in one of 10^6 rounds"""
VOIDS_BETWEEN: Final = 8
"""void batches between two checks, as long as none is absorbed: each check takes a round"""
WRONG_SUMS = "wrong sums"
LITTLE_NOISE = "too little noise"


def is_check(clients: Iterable[str]) -> bool:
    """Whether a batch of these clients is a check of helpers."""
    return all(client.startswith(PREFIX) for client in clients)


@state_type
class HelperCheckState(SavedState):
    """Saved state of `HelperCheck`."""

    secrets: dict[str, bytes]
    wrong: dict[str, str]
    voids: int
    due_at: float | None


class HelperCheck:
    """The checks of the helpers of one model."""

    def __init__(self, contract: ResolvedContract, model: ResolvedModel, log: str) -> None:
        """`log`: the name of the log, see `shoal.protocol.masked.log_name`."""
        self._mode = cast("Masked", contract.mode)
        self._names = contract.federation, contract.digest, model.name
        self._log = log
        self._size = int(self._mode.values["batch_min"])
        self.secrets: dict[str, bytes] = {}
        """invented client -> its secret, while a check runs"""
        self.wrong: dict[str, str] = {}
        """helper -> what is wrong with it, by the newest check"""
        self._voids = 0
        self._due_at: float | None = None

    def note_absorbed(self) -> None:
        """Plan no check: a batch was a sum of counts, so all helpers are right."""
        self._voids = 0
        self._due_at = None
        self.wrong = {}

    def note_void(self, now: float) -> None:
        """Plan a check, now and then: a batch was no sum of counts."""
        if self._voids % VOIDS_BETWEEN == 0:
            self._due_at = now
        self._voids += 1

    def is_due(self, now: float) -> bool:
        """Whether the open round is to be one of invented clients."""
        return self._due_at is not None and now >= self._due_at and not self.secrets

    def make_messages(self, round_: int, plan: bytes, cells: int) -> list[MaskedCounts]:
        """The messages of as many invented clients as a batch needs."""
        from shoal.privacy.masks import (  # noqa: PLC0415 - needs an extra, in this mode only
            client_public,
        )

        self.secrets = {}
        for _ in range(self._size):
            self.secrets[f"{PREFIX}{secrets.token_hex(8)}"] = secrets.token_bytes(32)
        messages: list[MaskedCounts] = []
        for client, secret in self.secrets.items():
            entry = BatchEntry(
                client, round_, 1, client_public(secret), secrets.token_bytes(NONCE_BYTES)
            )
            total = np.zeros(cells, dtype=np.uint32)
            for helper in self._mode.helpers:
                total += self._mask(helper.name, helper.key, entry, round_, plan, cells)
            messages.append(
                MaskedCounts(
                    *self._names,
                    client,
                    entry.key,
                    round_,
                    entry.window,
                    1,
                    plan,
                    entry.nonce,
                    bytes_of(total),
                )
            )
        return messages

    def judge(
        self,
        close: CloseRound,
        entries: Sequence[BatchEntry],
        sums: Mapping[str, HelperSum],
        retry_at: float,
    ) -> bool:
        """Compare what each helper has published with the masks; whether all are right.

        Those that are not are checked again at `retry_at`. A server that does not know the masks
        any more learns nothing.
        """
        if {entry.client for entry in entries} != self.secrets.keys():
            self.secrets = {}
            self._due_at = None
            return False
        self.wrong = {}
        for helper in self._mode.helpers:
            fault = self._fault(helper.name, helper.key, close, entries, sums)
            if fault:
                self.wrong[helper.name] = fault
        self.secrets = {}
        self._due_at = retry_at if self.wrong else None
        return not self.wrong

    def _fault(
        self,
        name: str,
        key: bytes,
        close: CloseRound,
        entries: Sequence[BatchEntry],
        sums: Mapping[str, HelperSum],
    ) -> str:
        """What is wrong with the sum of one helper; empty where it is right."""
        total = np.zeros(close.cells, dtype=np.uint32)
        for entry in entries:
            total += self._mask(name, key, entry, close.round, close.plan, close.cells)
        # Masks are added modulo 2^32: only the difference, taken as signed, is the noise.
        noise = signed_counts(total - words_of(sums[name].total)).astype(np.float64)
        # As floats: noise of a wrong sum is near 2^31, and the sum of such squares leaves 64 bits.
        squares = noise**2 / self._mode.variance
        if float(squares.max()) > REACH**2:
            return WRONG_SUMS
        # The squares of noise as the contract has it follow a chi-square distribution, one degree
        # of freedom a cell. Its low quantile, by the cube root transformation.
        # Source: Wilson and Hilferty, The Distribution of Chi-Square, 1931.
        spread = 2.0 / (9.0 * len(noise))
        # With few cells the transformed quantile falls below 0, where no sum of squares can be.
        low_quantile = len(noise) * max(0.0, 1.0 - spread - TOO_LITTLE * math.sqrt(spread)) ** 3
        if float(squares.sum()) < low_quantile:
            return LITTLE_NOISE
        return ""

    def _mask(
        self, helper: str, key: bytes, entry: BatchEntry, round_: int, plan: bytes, cells: int
    ) -> Any:
        from shoal.privacy.masks import (  # noqa: PLC0415 - needs an extra, in this mode only
            mask,
            pair_key,
        )

        names = (*self._names, helper, entry.client, self._log)
        pair = pair_key(self.secrets[entry.client], key, names)
        return mask(pair, entry.name(round_, plan), cells)

    def state(self) -> HelperCheckState:
        """The state for `restore`."""
        return HelperCheckState(
            secrets=self.secrets, wrong=self.wrong, voids=self._voids, due_at=self._due_at
        )

    def restore(self, state: HelperCheckState) -> None:
        """Become the saved one."""
        self.secrets = state.secrets
        self.wrong = state.wrong
        self._voids = state.voids
        self._due_at = state.due_at
