"""Counts a closed window for one model, makes the counts private and charges them.

The times in an update of private counts depend on no value of a reading: see
`shoal.client_nodes.intake.public_times`. It is made, as it says, when the readings log took in the
window's last place, in whole seconds.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import TimeSpan
from shoal.client_nodes.publisher import Content, EncodedUpdate, Publisher
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.resolved import ResolvedModel
from shoal.kernels.arrays import Bools
from shoal.privacy.count_noise import CountMechanism
from shoal.privacy.ledger import Ledger, Release


class ClosedWindow(NamedTuple):
    """One window, as the models count it."""

    rows: Rows
    """(n, d) in unit coordinates"""
    valid: Bools
    """(n,) which of them are counted"""
    number: int
    first: int
    """place of its first reading among all that windows have had"""
    closed_at: float
    """seconds since 1970"""
    span: TimeSpan
    """times of its places, as updates may state them"""
    taken_in: TimeSpan
    """times at which the log took its first and last place in"""


class ModelCounter:
    """The client half of one model that learns from counts."""

    def __init__(
        self,
        model: ResolvedModel,
        width: int,
        client: str,
        publisher: Publisher,
        noise_key: bytes | None,
        readings_log: bytes,
    ) -> None:
        assert model.counts is not None
        self._model = model
        self._publisher = publisher
        self._counter = model.counts.algorithm.counter(model.options, width)
        self._version = 0
        """version of the newest snapshot whose plan was adopted"""
        self.stream = model.counts.stream
        """the stream of counts that the model learns from, as the ledger charges it"""
        self._mechanism = None
        if model.counts.noise is not None:
            assert noise_key is not None, "a client in a mode with noise has a key"
            self._mechanism = CountMechanism(
                model.counts.noise, noise_key, client, readings_log, self.stream
            )
        # Public: it decides only which of several questions the client answers.
        self._public_name = client.encode() + b"\0" + model.name.encode()

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def fingerprint(self) -> str:
        """Whether key, client, readings log and epsilon are as before; empty without noise."""
        if self._mechanism is None:
            return ""
        return self._mechanism.fingerprint

    def make_update(
        self, window: ClosedWindow, snapshots: Snapshots, ledger: Ledger | None
    ) -> EncodedUpdate:
        """Count the window under the newest plan, make the counts private, and charge them."""
        newest = snapshots.newest(self.name)
        if newest is not None and newest.version != self._version:
            self._counter.adopt(newest.arrays)
            self._version = newest.version
        counted = self._counter.count(window.rows, window.valid, self._public_name, window.number)
        private = counted.counts
        made_at = window.closed_at
        span = window.span
        if self._mechanism is not None:
            assert ledger is not None
            places = (window.number, window.first, window.first + len(window.rows) - 1)
            plan = self._counter.plan_digest
            private = self._mechanism.release(private, places, plan)
            # By its digest the ledger knows whether a window that is charged again, after a kill,
            # has the same noise, so that it costs nothing more.
            digest = hashlib.sha256(private.astype("<i8").tobytes()).digest()
            epsilon = float(self._model.statement["epsilon"])
            unit = self._model.mode.unit.name
            release = Release(
                self.stream, window.number, plan, digest, len(window.rows), epsilon, unit
            )
            ledger.charge([release], window.closed_at)
            span = window.span.in_seconds()
            taken_in = window.taken_in.in_seconds()
            made_at = window.closed_at if taken_in.newest is None else taken_in.newest
        content = Content(
            window.number + 1, len(window.rows), counted.update(private), made_at, span
        )
        return self._publisher.make_update(self._model, content)
