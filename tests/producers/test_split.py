"""Whose is a row: every rule deals every row once, the same way each time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from shoal.config.base import client_name_of, given_client_name
from shoal.config.contract import Name
from shoal.errors import SettingsError
from shoal.producers.files.split import CLIENTS_MAX, split_of

RULES = ["column:c", "round-robin", "blocks", "label-skew:c", "dirichlet:c:0.3"]
texts = st.lists(st.sampled_from(["", "a", "b", "c", "d"]), max_size=300)


def dealt(rule: str, keys: list[str], clients: int, seed: int = 0) -> list[str]:
    split = split_of(rule, clients, seed)
    counts = Counter(keys if split.column else [""] * len(keys)) if split.counts_first else {}
    assign = split.assigner(counts)
    return [assign(key) for key in keys]


@pytest.mark.parametrize("rule", RULES)
def test_a_split_of_no_rows_assigns_none(rule: str) -> None:
    assert dealt(rule, [], 3) == []


@pytest.mark.parametrize("rule", RULES)
@given(keys=texts, clients=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_each_row_goes_to_one_of_the_clients_and_always_to_the_same(
    rule: str, keys: list[str], clients: int, seed: int
) -> None:
    owners = dealt(rule, keys, clients, seed)
    assert len(owners) == len(keys)
    if rule != "column:c":
        assert set(owners) <= {f"client-{number}" for number in range(1, clients + 1)}
    assert dealt(rule, keys, clients, seed) == owners


@pytest.mark.parametrize("rule", ["round-robin", "blocks", "label-skew:c"])
@given(keys=texts, clients=st.integers(1, 9))
def test_the_even_rules_give_every_client_as_much_to_within_a_shard(
    rule: str, keys: list[str], clients: int
) -> None:
    owners = dealt(rule, keys, clients)
    sizes = [owners.count(f"client-{number}") for number in range(1, clients + 1)]
    assert max(sizes) - min(sizes) <= 2


def test_round_robin_takes_turns_and_blocks_take_stretches() -> None:
    assert dealt("round-robin", ["x"] * 5, 2) == [
        "client-1",
        "client-2",
        "client-1",
        "client-2",
        "client-1",
    ]
    assert dealt("blocks", ["x"] * 5, 2) == ["client-1"] * 3 + ["client-2"] * 2


def test_label_skew_leaves_each_client_few_classes() -> None:
    keys = [str(number % 10) for number in range(1000)]
    owners = dealt("label-skew:c", keys, 5)
    classes = {
        owner: {key for key, whose in zip(keys, owners, strict=True) if whose == owner}
        for owner in set(owners)
    }
    assert len(classes) == 5
    assert all(len(some) == 2 for some in classes.values())
    assert dealt("label-skew:c", keys, 5, seed=1) != owners


def test_a_small_alpha_is_uneven_and_a_large_one_is_even() -> None:
    keys = [str(number % 4) for number in range(4000)]

    def largest_shares(alpha: float) -> list[float]:
        pairs = Counter(zip(keys, dealt(f"dirichlet:c:{alpha}", keys, 4), strict=True))
        return [
            max(rows for (key, _), rows in pairs.items() if key == label) / 1000 for label in "0123"
        ]

    assert max(largest_shares(1000)) < 0.35
    assert min(largest_shares(0.05)) > 0.5


def test_dirichlet_deals_a_class_the_same_way_whatever_else_there_is() -> None:
    alone = dealt("dirichlet:c:1", ["a"] * 50, 3)
    mixed = dealt("dirichlet:c:1", ["a", "b"] * 50, 3)
    assert mixed[::2] == alone


@given(st.text())
def test_every_text_has_a_name_that_is_fit_for_a_client(text: str) -> None:
    TypeAdapter(Name).validate_python(client_name_of(text))


@given(st.sets(st.text(alphabet="aAbB -_é1"), max_size=50))
def test_two_texts_never_share_a_name(some: set[str]) -> None:
    names = {client_name_of(text) for text in some}
    assert len(names) == len(some)
    # Not even one text with the name of another.
    assert len({client_name_of(text) for text in some | names}) == len(some | names)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "unnamed"),
        ("room-1", "room-1"),
        ("Room 1", "room-1-"),
        ("unnamed", "unnamed-"),
        ("é", "e-"),
        ("名", "client-"),
    ],
)
def test_a_name_is_like_its_text(text: str, name: str) -> None:
    assert client_name_of(text).startswith(name)
    assert (client_name_of(text) == name) == (not name.endswith("-"))


@given(st.text())
def test_people_may_give_the_text_or_the_name_and_mean_one_client(text: str) -> None:
    name = client_name_of(text)
    assert given_client_name(name) == name
    assert given_client_name(text) in (name, text)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "random",
        "column",
        "column:",
        "round-robin:2",
        "blocks:c",
        "label-skew",
        "dirichlet",
        "dirichlet:0.5",
        "dirichlet:c:0",
        "dirichlet:c:nan",
        "dirichlet:c:inf",
        "dirichlet:c:x",
        "dirichlet:c:",
    ],
)
def test_what_is_no_rule_is_refused_with_what_would_be_one(rule: str) -> None:
    with pytest.raises(SettingsError, match=r"the rules are|alpha is a number above 0"):
        split_of(rule, 2, 0)


@pytest.mark.parametrize("rule", ["label-skew", "dirichlet:0.5"])
def test_the_label_rules_read_the_label_column_by_default(rule: str) -> None:
    assert split_of(rule, 2, 0, "kind").column == "kind"


@pytest.mark.parametrize("clients", [0, -1, CLIENTS_MAX + 1])
def test_a_number_of_clients_that_cannot_be_is_refused(clients: int) -> None:
    with pytest.raises(SettingsError, match=f"1 to {CLIENTS_MAX}"):
        split_of("round-robin", clients, 0)


def test_a_column_that_names_too_many_clients_is_refused() -> None:
    assign: Any = split_of("column:time", 1, 0).assigner({})
    assert len(set(map(assign, map(str, range(CLIENTS_MAX))))) == CLIENTS_MAX
    with pytest.raises(SettingsError, match="is it the column of the client"):
        assign("one more")


def test_a_label_of_too_many_classes_is_refused() -> None:
    assign: Any = split_of("dirichlet:time:1", 1, 0).assigner({})
    for number in range(10_000):
        assign(str(number))
    with pytest.raises(SettingsError, match="is it the label"):
        assign("one more")
