"""A privacy mode, its bounds and its unit, and the mechanism that it builds for a client.

Readings in their units go in, rows in unit coordinates come out. A mode is found by name through
the entry-point group `shoal.privacy`, and imported when it is first asked for.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeGuard

import numpy as np

from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Bools, Floats
from shoal.plugins import Plugins
from shoal.privacy.count_noise import CountNoise
from shoal.privacy.keyed import Places


class Bounds:
    """Declared `low` and `high` of every feature, (d,) each, in the feature's own unit.

    Models learn in unit coordinates, u = (x - low) / (high - low), so that no feature outweighs
    another. A circular feature is cut at `low`, and begins again at `high`: its values are wrapped
    into the bounds, not clipped. Raises `SettingsError` for bounds that are empty, of unequal
    number, not finite, or not low < high.
    """

    def __init__(
        self,
        low: Sequence[float] | Floats,
        high: Sequence[float] | Floats,
        circular: Sequence[bool] = (),
    ) -> None:
        self.low: Floats = np.array(low, dtype=np.float64)
        self.high: Floats = np.array(high, dtype=np.float64)
        if self.low.ndim != 1 or self.low.shape != self.high.shape or self.low.size == 0:
            raise SettingsError(
                "bounds need one low and one high for each feature, and at least one feature"
            )
        # Bounds whose difference overflows are refused below, with their values.
        with np.errstate(over="ignore", invalid="ignore"):
            self.span: Floats = self.high - self.low
        for j, (lowest, highest, span) in enumerate(
            zip(self.low, self.high, self.span, strict=True)
        ):
            if not (np.isfinite([lowest, highest, span]).all() and span > 0):
                raise SettingsError(
                    f"feature {j}: bounds {lowest} to {highest} must be finite numbers with low < "
                    "high"
                )
        self.circular: tuple[int, ...] = tuple(
            j for j, is_circle in enumerate(circular) if is_circle
        )
        """positions of the circular features"""
        # Noise is bound to the bounds by `PrivacyMode.context`: they must not change after it.
        for array in (self.low, self.high, self.span):
            array.setflags(write=False)

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.low.size)

    def checked(self, readings: Floats, gaps: bool = False) -> Floats:
        """readings (n, d) as float64. Raises `InvalidData` for another width, NaN or infinity.

        Noise hides neither: NaN stays NaN and infinity ends in a bound, whatever is added. With
        `gaps`, NaN is a missing value. The error does not contain values.
        """
        rows = np.asarray(readings, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise InvalidData(f"readings of shape {rows.shape} where (n, {self.d}) is needed")
        finite = np.isfinite(rows)
        if gaps:
            finite |= np.isnan(rows)
        usable = finite.all(axis=1)
        if not usable.all():
            # How many, and not which values: what an error says is logged.
            raise InvalidData(
                f"{int((~usable).sum())} of {len(rows)} readings hold a value that is not a "
                "finite number; remove them first"
            )
        return rows

    def clip(self, readings: Floats, gaps: bool = False) -> tuple[Floats, int]:
        """readings (n, d) -> the readings within the bounds, and how many of them were clipped.

        With `gaps`, NaN is a missing value and stays. The count is made from raw readings, and must
        not leave the client.
        """
        rows = self.checked(readings, gaps)
        for j in self.circular:
            rows = _with_column(rows, j, _turned(rows[:, j], self.low[j], self.high[j]))
        # What lies outside would change a mean by more than the noise is made for.
        inside = np.clip(rows, self.low, self.high)
        moved = inside != rows
        if gaps:
            # NaN differs from itself.
            moved &= ~np.isnan(rows)
        return inside, int(moved.any(axis=1).sum())

    def to_unit(self, values: Floats) -> Floats:
        """values (..., d) in the features' units -> unit coordinates; 0 is `low`, 1 is `high`."""
        return self.wrapped((np.asarray(values, dtype=np.float64) - self.low) / self.span)

    def wrapped(self, unit: Floats) -> Floats:
        """Unit coordinates (..., d), those of circular features brought back into 0 to 1.

        It moves them by whole turns, so that noise beyond an end comes back on the other side.
        """
        for j in self.circular:
            unit = _with_column(unit, j, _turned(unit[..., j], 0.0, 1.0))
        return unit

    def from_unit(self, unit: Floats) -> Floats:
        """unit coordinates (..., d) -> values in the features' units."""
        return self.low + np.asarray(unit, dtype=np.float64) * self.span

    def shown(self, unit: Floats) -> Floats:
        """Values as `from_unit` gives them, for people.

        Those of a circular feature are from 0 to below its period, wherever it is cut.
        """
        values = self.from_unit(unit)
        for j in self.circular:
            values[..., j] %= self.span[j]
        return values


def _turned(values: Floats, low: float, high: float) -> Floats:
    """Positions on a circle (...,) -> within low to high; both ends, which are one place, stay."""
    return np.asarray(
        # Values inside keep their bits: a remainder would round them.
        np.where((values < low) | (values > high), low + (values - low) % (high - low), values)
    )


def _with_column(rows: Floats, j: int, column: Floats) -> Floats:
    replaced = rows.copy()
    replaced[..., j] = column
    return replaced


Missing = Literal["drop", "hold", "learn"]
"""treatment of a reading that lacks a value"""
Times = Literal["public", "arrival"]
"""times that updates of a mode with a guarantee state: those of the readings, as their source gave
them, or those at which the client's own log took them in"""
UnitName = Literal["reading", "user", "client"]
"""`reading`: one reading, replaced by any other. `user`: all readings that one user (a person, a
device) has in one window, replaced by any others of that user. `client`: all readings that a client
has in one window"""


@dataclass(frozen=True)
class PrivacyUnit:
    """A privacy unit, and how many readings of one unit are counted in a window at most.

    Replacing a reading moves at most two counts by one, so the scale of the noise grows with them.
    """

    name: UnitName = "reading"
    readings_max: int = 1
    hides_presence: bool = False
    """whether neighbours also differ in that the unit is there at all: windows then close by the
    clock alone"""

    def __post_init__(self) -> None:
        """Raises `SettingsError`."""
        if self.readings_max < 1:
            raise SettingsError("readings_per_window_max must be at least 1")
        # A bound that means nothing would suggest a protection that is not there.
        if self.name == "reading" and self.readings_max != 1:
            raise SettingsError(
                'readings_per_window_max is for unit = "user": a reading is one reading'
            )

    @property
    def is_user(self) -> bool:
        """Whether readings belong to users, whose readings are protected together."""
        return self.name == "user"

    @property
    def phrase(self) -> str:
        """What an epsilon is per, in words."""
        if self.name == "reading":
            return "reading"
        return f"{self.name} and window"

    def statement(self) -> dict[str, Any]:
        """What the messages of a model that learns from counts state of it, in plain values."""
        statement: dict[str, Any] = {"unit": self.name}
        if self.is_user:
            statement["readings_per_window_max"] = self.readings_max
        if self.hides_presence:
            statement["hides_presence"] = True
        return statement


READING: Final = PrivacyUnit()
GAPS_IN_COUNTS: Final = (
    "Which values a reading lacks is protected as its values are: it is counted once at most, "
    "whatever it lacks, and replacing one reading means replacing its gaps as well."
)
GAPS_IN_ROWS: Final = (
    "Which values a reading lacks is protected as its values are: a missing value is taken from "
    "earlier noisy rows and gets noise of its own, so that every row is whole."
)
HELD_VALUES: Final = (
    "A value that a source holds, in place of later ones that are missing: it stands in several "
    "readings, and their epsilons add up."
)


class Helper(NamedTuple):
    """A party that takes masks away from sums of counts, and adds its noise to them.

    See `shoal.privacy.masked`.
    """

    name: str
    key: bytes
    """its public key, 64 bytes"""
    region: str = ""
    """empty: it unmasks sums of the federation's own clients"""


COUNT_MECHANISM = "geometric-counts"
"""travels in every message of a model that learns from private counts"""
TAKEN_AND_WHEN = (
    "That a reading was taken, when, and how many there are; the broker's own timestamps of "
    "messages remain. hide_presence = true in [privacy] hides all of this in models that learn "
    "from counts."
)
TIMES_TEXTS: Final[Mapping[Times, str]] = {
    "public": (
        "An update states when its oldest and its newest reading were taken, as their source gave "
        "it, in whole seconds. No value of a reading decides on these times."
    ),
    "arrival": (
        "An update states when the client's own log took its first and its last reading in, in "
        "whole seconds, and not when they were taken."
    ),
}
"""what the updates of a mode with a guarantee state of times"""
PRESENCE_LEFT = (
    "That a client runs, since when, and how long it takes to read and count a window. Of "
    "readings that come closer together than window_s / window_readings, one is counted."
)
"""rest that shows where windows close by the clock"""
NOT_COVERED = (
    TAKEN_AND_WHEN,
    "Several readings of one person or machine, or readings that follow from one another in time: "
    "each is protected, but their epsilons add up.",
    "A reading that is stored again, as by a sensor that sends twice or a file that is replayed: "
    "each copy has its own noise, so their epsilons add up too.",
)
"""facts that no mode protects that treats each reading by itself"""
NOT_COVERED_OF_USERS = (
    TAKEN_AND_WHEN,
    "A user in several windows: each window is protected, but their epsilons add up.",
    "A user with readings under several user ids, or at several clients: their epsilons add up "
    "too.",
)
"""facts that are not protected where the privacy unit is a user"""


class RowRange(NamedTuple):
    """Unit coordinates (d,) between which every row of a mechanism lies.

    Every mean of rows lies there as well: a node, a centre.
    """

    low: Floats
    high: Floats


@dataclass(frozen=True)
class Released:
    """The result of `Mechanism.privatise` for n readings."""

    rows: Floats
    """(k, d) in unit coordinates: what models learn from"""
    kept: Bools
    """(n,) which readings the k rows are made from, in order; the others were withheld"""
    clipped: int
    """readings moved into their bounds. It is made from raw readings, so it must not leave the
    client"""


class Mechanism(Protocol):
    """Makes the readings of one client private. The rows do not depend on how readings are split
    into calls."""

    def privatise(self, readings: Floats, places: Places) -> Released:
        """readings (n, d) in their units with their places (n, 2) in the readings log. Raises
        `InvalidData`."""
        ...

    def state(self) -> dict[str, Any]:
        """All that must outlive the process, as plain values and arrays, with an int "version"."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises `InvalidState`, also for another key, client, source
        or other terms."""
        ...


@dataclass(frozen=True)
class Term:
    """A number that a mode takes in [privacy] of the contract."""

    meaning: str
    above: float = 0.0
    at_most: float = 1e6
    default: float | None = None
    """None: the contract must give it"""
    whole: bool = False
    """whether it must be a whole number"""

    def check(self, name: str, value: float) -> None:
        """Raises `SettingsError` unless it is above `above`, at most `at_most`, and whole."""
        # Put so that NaN, which compares to nothing, is refused.
        if not self.above < value <= self.at_most:
            raise SettingsError(f"{name} must be above {self.above:g} and at most {self.at_most:g}")
        if self.whole and not float(value).is_integer():
            raise SettingsError(f"{name} must be a whole number")


class Guarantee(NamedTuple):
    """The promise of a mode, in the words in which somebody can agree to it or not."""

    who: str
    what: str
    duration: str
    against: str
    learnt: str
    """what an attacker learns at most"""
    breaks: str
    """what it would take to break it"""

    def rows(self) -> list[list[str]]:
        """[heading, text] of each of these, in their order."""
        return [[heading, text] for heading, text in zip(GUARANTEE_HEADINGS, self, strict=True)]


GUARANTEE_HEADINGS: Final = (
    "who is protected",
    "what",
    "for how long",
    "against whom",
    "what an attacker learns",
    "what it would take to break it",
)


@dataclass(frozen=True)
class Description:
    """The meaning of a mode, in sentences for people who do not know the papers."""

    title: str
    tone: Literal["good", "warn", "bad"]
    """mark of the title on the page"""
    sentences: tuple[str, ...]
    """how it is done"""
    not_covered: tuple[str, ...]
    guarantee: Guarantee | None = None
    """None: there is none"""

    def rows(self) -> list[list[str]]:
        """[heading, text] of the guarantee; nothing without one."""
        if self.guarantee is None:
            return []
        return self.guarantee.rows()

    def text(self) -> str:
        """All of it in one paragraph, for log events."""
        sentences = [f"Privacy: {self.title}."]
        for heading, text in self.rows():
            sentences.append(f"{heading[0].upper()}{heading[1:]}: {text}")
        sentences += self.sentences
        if self.not_covered:
            sentences += ["Not covered:", *self.not_covered]
        return " ".join(sentences)


class PrivacyMode(ABC):
    """One way to make readings private, with the terms of one federation.

    A package adds a mode with a subclass and an entry point in the group `shoal.privacy`. Clients,
    the server, the command line and the page ask the mode for everything that depends on it. Client
    and server build equal modes from the contract; there is no key in it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """a few words for the table of settings"""
    mechanism_name: ClassVar[str]
    """travels in every message"""
    terms: ClassVar[Mapping[str, Term]] = {}
    """the settings of [privacy] that the mode needs, besides `mode`"""
    formal: ClassVar[bool] = False
    """whether the epsilons are guaranteed; otherwise they are only names of noise levels"""
    adds_noise: ClassVar[bool] = True
    counts: ClassVar[bool] = False
    """whether models may learn from counts in this mode"""
    masked: ClassVar[bool] = False
    """whether clients mask their counts, so that only sums over many of them can be read"""
    fills_gaps: ClassVar[bool] = False
    """whether a row may be made from a reading that lacks values: its mechanism withholds no
    reading, and treats each feature and each reading by itself (`shoal.privacy.imperfect`)"""
    helpers: Sequence[Helper] = ()
    """the parties that unmask sums, in such a mode"""
    regions: Mapping[str, Sequence[Helper]] = {}
    """those of each region, in a federation of regions"""
    missing: Missing = "drop"
    """the contract's treatment of readings that lack a value"""
    times: Times = "arrival"
    """the times that updates state, in a mode with a guarantee"""

    def __init__(
        self,
        bounds: Bounds,
        values: Mapping[str, float] | None = None,
        shares: Sequence[float] | None = None,
        counts_epsilon: float | None = None,
        unit: PrivacyUnit = READING,
    ) -> None:
        """`values` of the terms; `shares` are the weights of the d features in the budget, equal if
        None.

        `counts_epsilon` is what a `unit` may cost in each model that learns from counts; with it
        the terms, which are those of rows, may be left out. A mode that masks counts also takes
        `helpers` and `window_readings`. Raises `SettingsError`.
        """
        self.bounds = bounds
        self.values = dict(values or {})
        self.counts_epsilon = counts_epsilon
        self.unit = unit
        # Before anything is computed from them: noise of wrong terms must not even be made.
        self.check_terms(self.values, counts_epsilon, unit.name)
        self.shares = tuple(shares or (1.0,) * bounds.d)
        if len(self.shares) != bounds.d or not all(0 < share < math.inf for share in self.shares):
            raise SettingsError(
                f"shares must be {bounds.d} finite numbers above 0, one for each feature"
            )

    @classmethod
    def check_terms(
        cls,
        values: Mapping[str, float],
        counts_epsilon: float | None = None,
        unit: UnitName = "reading",
    ) -> None:
        """Raises `SettingsError` unless these are the terms of the mode, each within its range.

        Terms may be missing where no row is released: where there is an epsilon of counts. They
        must be missing where the unit is a user: a noisy row protects a reading alone.
        """
        cls._check_unit(values, unit)
        if counts_epsilon is not None and not (cls.counts and cls.formal):
            raise SettingsError(
                f'counts_epsilon means nothing in mode = "{cls.name}"; leave it out'
            )
        if counts_epsilon is not None and not values:
            return
        for name in values:
            if name not in cls.terms:
                raise SettingsError(f'{name} means nothing in mode = "{cls.name}"; leave it out')
        for name, term in cls.terms.items():
            if name in values:
                term.check(name, values[name])
            elif term.default is None:
                instead = ""
                if cls.counts and not cls.masked:
                    instead = ", or counts_epsilon for models that learn from counts"
                raise SettingsError(f'mode = "{cls.name}" needs {name}{instead}')

    @classmethod
    def _check_unit(cls, values: Mapping[str, float], unit: UnitName) -> None:
        """Raises `SettingsError` for a privacy unit that the mode, or these terms, do not have."""
        if unit == "client" and not cls.masked:
            raise SettingsError(
                f'unit = "client" is for mode = "masked" and means nothing in mode = "{cls.name}"'
            )
        if unit == "user" and not (cls.counts and cls.formal):
            raise SettingsError(f'unit = "user" means nothing in mode = "{cls.name}"; leave it out')
        if unit == "user" and values:
            raise SettingsError(
                f"{next(iter(values))} is of noisy rows, which protect readings one by one: with "
                'unit = "user" leave it out, and take models that learn from counts'
            )

    @abstractmethod
    def epsilon_per_feature(self) -> tuple[float, ...]:
        """The epsilon of each feature (d,): with a guarantee, parts of `epsilon_per_reading`.

        Without noise there is none: ().
        """

    @abstractmethod
    def mechanism(self, key: bytes | None, client: str, source: bytes) -> Mechanism:
        """The mechanism of one client for its readings log.

        `key` is the client's noise key; `source` is the identity of the log's topic. Raises
        `SettingsError`.
        """

    @abstractmethod
    def row_range(self) -> RowRange:
        """Region in which rows can lie: a function of the contract alone."""

    @abstractmethod
    def describe(self) -> Description:
        """The guarantee of the mode with these terms, in words."""

    def epsilon_per_reading(self) -> float | None:
        """The guaranteed epsilon of one reading over all its features; None without a guarantee."""
        return None

    def counts_epsilon_of(self, epsilon: float | None) -> float | None:
        """The guaranteed epsilon of a unit in a model with this `epsilon` of counts."""
        return epsilon

    def counts_variance(self, epsilon: float | None) -> float:
        """Variance of the noise of what the server absorbs of each count, 0 without noise.

        Raises `SettingsError`.
        """
        noise = self.count_noise(epsilon)
        if noise is None:
            return 0.0
        return noise.variance

    def sum_of_epsilons(self, epsilons: Sequence[float]) -> float:
        """The epsilon of a unit in several streams of what is published."""
        # Rounded once, so that the order of the models does not change the sum.
        return math.fsum(epsilons)

    def epsilon_spent(self) -> tuple[float, float]:
        """The epsilon that a reading really costs, and the one that it may cost.

        Both are infinite without a guarantee.
        """
        return math.inf, math.inf

    def noise_per_feature(self) -> tuple[float, ...] | None:
        """Mean distance by which the noise moves each feature, as a part of its declared range.

        None if it is unknown.
        """
        return None

    def count_noise(self, epsilon: float | None) -> CountNoise | None:
        """The noise of the counts of a model in which a privacy unit may cost `epsilon`.

        None where none is added. Raises `SettingsError` for a mode in which no model may learn from
        counts, and for an epsilon out of range.
        """
        raise SettingsError(
            f'mode = "{self.name}" cannot make counts private; take another mode, or another '
            "algorithm"
        )

    def count_statement(self, epsilon: float | None, window_readings: int) -> dict[str, Any]:
        """The statement that the messages of a model that learns from counts carry."""
        mechanism = "none" if self.count_noise(epsilon) is None else COUNT_MECHANISM
        return {
            "mode": self.name,
            "mechanism": mechanism,
            "formal": self.formal,
            **self.unit.statement(),
            "epsilon": epsilon,
            "epsilon_per_feature": [],
            "nominal": False,
            "window_readings": window_readings,
        }

    def statement(self) -> dict[str, Any]:
        """The statement that every message of a client carries, in plain values.

        The server refuses a message whose statement is not its own: nothing with less noise than
        the contract has agreed on is learnt. `nominal` marks epsilons that only name a noise level
        and guarantee nothing.
        """
        return {
            "mode": self.name,
            "mechanism": self.mechanism_name,
            "formal": self.formal,
            **self.unit.statement(),
            "epsilon": self.epsilon_per_reading(),
            "epsilon_per_feature": list(self.epsilon_per_feature()),
            "nominal": bool(self.epsilon_per_feature()) and not self.formal,
        }

    def context(self) -> bytes:
        """32 bytes over all that decides what random words are used for.

        These are mechanism, bounds, epsilons and noise tables. Noise is bound to it: under other
        terms a reading gets other random words. With the same words, the difference of two rows
        would be a function of the reading alone.
        """
        digest = hashlib.sha256(f"shoal noise 1;{self.mechanism_name};{self.bounds.d};".encode())
        for array in (self.bounds.low, self.bounds.high, np.array(self.epsilon_per_feature())):
            # The same bytes on every machine: a client that moves to another one must not have
            # other noise.
            digest.update(array.astype("<f8").tobytes())
        digest.update(self.table_digests())
        return digest.digest()

    def table_digests(self) -> bytes:
        """What names the noise tables exactly, if there are any; part of `context`."""
        return b""


def require_key(key: bytes | None, mode: str) -> bytes:
    """The noise key. Raises `SettingsError` if there is none."""
    if key is None:
        raise SettingsError(f"privacy mode {mode!r} needs the client's noise key")
    return key


def check_state(state: dict[str, Any], version: int, mode: str, fingerprint: str) -> None:
    """Raises `InvalidState` unless a mechanism's saved state has all of these.

    Another fingerprint means another key, client, source or other terms. Readings already published
    would be published again with fresh noise, and averaging would remove the noise.
    """
    if not isinstance(state, dict) or state.get("version") != version:
        raise InvalidState(
            f"saved privacy state is not of version {version}; use the shoal that wrote it"
        )
    if state.get("mode") != mode:
        raise InvalidState(
            f"saved privacy state is of another mode than {mode!r}; start with a new readings log"
        )
    if state.get("fingerprint") != fingerprint:
        raise InvalidState(
            "saved privacy state belongs to another noise key, client name, readings log or "
            "privacy terms. Restore those it was made with, or start as a new client: reading the "
            "same log with other noise would weaken the guarantee"
        )


def _is_mode(loaded: Any) -> TypeGuard[type[PrivacyMode]]:
    return isinstance(loaded, type) and issubclass(loaded, PrivacyMode)


_MODES = Plugins("shoal.privacy", "privacy mode", _is_mode, "a subclass of PrivacyMode")


def mode_names() -> tuple[str, ...]:
    """The names of all installed privacy modes in alphabetical order; imports none of them."""
    return _MODES.names()


def load_mode(name: str) -> type[PrivacyMode]:
    """The class of the privacy mode of this name. Raises `SettingsError`."""
    return _MODES.load(name)
