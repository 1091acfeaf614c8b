"""`shoal quarantine` and `shoal unlearn`: stop absorbing a client, and remove all that came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from server_node.quarantine.requests import quarantine_records, request_signer
from shoal.algorithms.registry import is_in_rounds
from shoal.cli.options import config_option, json_option
from shoal.config.base import check_client_name
from shoal.config.models import check_models
from shoal.config.settings import Config, load_config
from shoal.errors import LogError, MessageRejected, SettingsError
from shoal.protocol.quarantine import LIST_KEY, QuarantinedClient, QuarantineList
from shoal.protocol.topics import ensure_topics
from shoal.runtime.signed_snapshots import open_federation_log
from shoal.transports.base import Log, beginning, latest

LIST = "list"


@click.command()
@config_option
@click.option("--release", is_flag=True, help="Absorb the client's updates again, from here on.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people; shown in the list.")
@json_option
@click.argument("client")
def quarantine(file: Path, release: bool, reason: str, as_json: bool, client: str) -> None:
    """Absorb nothing more that CLIENT sends, or show who is in quarantine: `shoal quarantine list`.

    What has been absorbed stays (`shoal unlearn` removes it), and no round waits for the client. The request goes into
    the federation's log, where a running server reads it at once and one that is started later reads it then; a
    --rebuild repeats it at the same place. A client that is named "list" needs --reason or --release.
    """
    with _open_log(file) as (config, log):
        if client == LIST and not release and not reason:
            _print_list(quarantined_clients(config, log), as_json)
            return
        action = "release" if release else "quarantine"
        request(config, log, client, action, reason)
    click.echo(json.dumps({"client": client, "action": action}) if as_json else f"{action} requested for {client}")


@click.command()
@config_option
@click.option("--reason", default="", metavar="TEXT", help="Why, for people; shown in the list.")
@json_option
@click.argument("client")
def unlearn(file: Path, reason: str, as_json: bool, client: str) -> None:
    """Rebuild every model without CLIENT, and put it into quarantine.

    Streaming models learn the whole log again without the client's updates, so the log must still begin at the first
    one. Models in rounds forget the client's answers: those of one round combine the answers of the others anew, the
    others start again and ask for answers. The server goes on with its work meanwhile and publishes when it is done.
    """
    with _open_log(file) as (config, log):
        check_log_reaches_back(config, log, client)
        request(config, log, client, "unlearn", reason)
    click.echo(json.dumps({"client": client, "action": "unlearn"}) if as_json else f"unlearn requested for {client}")


def request(config: Config, log: Log, client: str, action: str, detail: str) -> None:
    """Publish a request about a client for every model; the log has the topics.

    Raises `SettingsError` for a name or a reason that cannot be, and as the log does.
    """
    check_client_name(client)
    try:
        records = quarantine_records(config.contract, client, action, detail, time.time())
    except MessageRejected:
        raise SettingsError(f"--reason {detail!r}: must be one line of at most 300 printable characters") from None
    sign = request_signer(config.server.client_keys)
    for record in records:
        log.publish(record.topic, record.value, record.key, record.headers + sign(record))
    log.flush()


def check_log_reaches_back(config: Config, log: Log, client: str) -> None:
    """Raises `LogError` if a model cannot be rebuilt because its first updates are no longer in the log."""
    streaming = [model.name for model in config.contract.models if not is_in_rounds(model.algorithm)]
    first = beginning(log, config.contract.updates_topic)
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
    check_models(config.contract)
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        yield config, log
