"""The metrics of a replica: those that a server has, of each region that is its own at present."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Metric

from shoal.server_node.replicas.region import Region
from shoal.telemetry.metrics import process_registry
from shoal.transports.base import partition_of

OF_PROCESS: Final = ("process_", "shoal_build")
"""how the names of metrics begin that a process has once, whatever number of regions it serves"""


class ReplicaMetrics:
    """The metrics of one replica, each series with its region's name as the label `federation`.

    A region, or a model of it, that another replica has now is not shown here as it was last.
    """

    def __init__(self, regions: Mapping[str, Region]) -> None:
        """`regions` by their topic of updates."""
        self._regions = regions
        self._assigned: dict[str, frozenset[int]] = {}
        """topic of updates -> the partitions that are this replica's"""
        self.registry: CollectorRegistry = process_registry("replica")
        self.registry.register(self)

    def observe(self, assigned: Mapping[str, Mapping[int, int]]) -> None:
        """What is this replica's at present: topic of updates -> partition -> records that it has
        not read yet."""
        for topic, region in self._regions.items():
            lags = assigned.get(topic)
            region.observe_lag(topic, sum(lags.values()) if lags else None)
        self._assigned = {topic: frozenset(lags) for topic, lags in assigned.items()}

    def describe(self) -> list[Metric]:
        """Nothing: the names are those of the regions."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of the regions that are assigned, one family of each name."""
        families: dict[str, Metric] = {}
        for topic, partitions in self._assigned.items():
            region = self._regions.get(topic)
            if region is not None:
                _add(families, region, partitions)
        yield from families.values()


def _add(families: dict[str, Metric], region: Region, partitions: Collection[int]) -> None:
    """Add the metrics of a region to those of all, of its models in these partitions alone."""
    config = region.config
    others = set()
    for key, model in region.models.items():
        if partition_of(key, config.log.partitions) not in partitions:
            others.add(model.model.name)
    for family in region.metrics.registry.collect():
        if family.name.startswith(OF_PROCESS):
            continue
        whole = families.get(family.name)
        if whole is None:
            whole = Metric(family.name, family.documentation, family.type, family.unit)
            families[family.name] = whole
        for sample in family.samples:
            if sample.labels.get("model") in others:
                continue
            labels = {"federation": config.contract.federation, **sample.labels}
            whole.samples.append(sample._replace(labels=labels))
