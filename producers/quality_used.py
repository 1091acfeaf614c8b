"""The columns of data that say how good the values of others are, and which of them are used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shoal.kernels.arrays import Bools
from shoal.producers.column_types import Cells
from shoal.producers.quality import BadQuality
from shoal.producers.quality_columns import QualityOf, agreed, quality_of


class Qualities(NamedTuple):
    """The columns that say how good the values of others are."""

    found: Mapping[str, QualityOf]
    used: Mapping[str, QualityOf]
    """those of `found` whose bad cells are known, and that one list fits"""
    bad_rows: Mapping[str, Bools]
    """column that is used -> (n,) rows in which it means bad"""

    @property
    def written(self) -> tuple[str, ...]:
        """What means bad in those that are used."""
        cells: dict[str, None] = {}
        for quality in self.used.values():
            cells |= dict.fromkeys(quality.bad)
        return tuple(cells)

    def reason(self, name: str) -> str:
        """What is made of a column that was found, for people."""
        quality = self.found[name]
        about = ", ".join(quality.features) or "all values of its row"
        values = f"the values of {about}" if quality.features else about
        # Of the words that mean bad, those that occur.
        occur = [text for text in quality.bad if _occurs(text, quality.codes)]
        bad = ", ".join(occur or quality.bad)
        if name in self.used:
            share = self.bad_rows[name].mean()
            where = f"it is {bad}" if occur else "it means bad"
            return f"of {about}; where {where} ({share:.2%} of the rows), a value is missing"
        if not quality.bad:
            return (
                f"how good {values} are, in codes of no known list"
                f" ({', '.join(quality.codes)}): name those that mean bad with --bad-quality"
            )
        return (
            f"how good {values} are; what means bad in it, {bad}, means good in"
            " another column of quality"
        )

    def by_feature(self, features: Iterable[str]) -> dict[str, str]:
        """feature -> the column of its quality: one of its own before one of its row."""
        columns = {}
        for feature in features:
            for name, quality in self.used.items():
                if feature in quality.features:
                    columns[feature] = name
                    break
                if not quality.features:
                    columns.setdefault(feature, name)
        return columns


def _occurs(bad: str, codes: Sequence[str]) -> bool:
    rule = BadQuality((bad,))
    return any(map(rule.is_bad, codes))


def used_qualities(
    cells: Mapping[str, Cells], measured: Mapping[str, Cells], bad: Sequence[str]
) -> Qualities:
    """The columns of quality; `bad`: what a person named as bad in them."""
    found: dict[str, QualityOf] = {}
    for name, column in measured.items():
        quality = quality_of(name, column.all_texts, list(cells), bad)
        if quality is None:
            continue
        features = tuple(feature for feature in quality.features if feature in measured)
        # The state of a client is about all of its row, where it is known to be one of quality.
        if features or not quality.features or quality.bad:
            found[name] = quality._replace(features=features)
    used = {}
    bad_rows = {}
    for name in agreed(found, {name: list(set(cells[name].texts)) for name in found}):
        used[name] = found[name]
        rules = BadQuality(found[name].bad)
        bad_rows[name] = np.array([rules.is_bad(text) for text in cells[name].all_texts])
    return Qualities(found, used, bad_rows)
