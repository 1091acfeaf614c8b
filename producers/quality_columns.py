"""Columns that say how good the values of others are, found by their names and codes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.producers.features import NUMBERED
from shoal.producers.quality import BAD_WORDS, BadQuality
from shoal.protocol.no_value import is_no_value

VALUES_MAX = 16
"""most different cells of a column of quality: more are a quantity, as an index of air quality"""
MAJORITY = 0.8
"""share of the cells with one code, from which on that is seen to mean good"""
_STRONG = (
    r"quality|qual|q[ac]|qf|qflag|qualifier|valid(ity)?|status[_ ]?code|good|ok|qualit(ä|ae)t|"
    r"approval|qualit[eéaà]|calidad|qualidade|validit[eé]|g(ü|ue)ltig(keit)?"
)
_WEAK = r"flags?|status|q|err(or)?|cd"
_END = r"([_. ]?(code|flag|symbol|no|id))?"
_BEHIND = re.compile(rf"(?P<of>.*?)[._ :/-]?(?P<noun>{_STRONG}|{_WEAK}){_END}")
_BEFORE = re.compile(rf"(?P<noun>{_STRONG}|flag){_END}[._ :/-](?P<of>.+)")
_IS_STRONG = re.compile(_STRONG)
_OF_THE_ROW = frozenset({"sensor", "data", "device", "reading", "measurement", "sample", "row"})
"""words before quality that mean all values of the row"""
_APART = frozenset({"good", "ok", "q"})
"""those that end other words as well, and alone may be about anything"""
_IS_TRUTH = re.compile(r"valid(ity)?|good|ok|g(ü|ue)ltig(keit)?|validit[eé]")
"""names of columns that are true, or 1, for a good value"""
_KNOWN_WORDS = re.compile(
    r"(good|ok|okay|valid|passed?|uncertain|questionable|suspect|doubtful"
    r"|bad|invalid|fail(ed|ure)?|error|fault|missing"
    r"|gut|gültig|fehlerfrei|fehler|störung|gestört|ungültig|schlecht"
    r"|bon(ne)?|valide|erreur|mauvaise?)"
    r"\b.*"
    r"|(good|uncertain|bad)[a-z_]+"
)
"""words on quality in use, as Good, BadNoCommunication, in lower case"""
_OF_A_QUANTITY = frozenset({"air", "water", "power", "sleep", "sound", "light", "image"})
"""words before quality that make it a quantity of its own"""
# The two highest bits of the byte are the quality: 3 good, 1 uncertain, 0 bad.
OPC_GOOD = 192
"""smallest code of a good value of OPC in a byte; below 64 are bad ones, between them uncertain"""
# The two highest bits of a status code are its severity: 0 good, 1 uncertain, 2 bad.
UA_UNCERTAIN = 2**30
"""smallest code of OPC UA that is not good; twice of it is the smallest bad one"""


_IN_BASE_16 = re.compile(r"0[xX][0-9a-fA-F]{1,8}")


class QualityOf(NamedTuple):
    """What a column of quality is about."""

    features: tuple[str, ...]
    """columns whose values it is about; () for all of its row"""
    bad: tuple[str, ...]
    """what means bad in it, as `bad_quality` has it; () where its codes are of no known list"""
    codes: tuple[str, ...] = ()
    """the codes that occur, where they are of no known list"""


def quality_of(
    name: str, texts: Sequence[str], names: Sequence[str], bad: Sequence[str] = ()
) -> QualityOf | None:
    """What a column of quality is about; None for any other column.

    `texts`: its cells, empty ones among them; `names`: all columns; `bad`: what a person named as
    bad.
    """
    cells = Counter(_code(text) for text in texts if text)
    named = _of_weather_service(name, names) or _named(name, names)
    if named is None or not 0 < len(cells) <= VALUES_MAX:
        return None
    noun, features = named
    found = tuple(bad) or _bad_codes(noun, cells)
    # An error may be a quantity, as that of a control, unless it is a flag that is hardly ever up.
    if noun.startswith("err") and not (features and found):
        return None
    is_flag_of = bool(features) and noun.startswith(("flag", "err", "cd"))
    # What a list does not explain and never changes is nothing to ask about.
    if not found and len(cells) == 1 and all(texts):
        return None
    if _IS_STRONG.fullmatch(noun) is None and not is_flag_of:
        are_numbers = all(map(_is_number, cells))
        # The state of a machine: a feature. Beside its speed, codes may be either.
        if not features and (are_numbers or not found):
            return None
        if not found and not are_numbers:
            return None
    return QualityOf(features, found, tuple(sorted(cells)))


def _code(text: str) -> str:
    """A cell as it is compared with others: 192.0 is 192, and 0x80050000 is 2147811328."""
    if _IN_BASE_16.fullmatch(text):
        return str(int(text, 16))
    if _is_number(text):
        return f"{float(text):.0f}" if float(text).is_integer() else text
    return text.lower()


def _named(name: str, names: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """What a name of a column calls quality, and the columns that it is about, () for all of the
    row; None for a name of anything else."""
    plain = NUMBERED.sub("", name.lower().replace('"', "").strip("# "))
    place = list(names).index(name)
    for pattern in (_BEHIND, _BEFORE):
        parts = pattern.fullmatch(plain)
        if parts is None:
            continue
        noun = parts["noun"]
        stem = parts["of"].strip("._ :-/")
        if not stem:
            if noun in _APART:
                return None
            # Several columns of one name, each behind the one that it is about.
            is_behind = NUMBERED.search(name) is not None and place > 0
            return noun, (names[place - 1],) if is_behind else ()
        if stem in _OF_A_QUANTITY and noun == "quality":
            return None
        if stem in _OF_THE_ROW and not any(_begins(other, stem, noun) for other in names):
            return noun, ()
        is_apart = parts["of"] != stem or plain[len(stem)] in "._ :-/"
        if noun in _APART and not is_apart:
            continue
        features = tuple(other for other in names if other != name and _begins(other, stem, noun))
        if features:
            return noun, features
    return None


def _of_weather_service(name: str, names: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The same of QT behind T and of QRR1 behind RR1; QN_9 is about all of the row."""
    lowered = name.lower().strip()
    place = list(names).index(name)
    if place > 0 and lowered == f"q{names[place - 1].lower()}":
        return "q", (names[place - 1],)
    return ("quality", ()) if re.fullmatch(r"qn([_ ]?\d+)?", lowered) else None


def _begins(name: str, stem: str, noun: str) -> bool:
    """Whether a column is called by the stem of a name of quality: X, or X.PV beside X.Quality."""
    lowered = name.lower().replace('"', "")
    if noun != "q" and re.match(rf"{re.escape(stem)}([._ :/\[(-]|$)", lowered):
        # No column of quality is about another one.
        return _BEHIND.fullmatch(lowered) is None or _is_value(lowered)
    return (
        re.fullmatch(rf"{re.escape(stem)}([._ :/-](v|val|value|pv|wert|valeur|valor))?", lowered)
        is not None
    )


def _is_value(name: str) -> bool:
    return re.search(r"(value|val|pv|v|wert|valeur|valor)$", name) is not None


def _bad_codes(noun: str, cells: Mapping[str, int]) -> tuple[str, ...]:
    """What means bad among these cells, by the lists that are in use; () for none of them."""
    codes = [float(text) for text in cells if _is_number(text)]
    words = [text for text in cells if not _is_number(text) and not is_no_value(text)]
    bad: tuple[str, ...] = ()
    if words or not codes:
        if {"true", "false"} >= set(words) and words:
            return ("false",) if _IS_TRUTH.fullmatch(noun) or noun == "quality" else ()
        if not all(map(_KNOWN_WORDS.fullmatch, words)):
            return ()
        bad = BAD_WORDS
        if not words and not any(map(_KNOWN_WORDS.fullmatch, cells)):
            return ()
    if codes:
        of_codes = _bad_numbers(noun, codes, cells)
        if not of_codes:
            return ()
        bad += of_codes
    return bad


def _bad_numbers(noun: str, codes: Sequence[float], cells: Mapping[str, int]) -> tuple[str, ...]:
    low = min(codes)
    high = max(codes)
    kinds = set(codes)
    is_status_code = noun.replace("_", "").replace(" ", "") == "statuscode"
    is_ua = high >= UA_UNCERTAIN or low <= -UA_UNCERTAIN or (is_status_code and kinds == {0.0})
    most = max(codes, key=lambda code: cells[f"{code:.0f}"])
    is_flag = noun not in ("status", "q") and _IS_TRUTH.fullmatch(noun) is None
    is_clear = is_flag and cells[f"{most:.0f}"] >= MAJORITY * sum(cells.values())
    is_truth = _IS_TRUTH.fullmatch(noun) is not None or (is_clear and most == 1)
    lists = (
        # The second range is that of the same codes where 32 bits are read with a sign.
        (is_ua, (f"{2 * UA_UNCERTAIN}..{4 * UA_UNCERTAIN - 1}", f"{-2 * UA_UNCERTAIN}..-1")),
        (low >= 0 and OPC_GOOD <= high <= 255, ("0..63",)),
        (is_truth and kinds <= {0.0, 1.0} and (kinds != {1.0} or not is_flag), ("0",)),
        # Of oceanography (QARTOD, Argo): 1 good, 2 not evaluated or probably good, 3 suspect,
        # 4 bad, 9 missing.
        (is_clear and most == 1 and kinds <= {1.0, 2.0, 3.0, 4.0, 9.0}, ("4", "9")),
        # A flag is raised, and mostly is not.
        (is_clear and most == low == 0 and high <= 255 and len(kinds) > 1, ("1..255",)),
    )
    if any(code != round(code) for code in codes):
        return ()
    return next((bad for holds, bad in lists if holds), ())


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?", text) is not None


def agreed(qualities: Mapping[str, QualityOf], cells: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns of quality that one list of bad cells fits, in their order.

    `cells`: column of quality -> its different cells. What is bad in one column may be good in
    another, and a source has one list.
    """
    kept: list[str] = []
    written: tuple[str, ...] = ()
    for name, quality in qualities.items():
        if not quality.bad:
            continue
        together = (*written, *quality.bad)
        if all(_same_meaning(qualities[other], cells[other], together) for other in (*kept, name)):
            kept.append(name)
            written = together
    return kept


def _same_meaning(quality: QualityOf, cells: Sequence[str], together: Sequence[str]) -> bool:
    alone = BadQuality(quality.bad)
    joined = BadQuality(together)
    return all(alone.is_bad(cell) == joined.is_bad(cell) for cell in cells)
