"""What is known of the columns of data, and the cells by which it is found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.producers.files.parsing import number_of

Kind = Literal["feature", "time", "client", "person", "label", "quality", "left out"]


@dataclass(frozen=True)
class Column:
    """What one column holds."""

    name: str
    kind: Kind
    reason: str
    """why it is taken for that, for people"""
    examples: tuple[str, ...] = ()
    """three of its cells as they are; for a terminal only"""
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    outside: float = 0.0
    """share of its values that lie outside of `low` and `high`"""
    step: float = 0.0
    """smallest difference of its values, where they are coarse; 0 where they are not"""
    numbers: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(n,) its values that were looked at; they are kept nowhere"""
    values: tuple[str, ...] = ()
    """all that it holds, where it is a category; () for numbers"""
    period: float = 0.0
    """period after which it begins again, where it is circular; it is cut at `low`"""


@dataclass(frozen=True)
class Understood:
    """The data as a whole."""

    columns: tuple[Column, ...]
    rows: int
    """rows that were looked at"""
    clients: tuple[str, ...] = ()
    """texts of the column of clients, in the order in which they come"""
    interval_s: float | None = None
    """usual seconds between two readings of a client; None without times"""
    na_values: tuple[str, ...] = ()
    """cells that stand for "no value": words, and numbers"""
    na_values_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """column -> numbers that stand for "no value" in it, and for a value in another one"""
    missing: float = 0.0
    """share of rows without a value of some feature"""
    order: str | None = None
    """order of day, month and year in its dates; None where nothing has to be known of it"""
    are_days: bool = False
    """whether its times are days alone, each that of several readings of a client"""
    quality: Mapping[str, str] = field(default_factory=dict)
    """feature -> the column that says how good its values are"""
    bad_quality: tuple[str, ...] = ()
    """what means bad there"""

    def of(self, kind: Kind) -> tuple[Column, ...]:
        """The columns of that kind, in the order of the data."""
        return tuple(column for column in self.columns if column.kind == kind)


class Cells:
    """The cells of one column."""

    def __init__(self, cells: Sequence[Any], number: Callable[[Any], Any], head: int) -> None:
        self.all_texts = tuple(map(_text_of, cells))
        self.empty = np.array([not text for text in self.all_texts], dtype=np.bool_)
        self.texts = tuple(filter(None, self.all_texts))
        self.words: Counter[str] = Counter()
        """cells that are no numbers -> how many"""
        numbers = []
        for cell in cells:
            value = number(cell)
            is_number = isinstance(value, float) and math.isfinite(value)
            numbers.append(value if is_number else math.nan)
            # As they are in the file: a number that is refused is read as another text.
            if isinstance(value, str):
                self.words[str(cell).strip()] += 1
        self.numbers = np.array(numbers, dtype=np.float64)
        """(n,) NaN where a cell is no number"""
        self.head = self.numbers[:head]

    @property
    def number_share(self) -> float:
        """Share of the cells with something in them that are numbers."""
        return float(np.isfinite(self.numbers).sum()) / max(1, len(self.texts))


def _text_of(cell: Any) -> str:
    if cell is None:
        return ""
    # JSON and the values of categories write true, Python writes True.
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(cell).strip()


class Sample(NamedTuple):
    """Some rows of the data."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """cells as they are in the data"""
    head: int
    """number of the rows, from the first on, that follow each other without a gap"""
    number: Callable[[Any], Any] = number_of
    """a cell -> its number as a float, or anything else"""
    where: str = "the data"
    """names the data in errors"""
    noun: Literal["row", "message"] = "row"
    """what one of them is"""
