"""What a region contributes to streaming models: its clients' updates put together, where the region's log decides.

A contribution is made after a number of readings, or where the log has a request to contribute, which the server
writes when it is time to. So what a region publishes, and under which numbers, is a function of its log of updates
alone: after a kill, and after a rebuild without a checkpoint, it publishes the same again, and the upstream server
drops it as repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server_node.hierarchy.region_updates import RegionContribution, RegionUpdates
from server_node.hierarchy.regions import Regions
from shoal.algorithms.registry import is_in_rounds, streaming_algorithm
from shoal.algorithms.streaming import Aggregation, Aggregator
from shoal.config.contract import Contract
from shoal.config.privacy import model_options
from shoal.config.upstream import Upstream
from shoal.errors import InvalidState
from shoal.protocol.messages import Update
from shoal.protocol.regions import Contribute
from shoal.runtime.checkpoint import OutboxRecord

STATE_VERSION = 2


@dataclass
class _Pending:
    """What one model has taken in since it contributed last."""

    aggregator: Aggregator
    readings: int = 0
    made_at: float = 0.0
    """when the newest update in it was made"""
    newest_reading_at: float | None = None
    since: float | None = None
    """when its first update was taken in, seconds since 1970; None: there is none"""
    requested: bool = False
    """whether a request to contribute is in the log, or about to be"""

    def add(self, update: Update, now: float) -> None:
        self.aggregator.add(update.arrays, update.readings)
        self.readings += update.readings
        self.made_at = max(self.made_at, update.made_at)
        times = [at for at in (self.newest_reading_at, update.newest_reading_at) if at is not None]
        self.newest_reading_at = max(times, default=None)
        self.since = now if self.since is None else self.since

    def begin_again(self) -> None:
        self.readings, self.newest_reading_at, self.since, self.requested = 0, None, None, False

    def state(self) -> dict[str, Any]:
        return {**vars(self), "aggregator": self.aggregator.state()}


class Contributions:
    """The contributions of one region to the streaming models of its upstream federation."""

    def __init__(
        self,
        contract: Contract,
        upstream: Upstream,
        updates: RegionUpdates,
        publish_readings: int,
        publish_s: float,
    ) -> None:
        """`contract` is the region's. `publish_readings`, `publish_s`: after how much a model contributes."""
        self._contract, self._upstream, self._updates = contract, upstream, updates
        self._publish_readings, self._publish_s = publish_readings, publish_s
        streaming = (name for name in upstream.models if not is_in_rounds(upstream.model(name).algorithm))
        self._pending = {name: _Pending(self._aggregator(name)) for name in streaming}

    def add(self, update: Update, regions: Regions, now: float) -> None:
        """An update that its model has taken in. Contributes when it is the last one of a contribution."""
        pending = self._pending.get(update.model)
        if pending is None:
            return
        most = self._upstream.model(update.model).readings_max
        has_room = pending.aggregator.has_room(update.arrays, update.readings)
        if not has_room or pending.readings + update.readings > most:
            self.contribute(update.model, regions)
        pending.add(update, now)
        if pending.readings >= min(self._publish_readings, most):
            self.contribute(update.model, regions)

    def contribute(self, model: str, regions: Regions) -> None:
        """Make a contribution of what a model has taken in; none where that is nothing new."""
        pending = self._pending.get(model)
        if pending is None or pending.since is None:
            return
        arrays = pending.aggregator.contribute()
        if any(array.size for array in arrays.values()):
            made = RegionContribution(model, arrays, pending.readings, pending.made_at, pending.newest_reading_at)
            self._updates.add(made, regions)
        pending.begin_again()

    def requests(self, now: float) -> Iterator[OutboxRecord]:
        """Requests to contribute for the region's own log, for the models whose time it is."""
        for model, pending in self._pending.items():
            if pending.since is None or pending.requested:
                continue
            pending.since = min(pending.since, now)  # a clock that was set back must not lengthen the wait
            if now >= pending.since + self._publish_s:
                pending.requested = True
                request = Contribute(self._contract.federation, self._contract.digest, model)
                key, topic = self._contract.update_key(model), self._contract.updates_topic
                yield OutboxRecord(topic, request.encode(), key, Contribute.headers())

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`."""
        return {"version": STATE_VERSION, "models": {name: one.state() for name, one in self._pending.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones; a model that has come since begins with nothing. Raises `InvalidState`."""
        if state.get("version") != STATE_VERSION:
            raise InvalidState("the checkpoint's contributions are of another version of shoal; run that one")
        for name, pending in self._pending.items():
            if name not in state["models"]:
                continue
            saved = dict(state["models"][name])
            try:
                pending.aggregator.restore(saved.pop("aggregator"))
                self._pending[name] = _Pending(pending.aggregator, **saved)
            except (KeyError, TypeError) as broken:
                raise InvalidState(f"the checkpoint's contributions of {name} are damaged: {broken}") from None

    def _aggregation(self, model: str) -> Aggregation:
        aggregation = streaming_algorithm(self._upstream.model(model).algorithm).aggregation
        assert aggregation is not None, "checked when the upstream federation was loaded"
        return aggregation

    def _aggregator(self, model: str) -> Aggregator:
        contract = self._upstream.config.contract
        options = model_options(contract, self._upstream.model(model))
        return self._aggregation(model).aggregator(options, contract.width)
