"""`shoal keys`: the keys with which clients, servers and operators sign what they publish; the
token of the page."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Final

import click

from shoal.cli.options import CLIENT_NAME, config_option, json_option
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.files import write_secret
from shoal.protocol.ed25519 import (
    PrivateKey,
    read_public_keys,
    write_private_key,
    write_public_keys,
)
from shoal.protocol.signatures import KEY_BYTES, client_file, read_keys, server_file, write_keys

# 256 bits cannot be guessed, so no limit of attempts is needed.
TOKEN_BYTES = 32


@click.group()
def keys() -> None:
    """The keys with which clients, servers and operators sign what they publish, and the token of
    the page."""


@keys.command()
@config_option
@click.option(
    "--name",
    required=True,
    type=CLIENT_NAME,
    metavar="NAME",
    help="The client that the key is for.",
)
@click.option(
    "--rotate",
    is_flag=True,
    help="Add a new key above the existing ones. Without it they are an error.",
)
@json_option
def new(file: Path, name: str, rotate: bool, as_json: bool) -> None:
    """Make a client's signing key, and write it wherever the federation file names a place for it.

    The client's file is [client] signing_key_file, the server's is NAME.key in the folder [server]
    client_keys. Both have mode 0600, and keys are never printed. If the client or the server runs
    on another machine, copy the file there in a secure way. The server accepts every key in a file;
    a client signs with the first.
    """
    config = load_config(file)
    places = _places(config, name)
    existing = {place: read_keys(place) for place in places.values() if place.exists()}
    if existing and not rotate:
        raise SettingsError(
            f"{' and '.join(map(str, existing))}: exists already; to change the key of {name} "
            "give --rotate"
        )
    key = secrets.token_bytes(KEY_BYTES)
    # The server's file first: the server must know a key before anything is signed with it.
    # Each place once: client and server of one machine may name the same file.
    for place in dict.fromkeys(reversed(places.values())):
        write_keys(place, [key, *existing.get(place, [])])
    if as_json:
        click.echo(json.dumps({owner: str(place) for owner, place in places.items()}))
        return
    for owner, place in places.items():
        click.echo(f"{owner}: {place}")


_ROTATE: Final = click.option(
    "--rotate",
    is_flag=True,
    help="Make a new key in place of the one that exists, and put its public key before the "
    "earlier ones.",
)


@keys.command()
@config_option
@_ROTATE
@json_option
def server(file: Path, rotate: bool, as_json: bool) -> None:
    """Make the key pair of the server: [server] signing_key_file, and its public key in [log]
    server_keys.

    The server signs snapshots and leases with the private key, which stays on its machine. Copy the
    file of public keys to every machine on which a client of this federation runs. Every key in it
    is accepted: with --rotate copy it to all clients before the server is started again.
    """
    config = load_config(file)
    _make_pair(
        ("server", "signing_key_file", config.server.signing_key_file),
        ("log", "server_keys", config.log.server_keys),
        rotate,
        as_json,
    )


@keys.command()
@config_option
@_ROTATE
@json_option
def operator(file: Path, rotate: bool, as_json: bool) -> None:
    """Make the key pair of an operator: [server] operator_key_file, and its public key in [server]
    operator_keys.

    Commands such as `shoal name` and `shoal quarantine` sign their requests with the private key.
    Copy the file of public keys to the machine of the server, and start the server again; each
    operator may have a key, a line each.
    """
    config = load_config(file)
    _make_pair(
        ("server", "operator_key_file", config.server.operator_key_file),
        ("server", "operator_keys", config.server.operator_keys),
        rotate,
        as_json,
    )


_Setting = tuple[str, str, Path | None]
"""section, name, and the file that it names"""


def _make_pair(private: _Setting, public: _Setting, rotate: bool, as_json: bool) -> None:
    """Make a private key and put its public key before those that are there. Raises
    `SettingsError`."""
    for section, name, place in (private, public):
        if place is None:
            raise SettingsError(
                f'the federation file names no place for it: set {name} = "PATH" in [{section}]'
            )
    private_file = private[2]
    public_file = public[2]
    assert private_file is not None
    assert public_file is not None
    if private_file.exists() and not rotate:
        raise SettingsError(f"{private_file}: exists already; to change the key give --rotate")
    # Those before stay valid, as records that were signed with them are still read.
    known = read_public_keys(public_file) if public_file.exists() else []
    seed = secrets.token_bytes(KEY_BYTES)
    key = PrivateKey(seed)
    try:
        # The public key first: who reads must know a key before anything is signed with it.
        write_public_keys(public_file, [key.public, *known])
        write_private_key(private_file, seed)
    except OSError as error:
        raise SettingsError(
            f"the keys cannot be written: {error.strerror}; name a folder this user may write"
        ) from None
    if as_json:
        click.echo(json.dumps({"private": str(private_file), "public": str(public_file)}))
        return
    click.echo(f"private: {private_file}")
    click.echo(f"public: {public_file}")


@keys.command()
@click.argument("key", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of its state, as `shoal helper` takes it. [default: that of FILE]",
)
@json_option
def helper(key: Path, folder: Path | None, as_json: bool) -> None:
    """Make the secret key of a helper in FILE, and print what the contract must have of it; of a
    FILE that exists only print that.

    The secret stays with the helper: a party that has those of all helpers can remove every mask.
    The public key goes into [[privacy.helpers]] of the federation file, which all members compare.
    With the key its state is made, helper.db in a folder: what it has unmasked. A key whose state
    is lost is of no use any more. Making one needs the extra `masked`.
    """
    from shoal.privacy.masks import helper_public  # noqa: PLC0415 - needs an extra
    from shoal.runtime.helper_state import (  # noqa: PLC0415 - for helpers alone
        check_no_helper_state,
        make_helper_state,
    )

    made = not key.exists()
    if made:
        check_no_helper_state(folder or key.parent)
        write_keys(key, [secrets.token_bytes(KEY_BYTES)])
    own = helper_public(read_keys(key)[0])
    if made:
        make_helper_state(folder or key.parent, own)
    public = own.hex()
    if as_json:
        click.echo(json.dumps({"made": made, "key": public}))
    else:
        click.echo(f'[[privacy.helpers]]\nname = "{key.stem}"\nkey = "{public}"')


@keys.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option(
    "--readable",
    is_flag=True,
    help="Let other users read them, as containers with users of their own must.",
)
@json_option
def token(files: tuple[Path, ...], readable: bool, as_json: bool) -> None:
    """Make a random token in each FILE that does not exist, for [server] token_file or as another
    password.

    A file that exists is kept. Tokens are never printed. A file has mode 0600, or with --readable
    0644.
    """
    made = {str(file): _make_token(file, readable) for file in files}
    if as_json:
        click.echo(json.dumps({"made": [name for name, new in made.items() if new]}))
        return
    for name, new in made.items():
        state = "exists already and was kept"
        if new:
            state = "made"
        click.echo(f"{name}: {state}")


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
        raise SettingsError(
            f"{file} cannot be made: {error.strerror}; name another folder"
        ) from None
    return True


def _places(config: Config, client: str) -> dict[str, Path]:
    """ "client", "server" or both -> its key file. Raises `SettingsError` when the federation file
    names neither."""
    places = {}
    if config.client.signing_key_file is not None:
        places["client"] = client_file(config.client.signing_key_file, client)
    if config.server.client_keys is not None:
        places["server"] = server_file(config.server.client_keys, client)
    if not places:
        raise SettingsError(
            "the federation file names no place for keys: set signing_key_file = "
            '"keys/{client}.key" in [client] and client_keys = "keys" in [server]'
        )
    return places
