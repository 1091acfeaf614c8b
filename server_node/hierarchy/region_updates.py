"""The updates that a region publishes upstream, numbered, as records of its topic of contributions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from server_node.hierarchy.regions import Regions
from server_node.models.base import ServedModel
from shoal.algorithms.streaming import Arrays
from shoal.config.contract import Contract
from shoal.config.privacy import model_statement
from shoal.config.upstream import Upstream
from shoal.errors import MessageRejected
from shoal.protocol.chunking import encode_update
from shoal.protocol.regions import Region, RegionUpdate, decode_update, update_arrays
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, latest


class RegionContribution(NamedTuple):
    """What a region contributes to one model."""

    model: str
    arrays: Arrays
    readings: int
    made_at: float
    """when the newest update in it was made, seconds since 1970"""
    newest_reading_at: float | None
    round: int | None = None
    """the round that it answers, of a model in rounds"""


class RegionUpdates:
    """Makes a region's updates for all models of both federations, and numbers them."""

    def __init__(self, contract: Contract, upstream: Upstream, models: Mapping[str, ServedModel]) -> None:
        """`contract` and `models` are the region's."""
        self._contract, self._upstream, self._upstream_contract = contract, upstream, upstream.config.contract
        self._record_bytes_max = upstream.config.log.update_bytes_max
        self._models = models
        self._validator = Validator(self._upstream_contract)
        self._sequences = dict.fromkeys(upstream.models, 0)
        """model -> sequence number of the newest update"""
        self._records: list[OutboxRecord] = []

    def add(self, contribution: RegionContribution, regions: Regions) -> None:
        """Make the next update of a model. One that the upstream server would reject is logged instead."""
        update = self._update(contribution, regions)
        try:
            self._validator.check_update(update)
            chunks = encode_update(update, update_arrays(update), self._record_bytes_max)
        except MessageRejected as refused:
            # What the upstream server would reject must not end this one.
            log_event(
                "contribution_rejected", logging.ERROR, model=update.model, reason=refused.reason, detail=refused.detail
            )
            return
        self._sequences[update.model] = update.sequence
        topic, key = self._contract.contributions_topic, self._upstream_contract.update_key(update.model)
        self._records += [OutboxRecord(topic, chunk.value, key, RegionUpdate.headers()) for chunk in chunks]

    def take_records(self) -> list[OutboxRecord]:
        """The updates made since the last call, for the outbox."""
        taken, self._records = self._records, []
        return taken

    def go_on_after(self, log: Log, model: str) -> None:
        """Without a checkpoint: number the next update of a model after the newest one in the topic of contributions.

        Raises as the log does, and `MessageRejected` for a record that no region has published.
        """
        record = latest(log, self._contract.contributions_topic).get(self._upstream_contract.update_key(model))
        if record is not None:
            self._sequences[model] = decode_update(record.value, record.headers).sequence

    def state(self) -> dict[str, int]:
        """Plain values for `restore`."""
        return dict(self._sequences)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved ones; a model that has come since begins at its first update."""
        self._sequences |= {name: int(state[name]) for name in self._sequences if name in state}

    def _update(self, made: RegionContribution, regions: Regions) -> RegionUpdate:
        own, contract, region = self._upstream.model(made.model), self._upstream_contract, self._contract.federation
        clients = sum(client not in regions for client in self._models[made.model].clients.names())
        return RegionUpdate(
            federation=contract.federation,
            contract=contract.digest,
            model=made.model,
            algorithm=own.algorithm,
            client=region,
            sequence=self._sequences[made.model] + 1,
            readings=made.readings,
            privacy=model_statement(contract, own),
            arrays=made.arrays,
            made_at=made.made_at,
            newest_reading_at=made.newest_reading_at,
            round=made.round,
            regions=[list(one) for one in (Region(region, clients), *regions.below(region))],
        )
