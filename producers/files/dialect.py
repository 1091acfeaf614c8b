"""Dialects: how a CSV file writes its text and its numbers, found from its first rows or given.

A file is understood or refused with the option to set: no number is guessed that could be another
number.
"""

from __future__ import annotations

import codecs
import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from shoal.errors import SettingsError
from shoal.producers.features import UNITS, WRITTEN_OUT, unit_of
from shoal.producers.files.times import is_moment
from shoal.protocol.no_value import is_no_value

DELIMITERS = ",;\t|"
SPACE = " "
"""delimiter of files whose cells runs of spaces separate"""
HEAD_BYTES = 1024 * 1024
"""bytes of a file from which its encoding is found"""
HEAD_LINES = 2000
"""lines of a file from which its delimiter and its numbers are found"""
UNASSIGNED_1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""bytes that have no character in Windows-1252"""
PREAMBLE_LINES_MAX = 50
"""most lines before the header: titles and notes of an export, or `sep=,` of a spreadsheet"""
ROWS_AGREE = 0.9
"""share of the rows that have as many cells as the header, where other lines stand before it"""
UNITS_SEEN = 3
"""fewest cells of a column by which the text behind its numbers is a unit"""
ROWS_BELOW = 3
"""fewest rows, the header among them, in which that shows"""
SPACES = "\u0020\u00a0\u202f'\u2019"
"""signs between groups of digits besides point and comma: space, no-break spaces, apostrophes"""
MINUS = "\u2212"
"""the typographic sign"""

# Numbers with a comma or a point that can only be read in one way.
_GROUPS = r"[+\u2212-]?[1-9]\d{0,2}"
_COMMA_IS_DECIMAL = re.compile(
    rf"[+-]?(0?,\d+|\d+,(\d{{1,2}}|\d{{4,}})|\d{{4,}},\d+|{_GROUPS}(\.\d{{3}})+,\d+)"
)
_POINT_IS_DECIMAL = re.compile(
    r"[+-]?(0?\.\d+|\d+\.|\d+\.(\d{1,2}|\d{4,})|\d{4,}\.\d+|\d+\.\d+[eE][+-]?\d+)"
    rf"|{_GROUPS}(,\d{{3}})+\.\d+"
)
_PLAIN = re.compile(r"[+-]?(\d+|(0?\.\d+|\d+\.(\d{1,2}|\d{4,})|\d{4,}\.\d+))")
"""nearly every number: a whole one, or one whose point must be its decimal sign (group 2)"""
_COMMA_GROUPS = re.compile(rf"{_GROUPS}(,\d{{3}})+(\.\d+)?")
_POINT_GROUPS = re.compile(rf"{_GROUPS}(\.\d{{3}})+(,\d+)?")
_NUMBER = re.compile(
    rf"[+-]?[\d.,{SPACES}]*\d\.?([eE][+-]?\d+)?|[+-]?(inf|nan|infinity)", re.IGNORECASE
)
DIGITS = tuple("0123456789")
_UNIT = (
    r"(?:[^\W\d_]|[%\u2030\u00b0])(?:[^\W\d_]|[%\u00b0/^*\u00b7\u00b2\u00b3-]|(?<=[ms])[23]){0,11}"
)
# 0x1A is no number with a unit, and 3E5 is a number.
_WITH_UNIT = re.compile(rf"(?!0[xXoObB])[+\u2212-]?[\d.,{SPACES}]*\d\s*(?![eE]\d)({_UNIT})")
_CLOCK_OR_DAY = re.compile(r"\d{1,4}([:./-]\d{1,4}){1,2}")
_SPACE_GROUPS = re.compile(rf"{_GROUPS}([{SPACES}])\d{{3}}(\1\d{{3}})*([.,]\d+)?")


TWO_VALUES = re.compile(r"[+-]?(0\d+,\w+|9+,9)")
"""a cell of a number with leading zeros, as records of fixed width have, and the code of its
quality behind a comma: +0142,1 is no 142.1"""


class DialectOptions(NamedTuple):
    """What a person says about the dialect of files; None and "": find it."""

    encoding: str | None = None
    decimal: str | None = None
    """"." or ","; the other one may then separate groups of three digits"""
    na_values: tuple[str, ...] = ()
    """cells that mean "no value", besides empty ones"""


FOUND = DialectOptions()
"""nothing is said: all of it is found"""


class Dialect(NamedTuple):
    """How one CSV file is written."""

    encoding: str = "utf-8-sig"
    delimiter: str = ","
    decimal: str = "."
    thousands: str = ""
    """sign between groups of three digits; empty for none"""
    na_values: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    """texts behind numbers, such as %, each in all cells of a column"""
    preamble: int = 0
    """lines before the header"""
    cells: int = 0
    """cells of a row, where that is not the number of names; 0 where it is"""

    def fitted(self, row: list[str], width: int) -> list[str]:
        """A row with as many cells as there are names, which are `width`; a row of another length
        than usual stays as it is.

        Empty cells at the end of rows may be left out, or be more than there are names.
        """
        if not self.cells or len(row) != self.cells:
            return row
        return [*row, *[""] * (width - len(row))] if len(row) < width else row[:width]

    @property
    def na_words(self) -> frozenset[str]:
        """The texts among `na_values`; its numbers are compared as numbers, once cells are read."""
        return frozenset(text for text in self.na_values if not _NUMBER.fullmatch(text))

    @property
    def is_plain(self) -> bool:
        """Whether Python's `float` reads its numbers."""
        return self.decimal == "." and not self.thousands and not self.units

    def number_text(self, cell: str) -> str | None:
        """The number of a cell as Python writes it; None for no value.

        Any other text stays, but is never a number. Groups that are not of three digits are none:
        1.5 is not read as 15 where points separate groups.
        """
        text = cell.strip()
        if not text or text in self.na_values:
            return None
        if self.is_plain:
            return cell
        if self.units:
            unit = unit_behind(text)
            if unit in self.units:
                text = text.removesuffix(unit).rstrip()
        if self.thousands and self.thousands in text:
            whole, sign, part = text.partition(self.decimal)
            first, *groups = whole.split(self.thousands)
            are_groups = all(_THREE_DIGITS.fullmatch(group) for group in groups)
            if not re.fullmatch(_GROUPS, first) or not are_groups:
                # In brackets no reader takes it for a number: the reading is rejected, not learnt
                # with a wrong value.
                return f"<{text}>"
            text = f"{first}{''.join(groups)}{sign}{part}"
        if self.decimal == ".":
            return text
        # A point in a file of decimal commas is no decimal sign, and two values are no number.
        if "." in text or (self.delimiter == "," and TWO_VALUES.fullmatch(text)):
            return f"<{text}>"
        return text.replace(",", ".")

    def plain_lines(self, lines: Sequence[str]) -> Sequence[str]:
        """The lines as Python reads numbers; a cell that `number_text` would refuse is none."""
        if self.decimal == ".":
            return lines
        return [line.translate(_COMMA_TO_POINT) for line in lines]

    def sentence(self) -> str:
        """How the file was understood, for people."""
        names = {
            "\t": "tab",
            " ": "runs of spaces",
            "\u00a0": "no-break space",
            "\u202f": "narrow no-break space",
        }
        delimiter = names.get(self.delimiter, repr(self.delimiter))
        parts = [f"delimiter {delimiter}", f"decimal sign {self.decimal!r}"]
        if self.thousands:
            thousands = names.get(self.thousands, repr(self.thousands))
            parts.append(f"groups of three digits by {thousands}")
        parts.append(f"encoding {self.encoding.removesuffix('-sig')}")
        if self.units:
            parts.append(f"units behind numbers: {', '.join(sorted(self.units))}")
        if self.preamble:
            parts.append(f"header in line {self.preamble + 1}")
        return ", ".join(parts)


_THREE_DIGITS = re.compile(r"\d{3}")
_COMMA_TO_POINT = str.maketrans({",": ".", ".": "x"})


def encoding_of(head: bytes) -> str:
    """The encoding of a text by its first bytes: UTF-8, UTF-16 or UTF-32, else Windows-1252.

    Other encodings of one byte a character cannot be told apart; they read digits alike.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        # Before UTF-16, whose mark this one begins with.
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if head.startswith(mark):
            return name
    # Digits and delimiters have a zero byte in UTF-16.
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        # Half of the characters: the other half may be names in other scripts.
        if head[first::2].count(0) > len(head) // 4:
            return name
    try:
        # Incremental, as the head may end within a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        if UNASSIGNED_1252.search(head):
            # It has a character for every byte.
            return "latin-1"
        return "cp1252"
    return "utf-8-sig"


_SCRIPTS = {
    "cp1251": "CYRILLIC",
    "koi8-r": "CYRILLIC",
    "cp1253": "GREEK",
    "gb18030": "CJK",
    "big5": "CJK",
    "cp932": "CJK HIRAGANA KATAKANA",
    "cp949": "HANGUL",
    "cp1256": "ARABIC",
    "cp1255": "HEBREW",
    "cp874": "THAI",
}
"""encodings of other scripts than the Latin one -> the first words of the names of its letters"""
_MARKED = bytes(range(0x80, 0x100))
_RUN_OF_LETTERS = re.compile(rb"[\x80-\xff]{2,}")
_WORD_OF_LETTERS = re.compile(rb"[^\x00-\x40\[-`{-\x7f]*[\x80-\xff][^\x00-\x40\[-`{-\x7f]*")


def scripts_of(head: bytes) -> dict[str, str]:
    """encoding -> how it reads some word, for a text in the letters of another script than the
    Latin one; none for any other text, which Windows-1252 reads.

    Which of them it is no program can tell from a few names. In Latin texts letters with accents
    stand alone.
    """
    marked = len(head) - len(head.translate(None, delete=_MARKED))
    runs = [len(run) for run in _RUN_OF_LETTERS.findall(head)]
    longest = max(runs, default=0)
    in_long_runs = sum(length for length in runs if length > 2)
    # Of signs of two bytes each many stand alone, as those behind the numbers of a date.
    has_pairs = longest > 3 and sum(runs) >= 0.9 * marked
    if not marked or not (has_pairs or in_long_runs >= marked / 2):
        return {}
    word = max(_WORD_OF_LETTERS.findall(head[:4096]) or [b""], key=len)
    readings = {}
    for encoding, letters in _SCRIPTS.items():
        try:
            text = word.decode(encoding)
        except UnicodeDecodeError:
            continue
        scripts = [unicodedata.name(sign, "").split(" ")[0] for sign in text if not sign.isascii()]
        if scripts and all(script in letters.split() for script in scripts):
            readings[encoding] = text
    return readings


def known_encoding(name: str) -> str:
    """The encoding of that name. Raises `SettingsError` for none."""
    try:
        known = codecs.lookup(name).name
    except LookupError:
        raise SettingsError(
            f"--encoding {name!r}: no such encoding; for instance utf-8, utf-16, cp1252, latin-1"
        ) from None
    # A mark at the beginning of the file is no part of the first column's name.
    return "utf-8-sig" if known == "utf-8" else known


def delimiter_of(lines: Sequence[str]) -> str:
    """The delimiter under which most lines have as many cells as the first.

    Of equals, it is the one with more cells, and then with more numbers and times.
    """
    if not lines:
        return ","
    try:
        best, alike = _best_delimiter(lines)
        if alike >= ROWS_AGREE * len(lines):
            return best
        # The header may have another number of cells than all rows.
        of_rows, alike = _best_delimiter(lines[1:])
        if alike >= ROWS_AGREE * len(lines):
            return of_rows
        return SPACE if _are_spaced(lines) else best
    except csv.Error:
        # A cell that is too long: the rows are read one by one, and counted.
        bare = re.sub(r'"[^"]*"', "", lines[0])
        return max(DELIMITERS, key=bare.count)


def _best_delimiter(lines: Sequence[str]) -> tuple[str, int]:
    """The delimiter by which most rows are as wide as the first, and how many are."""
    agreements = {sign: _agreement(lines, sign) for sign in DELIMITERS}
    best = max(agreements.values())
    equals = [sign for sign in DELIMITERS if agreements[sign] == best]
    # Nearly always there is one, and no cell has to be looked at.
    if len(equals) > 1:
        equals.sort(key=lambda sign: -_measured_cells(lines[:LINES_ALIKE], sign))
    return equals[0], best[0]


LINES_ALIKE = 20
"""lines that decide between two delimiters of equal right"""


def _measured_cells(lines: Sequence[str], delimiter: str) -> int:
    """Number of the cells that are numbers or times: 21,5;35,3 has two of them by semicolons."""
    cells = chain.from_iterable(csv.reader(lines, delimiter=delimiter))
    return sum(is_measured(cell.strip()) for cell in cells)


def _are_spaced(lines: Sequence[str]) -> bool:
    """Whether runs of spaces separate cells, most of which are numbers, in nearly all lines."""
    rows = [line.split() for line in lines if line.strip()]
    if len(rows) < ROWS_BELOW:
        return False
    width = Counter(map(len, rows)).most_common(1)[0][0]
    alike = [row for row in rows if len(row) == width]
    if width < 2 or len(alike) < ROWS_AGREE * len(rows):
        return False
    numbers = 0
    for row in alike:
        for cell in row:
            numbers += (
                _NUMBER.fullmatch(cell) is not None or _CLOCK_OR_DAY.fullmatch(cell) is not None
            )
    # Spaces separate the words of prose as well, which has few numbers.
    return numbers >= len(alike) * width / 2


def spaced(line: str) -> str:
    """A line whose cells runs of spaces or tabs separate, with one space between them."""
    return f"{' '.join(line.split())}\n"


def _agreement(lines: Sequence[str], delimiter: str) -> tuple[int, int]:
    """How many rows are as wide as the first, and its width.

    In this order: a comma within texts splits few rows alike.
    """
    rows = (row for row in csv.reader(lines, delimiter=delimiter) if row)
    first = next(rows, None)
    if first is None:
        return 0, 0
    # Under a sign that does not occur all rows have one cell, and so agree: no other is read.
    if len(first) == 1:
        return 0, 1
    width = len(first)
    return 1 + sum(len(row) == width for row in rows), width


def preamble_of(lines: Sequence[str]) -> int:
    """How many lines stand before the header; 0 where the first line is one.

    The header is then the first line that has as many cells as nearly all after it, names in
    several, and no number.
    """
    # Every place is tried with all these lines and all delimiters.
    lines = lines[: 4 * PREAMBLE_LINES_MAX]
    notes = 0
    while notes < len(lines) and lines[notes].startswith("#"):
        notes += 1
    try:
        # Notes as long as the rows, such as #datatype of InfluxDB; a header with # in front has
        # numbers below it.
        if 0 < notes < len(lines) - 1:
            below = _agreeing(lines[notes:])
            if below.header and not any(map(_NUMBER.fullmatch, below.header)):
                return notes
        if len(lines) < 3:
            return 0
        if _agreeing(lines).share > 0.5:
            return _notes_as_wide(lines)
        if not _is_header_of_other_width(lines):
            return _first_header(lines) or _longer_header(lines)
    except csv.Error:
        # The row is counted as broken when it is read.
        pass
    return 0


def _first_header(lines: Sequence[str]) -> int:
    """How many lines stand before the first one that has as many cells as nearly all after it, and
    names in several; 0 for none."""
    for place in range(1, min(PREAMBLE_LINES_MAX + 1, len(lines) - 2)):
        if not lines[place].strip():
            continue
        rows = _agreeing(lines[place:])
        names = [cell.strip() for cell in rows.header]
        has_names = sum(map(bool, names)) > 1 and not any(map(is_measured, names))
        if rows.share >= ROWS_AGREE and has_names:
            return place + _notes_as_wide(lines[place:])
    return 0


def _is_header_of_other_width(lines: Sequence[str]) -> bool:
    """Whether the first line has names for nearly all rows, which have more or fewer cells."""
    first, *below = list(csv.reader(lines, delimiter=delimiter_of(lines)))
    if len(first) < 2 or not _is_whole_header(first):
        return False
    return bool(_usual_cells(below, len(first))) or with_row_names(first, below) is not first


def _longer_header(lines: Sequence[str]) -> int:
    """How many lines stand before a header with more names than nearly all rows have cells; 0 for
    none, and where the first line is it."""
    for delimiter in DELIMITERS:
        rows = list(csv.reader(lines, delimiter=delimiter))
        for place in range(1, min(PREAMBLE_LINES_MAX + 1, len(rows) - ROWS_BELOW)):
            header = rows[place]
            below = [row for row in rows[place + 1 :] if row]
            cells, alike = Counter(map(len, below)).most_common(1)[0] if below else (0, 0)
            is_usual = 1 < cells < len(header) and alike >= ROWS_AGREE * len(below)
            if is_usual and _is_whole_header(header) and _measured_places(below[0]):
                return place
    return 0


NOTES_MAX = 10
"""most lines of notes that have as many cells as the readings"""


def _notes_as_wide(lines: Sequence[str]) -> int:
    """How many lines of notes stand before the header that have as many cells as the rows, as those
    of a station with its place; 0 for none.

    They are a header of their own and what stands below it, which is no reading.
    """
    delimiter = delimiter_of(lines)
    rows = list(csv.reader(lines[: NOTES_MAX + HEADER_ROWS_MAX + UNITS_SEEN], delimiter=delimiter))
    for place in range(2, min(NOTES_MAX, len(rows) - UNITS_SEEN) + 1):
        header = rows[place]
        rows_of_header = _further_rows(header, rows[place + 1 :])
        readings = rows[place + 1 + rows_of_header :][:UNITS_SEEN]
        if len(readings) < UNITS_SEEN or {len(row) for row in rows[:place]} != {len(header)}:
            return 0
        measured = [_measured_places(row) for row in readings]
        # A header that comes again has readings above it, and so is none of a second table.
        is_above_alike = any(_measured_places(row) >= measured[0] for row in rows[:place])
        is_alike = bool(measured[0]) and measured.count(measured[0]) == UNITS_SEEN
        has_numbers_above = any(map(_measured_places, rows[:place]))
        if not is_alike or not has_numbers_above or is_above_alike:
            continue
        # The column of the time may have no name.
        named = [header[column] for column in sorted(measured[0]) if header[column].strip()]
        if _is_whole_header(header) or (
            len(named) >= max(2, len(measured[0]) - 1) and _is_whole_header(named)
        ):
            return place
    return 0


def _measured_places(row: Sequence[str]) -> frozenset[int]:
    """The positions of the cells of a row that are numbers or times."""
    return frozenset(place for place, cell in enumerate(row) if is_measured(cell.strip()))


class _Agreeing(NamedTuple):
    share: float = 0.0
    """share of the rows that are as long as the first"""
    header: Sequence[str] = ()
    """the first row, of several cells; none where no delimiter gives it several"""


def _agreeing(lines: Sequence[str]) -> _Agreeing:
    """The rows under the delimiter with which most of them are as long as the first."""
    best = _Agreeing()
    for delimiter in DELIMITERS:
        rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        if len(rows) >= ROWS_BELOW and len(rows[0]) > 1:
            alike = sum(len(row) == len(rows[0]) for row in rows)
            best = max(best, _Agreeing(alike / len(rows), tuple(rows[0])))
    return best


def column_names(header: Iterable[str]) -> tuple[str, ...]:
    """The names of columns by the cells of a header. Those that occur several times are numbered,
    from #1."""
    names = []
    for place, name in enumerate(header, 1):
        # A name that is not there must not hide the column.
        names.append(name.strip() or f"column-{place}")
    occurs = Counter(names)
    before: Counter[str] = Counter()
    unique = []
    for name in names:
        before[name] += 1
        is_repeated = occurs[name] > 1
        unique.append(f"{name} #{before[name]}" if is_repeated else name)
    return tuple(unique)


def is_unnamed(name: str) -> bool:
    """Whether a column is called by its place or a number, as where there are no names."""
    return re.fullmatch(r"(column-)?\d+", name) is not None


_BRACKETED = re.compile(r"[\[(].{0,16}[\])]|[-\u2013]?")
_BARE_UNIT = re.compile(rf"{_UNIT}|[-\u2013]?")
_SIGN_OF_UNIT = re.compile(r"[%\u2030\u00b0\u00b5\u00b2\u00b3\[(]")
_LETTERS_OF_UNIT = UNITS.keys() | {"v", "a", "ah"}
"""units without such a sign, in lower case"""


def units_below(header: Sequence[str], below: Sequence[Sequence[str] | None]) -> bool:
    """Whether the first row below a header holds the units of its columns: [bar], °C, or l/min.

    Loggers write them so. Columns with a unit have numbers in the next `UNITS_SEEN` rows, one at
    least, or signs for no value; `below` has these rows.
    """
    whole = [row for row in below[: 1 + UNITS_SEEN] if row is not None and len(row) == len(header)]
    if len(whole) <= UNITS_SEEN:
        return False
    units, *rows = ([cell.strip() for cell in row] for row in whole)
    if not (all(map(_BRACKETED.fullmatch, units)) or all(map(_BARE_UNIT.fullmatch, units))):
        return False
    with_unit: list[int] = []
    has_signs = any(map(_SIGN_OF_UNIT.search, units))
    for place, unit in enumerate(units):
        # The form of dates stands in brackets as well: [dd.MM.yyyy HH:mm].
        if all(is_moment(row[place]) for row in rows):
            continue
        if has_signs:
            if _SIGN_OF_UNIT.match(unit) and unit.strip("[]()-"):
                with_unit.append(place)
        elif unit.strip("-\u2013"):
            with_unit.append(place)
            # Letters alone may be anything, such as the values of a row of texts.
            if unit.lower() not in _LETTERS_OF_UNIT:
                return False
    if not has_signs and not with_unit:
        return False
    return all(_hold_numbers([row[place] for row in rows]) for place in with_unit)


HEADER_ROWS_MAX = 3
"""most rows below the header that hold names, units or processing, and no reading"""


def names_and_rows(
    header: Sequence[str], below: Sequence[Sequence[str] | None]
) -> tuple[Sequence[str], int]:
    """The names of columns, with their units where they are known, and the number of rows below the
    header that belong to it.

    Loggers write units and processing there, spreadsheets names below merged cells.
    """
    if units_below(header, below) and below[0]:
        first = with_units(header, below[0])
        return first, 1 + _further_rows(header, below[1:])
    number = _further_rows(header, below)
    names = list(header)
    last = below[number - 1] if number > 1 else None
    if last is not None and _is_whole_header(last) and not _is_whole_header(header):
        # What stands above it are notes: what the station is called, where it is.
        return list(last), number
    for row in below[:number]:
        if row is None:
            continue
        texts = [cell.strip() for cell in row]
        is_below_merged = any(
            text and not name.strip() for name, text in zip(names, texts, strict=True)
        )
        if is_below_merged and not any(map(_is_known_unit, texts)):
            names = _below_merged(names, texts)
        else:
            # The first unit counts: a processing of Min that follows it is no minutes.
            units = [
                text if _is_known_unit(text) and not _ends_in_unit(name) else ""
                for name, text in zip(names, texts, strict=True)
            ]
            names = with_units(names, units)
    return names, number


def _ends_in_unit(name: str) -> bool:
    unit = unit_of(name)[1].lower()
    return _is_known_unit(unit) or unit in _LETTERS_OF_UNIT


def _is_whole_header(cells: Sequence[str]) -> bool:
    """Whether each of these cells has a name of its own, and none is a unit."""
    texts = [cell.strip() for cell in cells]
    return (
        all(texts)
        and len(set(texts)) == len(texts)
        and not any(_is_known_unit(text) or is_measured(text) for text in texts)
    )


def _is_known_unit(text: str) -> bool:
    return text.lower() in UNITS or text.lower() in WRITTEN_OUT


def _below_merged(header: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Names of two rows: a name of the first one is that of all columns up to the next."""
    names = []
    above = ""
    for name, text in zip(header, texts, strict=True):
        above = name.strip() or above
        names.append(f"{above} {text}".strip())
    return names


def _further_rows(header: Sequence[str], below: Sequence[Sequence[str] | None]) -> int:
    """The number of rows below a header, at most `HEADER_ROWS_MAX`, that have texts where all of
    the next `UNITS_SEEN` rows have numbers or times."""
    for number in range(HEADER_ROWS_MAX, 0, -1):
        readings = below[number : number + UNITS_SEEN]
        whole = [row for row in readings if row is not None and len(row) == len(header)]
        rows = [row for row in below[:number] if row is not None and len(row) == len(header)]
        if len(whole) < UNITS_SEEN or len(rows) < number:
            continue
        measured = []
        for place in range(len(header)):
            if all(is_measured(row[place].strip()) for row in whole):
                measured.append(place)
        if measured and all(_is_of_header([row[place] for place in measured]) for row in rows):
            return number
    return 0


def is_measured(cell: str) -> bool:
    """Whether a cell without spaces around it is a number, in any notation, or a time."""
    return _NUMBER.fullmatch(cell) is not None or is_moment(cell)


def _is_of_header(cells: Sequence[str]) -> bool:
    """Whether none of these cells is a number or a time, and one is a text that has a meaning."""
    texts = [cell.strip() for cell in cells]
    return not any(map(is_measured, texts)) and any(not is_no_value(text) for text in texts)


def _hold_numbers(cells: Sequence[str]) -> bool:
    """Whether some of these cells are numbers, and the others nothing but signs, as in "---"."""
    has_numbers = False
    for cell in cells:
        if _NUMBER.fullmatch(cell):
            has_numbers = True
        elif any(map(str.isalnum, cell)):
            return False
    return has_numbers


def with_units(header: Sequence[str], row: Sequence[str]) -> list[str]:
    """The names of a header, each followed by its unit of the row below."""
    units = [cell.strip().strip("[]()").strip("-\u2013 ") for cell in row]
    return [
        f"{name.strip()} [{unit}]" if unit and name.strip() else name
        for name, unit in zip(header, units, strict=True)
    ]


def unit_behind(cell: str) -> str:
    """The unit that follows the number of a cell, as in "12.5 °C"; "" for none."""
    # First, as it is nearly every cell. m2 and s3 are units.
    if cell[-1:] in DIGITS and cell[-2:-1] not in ("m", "s"):
        return ""
    number = _WITH_UNIT.fullmatch(cell)
    if not number:
        return ""
    return number[1]


def _units_of(columns: Iterable[Sequence[str]]) -> frozenset[str]:
    """The units behind numbers in columns where all numbers have the same one.

    None that some numbers of another column lack: it is not known what those mean.
    """
    units: set[str] = set()
    doubtful: set[str] = set()
    for cells in columns:
        texts = [cell.strip() for cell in cells]
        behind = Counter(filter(None, map(unit_behind, texts)))
        if any(map(_NUMBER.fullmatch, texts)):
            doubtful |= set(behind)
        elif len(behind) == 1 and behind.total() >= UNITS_SEEN:
            units |= set(behind)
    return frozenset(units - doubtful)


class _SignsSeen:
    """The signs that numbers of a file have."""

    def __init__(self) -> None:
        self.commas = False
        """whether a comma can only be the decimal sign of some number"""
        self.points = False
        self.comma_groups = False
        """whether a comma can separate groups of three digits of some number"""
        self.point_groups = False
        self.spaces = ""
        """another sign between such groups"""

    def add(self, cells: Iterable[str]) -> None:
        # In one loop, and a plain number asks for none of the other signs: both for every cell of
        # the first lines would take most of a producer's start.
        for cell in cells:
            text = cell.strip().replace(MINUS, "-")
            plain = _PLAIN.fullmatch(text)
            if plain is None:
                self._add_other(text)
            elif plain[2]:
                self.points = True

    def _add_other(self, text: str) -> None:
        """Add a text that is no plain number."""
        text = text.removesuffix(unit_behind(text)).rstrip()
        self.commas = self.commas or bool(_COMMA_IS_DECIMAL.fullmatch(text))
        self.points = self.points or bool(_POINT_IS_DECIMAL.fullmatch(text))
        self.comma_groups = self.comma_groups or bool(_COMMA_GROUPS.fullmatch(text))
        self.point_groups = self.point_groups or bool(_POINT_GROUPS.fullmatch(text))
        spaced = _SPACE_GROUPS.fullmatch(text)
        if spaced:
            self.spaces = spaced[1]

    def thousands(self, decimal: str) -> str:
        """The sign between groups of three digits, where this is the decimal sign; "" for none."""
        if self.spaces:
            return self.spaces
        if decimal == ",":
            return "." if self.point_groups else ""
        return "," if self.comma_groups else ""


def numbers_of(cells: Iterable[str], decimal: str | None, where: str) -> tuple[str, str]:
    """The decimal sign of the numbers in these cells, and the sign between groups of three digits.

    `decimal`: the decimal sign that a person gave; `where` names the file in errors. Other texts
    among the cells do not count. Raises `SettingsError` where both signs are decimal signs, or
    where 1,234 may be either.
    """
    signs = _SignsSeen()
    signs.add(cells)
    if decimal is not None:
        return decimal, signs.thousands(decimal)
    if signs.commas and signs.points:
        raise SettingsError(
            f"{where}: some numbers have a decimal comma and some a decimal point; give --decimal ,"
            " or --decimal . and the others are rejected"
        )
    # 1,234 alone is both a number of four digits and one with three decimals: a person has to say.
    if signs.comma_groups and not (signs.commas or signs.points):
        raise SettingsError(
            f"{where}: a comma in its numbers may be a decimal sign or separate thousands; give"
            " --decimal , or --decimal ."
        )
    decimal = "," if signs.commas else "."
    return decimal, signs.thousands(decimal)


def dialect_of(
    lines: Sequence[str], encoding: str, options: DialectOptions, columns: Sequence[str], where: str
) -> Dialect:
    """The dialect of a CSV file by its first lines.

    `columns`: names of the columns that should hold numbers; empty: all. Raises `SettingsError`
    where the file may be read in two ways.
    """
    preamble = preamble_of(lines)
    delimiter = delimiter_of(lines[preamble:])
    below_preamble = lines[preamble:]
    if delimiter == SPACE:
        below_preamble = [spaced(line) for line in below_preamble if line.strip()]
    rows = csv.reader(below_preamble, delimiter=delimiter)
    cells: list[list[str]] = []
    usual = 0
    try:
        first = next(rows, [])
        below = list(islice(rows, HEAD_LINES))
        first = with_row_names(first, below)
        names, rows_below = names_and_rows(first, below)
        below = below[rows_below:]
        header = column_names(names)
        usual = _usual_cells(below, len(header))
        form = Dialect(cells=usual)
        whole = [row for row in (form.fitted(row, len(header)) for row in below) if row]
        whole = [row for row in whole if len(row) == len(header)]
        for place, name in enumerate(header):
            of_column = [row[place] for row in whole]
            with_comma = [cell for cell in of_column if "," in cell]
            hold_two = delimiter == "," and any(map(TWO_VALUES.fullmatch, with_comma))
            if not hold_two and (not columns or name in columns):
                cells.append(of_column)
    except csv.Error:
        # The row is counted as broken when it is read.
        pass
    decimal, thousands = numbers_of(chain.from_iterable(cells), options.decimal, where)
    return Dialect(
        encoding,
        delimiter,
        decimal,
        thousands,
        frozenset(options.na_values),
        _units_of(cells),
        preamble,
        usual,
    )


def with_row_names(header: list[str], below: Sequence[Sequence[str] | None]) -> list[str]:
    """The header, with an empty name in front where all rows have a name of their own there, as R
    writes tables."""
    rows = [row for row in below if row is not None]
    if len(rows) < ROWS_BELOW or any(len(row) != len(header) + 1 for row in rows):
        return header
    are_names = all(row[-1].strip() for row in rows[:UNITS_SEEN])
    return ["", *header] if are_names and header[:1] != [""] else header


def _usual_cells(rows: Sequence[Sequence[str]], width: int) -> int:
    """The cells of nearly all rows, where they are fewer than the `width` names, or more and empty;
    0 for any other rows."""
    if not rows:
        return 0
    cells, alike = Counter(map(len, rows)).most_common(1)[0]
    if cells == width or cells < 2 or alike < ROWS_AGREE * len(rows):
        return 0
    # A cell without a name that holds something shifts all others, as row names of R do.
    for row in rows:
        if len(row) == cells and any(cell.strip() for cell in row[width:]):
            return 0
    return cells
