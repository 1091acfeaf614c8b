"""The federation's agreed file: features with their bounds, privacy, models. TOML in, digest out.

Everybody in a federation holds the same contract, and every message carries its digest: what was learnt
under other bounds or another privacy is refused, not mixed in. Settings of a single process (addresses,
folders, intervals) are not part of it: see `shoal.config.settings`.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from shoal.errors import SettingsError


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds a character that cannot be printed; leave it out")
    return text


NAME_PATTERN = r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?"
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
"""lower case letters, digits, hyphen and underscore: also fit for a topic and a metric label"""
NAME_RULE = "1 to 64 of a-z, 0-9, - and _, not beginning or ending with - or _"
Text = Annotated[str, AfterValidator(_printable)]
Number = Annotated[float, Field(strict=True)]
"""a float or an int as TOML writes it; neither a quoted one nor a truth value"""
Whole = Annotated[int, Field(strict=True)]
FEATURES_MAX = 4096
MISTAKES_SHOWN_MAX = 10

M = TypeVar("M", bound=BaseModel)


class Agreed(BaseModel):
    """Part of the contract: unknown names are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_strip_whitespace=True)


class Feature(Agreed):
    """One number of a reading."""

    name: Text = Field(min_length=1, max_length=64, description="as the column or key of the source is called")
    unit: Text = Field(default="", max_length=32, description="for people: °C, %, lux")
    low: Number = Field(description="smallest value the sensor can mean; lower readings are clipped to it")
    high: Number = Field(description="largest value the sensor can mean; higher readings are clipped to it")
    share: Number = Field(default=1.0, gt=0, le=1e6, description="weight of this feature in the privacy budget")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if not math.isfinite(self.high - self.low):
            raise ValueError(f"low {self.low:g} and high {self.high:g} are too far apart to calculate with")
        return self


class Privacy(Agreed):
    """What is done to a reading before anything is learnt from it."""

    mode: Literal["formal", "paper", "off"] = Field(
        description="formal: guaranteed per reading; paper: equations 2-4 of FCAC, no guarantee; off: public data only"
    )
    epsilon_per_reading: Number | None = Field(
        default=None, gt=0, le=1e6, description="formal: the whole budget of one reading, over all its features"
    )
    epsilon_nominal_per_feature: Number | None = Field(
        default=None, gt=0, le=1e6, description="paper: the epsilon of its equation 3, the same for each feature"
    )

    @model_validator(mode="after")
    def _fits_mode(self) -> Self:
        wanted = {"formal": "epsilon_per_reading", "paper": "epsilon_nominal_per_feature"}.get(self.mode)
        for field in ("epsilon_per_reading", "epsilon_nominal_per_feature"):
            value = getattr(self, field)
            if field == wanted and value is None:
                raise ValueError(f'mode = "{self.mode}" needs {field}')
            if field != wanted and value is not None:
                raise ValueError(f'{field} means nothing in mode = "{self.mode}"; leave it out')
        return self


class Rounds(Agreed):
    """How a model of the family in rounds calls its clients, and what it does between rounds."""

    fraction: Number = Field(default=1.0, gt=0, le=1, description="share of the clients called each time, by lot")
    quorum: Number = Field(
        default=0.8, gt=0, le=1, description="share of the expected answers with which a round closes early"
    )
    deadline_s: Number = Field(default=10.0, gt=0, le=86400, description="or it closes after this many seconds")
    rows_min: Whole = Field(default=20, ge=1, le=10**9, description="fewest rows behind an answer")
    rounds_max: Whole = Field(default=100, ge=1, le=10**6, description="most rounds in a row; then the model sleeps")
    tolerance: Number = Field(default=1e-3, ge=0, description="it also sleeps once a round moves it less than this")
    wake_s: Number = Field(default=60.0, gt=0, le=86400, description="it wakes after this many seconds, for one round")
    between: Literal["decay", "fresh", "cache"] | None = Field(
        default=None,
        description="what counts beside a round's answers: `decay`: all earlier ones, ever less (default for sums); "
        "`fresh`: nothing; `cache`: the last answer of each client (default for others)",
    )
    decay: Number = Field(default=0.5, gt=0, lt=1, description="what a round leaves of the weight of earlier answers")
    cache_rounds: Whole = Field(default=8, ge=0, le=10**6, description="rounds after which a kept answer is dropped")
    late_rounds: Whole = Field(default=3, ge=0, le=10**6, description="rounds that an answer may come late and count")


class Model(Agreed):
    """One configured algorithm of the federation."""

    name: Name = Field(description="what it is called in topics, metrics and on the page")
    algorithm: Name = Field(description="which one; see docs/reference/algorithms.md")
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="of the algorithm; see docs/reference/algorithms.md"
    )
    rounds: Rounds = Field(default=Rounds(), description="for algorithms in rounds, see below")

    @field_validator("options", mode="before")
    @classmethod
    def _plain(cls, options: object) -> object:
        for name, value in options.items() if isinstance(options, dict) else ():
            if not isinstance(value, bool | int | float | str) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise ValueError(f"{name} must be true or false, a finite number, or a text")
        return options


class Contract(Agreed):
    """What a federation has agreed on."""

    federation: Name = Field(description="prefix of its topics")
    features: tuple[Feature, ...] = Field(min_length=1, max_length=FEATURES_MAX)
    privacy: Privacy
    models: tuple[Model, ...] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for what, names in (("feature", [f.name for f in self.features]), ("model", [m.name for m in self.models])):
            twice = sorted(name for name, times in Counter(names).items() if times > 1)
            if twice:
                raise ValueError(f"{what} {twice[0]!r} stands twice; give each a name of its own")
        return self

    @property
    def width(self) -> int:
        """Numbers in one reading (d)."""
        return len(self.features)

    @property
    def digest(self) -> str:
        """32 hex digits that differ whenever anything agreed differs, and only then: the order of names, 1 or 1.0, and
        a default of this file written or left out are the same. An algorithm's own defaults are not known here: an
        option is agreed on when it is written."""
        agreed = self.model_dump(mode="json")
        for model in agreed["models"]:
            model["options"] = {name: _whole_as_int(value) for name, value in model["options"].items()}
        for model, said in zip(self.models, agreed["models"], strict=True):
            # Clients do what a call says, so what nobody wrote down need not be agreed on.
            said["rounds"] = model.rounds.model_dump(mode="json", exclude_defaults=True)
            if not said["rounds"]:
                del said["rounds"]
        written = json.dumps(agreed, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(b"shoal contract 1\0" + written.encode()).hexdigest()[:32]

    @property
    def updates_topic(self) -> str:
        return f"{self.federation}.updates"

    @property
    def snapshots_topic(self) -> str:
        return f"{self.federation}.snapshots"

    @property
    def rejected_topic(self) -> str:
        return f"{self.federation}.rejected"

    def model(self, name: str) -> Model | None:
        """The model of that name, or None."""
        return next((model for model in self.models if model.name == name), None)


def client_name(name: str) -> str:
    """`name` if a client can be called so: it is also a folder and a metric label. Raises `SettingsError`."""
    try:
        return TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise SettingsError(f"client name {name!r}: {NAME_RULE}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables. Raises `SettingsError` with the place of the mistake."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file; `shoal check --example` prints one to start from") from None
    except UnicodeDecodeError as foreign:
        raise SettingsError(f"{path}: not UTF-8 text at byte {foreign.start}; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as broken:
        raise SettingsError(f"{path}: not TOML: {broken}") from None
    except OSError as unreadable:
        raise SettingsError(
            f"{path}: cannot be read: {unreadable.strerror}; name a file that this user may read"
        ) from None
    except (ValueError, RecursionError) as beyond:
        # Not mistakes of TOML but limits of its reader: numbers of thousands of digits, thousands of brackets.
        raise SettingsError(f"{path}: cannot be read: {beyond}") from None


def contract_of(tables: dict[str, Any], source: str = "the federation file") -> Contract:
    """The tables [federation], [[features]], [privacy] and [[models]] -> the contract. Raises `SettingsError`."""
    federation = tables.get("federation", {})
    if not isinstance(federation, dict) or set(federation) - {"name"}:
        raise SettingsError(f"{source}: [federation] holds `name` and nothing else")
    agreed: dict[str, Any] = {key: tables[key] for key in ("features", "privacy", "models") if key in tables}
    if "name" in federation:
        agreed["federation"] = federation["name"]
    return validated(Contract, agreed, source)


def load_contract(path: Path) -> Contract:
    """Read and check a federation file. Raises `SettingsError`."""
    return contract_of(read_toml(path), str(path))


def validated(form: type[M], tables: dict[str, Any], source: str) -> M:
    """`tables` as a `form`. Raises `SettingsError`, in one line: where each mistake is and what would be right."""
    try:
        return form.model_validate(tables)
    except ValidationError as wrong:
        mistakes = wrong.errors(include_url=False, include_input=False)
        # A list is said to be too short when its only entry has a mistake: the entry's own word is enough.
        inside = {mistake["loc"][:depth] for mistake in mistakes for depth in range(len(mistake["loc"]))}
        said = [_place(mistake["loc"]) + _said(mistake) for mistake in mistakes if mistake["loc"] not in inside]
        more = f"; and {len(said) - MISTAKES_SHOWN_MAX} more" if len(said) > MISTAKES_SHOWN_MAX else ""
        raise SettingsError(f"{source}: " + "; ".join(said[:MISTAKES_SHOWN_MAX]) + more) from None


def _place(path: tuple[int | str, ...]) -> str:
    names = {"federation": "federation.name"}
    place = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{names.get(part, part)}" for part in path)
    return f"{place.removeprefix('.')}: " if place else ""


_REMEDIES = {
    "missing": "is missing",
    "extra_forbidden": "unknown name; leave it out or mend its spelling",
    "string_pattern_mismatch": f"must be {NAME_RULE}",
    "too_short": "at least {min_length} is needed",
    "too_long": "there are {actual_length}, at most {max_length} are possible",
    "tuple_type": "must be a list of tables, each under a line in double brackets",
    "model_type": "must be a table",
    "dict_type": "must be a table",
}


def _said(mistake: ErrorDetails) -> str:
    remedy = _REMEDIES.get(mistake["type"])
    if remedy is None:
        return mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return remedy.format(**mistake.get("ctx", {}))


def _whole_as_int(value: bool | int | float | str) -> bool | int | float | str:
    return int(value) if isinstance(value, float) and value.is_integer() else value
