"""Random words for noise that are a secret function of the reading and its place in the log.

A reading that is read again after a crash gets the same noise again, so that repeating it reveals
nothing new. Every input of the function is necessary; without it privacy breaks completely:

- without the reading, a corrected reading at the same place would reveal the difference exactly;
- without the context, the same words under another epsilon would reveal the reading exactly;
- without the place, equal readings would give equal rows, so that duplicates would show;
- without the client, or with a key that several clients or the server know, they could remove the
  noise;
- without the identity of the source, a log made again would have other readings at the same
  offsets.

Two readings at one place ask the function at two points, so their noises are independent. The
guarantee of the mechanism therefore holds as long as SHAKE-256 with a secret prefix cannot be
distinguished from a random function.

A lookup finds what `searchsorted` does, with a guide to where a word belongs (Chen and Asau 1974):
it has the answer for the first word of each of 2^b equal parts of all words. Where a part holds one
sum at most, one comparison decides the rest.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from shoal.errors import InvalidData, SettingsError
from shoal.files import read_secret, write_secret
from shoal.kernels import forms
from shoal.kernels.arrays import Ints, Ints32, Words

WORD_BITS: Final = 63
"""bits of a word that is looked up, and of the sum of all weights"""
GUIDE_BITS: Final = (10, 16)
"""fewest and most: the guide to a table of many entries has two parts for each, on average"""
LEFT_OUT: Final = np.uint64(2**64 - 1)
"""the entry after the last sum: no word reaches it"""


class Lookup:
    """A table of values 0..m: a word of 63 bits gives the number of `sums` (m,) up to it."""

    def __init__(self, sums: Words) -> None:
        """`sums`: ascending, below 2^63."""
        self.sums: Words = np.append(sums, LEFT_OUT)
        """(m + 1,) with `LEFT_OUT` at the end"""
        bits = min(max(GUIDE_BITS[0], (2 * len(sums)).bit_length()), GUIDE_BITS[1])
        self.shift = WORD_BITS - bits
        edges = np.arange(2**bits + 1, dtype=np.uint64) << np.uint64(self.shift)
        at_edges = np.searchsorted(sums, edges, side="right")
        self.guide: Ints32 = at_edges[:-1].astype(np.int32)
        """(2^b,) the value of the first word of each part"""
        # A sum that is the first word of the next part does not count.
        inside = np.searchsorted(sums, edges[1:], side="left") - at_edges[:-1]
        self._is_crowded = inside > 1
        self._any_crowded = bool(self._is_crowded.any())

    def find(self, words: Words) -> Ints:
        """words (...) below 2^63 -> (...) values."""
        parts = (words >> np.uint64(self.shift)).view(np.int64)
        values = self.guide.take(parts).astype(np.int64)
        # Where a part holds one sum at most, this comparison decides; `LEFT_OUT` follows the last.
        values += self.sums.take(values) <= words
        if self._any_crowded:
            crowded = self._is_crowded.take(parts)
            if crowded.any():
                values[crowded] = np.searchsorted(self.sums, words[crowded], side="right")
        return values


KEY_BYTES = 32
SOURCE_BYTES = 16
CONTEXT_BYTES = 32
VERSION = 1
_BLOCK = 136
"""SHAKE-256 absorbs blocks of this many bytes: the constant inputs fill two blocks, which are
absorbed once"""
SHARE_OF_LEARNING = 0.15
"""time to draw the words of a reading, relative to that in which CA+ learns a row: how soon the
compiled form is worth loading"""

Places = Sequence[tuple[int, int]] | Ints
"""(n, 2): partition and offset of each reading in the client's readings log"""


class KeyedRandomness:
    """Keyed pseudo-random 64-bit words for readings of `d` quantised features.

    The input of one digest, all fields of fixed width:

    key (32 bytes, padded to 136) | version (u4) | sha256(client) (32) | source (16) | context (32)
    | padding to 272
    | partition (u4) | offset (u8) | the reading on the grid (d times i8); little-endian.
    """

    def __init__(self, key: bytes, client: str, source: bytes, context: bytes, d: int) -> None:
        if len(key) != KEY_BYTES:
            raise SettingsError(
                f"a noise key has {KEY_BYTES} bytes, not {len(key)}; make one with "
                "load_or_create_key"
            )
        if len(source) != SOURCE_BYTES or len(context) != CONTEXT_BYTES:
            raise SettingsError(
                f"source identity and context have {SOURCE_BYTES} and {CONTEXT_BYTES} bytes"
            )
        if not client:
            raise SettingsError("a client needs a name, because its noise depends on it")
        fields = (
            VERSION.to_bytes(4, "little")
            + hashlib.sha256(client.encode()).digest()
            + source
            + context
        )
        prefix = key.ljust(_BLOCK, b"\0") + fields.ljust(_BLOCK, b"\0")
        self._prefix = hashlib.shake_256(prefix)
        self._prefix_words = np.frombuffer(prefix, dtype="<u8").astype(np.uint64)
        self._point = np.dtype([("partition", "<u4"), ("offset", "<u8"), ("grid", "<i8", (d,))])

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of key, client, source and context.

        They show whether these are those of an earlier run, and nothing of the key.
        """
        # The function of the prefix alone, which is the message of no reading: no noise is made of
        # it.
        return self._prefix.hexdigest(8)

    def draw(self, places: Places, grid: Ints, words: int) -> Words:
        """places (n, 2) and grid (n, d) -> (n, words).

        Raises `InvalidData` for places that are not valid.
        """
        checked = _checked(places, len(grid))
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(grid))
        if compiled is not None:
            drawn = np.empty((len(grid), words), dtype=np.uint64)
            compiled.draw_words(
                self._prefix_words, np.ascontiguousarray(checked), np.ascontiguousarray(grid), drawn
            )
            return drawn
        points = np.empty(len(grid), dtype=self._point)
        points["partition"], points["offset"] = checked.T
        points["grid"] = grid
        inputs = memoryview(points.tobytes())
        width = self._point.itemsize
        size = 8 * words
        digests = []
        for start in range(0, len(inputs), width):
            # The constant inputs were hashed once: copying that state is cheaper than hashing them
            # again.
            function = self._prefix.copy()
            function.update(inputs[start : start + width])
            digests.append(function.digest(size))
        drawn = np.frombuffer(b"".join(digests), dtype="<u8")
        return drawn.astype(np.uint64, copy=False).reshape(len(grid), words)


def _checked(places: Places, n: int) -> Ints:
    array = np.asarray(places, dtype=np.int64)
    if not len(places):
        # An empty list has no second dimension.
        array = np.empty((0, 2), dtype=np.int64)
    if array.shape != (n, 2):
        raise InvalidData(
            f"{n} readings need {n} places (partition, offset), not an array of shape {array.shape}"
        )
    # Cut off to the width of its field, a place could become another one and share its noise.
    if n and (array.min() < 0 or array[:, 0].max() >= 2**32):
        raise InvalidData("a place is a partition in 0..2^32-1 and an offset from 0 on")
    return array


def derive_key(secret: bytes, purpose: str) -> bytes:
    """32 secret bytes for one purpose of a secret of 32 bytes: HKDF (RFC 5869) by SHA-256, of which
    one block is as long.

    To anyone without the secret they are independent random bytes, those of other purposes known
    or not, as HMAC is a pseudorandom function.
    """
    # The secret is random bytes already, so that to extract them with an empty salt changes
    # nothing; it is done as the RFC has it.
    extracted = hmac.digest(bytes(KEY_BYTES), secret, "sha256")
    return hmac.digest(extracted, purpose.encode() + b"\x01", "sha256")


def load_or_create_key(path: Path, derived: bytes | None = None, *, syncs: bool = True) -> bytes:
    """The 32 secret bytes in the file `path`, which is made if it is not there, with these bytes or
    with random ones.

    Only its owner may read it. `syncs`: whether a new one survives a power cut. Raises
    `SettingsError` for a file of another size, one that other users may read, or a folder that
    cannot be used.
    """
    try:
        if not path.exists():
            # If two processes of this client start at once, both use the key that was written
            # first.
            write_secret(path, derived or secrets.token_bytes(KEY_BYTES), syncs=syncs)
        key = read_secret(
            path,
            KEY_BYTES,
            kind="noise key",
            risk="remove the noise",
            remedy="replace the client and its key",
        )
    except OSError as error:
        raise SettingsError(
            f"noise key {path} cannot be used: {error.strerror}; name a file in a folder that "
            "this client may write"
        ) from error
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"noise key {path} does not have {KEY_BYTES} bytes; restore it from your backup, or "
            "remove it to start as a new client with a new readings log"
        )
    return key
