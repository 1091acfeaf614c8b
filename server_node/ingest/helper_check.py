"""Check of helpers: a round of invented clients alone, whose masks the server knows, shows which helper is wrong.

A sum that is none of counts does not show who has spoiled it. So after a void batch the server answers a round itself,
as many clients as a batch needs, each with nothing but masks. No reading is in it, and no client's window is spent.
What a helper publishes for it must be the sum of these masks but for its noise. Only the server knows in advance
which rounds these are.
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

PREFIX: Final = "helper-check-"
"""what names of invented clients begin with; no batch has such a one beside others"""
REACH: Final = 12.0
"""standard deviations of noise: more on one count is no noise"""
TOO_LITTLE: Final = 4.75
"""standard deviations below which the squares of noise, added up, are in one of 10^6 rounds"""
VOIDS_BETWEEN: Final = 8
"""void batches between two checks, as long as none is absorbed"""
WRONG_SUMS, LITTLE_NOISE = "wrong sums", "too little noise"


def is_check(clients: Iterable[str]) -> bool:
    """Whether a batch of these clients is a check of helpers."""
    return all(client.startswith(PREFIX) for client in clients)


class HelperCheck:
    """The checks of the helpers of one model."""

    def __init__(self, contract: ResolvedContract, model: ResolvedModel) -> None:
        self._mode = cast("Masked", contract.mode)
        self._names = contract.federation, contract.digest, model.name
        self._size = int(self._mode.values["batch_min"])
        self.secrets: dict[str, bytes] = {}
        """invented client -> its secret, while a check runs"""
        self.wrong: dict[str, str] = {}
        """helper -> what is wrong with it, by the newest check"""
        self._voids = 0
        self._due_at: float | None = None

    def note_absorbed(self) -> None:
        """A batch was a sum of counts: all helpers are right."""
        self._voids, self._due_at, self.wrong = 0, None, {}

    def note_void(self, now: float) -> None:
        """A batch was none."""
        if self._voids % VOIDS_BETWEEN == 0:
            self._due_at = now
        self._voids += 1

    def is_due(self, now: float) -> bool:
        """Whether the open round is to be one of invented clients."""
        return self._due_at is not None and now >= self._due_at and not self.secrets

    def make_messages(self, round_: int, plan: bytes, cells: int) -> list[MaskedCounts]:
        """The messages of as many invented clients as a batch needs."""
        from shoal.privacy.masks import client_public  # noqa: PLC0415 - needs an extra, in this mode only

        self.secrets = {f"{PREFIX}{secrets.token_hex(8)}": secrets.token_bytes(32) for _ in range(self._size)}
        messages = []
        for client, secret in self.secrets.items():
            entry = BatchEntry(client, round_, 1, client_public(secret), secrets.token_bytes(NONCE_BYTES))
            total = np.zeros(cells, dtype=np.uint32)
            for helper in self._mode.helpers:
                total += self._mask(helper.name, helper.key, entry, round_, plan, cells)
            messages.append(
                MaskedCounts(
                    *self._names, client, entry.key, round_, entry.window, 1, plan, entry.nonce, bytes_of(total)
                )
            )
        return messages

    def judge(
        self, close: CloseRound, entries: Sequence[BatchEntry], sums: Mapping[str, HelperSum], retry_at: float
    ) -> bool:
        """Compare what each helper has published with the masks; whether all are right.

        Those that are not are checked again at `retry_at`. A server that does not know the masks any more learns
        nothing.
        """
        if {entry.client for entry in entries} != self.secrets.keys():
            self.secrets, self._due_at = {}, None
            return False
        found = {
            helper.name: self._fault(helper.name, helper.key, close, entries, sums) for helper in self._mode.helpers
        }
        self.wrong = {name: fault for name, fault in found.items() if fault}
        self.secrets, self._due_at = {}, retry_at if self.wrong else None
        return not self.wrong

    def _fault(
        self, name: str, key: bytes, close: CloseRound, entries: Sequence[BatchEntry], sums: Mapping[str, HelperSum]
    ) -> str:
        total = np.zeros(close.cells, dtype=np.uint32)
        for entry in entries:
            total += self._mask(name, key, entry, close.round, close.plan, close.cells)
        noise = signed_counts(total - words_of(sums[name].total)).astype(np.float64)
        squares = noise**2 / self._mode.variance
        if float(squares.max()) > REACH**2:
            return WRONG_SUMS
        # The quantile of a chi-square distribution by Wilson and Hilferty (1931).
        spread = 2.0 / (9.0 * len(noise))
        little = len(noise) * max(0.0, 1.0 - spread - TOO_LITTLE * math.sqrt(spread)) ** 3
        return LITTLE_NOISE if float(squares.sum()) < little else ""

    def _mask(self, helper: str, key: bytes, entry: BatchEntry, round_: int, plan: bytes, cells: int) -> Any:
        from shoal.privacy.masks import mask, pair_key  # noqa: PLC0415 - needs an extra, in this mode only

        pair = pair_key(self.secrets[entry.client], key, (*self._names, helper, entry.client))
        return mask(pair, entry.name(round_, plan), cells)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return {"secrets": self.secrets, "wrong": self.wrong, "voids": self._voids, "due_at": self._due_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises any of `DAMAGED`."""
        self.secrets = {str(client): bytes(secret) for client, secret in state["secrets"].items()}
        self.wrong = {str(helper): str(fault) for helper, fault in state["wrong"].items()}
        self._voids, self._due_at = int(state["voids"]), state["due_at"]
