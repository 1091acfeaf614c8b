"""Texts that mean "no value" wherever readings come in: in files, messages, requests and tables.

They are those that common systems write in place of a number: NumPy, pandas and R, spreadsheets,
C on Windows, Home Assistant, the states of industrial historians, and exports in other languages
than English. A word that may be a state of its own, as the one for "none", is not among the latter.
Any other text among numbers is no number, which is another fault: a person has to see it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

_BY_ORIGIN: Final[Mapping[str, Sequence[str]]] = {
    "programs and files": (
        "nan",
        "na",
        "n/a",
        "n.a.",
        "n.a",
        "nat",
        "null",
        "nil",
        "none",
        "undefined",
        "undef",
        "missing",
        "empty",
        "no data",
        "nodata",
        "no_data",
        "no value",
        "not available",
        "unavailable",
        "unknown",
        "invalid",
        "error",
        "err",
        "fault",
        "offline",
        "disconnected",
        "timeout",
    ),
    "numbers that are none, as C prints them": (
        "1.#qnan",
        "-1.#qnan",
        "1.#ind",
        "-1.#ind",
        "-nan",
        "-nan(ind)",
        "nan(ind)",
    ),
    "control systems and historians": (
        "bad",
        "bad input",
        "bad data",
        "bad quality",
        "comm fail",
        "i/o timeout",
        "io timeout",
        "scan off",
        "shutdown",
        "not connect",
        "not connected",
        "out of serv",
        "pt created",
        "no good data for calculation",
        "arc off-line",
        "over range",
        "under range",
        "no result",
        "calc failed",
        "configure",
        "intf shut",
    ),
    "spreadsheets": (
        "#n/a",
        "#na",
        "#value!",
        "#div/0!",
        "#ref!",
        "#num!",
        "#null!",
        "#name?",
        "#spill!",
        "#nv",
        "#n/d",
        "#wert!",
        "#bezug!",
        "#zahl!",
        "#valeur!",
        "#nombre!",
        "#valor!",
        "#¡valor!",
        "#¡div/0!",
        "#¡num!",
        "#valore!",
    ),
    "German": (
        "k.a.",
        "k. a.",
        "n.v.",
        "keine daten",
        "nicht verfügbar",
        "ungültig",
    ),
    "French, Italian": (
        "n/d",
        "n.d.",
        "données manquantes",
        "non disponible",
    ),
    "Spanish, Portuguese": (
        "s/d",
        "sin dato",
        "sin datos",
        "no disponible",
        "sem dado",
        "sem dados",
        "não disponível",
    ),
    "Polish, Dutch, Russian": (
        "brak danych",
        "geen gegevens",
        "нет данных",
    ),
    "Chinese, Japanese, Korean": (
        "无数据",
        "无效",
        "缺测",
        "缺失",
        "欠測",
        "결측",
    ),
}
"""origin -> its words for no value, in lower case"""
WORDS: Final = frozenset(chain.from_iterable(_BY_ORIGIN.values()))
"""all of them"""
_NUMBERED: Final = re.compile(r"\[-\d{1,6}\] [^\[\]]{1,80}")
"""an error that historians write with its number: [-11059] No Good Data For Calculation"""
_CHARS_MAX: Final = max(map(len, WORDS)) + 8


def is_no_value(text: str) -> bool:
    """Whether a text in place of a number means that there is no value.

    That is an empty one, one of `WORDS`, signs alone, as in "---", or an error with its number.
    """
    if len(text) > _CHARS_MAX:
        return _NUMBERED.fullmatch(text.strip()) is not None
    # pandas writes <NA>, and other systems write words in brackets as well.
    bare = text.strip().strip("<>()[]").strip().lower()
    if bare in WORDS or not any(map(str.isalnum, bare)):
        return True
    return _NUMBERED.fullmatch(text.strip()) is not None
