"""`shoal upgrade`, `backup` and `restore`: the folders of processes, as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import click

from shoal.cli.options import config_option_as, json_option
from shoal.config.extension_settings import parse_address
from shoal.config.settings import load_config
from shoal.onebox.upkeep.databases import NUMBERS
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
