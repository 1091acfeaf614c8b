"""Connection of a server with the federations below and above it; a server without any has an empty
one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

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
        if request is None or not request.selects(self.contract.federation, region):
            return None
        return request

    @property
    def model_forms(self) -> ModelForms:
        """The classes of the models that follow the upstream federation's."""
        streaming: dict[str, StreamingForm] = {}
        rounds: dict[str, type[FollowingRounds]] = {}
        for name in self.federation.models:
            model = self.resolved.models[name]
            if model.family.in_rounds:
                rounds[name] = FollowingRounds
                continue
            aggregation = model.streaming.aggregation
            if aggregation is None or not aggregation.plan_from_upstream:
                continue
            # With masked counts a model follows when a round opens, and not by the clock: all
            # clients of a round must count by one plan.
            if self.resolved.mode.masked:
                streaming[name] = FollowingModel
            else:
                streaming[name] = partial(FollowingModel, newest=partial(self.newest, name))
        return ModelForms(streaming, rounds)


class _Link(NamedTuple):
    """What a region has for its upstream federation."""

    upstream: UpstreamState
    updates: RegionUpdates
    contributions: Contributions

    @property
    def federation(self) -> str:
        """Name of the upstream federation."""
        return self.upstream.contract.federation


class Hierarchy:
    """The regions below a server, and what it contributes upstream.

    Its state is a part of the server's checkpoint.
    """

    def __init__(
        self, contract: Contract, upstream: UpstreamState | None, models: Mapping[str, ServedModel]
    ) -> None:
        """`upstream` None: there is no upstream federation."""
        self._federation = contract.federation
        self._models = models
        self._regions = Regions()
        self._link = None if upstream is None else _link(contract, upstream, models)
        self._others: dict[str, Any] = {}
        """upstream federation -> state of the contributions to it, for those that are not the
        present one"""

    def take(self, update: Update, now: float, clients: int | None = None) -> None:
        """Pass on an update that its model has absorbed.

        `clients`: those of a region whose counts are masked.
        """
        self._regions.take(update)
        if self._link is not None:
            self._link.contributions.add(update, self._regions, now, clients)

    def contribute(self, model: str) -> None:
        """Make a contribution, as a request in the log asks for it."""
        if self._link is not None:
            self._link.contributions.contribute(model, self._regions)

    def check_unlearning(self) -> None:
        """Raises `MessageRejected` ("client") where there is an upstream federation.

        It would still have what came of a client that is unlearned here.
        """
        if self._link is not None:
            upstream = self._link.federation
            raise MessageRejected(
                "client",
                f"a region of {upstream} cannot unlearn: {upstream} has what came of the client",
            )

    def follow_rounds(self, now: float) -> None:
        """Adopt the newest upstream snapshots in the models in rounds, which may open a round
        before the log is read.

        A streaming model follows them by itself, when its timers are looked at.
        """
        if self._link is None:
            return
        upstream = self._link.upstream
        for name in upstream.federation.models:
            model = self._models[name]
            snapshot = upstream.newest(name)
            if snapshot is not None and isinstance(model, FollowingRounds):
                model.follow(snapshot, upstream.request_in(snapshot, self._federation), now)

    def begin_without_checkpoint(self, log: Log) -> None:
        """Number the answers to rounds after those that are in the topic of contributions.

        Contributions to streaming models are made again from the log of updates, under the numbers
        that they had. Raises as the log does.
        """
        if self._link is None:
            return
        for name, model in self._models.items():
            if isinstance(model, FollowingRounds):
                self._link.updates.go_on_after(log, name)

    def records(self, now: float) -> Iterator[OutboxRecord]:
        """Records for the outbox: contributions, and requests to make some."""
        if self._link is None:
            return
        for model in self._models.values():
            answer = model.take_answer() if isinstance(model, FollowingRounds) else None
            if answer is not None:
                self._link.updates.add(answer, self._regions)
        yield from self._link.updates.take_records()
        yield from self._link.contributions.requests(now)

    @property
    def regions(self) -> list[Region]:
        """Every region below, those below another one after it."""
        return self._regions.all()

    @property
    def waiting(self) -> int | None:
        """Contributions that the upstream federation does not have yet; None: there is none."""
        if self._link is None:
            return None
        return self._link.upstream.waiting()

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`."""
        # A region that goes back to an upstream federation must go on with its numbers there: that
        # one would take an update under a number that it has seen for a repeated or forged one.
        contributions = dict(self._others)
        if self._link is not None:
            contributions[self._link.federation] = {
                "updates": self._link.updates.state(),
                **self._link.contributions.state(),
            }
        return {"regions": self._regions.state(), "contributions": contributions}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        self._regions.restore(state["regions"])
        self._others = dict(state["contributions"])
        if self._link is None:
            return
        # Taken out of the others: from now on this state is the link's own.
        saved = self._others.pop(self._link.federation, None)
        if saved is not None:
            self._link.contributions.restore(saved)
            self._link.updates.restore(saved["updates"])


def _link(contract: Contract, upstream: UpstreamState, models: Mapping[str, ServedModel]) -> _Link:
    settings = upstream.settings
    updates = RegionUpdates(contract, upstream.federation, upstream.validator, models)
    followed = [upstream.resolved.models[name] for name in upstream.federation.models]
    contributions = Contributions(
        contract, followed, updates, settings.publish_readings, settings.publish_s
    )
    return _Link(upstream, updates, contributions)
