"""The source type `files`: replays CSV, JSON lines and Parquet files, split over clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from producers.files.replay import Columns, Replay
from producers.files.split import RULES, split_of
from producers.pumped import CLIENTS, PUMP_PARAMETERS, SEED, PumpedSource
from producers.source import Source
from producers.source_type import PATH
from shoal.config.contract import Contract
from shoal.config.settings import Config
from shoal.errors import SettingsError


class FilesSource(PumpedSource):
    """Replays the rows of files, one file after the other."""

    name = "files"
    empty = "the file is empty: it has no rows"
    parameters = (
        click.Argument(["files"], nargs=-1, type=PATH),
        click.Option(["--data"], multiple=True, type=PATH, help="A file to replay, like FILES."),
        CLIENTS,
        click.Option(
            ["--split"],
            default="round-robin",
            show_default=True,
            help=f"How rows are assigned to clients: {RULES}.",
        ),
        click.Option(["--only"], metavar="CLIENT", help="Feed this client's part of the split, and no other."),
        click.Option(
            ["--column", "columns"],
            multiple=True,
            metavar="FEATURE=COLUMN",
            help="The column of a feature, where it has another name.",
        ),
        click.Option(["--time-column"], help="ISO 8601 (UTC unless it says otherwise), or epoch in s, ms, µs or ns."),
        click.Option(
            ["--label-column"],
            help="The column of classes, for the splits by label; it is not part of the readings.",
        ),
        click.Option(
            ["--user-column"],
            help='The person or device that a reading is from, for `unit = "user"` of [privacy]; it stays on the '
            "client's site.",
        ),
        click.Option(["--loop"], is_flag=True, help="Start again after the last row, with later times."),
        click.Option(["--shuffle"], is_flag=True, help="In random order; this needs memory for all rows."),
        SEED,
        *PUMP_PARAMETERS,
    )

    @property
    def label(self) -> str:
        """See `SourceType.label`."""
        return "FILES"

    def is_chosen(self, options: Mapping[str, Any]) -> bool:
        """See `SourceType.is_chosen`."""
        return bool(options["files"] or options["data"])

    def client(self, options: Mapping[str, Any]) -> str | None:
        """See `SourceType.client`."""
        only: str | None = options["only"]
        return only

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """See `SourceType.gives_users`."""
        return options["user_column"] is not None

    def open(self, contract: Contract, options: Mapping[str, Any]) -> Source:
        """See `PumpedSource.open`."""
        names = [feature.name for feature in contract.features]
        split = split_of(options["split"], options["clients"], options["seed"], options["label_column"])
        extra = (options[f"{name}_column"] for name in ("time", "label", "user"))
        columns = Columns(_columns(names, options["columns"]), *extra)
        order = {name: options[name] for name in ("loop", "shuffle", "seed")}
        return Replay([*options["data"], *options["files"]], columns, split, **order, only=options["only"])


def _columns(names: list[str], mapped: tuple[str, ...]) -> tuple[str, ...]:
    """The column of each feature. Raises `SettingsError` for a mapping of no feature."""
    renamed: dict[str, str] = {}
    for pair in mapped:
        feature, equals, column = pair.partition("=")
        if not equals or not column or feature not in names:
            raise SettingsError(f"--column {pair!r}: write FEATURE=COLUMN; the features are {', '.join(names)}")
        renamed[feature] = column
    return tuple(renamed.get(name, name) for name in names)


FILES = FilesSource()
