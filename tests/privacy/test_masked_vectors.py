"""The test vectors of masked counts, both ways: the code gives what they state, and with one byte
changed it does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.privacy.gaussian import _normaliser, _running_sums
from tests import masked_vectors
from tests.masked_vectors import GROUPS, Case, Group

CASES = [
    pytest.param(group, case, id=f"{file}-{name}-{number}")
    for file, groups in GROUPS.items()
    for name, group in groups.items()
    for number, case in enumerate(masked_vectors.read(file)[name])
]


@pytest.mark.parametrize("file", GROUPS)
def test_the_vectors_are_those_that_the_command_makes(file: str) -> None:
    text = (masked_vectors.FOLDER / f"{file}.json").read_text(encoding="utf-8")
    assert text == masked_vectors.text_of(file), "make them anew: python -m tests.masked_vectors"


def places_in(value: Any, outputs: tuple[str, ...], title: str = "") -> Iterator[list[Any]]:
    """The paths to the values whose change must be noticed: those under a title in `outputs`, or
    all."""
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for step, inner in entries:
            name = step if isinstance(step, str) else title
            for path in places_in(inner, outputs, name):
                yield [step, *path]
    elif not outputs or title in outputs:
        yield []


def changed_forms(value: Any) -> Iterator[Any]:
    """A value with one byte changed: the first, one in the middle, or the last."""
    if isinstance(value, int):
        yield value + 1
        return
    assert isinstance(value, str)
    is_hex = len(value) >= 8 and len(value) % 2 == 0 and set(value) <= set("0123456789abcdef")
    if not is_hex:
        yield f"{value}x" if not value.isdigit() else str(int(value) + 1)
        return
    content = bytes.fromhex(value)
    for place in sorted({0, len(content) // 2, len(content) - 1}):
        # Not the lowest bit alone: a point of low order would be another one.
        changed = bytes([content[place] ^ 0x54])
        yield (content[:place] + changed + content[place + 1 :]).hex()


def holds(group: Group, case: Case) -> bool:
    """Whether a case is true; a case that cannot be one is not."""
    try:
        return group.holds(case)
    except (ShoalError, ValueError, LookupError):
        return False


@pytest.mark.parametrize(("group", "case"), CASES)
def test_a_changed_byte_of_a_vector_is_noticed(group: Group, case: Case) -> None:
    assert holds(group, case)
    tried = 0
    for path in places_in(case, group.outputs):
        inner: Any = case
        for step in path:
            inner = inner[step]
        for form in changed_forms(inner):
            other = copy.deepcopy(case)
            within: Any = other
            for step in path[:-1]:
                within = within[step]
            within[path[-1]] = form
            assert not holds(group, other), path
            tried += 1
    assert tried


FALCON_SIGMA = Decimal("1.8205")
FALCON_BITS = 72
FALCON_TABLE = (
    3024686241123004913666,
    1564742784480091954050,
    636254429462080897535,
    199560484645026482916,
    47667343854657281903,
    8595902006365044063,
    1163297957344668388,
    117656387352093658,
    8867391802663976,
    496969357462633,
    20680885154299,
    638331848991,
    14602316184,
    247426747,
    3104126,
    28824,
    198,
    1,
)
"""the published table of a discrete Gaussian on 0, 1, 2, ...: Falcon's specification (NIST, round
3), table 3.1; 2^72 times the probability of more than 0, 1, ..., 17"""


def test_the_distribution_is_that_of_a_published_table() -> None:
    """Published vectors of whole samplers use up random bits in ways of their own (rejection,
    tables of other deviations); their tables are of the same function."""
    exact = Context(prec=60)
    variance: Any = FALCON_SIGMA * FALCON_SIGMA
    # Ours has both signs, theirs has none: 0 once and each other number once.
    total = (_normaliser(variance, exact) + 1) / 2
    reached = [Decimal(0)]
    for _, both in zip(range(len(FALCON_TABLE) + 1), _running_sums(variance, exact), strict=False):
        reached.append(exact.divide(both + 1, 2 * total))
    # Each probability of the table was rounded down, then they were added up from the end.
    rounded = []
    for place in range(1, len(FALCON_TABLE) + 1):
        chance = exact.subtract(reached[place + 1], reached[place])
        rounded.append(int(exact.multiply(chance, Decimal(2**FALCON_BITS))))
    sums = [sum(rounded[place:]) for place in range(len(rounded))]
    assert sums == list(FALCON_TABLE)
