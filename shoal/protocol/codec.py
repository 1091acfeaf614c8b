"""The codec: plain values and numpy arrays to bytes and back, by msgpack.

Equal values have equal bytes, which the tests of replay rely on: mappings keep their order, floats
have 64 bits, arrays are C-ordered and little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import msgpack
import numpy as np

from shoal.config.limits import PACKED_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.kernels.arrays import AnyArray

ARRAY = 1
"""the msgpack extension type of an array: dtype (3 letters), dimensions (u1), shape (u8 each), then
the elements"""
PART = 2
"""the extension type of a reference to a `StoredPart` that is stored elsewhere; never in a message
"""
DTYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<u8", "|u1", "|b1"})
_DTYPE_OF = {form: np.dtype(form) for form in DTYPES}
DIMENSIONS_MAX = 4
FORM_BYTES = 3
BUFFER_BYTES = 1024
"""first size of the buffer; msgpack's own 256 KiB would be allocated from the system and freed for
each reading"""
DEPTH_MAX = 16
"""depth to which mappings and lists may nest, so that a hostile message cannot exhaust the stack"""
PART_DEPTH_MAX = DEPTH_MAX // 2
"""the same in a part that is stored elsewhere, and around it, so that the whole is within
`DEPTH_MAX`"""
_TEXT = frozenset({str})


class StoredPart:
    """A part of a value that does not change while other parts do, such as one of many answers.

    `pack` puts its value in its place, or a reference where `refer` stores the part elsewhere. Two
    parts are the same only if they are one object, so a caller that changes the value makes a new
    part.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


Refer = Callable[[StoredPart], msgpack.ExtType]
Resolve = Callable[[bytes], Any]

_TOO_DEEP = (
    f"lists or mappings nested deeper than {DEPTH_MAX}, or {PART_DEPTH_MAX} in and around a "
    "stored part"
)
_CONTAINERS = (dict, list, tuple)
_NESTED = (*_CONTAINERS, msgpack.Timestamp, StoredPart)
_FLAT = frozenset({type(None), bool, int, float, str, bytes, np.ndarray})
"""types of values that hold no others"""
_FLAT_OR_STORED = _FLAT | {StoredPart}
"""the same where parts are stored elsewhere: a part is checked when it is packed"""


def pack(value: Any, refer: Refer | None = None, depth_max: int = DEPTH_MAX) -> bytes:
    """The bytes of a plain value: None, bool, int, float, str, bytes, arrays and parts.

    And of lists and mappings (by text) of these. `unpack` gives the same value back. Anything else
    raises TypeError, also what is nested deeper than `depth_max`. `refer` gives what is packed in
    place of each part: an extension value of type `PART`. The part's value is then packed with
    `PART_DEPTH_MAX`, and may be so deep in the whole that there is room for it.
    """
    flaw = _flaw(value, depth_max, refer is not None)
    if flaw is not None:
        raise TypeError(f"cannot pack {flaw}")
    default = _encode_extension if refer is None else partial(_part_out, refer)
    try:
        packed: bytes = msgpack.packb(
            value, default=default, use_bin_type=True, buf_size=BUFFER_BYTES
        )
    except (OverflowError, ValueError) as beyond:
        raise TypeError(
            f"cannot pack a value beyond what msgpack holds: {type(beyond).__name__}"
        ) from None
    return packed


def unpack(
    packed: bytes,
    bytes_max: int = PACKED_BYTES_MAX,
    items_max: int | None = None,
    resolve: Resolve | None = None,
) -> Any:
    """The value that was packed; arrays own their memory and are writable.

    `items_max` bounds how many values it is made of (an array is one); None, no bound, is for our
    own files. Messages need a bound: one byte of a message can become a mapping of 64 bytes in
    memory. `resolve` gives the value of a part from the content of its reference; None: there are
    no references.
    Raises `MessageRejected` ("oversized", "malformed").
    """
    if len(packed) > bytes_max:
        raise MessageRejected("oversized", f"{len(packed)} bytes, the limit is {bytes_max}")
    # Each value takes a byte or more, so a short message cannot hold too many.
    if items_max is not None and len(packed) > items_max:
        _count(packed, items_max)
    hook = _decode_extension if resolve is None else partial(_part_in, resolve)
    try:
        value = msgpack.unpackb(packed, raw=False, strict_map_key=True, ext_hook=hook)
    except (ValueError, RecursionError, msgpack.UnpackException) as broken:
        raise MessageRejected("malformed", f"not a message: {type(broken).__name__}") from None
    flaw = _flaw(value, DEPTH_MAX)
    if flaw is not None:
        raise MessageRejected("malformed", f"holds {flaw}")
    return value


def _part_out(refer: Refer, value: Any) -> Any:
    if type(value) is StoredPart:
        return refer(value)
    return _encode_extension(value)


def _part_in(value_of: Resolve, code: int, packed: bytes) -> Any:
    if code == PART:
        return value_of(packed)
    return _decode_extension(code, packed)


def _encode_extension(value: Any) -> Any:
    if type(value) is StoredPart:
        return value.value
    # First of all by the exact type: a checkpoint is made of hundreds of arrays.
    if type(value) is not np.ndarray:
        # A scalar of NumPy is an array without dimensions.
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            raise TypeError(f"cannot pack a {type(value).__name__}")
    little = value
    form = value.dtype.str
    # Most arrays are in order already, and are packed without a copy.
    if form not in DTYPES or not value.flags.c_contiguous:
        # `ascontiguousarray` gives an array without dimensions one, so the shape is put back.
        ordered = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        little = ordered.reshape(value.shape)
        form = little.dtype.str
    if form not in DTYPES or little.ndim > DIMENSIONS_MAX:
        raise TypeError(f"cannot pack an array of {value.dtype} with {value.ndim} dimensions")
    header = form.encode() + struct.pack(f"<B{little.ndim}Q", little.ndim, *little.shape)
    # Joined from the array itself: `tobytes` would copy a large one twice.
    return msgpack.ExtType(ARRAY, b"".join((header, little.data)))


def _decode_extension(code: int, packed: bytes) -> AnyArray:
    if code != ARRAY:
        raise MessageRejected("malformed", f"unknown extension type {code}")
    form = packed[:FORM_BYTES].decode("ascii", "replace")
    dimensions = packed[FORM_BYTES] if len(packed) > FORM_BYTES else 0
    place = FORM_BYTES + 1 + 8 * dimensions
    if form not in DTYPES or dimensions > DIMENSIONS_MAX or len(packed) < place:
        raise MessageRejected("malformed", "an array of an unknown type")
    shape = struct.unpack_from(f"<{dimensions}Q", packed, FORM_BYTES + 1)
    # Before sizes are multiplied: a shape with a 0 would hide any other number in it.
    if max(shape, default=0) > PACKED_BYTES_MAX:
        raise MessageRejected("malformed", "an array with an impossible shape")
    dtype = _DTYPE_OF[form]
    if len(packed) - place != math.prod(shape) * dtype.itemsize:
        raise MessageRejected("malformed", "an array whose bytes do not fill its shape")
    # NumPy takes any byte for true, so that one array would have many forms of bytes.
    if form == "|b1" and max(packed[place:], default=0) > 1:
        raise MessageRejected("malformed", "an array of truth values that are neither 0 nor 1")
    # A copy: the bytes of the message are not aligned, and may not be written.
    return np.ndarray(shape, dtype, packed, place).copy()


class _Form(NamedTuple):
    """Form of what follows the first byte of a value.

    First a length, in `width` bytes; then `payload + payload_each * length` bytes; then `inner +
    inner_each * length` values.
    """

    width: int = 0
    payload: int = 0
    inner: int = 0
    payload_each: int = 0
    inner_each: int = 0


def _forms() -> list[_Form]:
    """The form of a value by its first byte, from the msgpack specification."""
    single = _Form()
    lengths = [_Form(width, payload_each=1) for width in (1, 2, 4)]
    return [
        *[single] * 128,  # small whole numbers
        *[_Form(inner=2 * n) for n in range(16)],  # small mappings, small lists, short texts
        *[_Form(inner=n) for n in range(16)],
        *[_Form(payload=n) for n in range(32)],
        *[single] * 4,  # none, unused, false, true
        *lengths,  # bytes
        *[_Form(width, payload=1, payload_each=1) for width in (1, 2, 4)],  # extensions
        # floats, positive and other numbers
        *[_Form(payload=size) for size in (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)],
        *[_Form(payload=1 + size) for size in (1, 2, 4, 8, 16)],  # short extensions
        *lengths,  # texts
        *[_Form(width, inner_each=1) for width in (2, 4)],  # lists, mappings
        *[_Form(width, inner_each=2) for width in (2, 4)],
        *[single] * 32,  # small negative numbers
    ]


_FORMS = _forms()


def _count(packed: bytes, items_max: int) -> None:
    """Raise `MessageRejected` for more values than `items_max`, before any is built.

    Values that a length announces count, whether they follow or not. Other faults are found by the
    decoder.
    """
    place = 0
    waiting = 1
    seen = 0
    while waiting and place < len(packed):
        width, payload, inner, payload_each, inner_each = _FORMS[packed[place]]
        place += 1
        if width:
            length = int.from_bytes(packed[place : place + width], "big")
            payload += length * payload_each
            inner += length * inner_each
        place += width + payload
        waiting += inner - 1
        seen += 1
        # Values that are announced count before they are read: the header of a list has five bytes
        # and may claim 2^32 of them.
        if seen + waiting > items_max:
            raise MessageRejected("oversized", f"made of more than {items_max} values")


def _flaw(value: object, depth_left: int, stored: bool = False) -> str | None:
    """What of `value` cannot be packed, or None.

    Types that only one direction meets are checked there. `depth_left`: how deep it may nest.
    `stored`: its parts are stored elsewhere, and each is checked when it is packed.
    """
    if not isinstance(value, _CONTAINERS):
        return _flaw_of_one(value, depth_left, stored)
    if depth_left == 0:
        return _TOO_DEEP
    inner_values: Collection[object] = value
    if isinstance(value, dict):
        # Nearly all keys are exactly texts; only a subclass of str needs a look at each.
        are_texts = _TEXT.issuperset(map(type, value))
        if not are_texts and not all(isinstance(key, str) for key in value):
            return "a mapping whose keys are not text"
        inner_values = value.values()
    # Most hold flat values alone: comparing their types at once takes a fraction of looking at
    # each.
    flat = _FLAT_OR_STORED if stored and depth_left > PART_DEPTH_MAX else _FLAT
    if flat.issuperset(map(type, inner_values)):
        return None
    for inner in inner_values:
        if type(inner) in flat:
            continue
        # A list of flat values, as tables have for each row, needs no call.
        if type(inner) is list and depth_left > 1 and _FLAT.issuperset(map(type, inner)):
            continue
        # Nor does a mapping of them, such as a cluster of a checkpoint.
        if (
            type(inner) is dict
            and depth_left > 1
            and _TEXT.issuperset(map(type, inner))
            and _FLAT.issuperset(map(type, inner.values()))
        ):
            continue
        if not isinstance(inner, _NESTED):
            continue
        flaw = _flaw(inner, depth_left - 1, stored)
        if flaw is not None:
            return flaw
    return None


def _flaw_of_one(value: object, depth_left: int, stored: bool) -> str | None:
    if isinstance(value, msgpack.Timestamp):
        return "a timestamp"
    if not isinstance(value, StoredPart):
        return None
    if not stored:
        return _flaw(value.value, depth_left)
    if depth_left < PART_DEPTH_MAX:
        return _TOO_DEEP
    return None
