"""Which clients are left out of batches of masked counts after one was void, and how a faulty one
is found."""

from __future__ import annotations

import pytest

from shoal.server_node.ingest.suspects import Suspects

KEY = b"key"


def answers(clients: list[str]) -> dict[str, bytes]:
    return dict.fromkeys(clients, KEY)


def named(n: int) -> list[str]:
    return [f"c{i:03}" for i in range(n)]


def rounds_until_found(suspects: Suspects, clients: list[str], faulty: set[str], least: int) -> int:
    """Play rounds in which batches with a faulty client are void, until all of them are left
    out."""
    for number in range(1, 200):
        batch = suspects.chosen(answers(clients), least)
        if set(batch) & faulty:
            suspects.void(answers(batch))
        else:
            suspects.absorbed(batch)
        if set(suspects.left_out) == faulty:
            return number
    raise AssertionError(f"{faulty} not found, left out: {set(suspects.left_out)}")


def test_without_suspects_everybody_is_in_the_batch() -> None:
    suspects = Suspects()
    assert suspects.chosen(answers(named(9)), 3) == named(9)
    assert suspects.chosen({}, 3) == []
    suspects.absorbed(named(9))
    assert suspects.chosen(answers(named(9)), 3) == named(9)


@pytest.mark.parametrize(("n", "least"), [(6, 3), (40, 20), (200, 20), (1000, 20)])
def test_a_faulty_client_is_found_in_few_rounds_wherever_it_is_and_no_other_is_left_out(
    n: int, least: int
) -> None:
    clients = named(n)
    most = 0
    for place in (0, n // 3, n // 2, n - 1):
        suspects = Suspects()
        suspects.absorbed(clients)
        most = max(most, rounds_until_found(suspects, clients, {clients[place]}, least))
        for _ in range(n.bit_length()):
            suspects.absorbed(suspects.chosen(answers(clients), least))
        assert suspects.chosen(answers(clients), least) == [
            client for client in clients if client != clients[place]
        ]
    assert most <= 3 * n.bit_length()


def test_several_faulty_clients_are_found_one_after_the_other() -> None:
    clients = named(100)
    rounds_until_found(Suspects(), clients, {clients[3], clients[50], clients[51]}, 20)


def test_where_every_batch_is_void_nobody_is_left_out_because_a_helper_may_be_faulty() -> None:
    suspects = Suspects()
    clients = named(10)
    for _ in range(50):
        batch = suspects.chosen(answers(clients), 1)
        assert suspects.void(answers(batch)) is None
    assert suspects.left_out == {}


def test_no_batch_has_all_suspects_of_the_one_before_as_it_would_tell_nothing() -> None:
    suspects = Suspects()
    clients = named(3)
    suspects.void(answers(clients))
    assert suspects.chosen(answers(clients), 3) == [], "their windows would be spent for nothing"
    assert suspects.chosen({**answers(clients), clients[1]: b"new"}, 3) == clients, (
        "one of them has a new key"
    )
    assert len(suspects.chosen(answers([*clients, "d"]), 3)) == 3


def test_a_single_suspect_is_left_out_once_a_check_has_shown_that_the_helpers_are_right() -> None:
    suspects = Suspects()
    clients = named(2)
    for checked in (False, True):
        suspects.void(answers(clients))
        if checked:
            suspects.trust_helpers()
        assert suspects.void(answers(clients[:1])) == (clients[0] if checked else None)


def test_a_client_with_a_new_key_is_taken_again() -> None:
    suspects = Suspects()
    clients = named(6)
    rounds_until_found(suspects, clients, {clients[2]}, 2)
    assert clients[2] not in suspects.chosen(answers(clients), 2)
    assert clients[2] in suspects.chosen({**answers(clients), clients[2]: b"new"}, 2)


def test_suspects_are_restored_as_they_were() -> None:
    suspects = Suspects()
    clients = named(30)
    suspects.absorbed(clients)
    suspects.void(answers(clients))
    suspects.absorbed(suspects.chosen(answers(clients), 5))
    restored = Suspects()
    restored.restore(suspects.state())
    assert restored.chosen(answers(clients), 5) == suspects.chosen(answers(clients), 5)
    assert restored.state().saved() == suspects.state().saved()
