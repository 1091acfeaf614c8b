"""The compiled form of the kernels: the bits of NumPy's form, on streams that are made to tell them
apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.streaming import Contribution
from shoal.kernels import forms
from shoal.kernels.arrays import Floats
from shoal.kernels.art_workspace import KEPT, MARGIN, ORIGIN, Workspace
from shoal.kernels.forms import COMPILED, NUMPY
from tests.kernels.both_forms import FORMS
from tests.small_plant import nodes_at

Network = CAPlus | CAEFC
HALVES = [CAPlus, CAEFC]
N = 700


pytestmark = pytest.mark.usefixtures("numba")


def blobs(generator: np.random.Generator, d: int, spread: float = 0.02) -> Floats:
    centres = generator.random((12, d))
    return centres[generator.integers(12, size=N)] + spread * generator.standard_normal((N, d))


def of_kind(kind: str, d: int) -> Floats:
    """A stream of N rows in which the last bits of a distance matter, or 32-bit floats are of no
    use."""
    generator = np.random.default_rng([N, d])
    rows = {
        "blobs": lambda: blobs(generator, d),
        # Nodes at equal distances from a row: the lowest position wins.
        "lattice": lambda: generator.integers(0, 4, size=(N, d)) / 4.0,
        "repeats": lambda: np.repeat(blobs(generator, d)[: N // 7], 7, axis=0),
        "all equal": lambda: np.full((N, d), 0.3),
        "one feature constant": lambda: blobs(generator, d) * np.array([0.0] + [1.0] * (d - 1)),
        "offset": lambda: blobs(generator, d) + 1000.0,
        "far offset": lambda: blobs(generator, d) + 1e9,
        "heavy tails": lambda: generator.standard_cauchy((N, d)),
        "drift": lambda: blobs(generator, d) + np.linspace(0.0, 3.0, N)[:, None],
        "tiny": lambda: blobs(generator, d) * 1e-140,
        "huge": lambda: blobs(generator, d) * 1e140,
        "both": lambda: blobs(generator, d) * 10.0 ** generator.integers(-30, 30, size=(N, 1)),
        "signed zeros": lambda: np.where(
            generator.random((N, d)) < 0.5, -0.0, blobs(generator, d).round(1)
        ),
    }[kind]()
    return np.ascontiguousarray(rows)


KINDS = [
    "blobs",
    "lattice",
    "repeats",
    "all equal",
    "one feature constant",
    "offset",
    "far offset",
    "heavy tails",
    "drift",
    "tiny",
    "huge",
    "both",
    "signed zeros",
]


def learn_by(
    form: str, network: Network, rows: Floats, monkeypatch: pytest.MonkeyPatch, chunk: int = N
) -> None:
    monkeypatch.setattr(forms, "PROCESS", FORMS[form])
    for first in range(0, len(rows), chunk):
        network.learn(rows[first : first + chunk])


def bits(network: Network) -> Any:
    return bits_of(network.state())


def bits_of(value: Any) -> Any:
    """A state or a part of one, with the bytes in place of each array."""
    if isinstance(value, dict):
        return {name: bits_of(part) for name, part in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", HALVES)
def test_both_forms_end_in_the_same_bits(
    half: type[Network], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for d in (1, 2, 5, 16):
        rows = of_kind(kind, d)
        for options in ({}, {"nodes_max": 25}, {"diversity_nodes_min": 40}):
            plain = half(d, **options)
            compiled = half(d, **options)
            learn_by(NUMPY, plain, rows, monkeypatch)
            learn_by(COMPILED, compiled, rows, monkeypatch, chunk=97)
            assert bits(plain) == bits(compiled), (d, options)


@pytest.mark.parametrize("kind", ["blobs", "repeats", "drift"])
def test_both_forms_count_the_same_inputs_of_each_client(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = of_kind(kind, 2)
    alone = [
        [Contribution(f"client-{n % 5}", n, nodes_at(part))]
        for n, part in enumerate(np.array_split(rows, 13))
    ]
    together = [list(chain.from_iterable(alone[first : first + 4])) for first in range(0, 12, 4)]
    for updates in (alone, together):
        networks = {form: CAEFC(2, client_share_max=0.5) for form in (NUMPY, COMPILED)}
        for form, network in networks.items():
            monkeypatch.setattr(forms, "PROCESS", FORMS[form])
            for number, contributions in enumerate(updates):
                network.absorb(contributions, str(number).encode())
        plain = networks[NUMPY]
        compiled = networks[COMPILED]
        assert bits(plain) == bits(compiled)
        assert plain.clusters().tolist() == compiled.clusters().tolist()


@pytest.mark.parametrize("d", [7, 8, 9, 127, 128, 129, 300])
@pytest.mark.parametrize("half", HALVES)
def test_sums_of_any_number_of_features_are_numpys(
    half: type[Network], d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = blobs(np.random.default_rng(d), d)
    # Full with 8 nodes: a row of another blob looks for the nearest one at any distance.
    for options in ({}, {"nodes_max": 8}):
        plain = half(d, **options)
        compiled = half(d, **options)
        learn_by(NUMPY, plain, rows, monkeypatch)
        learn_by(COMPILED, compiled, rows, monkeypatch)
        assert bits(plain) == bits(compiled), options
        assert not options or compiled.saturated > 0


@pytest.mark.parametrize("half", HALVES)
def test_one_state_passes_from_one_form_to_the_other(
    half: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.concatenate([blobs(np.random.default_rng(seed), 3, 0.1) for seed in range(6)])
    plain = half(3)
    changing = half(3)
    learn_by(NUMPY, plain, rows, monkeypatch)
    for number, part in enumerate(np.array_split(rows, 23)):
        learn_by((NUMPY, COMPILED)[number % 2], changing, part, monkeypatch)
        twin = half(3)
        twin.restore(changing.state())
        changing = twin
    assert bits(plain) == bits(changing)


@pytest.mark.parametrize("half", HALVES)
def test_what_the_compiled_form_keeps_between_chunks_is_of_the_nodes_there_are(
    half: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.concatenate(
        [blobs(np.random.default_rng(seed), 3, 0.1) + 1000.0 * (seed > 2) for seed in range(6)]
    )
    plain = half(3, nodes_max=60)
    changing = half(3, nodes_max=60)
    learn_by(NUMPY, plain, rows, monkeypatch)
    # The same network goes on, with rows by NumPy between compiled chunks, and a leap away from the
    # origin.
    for number, part in enumerate(np.array_split(rows, 71)):
        learn_by((COMPILED, COMPILED, NUMPY)[number % 3], changing, part, monkeypatch)
    assert bits(plain) == bits(changing)


@pytest.mark.parametrize("half", HALVES)
def test_the_compiled_form_keeps_its_screen_until_it_is_of_other_nodes_or_too_far(
    half: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [blobs(np.random.default_rng(seed), 3, 0.1) for seed in range(5)]
    network = half(3, nodes_max=60)
    # Then its arrays are as large as they become.
    learn_by(COMPILED, network, np.concatenate(rows[:3]), monkeypatch)

    def origin_after(form: str, chunk: Floats) -> list[float]:
        learn_by(form, network, chunk, monkeypatch)
        origin: list[float] = network._compiled_learning._workspace.features[ORIGIN].tolist()
        return origin

    learn_by(NUMPY, network, rows[3][:10], monkeypatch)
    first = origin_after(COMPILED, rows[3][10:50])
    assert first == rows[3][10].tolist(), "NumPy's form has changed the nodes"
    assert origin_after(COMPILED, rows[3][50:90]) == first
    assert origin_after(COMPILED, rows[3][90:130]) == first
    assert origin_after(NUMPY, rows[3][130:140]) == first
    second = origin_after(COMPILED, rows[3][140:180])
    assert second == rows[3][140].tolist()
    assert origin_after(COMPILED, rows[4][:40] + 1000.0) == (rows[4][0] + 1000.0).tolist()


def test_a_network_of_which_every_node_was_removed_goes_on_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Full with nodes so far apart that hardly a row has a second winner: few edges, and all nodes
    # may be isolated.
    rows = 100.0 * np.random.default_rng(0).random((N, 2))
    plain = CAEFC(2, nodes_max=8)
    sizes = list[int]()
    for row in rows:
        learn_by(NUMPY, plain, row[None], monkeypatch)
        sizes.append(plain.size)
    emptied = sizes.index(0, 8) + 1
    # Once between two rows of a chunk, and once at its end: the next chunk begins without nodes.
    for first in (N, emptied):
        compiled = CAEFC(2, nodes_max=8)
        learn_by(COMPILED, compiled, rows[:first], monkeypatch)
        assert first == N or compiled.size == 0
        learn_by(COMPILED, compiled, rows[first:], monkeypatch)
        assert bits(plain) == bits(compiled)


def test_a_screen_of_no_nodes_and_one_of_too_small_bandwidths_bound_nothing() -> None:
    from shoal.kernels.compiled import screen  # noqa: PLC0415  # needs Numba

    for sigma in (0.0, 1e-200):
        columns, bounds, point, features, _ = Workspace.of(4, 2)
        ints = np.zeros(6, np.int64)
        floats = np.array([1.0, sigma, 0.5, 0.0, 0.0, 0.0])
        for kept in (0, 1):
            ints[KEPT] = kept
            screen.open_screen(
                np.ones((3, 2)),
                np.zeros((4, 2)),
                (columns, bounds, features[ORIGIN], point),
                ints,
                floats,
            )
            assert floats[MARGIN] == -1.0


@pytest.mark.parametrize("half", HALVES)
def test_the_compiled_form_does_the_work(
    half: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = half(2)
    rows = np.concatenate([blobs(np.random.default_rng(seed), 2, 0.1) for seed in range(6)])
    learn_by(NUMPY, network, rows[:N], monkeypatch)
    by_numpy = []
    step: Callable[[Floats], Any] = network._step
    monkeypatch.setattr(network, "_step", lambda row: (by_numpy.append(1), step(row))[1])
    learn_by(COMPILED, network, rows[N:], monkeypatch)
    # Only rows for which the arrays had to grow.
    assert len(by_numpy) < 20


@pytest.mark.parametrize("half", HALVES)
def test_rows_that_may_not_be_written_to_are_learnt(
    half: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = blobs(np.random.default_rng(0), 4)
    before = rows.copy()
    rows.flags.writeable = False
    learn_by(COMPILED, half(4), rows, monkeypatch)
    assert rows.tobytes() == before.tobytes()


@pytest.mark.parametrize("d", [1, 2, 3, 4, 16, 67])
@pytest.mark.parametrize("sigma", [1e-3, 0.05, 1.0, 1e3])
def test_the_screen_bounds_every_correntropy_from_above_and_tightly(d: int, sigma: float) -> None:
    from shoal.kernels.compiled import screen  # noqa: PLC0415  # needs Numba

    generator = np.random.default_rng([d, int(1 / sigma)])
    rows = generator.random((50, d)) * 3
    weights = generator.random((37, d)) * 3
    # Some nodes near each row, so that all values of the chord occur.
    weights[:20] = rows[:20] + sigma * generator.standard_normal((20, d))
    ints = np.array([37, 0, 0, 0, 0, 0])
    floats = np.array([sigma, sigma, 0.5, 0.0, 0.0, 0.0])
    columns, bounds, point, features, _ = Workspace.of(37, d)
    parts = (columns, bounds, features[ORIGIN], point)
    screen.open_screen(rows, weights, parts, ints, floats)
    margin = floats[MARGIN]
    assert 0 < margin < d * 1e-2
    for row in rows:
        screen.bound(row, parts, ints, floats, screen.LOWEST)
        exact = np.exp(-((row - weights) ** 2) / (2 * sigma**2)).sum(axis=1)
        assert (bounds[:37] + margin >= exact).all()
        assert (bounds[:37] - margin <= screen.CHORD_RATIO * exact).all()


@pytest.mark.parametrize("n", [1, 2, 3, 64, 699, 701])
def test_the_median_is_that_of_the_sorted_numbers(n: int) -> None:
    from shoal.kernels.compiled.ca_plus import median  # noqa: PLC0415  # needs Numba

    generator = np.random.default_rng(n)
    # Rounded, some are equal.
    for numbers in (generator.random(n), generator.random(n).round(1)):
        ordered = np.sort(numbers)
        assert median(numbers) == 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])
