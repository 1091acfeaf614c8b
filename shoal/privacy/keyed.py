"""Random words for noise that are a secret function of the reading and its place in the log.

A reading that is read again after a crash gets the same noise again, so that repeating it reveals nothing new. Every
input of the function is necessary; without it privacy breaks completely:

- without the reading, a corrected reading at the same place would reveal the difference exactly;
- without the context, the same words under another epsilon would reveal the reading exactly;
- without the place, equal readings would give equal rows, so that duplicates would show;
- without the client, or with a key that several clients or the server know, they could remove the noise;
- without the identity of the source, a log made again would have other readings at the same offsets.

Two readings at one place ask the function at two points, so their noises are independent. The guarantee of the
mechanism therefore holds as long as SHAKE-256 with a secret prefix cannot be distinguished from a random function.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.errors import InvalidData, SettingsError
from shoal.files import read_secret, write_secret
from shoal.kernels import forms
from shoal.kernels.arrays import Ints, Words

KEY_BYTES = 32
SOURCE_BYTES = 16
CONTEXT_BYTES = 32
VERSION = 1
_BLOCK = 136
"""SHAKE-256 absorbs blocks of this many bytes: the constant inputs fill two blocks, which are absorbed once"""
SHARE_OF_LEARNING = 0.15
"""time to draw the words of a reading, relative to that in which CA+ learns a row: how soon the compiled form is worth
loading"""

Places = Sequence[tuple[int, int]] | Ints
"""(n, 2): partition and offset of each reading in the client's readings log"""


class KeyedRandomness:
    """Keyed pseudo-random 64-bit words for readings of `d` quantised features.

    The input of one digest, all fields of fixed width:

    key (32 bytes, padded to 136) | version (u4) | sha256(client) (32) | source (16) | context (32) | padding to 272
    | partition (u4) | offset (u8) | the reading on the grid (d times i8); little-endian.
    """

    def __init__(self, key: bytes, client: str, source: bytes, context: bytes, d: int) -> None:
        if len(key) != KEY_BYTES:
            raise SettingsError(f"a noise key has {KEY_BYTES} bytes, not {len(key)}; make one with load_or_create_key")
        if len(source) != SOURCE_BYTES or len(context) != CONTEXT_BYTES:
            raise SettingsError(f"source identity and context have {SOURCE_BYTES} and {CONTEXT_BYTES} bytes")
        if not client:
            raise SettingsError("a client needs a name, because its noise depends on it")
        fields = VERSION.to_bytes(4, "little") + hashlib.sha256(client.encode()).digest() + source + context
        prefix = key.ljust(_BLOCK, b"\0") + fields.ljust(_BLOCK, b"\0")
        self._prefix = hashlib.shake_256(prefix)
        self._prefix_words = np.frombuffer(prefix, dtype="<u8").astype(np.uint64)
        self._point = np.dtype([("partition", "<u4"), ("offset", "<u8"), ("grid", "<i8", (d,))])

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that show whether key, client, source and context are those of an earlier run."""
        return self._prefix.hexdigest(8)

    def draw(self, places: Places, grid: Ints, words: int) -> Words:
        """places (n, 2) and grid (n, d) -> (n, words). Raises `InvalidData` for places that are not valid."""
        checked = _checked(places, len(grid))
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(grid))
        if compiled is not None:
            drawn = np.empty((len(grid), words), dtype=np.uint64)
            compiled.draw_words(self._prefix_words, np.ascontiguousarray(checked), np.ascontiguousarray(grid), drawn)
            return drawn
        points = np.empty(len(grid), dtype=self._point)
        points["partition"], points["offset"] = checked.T
        points["grid"] = grid
        inputs = memoryview(points.tobytes())
        width, size = self._point.itemsize, 8 * words
        digests = []
        for start in range(0, len(inputs), width):
            function = self._prefix.copy()
            function.update(inputs[start : start + width])
            digests.append(function.digest(size))
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False).reshape(len(grid), words)


def _checked(places: Places, n: int) -> Ints:
    array = np.asarray(places, dtype=np.int64) if len(places) else np.empty((0, 2), dtype=np.int64)
    if array.shape != (n, 2):
        raise InvalidData(f"{n} readings need {n} places (partition, offset), not an array of shape {array.shape}")
    if n and (array.min() < 0 or array[:, 0].max() >= 2**32):
        raise InvalidData("a place is a partition in 0..2^32-1 and an offset from 0 on")
    return array


def load_or_create_key(path: Path) -> bytes:
    """The 32 secret bytes in the file `path`, which only its owner may read; without the file, make it first.

    Raises `SettingsError` for a file of another size, one that other users may read, or a folder that cannot be used.
    """
    try:
        if not path.exists():
            # If two processes of this client start at once, both use the key that was written first.
            write_secret(path, secrets.token_bytes(KEY_BYTES))
        key = read_secret(
            path, KEY_BYTES, kind="noise key", risk="remove the noise", remedy="replace the client and its key"
        )
    except OSError as error:
        raise SettingsError(
            f"noise key {path} cannot be used: {error.strerror}; name a file in a folder that this client may write"
        ) from error
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"noise key {path} does not have {KEY_BYTES} bytes; restore it from your backup, or remove "
            "it to start as a new client with a new readings log"
        )
    return key
