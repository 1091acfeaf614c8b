"""Algorithms are found by entry points, imported one by one, and a broken plug-in is named."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.algorithms import registry
from shoal.algorithms.registry import (
    algorithm_names,
    is_in_rounds,
    load_algorithm,
    rounds_algorithm,
    rounds_names,
    streaming_algorithm,
    streaming_names,
)
from shoal.errors import SettingsError

BROKEN = "raise RuntimeError('no such chip')\n"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[EntryPoint]]:
    """The entry points that the registry finds; a test adds those of other packages. Each package is `package0`, ..."""
    points: list[EntryPoint] = list(registry._installed().values())

    def entry_points(group: str) -> list[EntryPoint]:
        assert group == registry.GROUP
        return points

    cached = [
        getattr(registry, name)
        for name in ("_installed", "algorithm_names", "streaming_names", "rounds_names", "load_algorithm")
    ]
    (tmp_path / "broken_plugin.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "entry_points", entry_points)
    for function in cached:
        function.cache_clear()
    yield points
    for function in cached:
        function.cache_clear()


def offered(name: str, value: str, package: str = "toys") -> EntryPoint:
    point = EntryPoint(name, value, registry.GROUP)
    vars(point).update(dist=SimpleNamespace(name=package))
    return point


def test_the_installed_algorithms_are_those_of_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(algorithm_names()) >= set(project["entry-points"][registry.GROUP]), "run pip install -e . again"


def test_every_name_leads_to_an_algorithm_of_its_family() -> None:
    assert sorted(streaming_names() + rounds_names()) == list(algorithm_names())
    assert all(streaming_algorithm(name).name == name for name in streaming_names())
    assert all(rounds_algorithm(name).name == name for name in rounds_names())
    assert is_in_rounds("kmeans")
    assert not is_in_rounds("fcac")


def test_the_baselines_that_only_serve_experiments_are_marked() -> None:
    assert [name for name in algorithm_names() if load_algorithm(name).paper_only] == [
        "ffcm",
        "gmm_local",
        "kmeans_local",
    ]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"unknown algorithm 'fcak'; there are: .*fcac, fcm.*kmeans"):
        load_algorithm("fcak")


def test_a_name_of_the_other_family_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"fcac is a streaming algorithm; in rounds are: .*kmeans"):
        rounds_algorithm("fcac")
    with pytest.raises(SettingsError, match=r"kmeans is an algorithm in rounds; streaming are: .*fcac"):
        streaming_algorithm("kmeans")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("broken_plugin:TOY", r"'toy' of package toys \(broken_plugin:TOY\) cannot be imported: RuntimeError"),
        ("no_such_module:TOY", "'toy' of package toys .*cannot be imported: ModuleNotFoundError"),
        ("shoal.errors:NOTHING", "'toy' of package toys .*cannot be imported: AttributeError"),
        ("shoal.errors:ShoalError", "'toy' of package toys .*it must be a StreamingAlgorithm or a RoundsAlgorithm"),
        ("shoal.algorithms.rounds.kmeans:KMEANS", "'toy' of package toys .*calls itself 'kmeans'"),
    ],
)
def test_a_broken_plugin_is_named_and_stops_no_other(installed: list[EntryPoint], value: str, message: str) -> None:
    installed.append(offered("toy", value))
    assert "toy" in algorithm_names()
    with pytest.raises(SettingsError, match=message):
        load_algorithm("toy")
    assert load_algorithm("fcac").name == "fcac"


def test_two_packages_with_one_name_are_refused(installed: list[EntryPoint]) -> None:
    installed.append(offered("fcac", "toys:FCAC"))
    with pytest.raises(SettingsError, match=r"two installed packages offer an algorithm 'fcac': shoal .* and toys"):
        algorithm_names()


def test_one_entry_point_found_twice_is_one(installed: list[EntryPoint]) -> None:
    installed.append(offered("fcac", "shoal.algorithms.fcac.algorithm:FCAC", "shoal"))
    assert load_algorithm("fcac").name == "fcac"


def test_without_any_entry_point_the_error_says_what_to_do(installed: list[EntryPoint]) -> None:
    installed.clear()
    with pytest.raises(SettingsError, match="install shoal again"):
        algorithm_names()


ONE_OF_THEM = """
import sys
from shoal.algorithms.registry import algorithm_names, load_algorithm
assert "gmm" in algorithm_names()
load_algorithm("fcac").client({}, 2)
print(*sorted(name for name in sys.modules if name.startswith("shoal.algorithms.rounds.")))
"""


def test_whoever_uses_one_algorithm_does_not_import_the_others() -> None:
    loaded = subprocess.run([sys.executable, "-c", ONE_OF_THEM], capture_output=True, text=True, check=True).stdout
    assert not {"gmm", "kmeans", "fcm", "kfed", "mufc"} & {name.rpartition(".")[2] for name in loaded.split()}
