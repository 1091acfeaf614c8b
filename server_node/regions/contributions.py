"""Contributions of a region to upstream models: its clients' updates put together, numbered, for
its own topic.

A contribution is made after a number of readings, or where the log has a request to contribute,
which the server writes when it is time to. So what a region publishes, and under which numbers, is
a function of its log of updates alone: after a kill, and after a rebuild without a checkpoint, it
publishes the same again, and the upstream server drops it as repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shoal.algorithms.streaming import Aggregator, Arrays
from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedModel
from shoal.config.upstream import Upstream
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.chunking import encode_update
from shoal.protocol.messages import Update
from shoal.protocol.regions import (
    SEPARATOR,
    Contribute,
    Region,
    RegionUpdate,
    decode_update,
    update_arrays,
)
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState, state_type
from shoal.server_node.models.base import ServedModel
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, latest


@state_type
class RegionState(SavedState):
    """A region, as it is saved."""

    path: str
    clients: int


@state_type
class RegionsState(SavedState):
    """Saved state of `Regions`."""

    trees: dict[str, list[RegionState]]
    """client that a tree is of -> the parts of its regions"""


class Regions:
    """The tree of regions: of each client that is a region, the one in its newest update."""

    def __init__(self) -> None:
        self._below: dict[str, list[Region]] = {}

    def take(self, update: Update) -> None:
        """Keep the tree of regions in an update that has been processed."""
        if isinstance(update, RegionUpdate):
            self._below[update.client] = update.tree

    def all(self) -> list[Region]:
        """Every region, those below another one after it; sorted by name."""
        regions: list[Region] = []
        # Sorted, as all of it travels in every contribution, and after a rebuild the same bytes
        # must be published.
        for _, tree in sorted(self._below.items()):
            regions += tree
        return regions

    def below(self, federation: str) -> list[Region]:
        """Every region, as it is named above this federation."""
        return [Region(f"{federation}{SEPARATOR}{path}", clients) for path, clients in self.all()]

    def __contains__(self, client: str) -> bool:
        return client in self._below

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        trees: dict[str, list[RegionState]] = {}
        for client, tree in sorted(self._below.items()):
            trees[client] = [
                RegionState(path=region.path, clients=region.clients) for region in tree
            ]
        return RegionsState(trees=trees).saved()

    def restore(self, state: Any) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        self._below = {}
        for client, tree in RegionsState.read(state).trees.items():
            self._below[client] = [Region(region.path, region.clients) for region in tree]


class RegionContribution(NamedTuple):
    """Contribution of a region to one model."""

    model: str
    arrays: Arrays
    readings: int
    made_at: float
    """time at which the newest update in it was made, seconds since 1970"""
    newest_reading_at: float | None
    oldest_reading_at: float | None = None
    round: int | None = None
    """the round that it answers, of a model in rounds"""
    clients: int | None = None
    """clients that batches of masked counts have had; None: those that the model knows"""


@state_type
class SequencesState(SavedState):
    """Saved state of `RegionUpdates`."""

    sequences: dict[str, int]
    """model -> number of the newest update"""


class RegionUpdates:
    """Makes a region's updates for all models of both federations, and numbers them."""

    def __init__(
        self,
        contract: Contract,
        upstream: Upstream,
        validator: Validator,
        models: Mapping[str, ServedModel],
    ) -> None:
        """`contract` and `models` are the region's, `validator` is of its upstream federation."""
        resolved = upstream.config.resolved
        self._contract = contract
        self._resolved = resolved
        self._upstream_contract = resolved.contract
        self._record_bytes_max = upstream.config.log.update_bytes_max
        self._models = models
        self._validator = validator
        self._sequences = dict.fromkeys(upstream.models, 0)
        """model -> sequence number of the newest update"""
        self._records: list[OutboxRecord] = []

    def add(self, contribution: RegionContribution, regions: Regions) -> None:
        """Make the next update of a model; one that the upstream server would reject is logged."""
        update = self._update(contribution, regions)
        try:
            self._validator.check_update(update)
            chunks = encode_update(update, update_arrays(update), self._record_bytes_max)
        except MessageRejected as rejected:
            # It must not end this server, whose own clients go on.
            log_event(
                "contribution_rejected",
                logging.ERROR,
                model=update.model,
                reason=rejected.reason,
                detail=rejected.detail,
            )
            return
        # Only now: a contribution that is refused must leave no gap in the numbers.
        self._sequences[update.model] = update.sequence
        topic = self._contract.contributions_topic
        key = self._upstream_contract.update_key(update.model)
        for chunk in chunks:
            self._records.append(OutboxRecord(topic, chunk.value, key, RegionUpdate.headers()))

    def take_records(self) -> list[OutboxRecord]:
        """The updates made since the last call, for the outbox."""
        taken = self._records
        self._records = []
        return taken

    def go_on_after(self, log: Log, model: str) -> None:
        """Number a model's next update after the newest one in the topic of contributions, without
        a checkpoint.

        Raises as the log does, and `MessageRejected` for a record that no region has published.
        """
        record = latest(log, self._contract.contributions_topic).get(
            self._upstream_contract.update_key(model)
        )
        if record is not None:
            self._sequences[model] = decode_update(record.value, record.headers).sequence

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return SequencesState(sequences=self._sequences).saved()

    def restore(self, state: Any) -> None:
        """Become the saved ones; a model that has come since begins at its first update.

        Raises `InvalidState`.
        """
        for name, sequence in SequencesState.read(state).sequences.items():
            # Of a model that is gone nothing more is contributed.
            if name in self._sequences:
                self._sequences[name] = sequence

    def _update(self, contribution: RegionContribution, regions: Regions) -> RegionUpdate:
        name = contribution.model
        model = self._resolved.models[name]
        region = self._contract.federation
        clients = contribution.clients
        if clients is None:
            # Those that are regions are counted with their own clients.
            clients = sum(client not in regions for client in self._models[name].clients.names())
        tree = [Region(region, clients), *regions.below(region)]
        return RegionUpdate(
            federation=self._resolved.federation,
            contract=self._resolved.digest,
            model=name,
            algorithm=model.declared.algorithm,
            client=region,
            sequence=self._sequences[name] + 1,
            readings=contribution.readings,
            privacy=dict(model.statement),
            arrays=contribution.arrays,
            made_at=contribution.made_at,
            oldest_reading_at=contribution.oldest_reading_at,
            newest_reading_at=contribution.newest_reading_at,
            round=contribution.round,
            regions=[list(branch) for branch in tree],
        )


STATE_VERSION: Final = 4


@state_type
class PendingState(SavedState):
    """What a model has absorbed since it contributed last, as it is saved beside the sums."""

    readings: int
    made_at: float
    newest_reading_at: float | None
    oldest_reading_at: float | None
    since: float | None
    clients: int | None
    requested: bool


@dataclass
class _Pending:
    """Updates that one model has absorbed since it contributed last."""

    aggregator: Aggregator
    readings: int = 0
    made_at: float = 0.0
    """time at which the newest update in it was made"""
    newest_reading_at: float | None = None
    oldest_reading_at: float | None = None
    """times of the updates that have one, as of the newest"""
    since: float | None = None
    """time at which its first update was taken in, seconds since 1970; None: there is none"""
    clients: int | None = None
    """clients that batches of masked counts have had; None: those that the model knows"""
    requested: bool = False
    """whether a request to contribute is in the log, or about to be"""

    def add(self, update: Update, now: float) -> None:
        self.aggregator.add(update.arrays, update.readings, update.client)
        self.readings += update.readings
        # Clocks of clients differ: an update that comes later may have been made earlier by its
        # own.
        self.made_at = max(self.made_at, update.made_at)
        newest = [self.newest_reading_at, update.newest_reading_at]
        self.newest_reading_at = max(_known(newest), default=None)
        # Not every update has the time of its oldest reading.
        oldest = [self.oldest_reading_at, update.oldest_reading_at, update.newest_reading_at]
        self.oldest_reading_at = min(_known(oldest), default=None)
        if self.since is None:
            self.since = now

    def begin_again(self) -> None:
        self.readings = 0
        self.since = None
        self.requested = False
        self.newest_reading_at = None
        self.oldest_reading_at = None

    def state(self) -> dict[str, Any]:
        pending = PendingState(
            readings=self.readings,
            made_at=self.made_at,
            newest_reading_at=self.newest_reading_at,
            oldest_reading_at=self.oldest_reading_at,
            since=self.since,
            clients=self.clients,
            requested=self.requested,
        )
        # What the algorithm adds up is its own state, and it checks that itself.
        return {"pending": pending.saved(), "aggregator": self.aggregator.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        saved = PendingState.read(state.get("pending"))
        self.aggregator.restore(state["aggregator"])
        self.readings = saved.readings
        self.made_at = saved.made_at
        self.newest_reading_at = saved.newest_reading_at
        self.oldest_reading_at = saved.oldest_reading_at
        self.since = saved.since
        self.clients = saved.clients
        self.requested = saved.requested


def _known(times: Sequence[float | None]) -> list[float]:
    return [at for at in times if at is not None]


class Contributions:
    """The contributions of one region to the streaming models of its upstream federation."""

    def __init__(
        self,
        contract: Contract,
        models: Sequence[ResolvedModel],
        updates: RegionUpdates,
        publish_readings: int,
        publish_s: float,
    ) -> None:
        """`contract` is the region's, `models` are those of the upstream federation that it
        contributes to.

        `publish_readings`, `publish_s`: after how much a model contributes.
        """
        self._contract = contract
        self._updates = updates
        self._publish_readings = publish_readings
        self._publish_s = publish_s
        streaming = [model for model in models if not model.family.in_rounds]
        self._readings_max: dict[str, int] = {}
        """model -> readings of a contribution"""
        self._pending: dict[str, _Pending] = {}
        for model in streaming:
            # What is of masked counts is passed on batch by batch, and a batch has its own limit.
            readings_max = 1 if model.mode.masked else model.declared.readings_max
            self._readings_max[model.name] = readings_max
            self._pending[model.name] = _Pending(_aggregator(model, contract.width))

    def add(self, update: Update, regions: Regions, now: float, clients: int | None = None) -> None:
        """Add an update that its model has absorbed, and contribute where that is due.

        `clients`: as in `RegionContribution`.
        """
        pending = self._pending.get(update.model)
        if pending is None:
            return
        readings_max = self._readings_max[update.model]
        has_room = pending.aggregator.has_room(update.arrays, update.readings)
        # What is pending goes first, so that no contribution is above the limits that the upstream
        # server checks.
        if not has_room or pending.readings + update.readings > readings_max:
            self.contribute(update.model, regions)
        pending.add(update, now)
        pending.clients = clients
        is_full = pending.readings >= min(self._publish_readings, readings_max)
        if is_full or pending.aggregator.is_due:
            self.contribute(update.model, regions)

    def contribute(self, model: str, regions: Regions) -> None:
        """Make a contribution of what a model has taken in; none where that is nothing new."""
        pending = self._pending.get(model)
        if pending is None or pending.since is None:
            return
        arrays = pending.aggregator.contribute()
        # Updates that only report rejected readings add up to nothing: a contribution would only
        # use up a number.
        if any(array.size for array in arrays.values()):
            contribution = RegionContribution(
                model,
                arrays,
                pending.readings,
                pending.made_at,
                pending.newest_reading_at,
                pending.oldest_reading_at,
                clients=pending.clients,
            )
            self._updates.add(contribution, regions)
        pending.begin_again()

    def requests(self, now: float) -> Iterator[OutboxRecord]:
        """Requests to contribute for the region's own log, for the models whose time it is."""
        for model, pending in self._pending.items():
            if pending.since is None or pending.requested:
                continue
            # A clock that was set back must not lengthen the wait.
            pending.since = min(pending.since, now)
            if now >= pending.since + self._publish_s:
                # It is read only with a later step: without this each step until then would write
                # another one.
                pending.requested = True
                request = Contribute(self._contract.federation, self._contract.digest, model)
                key = self._contract.update_key(model)
                topic = self._contract.updates_topic
                yield OutboxRecord(topic, request.encode(), key, Contribute.headers())

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`."""
        return {
            "version": STATE_VERSION,
            "models": {name: pending.state() for name, pending in self._pending.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones; a model that has come since begins with nothing. Raises
        `InvalidState`."""
        if state.get("version") != STATE_VERSION:
            raise InvalidState(
                "the checkpoint's contributions are of another version of shoal; run that one"
            )
        for name, pending in self._pending.items():
            if name not in state["models"]:
                continue
            try:
                pending.restore(state["models"][name])
            except (AttributeError, KeyError) as damaged:
                raise InvalidState(
                    f"the checkpoint's contributions of {name} are damaged: {damaged}"
                ) from None


def _aggregator(model: ResolvedModel, width: int) -> Aggregator:
    aggregation = model.streaming.aggregation
    assert aggregation is not None, "checked when the upstream federation was loaded"
    return aggregation.aggregator(model.options, width)
