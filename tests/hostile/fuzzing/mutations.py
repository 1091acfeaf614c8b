"""Changes at random: of bytes, of text, and of the fields and arrays of a message."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBERS: tuple[float | int, ...] = (
    0,
    1,
    -1,
    2,
    255,
    256,
    2**31,
    2**53 - 1,
    2**53,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    0.0,
    -0.0,
    0.5,
    1e-300,
    1e154,
    1e300,
    -1e300,
    math.inf,
    -math.inf,
    math.nan,
)
TEXTS = (
    "",
    "x",
    "attic",
    "../../etc",
    "\x00",
    "a" * 70,
    "ÄÖ",
    "\u202e",
    "1",
    "null",
    "{}",
    "%s%n",
    "\n",
    "-" * 5000,
)
DTYPES = ("<f8", "<f4", "<i8", "<i4", "<u8", "|u1", "|b1")


def changed_bytes(rng: random.Random, value: bytes, others: Sequence[bytes]) -> bytes:
    """One to four changes of single bytes or runs of them."""
    out = bytearray(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(out) + 1)
        length = rng.choice((1, 2, 4, 8, 64))
        match rng.randrange(7):
            case 0 if out:
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[rng.randrange(len(out))] = rng.choice(
                    (0, 0x7F, 0x80, 0xC1, 0xC7, 0xD9, 0xDF, 0xFF)
                )
            case 2:
                out[place:place] = rng.randbytes(length)
            case 3:
                del out[place : place + length]
            case 4:
                out[place:place] = out[place : place + length] * rng.choice((1, 3, 50))
            case 5:
                del out[place:]
            case _:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                out[place : place + length] = other[start : start + length]
    return bytes(out)


def changed_value(rng: random.Random, value: Any, others: Sequence[Any] = ()) -> Any:
    """A message, or a part of one, with one part changed somewhere inside."""
    if isinstance(value, np.ndarray) and rng.random() < 0.9:
        return changed_array(rng, value)
    if isinstance(value, dict) and value and rng.random() < 0.95:
        return _changed_table(rng, value, others)
    if isinstance(value, list) and value and rng.random() < 0.9:
        out = list(value)
        place = rng.randrange(len(out))
        if rng.random() < 0.2:
            return out * rng.choice((0, 2, 100))
        out[place] = changed_value(rng, out[place])
        return out
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(TEXTS),
        lambda: rng.choice((None, True, False, b"", b"\xff", [], {}, [[]], {"x": 1})),
        lambda: (
            value + rng.choice((-1, 1))
            if isinstance(value, int | float) and abs(value) < 2**62
            else value
        ),
        lambda: np.zeros(rng.choice(((0,), (1,), (2, 2), (0, 5), (3, 1, 2)))),
    )
    return rng.choice(kinds)()


def _changed_table(
    rng: random.Random, table: dict[Any, Any], others: Sequence[Any]
) -> dict[Any, Any]:
    out = dict(table)
    name = rng.choice(list(out))
    if "arrays" in out and rng.random() < 0.5:
        name = "arrays"
    match rng.randrange(12):
        case 0:
            del out[name]
        case 1:
            out[rng.choice(TEXTS)] = out.pop(name)
        case 2:
            out[name] = out[rng.choice(list(out))]
        case 3 if others:
            other = rng.choice(others)
            if isinstance(other, dict) and name in other:
                out[name] = other[name]
        case _:
            out[name] = changed_value(rng, out[name])
    return out


def changed_array(rng: random.Random, array: NDArray[Any]) -> NDArray[Any]:
    """Other elements, another scale, another shape or another type."""
    out = array.copy()
    with np.errstate(all="ignore"):
        match rng.randrange(10):
            case 0 | 1 | 2 if out.size:
                for _ in range(rng.choice((1, 1, 3))):
                    number = rng.choice(NUMBERS)
                    place = rng.randrange(out.size)
                    if out.dtype.kind == "f":
                        out.flat[place] = number
                    elif out.dtype.kind in "iu" and math.isfinite(number):
                        span = np.iinfo(out.dtype)
                        out.flat[place] = max(span.min, min(span.max, int(number)))
            case 3 if out.dtype.kind == "f":
                out *= 10.0 ** rng.randint(-320, 308)
            case 4 if out.dtype.kind == "f":
                out += rng.choice((-1.0, 1e-9, 0.5, 1e9))
            case 5:
                out = np.asarray(out[: rng.randrange(len(out) + 1)]) if out.ndim else out
            case 6:
                out = np.concatenate([out, out]) if out.ndim else out
            case 7:
                out = np.ascontiguousarray(out.T) if out.ndim > 1 else out[None]
            case 8:
                out = out.astype(rng.choice(DTYPES))
            case _:
                out = -out if out.dtype.kind == "f" else np.zeros_like(out)
    return out


def changed_text(rng: random.Random, text: str, words: Sequence[str]) -> str:
    """One to four changes of words, lines or single characters."""
    out = text
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(out) + 1)
        end = min(len(out), place + rng.choice((1, 3, 20)))
        lines = out.splitlines(keepends=True)
        match rng.randrange(6):
            case 0:
                out = out[:place] + rng.choice((*TEXTS, *words, *map(str, NUMBERS))) + out[end:]
            case 1:
                out = out[:place] + out[end:]
            case 2 if lines:
                line = rng.randrange(len(lines))
                out = "".join(
                    lines[:line]
                    + lines[line : line + 1] * rng.choice((0, 2, 3))
                    + lines[line + 1 :]
                )
            case 3:
                out = out[:place] + rng.choice('"[]{}=,;\\\t\0#.-') + out[place:]
            case 4:
                out = out[:place]
            case _:
                word = rng.choice(words)
                out = out.replace(word, rng.choice((*words, *TEXTS, *map(str, NUMBERS))), 1)
    return out


def changed_json(rng: random.Random, value: bytes) -> bytes:
    """A JSON object with one of its parts changed, or its bytes."""
    if rng.random() < 0.3:
        return changed_bytes(rng, value, [value])
    table = changed_value(rng, json.loads(value))
    return json.dumps(table, default=str).encode()
