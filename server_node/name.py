"""`shoal name`: give a cluster a name."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import click

from shoal.config.contract import Contract
from shoal.config.models import check_models
from shoal.config.settings import Config, load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.messages import ClusterName
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.transports import open_log
from shoal.transports.base import Log


@click.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The federation file."
)
@click.option("--model", metavar="NAME", help="The model of the cluster. [default: the first one of the file]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("cluster", type=click.IntRange(min=0))
@click.argument("name")
def name(file: Path, model: str | None, as_json: bool, cluster: int, name: str) -> None:
    """Give the cluster with the identity CLUSTER the name NAME; an empty NAME takes it away.

    The request goes into the federation's log, where a running server reads it at once and one that is started later
    reads it then. A cluster that is not known is reported in the server's log and in the rejected topic.
    """
    config = load_config(file)
    check_models(config.contract)
    chosen = model or config.contract.models[0].name
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        request_name(config.contract, log, chosen, cluster, name)
    request = {"model": chosen, "cluster": cluster, "name": name}
    click.echo(json.dumps(request) if as_json else f"name requested for cluster {cluster} of {chosen}: {name!r}")


def name_request(contract: Contract, model: str, cluster: int, name: str) -> ClusterName:
    """The checked request to name a cluster. Raises `SettingsError` for a wrong model or name."""
    try:
        request = ClusterName(contract.federation, contract.digest, model, cluster, name.strip())
        Validator(contract).check_cluster_name(request)
    except MessageRejected as wrong:
        raise SettingsError(f"cluster {cluster} of {model!r} cannot be named {name!r}: {wrong.detail}") from None
    return request


def publish_name(contract: Contract, log: Log, request: ClusterName) -> None:
    """Publish the request; the log has the topics."""
    key = contract.update_key(request.model)
    log.publish(contract.updates_topic, request.encode(), key, ClusterName.headers())
    log.flush()


def request_name(contract: Contract, log: Log, model: str, cluster: int, name: str) -> None:
    """Publish a request to name a cluster; the log has the topics. Raises `SettingsError` for a wrong model or name."""
    publish_name(contract, log, name_request(contract, model, cluster, name))


def name_publisher(config: Config) -> Callable[[ClusterName], None]:
    """A function that publishes requests from any thread: each through a log of its own, opened for that request."""

    def publish(request: ClusterName) -> None:
        with closing(open_log(config.log)) as log:
            publish_name(config.contract, log, request)

    return publish
