"""`shoal wake`, `name`, `confirm`, `mute`, `quarantine` and `unlearn`: publish requests to the
server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from shoal.cli.options import CLIENT_NAME, MOMENT, config_option, json_option
from shoal.config.base import check_client_name
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import Config, load_config
from shoal.errors import LogError, MessageRejected, SettingsError
from shoal.protocol.messages import ClusterAlerts, ClusterName, OperatorRequest, Wake
from shoal.protocol.quarantine import LIST_KEY, QuarantinedClient, QuarantineList
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import SUMS_ALONE, Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.logs import open_federation_log
from shoal.server_node.ingest.requests import quarantine_records, request_signer
from shoal.transports import open_log
from shoal.transports.base import Headers, Log, beginning, latest


@click.command()
@config_option
@click.option(
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    help="A model to wake; repeat for more. [default: all in rounds]",
)
@json_option
def wake(file: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Wake models in rounds: one round to see whether the rows have moved, and more if they have.

    The request goes into the federation's log, where a running server reads it at once and one that
    is started later reads it then. It has no effect on a model whose round is open.
    """
    config = load_config(file)
    contract = config.resolved
    chosen = names or tuple(model.name for model in contract.in_rounds)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        request_wake(config, log, chosen)
    named = ", ".join(chosen) or "no model"
    click.echo(
        json.dumps({"wake_requested": list(chosen)}) if as_json else f"wake requested: {named}"
    )


def request_wake(config: Config, log: Log, names: Sequence[str]) -> None:
    """Publish a wake request for each of these models; the log has the topics.

    Raises `SettingsError` for a model that has no rounds.
    """
    resolved = config.resolved
    contract = resolved.contract
    validator = Validator(resolved)
    in_rounds = [model.name for model in resolved.in_rounds]
    for name in names:
        if name not in in_rounds:
            known = ", ".join(in_rounds) or "none"
            raise SettingsError(
                f"no model {name!r} in rounds in this federation; in rounds: {known}"
            )
    wakes = [
        Wake(contract.federation, contract.digest, name, made_at=time.time()) for name in names
    ]
    for one in wakes:
        validator.check_wake(one)
    publish_requests(config, log, wakes)


@click.command()
@config_option
@click.option(
    "--model", metavar="NAME", help="The model of the cluster. [default: the first one of the file]"
)
@json_option
@click.argument("cluster", type=click.IntRange(min=0))
@click.argument("name")
def name(file: Path, model: str | None, as_json: bool, cluster: int, name: str) -> None:
    """Give the cluster with the identity CLUSTER the name NAME; an empty NAME takes it away.

    The request goes into the federation's log, where a running server reads it at once and one that
    is started later reads it then. A cluster that is not known is reported in the server's log and
    in the rejected topic.
    """
    config = load_config(file)
    contract = config.resolved
    chosen = model or next(iter(contract.models))
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        request_name(config, log, chosen, cluster, name)
    request = {"model": chosen, "cluster": cluster, "name": name}
    click.echo(
        json.dumps(request)
        if as_json
        else f"name requested for cluster {cluster} of {chosen}: {name!r}"
    )


def name_request(contract: ResolvedContract, model: str, cluster: int, name: str) -> ClusterName:
    """The checked request to name a cluster. Raises `SettingsError` for a wrong model or name."""
    try:
        request = ClusterName(
            contract.federation, contract.digest, model, cluster, name.strip(), made_at=time.time()
        )
        Validator(contract).check_request(request)
    except MessageRejected as wrong:
        raise SettingsError(
            f"cluster {cluster} of {model!r} cannot be named {name!r}: {wrong.detail}"
        ) from None
    return request


def publish_requests(
    config: Config,
    log: Log,
    requests: Iterable[OperatorRequest],
    sign: Callable[[OutboxRecord], Headers] | None = None,
) -> None:
    """Publish requests, signed where requests are; the log has the topics. `sign` None: with the
    operator's key.

    Raises `SettingsError` for a key that cannot be read, and as the log does.
    """
    contract = config.contract
    sign = sign or request_signer(config.server)
    for request in requests:
        key = contract.update_key(request.model)
        topic = contract.updates_topic
        record = OutboxRecord(topic, request.encode(), key, request.headers())
        log.publish(topic, record.value, key, record.headers + sign(record))
    log.flush()


def request_name(config: Config, log: Log, model: str, cluster: int, name: str) -> None:
    """Publish a request to name a cluster; the log has the topics. Raises `SettingsError` for a
    wrong model or name."""
    publish_requests(config, log, [name_request(config.resolved, model, cluster, name)])


@click.command()
@config_option
@click.option(
    "--model", metavar="NAME", help="The model of the cluster. [default: the first one of the file]"
)
@click.option("--undo", is_flag=True, help="It raises alerts again.")
@json_option
@click.argument("cluster", type=click.IntRange(min=0))
def confirm(file: Path, model: str | None, undo: bool, as_json: bool, cluster: int) -> None:
    """Confirm the cluster with the identity CLUSTER as normal: it raises no more alerts.

    Its events are still published, and marked as muted; `shoal events forward` and the metrics of
    alerts leave them out. That stays with the identity of the cluster, as a name does.
    """
    _request_alerts(file, model, cluster, "alert" if undo else "confirm", 0.0, as_json)


@click.command()
@config_option
@click.option(
    "--model", metavar="NAME", help="The model of the cluster. [default: the first one of the file]"
)
@click.option("--until", type=MOMENT, help="No alerts until this time (UTC).")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, max=87_600, min_open=True),
    help="No alerts for this many hours.",
)
@click.option("--undo", is_flag=True, help="It raises alerts again.")
@json_option
@click.argument("cluster", type=click.IntRange(min=0))
def mute(
    file: Path,
    model: str | None,
    until: datetime | None,
    hours: float | None,
    undo: bool,
    as_json: bool,
    cluster: int,
) -> None:
    """Raise no alerts for the cluster with the identity CLUSTER for a time; `shoal confirm` for
    good."""
    if [until is not None, hours is not None, undo].count(True) != 1:
        raise click.UsageError("give one of --until TIME, --hours NUMBER and --undo")
    end = (
        time.time() + 3600 * (hours or 0)
        if until is None
        else until.replace(tzinfo=UTC).timestamp()
    )
    if not undo and end <= time.time():
        raise click.UsageError(f"--until {until}: has passed; times are UTC")
    _request_alerts(
        file, model, cluster, "alert" if undo else "mute", 0.0 if undo else end, as_json
    )


def _request_alerts(
    file: Path, model: str | None, cluster: int, action: str, until: float, as_json: bool
) -> None:
    config = load_config(file)
    chosen = model or next(iter(config.resolved.models))
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        publish_requests(
            config, log, [alerts_request(config.resolved, chosen, cluster, action, until)]
        )
    request = {"model": chosen, "cluster": cluster, "action": action, "until": until}
    click.echo(
        json.dumps(request) if as_json else f"{action} requested for cluster {cluster} of {chosen}"
    )


def alerts_request(
    contract: ResolvedContract, model: str, cluster: int, action: str, until: float
) -> ClusterAlerts:
    """The checked request about the alerts of a cluster. Raises `SettingsError` for a wrong model,
    action or time."""
    try:
        request = ClusterAlerts(
            contract.federation, contract.digest, model, cluster, action, until, made_at=time.time()
        )
        Validator(contract).check_request(request)
    except MessageRejected as wrong:
        raise SettingsError(
            f"cluster {cluster} of {model!r}: {action!r} cannot be asked: {wrong.detail}"
        ) from None
    return request


def request_publisher(config: Config) -> Callable[[OperatorRequest], None]:
    """A function that publishes requests from any thread: each through a log of its own, opened for
    that request.

    They are signed with the key that the server has now: it does not know one made while it runs.
    Raises `SettingsError` for a key that cannot be read.
    """
    sign = request_signer(config.server, as_server=True)

    def publish(request: OperatorRequest) -> None:
        with closing(open_log(config.log)) as log:
            publish_requests(config, log, [request], sign)

    return publish


LIST = "list"


@click.command()
@config_option
@click.option("--release", is_flag=True, help="Absorb the client's updates again, from here on.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people; shown in the list.")
@json_option
@click.argument("client", type=CLIENT_NAME)
def quarantine(file: Path, release: bool, reason: str, as_json: bool, client: str) -> None:
    """Absorb nothing more that CLIENT sends, or show who is in quarantine: `shoal quarantine list`.

    What has been absorbed stays (`shoal unlearn` removes it), and no round waits for the client.
    The request goes into the federation's log, where a running server reads it at once and one that
    is started later reads it then; a --rebuild repeats it at the same place. A client that is named
    "list" needs --reason or --release.
    """
    with _open_log(file) as (config, log):
        if client == LIST and not release and not reason:
            _print_list(quarantined_clients(config, log), as_json)
            return
        action = "release" if release else "quarantine"
        request_quarantine(config, log, client, action, reason)
    click.echo(
        json.dumps({"client": client, "action": action})
        if as_json
        else f"{action} requested for {client}"
    )


@click.command()
@config_option
@click.option("--reason", default="", metavar="TEXT", help="Why, for people; shown in the list.")
@json_option
@click.argument("client", type=CLIENT_NAME)
def unlearn(file: Path, reason: str, as_json: bool, client: str) -> None:
    """Rebuild every model without CLIENT, and put it into quarantine.

    Streaming models learn the whole log again without the client's updates, so the log must still
    begin at the first one. Models in rounds forget the client's answers: those of one round combine
    the answers of the others anew, the others start again and ask for answers. The server goes on
    with its work meanwhile and publishes when it is done.

    With masked counts nothing can be unlearned: what a client has sent is in sums for good. Tell
    clients before they join.
    """
    with _open_log(file) as (config, log):
        check_log_reaches_back(config.resolved, log, client)
        request_quarantine(config, log, client, "unlearn", reason)
    click.echo(
        json.dumps({"client": client, "action": "unlearn"})
        if as_json
        else f"unlearn requested for {client}"
    )


@click.group()
def clients() -> None:
    """The clients that a server counts for `[server] clients_max`."""


@clients.command()
@config_option
@json_option
@click.argument("client", type=CLIENT_NAME)
def forget(file: Path, as_json: bool, client: str) -> None:
    """Free the place of CLIENT, which is gone, among the `clients_max` of the server.

    The models keep what it has sent (`shoal unlearn` removes it). It takes a place again with its
    next update.
    """
    with _open_log(file) as (config, log):
        request_quarantine(config, log, client, "forget", "")
    click.echo(
        json.dumps({"client": client, "action": "forget"})
        if as_json
        else f"forget requested for {client}"
    )


def request_quarantine(config: Config, log: Log, client: str, action: str, detail: str) -> None:
    """Publish a request about a client for every model; the log has the topics.

    Raises `SettingsError` for a name or a reason that cannot be, or where counts are masked, and as
    the log does.
    """
    check_client_name(client)
    if config.resolved.mode.masked and not config.resolved.mode.regions:
        raise SettingsError(SUMS_ALONE)
    try:
        records = quarantine_records(config.contract, client, action, detail, time.time())
    except MessageRejected:
        raise SettingsError(
            f"--reason {detail!r}: must be one line of at most 300 printable characters"
        ) from None
    sign = request_signer(config.server)
    for record in records:
        log.publish(record.topic, record.value, record.key, record.headers + sign(record))
    log.flush()


def check_log_reaches_back(resolved: ResolvedContract, log: Log, client: str) -> None:
    """Raises `LogError` if a model cannot be rebuilt because its first updates are no longer in the
    log.

    Raises `SettingsError` where counts are masked.
    """
    if resolved.mode.masked and not resolved.mode.regions:
        raise SettingsError(SUMS_ALONE)
    streaming = [name for name, model in resolved.models.items() if not model.family.in_rounds]
    first = beginning(log, resolved.contract.updates_topic)
    if streaming and any(first.values()):
        raise LogError(
            f"{client} cannot be unlearned: the log no longer begins at its first update, so {', '.join(streaming)} "
            "cannot be rebuilt from it. Quarantine the client (`shoal quarantine`) and let its part fade, restore a "
            "backup of the log that reaches back, or start the federation again under a new name; a greater "
            "[log] updates_retention_s keeps more"
        )


def quarantined_clients(config: Config, log: Log) -> list[QuarantinedClient]:
    """The clients in quarantine, as the server has published them last."""
    record = latest(log, config.contract.snapshots_topic).get(LIST_KEY)
    return [] if record is None else QuarantineList.decode(record.value, record.headers).clients


def _print_list(clients: list[QuarantinedClient], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"quarantined": [one._asdict() for one in clients]}))
        return
    for one in clients:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.since))
        state = "unlearned" if one.unlearned else "quarantined"
        click.echo(f"{one.client}  {one.model}  {state} since {since} UTC  {one.detail}".rstrip())
    if not clients:
        click.echo("no client is in quarantine")


@contextmanager
def _open_log(file: Path) -> Iterator[tuple[Config, Log]]:
    config = load_config(file)
    contract = config.resolved.contract
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, contract, config.log)
        yield config, log
