"""Connection of a server with the federations below and above it; a server without any has an empty
one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from shoal.config.contract import Contract
from shoal.config.sections import UpstreamSettings
from shoal.config.upstream import Upstream
from shoal.errors import MessageRejected
from shoal.protocol.messages import RoundRequest, Snapshot, Update, round_request_of
from shoal.protocol.regions import Region
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.server_node.models.base import ServedModel
from shoal.server_node.models.factory import ModelForms, StreamingForm
from shoal.server_node.regions.contributions import Contributions, Regions, RegionUpdates
from shoal.server_node.regions.following import FollowingModel, FollowingRounds
from shoal.transports.base import Log


class UpstreamState:
    """The upstream federation of a server: its contract, when to contribute, and what the bridge to
    it knows."""

    def __init__(
        self,
        federation: Upstream,
        settings: UpstreamSettings,
        newest: Callable[[str], Snapshot | None] = lambda _: None,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        """`newest` gives the newest upstream snapshot of a model, None before the first; `waiting`
        the number of contributions that are not copied yet."""
        self.federation = federation
        self.settings = settings
        self.resolved = federation.config.resolved
        self.validator = Validator(self.resolved)
        self.newest = newest
        self.waiting = waiting

    @property
    def contract(self) -> Contract:
        """Contract of the upstream federation."""
        return self.federation.config.contract

    def request_in(self, snapshot: Snapshot, region: str) -> RoundRequest | None:
        """Request of a snapshot of a model in rounds to a region; None if it asks nothing."""
        request = round_request_of(snapshot)
        return (
            request
            if request is not None and request.selects(self.contract.federation, region)
            else None
        )

    @property
    def model_forms(self) -> ModelForms:
        """The classes of the models that follow the upstream federation's."""
        streaming = []
        rounds = []
        for name in self.federation.models:
            model = self.resolved.models[name]
            if model.family.in_rounds:
                rounds.append(name)
            elif (
                aggregation := model.streaming.aggregation
            ) is not None and aggregation.plan_from_upstream:
                streaming.append(name)
        following: dict[str, StreamingForm] = {
            name: partial(FollowingModel, newest=partial(self.newest, name)) for name in streaming
        }
        if self.resolved.mode.masked:  # they follow when a round opens
            following = dict.fromkeys(streaming, FollowingModel)
        return ModelForms(following, dict.fromkeys(rounds, FollowingRounds))


class Hierarchy:
    """The regions below a server, and what it contributes upstream. Its state is a part of the
    server's checkpoint."""

    def __init__(
        self, contract: Contract, upstream: UpstreamState | None, models: Mapping[str, ServedModel]
    ) -> None:
        """`upstream` None: there is no upstream federation."""
        self._federation = contract.federation
        self._upstream = upstream
        self._models = models
        self._regions = Regions()
        self._updates: RegionUpdates | None = None
        self._contributions: Contributions | None = None
        self._others: dict[str, Any] = {}
        """upstream federation -> state of the contributions to it, for those that are not the
        present one"""
        if upstream is not None:
            settings = upstream.settings
            self._updates = RegionUpdates(contract, upstream.federation, upstream.validator, models)
            followed = [upstream.resolved.models[name] for name in upstream.federation.models]
            self._contributions = Contributions(
                contract, followed, self._updates, settings.publish_readings, settings.publish_s
            )

    def take(self, update: Update, now: float, clients: int | None = None) -> None:
        """An update that its model has taken in. `clients`: those of a region whose counts are
        masked."""
        self._regions.take(update)
        if self._contributions is not None:
            self._contributions.add(update, self._regions, now, clients)

    def contribute(self, model: str) -> None:
        """A request to contribute, read from the log."""
        if self._contributions is not None:
            self._contributions.contribute(model, self._regions)

    def check_unlearning(self) -> None:
        """Raises `MessageRejected` ("client") where there is an upstream federation: it would still
        have what came of a client that is unlearned here."""
        if self._upstream is not None:
            upstream = self._upstream.contract.federation
            raise MessageRejected(
                "client",
                f"a region of {upstream} cannot unlearn: {upstream} has what came of the client",
            )

    def follow_rounds(self, now: float) -> None:
        """Adopt the newest upstream snapshots in the models in rounds, which may open a round
        before the log is read.

        A streaming model follows them by itself, when its timers are looked at.
        """
        if self._upstream is None:
            return
        for name in self._upstream.federation.models:
            model = self._models[name]
            snapshot = self._upstream.newest(name)
            if snapshot is not None and isinstance(model, FollowingRounds):
                model.follow(snapshot, self._upstream.request_in(snapshot, self._federation), now)

    def begin_without_checkpoint(self, log: Log) -> None:
        """Number the answers to rounds after those that are in the topic of contributions; raises
        as the log does.

        Contributions to streaming models are made again from the log of updates, under the numbers
        that they had.
        """
        for name, model in self._models.items():
            if self._updates is not None and isinstance(model, FollowingRounds):
                self._updates.go_on_after(log, name)

    def records(self, now: float) -> Iterator[OutboxRecord]:
        """Records for the outbox: contributions, and requests to make some."""
        if self._updates is None or self._contributions is None:
            return
        for model in self._models.values():
            if isinstance(model, FollowingRounds) and (answer := model.take_answer()) is not None:
                self._updates.add(answer, self._regions)
        yield from self._updates.take_records()
        yield from self._contributions.requests(now)

    @property
    def regions(self) -> list[Region]:
        """Every region below, those below another one after it."""
        return self._regions.all()

    @property
    def waiting(self) -> int | None:
        """Contributions that the upstream federation does not have yet; None where there is none."""
        return None if self._upstream is None else self._upstream.waiting()

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`."""
        contributions = dict(self._others)
        if (
            self._upstream is not None
            and self._updates is not None
            and self._contributions is not None
        ):
            upstream = self._upstream.contract.federation
            contributions[upstream] = {
                "sequences": self._updates.state(),
                **self._contributions.state(),
            }
        return {"regions": self._regions.state(), "contributions": contributions}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        self._regions.restore(state["regions"])
        self._others = dict(state["contributions"])
        if (
            self._upstream is not None
            and self._updates is not None
            and self._contributions is not None
        ):
            saved = self._others.pop(self._upstream.contract.federation, None)
            if saved is not None:
                self._contributions.restore(saved)
                self._updates.restore(saved["sequences"])
