"""Descriptions of clusters: values in units within the bounds, and the features that set each
apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.view import ClusteringView, StatesView
from shoal.config.contract import Contract, names_without_units, parse_contract
from shoal.server_node.report.description import (
    Description,
    describe,
    weighted_quantiles,
)

CONTRACT = parse_contract(
    {
        "federation": {"name": "office"},
        "features": [
            {"name": "Light", "unit": "lux", "low": 0.0, "high": 1000.0},
            {"name": "CO2", "unit": "ppm", "low": 400.0, "high": 2400.0},
        ],
        "privacy": {"mode": "off"},
        "models": [{"name": "rooms", "algorithm": "fcac"}],
    }
)


def view_of(*clusters: list[tuple[float, float]]) -> ClusteringView:
    """Clusters of nodes in unit coordinates, each of mass 1."""
    nodes = [node for cluster in clusters for node in cluster]
    number = [place for place, cluster in enumerate(clusters) for _ in cluster]
    return ClusteringView.from_nodes(np.reshape(nodes, (-1, 2)), np.ones(len(nodes)), number)


def spread(light: float, co2: float, width: float = 0.02) -> list[tuple[float, float]]:
    return [(light + step * width / 10, co2 + step * width / 10) for step in range(-10, 11)]


def test_a_cluster_is_described_by_the_feature_that_sets_it_apart() -> None:
    bright, dark = describe(view_of(spread(0.5, 0.2), spread(0.05, 0.2)), CONTRACT).values()
    assert bright.label == "Light high"
    assert bright.text(CONTRACT) == "Light high: 483-517 lux, elsewhere 33-67"
    assert dark.text(CONTRACT) == "Light low: 33-67 lux, elsewhere 483-517"
    assert bright.centre == pytest.approx((500.0, 800.0))


def test_a_node_that_knows_the_spread_of_its_rows_is_described_by_it() -> None:
    nodes = [(0.05, 0.2), (0.5, 0.2)]
    low = [(0.0, 0.1), (0.42, 0.1)]
    high = [(0.09, 0.3), (0.56, 0.3)]
    view = ClusteringView.from_nodes(nodes, [300.0, 100.0], [0, 1], node_low=low, node_high=high)
    dark, bright = describe(view, CONTRACT).values()
    assert bright.text(CONTRACT) == "Light high: 420-560 lux, elsewhere 0-90"
    assert dark.text(CONTRACT) == "Light low: 0-90 lux, elsewhere 420-560"
    assert (dark.intervals[1].low, dark.intervals[1].high) == (600.0, 1000.0)


def test_the_most_telling_feature_comes_first_and_two_are_enough() -> None:
    (described, _) = describe(view_of(spread(0.5, 0.9), spread(0.45, 0.1)), CONTRACT).values()
    assert [
        CONTRACT.features[distinction.feature].name for distinction in described.distinctions
    ] == [
        "CO2",
        "Light",
    ]


def test_the_only_cluster_is_all_readings() -> None:
    (only,) = describe(view_of(spread(0.5, 0.2)), CONTRACT).values()
    assert (only.label, only.text(CONTRACT)) == ("all readings", "the only cluster")


def labels_of(*clusters: list[tuple[float, float]]) -> list[str]:
    return [described.label for described in describe(view_of(*clusters), CONTRACT).values()]


def test_only_a_cluster_that_nothing_sets_apart_beside_others_is_ordinary() -> None:
    wide = spread(0.5, 0.5, width=0.6) * 3
    assert labels_of(wide, spread(0.95, 0.5), spread(0.05, 0.5)) == [
        "ordinary",
        "Light high",
        "Light low",
    ]
    wide = [(light, 0.5) for light in np.linspace(0.1, 0.8, 30)]
    assert labels_of(wide, [(light + 0.1, 0.5) for light, _ in wide]) == [
        "Light lower",
        "Light higher",
    ]
    same = describe(view_of(spread(0.5, 0.2), spread(0.5, 0.2)), CONTRACT)
    assert same[0].text(CONTRACT).startswith("no feature ")


def test_a_speck_beside_two_states_leaves_the_largest_its_name() -> None:
    dim = [(light, 0.5) for light in np.linspace(0.05, 0.55, 420)]
    bright = spread(0.7, 0.5) * 4
    damp = [(0.3, 0.9)] * 10
    assert labels_of(dim, bright, damp) == ["Light low", "Light high", "CO2 high"]
    assert labels_of(dim, bright, damp * 4)[0] == "ordinary", "a state of 7 % is no speck"
    dark = [(0.02, 0.5)] * 10
    assert labels_of(spread(0.3, 0.5) * 20, bright, dark) == [
        "Light low",
        "Light high",
        "Light low (Light 20 lux)",
    ]
    assert labels_of([(0.3, 0.5)] * 1000, [(0.9, 0.5)]) == ["Light low", "Light high"]


def test_a_cluster_between_the_others_is_medium_in_the_feature_that_sets_it_apart_from_each() -> (
    None
):
    between, *_ = describe(
        view_of(spread(0.5, 0.5), spread(0.95, 0.5), spread(0.05, 0.5)), CONTRACT
    ).values()
    assert between.label == "Light medium"
    assert between.text(CONTRACT) == "Light medium: 483-517 lux, elsewhere 33-67 or 933-967"
    overlapping = describe(
        view_of(spread(0.5, 0.5), spread(0.95, 0.5), spread(0.47, 0.5, width=0.05)), CONTRACT
    )
    assert "medium" not in overlapping[0].label
    highest, *_ = labels_of(spread(0.5, 0.5), spread(0.44, 0.5) * 5, spread(0.05, 0.5) * 3)
    assert "medium" not in highest, "apart from each, and not between them"


def test_clusters_that_differ_alike_are_told_apart_by_a_value() -> None:
    dark = spread(0.05, 0.2) * 8
    assert labels_of(dark, spread(0.5, 0.2), spread(0.9, 0.2)) == [
        "Light low",
        "Light high (Light 500 lux)",
        "Light high (Light 900 lux)",
    ]


def states_of(spread: list[float], rough: list[float]) -> list[Description]:
    """States with one mean, which move differently in Light alone; spread in unit coordinates."""
    k = len(spread)
    manner = (
        np.column_stack([rows, [there] * k]) for rows, there in ((spread, 0.05), (rough, 0.0))
    )
    states = StatesView(16, *manner, np.full(k, 100.0), np.zeros((k, k)), 40, True, False)
    nodes = np.full((k, 2), 0.5)
    wide = 1.28 * np.column_stack([spread, [0.05] * k])
    low = nodes - wide
    high = nodes + wide
    number = np.arange(k)
    view = ClusteringView.from_nodes(
        nodes, np.ones(k), number, node_low=low, node_high=high, states=states
    )
    return list(describe(view, CONTRACT).values())


def test_states_that_share_a_place_are_named_by_how_they_move() -> None:
    steady, restless = states_of([0.02, 0.08], [0, 0])
    assert (steady.label, restless.label) == ("Light steady", "Light restless")
    assert restless.text(CONTRACT) == "Light restless: varies by 80 lux, elsewhere 20"
    smooth, rough = states_of([0.05, 0.05], [-1, 0.3])
    assert (smooth.label, rough.label) == ("Light smooth", "Light rough")
    assert (
        rough.text(CONTRACT) == "Light rough: successive readings 1.3 spreads apart, elsewhere 0.37"
    )
    both, alike, quiet = states_of([0.05, 0.05, 0.01], [1, -1, 0])
    assert (both.label, alike.label, quiet.label) == (
        "Light rough and restless",
        "Light smooth and restless",
        "Light steady",
    )


def test_states_that_differ_in_nothing_have_names_of_their_own() -> None:
    labels = [state.label for state in states_of([0.05] * 3, [0] * 3)]
    assert len(set(labels)) == 3


PLACE = st.tuples(
    st.sampled_from([0.1, 0.5, 0.501, 0.9]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([0.0, 0.2]),
)


@given(st.lists(PLACE, min_size=2, max_size=9))
def test_no_two_clusters_have_one_name(places: list[tuple[float, float, float]]) -> None:
    labels = labels_of(*(spread(*place) for place in places))
    assert len(set(labels)) == len(labels)
    assert labels.count("ordinary") <= 1


def test_noise_beyond_the_bounds_is_shown_within_them_and_marked() -> None:
    dark, _ = describe(view_of(spread(-0.094, 0.2), spread(0.5, 0.2)), CONTRACT).values()
    assert dark.intervals[0].beyond_bounds
    assert (dark.intervals[0].low, dark.intervals[0].high, dark.centre[0]) == (0.0, 0.0, 0.0)
    assert dark.text(CONTRACT) == "Light low: 0 lux, elsewhere 483-517"
    assert not dark.intervals[1].beyond_bounds


def test_readings_at_a_bound_are_not_told_as_a_value() -> None:
    # All readings of the first are below 400 ppm, and count as 400.
    view = view_of([(0.5, 0.0)] * 19 + [(0.5, 0.01)], spread(0.05, 0.2))
    clipped, other = describe(view, CONTRACT).values()
    assert (dict(clipped.at_bounds), dict(other.at_bounds)) == ({1: "low"}, {})
    assert clipped.text(CONTRACT) == (
        "Light high: 500 lux, elsewhere 33-67; CO2 low: at most 400 ppm, elsewhere 766-834; CO2 is "
        "at most 400 ppm, a bound of the contract, as which all readings beyond it count: a wider "
        "one shows where they lie"
    )
    # Both are, though CO2 sets none apart.
    clipped, other = describe(view_of([(0.5, 1.0)], [(0.05, 1.0)]), CONTRACT).values()
    assert clipped.text(CONTRACT).startswith("Light high: 500 lux, elsewhere 50; CO2 is at least ")
    assert dict(clipped.at_bounds) == dict(other.at_bounds) == {1: "high"}


def test_a_switch_and_what_only_reaches_a_bound_have_values() -> None:
    # Noise has put some beyond a bound, and more than a tenth lies within.
    reaching = describe(view_of(spread(0.01, 0.2), spread(0.5, 0.2)), CONTRACT)
    switch = describe(view_of(spread(0.2, 0.0, 0.0), spread(0.5, 1.0, 0.0)), CONTRACT)
    for description in [*reaching.values(), *switch.values()]:
        assert not description.at_bounds
        assert "at most" not in description.text(CONTRACT)


def test_no_nodes_no_descriptions_and_nodes_of_no_cluster_count_nowhere() -> None:
    assert describe(view_of(), CONTRACT) == {}
    view = ClusteringView.from_nodes([[0.1, 0.1], [0.9, 0.9]], [1.0, 5.0], [0, -1])
    assert list(describe(view, CONTRACT)) == [0]


def test_one_node_and_no_mass_are_described_too() -> None:
    view = ClusteringView.from_nodes([[0.5, 0.5]], [0.0], [0])
    (only,) = describe(view, CONTRACT).values()
    assert (only.intervals[0].low, only.intervals[0].high) == (500.0, 500.0)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_quantiles_lie_among_the_values_and_do_not_fall(pairs: list[tuple[float, float]]) -> None:
    values, mass = np.array(pairs).T
    low, middle, high = weighted_quantiles(values[:, None], mass, (0.1, 0.5, 0.9))[0]
    assert values.min() <= low <= middle <= high <= values.max()


def test_a_negative_range_is_written_without_two_dashes() -> None:
    cold = Contract.model_validate(
        CONTRACT.model_dump()
        | {"features": ({"name": "T", "unit": "°C", "low": -40.0, "high": 60.0},)}
    )
    view = ClusteringView.from_nodes([[0.1], [0.12], [0.9], [0.91]], np.ones(4), [0, 0, 1, 1])
    assert describe(view, cold)[0].text(cold) == "T low: -30 to -28 °C, elsewhere 50-51"


@pytest.mark.parametrize(
    "name", ["Sound (dB(A))", "Sound [dB(A)]", "Sound dB(A)", "Sound_dB(A)", "Sound"]
)
def test_a_name_of_a_cluster_leaves_out_the_unit_at_the_end_of_a_feature(name: str) -> None:
    feature = {"name": name, "unit": "dB(A)", "low": 0.0, "high": 100.0}
    contract = Contract.model_validate(CONTRACT.model_dump() | {"features": (feature,)})
    assert names_without_units(contract.features) == ["Sound"]
