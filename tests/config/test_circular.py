"""Circular features: a direction or an hour, from the contract over noise and clusters to names and
files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract, parse_contract, range_text, value_text
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.privacy.imperfect import CoarseReadings, row_mechanism
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES
from shoal.producers.features import cut_of, period_of
from shoal.producers.init_command import init_command
from shoal.protocol.reading_faults import ClippingCounts
from shoal.server_node.report.description import describe

WIND = {"name": "Wind direction", "unit": "°", "kind": "circular", "period": 360, "low": 45}


def agreed(wind: dict[str, Any] = WIND, **privacy: Any) -> Contract:
    return parse_contract(
        {
            "federation": {"name": "mast"},
            "features": [wind, {"name": "Speed", "unit": "m/s", "low": 0, "high": 20}],
            "privacy": privacy or {"mode": "off"},
            "models": [
                {
                    "name": "clusters",
                    "algorithm": "density_tree" if "counts_epsilon" in privacy else "fcac",
                }
            ],
        }
    )


def places(n: int) -> np.ndarray:
    return np.stack([np.zeros(n, dtype=np.int64), np.arange(n)], axis=1)


def test_a_circle_ends_one_period_after_its_cut_and_takes_no_other_end() -> None:
    feature = agreed().features[0]
    assert (feature.low, feature.high) == (45.0, 405.0)
    assert agreed({key: WIND[key] for key in ("name", "kind", "period")}).features[0].high == 360.0
    for more, expected in (
        ({"high": 360}, "leave high out"),
        ({"period": 0}, "needs its period"),
        ({"period": "a day"}, "needs its period"),
        ({"kind": "number", "high": 360}, "period is for"),
        ({"values": ["n", "s"]}, "values is for"),
    ):
        with pytest.raises(SettingsError, match=expected):
            agreed(WIND | more)


def test_only_circular_features_change_the_digest_of_a_contract() -> None:
    plain = {"name": "Wind direction", "unit": "°", "low": 45, "high": 405}
    assert "period" not in agreed(plain).model_dump_json(exclude_defaults=True)
    assert len({agreed(feature).digest for feature in (plain, WIND, WIND | {"low": 0})}) == 3


def test_values_are_wrapped_into_the_bounds_and_none_is_clipped() -> None:
    bounds = agreed().bounds
    inside, clipped = bounds.clip(
        np.array([[10.0, 1.0], [370.0, 1.0], [-350.0, 1.0], [45.0, 1.0], [405.0, 1.0]])
    )
    assert (inside[:, 0].tolist(), clipped) == ([370.0, 370.0, 370.0, 45.0, 405.0], 0)
    assert bounds.clip(np.array([[10.0, 21.0]]))[1] == 1
    unit = bounds.to_unit(np.array([[45.0, 0.0], [225.0, 0.0], [44.0, 0.0], [4500.0, 0.0]]))[:, 0]
    np.testing.assert_allclose(unit, [0.0, 0.5, 359 / 360, 135 / 360])
    np.testing.assert_allclose(
        bounds.shown(np.array([[359 / 360, 0.5], [0.0, 0.5]])), [[44.0, 10.0], [45.0, 10.0]]
    )


def test_a_value_of_any_turn_is_none_that_lies_outside() -> None:
    counts = ClippingCounts(["Wind direction", "Speed"], agreed().bounds)
    counts.add("mast", [4, 5, 9], np.array([[10.0, 1.0], [-90.0, 1.0], [725.0, 30.0]]))
    (clipped,) = counts.clipped()
    assert clipped == ("Speed", pytest.approx(1 / 3), "mast", 1.0, "reading 10 of the source")


@pytest.mark.parametrize("missing", ["drop", "learn"])
def test_noise_goes_around_the_circle_and_other_features_keep_theirs(missing: str) -> None:
    contract = resolve(agreed(mode="formal", epsilon_per_reading=4, missing=missing))
    mechanism = row_mechanism(contract.mode, bytes(KEY_BYTES), "mast", bytes(SOURCE_BYTES))
    north = np.tile([46.0, 19.0], (3000, 1))
    rows = mechanism.privatise(north, places(len(north))).rows
    assert 0 <= rows[:, 0].min() < 0.1
    assert 0.9 < rows[:, 0].max() <= 1
    assert rows[:, 1].max() > 1.5
    # As far below its place as above, around the circle.
    around = (rows[:, 0] - 1 / 360 + 0.5) % 1 - 0.5
    assert abs(np.mean(around > 0) - 0.5) < 0.03
    again = row_mechanism(contract.mode, bytes(KEY_BYTES), "mast", bytes(SOURCE_BYTES))
    again.restore(mechanism.state())


def test_whole_degrees_are_spread_across_the_cut_also_where_it_is_no_end_of_what_is_sent() -> None:
    contract = agreed(WIND | {"step": 1})
    spread = CoarseReadings(contract.bounds, contract.steps, None, "mast", bytes(SOURCE_BYTES))
    found = spread.spread(np.repeat([[45.0, 1.0], [10.0, 1.0]], 400, axis=0), places(800))[:, 0]
    cut, north = contract.bounds.shown(contract.bounds.to_unit(np.stack([found, found], axis=1)))[
        :, 0
    ].reshape(2, 400)
    for values, middle in ((cut, 45), (north, 10)):
        assert np.abs(values - middle).max() <= 0.5
        assert abs(np.mean(values > middle) - 0.5) < 0.1


def described(low: float = 45) -> list[Any]:
    contract = agreed(WIND | {"low": low})
    nodes = [
        contract.bounds.to_unit(np.array([[degrees, 10.0]]))[0]
        for degrees in [*range(330, 391, 5), *range(150, 211, 5)]
    ]
    view = ClusteringView.from_nodes(np.array(nodes), np.ones(26), [0] * 13 + [1] * 13)
    return [contract, *describe(view, contract).values()]


@pytest.mark.parametrize("low", [45, 0, 200])
def test_a_cluster_is_described_around_the_circle_wherever_it_is_cut(low: float) -> None:
    contract, north, south = described(low)
    assert north.label == "Wind direction 334 to 26°"
    assert south.text(contract) == "Wind direction 154 to 206°, elsewhere 334 to 26"
    assert (
        north.intervals[0].middle == pytest.approx(0.0, abs=1e-6)
        or north.intervals[0].middle > 359.99
    )


def test_texts_are_from_0_to_below_the_period() -> None:
    feature = agreed().features[0]
    assert (
        value_text(404.7, feature),
        value_text(359.9, feature),
        range_text(300, 370, feature),
    ) == (
        "45°",
        "0°",
        "300 to 10°",
    )


@pytest.mark.parametrize(
    ("name", "unit", "values", "period"),
    [
        ("wind_dir", "", [0, 90, 350], 360),
        ("Wind direction", "°", [0, 359], 360),
        ("yaw", "deg", [-170, 175], 360),
        ("hour", "", [0, 23], 24),
        ("weekday", "", [0, 6], 7),
        ("month", "", [1, 12], 12),
        ("tilt", "°", [0, 80], 0),
        ("running hours", "h", [0, 23], 0),
        ("directory size", "", [0, 300], 0),
        ("hour", "", [0, 500], 0),
        ("wind_dir", "m/s", [0, 300], 0),
        ("temperature", "°C", [0, 300], 0),
    ],
)
def test_init_knows_circles_by_name_unit_and_values(
    name: str, unit: str, values: list[float], period: float
) -> None:
    assert period_of(name, unit, np.array(values, dtype=float)) == period


def test_a_circle_is_cut_where_readings_are_fewest_and_farthest() -> None:
    hours = np.concatenate([np.random.default_rng(0).normal(23.5, 1.5, 500) % 24, np.full(20, 8.0)])
    assert 12 < cut_of(hours, 24.0) < 19


def test_init_proposes_a_circle_from_data_and_takes_kinds_from_a_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(1)
    pairs = zip(generator.normal(0, 20, 400) % 360, generator.uniform(0, 9, 400), strict=True)
    Path("mast.csv").write_text(
        "wind_dir,speed\n" + "".join(f"{pair:.1f},{two:.2f}\n" for pair, two in pairs)
    )
    Path("sheet.csv").write_text(
        "name,unit,lower,upper,kind,values,period\n"
        "valve,,,,category,closed;open,\n"
        "dir,°,30,,circular,,360\n"
        "warm,°C,0,40,,,\n"
    )
    result = CliRunner().invoke(init_command, ["mast.csv", "--private"])
    assert "circular: begins again after 360" in result.output
    wind = load_config(Path("mast.toml")).contract.features[0]
    assert (wind.kind, wind.period) == ("circular", 360.0)
    assert 90 < wind.low < 270
    CliRunner().invoke(
        init_command, ["--sheet", "sheet.csv", "--out", "sheet.toml"], catch_exceptions=False
    )
    features = load_config(Path("sheet.toml")).contract.features
    assert Counter(feature.kind for feature in features) == {
        "category": 1,
        "circular": 1,
        "number": 1,
    }
    assert (features[0].values, features[1].low, features[1].high) == (
        ("closed", "open"),
        30.0,
        390.0,
    )
    Path("sheet.csv").write_text("name,lower,upper,kind\ndir,0,360,circular\n")
    assert "circular (with a period" in str(
        CliRunner().invoke(init_command, ["--sheet", "sheet.csv"]).exception
    )
