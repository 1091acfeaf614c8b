"""The source type `files`: the options of `shoal producer` for the replay of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Literal

import click
from pydantic import Field

from shoal.cli.options import CLIENT_NAME
from shoal.config.contract import Contract
from shoal.config.extension_settings import SourceSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.federation_file import federation_file
from shoal.producers.file_plan import plan_of
from shoal.producers.files.form import FORM_PARAMETERS, form_of
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import CLIENTS_MAX, RULES, split_of
from shoal.producers.files.times import ORDERS
from shoal.producers.people import remarks_on_people
from shoal.producers.quality import (
    BAD_QUALITY_MEANS,
    QUALITY_MEANS,
    bad_quality_of,
    quality_by_position,
)
from shoal.producers.repeats import SourceFiles
from shoal.producers.source import Source
from shoal.producers.source_type import (
    CLIENTS,
    PATH,
    PUMP_PARAMETERS,
    SEED,
    ProducerTask,
    ProducerTotals,
    PumpedSource,
)
from shoal.producers.values import (
    HELD_MAX,
    MISSING_MEANS,
    NA_VALUES_MEANS,
    NA_VALUES_OF_MEANS,
    MissingOfSource,
    na_values_by_position,
)
from shoal.protocol.readings import codes_of


class FilesSettings(SourceSettings):
    """[files]: how `shoal producer FILES` reads files; options of the command line come first."""

    columns: dict[str, str] = Field(
        default_factory=dict,
        description="feature = column, where the column has another name than its feature",
    )

    time_columns: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="columns that hold the time, such as a date and a time of day; none: no time",
    )
    label_column: str = Field(
        default="", description="column of classes, for the splits by label; no part of readings"
    )
    user_column: str = Field(
        default="",
        description='column of the person or device that a reading is from, for `unit = "user"` of'
        " [privacy]",
    )
    split: str = Field(
        default="round-robin", description=f"how rows are assigned to clients: {RULES}"
    )
    clients: int = Field(
        default=1, ge=1, le=CLIENTS_MAX, description="clients of splits that do not name them"
    )
    decimal: Literal["", ".", ","] = Field(
        default="", description="decimal sign of the numbers; none: found in the file"
    )
    date_format: str = Field(
        default="", description=f"{', '.join(ORDERS)}, or strptime's codes; none: found in the file"
    )
    timezone: str = Field(
        default="", description="zone of times that name none, as Europe/Berlin; none: UTC"
    )
    encoding: str = Field(
        default="", description="encoding of the files, as cp1252; none: found in the file"
    )
    na_values: tuple[str, ...] = Field(default=(), strict=False, description=NA_VALUES_MEANS)
    na_values_of: dict[str, list[str]] = Field(default_factory=dict, description=NA_VALUES_OF_MEANS)
    quality: dict[str, str] = Field(
        default_factory=dict, description=QUALITY_MEANS.format(column="column")
    )
    bad_quality: tuple[str, ...] = Field(default=(), strict=False, description=BAD_QUALITY_MEANS)
    missing: MissingOfSource = Field(default="", description=MISSING_MEANS)

    def check(self, contract: Contract) -> None:
        """Check that columns of quality are of features. Raises `SettingsError`."""
        na_values_by_position(self.na_values_of, contract, "files")
        quality_by_position(self.quality, contract, "files")
        bad_quality_of(self.bad_quality)


def with_settings(options: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The options of the command line; those that are not given are the settings of [files]."""
    settings = config.source("files")
    assert isinstance(settings, FilesSettings)
    merged = settings.model_dump()
    for name, value in options.items():
        if name not in merged or value not in (None, ()):
            merged[name] = value
    return merged


PLAIN_REPLAY: Mapping[str, Any] = {
    **{"data": (), "files": (), "columns": (), "only": None},
    **{"loop": False, "shuffle": False, "seed": 0, "again": False},
}
"""options of the command line that are no settings, where none is given"""


class FilesSource(PumpedSource):
    """Replays the rows of files, one file after the other."""

    name = "files"
    settings = FilesSettings
    empty = "the file is empty: it has no rows"
    parameters = (
        click.Argument(["files"], nargs=-1, type=PATH),
        click.Option(["--data"], multiple=True, type=PATH, help="A file to replay, like FILES."),
        CLIENTS,
        click.Option(
            ["--split"],
            help=f"How rows are assigned to clients: {RULES}. [default: round-robin]",
        ),
        click.Option(
            ["--only"],
            type=CLIENT_NAME,
            metavar="CLIENT",
            help="Feed this client's part of the split, and no other.",
        ),
        click.Option(
            ["--column", "columns"],
            multiple=True,
            metavar="FEATURE=COLUMN",
            help="The column of a feature, where it has another name.",
        ),
        click.Option(
            ["--time-column", "time_columns"],
            multiple=True,
            help="ISO 8601, an epoch in s, ms, µs or ns, or a date such as 31.12.2024 13:45; given"
            " several times for a time in several columns.",
        ),
        # Copies: `shoal init` has them too, and an option knows the variable of one command only.
        *map(copy, FORM_PARAMETERS),
        click.Option(
            ["--missing"],
            type=click.Choice(["drop", "hold", "learn"]),
            help="A reading without a value of some feature: the client rejects and counts it, it"
            f" is filled up with the client's last values (in at most {HELD_MAX} readings in a"
            " row), or it is learnt for what it has, which [privacy] must say too. [default: as"
            " [privacy] says]",
        ),
        click.Option(
            ["--label-column"],
            help="The column of classes, for the splits by label; it is not part of the readings.",
        ),
        click.Option(
            ["--user-column"],
            help='The person or device that a reading is from, for `unit = "user"` of [privacy]; it'
            " stays on the client's site.",
        ),
        click.Option(
            ["--loop"], is_flag=True, help="Start again after the last row, with later times."
        ),
        click.Option(
            ["--shuffle"], is_flag=True, help="In random order; this needs memory for all rows."
        ),
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

    def client_name(self, options: Mapping[str, Any]) -> str | None:
        """See `SourceType.client_name`."""
        only: str | None = options["only"]
        return only

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """See `SourceType.gives_users`."""
        return bool(with_settings(options, config)["user_column"])

    def federation_file(self, options: Mapping[str, Any]) -> str:
        """See `SourceType.federation_file`: what `shoal init` writes."""
        init_options = {
            "name": None,
            "private": None,
            "concerns": None,
            "person_column": None,
            "helpers": (),
            "clients": None,
            "client_column": None,
            "bad_quality": (),
            **options,
        }
        plan = plan_of([*options["data"], *options["files"]], init_options)
        # Raises where a file for people would not protect them, or find nothing.
        remarks_on_people(plan)
        return federation_file(plan)

    def clients(self, source: Source) -> Sequence[str]:
        """The names of all clients that the files feed, which takes a pass over them.

        Raises `InvalidData`.
        """
        assert isinstance(source, Replay)
        return source.clients()

    def places(self, source: Source, numbers: Sequence[int]) -> Mapping[int, str]:
        """See `PumpedSource.places`."""
        if not isinstance(source, Replay):
            return {}
        return source.places(numbers)

    def texts(self, source: Source) -> Mapping[str, str]:
        """See `PumpedSource.texts`."""
        if not isinstance(source, Replay):
            return {}
        return source.texts

    def sentences(self, source: Source) -> Sequence[str]:
        """See `PumpedSource.sentences`."""
        if not isinstance(source, Replay):
            return ()
        return source.sentences()

    def source_files(self, source: Source) -> SourceFiles:
        """See `PumpedSource.source_files`."""
        assert isinstance(source, Replay)
        return source.source_files

    def run(self, task: ProducerTask) -> ProducerTotals:
        """See `PumpedSource.run`."""
        return super().run(task._replace(options=with_settings(task.options, task.config)))

    def open(self, contract: Contract, options: Mapping[str, Any]) -> Source:
        """See `PumpedSource.open`."""
        names = [feature.name for feature in contract.features]
        split = split_of(
            options["split"], options["clients"], options["seed"], options["label_column"] or None
        )
        columns = Columns(
            _columns(names, options["columns"]),
            options["time_columns"],
            options["label_column"] or None,
            options["user_column"] or None,
            codes_of(contract),
            quality_by_position(options.get("quality", {}), contract, "files"),
            tuple(options.get("bad_quality", ())),
            na_values_by_position(options.get("na_values_of", {}), contract, "files"),
        )
        return Replay(
            [*options["data"], *options["files"]],
            columns,
            split,
            **{name: options[name] for name in ("loop", "shuffle", "seed", "only")},
            form=form_of(options, contract),
        )


def _columns(names: list[str], mapped: tuple[str, ...] | Mapping[str, str]) -> tuple[str, ...]:
    """The column of each feature, by the options or by [files].

    Raises `SettingsError` for a mapping of no feature.
    """
    if isinstance(mapped, Mapping):
        odd = sorted(set(mapped) - set(names))
        if odd:
            raise SettingsError(
                f"[files.columns]: {odd[0]!r} is no feature of this federation: {', '.join(names)}"
            )
        return tuple(mapped.get(name, name) for name in names)
    renamed: dict[str, str] = {}
    for pair in mapped:
        feature, equals, column = pair.partition("=")
        if not equals or not column or feature not in names:
            raise SettingsError(
                f"--column {pair!r}: write FEATURE=COLUMN; the features are {', '.join(names)}"
            )
        renamed[feature] = column
    return tuple(renamed.get(name, name) for name in names)


FILES = FilesSource()
