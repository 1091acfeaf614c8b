"""What has changed between two JSON values: applied to the first it gives the second, and it is
small."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.server_node.outputs.encoding import as_json
from shoal.server_node.outputs.web.changes import REMOVED, UNCHANGED, change
from tests.server_node.web_changes import applied

names = st.text(min_size=1, max_size=4)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(names, values, max_size=5)


@given(objects, objects)
def test_a_change_makes_the_second_value_of_the_first(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    copies = deepcopy((before, after))
    try:
        changed = change(before, after)
    except TypeError:
        return  # an object in place of an array, which a status never has
    assert (before, after) == copies
    result = before if changed is UNCHANGED else applied(before, changed)
    assert as_json(in_order(result)) == as_json(in_order(after))


def in_order(value: Any) -> Any:
    """The order of members means nothing in JSON."""
    if isinstance(value, dict):
        return {name: in_order(value[name]) for name in sorted(value)}
    return [in_order(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": 1, "b": 2}, {"a": 1}, {REMOVED: ["b"]}),
        ({"a": {"b": 1, "c": None}}, {"a": {"b": None, "c": None}}, {"a": {"b": None}}),
        ({"a": [10, 20, 30, 40]}, {"a": [10, 20, 31, 40]}, {"a": {"2": 31}}),
        ({"a": [1, 2]}, {"a": [1, 3]}, {"a": [1, 3]}),  # the whole array is shorter
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, {"a": [1, 2, 3]}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_only_what_differs_is_in_a_change(before: Any, after: Any, expected: Any) -> None:
    assert change(before, after) == expected
    assert change(after, after) is UNCHANGED


def test_an_object_in_place_of_an_array_is_refused_because_it_would_be_taken_for_a_change() -> None:
    with pytest.raises(TypeError, match="cannot replace an array"):
        change({"a": [1]}, {"a": {"b": 1}})
