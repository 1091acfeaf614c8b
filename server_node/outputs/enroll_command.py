"""`shoal enroll`: a folder with all that a new site needs, made where the server's keys are; and
its revocation."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from shoal.cli.options import CLIENT_NAME, config_option, json_option
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.protocol.signatures import KEY_BYTES, read_keys, server_file, write_keys
from shoal.protocol.topics import ensure_topics
from shoal.server_node.ingest.request_publishing import request_quarantine
from shoal.server_node.outputs.command_parts import print_result
from shoal.transports import open_log

CONTRACT: Final = ("federation", "features", "privacy", "models")
"""tables of a federation file that are the contract; a site gets them as they are, and [log]"""
HEADER = re.compile(r"^\[{1,2}\s*([A-Za-z_]+)[^\]]*\]{1,2}")
FILE_SETTING = re.compile(r'^(\w+_file|server_keys)\s*=\s*"([^"]+)"')
OF_THE_SITE: Final = ("secret_file", "client_certificate_file", "client_key_file")
"""settings of [log] that name a file with a secret, which each site has of its own"""


@click.command()
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The folder to make for the site.  [default: site-NAME]",
)
@click.option(
    "--revoke",
    is_flag=True,
    help="Take the key of the site away, and put its client into quarantine.",
)
@json_option
@click.argument("name", type=CLIENT_NAME)
def enroll(file: Path, out: Path | None, revoke: bool, as_json: bool, name: str) -> None:
    """Enrol the site NAME: make its key, and a folder with its federation file, its key and what to
    do there.

    Run it where the server's keys are ([server] client_keys), and bring the folder to the site in a
    secure way: it has the key with which the client signs its updates. The server accepts them at
    once. With --revoke it accepts nothing more of the client; what has been learnt of it stays, and
    `shoal unlearn` removes it.
    """
    config = load_config(file)
    if config.server.client_keys is None:
        raise SettingsError(
            f"{file}: without signatures every writer to the log is a client; set "
            'client_keys = "keys" in [server] and signing_key_file = "keys/{client}.key" in '
            "[client], make a key for each client that there is with `shoal keys new`, and start "
            "clients and server again"
        )
    key = server_file(config.server.client_keys, name)
    if revoke:
        _revoke(config, name, key)
        print_result(as_json, {"client": name, "revoked": True}, f"revoked: {name}")
        return
    folder = out if out is not None else Path(f"site-{name}")
    if key.exists():
        raise SettingsError(f"{key}: {name} has been enrolled already; --revoke takes that back")
    if folder.exists():
        raise SettingsError(
            f"{folder}: exists already; move it away, or name another folder with --out"
        )
    missing = _make(config, file, name, folder)
    # The server's copy last: a site that could not be made is not enrolled.
    try:
        write_keys(key, read_keys(folder / f"{name}.key"))
    except SettingsError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if as_json:
        click.echo(json.dumps({"client": name, "folder": str(folder), "missing": missing}))
        return
    click.echo(f"{folder}: bring it to the site, where README.txt says what to do")
    for setting, beside in missing.items():
        click.echo(
            f"not in it: [log] {setting}, which the site has of its own; put it beside the others "
            f"as {beside}"
        )


def _revoke(config: Config, name: str, key: Path) -> None:
    """Take the key of a client away, and quarantine it.

    Raises `SettingsError` for a client without a key, and as the log does.
    """
    if not key.exists():
        raise SettingsError(f"{key}: there is no such key; {name} is not enrolled")
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        request_quarantine(config, log, name, "quarantine", "its enrolment was revoked")
    # Last: where the log is away, the same command is given again.
    key.unlink()


def _make(config: Config, file: Path, name: str, folder: Path) -> dict[str, str]:
    """Make the folder of a site.

    Returns the settings of [log] whose files the site has to add, each with the name of its file
    there. Raises `SettingsError`, and leaves no folder then.
    """
    try:
        # Readable by this user alone from the start: the key of the client goes into it.
        folder.mkdir(parents=True, mode=0o700)
        write_keys(folder / f"{name}.key", [secrets.token_bytes(KEY_BYTES)])
        text, missing = _site_file(file, name, folder)
        (folder / "federation.toml").write_text(text, encoding="utf-8")
        (folder / "README.txt").write_text(_readme(config, name, missing), encoding="utf-8")
        # A file that names what is not there yet cannot be loaded.
        if not missing:
            _check_copied(folder / "federation.toml", config, file)
    except SettingsError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SettingsError(
            f"{folder} cannot be made: {error.strerror}; name another folder with --out"
        ) from None
    return missing


def _check_copied(copy: Path, config: Config, file: Path) -> None:
    """Raises `SettingsError` unless the site's file has the contract of the federation.

    TOML may have a table without a header, `features = [{...}]`, which a copy line by line misses.
    """
    if load_config(copy).contract.digest != config.contract.digest:
        raise SettingsError(
            f"{file}: its contract cannot be copied table by table; write each table under a header"
        )


def _site_file(file: Path, name: str, folder: Path) -> tuple[str, dict[str, str]]:
    """The text of the site's federation file: the contract as it stands, and [log] with files in
    the same folder; and what is missing, as in `_make`.

    Line by line, so that the comments of the file come along.
    """
    kept: list[str] = []
    missing: dict[str, str] = {}
    table = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        header = HEADER.match(line)
        if header is not None:
            table = header[1]
        if table in CONTRACT:
            kept.append(line)
        elif table == "log":
            kept.append(_log_line(line, file.parent, folder, missing))
    return "\n".join([*kept, "", "[client]", f'signing_key_file = "{name}.key"', ""]), missing


def _log_line(line: str, beside: Path, folder: Path, missing: dict[str, str]) -> str:
    """A line of [log]. A file that is no secret comes along; one that is the site has to add."""
    match = FILE_SETTING.match(line)
    if match is None:
        return line
    setting, name = match.groups()
    source = (beside / name).resolve()
    if setting in OF_THE_SITE:
        missing[setting] = source.name
    else:
        shutil.copyfile(source, folder / source.name)
    return f'{setting} = "{source.name}"'


def _readme(config: Config, name: str, missing: dict[str, str]) -> str:
    """Instructions for the site."""
    lines = [
        f"This folder enrols the client {name} in the federation {config.contract.federation}.",
        f"Contract: {config.contract.digest} (`shoal check federation.toml` prints what it means).",
        "",
        *(
            f"1. Put the site's own {beside} ([log] {setting}) into this folder."
            for setting, beside in missing.items()
        ),
        f"Keep {name}.key secret: who has it can send updates in this client's name.",
        "",
        f"    shoal client --config federation.toml --name {name}",
        f"    shoal producer --config federation.toml --only {name} ...        # files",
        f"    shoal producer --config federation.toml --mqtt --name {name}     "
        "# sensors, with a section [mqtt]",
        "",
        "What it has learnt, its ledger of privacy and its noise key are in data/clients. "
        "Never delete or copy them.",
    ]
    return "\n".join(lines) + "\n"
