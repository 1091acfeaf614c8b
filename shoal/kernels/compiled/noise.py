"""SHAKE-256 (FIPS 202) of many messages of equal length, and discrete Laplace noise from such
random words.

Eight messages at once fill the vectors of the processor. `shoal.privacy.keyed` describes the
messages: a prefix that all share, in whole blocks, and then a place and a row of whole numbers for
each. `shoal.privacy.laplace` describes the noise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit, types, uint64

from shoal.kernels.compiled.intrinsics import (
    CONST_INT32_1D,
    CONST_INT64_1D,
    CONST_INT64_2D,
    CONST_UINT64_1D,
    CONST_UINT64_2D,
    INT64_1D,
    UINT64_2D,
)

LANES: Final = 8
RATE: Final = 17
"""words of 64 bits in a block"""
ROUNDS: Final = 24
SUFFIX: Final = np.uint64(0x1F)
"""what follows a message: the bits that name SHAKE, and the first one of the padding"""
LAST_BIT: Final = np.uint64(1 << 63)
"""last bit of a block: the end of the padding"""
HALF: Final = np.uint64(32)

WORDS = types.void(CONST_UINT64_1D, CONST_INT64_2D, CONST_INT64_2D, UINT64_2D)


def _round_constants() -> tuple[int, ...]:
    """One word for each round: its bits at places 2^j - 1 come from a shift register (FIPS 202,
    algorithms 5 and 6)."""
    register = 1
    constants = []
    for _ in range(ROUNDS):
        word = 0
        for j in range(7):
            word |= (register & 1) << (2**j - 1)
            register = register << 1 ^ (0x171 if register & 0x80 else 0)
        constants.append(word)
    return tuple(constants)


CONSTANTS = np.array(_round_constants(), dtype=np.uint64)


@njit(forceinline=True)
def rotate_left(word: Any, bits: Any) -> Any:
    """The word, rotated to the left."""
    return (word << uint64(bits)) | (word >> uint64(64 - bits))


@njit(forceinline=True)
def permute(s: Any) -> None:
    """Keccak-f[1600] of the states in the columns of `s` (25, LANES). Word x + 5 y of a state is
    called `s_xy`.

    The steps are written out: only so are the words of a round in registers, and a loop over the
    lanes alone, which becomes vectors, is left.
    """
    for number in range(ROUNDS):
        constant = CONSTANTS[number]
        for i in range(LANES):
            s00 = s[0, i]
            s10 = s[1, i]
            s20 = s[2, i]
            s30 = s[3, i]
            s40 = s[4, i]
            s01 = s[5, i]
            s11 = s[6, i]
            s21 = s[7, i]
            s31 = s[8, i]
            s41 = s[9, i]
            s02 = s[10, i]
            s12 = s[11, i]
            s22 = s[12, i]
            s32 = s[13, i]
            s42 = s[14, i]
            s03 = s[15, i]
            s13 = s[16, i]
            s23 = s[17, i]
            s33 = s[18, i]
            s43 = s[19, i]
            s04 = s[20, i]
            s14 = s[21, i]
            s24 = s[22, i]
            s34 = s[23, i]
            s44 = s[24, i]
            # theta
            c0 = s00 ^ s01 ^ s02 ^ s03 ^ s04
            c1 = s10 ^ s11 ^ s12 ^ s13 ^ s14
            c2 = s20 ^ s21 ^ s22 ^ s23 ^ s24
            c3 = s30 ^ s31 ^ s32 ^ s33 ^ s34
            c4 = s40 ^ s41 ^ s42 ^ s43 ^ s44
            d0 = c4 ^ rotate_left(c1, 1)
            d1 = c0 ^ rotate_left(c2, 1)
            d2 = c1 ^ rotate_left(c3, 1)
            d3 = c2 ^ rotate_left(c4, 1)
            d4 = c3 ^ rotate_left(c0, 1)
            # rho and pi
            b00 = s00 ^ d0
            b10 = rotate_left(s11 ^ d1, 44)
            b20 = rotate_left(s22 ^ d2, 43)
            b30 = rotate_left(s33 ^ d3, 21)
            b40 = rotate_left(s44 ^ d4, 14)
            b01 = rotate_left(s30 ^ d3, 28)
            b11 = rotate_left(s41 ^ d4, 20)
            b21 = rotate_left(s02 ^ d0, 3)
            b31 = rotate_left(s13 ^ d1, 45)
            b41 = rotate_left(s24 ^ d2, 61)
            b02 = rotate_left(s10 ^ d1, 1)
            b12 = rotate_left(s21 ^ d2, 6)
            b22 = rotate_left(s32 ^ d3, 25)
            b32 = rotate_left(s43 ^ d4, 8)
            b42 = rotate_left(s04 ^ d0, 18)
            b03 = rotate_left(s40 ^ d4, 27)
            b13 = rotate_left(s01 ^ d0, 36)
            b23 = rotate_left(s12 ^ d1, 10)
            b33 = rotate_left(s23 ^ d2, 15)
            b43 = rotate_left(s34 ^ d3, 56)
            b04 = rotate_left(s20 ^ d2, 62)
            b14 = rotate_left(s31 ^ d3, 55)
            b24 = rotate_left(s42 ^ d4, 39)
            b34 = rotate_left(s03 ^ d0, 41)
            b44 = rotate_left(s14 ^ d1, 2)
            # chi and iota
            s[0, i] = b00 ^ (~b10 & b20) ^ constant
            s[1, i] = b10 ^ (~b20 & b30)
            s[2, i] = b20 ^ (~b30 & b40)
            s[3, i] = b30 ^ (~b40 & b00)
            s[4, i] = b40 ^ (~b00 & b10)
            s[5, i] = b01 ^ (~b11 & b21)
            s[6, i] = b11 ^ (~b21 & b31)
            s[7, i] = b21 ^ (~b31 & b41)
            s[8, i] = b31 ^ (~b41 & b01)
            s[9, i] = b41 ^ (~b01 & b11)
            s[10, i] = b02 ^ (~b12 & b22)
            s[11, i] = b12 ^ (~b22 & b32)
            s[12, i] = b22 ^ (~b32 & b42)
            s[13, i] = b32 ^ (~b42 & b02)
            s[14, i] = b42 ^ (~b02 & b12)
            s[15, i] = b03 ^ (~b13 & b23)
            s[16, i] = b13 ^ (~b23 & b33)
            s[17, i] = b23 ^ (~b33 & b43)
            s[18, i] = b33 ^ (~b43 & b03)
            s[19, i] = b43 ^ (~b03 & b13)
            s[20, i] = b04 ^ (~b14 & b24)
            s[21, i] = b14 ^ (~b24 & b34)
            s[22, i] = b24 ^ (~b34 & b44)
            s[23, i] = b34 ^ (~b44 & b04)
            s[24, i] = b44 ^ (~b04 & b14)


@njit(forceinline=True)
def write_message(place: Any, row: Any, message: Any, lane: Any) -> None:
    """Set a column of `message` to partition (u4), offset (u8), the row (i8 each) and the padding,
    little-endian."""
    d = len(row)
    offset = uint64(place[1])
    message[0, lane] = uint64(place[0]) | offset << HALF
    carried = offset >> HALF
    for j in range(d):
        word = uint64(row[j])
        message[j + 1, lane] = carried | word << HALF
        carried = word >> HALF
    message[d + 1, lane] = carried | SUFFIX << HALF
    message[len(message) - 1, lane] ^= LAST_BIT


@njit(forceinline=True)
def draw_words(prefix: Any, places: Any, rows: Any, words: Any) -> None:
    """prefix (17 b,), places (n, 2), rows (n, d) -> words (n, w)."""
    n, d = rows.shape
    w = words.shape[1]
    begun = np.zeros((25, LANES), np.uint64)
    s = np.empty((25, LANES), np.uint64)
    shared = np.empty((len(prefix), LANES), np.uint64)
    for word in range(len(prefix)):
        shared[word] = prefix[word]
    # A place takes 12 bytes, and the padding 1 at least: a message ends in word d + 1, counted from
    # 0.
    message = np.empty((-(-(d + 2) // RATE) * RATE, LANES), np.uint64)
    # First the prefix, into `begun`: with one call of `permute` for all, it is compiled once.
    for first in range(-LANES, n, LANES):
        part = 0 if first < 0 else min(LANES, n - first)
        absorbed = shared if first < 0 else message
        message[:] = 0
        for lane in range(part):
            write_message(places[first + lane], rows[first + lane], message, lane)
        s[:] = begun
        blocks = len(absorbed) // RATE
        for step in range(blocks if first < 0 else blocks - 1 + -(-w // RATE)):
            if step < blocks:
                for word in range(RATE):
                    for i in range(LANES):
                        s[word, i] ^= absorbed[RATE * step + word, i]
            permute(s)
            given = RATE * (step + 1 - blocks)
            if given >= 0:
                for lane in range(part):
                    for word in range(given, min(given + RATE, w)):
                        words[first + lane, word] = s[word - given, lane]
        if first < 0:
            begun[:] = s


def words_kernel(sources: str) -> Any:
    """`draw_words`, compiled or from Numba's cache; `sources` is what it was made from
    (`digest_of_sources`)."""

    @njit(WORDS, cache=True, error_model="numpy")
    def draw(prefix: Any, places: Any, rows: Any, words: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        draw_words(prefix, places, rows, words)

    return draw


RELEASE = types.void(
    CONST_INT64_1D,
    CONST_UINT64_2D,
    types.Tuple(
        (
            CONST_UINT64_1D,
            CONST_INT32_1D,
            CONST_INT64_1D,
            CONST_INT64_1D,
            CONST_INT64_1D,
            CONST_INT64_1D,
        )
    ),
    CONST_INT64_1D,
    INT64_1D,
)
ESCAPE, STEPS, EDGE = range(3)
"""positions in `limits`: the value that means "more"; the largest value of a reading; how far a
result may be beyond"""


@njit(forceinline=True)
def look_up(word: Any, digit: Any, tables: Any) -> Any:
    """What `shoal.privacy.keyed.Lookup.find` gives for the upper 63 bits of a word."""
    sums, guides, _, sums_at, guides_at, shifts = tables
    word >>= uint64(1)
    value = np.int64(guides[guides_at[digit] + np.int64(word >> uint64(shifts[digit]))])
    # As a number, since no processor foresees a branch on a random word; more than one sum in a
    # part is rare.
    value += np.int64(sums[sums_at[digit] + value] <= word)
    while sums[sums_at[digit] + value] <= word:
        value += 1
    return value


@njit(forceinline=True)
def release_values(values: Any, words: Any, tables: Any, limits: Any, released: Any) -> None:
    """values (n,) in 0..steps, words (n, w) -> released (n,) in half steps.

    `tables`: of all digits, the scales last, one after the other: running sums; guides; the worth
    of each digit in steps; where its sums begin, and its guide; its shift.
    """
    strides = tables[2]
    edge = limits[EDGE]
    scales = len(strides) - 1
    for i in range(len(values)):
        noise = 0
        for digit in range(scales):
            noise += strides[digit] * look_up(words[i, digit], digit, tables)
        number = look_up(words[i, scales], scales, tables)
        for level in range(1, words.shape[1] - scales):
            if number != level * limits[ESCAPE]:
                break
            number += look_up(words[i, scales + level], scales, tables)
        # Independent of the number: `look_up` takes the upper 63 bits of a word alone.
        sign = 2 * np.int64(words[i, 0] & uint64(1)) - 1
        # Odd multiples of half a step: with 0 among them, which has no sign, it would be drawn
        # twice as often as it should.
        noise = sign * (2 * (noise + strides[scales] * number) + 1)
        released[i] = min(max(2 * values[i] + noise, -edge), 2 * limits[STEPS] + edge)


def release_kernel(sources: str) -> Any:
    """`release_values`, compiled or from Numba's cache; `sources` is what it was made from
    (`digest_of_sources`)."""

    @njit(RELEASE, cache=True, error_model="numpy")
    def release(values: Any, words: Any, tables: Any, limits: Any, released: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        release_values(values, words, tables, limits, released)

    return release
