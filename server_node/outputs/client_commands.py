"""`shoal quarantine`, `unlearn` and `clients forget`: requests about one client."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import click

from shoal.cli.options import CLIENT_NAME, config_option, json_option
from shoal.protocol.quarantine import QuarantinedClient
from shoal.server_node.ingest.request_publishing import (
    check_log_reaches_back,
    quarantined_clients,
    request_quarantine,
)
from shoal.server_node.outputs.command_parts import opened_log, print_result

LIST = "list"
"""shown in the place of a client's name: it asks who is in quarantine"""


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
    if client == LIST and not release and not reason:
        with opened_log(file, read_only=True) as (config, log):
            _print_list(quarantined_clients(config, log), config.server.client_names, as_json)
        return
    with opened_log(file) as (config, log):
        action = "release" if release else "quarantine"
        request_quarantine(config, log, client, action, reason)
    _print_requested(client, action, as_json)


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
    with opened_log(file) as (config, log):
        check_log_reaches_back(config.resolved, log, client)
        request_quarantine(config, log, client, "unlearn", reason)
    _print_requested(client, "unlearn", as_json)


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
    with opened_log(file) as (config, log):
        request_quarantine(config, log, client, "forget", "")
    _print_requested(client, "forget", as_json)


def _print_requested(client: str, action: str, as_json: bool) -> None:
    print_result(as_json, {"client": client, "action": action}, f"{action} requested for {client}")


def _print_list(
    clients: list[QuarantinedClient], client_names: Mapping[str, str], as_json: bool
) -> None:
    """`client_names`: those that owners gave."""
    if as_json:
        listed = []
        for entry in clients:
            name = client_names.get(entry.client, "")
            listed.append({**entry._asdict(), "client_name": name})
        click.echo(json.dumps({"quarantined": listed}, ensure_ascii=False))
        return
    for entry in clients:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry.since))
        state = "unlearned" if entry.unlearned else "quarantined"
        client = entry.client
        if client in client_names:
            # With the name that requests take.
            client = f"{client_names[client]} ({client})"
        line = f"{client}  {entry.model}  {state} since {since} UTC  {entry.detail}"
        click.echo(line.rstrip())
    if not clients:
        click.echo("no client is in quarantine")
