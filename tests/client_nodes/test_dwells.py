"""Site events of states: changes, rare ones, long dwells, and readings that are usual in another
state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import numpy as np
import pytest

from shoal.client_nodes.labelling.dwells import Dwells, States
from shoal.client_nodes.labelling.excursions import PIECE
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label
from tests.small_plant import plant

WINDOW = 8
CHANGES = np.array([[900.0, 100.0, 0.0], [60.0, 900.0, 40.0], [40.0, 60.0, 900.0]])
KNOWN = States(5, WINDOW, np.array([7, 8, 9]), np.array([50.0, 50.0, 50.0]), CHANGES, settled=True)
MIDDLE = {7: 0.2, 8: 0.5, 9: 0.8}


def dwells(**settings: float) -> Dwells:
    return Dwells(
        plant(),
        "attic",
        "m",
        ClientSettings(label=True, **{"state_changed_windows": 1.0, **settings}),
    )


def follow(
    one: Dwells,
    states: Iterable[int],
    values: Sequence[float] | None = None,
    known: States = KNOWN,
    first: int = 0,
) -> list[tuple[str, int, int | None]]:
    """(kind, number of the reading, other state) of the events found in readings of these states,
    a minute apart."""
    return [
        (event.kind, int(event.id.split("/")[2]), event.other)
        for event in found(one, states, values, known, first)
    ]


def found(
    one: Dwells,
    states: Iterable[int],
    values: Sequence[float] | None = None,
    known: States = KNOWN,
    first: int = 0,
) -> list[SiteEvent]:
    own = list(states)
    at = np.arange(first, first + len(own))
    labels = [Label(0, state, "", None, 3, 60.0 * n) for state, n in zip(own, at, strict=True)]
    centre = [MIDDLE[state] for state in own] if values is None else values
    noise = np.random.default_rng(first).uniform(-0.1, 0.1, (len(own), 2))
    return one.follow(labels, np.array(centre)[:, None] + noise, [(0, int(n)) for n in at], known)


def test_a_change_is_reported_once_the_client_has_stayed_elsewhere_for_a_window() -> None:
    one = dwells()
    assert follow(one, [7] * 20 + [8] * 7 + [7] * 10) == [], "too short"
    assert follow(one, [8] * 10, first=37) == [("state_changed", 44, 7)]
    (event,) = found(one, [9] * 30, first=47)
    assert re.findall(r"\d+ *\w*", event.text) == ["8 to", "9 after", "10 minutes"]
    assert asdict(SiteEvent.decode(event.encode())) == asdict(event)
    assert follow(dwells(state_changed_windows=0.0), [7] + [8] * 5) == [("state_changed", 5, 7)]


def test_a_change_that_few_have_made_is_unseen_and_a_common_one_is_not() -> None:
    assert follow(dwells(), [7] * 20 + [9] * 9) == [
        ("state_changed", 27, 7),
        ("unseen_change", 27, 7),
    ]
    assert follow(dwells(), [7] * 20 + [8] * 9) == [("state_changed", 27, 7)]
    assert follow(dwells(unseen_change_share=0.0), [7] * 20 + [9] * 9) == [("state_changed", 27, 7)]


def test_a_dwell_is_long_beyond_the_mean_of_all_clients_and_beyond_those_of_its_own() -> None:
    assert follow(dwells(), [7] * 400) == [("unusual_dwell", 230, None)], (
        "50 readings times the logarithm of 100"
    )
    used = dwells()
    follow(used, [8] * 9 + [7] * 600 + [8] * 9)
    assert follow(used, [7] * 500, first=700) == [("state_changed", 707, 8)], (
        "this client has stayed so long before"
    )
    (event,) = found(dwells(), [7] * 400)
    assert re.findall(r"\d+ \w+", event.text) == ["7 for", "4 hours", "50 readings"]
    assert follow(dwells(unusual_dwell_share=0.0), [7] * 400) == []


def excursion(n: int, of: int = 8) -> tuple[list[int], list[float]]:
    """States and values: enough of both states to know what is usual, then `n` readings like
    those of another one."""
    states = [7] * (3 * PIECE) + [8] * (3 * PIECE) + [7] * 200
    values = [MIDDLE[state] for state in states]
    at = len(states) - 100
    values[at : at + n] = [MIDDLE[of]] * n
    return states, values


def test_readings_that_are_together_as_in_another_state_are_reported_once() -> None:
    quiet = {"unusual_dwell_share": 0.0}
    states, values = excursion(15)
    begins = len(states) - 100
    assert follow(dwells(**quiet), states, values)[2:] == [
        ("usual_elsewhere", begins + 7 + 2 * WINDOW, 8)
    ], "once eight of ten are, and their window is whole"
    assert follow(dwells(**quiet), *excursion(7))[2:] == [], "fewer"
    assert follow(dwells(**quiet), *excursion(15, 9))[2:] == [], (
        "usual in no state that this client knows"
    )


def test_the_readings_around_a_change_are_usual_nowhere_else() -> None:
    states, values = excursion(0)
    late = [7] * 30 + [8] * 200
    # labels that lag by a window
    early = [MIDDLE[7]] * (30 - WINDOW) + [MIDDLE[8]] * (200 + WINDOW)
    kinds = follow(dwells(unusual_dwell_share=0.0, novel_streak=2), states + late, values + early)
    assert {kind for kind, *_ in kinds} == {"state_changed"}


def test_other_states_and_provisional_ones_give_no_event() -> None:
    one = dwells()
    follow(one, [7] * 50)
    assert follow(one, [8] * 50, known=KNOWN._replace(digest=6), first=50) == [], (
        "the same readings under other names"
    )
    assert follow(one, [7] * 9, known=KNOWN._replace(digest=6), first=100) == [
        ("state_changed", 107, 8)
    ]
    unsettled = KNOWN._replace(settled=False)
    assert follow(dwells(), [7] * 300 + [9] * 50, known=unsettled) == []
    assert dwells().follow([], np.empty((0, 2)), [], KNOWN) == []
    assert (
        dwells().follow([Label(-1, None, "", None, 3, None)], np.empty((1, 2)), [(0, 0)], KNOWN)
        == []
    )


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_and_restarts_change_no_event(size: int) -> None:
    states, values = excursion(15)
    states += [9] * 300
    values += [MIDDLE[9]] * 300
    rng = np.random.default_rng(4)
    unit = np.array(values)[:, None] + rng.uniform(-0.1, 0.1, (len(values), 2))
    labels = [Label(0, state, "", None, 3, None) for state in states]
    places = [(0, n) for n in range(len(labels))]
    whole = dwells().follow(labels, unit, places, KNOWN)
    assert {event.kind for event in whole} == {
        "state_changed",
        "unseen_change",
        "unusual_dwell",
        "usual_elsewhere",
    }
    one = dwells()
    events = list[SiteEvent]()
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        events += one.follow(labels[part], unit[part], places[part], KNOWN)
        saved = unpack(pack(one.state()))
        one = dwells()
        one.restore(saved)
    assert events == whole
    damaged = {**saved, "dwell": {**saved["dwell"], "readings": -1}}
    with pytest.raises(InvalidState, match="readings"):
        one.restore(damaged)
