"""The benchmark of growth runs federations of real clients and a server, and names what grows
faster than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.grown_federation import Size
from benchmarks.growth import AXES, HEADS, REGIONS, Axis, slope
from tests.benchmarks.test_benchmarks_run import run


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.0])
def test_a_slope_is_the_power_of_the_size_among_the_largest(power: float) -> None:
    sizes = [1, 10, 100, 1_000]
    costs = [1e9, *(3.0 * np.array(sizes[1:]) ** power)]
    assert slope(sizes, costs) == pytest.approx(power)


def test_what_grows_faster_than_it_must_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    axis = Axis(
        "readings",
        (),
        (500, 1_000),
        (),
        Size(nodes=10, features=2),
        {"client_bytes": 0.0, "log_bytes": -2.0},
    )
    found = growth.measured(axis, [500, 1_000], "numpy")
    assert found["faster"] == ["log_bytes"]
    about = {"made_by": "", "machine": growth.facts(())}
    page = growth.markdown({**about, "kernels": "", "axes": [about | found]})
    assert f"Faster than they must: readings: {HEADS['log_bytes']}" in page


def test_axes_of_the_published_results_make_a_page_with_one_that_is_measured_again() -> None:
    found = growth.earlier(Path(growth.__file__).parent / "results")
    assert found.keys() == {axis.size for axis in AXES}
    page = growth.markdown(
        {"made_by": "", "machine": growth.facts(()), "kernels": "", "axes": list(found.values())}
    )
    assert page.count(" before.\n") == len(AXES)


@pytest.mark.integration
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux: the footprint is read from /proc"
)
def test_every_size_of_a_federation_is_varied_and_all_of_its_readings_are_absorbed(
    tmp_path: Path,
) -> None:
    result = run("growth", tmp_path)
    assert [axis["axis"] for axis in result["axes"]] == [axis.size for axis in AXES]
    for axis in result["axes"]:
        assert axis["slopes"].keys() == axis["exponents"].keys()
        for point in axis["points"]:
            assert point["absorbed"] == point["readings"], (
                "the benchmark itself ends with an error where it is not so"
            )
            assert all(point[cost] > 0 for cost in HEADS if cost != "upstream_s")
            assert (point["upstream_s"] > 0) == (axis["axis"] == REGIONS)
            assert point["clusters"] > 0, "the upstream server of regions has learnt from them"
    one, two = next(axis["points"] for axis in result["axes"] if axis["axis"] == "clients")
    assert two["client_bytes"] > 1.5 * one["client_bytes"], "each client has a folder of its own"
    one, two = next(axis["points"] for axis in result["axes"] if axis["axis"] == "nodes")
    assert (one["nodes"], two["nodes"]) == (one["size"], two["size"]), (
        "noise fills the models up to their limits"
    )


@pytest.mark.integration
def test_a_server_restarts_and_rebuilds_with_all_of_its_clients(tmp_path: Path) -> None:
    result = run("restarts", tmp_path)
    # The benchmark itself ends with an error if a reading of a client is not there again.
    assert [line["clients"] for line in result["lines"]] == [20, 40]
    for line in result["lines"]:
        assert line["updates"] == 2 * line["clients"]
        assert (
            min(line[name] for name in ("ingest_s", "restart_s", "rebuild_s", "checkpoint_bytes"))
            > 0
        )
