"""The groups of clients in a state follow from the clients and their values, and only those that
changed are new."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.codec import StoredPart, pack, unpack
from shoal.server_node.models.clients import GROUPS, ClientGroups, values_by_client

MANY = 4 * GROUPS


def contents(groups: list[StoredPart]) -> Any:
    return unpack(pack(groups))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.booleans())))
def test_the_groups_are_those_of_the_values_whatever_came_before(
    steps: list[tuple[int, int, bool]],
) -> None:
    values: dict[str, int] = {}
    groups = ClientGroups()
    for number, value, look in steps:
        client = f"client-{number}"
        values.pop(client, None)
        if value:
            values[client] = value
        groups.change(client)
        if look:
            groups.state(values.get)
    fresh = ClientGroups()
    fresh.begin_again(reversed(values))
    expected = contents(fresh.state(values.get))
    assert pack(groups.state(values.get)) == pack(expected)
    assert values_by_client(expected) == values


def test_a_group_without_a_change_is_the_same_part() -> None:
    values = {f"client-{number}": [number] for number in range(MANY)}
    groups = ClientGroups()
    groups.begin_again(values)
    before = groups.state(values.get)
    assert len(before) <= GROUPS
    assert max(len(group.value) for group in before) < 20, "clients are spread over the groups"
    values["client-7"] = [0]
    groups.change("client-7")
    after = groups.state(values.get)
    changed = [new.value for old, new in zip(before, after, strict=True) if new is not old]
    assert [group["client-7"] for group in changed] == [[0]]
    assert groups.state(values.get) == after, "nothing has changed since"


def test_a_group_without_clients_is_left_out() -> None:
    values = {"attic": 1}
    groups = ClientGroups()
    groups.begin_again(values)
    assert contents(groups.state(values.get)) == [{"attic": 1}]
    del values["attic"]
    groups.change("attic")
    assert groups.state(values.get) == []


@pytest.mark.parametrize("damaged", [None, [1], [[1]], ["attic"]])
def test_a_damaged_state_raises_what_callers_expect(damaged: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        values_by_client(damaged)
