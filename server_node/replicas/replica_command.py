"""`shoal replica`: serves the streaming models of several regions on Kafka, together with other
replicas."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import click

from shoal.cli.options import config_option_as, verbose_option
from shoal.config.base import NAME_FORMAT, NAME_PATTERN
from shoal.config.extension_settings import parse_address
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogError, MissingExtra, SettingsError
from shoal.protocol.lease import is_lease
from shoal.protocol.published_contract import CONTRACT_KEY, publish_contract, published_contracts
from shoal.protocol.topics import ensure_topics
from shoal.runtime.health import serve
from shoal.runtime.logs import open_federation_log
from shoal.runtime.service import Heartbeat
from shoal.server_node.replicas.metrics import ReplicaMetrics
from shoal.server_node.replicas.region import Region
from shoal.server_node.replicas.region_model import RegionModel
from shoal.server_node.replicas.state_store import CHANGELOG_RECORD_BYTES_MAX
from shoal.server_node.replicas.timers import Timers
from shoal.telemetry.events import log_event, start_logging
from shoal.telemetry.export import exporting
from shoal.telemetry.resource import Telemetry
from shoal.transports import check_installed, open_log
from shoal.transports.base import Log, TopicSettings, beginning, latest


@click.command()
@config_option_as(
    "files",
    "The federation file of a region; once for each region, in every replica the same.",
    required=True,
    multiple=True,
)
@click.option("--name", required=True, help="The name of this replica; each one has another.")
@click.option("--json", "as_json", is_flag=True, help="Log JSON lines.")
@verbose_option
def replica(files: tuple[Path, ...], name: str, as_json: bool, verbose: bool) -> None:
    """Serve the streaming models of several regions on Kafka, together with other replicas.

    Kafka assigns the regions to the replicas that run, and assigns those of one that was killed to
    the others. What a region learns and publishes is the same, bit for bit, as with one server.
    Stop a replica with Ctrl-C or SIGTERM, or kill it, and start more of them whenever you want.
    """
    configs = [load_config(file) for file in files]
    check_regions(files, configs)
    check_name(name)
    try:
        from shoal.server_node.replicas.replica import (  # noqa: PLC0415 - Quix Streams is an extra
            kafka_settings,
            run_replica,
        )
        from shoal.transports.kafka.exactly_once import (  # noqa: PLC0415 - Kafka is an extra
            check_transactions,
        )
    except ModuleNotFoundError as missing:
        if missing.name not in ("quixstreams", "confluent_kafka", "kafka"):
            raise
        raise MissingExtra("A replica", "scale") from None
    check_installed(configs[0].log)
    start_logging(f"replica {name}", as_json, logging.DEBUG if verbose else logging.INFO)
    for config in configs:
        log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    # Most regions have the same terms: each statement is logged once.
    for statement in dict.fromkeys(config.resolved.mode.describe().text() for config in configs):
        log_event("privacy", statement=statement)
    log_settings = configs[0].log
    check_transactions(parse_address(log_settings.address).location, kafka_settings(log_settings))
    regions: dict[str, Region] = {}
    models: list[RegionModel] = []
    with closing(open_log(log_settings)) as log:
        for config in configs:
            region = open_region(config, log)
            regions[config.contract.updates_topic] = region
            models += region.models.values()
    timers = Timers(models, lambda: open_log(log_settings))
    settings = configs[0].replica
    metrics = ReplicaMetrics(regions)
    heartbeat = Heartbeat()

    def observe(assigned: Mapping[str, Mapping[int, int]]) -> None:
        heartbeat.beat()
        metrics.observe(assigned)

    if settings.metrics_port:
        serve(settings.metrics_host, settings.metrics_port, metrics.registry, heartbeat)
        address = f"http://{settings.metrics_host}:{settings.metrics_port}/metrics"
        log_event("metrics_served", address=address)
    exported = []
    for region in regions.values():
        # Two replicas have numbers of one region, each of what it absorbed itself.
        resource = {
            "shoal.federation": region.config.contract.federation,
            "service.instance.id": name,
        }
        exported.append(Telemetry(region.metrics.registry, resource, region.spans))
    with timers.running(), exporting("replica", *exported):
        run_replica(regions, settings, name, timers, observe)
    log_event("stopped", models=len(models))


def check_name(name: str) -> None:
    """Raises `SettingsError` for a name that a replica cannot have."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise SettingsError(f"--name {name[:64]!r}: a name of a replica is {NAME_FORMAT}")


def check_regions(files: Sequence[Path], configs: Sequence[Config]) -> None:
    """Raises `SettingsError` for regions that a replica cannot serve."""
    file_of: dict[str, Path] = {}
    """federation -> its file"""
    for file, config in zip(files, configs, strict=True):
        _check_region(file, config)
        for section in ("log", "replica"):
            if getattr(config, section) != getattr(configs[0], section):
                raise SettingsError(
                    f"{file}: [{section}] is not that of {files[0]}; replicas need one for all "
                    "regions"
                )
        federation = config.contract.federation
        other = file_of.setdefault(federation, file)
        if other != file:
            raise SettingsError(f"{file}: {federation} is the federation of {other} too")
    if len(set(files)) < len(files):
        raise SettingsError("--config names a file twice; once for each region")


def _check_region(file: Path, config: Config) -> None:
    """Raises `SettingsError` for a region that no replica can serve."""
    resolved = config.resolved
    if resolved.mode.masked:
        raise SettingsError(
            f'{file}: mode = "masked" is not built for replicas; run shoal server for this '
            "federation"
        )
    if parse_address(config.log.address).transport.name != "kafka":
        raise SettingsError(
            f"{file}: [log] address is {config.log.address}, and replicas share their regions "
            "through Kafka: set kafka://host:port, or run shoal server for this federation"
        )
    if config.upstream.file is not None:
        raise SettingsError(
            f"{file}: replicas contribute to no upstream federation; run shoal server for this one"
        )
    if resolved.in_rounds:
        model = resolved.in_rounds[0]
        raise SettingsError(
            f"{file}: model {model.name} ({model.declared.algorithm}) is in rounds, and replicas "
            "serve streaming models only; run shoal server for this federation"
        )


def open_region(config: Config, log: Log) -> Region:
    """A region whose topics are there, with its contract published.

    Raises `InvalidState`, `LogError`, `SettingsError`, and as the log does.
    """
    contract = config.contract
    ensure_topics(log, contract, config.log)
    changelog = changelog_topic(config.replica.group, contract.updates_topic)
    log.ensure(
        changelog,
        TopicSettings(
            partitions=config.log.partitions,
            compact=True,
            record_bytes_max=CHANGELOG_RECORD_BYTES_MAX,
        ),
    )
    is_new = not any(end for _, end in log.bounds(changelog).values())
    # Only then: the topic of a region that has state may have lost its first updates since, which
    # nothing needs any more.
    if is_new:
        _check_begins(config, log)
    published = latest(log, contract.snapshots_topic).get(CONTRACT_KEY)
    chain = published_contracts(published, contract.federation)
    if chain and chain[-1].digest != contract.digest:
        raise SettingsError(
            f"the contract of {contract.federation} has changed, which replicas cannot follow: put "
            "the old federation file back, or begin under another [federation] name"
        )
    with closing(open_federation_log(config, as_server=True)) as signed:
        publish_contract(signed, config.resolved)
    return Region(config, log.identity(contract.updates_topic))


def changelog_topic(group: str, updates_topic: str) -> str:
    """The topic in which Quix Streams keeps the state of a region's models."""
    return f"changelog__{group}--{updates_topic}--default"


def _check_begins(config: Config, log: Log) -> None:
    """Raises unless a region can begin that replicas have no state of yet."""
    contract = config.contract
    if any(is_lease(record) for record in latest(log, contract.snapshots_topic).values()):
        raise InvalidState(
            f"{contract.federation} has been served by shoal server, whose checkpoint replicas "
            "cannot read: go on with that one, or begin under another [federation] name"
        )
    if any(beginning(log, contract.updates_topic).values()):
        raise LogError(
            f"{contract.updates_topic} no longer begins at its first update, so its models cannot "
            "be made from it; begin under another [federation] name"
        )
