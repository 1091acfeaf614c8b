"""Values to bytes and back: exact, one form for one value, and nothing but a refusal for bytes that
lie."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.config.limits import PACKED_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.codec import (
    ARRAY,
    DEPTH_MAX,
    DIMENSIONS_MAX,
    DTYPES,
    PART,
    PART_DEPTH_MAX,
    StoredPart,
    pack,
    unpack,
)

arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda form: hnp.arrays(
        np.dtype(form),
        hnp.array_shapes(min_dims=0, max_dims=DIMENSIONS_MAX, min_side=0, max_side=4),
    )
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=True)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
plain = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal with their types, NaN equal to NaN."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def array_extension(
    form: bytes, shape: list[int], elements: bytes = b"", dimensions: int | None = None
) -> bytes:
    """An array as a liar would write it."""
    count = len(shape) if dimensions is None else dimensions
    header = form + struct.pack(f"<B{len(shape)}Q", count, *shape)
    packed: bytes = msgpack.packb(msgpack.ExtType(ARRAY, header + elements))
    return packed


@pytest.mark.parametrize(
    "nothing", [None, {}, [], "", b"", np.empty(0), np.empty((0, 3)), np.empty((3, 0), np.int64)]
)
def test_nothing_comes_back_as_the_nothing_it_was(nothing: Any) -> None:
    assert same(unpack(pack(nothing)), nothing)


@given(plain)
def test_what_is_packed_comes_back_the_same(value: Any) -> None:
    assert same(unpack(pack(value)), value)


@given(plain)
def test_one_value_has_one_form(value: Any) -> None:
    assert pack(unpack(pack(value))) == pack(value)


@pytest.mark.parametrize("form", sorted(DTYPES))
def test_byte_order_and_layout_of_an_array_leave_no_trace(form: str) -> None:
    straight = np.arange(12).reshape(3, 4).astype(form)
    read_only = straight.copy()
    read_only.flags.writeable = False
    others = (
        straight.astype(straight.dtype.newbyteorder(">")),
        np.asfortranarray(straight),
        read_only,
    )
    strided = np.zeros((6, 8), straight.dtype)
    strided[::2, ::2] = straight
    for other in (*others, strided[::2, ::2]):
        assert pack(other) == pack(straight)


def test_an_array_that_comes_back_is_the_readers_own() -> None:
    back = unpack(pack({"a": np.zeros(3)}))["a"]
    back[0] = 1.0
    assert back.flags.owndata


def test_a_tuple_is_a_list_and_a_numpy_number_an_array_of_no_dimension() -> None:
    assert unpack(pack((1, 2))) == [1, 2]
    assert same(unpack(pack(np.int64(7))), np.array(7))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1: "a number as a key"},
        {"deeper": [{(1, 2): 3}]},
        2**64,
        "\ud800",
        np.array(["text"]),
        np.array([object()]),
        np.zeros(2, np.float16),
        np.zeros(2, np.complex128),
        np.zeros((1,) * (DIMENSIONS_MAX + 1)),
        np.zeros(2, [("x", "<f8")]),
        msgpack.Timestamp(1),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_read_again_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot pack"):
        pack(value)


def nested(depth: int, innermost: Any = None) -> Any:
    value: Any = [] if innermost is None else [innermost]
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nesting_has_a_limit_and_it_is_the_same_both_ways() -> None:
    assert unpack(pack(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(TypeError):
        pack(nested(DEPTH_MAX + 1))
    with pytest.raises(MessageRejected, match="nested"):
        unpack(msgpack.packb(nested(DEPTH_MAX + 1)))
    with pytest.raises(MessageRejected):
        unpack(b"\x91" * 1_000_000 + b"\xc0")


def test_a_part_in_its_place_is_checked_like_the_rest() -> None:
    assert unpack(pack(nested(3, StoredPart(nested(DEPTH_MAX - 3))))) == nested(DEPTH_MAX)
    for wrong in (nested(3, StoredPart(nested(DEPTH_MAX - 2))), [StoredPart({"list": [{1: 2}]})]):
        with pytest.raises(TypeError, match="cannot pack"):
            pack(wrong)


@pytest.mark.parametrize(
    "around", [1, PART_DEPTH_MAX, PART_DEPTH_MAX + 1, DEPTH_MAX, DEPTH_MAX + 1]
)
@pytest.mark.parametrize(
    "inside", [1, PART_DEPTH_MAX, PART_DEPTH_MAX + 1, DEPTH_MAX, DEPTH_MAX + 1]
)
def test_what_is_packed_with_parts_elsewhere_can_be_read_as_a_whole_and_packed_again(
    around: int, inside: int
) -> None:
    rows: list[bytes] = []

    def refer(part: StoredPart) -> msgpack.ExtType:
        rows.append(pack(part.value, depth_max=PART_DEPTH_MAX))
        return msgpack.ExtType(PART, b"0")

    value = nested(around, StoredPart(nested(inside)))
    if max(around, inside) > PART_DEPTH_MAX:
        with pytest.raises(TypeError, match=r"cannot pack .* nested deeper"):
            pack(value, refer)
        return
    whole = unpack(pack(value, refer), resolve=lambda _: unpack(rows[0]))
    assert pack(whole) == pack(value)


def read_or_refused(packed: bytes) -> None:
    """Anything but a value or a refusal for one of the two reasons fails the test that asks."""
    refusal = None
    try:
        unpack(packed, items_max=1000)
    except MessageRejected as rejected:
        refusal = rejected.reason
    assert refusal in {None, "malformed", "oversized"}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(junk: bytes) -> None:
    read_or_refused(junk)


@given(plain, st.data())
def test_flipped_bytes_are_a_value_or_refused(value: Any, data: st.DataObject) -> None:
    packed = bytearray(pack(value))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(bytes(packed))


@given(plain, st.data())
def test_a_value_cut_short_is_refused(value: Any, data: st.DataObject) -> None:
    packed = pack(value)
    with pytest.raises(MessageRejected, match="malformed"):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])


def test_bytes_after_the_value_are_refused() -> None:
    with pytest.raises(MessageRejected, match="malformed"):
        unpack(pack(1) + b"\x00")


def test_an_array_written_by_hand_is_read() -> None:
    assert same(unpack(array_extension(b"<f8", [2, 1], bytes(16))), np.zeros((2, 1)))
    assert same(unpack(array_extension(b"|b1", [], b"\x01")), np.array(True))


@pytest.mark.parametrize(
    "packed",
    [
        array_extension(b"<f8", [2**40]),
        array_extension(b"<f8", [2**62, 0]),
        array_extension(b"<f8", [2**64 - 1, 2**64 - 1]),
        array_extension(b"<f8", [2**26, 2**26, 2**26, 0]),
        array_extension(b"<f8", [2**32, 2**32], bytes(8)),
        array_extension(b"<f8", [2], bytes(8)),
        array_extension(b"<f8", [1], bytes(9)),
        array_extension(b"<f8", [], bytes(7)),
        array_extension(b"<f8", [1] * (DIMENSIONS_MAX + 1), bytes(8)),
        array_extension(b"<f8", [1], b"\x01" * 8, dimensions=2),
        array_extension(b"<f8", [1], bytes(8), dimensions=255),
        array_extension(b"<f8", [1], bytes(8), dimensions=0),
        array_extension(b"|O8", [1], bytes(8)),
        array_extension(b"<c8", [1], bytes(8)),
        array_extension(b">f8", [1], bytes(8)),
        array_extension(b"\xff\xfe\xfd", [1], bytes(8)),
        array_extension(b"<f", [1], bytes(8)),
        array_extension(b"|b1", [1], b"\x02"),
        msgpack.packb(msgpack.ExtType(ARRAY, b"<f8")),
        msgpack.packb(msgpack.ExtType(ARRAY, b"<f8\x01")),
        msgpack.packb(msgpack.ExtType(ARRAY, b"<f8\x01" + bytes(7))),
    ],
)
def test_an_array_that_cannot_be_is_refused(packed: bytes) -> None:
    with pytest.raises(MessageRejected, match="malformed"):
        unpack(packed)


@pytest.mark.parametrize(
    "packed",
    [
        msgpack.packb(msgpack.ExtType(ARRAY, b"")),
        msgpack.packb(msgpack.ExtType(ARRAY, b"\xdd\xff\xff\xff\xff")),
        msgpack.packb(msgpack.ExtType(ARRAY, b"\x91" * 100_000)),
        msgpack.packb(msgpack.ExtType(2, b"x")),
        msgpack.packb(msgpack.Timestamp(1)),
        msgpack.packb({"when": [msgpack.Timestamp(1, 5)]}),
        msgpack.packb({1: 2}),
        msgpack.packb({b"bytes": 2}),
        msgpack.packb("\ud800".encode("utf-8", "surrogatepass").decode("latin-1")).replace(
            b"\xc3", b"\xff"
        ),
        b"\xc1",
        b"",
    ],
)
def test_what_we_never_write_is_refused(packed: bytes) -> None:
    with pytest.raises(MessageRejected, match="malformed"):
        unpack(packed)


def test_a_message_larger_than_allowed_is_refused_unread() -> None:
    with pytest.raises(MessageRejected, match="oversized"):
        unpack(b"\xc1" * 11, bytes_max=10)


def pieces(value: Any) -> int:
    """How many values it is made of, itself, keys and all."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(pieces, value.values()))
    return 1 + sum(map(pieces, value)) if isinstance(value, list) else 1


@given(plain)
def test_the_values_a_message_is_made_of_are_counted_exactly(value: Any) -> None:
    number = pieces(value)
    assert same(unpack(pack(value), items_max=number), value)
    with pytest.raises(MessageRejected, match="oversized"):
        unpack(pack(value), items_max=number - 1)


@pytest.mark.parametrize("length", [15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_values_of_every_length_are_counted_as_one(length: int) -> None:
    singles: list[Any] = [
        "x" * length,
        b"x" * length,
        np.zeros(length, np.uint8),
        -(2**15) * length,
        1.5,
    ]
    for value in singles:
        assert same(unpack(pack([value, None]), items_max=3), [value, None])
    whole: list[Any] = [[0] * length, dict.fromkeys(map(str, range(length)))]
    for value in whole:
        assert unpack(pack(value), items_max=pieces(value)) == value


def test_what_is_only_claimed_counts_as_if_it_were_there() -> None:
    for claim in (b"\xdd\x00\x10\x00\x00", b"\xdf\x00\x00\x01\xf4", b"\xdc\x03\xe8"):
        with pytest.raises(MessageRejected, match="oversized"):
            unpack(claim + pack("one text" * 200), items_max=1000)


HUGE = """
import resource, sys
from shoal.protocol.codec import unpack
from shoal.errors import MessageRejected
n = 32 * 1024 * 1024
hostile = {
    "claims": b"\\xdd\\x01\\xff\\x00\\x00" * 1000 + b"\\xc0" * (n - 5000),
    "empty mappings": b"\\xdd" + (n - 5).to_bytes(4, "big") + b"\\x80" * (n - 5),
    "lists of empty mappings": (b"\\xdc\\x27\\x10" + b"\\x80" * 9_999) * (n // 10_002),
}[sys.argv[1]]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(hostile, n, items_max=16_384)
except MessageRejected:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("kind", ["claims", "empty mappings", "lists of empty mappings"])
def test_a_hostile_message_takes_no_more_memory_than_its_size(kind: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HUGE, kind], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 64, "MiB more than the message itself"


def test_the_default_limit_leaves_room_for_a_full_message() -> None:
    assert len(pack(np.zeros(32 * 1024 * 1024, np.uint8))) <= PACKED_BYTES_MAX
