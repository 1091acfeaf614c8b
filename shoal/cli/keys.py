"""`shoal keys`: the secrets with which clients sign their updates."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import click

from shoal.config.base import check_client_name
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.protocol.signatures import KEY_BYTES, client_file, read_keys, server_file, write_keys


@click.group()
def keys() -> None:
    """The secrets with which clients sign their updates."""


@keys.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The federation file."
)
@click.option("--name", required=True, metavar="NAME", help="The client it is for.")
@click.option("--again", is_flag=True, help="Put a new key above the one that is there, in place of refusing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def new(file: Path, name: str, again: bool, as_json: bool) -> None:
    """Make a client's signing key: for the client and for the server, as far as the federation file names both places.

    The client's is [client] signing_key_file, the server's is NAME.key in the folder [server] client_keys. Each is
    mode 0600 and never printed. If the client or the server runs elsewhere, bring it the file over a way that you
    trust. The server checks with every key of a file, a client signs with the first.
    """
    config = load_config(file)
    client = check_client_name(name)
    places = _places(config, client)
    key = secrets.token_bytes(KEY_BYTES)
    there = {place: read_keys(place) for place in places.values() if place.exists()}
    if there and not again:
        raise SettingsError(
            f"{' and '.join(map(str, there))}: there already; to change the key of {client} give --again"
        )
    # The server's first: it must know a key before anything is signed with it.
    for place in dict.fromkeys(reversed(places.values())):
        write_keys(place, [key, *there.get(place, [])])
    if as_json:
        click.echo(json.dumps({who: str(place) for who, place in places.items()}))
        return
    for who, place in places.items():
        click.echo(f"{who}: {place}")


def _places(config: Config, client: str) -> dict[str, Path]:
    """Who needs the key where: the client, the server, or both. Raises `SettingsError` when the file names neither."""
    places = {}
    if config.client.signing_key_file is not None:
        places["client"] = client_file(config.client.signing_key_file, client)
    if config.server.client_keys is not None:
        places["server"] = server_file(config.server.client_keys, client)
    if not places:
        raise SettingsError(
            'the federation file names no place for keys: set signing_key_file = "keys/{client}.key" under [client] '
            'and client_keys = "keys" under [server]'
        )
    return places
