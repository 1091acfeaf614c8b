"""What connects a server with the federations below and above it; a server without any has an empty one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from server_node.hierarchy.contributions import Contributions
from server_node.hierarchy.following import FollowingModel
from server_node.hierarchy.regions import Regions
from server_node.models.base import ServedModel
from server_node.models.streaming import StreamingModel
from shoal.algorithms.registry import streaming_algorithm
from shoal.config.contract import Contract
from shoal.config.upstream import Upstream
from shoal.config.upstream_settings import UpstreamSettings
from shoal.errors import MessageRejected
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.regions import Region
from shoal.runtime.checkpoint import OutboxRecord


class Above:
    """The upstream federation of a server: its contract, when to contribute, and what the bridge to it knows."""

    def __init__(
        self,
        upstream: Upstream,
        settings: UpstreamSettings,
        newest: Callable[[str], Snapshot | None] = lambda _: None,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        """`newest` gives the newest upstream snapshot of a model, None before the first; `waiting` the number of
        contributions that are not copied yet."""
        self.upstream, self.settings = upstream, settings
        self.newest, self.waiting = newest, waiting

    @property
    def model_forms(self) -> dict[str, type[StreamingModel]]:
        """name -> class of the models that follow the upstream federation's."""
        return {name: FollowingModel for name in self.upstream.models if _needs_plan(self.upstream, name)}


class Hierarchy:
    """The regions below a server, and what it contributes upstream. Its state is a part of the server's checkpoint."""

    def __init__(self, contract: Contract, above: Above | None, models: Mapping[str, ServedModel]) -> None:
        """`above` None: there is no upstream federation."""
        self._above, self._models = above, models
        self._regions = Regions()
        self._contributions: Contributions | None = None
        self._others: dict[str, Any] = {}
        """upstream federation -> state of the contributions to it, for those that are not the present one"""
        if above is not None:
            settings = above.settings
            self._contributions = Contributions(
                contract, above.upstream, models, settings.publish_readings, settings.publish_s
            )

    def take(self, update: Update, now: float) -> None:
        """An update that its model has taken in."""
        self._regions.take(update)
        if self._contributions is not None:
            self._contributions.add(update, self._regions, now)

    def contribute(self, model: str) -> None:
        """A request to contribute, read from the log."""
        if self._contributions is not None:
            self._contributions.contribute(model, self._regions)

    def check_request(self, request: QuarantineRequest) -> None:
        """Raises `MessageRejected` ("client") for a request to unlearn a client of a region: its upstream federation
        would still have what the client has sent."""
        if self._above is not None and request.action == "unlearn":
            world = self._above.upstream.config.contract.federation
            raise MessageRejected("client", f"a region of {world} cannot unlearn: {world} has what came of the client")

    def follow(self) -> None:
        """Adopt the newest upstream snapshots, in the models that follow them."""
        if self._above is None:
            return
        for name in self._above.upstream.models:
            model, snapshot = self._models[name], self._above.newest(name)
            if snapshot is not None and isinstance(model, FollowingModel):
                model.follow(snapshot)

    def records(self, now: float) -> Iterator[OutboxRecord]:
        """For the outbox: contributions, and requests to make some."""
        if self._contributions is not None:
            yield from self._contributions.take_records()
            yield from self._contributions.requests(now)

    @property
    def regions(self) -> list[Region]:
        """Every region below, those below another one after it."""
        return self._regions.all()

    @property
    def waiting(self) -> int | None:
        """Contributions that the upstream federation does not have yet; None where there is none."""
        return None if self._above is None else self._above.waiting()

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`."""
        contributions = dict(self._others)
        if self._above is not None and self._contributions is not None:
            contributions[self._above.upstream.config.contract.federation] = self._contributions.state()
        return {"regions": self._regions.state(), "contributions": contributions}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        self._regions.restore(state["regions"])
        self._others = dict(state["contributions"])
        if self._above is not None and self._contributions is not None:
            saved = self._others.pop(self._above.upstream.config.contract.federation, None)
            if saved is not None:
                self._contributions.restore(saved)


def _needs_plan(upstream: Upstream, name: str) -> bool:
    model = upstream.config.contract.model(name)
    aggregation = None if model is None else streaming_algorithm(model.algorithm).aggregation
    return aggregation is not None and aggregation.plan_from_upstream
