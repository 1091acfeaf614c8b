"""`shoal upgrade`, `backup` and `restore`: the folders of processes, as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import click

from shoal.cli.options import config_option_as, json_option
from shoal.config.extension_settings import parse_address
from shoal.config.settings import load_config
from shoal.onebox.upkeep.backup import back_up
from shoal.onebox.upkeep.databases import NUMBERS
from shoal.onebox.upkeep.restore import check_backup
from shoal.onebox.upkeep.restore import restore as restore_folder
from shoal.onebox.upkeep.upgrade import undo as undo_upgrade
from shoal.onebox.upkeep.upgrade import upgrade as upgrade_folder
from shoal.transports.sqlite import SQLITE

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("folder", type=FOLDER)
@config_option_as(
    "file",
    "A federation file: its log, where it is elsewhere, must be readable before anything is"
    " changed.",
)
@click.option(
    "--undo", is_flag=True, help="Put back the folder before the upgrade, if nothing was written."
)
@json_option
def upgrade(folder: Path, file: Path | None, undo: bool, as_json: bool) -> None:
    """Bring all files in FOLDER to the formats of this version, once every process that uses them
    has stopped.

    It is done in one step, and only after all files have been read: one that this version cannot
    read, or that a process has open, is an error, and nothing is changed. What FOLDER was is kept
    in FOLDER.before-upgrade. The copy needs as much room as FOLDER, beside it.
    """
    folder = folder.absolute()
    if undo:
        undo_upgrade(folder)
        if as_json:
            click.echo(json.dumps({"undone": True}))
        else:
            click.echo(f"{folder}: as it was before the upgrade; run the version of before")
        return
    done = upgrade_folder(folder, _logs(file))
    if as_json:
        changed = []
        for database in done.changed:
            changed.append({"file": str(database.path), "kind": database.kind})
        kept = None if done.kept is None else str(done.kept)
        click.echo(json.dumps({"upgraded": changed, "kept": kept}))
        return
    for path, kind, number in done.changed:
        click.echo(f"{path}: {kind}, format {number} to {NUMBERS[kind]}")
    if done.kept is None:
        click.echo(f"{folder}: all files are in the formats of this version")
    else:
        click.echo(f"{done.kept}: the folder before; remove it once the processes run")


def _logs(file: Path | None) -> list[Path]:
    """The file of the embedded log of a federation; none on brokers."""
    if file is None:
        return []
    transport, location = parse_address(load_config(file).log.address)
    return [Path(location)] if transport is SQLITE else []


@click.command()
@click.argument("folder", type=FOLDER)
@click.argument("out", type=FOLDER)
@json_option
def backup(folder: Path, out: Path, as_json: bool) -> None:
    """Copy the files in FOLDER to the new folder OUT, while processes run.

    All are of one moment: nothing is published in an embedded log in FOLDER meanwhile, which takes
    milliseconds. A log on brokers, or in another folder, is not part of it. OUT has the keys too:
    keep it as you keep them. The history is not copied; a server makes it again from the log.
    """
    manifest = back_up(folder.absolute(), out.absolute())
    if as_json:
        click.echo(json.dumps(manifest))
        return
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    click.echo(
        f"{out}: {len(manifest['files'])} files, {size / 1e6:.1f} MB, as of {manifest['made_at']}"
    )
    for name in manifest["left_out"]:
        click.echo(f"{name}: left out, as no copy of a helper's state may ever be used")


@click.command()
@click.argument("source", metavar="BACKUP", type=FOLDER)
@click.argument("folder", type=FOLDER, required=False)
@click.option(
    "--nothing-since",
    is_flag=True,
    help="Nothing was published since the backup: let clients go on as they are.",
)
@json_option
def restore(source: Path, folder: Path | None, nothing_since: bool, as_json: bool) -> None:
    """Check the BACKUP that `shoal backup` has made, and put it at FOLDER, if one is given.

    FOLDER must not be there, or be empty. A backup does not know what was published after it: its
    clients do not go on under their names, unless you say --nothing-since, as of processes that had
    been stopped before the backup was made.
    """
    if folder is None:
        manifest = check_backup(source.absolute())
    else:
        manifest = restore_folder(source.absolute(), folder.absolute(), nothing_since=nothing_since)
    if as_json:
        click.echo(json.dumps(manifest))
        return
    done = "whole" if folder is None else f"restored to {folder}"
    click.echo(f"{source}: {done}, as of {manifest['made_at']}")
    if nothing_since:
        return
    for client in manifest["clients"]:
        click.echo(
            f"{client}: what it has published since is not known; replace it by `shoal client"
            f" --name NEW --after-restore {client} --lost-windows N`"
        )
