"""A saved state is read back as it was, and nothing else is: each rule of a field refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from shoal.algorithms.streaming import ArraySpec
from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray, Bools, Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.codec import pack, unpack
from shoal.saved_state import (
    BoolArray,
    FloatArray,
    IntArray,
    NamedFloats,
    Number,
    SavedState,
    Table,
    Whole,
    require,
    state_type,
)
from tests.saved_states import changed, without

SNAPSHOT = {
    "nearest": ArraySpec("<i8", ("n",), points_into="k"),
    "centre": ArraySpec("<f8", ("k", "d"), not_empty=True),
}


@state_type
class Part(SavedState):
    place: Annotated[Floats, FloatArray("d", gaps=True)]
    mass: Annotated[float, Number(least=0.0)]


@state_type
class Whole4(SavedState):
    version: ClassVar[int] = 4

    width: Annotated[int | None, Whole(least=1, size="d")]
    readings: int
    rate: Annotated[float | None, Number(above=0.0)]
    started: bool
    name: str
    key: bytes
    weight: Annotated[Floats, FloatArray("k", "d")]
    count: Annotated[Ints, IntArray("k", least=1)]
    flags: Annotated[Bools, BoolArray("k", 2)]
    snapshot: Annotated[dict[str, AnyArray], Table(SNAPSHOT)]
    sums: Annotated[dict[str, AnyArray], NamedFloats()]
    clients: list[str]
    parts: list[Part]
    by_client: dict[str, Part]
    other: Part | None

    def check(self) -> None:
        require(int(self.count.sum()) <= self.readings, "more counts than readings")


def part() -> Part:
    return Part(place=np.array([1.0, np.nan]), mass=0.0)


def whole() -> Whole4:
    return Whole4(
        width=2,
        readings=9,
        rate=0.5,
        started=True,
        name="attic",
        key=b"1",
        weight=np.ones((3, 2)),
        count=np.array([1, 2, 3]),
        flags=np.ones((3, 2), dtype=np.bool_),
        snapshot={"nearest": np.array([0]), "centre": np.zeros((1, 2))},
        sums={"any": np.zeros(4)},
        clients=["attic"],
        parts=[part(), part()],
        by_client={"attic": part()},
        other=None,
    )


STATE = whole().saved(half="server")


def test_a_state_comes_back_as_it_was_through_a_checkpoint() -> None:
    stored = unpack(pack(STATE), 10**6)
    restored = Whole4.read(stored, {"d": 2}, half="server")
    assert pack(restored.saved(half="server")) == pack(STATE)
    assert isinstance(restored.parts[1], Part)
    assert restored.weight.flags.writeable, "learning goes on in it"


def test_a_state_has_each_of_its_fields_in_their_order_and_they_do_not_change() -> None:
    given = dict(reversed(vars(whole()).items()))
    assert list(vars(Whole4(**given))) == [field.name for field in fields(Whole4)]
    with pytest.raises(TypeError, match="Part needs a value of mass"):
        Part(place=np.zeros(1))  # type: ignore[call-arg]  # one is missing
    with pytest.raises(TypeError, match="Part has no fields weight"):
        Part(place=np.zeros(1), mass=0.0, weight=1.0)  # type: ignore[call-arg]  # one too many
    with pytest.raises(FrozenInstanceError):
        part().mass = 1.0  # type: ignore[misc]  # states do not change
    # Functions of its own would take most of the memory of a class.
    assert not {"__init__", "__eq__", "__repr__", "__setattr__"} & vars(Whole4).keys()


def test_a_saved_array_is_a_copy() -> None:
    state = whole()
    saved = state.saved()
    state.weight[:] = 7.0
    assert (saved["weight"] == 1.0).all()


@pytest.mark.parametrize("name", STATE)
def test_no_entry_may_be_missing(name: str) -> None:
    with pytest.raises(InvalidState, match=f"lacks {name}"):
        Whole4.read(without(STATE, name), half="server")


WRONG: list[tuple[str, Any]] = [
    ("version", 3),
    ("half", "client"),
    ("width", 3),
    ("width", 0),
    ("readings", -1),
    ("readings", True),
    ("readings", 1.0),
    ("readings", COUNT_MAX + 1),
    ("readings", None),
    ("rate", 0.0),
    ("rate", float("nan")),
    ("rate", float("inf")),
    ("rate", True),
    ("started", 1),
    ("name", b"attic"),
    ("key", "1"),
    ("weight", np.ones((4, 2))),
    ("weight", np.ones((3, 2), dtype=np.float32)),
    ("weight", np.full((3, 2), np.nan)),
    ("weight", [1.0]),
    ("weight", np.ones(3)),
    ("count", np.array([0, 2, 3])),
    ("count", np.array([1, 2])),
    ("count", np.array([10, 2, 3])),
    ("flags", np.ones((3, 1), dtype=np.bool_)),
    ("flags", np.ones((3, 2))),
    ("snapshot", {"nearest": np.array([0])}),
    ("snapshot.nearest", np.array([1])),
    ("snapshot.nearest", np.array([-1])),
    ("snapshot.centre", np.zeros((0, 2))),
    ("snapshot.centre", np.zeros((1, 3))),
    ("snapshot.centre", np.full((1, 2), np.inf)),
    ("sums", []),
    ("sums", {"any": np.array([np.nan])}),
    ("sums", {"any": np.array([1])}),
    ("clients", ["attic", 1]),
    ("clients", "attic"),
    ("parts", [STATE["parts"][0], {}]),
    ("parts", STATE["parts"][0]),
    ("by_client", {1: STATE["parts"][0]}),
    ("by_client.attic.mass", -0.1),
    ("by_client.attic.place", np.ones(3)),
    ("by_client.attic.place", np.array([1.0, np.inf])),
    ("other", 3),
]


@pytest.mark.parametrize(
    ("way", "value"), WRONG, ids=[f"{way} {number}" for number, (way, _) in enumerate(WRONG)]
)
def test_a_value_against_its_rule_is_refused(way: str, value: Any) -> None:
    with pytest.raises(InvalidState):
        Whole4.read(changed(STATE, {way: value}), half="server")


@pytest.mark.parametrize("state", [None, 3, [], "state", b""])
def test_what_is_no_mapping_is_refused(state: Any) -> None:
    with pytest.raises(InvalidState, match="a saved state is a mapping"):
        Whole4.read(state)


def test_a_size_that_the_reader_knows_must_be_that_of_the_state() -> None:
    with pytest.raises(InvalidState, match="width 2, this is 3"):
        Whole4.read(STATE, {"d": 3}, half="server")


def test_a_width_that_is_not_known_yet_leaves_no_room_for_features() -> None:
    no_width = changed(STATE, {"width": None, "weight": np.ones((3, 0))})
    with pytest.raises(InvalidState, match="place"):
        Whole4.read(changed(no_width, {"snapshot.centre": np.zeros((1, 0))}), half="server")


def test_a_field_of_a_type_without_a_rule_is_an_error_of_the_program() -> None:
    @state_type
    class Unclear(SavedState):
        value: complex

    with pytest.raises(TypeError, match="complex"):
        Unclear.read({"value": 1j})
