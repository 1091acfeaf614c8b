"""`shoal keys`: the secrets with which clients sign their updates."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import click

from shoal.cli.options import config_option, json_option
from shoal.config.base import check_client_name
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.protocol.signatures import KEY_BYTES, client_file, read_keys, server_file, write_keys


@click.group()
def keys() -> None:
    """The secrets with which clients sign their updates."""


@keys.command()
@config_option
@click.option("--name", required=True, metavar="NAME", help="The client that the key is for.")
@click.option("--rotate", is_flag=True, help="Add a new key above the existing ones. Without it they are an error.")
@json_option
def new(file: Path, name: str, rotate: bool, as_json: bool) -> None:
    """Make a client's signing key, and write it wherever the federation file names a place for it.

    The client's file is [client] signing_key_file, the server's is NAME.key in the folder [server] client_keys. Both
    have mode 0600, and keys are never printed. If the client or the server runs on another machine, copy the file there
    in a secure way. The server accepts every key in a file; a client signs with the first.
    """
    config = load_config(file)
    client = check_client_name(name)
    places = _places(config, client)
    existing = {place: read_keys(place) for place in places.values() if place.exists()}
    if existing and not rotate:
        raise SettingsError(
            f"{' and '.join(map(str, existing))}: exists already; to change the key of {client} give --rotate"
        )
    key = secrets.token_bytes(KEY_BYTES)
    # The server's file first: the server must know a key before anything is signed with it.
    for place in dict.fromkeys(reversed(places.values())):
        write_keys(place, [key, *existing.get(place, [])])
    if as_json:
        click.echo(json.dumps({owner: str(place) for owner, place in places.items()}))
        return
    for owner, place in places.items():
        click.echo(f"{owner}: {place}")


def _places(config: Config, client: str) -> dict[str, Path]:
    """ "client", "server" or both -> its key file. Raises `SettingsError` when the federation file names neither."""
    places = {}
    if config.client.signing_key_file is not None:
        places["client"] = client_file(config.client.signing_key_file, client)
    if config.server.client_keys is not None:
        places["server"] = server_file(config.server.client_keys, client)
    if not places:
        raise SettingsError(
            'the federation file names no place for keys: set signing_key_file = "keys/{client}.key" in [client] '
            'and client_keys = "keys" in [server]'
        )
    return places
