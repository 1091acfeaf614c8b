"""`shoal keys`: the secrets with which clients and servers sign what they publish, and the token of the page."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import click

from shoal.cli.options import CLIENT_NAME, config_option, json_option
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.files import write_secret
from shoal.protocol.signatures import KEY_BYTES, client_file, read_keys, server_file, write_keys

TOKEN_BYTES = 32


@click.group()
def keys() -> None:
    """The secrets with which clients and servers sign what they publish, and the token of the page."""


@keys.command()
@config_option
@click.option("--name", required=True, type=CLIENT_NAME, metavar="NAME", help="The client that the key is for.")
@click.option("--rotate", is_flag=True, help="Add a new key above the existing ones. Without it they are an error.")
@json_option
def new(file: Path, name: str, rotate: bool, as_json: bool) -> None:
    """Make a client's signing key, and write it wherever the federation file names a place for it.

    The client's file is [client] signing_key_file, the server's is NAME.key in the folder [server] client_keys. Both
    have mode 0600, and keys are never printed. If the client or the server runs on another machine, copy the file there
    in a secure way. The server accepts every key in a file; a client signs with the first.
    """
    config = load_config(file)
    places = _places(config, name)
    existing = {place: read_keys(place) for place in places.values() if place.exists()}
    if existing and not rotate:
        raise SettingsError(
            f"{' and '.join(map(str, existing))}: exists already; to change the key of {name} give --rotate"
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


@keys.command()
@config_option
@click.option("--rotate", is_flag=True, help="Add a new key above the existing ones. Without it they are an error.")
@json_option
def server(file: Path, rotate: bool, as_json: bool) -> None:
    """Make the key with which servers sign snapshots and leases, in the file [log] server_key_file.

    Copy the file in a secure way to every machine on which a server or a client of this federation runs. A server signs
    with the first key of the file, and every key in it is accepted: with --rotate copy the file to all clients before
    the server is started again.
    """
    place = load_config(file).log.server_key_file
    if place is None:
        raise SettingsError('the federation file names no place for it: set server_key_file = "server.key" in [log]')
    existing = read_keys(place) if place.exists() else []
    if existing and not rotate:
        raise SettingsError(f"{place}: exists already; to change the key give --rotate")
    write_keys(place, [secrets.token_bytes(KEY_BYTES), *existing])
    click.echo(json.dumps({"server": str(place)}) if as_json else f"server: {place}")


@keys.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--readable", is_flag=True, help="Let other users read them, as containers with users of their own must.")
@json_option
def token(files: tuple[Path, ...], readable: bool, as_json: bool) -> None:
    """Make a random token in each FILE that does not exist, for [server] token_file or as another password.

    A file that exists is kept. Tokens are never printed. A file has mode 0600, or with --readable 0644.
    """
    made = {str(file): _make_token(file, readable) for file in files}
    if as_json:
        click.echo(json.dumps({"made": [name for name, new in made.items() if new]}))
        return
    for name, new in made.items():
        click.echo(f"{name}: {'made' if new else 'exists already and was kept'}")


def _make_token(file: Path, readable: bool) -> bool:
    """Make a token unless the file exists; returns whether it was made. Raises `SettingsError`."""
    if file.exists():
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_secret(file, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode("ascii"))
        if readable:
            file.chmod(0o644)
    except OSError as error:
        raise SettingsError(f"{file} cannot be made: {error.strerror}; name another folder") from None
    return True


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
