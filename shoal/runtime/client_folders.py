"""The folder of a client on its site, and what the data call the client."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import SettingsError
from shoal.telemetry.events import log_event

NAME_FILE = "name.txt"
"""file in a client's folder with what the data call the client, where that is not its name"""
PARTITION_FOLDERS = "partition.*"
"""the folders of the partitions that a host of a group has, below which are those of their clients;
a client's name has no dot"""


def partition_folder(folder: Path, partition: int) -> Path:
    """The folder of the clients of a partition that a host of a group has."""
    return folder / PARTITION_FOLDERS.replace("*", str(partition))


def client_folder(folder: Path, client: str, text: str | None = None) -> Path:
    """The client's own folder below `folder`, made if there is none. Raises `SettingsError`.

    `text`: what the data call the client; where that is not the name, it is kept in the folder.
    """
    own = folder / client
    try:
        # Raw readings: no other user of this machine may read them.
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if text not in (None, client) and not (own / NAME_FILE).exists():
            (own / NAME_FILE).write_text(f"{text}\n", encoding="utf-8", errors="replace")
            log_event("client_named", client=client, text=text)
    except OSError as error:
        raise SettingsError(f"{own}: cannot be made: {error.strerror}") from None
    return own


def client_text(folder: Path, client: str) -> str | None:
    """What the data call a client with a folder below `folder`; None where that is its name, or the
    file that says so cannot be read."""
    try:
        text = (folder / client / NAME_FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text or None
