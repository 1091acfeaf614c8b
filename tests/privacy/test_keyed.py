"""Noise words: the same for the same reading at the same place, unrelated for anything else.

Each of these conditions, broken, gives readings away exactly; so each has its test here.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import InvalidData, SettingsError
from shoal.privacy import Bounds, Mechanism, PrivacyTerms
from shoal.privacy.keyed import KeyedWords
from shoal.privacy.statement import context_digest
from tests.privacy.noise_terms import KEY, SOURCE, build, formal_terms, paper_terms, places, readings_of

CONTEXT = bytes(range(200, 232))
N = 4000


def words(d: int = 3) -> KeyedWords:
    return KeyedWords(KEY, "attic", SOURCE, CONTEXT, d)


def noise(
    mechanism: Mechanism, terms: PrivacyTerms, readings: NDArray[np.float64], first: int = 0
) -> NDArray[np.float64]:
    """Noise in scales, (n * d,)."""
    released = mechanism.privatise(readings, places(len(readings), first))
    unit = terms.bounds.to_unit(readings[released.kept])
    return np.asarray((released.rows - unit) * np.array(terms.epsilon_per_feature())).ravel()


def unrelated(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Correlation of the noises and of their signs within chance."""
    limit = 4 / np.sqrt(len(a))
    return all(abs(np.corrcoef(x, y)[0, 1]) < limit for x, y in ((a, b), (np.sign(a), np.sign(b)), (abs(a), abs(b))))


def test_no_readings_need_no_words() -> None:
    assert words().draw([], np.empty((0, 3), dtype=np.int64), 5).shape == (0, 5)


def test_words_are_the_digest_of_the_documented_fields() -> None:
    grid = np.array([[1, -2, 3]], dtype=np.int64)
    fields = b"".join(
        [
            KEY + bytes(104),
            (1).to_bytes(4, "little"),
            hashlib.sha256(b"attic").digest(),
            SOURCE,
            CONTEXT,
            bytes(136 - 4 - 32 - 16 - 32),
            (7).to_bytes(4, "little"),
            (2**40).to_bytes(8, "little"),
            *(value.to_bytes(8, "little", signed=True) for value in (1, -2, 3)),
        ]
    )
    expected = np.frombuffer(hashlib.shake_256(fields).digest(40), dtype="<u8")
    np.testing.assert_array_equal(words().draw([(7, 2**40)], grid, 5)[0], expected)


def test_words_are_the_ones_every_release_has_had() -> None:
    """Other words would give readings read again after an upgrade fresh noise. Changing these is a new version."""
    grid = np.array([[10, 20, 30]], dtype=np.int64)
    assert words().draw([(0, 5)], grid, 2).tolist() == [[324404935105702641, 17650025915249063870]]


def test_rows_are_the_ones_every_release_has_had() -> None:
    terms = formal_terms(3, 3.0)
    released = build(terms).privatise(terms.bounds.from_unit(np.full((1, 3), 0.5)), [(0, 5)])
    assert (released.rows * 8192).tolist() == [[8297.0, 7063.0, 6599.0]]


def test_the_same_reading_at_the_same_place_gets_the_same_noise_after_a_restart() -> None:
    terms = formal_terms(3, 6.0)
    readings = readings_of(terms, 50)
    first, again = (build(terms).privatise(readings, places(50)).rows for _ in range(2))
    assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("terms", [formal_terms(3, 6.0), paper_terms(3)], ids=["formal", "paper"])
def test_a_corrected_reading_at_the_same_place_gets_other_noise(terms: PrivacyTerms) -> None:
    """With noise by place alone, y2 - y1 = x2 - x1 exactly."""
    readings = readings_of(terms, N)
    corrected = readings.copy()
    corrected[:, 0] = readings_of(terms, N, seed=5)[:, 0]
    a, b = noise(build(terms), terms, readings), noise(build(terms), terms, corrected)
    assert unrelated(a.reshape(-1, 3)[:, 1], b.reshape(-1, 3)[:, 1]), "also the features that stayed the same"
    assert unrelated(a, b)


def test_another_epsilon_gets_other_noise() -> None:
    """With the same words, scales 2 and 1 give x = 2 y_b - y_a exactly. Both grids are the same here."""
    weak, strong = formal_terms(3, 3.0), formal_terms(3, 6.0)
    readings = readings_of(weak, N)
    assert unrelated(noise(build(weak), weak, readings), noise(build(strong), strong, readings))


def test_other_bounds_get_other_noise() -> None:
    """The same unit coordinates under shifted bounds are other readings on the same grid."""
    terms = formal_terms(3, 6.0)
    shifted = PrivacyTerms("formal", Bounds(terms.bounds.low + 64, terms.bounds.high + 64), epsilon_per_reading=6.0)
    readings = readings_of(terms, N)
    assert unrelated(noise(build(terms), terms, readings), noise(build(shifted), shifted, readings + 64))


def test_other_shares_get_other_noise_even_where_the_feature_kept_its_epsilon() -> None:
    terms, other = formal_terms(3, 6.0, (1.0, 1.0, 1.0)), formal_terms(3, 8.0, (1.0, 1.0, 2.0))
    readings = readings_of(terms, N)
    a, b = noise(build(terms), terms, readings), noise(build(other), other, readings)
    assert unrelated(a.reshape(-1, 3)[:, 0], b.reshape(-1, 3)[:, 0])


def test_the_modes_do_not_share_noise() -> None:
    formal, paper = formal_terms(3, 45.0), paper_terms(3, 15.0)
    assert not np.array_equal(
        words_of(formal, np.zeros((1, 3), dtype=np.int64)), words_of(paper, np.zeros((1, 3), dtype=np.int64))
    )


def words_of(terms: PrivacyTerms, grid: NDArray[np.int64]) -> NDArray[np.uint64]:
    return KeyedWords(KEY, "attic", SOURCE, context_digest(terms), 3).draw(places(len(grid)), grid, 4)


def test_equal_readings_at_other_places_get_other_noise() -> None:
    """With noise by content alone, duplicates and frequencies show."""
    terms = formal_terms(3, 6.0)
    readings = np.repeat(readings_of(terms, 1), N, axis=0)
    rows = build(terms).privatise(readings, places(N)).rows
    assert len(np.unique(rows, axis=0)) == N
    assert unrelated(noise(build(terms), terms, readings), noise(build(terms), terms, readings, first=N))


def test_equal_offsets_of_two_partitions_get_other_noise() -> None:
    terms = formal_terms(3, 6.0)
    readings = readings_of(terms, N)
    a, b = (build(terms).privatise(readings, places(N, partition=p)).rows.ravel() for p in (0, 1))
    unit = terms.bounds.to_unit(readings).ravel()
    assert unrelated(a - unit, b - unit)


@pytest.mark.parametrize(
    "other",
    [
        {"key": bytes(reversed(KEY))},
        {"key": KEY[:31] + b"\x00"},
        {"client": "cellar"},
        {"source": bytes(reversed(SOURCE))},
    ],
    ids=["key", "last byte of the key", "client", "log made again"],
)
def test_another_key_client_or_log_gets_other_noise(other: dict[str, object]) -> None:
    terms = formal_terms(3, 6.0)
    readings = readings_of(terms, N)
    assert unrelated(noise(build(terms), terms, readings), noise(build(terms, **other), terms, readings))  # type: ignore[arg-type]


def test_features_of_one_reading_get_unrelated_noise() -> None:
    terms = formal_terms(3, 6.0)
    columns = noise(build(terms), terms, readings_of(terms, N)).reshape(-1, 3)
    assert unrelated(columns[:, 0], columns[:, 1])
    assert unrelated(columns[:, 1], columns[:, 2])


def test_moving_one_reading_to_its_bound_leaves_every_other_row_as_it_was() -> None:
    """Noise whose size follows the data would not."""
    terms = formal_terms(3, 6.0)
    readings = terms.bounds.from_unit(np.random.default_rng(2).uniform(0.4, 0.6, (100, 3)))
    moved = readings.copy()
    moved[40] = terms.bounds.high
    before, after = (build(terms).privatise(r, places(100)).rows for r in (readings, moved))
    others = np.arange(100) != 40
    assert before[others].tobytes() == after[others].tobytes()
    assert not np.array_equal(before[40], after[40])


@pytest.mark.parametrize(
    "wrong", [[], [0, 1, 0, 2], [(0, 1)], [(0, 1), (0, -1)], [(-1, 1), (0, 1)], [(2**32, 1), (0, 1)], [(0, 1)] * 3]
)
def test_places_that_cannot_be_are_refused(wrong: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidData, match="place"):
        words().draw(wrong, np.zeros((2, 3), dtype=np.int64), 1)


@pytest.mark.parametrize(
    "wrong", [{"key": b"short"}, {"source": b"short"}, {"context": b"short"}, {"client": ""}, {"key": KEY + b"x"}]
)
def test_fields_of_another_width_are_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"key": KEY, "client": "attic", "source": SOURCE, "context": CONTEXT, "d": 3}
    with pytest.raises(SettingsError):
        KeyedWords(**(fields | wrong))  # type: ignore[arg-type]


def test_a_key_never_shows_in_an_error() -> None:
    with pytest.raises(SettingsError) as rejected:
        KeyedWords(b"secret-secret", "attic", SOURCE, CONTEXT, 3)
    assert "secret-secret" not in str(rejected.value)
