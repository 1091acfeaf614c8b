"""Cells that stand for "no value" among the numbers of data: codes such as -999, and words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.producers.column_types import Cells, Column
from shoal.producers.files.parsing import number_of

# Where readings that lack a value are dropped, such a feature would take half of them with it.
MISSING_MAX = 0.5
"""share of rows without a value from which on a feature is left out"""
# -200 is that of the air quality data of UCI, -127 what the common library for DS18B20 sensors
# gives for one that does not answer, and 850 their 85 °C after power on, in tenths.
CODES = (
    -1.0,
    -99.0,
    99.0,
    -999.0,
    -9999.0,
    -99999.0,
    -200.0,
    999.0,
    9999.0,
    99999.0,
    999999.0,
    6999.0,
    99.9,
    99.99,
    999.9,
    999.99,
    9999.9,
    9999.99,
    99999.9,
    99999.99,
    -99.9,
    -99.99,
    -999.9,
    -999.99,
    -9999.9,
    -9999.99,
    -99999.9,
    -99999.99,
    -888.0,
    -8888.0,
    -7999.0,
    -999999.0,
    9999999.0,
    -6999.0,
    32767.0,
    -32768.0,
    65535.0,
    65534.0,
    2147483647.0,
    -2147483648.0,
    4294967295.0,
    -127.0,
    127.5,
    255.0,
    850.0,
    3276.7,
    -3276.8,
    6553.5,
    327.67,
    -327.68,
    655.35,
)
"""numbers that are in use for "no value", ends of types of numbers among them, also as tenths and
hundredths; taken for it only where all other values are far away"""
HUGE = 1e15
"""size from which on a number far from all others is one for "no value": 1e20, 9.96921e36"""
# A number that occurs once may be a true extreme, so it has to lie farther away.
CODE_GAP_OF_ONE = 1.0
"""the same distance where few cells have the number"""
CODE_GAP = 0.25
"""distance of such a number from the nearest other value, as a share of the range of the others"""
WORD_CHARS_MAX = 40
"""most characters of a word that stands for "no value" among numbers"""
# A word that occurs less often may be damage, which as "no value" would be no fault any more.
WORD_CELLS_MIN = 3
"""fewest cells with such a word"""
CODE_CELLS_MIN = 3
"""fewest cells with a number that stands for "no value" """
# The range of fewer values is small by chance, and a further true value far beyond it.
CODE_VALUES_MIN = 10
"""fewest other values by which that is seen"""


def codes_among(na: Sequence[str], columns: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """The numbers among the cells that a person named as those without a value, for each column;
    none where there are none."""
    numbers = [number_of(text) for text in na]
    codes = tuple(number for number in numbers if isinstance(number, float))
    return dict.fromkeys(columns, codes) if codes else {}


def code_text(code: float) -> str:
    """A number as a setting has it: -999, and every digit of 9.969209968386869e+36."""
    short = f"{code:g}"
    return short if float(short) == code else repr(code)


def missing_share(columns: Sequence[Column], cells: Mapping[str, Cells]) -> float:
    """Share of rows without a value of some feature."""
    lacking = []
    for column in columns:
        if column.kind == "feature":
            own = cells[column.name]
            lacking.append(own.empty if column.values else np.isnan(own.numbers))
    if not lacking or not len(lacking[0]):
        return 0.0
    return float(np.any(lacking, axis=0).mean())


def codes_of(columns: Mapping[str, Cells]) -> dict[str, tuple[float, ...]]:
    """The numbers that stand for "no value" in each column: known codes, far from all values.

    None in a column of texts, of which a checksum such as 12E7 looks like a number.
    """
    return {
        name: _codes_in(column.numbers) if column.number_share >= 1 - MISSING_MAX else ()
        for name, column in columns.items()
    }


def _codes_in(numbers: Floats) -> tuple[float, ...]:
    values = numbers[np.isfinite(numbers)]
    is_huge = np.abs(values) >= HUGE
    # A column may hold several codes: none of them may count for the range of the values.
    rest = values[~np.isin(values, CODES) & ~is_huge]
    if len(rest) < CODE_VALUES_MIN:
        return ()
    found = set()
    # Of values that are all alike the range is 0, and every code would be far from them.
    spread = float(np.ptp(rest)) or abs(float(rest[0])) or 1.0
    for code in (*CODES, *np.unique(values[is_huge]).tolist()):
        distance = max(float(rest.min()) - code, code - float(rest.max()))
        cells = int((values == code).sum())
        is_far = cells >= CODE_CELLS_MIN and distance > CODE_GAP * spread
        # -1 may be a value that is only rare.
        is_beyond = cells > 0 and code != -1.0 and distance > CODE_GAP_OF_ONE * spread
        if is_far or is_beyond:
            found.add(code)
    return tuple(sorted(found))


def shared_codes(
    codes: Mapping[str, Sequence[float]], columns: Mapping[str, Cells]
) -> tuple[tuple[float, ...], dict[str, list[float]]]:
    """The codes that no other column may have as a value, and column -> those that one may.

    999 is no value of a temperature, and a pressure all the same.
    """
    own: dict[str, list[float]] = defaultdict(list)
    shared = set()
    for code in sorted(set().union(*codes.values())):
        with_code = [name for name in codes if code in codes[name]]
        others = [columns[name].numbers for name in columns if name not in with_code]
        if not any(map(partial(_is_within, code), others)):
            shared.add(code)
            continue
        for name in with_code:
            own[name].append(code)
    return tuple(sorted(shared)), dict(own)


def _is_within(code: float, numbers: Floats) -> bool:
    """Whether a number is between the smallest and the largest of these."""
    finite = numbers[np.isfinite(numbers)]
    return len(finite) > 0 and bool(finite.min() <= code <= finite.max())


def na_words_in(columns: Iterable[Cells], categories: Collection[str]) -> tuple[str, ...]:
    """The words that stand for "no value" among numbers, such as "n/a": short, no number.

    `categories`: the values of categories, each of which is one.
    """
    words: Counter[str] = Counter()
    for column in columns:
        # The words of a column of texts stand for what they say.
        if len(column.numbers) and np.isfinite(column.numbers).mean() >= 1 - MISSING_MAX:
            words.update(column.words)
    na_words = []
    for word, cells in words.items():
        if cells < WORD_CELLS_MIN or len(word) > WORD_CHARS_MAX or word in categories:
            continue
        # A spreadsheet writes errors as #DIV/0!, and <5 is below what an instrument can measure. A
        # digit first may be a number in a form that was not understood.
        is_word = word[0].isalpha() or not any(map(str.isdigit, word))
        if is_word or word.startswith(("#", "<", ">")):
            na_words.append(word)
    return tuple(sorted(na_words))
