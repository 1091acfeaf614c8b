"""The random words of noise: equal for the same reading at the same place, unrelated for anything
else.

Each of these conditions has a test, because without it noise would reveal readings exactly.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import InvalidData, SettingsError
from shoal.privacy import Bounds, Mechanism, PrivacyMode
from shoal.privacy.formal import Formal
from shoal.privacy.keyed import KeyedRandomness
from tests.privacy.modes import KEY, SOURCE, build, formal_mode, paper_mode, places, readings_of

CONTEXT = bytes(range(200, 232))
N = 4000


def words(d: int = 3) -> KeyedRandomness:
    return KeyedRandomness(KEY, "attic", SOURCE, CONTEXT, d)


def noise(
    mechanism: Mechanism, mode: PrivacyMode, readings: NDArray[np.float64], first: int = 0
) -> NDArray[np.float64]:
    """Noise in scales, (n * d,)."""
    released = mechanism.privatise(readings, places(len(readings), first))
    unit = mode.bounds.to_unit(readings[released.kept])
    return np.asarray((released.rows - unit) * np.array(mode.epsilon_per_feature())).ravel()


def unrelated(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether the correlation of the noises and of their signs is within chance."""
    limit = 4 / np.sqrt(len(a))
    return all(
        abs(np.corrcoef(x, y)[0, 1]) < limit
        for x, y in ((a, b), (np.sign(a), np.sign(b)), (abs(a), abs(b)))
    )


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


def test_words_are_the_same_in_every_release() -> None:
    """Other words would give readings read again after an upgrade fresh noise. Changing these is a
    new version."""
    grid = np.array([[10, 20, 30]], dtype=np.int64)
    assert words().draw([(0, 5)], grid, 2).tolist() == [[324404935105702641, 17650025915249063870]]


def test_rows_are_the_same_in_every_release() -> None:
    mode = formal_mode(3, 3.0)
    released = build(mode).privatise(mode.bounds.from_unit(np.full((1, 3), 0.5)), [(0, 5)])
    assert (released.rows * 8192).tolist() == [[8297.0, 7063.0, 6599.0]]


def test_the_same_reading_at_the_same_place_gets_the_same_noise_after_a_restart() -> None:
    mode = formal_mode(3, 6.0)
    readings = readings_of(mode, 50)
    first, again = (build(mode).privatise(readings, places(50)).rows for _ in range(2))
    assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("mode", [formal_mode(3, 6.0), paper_mode(3)], ids=["formal", "paper"])
def test_a_corrected_reading_at_the_same_place_gets_other_noise(mode: PrivacyMode) -> None:
    """With noise by place alone, y2 - y1 = x2 - x1 exactly."""
    readings = readings_of(mode, N)
    corrected = readings.copy()
    corrected[:, 0] = readings_of(mode, N, seed=5)[:, 0]
    a = noise(build(mode), mode, readings)
    b = noise(build(mode), mode, corrected)
    assert unrelated(a.reshape(-1, 3)[:, 1], b.reshape(-1, 3)[:, 1]), (
        "also the features that stayed the same"
    )
    assert unrelated(a, b)


def test_another_epsilon_gets_other_noise() -> None:
    """With the same words, scales 2 and 1 give x = 2 y_b - y_a exactly. Both grids are the same
    here."""
    weak = formal_mode(3, 3.0)
    strong = formal_mode(3, 6.0)
    readings = readings_of(weak, N)
    assert unrelated(noise(build(weak), weak, readings), noise(build(strong), strong, readings))


def test_other_bounds_get_other_noise() -> None:
    """The same unit coordinates under shifted bounds are other readings on the same grid."""
    mode = formal_mode(3, 6.0)
    shifted = Formal(
        Bounds(mode.bounds.low + 64, mode.bounds.high + 64), {"epsilon_per_reading": 6.0}
    )
    readings = readings_of(mode, N)
    assert unrelated(
        noise(build(mode), mode, readings), noise(build(shifted), shifted, readings + 64)
    )


def test_other_shares_get_other_noise_even_where_the_feature_kept_its_epsilon() -> None:
    mode = formal_mode(3, 6.0, (1.0, 1.0, 1.0))
    other = formal_mode(3, 8.0, (1.0, 1.0, 2.0))
    readings = readings_of(mode, N)
    a = noise(build(mode), mode, readings)
    b = noise(build(other), other, readings)
    assert unrelated(a.reshape(-1, 3)[:, 0], b.reshape(-1, 3)[:, 0])


def test_the_modes_do_not_share_noise() -> None:
    formal = formal_mode(3, 45.0)
    paper = paper_mode(3, 15.0)
    assert not np.array_equal(
        words_of(formal, np.zeros((1, 3), dtype=np.int64)),
        words_of(paper, np.zeros((1, 3), dtype=np.int64)),
    )


def words_of(mode: PrivacyMode, grid: NDArray[np.int64]) -> NDArray[np.uint64]:
    return KeyedRandomness(KEY, "attic", SOURCE, mode.context(), 3).draw(places(len(grid)), grid, 4)


def test_equal_readings_at_other_places_get_other_noise() -> None:
    """With noise by content alone, duplicates and frequencies show."""
    mode = formal_mode(3, 6.0)
    readings = np.repeat(readings_of(mode, 1), N, axis=0)
    rows = build(mode).privatise(readings, places(N)).rows
    assert len(np.unique(rows, axis=0)) == N
    assert unrelated(
        noise(build(mode), mode, readings), noise(build(mode), mode, readings, first=N)
    )


def test_equal_offsets_of_two_partitions_get_other_noise() -> None:
    mode = formal_mode(3, 6.0)
    readings = readings_of(mode, N)
    a, b = (build(mode).privatise(readings, places(N, partition=p)).rows.ravel() for p in (0, 1))
    unit = mode.bounds.to_unit(readings).ravel()
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
    mode = formal_mode(3, 6.0)
    readings = readings_of(mode, N)
    assert unrelated(
        noise(build(mode), mode, readings), noise(build(mode, **other), mode, readings)
    )  # type: ignore[arg-type]  # of several types


def test_features_of_one_reading_get_unrelated_noise() -> None:
    mode = formal_mode(3, 6.0)
    columns = noise(build(mode), mode, readings_of(mode, N)).reshape(-1, 3)
    assert unrelated(columns[:, 0], columns[:, 1])
    assert unrelated(columns[:, 1], columns[:, 2])


def test_moving_one_reading_changes_no_other_row() -> None:
    """Noise whose size follows the data would not."""
    mode = formal_mode(3, 6.0)
    readings = mode.bounds.from_unit(np.random.default_rng(2).uniform(0.4, 0.6, (100, 3)))
    moved = readings.copy()
    moved[40] = mode.bounds.high
    before, after = (build(mode).privatise(r, places(100)).rows for r in (readings, moved))
    others = np.arange(100) != 40
    assert before[others].tobytes() == after[others].tobytes()
    assert not np.array_equal(before[40], after[40])


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [0, 1, 0, 2],
        [(0, 1)],
        [(0, 1), (0, -1)],
        [(-1, 1), (0, 1)],
        [(2**32, 1), (0, 1)],
        [(0, 1)] * 3,
    ],
)
def test_invalid_places_are_an_error(wrong: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidData, match="place"):
        words().draw(wrong, np.zeros((2, 3), dtype=np.int64), 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": b"short"},
        {"source": b"short"},
        {"context": b"short"},
        {"client": ""},
        {"key": KEY + b"x"},
    ],
)
def test_inputs_of_another_width_are_an_error(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "key": KEY,
        "client": "attic",
        "source": SOURCE,
        "context": CONTEXT,
        "d": 3,
    }
    with pytest.raises(SettingsError):
        KeyedRandomness(**(fields | wrong))  # type: ignore[arg-type]  # wrong on purpose


def test_no_error_contains_the_key() -> None:
    with pytest.raises(SettingsError) as rejected:
        KeyedRandomness(b"secret-secret", "attic", SOURCE, CONTEXT, 3)
    assert "secret-secret" not in str(rejected.value)
