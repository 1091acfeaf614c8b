"""Whether the client's loop still comes round."""

from __future__ import annotations

import time
from collections.abc import Callable

from client_nodes.node import ClientNode

LIVE_S = 120.0
"""a step of a healthy client is over sooner, also when no broker answers: its longest waits are of 30 s"""


class Heartbeat:
    """When the client's loop last came round. `clock`: seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def beat(self) -> None:
        """The loop has come round."""
        self._at = self._clock()

    @property
    def alive(self) -> bool:
        """Whether it did within `LIVE_S`."""
        return self._clock() - self._at < LIVE_S


class Beating:
    """A node whose steps are felt."""

    def __init__(self, node: ClientNode, pulse: Heartbeat) -> None:
        self._node, self._pulse = node, pulse
        pulse.beat()

    def step(self, timeout_s: float = 0.0) -> bool:
        """See `ClientNode.step`."""
        self._pulse.beat()
        return self._node.step(timeout_s)
