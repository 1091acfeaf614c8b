"""Texts that mean "no value" wherever readings come in: in files, messages, requests and tables.

They are those that common systems write in place of a number: NumPy, pandas and R, spreadsheets,
C on Windows, Home Assistant, the states of industrial historians, and exports in other languages
than English. A word that may be a state of its own, as the one for "none", is not among the latter.
Any other text among numbers is no number, which is another fault: a person has to see it.
"""

from __future__ import annotations

import re
from typing import Final

WORDS: Final = frozenset(
    {
        *("nan", "na", "n/a", "n.a.", "n.a", "#n/a", "#na", "nat", "null", "nil", "none"),
        *("undefined", "undef", "missing", "empty", "no data", "nodata", "no_data", "no value"),
        *("not available", "unavailable", "unknown", "invalid", "error", "err", "fault", "offline"),
        *("#value!", "#div/0!", "#ref!", "#num!", "#null!", "#name?"),
        *("1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind", "-nan", "-nan(ind)", "nan(ind)"),
        *("bad", "bad input", "bad data", "bad quality", "comm fail", "i/o timeout", "io timeout"),
        *("scan off", "shutdown", "not connect", "not connected", "out of serv", "pt created"),
        *("no good data for calculation", "arc off-line", "over range", "under range", "no result"),
        *(
            "n/d",
            "n.d.",
            "n.v.",
            "k.a.",
            "k. a.",
            "s/d",
            "#nv",
            "#n/d",
            "#wert!",
            "#bezug!",
            "#zahl!",
        ),
        *(
            "#valeur!",
            "#nombre!",
            "#valor!",
            "#¡valor!",
            "#¡div/0!",
            "#¡num!",
            "#valore!",
            "#spill!",
        ),
        *("keine daten", "nicht verfügbar", "ungültig", "données manquantes", "non disponible"),
        *("sin dato", "sin datos", "no disponible", "sem dado", "sem dados", "não disponível"),
        *(
            "brak danych",
            "geen gegevens",
            "нет данных",
            "无数据",
            "无效",
            "缺测",
            "缺失",
            "欠測",
            "결측",
        ),
        *("calc failed", "configure", "intf shut", "disconnected", "timeout"),
    }
)
"""words, in lower case"""
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
