"""`shoal mcp`: answers an assistant's questions about a running server.

A program with a language model (an assistant in an editor or on a desktop) starts this command and
exchanges JSON-RPC messages with it over standard input and output (`mcp_tools`).
"""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import click

from shoal import __version__
from shoal.errors import MissingExtra, SettingsError


@click.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8765",
    show_default=True,
    help="The page of the server. With a token, of another machine by https only.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the token of the server ([server] token_file), where it has one.",
)
def mcp(url: str, token_file: Path | None) -> None:
    """Answer an assistant's questions about a running server (Model Context Protocol).

    The assistant's program starts this command and talks with it over standard input and output:
    give it `shoal mcp --url URL` as the command of a server. It has tools to read (clusters,
    history, changes, anomalies, events, clients), and none to change anything.
    """
    try:
        import anyio  # noqa: PLC0415 - an extra

        from shoal.server_node.outputs.mcp_tools import serve  # noqa: PLC0415 - needs the extra
        from shoal.server_node.outputs.web.access import (  # noqa: PLC0415 - loads the page
            read_token,
        )
    except ImportError as missing:
        raise MissingExtra("`shoal mcp`", "mcp") from missing
    headers = {"User-Agent": f"shoal/{__version__}"}
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"--url {url}: give http://HOST:PORT or https://HOST")
    if token_file is not None:
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise SettingsError(
                f"--url {url}: a token would cross the network unencrypted; use https"
            )
        headers["Authorization"] = f"Bearer {read_token(token_file)}"
    anyio.run(partial(serve, url, headers))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
