"""What a region contributes upstream: its clients' updates put together, at places that the region's log decides.

A contribution is made after a number of readings, or where the log has a request to contribute, which the server
writes when it is time to. So what a region publishes, and under which numbers, is a function of its log of updates
alone: after a kill, and after a rebuild without a checkpoint, it publishes the same again, and the upstream server
drops it as repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from server_node.hierarchy.regions import Regions
from server_node.models.base import ServedModel
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Aggregation, Aggregator, Arrays
from shoal.config.contract import Contract, Model
from shoal.config.privacy import model_options, model_statement
from shoal.config.upstream import Upstream
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.chunking import encode_update
from shoal.protocol.messages import Update
from shoal.protocol.regions import Contribute, Region, RegionUpdate, update_arrays
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event

STATE_VERSION = 1


@dataclass
class _Pending:
    """What one model has taken in since it contributed last."""

    aggregator: Aggregator
    sequence: int = 0
    """of the newest contribution"""
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
    """The contributions of one region to its upstream federation."""

    def __init__(
        self,
        contract: Contract,
        upstream: Upstream,
        models: Mapping[str, ServedModel],
        publish_readings: int,
        publish_s: float,
    ) -> None:
        """`contract` is the region's. `publish_readings`, `publish_s`: after how much a model contributes."""
        self._contract, self._world = contract, upstream.config.contract
        self._record_bytes_max = upstream.config.log.update_bytes_max
        self._publish_readings, self._publish_s = publish_readings, publish_s
        self._models = models
        self._validator = Validator(self._world)
        self._pending = {name: _Pending(self._aggregator(name)) for name in upstream.models}
        self._records: list[OutboxRecord] = []

    def add(self, update: Update, regions: Regions, now: float) -> None:
        """An update that its model has taken in. Contributes when it is the last one of a contribution."""
        pending = self._pending.get(update.model)
        if pending is None:
            return
        most = self._world_model(update.model).readings_max
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
            self._publish(self._update(model, pending, arrays, regions), pending)
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

    def take_records(self) -> list[OutboxRecord]:
        """The contributions made since the last call, for the outbox."""
        taken, self._records = self._records, []
        return taken

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

    def _update(self, model: str, pending: _Pending, arrays: Arrays, regions: Regions) -> RegionUpdate:
        own, world = self._world_model(model), self._world
        region = self._contract.federation
        clients = sum(client not in regions for client in self._models[model].clients.names())
        return RegionUpdate(
            federation=world.federation,
            contract=world.digest,
            model=model,
            algorithm=own.algorithm,
            client=region,
            sequence=pending.sequence + 1,
            readings=pending.readings,
            privacy=model_statement(world, own),
            arrays=arrays,
            made_at=pending.made_at,
            newest_reading_at=pending.newest_reading_at,
            regions=[list(one) for one in (Region(region, clients), *regions.below(region))],
        )

    def _publish(self, update: RegionUpdate, pending: _Pending) -> None:
        try:
            self._validator.check_update(update)
            chunks = encode_update(update, update_arrays(update), self._record_bytes_max)
        except MessageRejected as refused:
            # What the upstream server would reject must not end this one.
            log_event(
                "contribution_rejected", logging.ERROR, model=update.model, reason=refused.reason, detail=refused.detail
            )
            return
        pending.sequence = update.sequence
        topic, key, headers = (
            self._contract.contributions_topic,
            self._world.update_key(update.model),
            RegionUpdate.headers(),
        )
        self._records += [OutboxRecord(topic, chunk.value, key, headers) for chunk in chunks]

    def _aggregation(self, model: str) -> Aggregation:
        aggregation = streaming_algorithm(self._world_model(model).algorithm).aggregation
        assert aggregation is not None, "checked when the upstream federation was loaded"
        return aggregation

    def _aggregator(self, model: str) -> Aggregator:
        options = model_options(self._world, self._world_model(model))
        return self._aggregation(model).aggregator(options, self._world.width)

    def _world_model(self, name: str) -> Model:
        found = self._world.model(name)
        assert found is not None, "one of the models of both"
        return found
