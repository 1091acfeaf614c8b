"""What `shoal backup` has made, put back: it is checked whole before anything is written.

What was published after a backup is not in it. A client that goes on from it would publish the same
readings again with other noise, and where its federation's log is restored with it, nothing on the
machine tells. So its folder is marked, and `shoal client` refuses it until it is replaced
(`--after-restore`), unless the user who restores it knows that nothing was published since.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from shoal.client_nodes.bootstrap import RESTORED
from shoal.errors import InvalidState, SettingsError
from shoal.files import sync_folder
from shoal.onebox.upkeep.backup import MANIFEST
from shoal.onebox.upkeep.databases import (
    HISTORY,
    NUMBERS,
    accepted,
    files_in,
    is_database,
    looked_at,
)
from shoal.onebox.upkeep.upgrade import beside, copy_tree, digest_of, sync_tree

ENTRIES: Final = frozenset({"shoal", "of", "made_at", "formats", "clients", "files"})


def check_backup(backup: Path) -> dict[str, Any]:
    """The manifest of a backup, all of whose files are as they were made and can be read.

    Raises `SettingsError` for what is no backup, and `InvalidState`.
    """
    manifest = _manifest_of(backup)
    for kind, number in manifest["formats"].items():
        if kind != HISTORY and NUMBERS.get(kind) != number:
            raise InvalidState(
                f"{backup}: {kind} of format {number}, this version reads {NUMBERS.get(kind)};"
                f" restore it with shoal {manifest['shoal']}, and upgrade the folder then"
            )
    present = {str(path.relative_to(backup)) for path in files_in(backup)} - {MANIFEST}
    for name, entry in manifest["files"].items():
        if name not in present:
            raise InvalidState(f"{backup / name}: missing; the backup is not whole, take another")
        if digest_of(backup / name) != entry["sha256"]:
            raise InvalidState(f"{backup / name}: not as it was made; take another backup")
    unknown = sorted(present - manifest["files"].keys())
    if unknown:
        raise InvalidState(f"{backup / unknown[0]}: no file of the backup; move it away")
    return manifest


def restore(backup: Path, folder: Path, *, nothing_since: bool) -> dict[str, Any]:
    """Put a backup at `folder`, which must not be there or be empty; returns its manifest.

    `nothing_since`: no client has published anything since the backup. Raises as `check_backup`
    does.
    """
    manifest = check_backup(backup)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            f"{folder}: has files; move it away first, as what it holds may be newer than the"
            " backup"
        )
    part = beside(folder, "restoring")
    shutil.rmtree(part, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        copy_tree(backup, part)
        (part / MANIFEST).unlink()
        for path in files_in(part):
            database = looked_at(path) if is_database(path) else None
            if database is not None:
                accepted(database)
        # Marked before the folder has its name: no kill leaves one without a mark that a client
        # would run on.
        if not nothing_since:
            for client in manifest["clients"].values():
                mark = part / client["folder"] / RESTORED
                mark.write_text(f"{manifest['made_at']}\n", encoding="utf-8")
        sync_tree(part)
        if folder.exists():
            # Not its content: what has come into the folder meanwhile makes this fail.
            folder.rmdir()
        part.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be made ({error.strerror or error})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest


def _manifest_of(backup: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((backup / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SettingsError(
            f"{backup}: no backup that is whole; name a folder that `shoal backup` has made"
        ) from None
    if not isinstance(manifest, dict) or not manifest.keys() >= ENTRIES:
        raise SettingsError(f"{backup / MANIFEST}: not the list of a backup")
    return manifest
