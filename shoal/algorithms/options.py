"""Options of algorithms: one base that checks them, whatever the family, and the options that
several algorithms share.

The class of an algorithm's options declares each option once: its default, the values that it
takes, and its meaning. Error messages and the tables of the documentation are made from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from shoal.errors import SettingsError
from shoal.kernels.constants import COUNT_MAX

Options = Mapping[str, Any]
"""options of a model in the contract by name: true or false, a number or a text"""

CLUSTERS_MAX: Final = 10_000


def option(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    expected: str | None = None,
) -> Any:
    """Declares one option: its default, what it means, and the bounds of a number.

    `expected` has the valid values in words, for error messages (`must be ...`) and the
    documentation; by default they follow from the type and the bounds.
    """
    words: dict[str, JsonValue] | None = None if expected is None else {"expected": expected}
    return Field(default, description=meaning, ge=least, gt=above, le=most, json_schema_extra=words)


class AlgorithmOptions(BaseModel):
    """Options of one algorithm. Numbers are never made from texts, nor from true and false.

    >>> class Toy(AlgorithmOptions):
    ...     ALGORITHM = "toy"
    ...     rows: int = option(10, "rows that are kept", least=1, most=100)
    >>> Toy.parse({"rows": 20}).rows
    20
    >>> Toy.parse({"rows": 0})
    Traceback (most recent call last):
    shoal.errors.SettingsError: toy option rows = 0, must be a whole number, 1 to 100
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    ALGORITHM: ClassVar[str] = ""
    """name that error messages begin with"""

    @classmethod
    def parse(cls, options: Options, algorithm: str | None = None) -> Self:
        """Options from a mapping, such as those of a model in the contract, with defaults filled
        in.

        `algorithm`: the name for error messages, if it is not that of the class. Raises
        `SettingsError`, which names the option and its valid values.
        """
        try:
            return cls.model_validate({name: _plain(value) for name, value in options.items()})
        except ValidationError as error:
            name = algorithm or cls.ALGORITHM
            # One problem at a time: pydantic lists one for each type that a value could have been.
            problems = error.errors(include_url=False, include_context=False)
            # An unknown option comes first: it may be a slip of the name of one that is missing.
            for problem in problems:
                if problem["type"] == "extra_forbidden":
                    unknown = str(problem["loc"][0])
                    known = ", ".join(cls.model_fields) or "none"
                    raise SettingsError(
                        f"{name} has no option {unknown!r}; it has {known}"
                    ) from None
            wrong = str(problems[0]["loc"][0])
            title = f"{name} option {wrong}" if name else wrong
            raise SettingsError(
                f"{title} = {options[wrong]!r}, must be {cls.expected(wrong)}"
            ) from None

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Name -> default of every option."""
        return {name: field.default for name, field in cls.model_fields.items()}

    @classmethod
    def expected(cls, name: str) -> str:
        """Valid values of an option in words."""
        field = cls.model_fields[name]
        extra = field.json_schema_extra
        if isinstance(extra, dict):
            return str(extra["expected"])
        return _words(field.annotation, field.metadata)

    @classmethod
    def accepts(cls, name: str, value: object) -> bool:
        """Whether the algorithm has an option of this name that takes the value."""
        try:
            # By trying, so that there is one definition of what is valid.
            cls.parse({name: value})
        except SettingsError:
            return False
        return True

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a saved state."""
        return dict(vars(self))

    def require(self, name: str, holds: bool, wanted: str) -> None:
        """Raises `SettingsError` unless a rule `holds` between this option and another one."""
        if not holds:
            raise SettingsError(
                f"{self.ALGORITHM} option {name} = {getattr(self, name)!r}, must be {wanted}"
            )


def _plain(value: object) -> object:
    """A number of NumPy as one of Python's: a program takes it from an array of labels."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


_PLAIN: Final = {NoneType: "none", str: "a text", bool: "true or false"}
"""types without bounds -> their values in words"""


def _words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """The values of a type with bounds, in words."""
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin is Annotated:
        return _words(parts[0], list(_bounds(parts[1:])))
    if origin is Literal:
        return _either([f'"{value}"' for value in parts])
    if origin in (Union, UnionType):
        return _words_of_union(parts, metadata)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    return _words_of_number(annotation is int, list(metadata))


def _bounds(arguments: Sequence[Any]) -> Iterator[Any]:
    """The bounds among the arguments of `Annotated`; those of pydantic's `Field` lie within it."""
    for argument in arguments:
        if isinstance(argument, FieldInfo):
            yield from argument.metadata
        else:
            yield argument


def _words_of_union(parts: Sequence[Any], metadata: Iterable[Any]) -> str:
    """The values of any of these types; names come last, as one list."""
    words = []
    names: list[Any] = []
    for part in parts:
        if get_origin(part) is Literal:
            names += get_args(part)
        else:
            words.append(_words(part, metadata))
    if names:
        words.append(_words(Literal[tuple(names)]))
    return ", or ".join(words)


def _words_of_number(is_whole: bool, metadata: Sequence[Any]) -> str:
    """The values of a number with bounds, in words."""
    words = ["a whole number"] if is_whole else []
    least = _bound(metadata, "ge")
    above = _bound(metadata, "gt")
    most = _bound(metadata, "le")
    # Every whole number has this bound, and it is no choice that a person has to know of.
    if most == COUNT_MAX:
        most = None
    if least is not None and most is not None:
        words.append(f"{least} to {most}" if is_whole else f"from {least:g} to {most:g}")
        return ", ".join(words)
    if least is not None:
        words.append(f"at least {least:g}")
    if above is not None:
        words.append(f"above {above:g}")
    if most is not None:
        words.append(f"at most {most:g}")
    return ", ".join(words)


def _bound(metadata: Iterable[Any], name: str) -> float | None:
    """The first bound of this name: "ge", "gt" or "le"."""
    for bound in metadata:
        if hasattr(bound, name):
            value: float = getattr(bound, name)
            return value
    return None


def _either(names: Sequence[str]) -> str:
    """Names as "a", "b" or "c"."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} or {names[-1]}"


Number = Annotated[int, Field(ge=1, le=CLUSTERS_MAX)]
"""a number of clusters"""
Clusters = Number | Literal["auto"]
"""the option `clusters` of most algorithms in rounds"""
AUTO_MEANS: Final = '"auto": as many as the model that `source` names has found'
CRITERIA: Final = ("gap", "silhouette", "bic")
"""criteria by which a number of clusters can be chosen (`shoal.algorithms.rounds.choice`)"""


def clusters_option(*criteria: str) -> Any:
    """Declares the option `clusters`, whose number can also be chosen by one of these criteria."""
    meaning = f"number of clusters; {AUTO_MEANS}"
    if criteria:
        names = " or ".join(f'"{name}"' for name in criteria)
        meaning += f"; {names}: chosen by this criterion on the nodes of that model"
    return option("auto", meaning)


def clusters_max_option() -> Any:
    """Declares the option `clusters_max` of algorithms that take a criterion."""
    return option(20, "most clusters that a criterion may choose", least=1, most=100)


def needs_another_model(clusters: object) -> bool:
    """Whether this value of `clusters` needs another model: its clusters, or nodes to choose
    from."""
    return clusters in ("auto", *CRITERIA)
