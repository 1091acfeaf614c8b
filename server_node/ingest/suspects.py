"""Clients that may have spoiled a batch of masked counts: halves of them are left out of later batches, to find which.

The counts of one client cannot be read. But a sum that is none of counts shows that some message of its batch had
wrong masks or wrong counts. All clients of such a batch are suspects. A later batch has clients that are none, and half
of the suspects: if it is absorbed, they are none either; if it is void, one of them has spoiled it. A client that was
the only suspect in a void batch is left out from then on.

A helper whose sums are wrong spoils every batch. So no client is left out before some batch has been absorbed since the
first void one, or a check has shown that the helpers are right. And no batch has all suspects that the one before had:
it would spend their windows, and tell nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


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
        """The clients of the next batch, of those that have answered, with their public keys: all without suspects.

        With `fill`, more suspects make the batch full where too few others have answered; then a void batch tells less.
        """
        suspects = [client for client in self._clients if self._keys.get(client) == answered.get(client)]
        trusted = [
            client for client, key in answered.items() if self.left_out.get(client) != key and client not in suspects
        ]
        present = [client for client in suspects if client in answered]
        front = [client for client in self._clients[: self._front] if client in present]
        half = front[: max(1, self._front // 2)]
        # Those of the front last: one of them has spoiled a batch.
        others = [client for client in present if client not in front] + front[len(half) :]
        missing = max(0, batch_min - len(trusted) - len(half)) if fill else 0
        chosen = {*trusted, *half, *others[:missing]}
        tells_nothing = len(front) == self._front > 1 and chosen.issuperset(front)
        return [] if tells_nothing else sorted(chosen)

    def blame_helpers(self) -> None:
        """A check has shown that a helper is wrong, so that void batches say nothing of clients."""
        self._clients, self._front, self._helpers_work = [], 0, False

    def trust_helpers(self) -> None:
        """A check has shown that the helpers are right, so that some client has spoiled the void batches."""
        self._helpers_work = bool(self._clients)

    def absorbed(self, batch: Iterable[str]) -> None:
        """A batch of these clients was a sum of counts."""
        if not self._clients:
            return
        cleared = set(batch)
        front = [client for client in self._clients[: self._front] if client not in cleared]
        self._clients = [client for client in self._clients if client not in cleared]
        self._front = len(front) or len(self._clients)
        self._helpers_work = bool(self._clients)

    def void(self, batch: Mapping[str, bytes]) -> str | None:
        """A batch of these clients, with their public keys, was none. The client that is left out from now on."""
        self._keys |= batch
        if not self._clients:
            self._clients, self._helpers_work = sorted(batch), False
            self._front = len(self._clients)
            return None
        hit = [client for client in self._clients if client in batch]
        others = [client for client in self._clients if client not in batch]
        if len(hit) == 1 and self._helpers_work:
            self.left_out[hit[0]] = batch[hit[0]]
            self._clients, self._front = others, len(others)
            return hit[0]
        if not hit:
            hit, others = sorted(batch), [client for client in others if client not in batch]
        # The first one goes to the end, so that the next half is another one.
        self._clients, self._front = [*hit[1:], hit[0], *others], len(hit)
        return None

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        left_out = [[client, key] for client, key in sorted(self.left_out.items())]
        keys = [[client, self._keys[client]] for client in self._clients]
        return [self._clients, self._front, self._helpers_work, left_out, keys]

    def restore(self, state: Any) -> None:
        """Become the saved ones. Raises any of `DAMAGED`."""
        clients, front, helpers_work, left_out, keys = state
        self._keys = {str(client): bytes(key) for client, key in keys}
        self._clients, self._front = [str(client) for client in clients], int(front)
        self._helpers_work = bool(helpers_work)
        self.left_out = {str(client): bytes(key) for client, key in left_out}
