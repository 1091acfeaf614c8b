"""Plain values and numpy arrays to bytes and back: msgpack with arrays as an extension type, never pickle.

One form for one value: mappings keep the order they were given, floats are 64 bit, arrays are C-ordered
little-endian. So equal states have equal bytes, which the tests of replay rely on.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from shoal.errors import MessageRefused

ARRAY = 1
"""the msgpack extension type of an array: packed [dtype, shape], then the elements"""
DTYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<u8", "|u1", "|b1"})
DIMENSIONS_MAX = 4
BYTES_MAX = 64 * 1024 * 1024
BUFFER_BYTES = 1024
"""what packing begins with; msgpack's own 256 KiB is a page of the system asked for and given back at each reading"""
DEPTH_MAX = 16
"""how deep mappings and lists may nest: a hostile message cannot exhaust the stack"""


def pack(value: Any) -> bytes:
    """None, bool, int, float, str, bytes, arrays, and lists and mappings of these -> bytes. Raises TypeError."""
    packed: bytes = msgpack.packb(value, default=_array_out, use_bin_type=True, buf_size=BUFFER_BYTES)
    return packed


def unpack(packed: bytes, bytes_max: int = BYTES_MAX) -> Any:
    """The value again; arrays own their memory and are writable. Raises `MessageRefused` ("oversized", "malformed")."""
    if len(packed) > bytes_max:
        raise MessageRefused("oversized", f"{len(packed)} bytes, at most {bytes_max} are accepted")
    try:
        # The lengths inside are bounded by the length of the whole, so a small message cannot ask for much memory.
        value = msgpack.unpackb(packed, raw=False, strict_map_key=True, ext_hook=_array_in)
    except MessageRefused:
        raise
    except (ValueError, RecursionError, msgpack.UnpackException) as broken:
        raise MessageRefused("malformed", f"not a message: {type(broken).__name__}") from None
    _check_depth(value, DEPTH_MAX)
    return value


def _array_out(value: Any) -> msgpack.ExtType:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"cannot pack a {type(value).__name__}")
    little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).reshape(value.shape)
    form = little.dtype.str
    if form not in DTYPES or little.ndim > DIMENSIONS_MAX:
        raise TypeError(f"cannot pack an array of {value.dtype} with {value.ndim} dimensions")
    header: bytes = msgpack.packb([form, list(little.shape)], buf_size=BUFFER_BYTES)
    return msgpack.ExtType(ARRAY, header + little.tobytes())


def _array_in(code: int, packed: bytes) -> NDArray[Any]:
    if code != ARRAY:
        raise MessageRefused("malformed", f"unknown extension type {code}")
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    unpacker.feed(packed)
    header = unpacker.unpack()
    if not (isinstance(header, list) and len(header) == 2 and isinstance(header[1], list)):
        raise MessageRefused("malformed", "an array without dtype and shape")
    form, shape = header
    if form not in DTYPES or len(shape) > DIMENSIONS_MAX:
        raise MessageRefused("malformed", "an array of an unknown type")
    if not all(type(size) is int and 0 <= size <= BYTES_MAX for size in shape):
        raise MessageRefused("malformed", "an array with an impossible shape")
    elements = packed[unpacker.tell() :]
    dtype = np.dtype(form)
    if len(elements) != math.prod(shape) * dtype.itemsize:
        raise MessageRefused("malformed", "an array whose bytes do not fill its shape")
    return np.frombuffer(elements, dtype).reshape(shape).copy()


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise MessageRefused("malformed", f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return
    for inner in value:
        if isinstance(inner, dict | list):
            _check_depth(inner, left - 1)
