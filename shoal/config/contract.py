"""The contract: what all members of a federation have agreed on. Features with their bounds,
privacy, and models.

All clients and servers of a federation hold the same contract, and every message carries its
digest: what was learnt under other bounds or another privacy is rejected, not mixed in. Settings of
a single process (addresses, folders, intervals) are not part of it: see `shoal.config.settings`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, field_validator, model_validator

from shoal.config.base import Name, Number, Table, Text, Whole, parse_table, read_toml
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.constants import COUNT_MAX
from shoal.privacy.base import (
    Bounds,
    Helper,
    Missing,
    PrivacyMode,
    PrivacyUnit,
    Times,
    UnitName,
    load_mode,
)
from shoal.privacy.count_noise import EPSILON_MAX, EPSILON_MIN

FEATURES_MAX = 4096
MODELS_MAX = 64
VALUES_MAX = 16
"""most values of a category: counts have a bin for each"""
CATEGORY_STEP = 0.25
"""over which each value of a category is spread; two of them are 1 apart"""
READINGS_MAX = 100_000
"""default of `readings_max`: fifty times the window that a client answers rounds from by default"""
READINGS_MAX_LEAST = 1000
"""smallest `readings_max`"""


class Feature(Table):
    """One feature: one of the d numbers in a reading."""

    name: Text = Field(
        min_length=1,
        max_length=64,
        description="name of its column or key in the source of readings",
    )
    unit: Text = Field(default="", max_length=32, description="for people: °C, %, lux")
    kind: Literal["number", "category", "circular"] = Field(
        default="number",
        description="`category`: one of the `values`, such as a door that is open or closed; "
        "without `low` and `high`. `circular`: begins again after each `period`, as wind "
        "direction and hour of day do; without `high`",
    )
    values: tuple[Text, ...] = Field(
        default=(),
        max_length=VALUES_MAX,
        description='of a `category`, all that can be, as sources write them: `["closed", '
        '"open"]`, or codes',
    )
    period: Number = Field(
        default=0.0,
        ge=0,
        description="of a `circular` feature, what it begins again after: 360, 24",
    )
    low: Number = Field(
        description="smallest possible value, from the data sheet of the sensor; lower readings "
        "are clipped to it. Of a `circular` feature where its circle is cut, by default at 0: "
        "best where readings are fewest"
    )
    high: Number = Field(description="largest possible value; higher readings are clipped to it")
    share: Number = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="weight of this feature when the privacy budget is divided",
    )
    step: Number = Field(
        default=0.0,
        ge=0,
        description="smallest difference that the sensor shows, such as 1 for whole degrees; "
        "values are spread over it before anything learns, so that gaps between them are no "
        "valleys. 0: as they are",
    )

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_kind(cls, given: Any) -> Any:
        """The bounds of a circle, and of values: each is the number of its place, in the middle of
        an equal part."""
        if isinstance(given, dict) and given.get("kind") == "circular":
            low = given.get("low", 0.0)
            period = given.get("period")
            if (
                not isinstance(period, int | float)
                or not isinstance(low, int | float)
                or not period > 0
            ):
                raise ValueError(
                    "a circular feature needs its period: 360 for degrees, 24 for hours"
                )
            return {**given, "low": low, "high": given.get("high", low + period)}
        if not isinstance(given, dict) or given.get("kind") != "category":
            return given
        values = given.get("values")
        if not isinstance(values, list | tuple) or len(values) < 2:
            raise ValueError("a category needs values, two or more")
        return {
            **given,
            "low": given.get("low", -0.5),
            "high": given.get("high", len(values) - 0.5),
        }

    @model_validator(mode="after")
    def _values_fit_the_kind(self) -> Self:
        for name, kind in (("values", "category"), ("period", "circular")):
            if getattr(self, name) and self.kind != kind:
                raise ValueError(f'{name} is for kind = "{kind}" alone; leave it out')
        if self.kind != "category":
            if self.kind == "circular" and self.high != self.low + self.period:
                raise ValueError("a circular feature ends after one period; leave high out")
            return self
        if len(set(self.values)) < len(self.values) or not all(self.values):
            raise ValueError("values must be different texts, none of them empty")
        if (self.low, self.high, self.step) != (-0.5, len(self.values) - 0.5, 0.0):
            raise ValueError("a category has no low, high and step; leave them out")
        return self

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if not math.isfinite(self.high - self.low):
            raise ValueError(
                f"low {self.low:g} and high {self.high:g} are too far apart to calculate with"
            )
        # Below it numbers lose digits, and the inverse of the range may be infinite.
        if self.high - self.low < sys.float_info.min:
            raise ValueError(
                f"low {self.low:g} and high {self.high:g} are too near to calculate with"
            )
        if self.step > self.high - self.low:
            raise ValueError(f"step {self.step:g} is more than high - low")
        return self


# Two public keys of 32 bytes each, in hexadecimal digits.
HELPER_KEY_DIGITS = 128
HELPERS_MAX = 16


class HelperKey(Table):
    """A helper of masked counts. All who take part know it by its public key."""

    name: Name = Field(description="its name in messages and metrics")
    key: Text = Field(
        pattern=rf"^[0-9a-f]{{{HELPER_KEY_DIGITS}}}$",
        description="its public key, 128 hexadecimal digits, as `shoal keys helper` prints them",
    )
    region: Name | None = Field(
        default=None, description="in the upstream federation's file: the region it is of"
    )


class Privacy(Table):
    """Protection of a reading before anything is learnt from it: a mode, and the numbers that this
    mode needs."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]

    mode: Name = Field(description="how readings are made private")
    counts_epsilon: Number | None = Field(
        default=None,
        ge=EPSILON_MIN,
        le=EPSILON_MAX,
        description="what a reading, or a `unit`, may cost in each model that learns from "
        "counts, with `formal`",
    )
    window_readings: Whole = Field(
        default=400,
        ge=1,
        le=10**6,
        description="readings that a client counts together",
    )
    window_s: Number = Field(
        default=600.0,
        gt=0,
        le=86400 * 7,
        description="seconds after which a window is counted that is not full",
    )
    unit: UnitName = Field(
        default="reading",
        description="the privacy unit that `counts_epsilon` is for: one `reading`, or all "
        "readings that one `user` (a person, a device) has in a window; readings then need a "
        "user id. `client` with `masked`: all readings of a client in a window",
    )
    readings_per_window_max: Whole | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description='with `unit = "user"`: most readings of one user that are counted in a '
        "window; the noise is this "
        "many times larger",
    )
    helpers: tuple[HelperKey, ...] = Field(
        default=(),
        max_length=HELPERS_MAX,
        description="with `masked`: the parties that unmask sums, one table "
        "`[[privacy.helpers]]` each with `name` and `key`, as `shoal keys helper` prints it",
    )
    hide_presence: bool = Field(
        default=False,
        description="close each window by the clock, after `window_s`, and publish it as one of "
        "`window_readings` places also if it is empty: hides when readings are taken and how "
        "many; of those closer together than `window_s` / `window_readings`, one is counted",
    )
    times: Times = Field(
        default="arrival",
        description="with `formal`, what updates state of times: `public`: when their oldest and "
        "newest reading were taken, as the source gave it, in whole seconds, so that history, day "
        "bands and cycles are those of the readings; `arrival`: when the client's own log took "
        "them in. `hide_presence` needs `arrival`; without a guarantee times are always those of "
        "the readings",
    )
    missing: Missing = Field(
        default="drop",
        description="a reading without a value of some feature is rejected (`drop`), is filled "
        "up by its source with the client's last values (`hold`), or is learnt for the values "
        "that it has (`learn`)",
    )

    @model_validator(mode="after")
    def _fits_mode(self) -> Self:
        for name in ("name", "key"):
            if len({(helper.region, getattr(helper, name)) for helper in self.helpers}) < len(
                self.helpers
            ):
                raise ValueError(
                    f"two helpers have the same {name}; each must be a party of its own"
                )
        try:
            mode = load_mode(self.mode)
            mode.check_terms(self.terms, self.counts_epsilon, self.unit)
            if self.missing == "learn" and not mode.fills_gaps:
                raise SettingsError(
                    f'missing = "learn" means nothing in mode = "{mode.name}"; take "drop" or '
                    '"hold"'
                )
            if self.helpers and not mode.masked:
                raise SettingsError(f'helpers mean nothing in mode = "{self.mode}"; leave them out')
            if self.hide_presence and mode.masked:
                raise SettingsError(
                    f'hide_presence is not built for mode = "{self.mode}": leave it out'
                )
            if self.hide_presence and (self.counts_epsilon is None or self.terms):
                raise SettingsError(
                    "hide_presence is for private counts alone: it needs counts_epsilon, and "
                    "nothing for noisy rows, whose number is published"
                )
            self._check_times(mode)
            if self.unit == "user" and self.readings_per_window_max is None:
                raise SettingsError(
                    'unit = "user" needs readings_per_window_max; 1 adds the least noise'
                )
            if (self.readings_per_window_max or 1) > self.window_readings:
                raise SettingsError(
                    "readings_per_window_max must be at most window_readings, "
                    f"{self.window_readings}"
                )
            # It checks itself when it is made.
            _ = self.privacy_unit
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_times(self, mode: type[PrivacyMode]) -> None:
        """Raises `SettingsError` for times that the mode, or hidden presence, has no use for."""
        if self.times == "arrival":
            return
        if mode.masked:
            raise SettingsError(
                f'times means nothing in mode = "{mode.name}", whose messages state none: leave it '
                "out"
            )
        if self.hide_presence:
            raise SettingsError(
                'hide_presence hides when readings are taken, and times = "public" publishes it: '
                'take times = "arrival", or leave hide_presence out'
            )

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """What an epsilon of counts is of."""
        return PrivacyUnit(self.unit, self.readings_per_window_max or 1, self.hide_presence)

    @property
    def helper_terms(self) -> tuple[Helper, ...]:
        """The helpers with their public keys."""
        terms = []
        for helper in self.helpers:
            terms.append(Helper(helper.name, bytes.fromhex(helper.key), helper.region or ""))
        return tuple(terms)

    @property
    def terms(self) -> dict[str, float]:
        """The numbers of the mode by name."""
        return dict(self.__pydantic_extra__)


class Rounds(Table):
    """Rounds of a model: which clients it asks, when a round ends, and what counts between
    rounds."""

    fraction: Number = Field(
        default=1.0, gt=0, le=1, description="part of the clients asked in each round, at random"
    )
    quorum: Number = Field(
        default=0.8,
        gt=0,
        le=1,
        description="a round ends when this part of the expected answers has arrived",
    )
    deadline_s: Number = Field(
        default=10.0, gt=0, le=86400, description="or after this many seconds"
    )
    rows_min: Whole = Field(
        default=20, ge=1, le=10**9, description="fewest rows that a client answers from"
    )
    rounds_max: Whole = Field(
        default=100, ge=1, le=10**6, description="most rounds in a row; after them the model sleeps"
    )
    tolerance: Number = Field(
        default=1e-3, ge=0, description="it also sleeps when a round moves it by less than this"
    )
    wake_s: Number = Field(
        default=60.0,
        gt=0,
        le=86400,
        description="it sleeps this many seconds, then runs a round to see what is new",
    )
    between: Literal["decay", "fresh", "cache"] | None = Field(
        default=None,
        description="what counts besides the answers of a round: `decay`: all earlier ones, with "
        "less and less weight (default for sums); `fresh`: nothing; `cache`: the newest answer "
        "of each client (default for others)",
    )
    decay: Number = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="`decay`: factor on the weight of earlier answers, per round",
    )
    cache_rounds: Whole = Field(
        default=8, ge=0, le=10**6, description="`cache`: rounds after which an answer is dropped"
    )
    late_rounds: Whole = Field(
        default=3,
        ge=0,
        le=10**6,
        description="rounds by which an answer may be late and still count",
    )
    robust: Literal["none", "median", "trimmed", "clip"] = Field(
        default="none",
        description="bound what a single client can do to the model: combine answers by their "
        "`median`, by a `trimmed` mean or with a `clip` (docs/explanation/robustness.md); "
        "`none`: exactly the sums",
    )


class Model(Table):
    """One configured algorithm of the federation."""

    name: Name = Field(description="its name in topics, metrics and on the page")
    algorithm: Name = Field(description="see docs/reference/algorithms.md")
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="options of the algorithm; see docs/reference/algorithms.md",
    )
    readings_max: Whole = Field(
        default=READINGS_MAX,
        ge=READINGS_MAX_LEAST,
        le=10**9,
        description="most readings that one update or answer may be from, and so the weight of "
        "one client in a round; clients publish before there are more, and answer rounds from "
        "this many of their newest rows",
    )
    counts_epsilon: Number | None = Field(
        default=None,
        ge=EPSILON_MIN,
        le=EPSILON_MAX,
        description="only for algorithms that learn from counts: instead of `counts_epsilon` of "
        "[privacy]",
    )
    source: Name | None = Field(
        default=None,
        description="only for algorithms in rounds: the streaming model of this file whose "
        "clusters it starts from, "
        'and on whose nodes a criterion chooses a number of clusters; `clusters = "auto"` and '
        "criteria need it. "
        "Without it, centres start anywhere within the bounds",
    )
    rounds: Rounds = Field(default=Rounds(), description="only for algorithms in rounds; see below")

    @field_validator("options", mode="before")
    @classmethod
    def _are_plain_values(cls, options: object) -> object:
        if not isinstance(options, dict):
            return options  # refused by its type
        for name, value in options.items():
            is_plain = isinstance(value, bool | int | float | str)
            if not is_plain or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(f"{name} must be true or false, a finite number, or a text")
            # Readers of a contract in other languages have floats only.
            if isinstance(value, int) and abs(value) > COUNT_MAX:
                raise ValueError(f"{name} must be a number of at most 2^53")
        return options


class Contract(Table):
    """All that the members of a federation have agreed on.

    >>> import shoal
    >>> contract = shoal.Contract(
    ...     federation="plant",
    ...     features=[{"name": "temperature", "low": 0, "high": 40}],
    ...     privacy={"mode": "off"},
    ...     models=[{"name": "heaps", "algorithm": "fcac"}],
    ... )
    >>> contract.width, contract.models[0].algorithm
    (1, 'fcac')
    """

    federation: Name = Field(description="prefix of its topics")
    revision: Whole = Field(
        default=1, ge=1, le=10**6, description="tells equal contracts of a federation apart"
    )
    features: tuple[Feature, ...] = Field(min_length=1, max_length=FEATURES_MAX)
    privacy: Privacy
    models: tuple[Model, ...] = Field(min_length=1, max_length=MODELS_MAX)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        _check_unique("feature", [feature.name for feature in self.features])
        _check_unique("model", [model.name for model in self.models])
        return self

    @property
    def width(self) -> int:
        """Numbers in one reading (d)."""
        return len(self.features)

    @property
    def bounds(self) -> Bounds:
        """The declared bounds of all features."""
        low = [feature.low for feature in self.features]
        high = [feature.high for feature in self.features]
        circular = [feature.kind == "circular" for feature in self.features]
        return Bounds(low, high, circular)

    @property
    def steps(self) -> Floats:
        """(d,) the steps over which values are spread, 0 for none.

        Those of a category are spread over a part of the distance of two of them: equal values at
        equal distances would be taken for a coarse scale, and the gaps between them filled.
        """
        steps = [feature.step for feature in self.features]
        for place, feature in enumerate(self.features):
            if feature.kind == "category":
                steps[place] = CATEGORY_STEP
        return np.array(steps)

    @property
    def learns_gaps(self) -> bool:
        """Whether a reading that lacks values of some features is learnt for those that it has."""
        return self.privacy.missing == "learn"

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that differ if and only if two contracts differ.

        The order of names, 1 or 1.0, and a default value written or left out make no difference.
        The defaults of an algorithm's options are not part of the contract: an option is agreed on
        only when it is written.
        """
        # With a prefix of its own, so that a digest of other bytes is never that of a contract.
        # 128 bits: to find two contracts of one digest takes 2^64 attempts.
        return hashlib.sha256(b"shoal contract 1\0" + self.agreed_json().encode()).hexdigest()[:32]

    def agreed_json(self) -> str:
        """What is agreed on, as JSON: equal texts mean equal contracts."""
        agreed = self.model_dump(mode="json")
        # What has its default is left out, so that a setting that a later version adds does not
        # change the digest of contracts that do not use it.
        if self.revision == 1:
            del agreed["revision"]
        for feature in agreed["features"]:
            for name in ("step", "kind", "period", "values"):
                if feature[name] in (Feature.model_fields[name].default, []):
                    del feature[name]
        for model, written in zip(self.models, agreed["models"], strict=True):
            _leave_out_defaults(model, written)
        helpers = [helper.model_dump(exclude_none=True) for helper in self.privacy.helpers]
        agreed["privacy"]["helpers"] = helpers
        for name, setting in Privacy.model_fields.items():
            if getattr(self.privacy, name) == setting.default:
                del agreed["privacy"][name]
        # Sorted, in ASCII and without spaces: the digest is of these bytes, on every machine.
        return json.dumps(agreed, sort_keys=True, ensure_ascii=True, separators=(",", ":"))

    @property
    def updates_topic(self) -> str:
        return f"{self.federation}.updates"

    def update_key(self, model: str) -> bytes:
        """The key of all records in the topic of updates that are for this model.

        It decides their partition. It has the federation too, so that models of the same name in
        the federations of several regions are not all in the same partition, and replicas can share
        them (`shoal.server_node.replicas.replica`).
        """
        return f"{self.federation}/{model}".encode()

    @property
    def snapshots_topic(self) -> str:
        return f"{self.federation}.snapshots"

    @property
    def rejected_topic(self) -> str:
        return f"{self.federation}.rejected"

    @property
    def events_topic(self) -> str:
        return f"{self.federation}.events"

    @property
    def history_topic(self) -> str:
        return f"{self.federation}.history"

    @property
    def contributions_topic(self) -> str:
        """It exists only where the server has an upstream federation."""
        return f"{self.federation}.contributions"

    @property
    def labels_topic(self) -> str:
        """It exists only where a client has `publish_labels`."""
        return f"{self.federation}.labels"

    def model(self, name: str) -> Model | None:
        """The model of that name, or None."""
        return next((model for model in self.models if model.name == name), None)


def _check_unique(kind: str, names: Sequence[str]) -> None:
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise ValueError(f"there are two {kind}s {repeated[0]!r}; give each a name of its own")


def parse_contract(tables: dict[str, Any], source: str = "the federation file") -> Contract:
    """The tables [federation], [[features]], [privacy] and [[models]] -> the contract. Raises
    `SettingsError`."""
    federation = tables.get("federation", {})
    if not isinstance(federation, dict) or set(federation) - {"name", "revision"}:
        raise SettingsError(f"{source}: [federation] holds `name`, `revision` and nothing else")
    agreed: dict[str, Any] = {}
    for key in ("features", "privacy", "models"):
        if key in tables:
            agreed[key] = tables[key]
    if "name" in federation:
        agreed["federation"] = federation["name"]
    if "revision" in federation:
        agreed["revision"] = federation["revision"]
    return parse_table(Contract, agreed, source)


def load_contract(path: Path) -> Contract:
    """Read and check a federation file. Raises `SettingsError`."""
    return parse_contract(read_toml(path), str(path))


def _leave_out_defaults(model: Model, written: dict[str, Any]) -> None:
    """Remove from a model's JSON what has its default, and write whole options as integers."""
    for name, value in written["options"].items():
        written["options"][name] = _whole_as_int(value)
    if model.readings_max == READINGS_MAX:
        del written["readings_max"]
    # The server decides and clients follow its round requests, so defaults need not be agreed on.
    written["rounds"] = model.rounds.model_dump(mode="json", exclude_defaults=True)
    if not written["rounds"]:
        del written["rounds"]
    for name in ("counts_epsilon", "source"):
        if getattr(model, name) is None:
            del written[name]


def _whole_as_int(value: bool | int | float | str) -> bool | int | float | str:
    if isinstance(value, float) and value.is_integer():
        # 5 and 5.0 mean the same in an option: the digest must not depend on how a file writes it.
        return int(value)
    return value


def rounded(values: Sequence[float], feature: Feature) -> list[str]:
    """Values to about a hundredth of the range between the bounds, without unit; of a category the
    nearest ones."""
    if feature.kind == "category":
        return [category_text(value, feature) for value in values]
    digits = digits_shown(feature)
    texts = []
    for value in values:
        # A value just below the period rounds to it, which is 0 again.
        shown = round(value, digits) % feature.period if feature.period else value
        # Plus 0: a small negative number is shown as 0, not -0.
        texts.append(f"{round(shown, digits) + 0.0:.{digits}f}")
    return texts


def digits_shown(feature: Feature) -> int:
    """Decimal places to which values of a feature are shown."""
    return min(12, max(0, math.ceil(2 - math.log10(feature.high - feature.low))))


def within(value: float, feature: Feature) -> float:
    """The nearest value that a feature can have."""
    if feature.kind == "circular":
        return value % feature.period
    return min(max(value, feature.low), feature.high)


def _with_unit(text: str, feature: Feature) -> str:
    space = "" if feature.unit == "°" else " "
    return f"{text}{space}{feature.unit}".rstrip()


def category_text(value: float, feature: Feature) -> str:
    """Name in the contract of the value of a category that is nearest to this number."""
    return feature.values[min(max(round(value), 0), len(feature.values) - 1)]


def names_without_units(features: Sequence[Feature]) -> list[str]:
    """The name of each feature without its unit, as columns of files often end with it: "Temp (°C)"
    is Temp.

    Where two features would be called alike, they keep it.
    """
    short = [without_unit(feature.name, feature.unit) for feature in features]
    times = Counter(short)
    names = []
    for name, feature in zip(short, features, strict=True):
        names.append(name if times[name] == 1 else feature.name)
    return names


def without_unit(name: str, unit: str) -> str:
    """The name of one feature without its unit, beside a value that has the unit already."""
    if not unit:
        return name
    for end in (f"({unit})", f"[{unit}]", f"_{unit}", f" {unit}"):
        if name.lower().endswith(end.lower()):
            # A column may be called by its unit alone.
            return name[: len(name) - len(end)].rstrip() or name
    return name


def value_text(value: float, feature: Feature) -> str:
    """One value with its unit, such as "1540 lux"."""
    return _with_unit(rounded((value,), feature)[0], feature)


def range_text(low: float, high: float, feature: Feature) -> str:
    """Both ends with the unit, such as "390-640 lux"; one number where they are the same."""
    return _with_unit(ends_text(low, high, feature), feature)


def ends_text(low: float, high: float, feature: Feature) -> str:
    """Both ends without unit."""
    first, last = rounded((low, high), feature)
    if first == last:
        return first
    if feature.kind == "category":
        return f"{first} or {last}"
    # A minus sign before the upper end would read like two dashes, and on a circle it may be the
    # smaller number.
    if "-" in first + last or feature.period:
        return f"{first} to {last}"
    return f"{first}-{last}"
