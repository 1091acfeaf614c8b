"""Plug-ins are found by entry points, imported one by one, and a broken one is named."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeGuard

import pytest

from shoal import plugins
from shoal.errors import SettingsError
from shoal.plugins import Plugins

MODULE = """
from types import SimpleNamespace
RED = SimpleNamespace(name="red", colour=True)
BLUE = SimpleNamespace(name="blue", colour=True)
"""


def is_colour(found: Any) -> TypeGuard[SimpleNamespace]:
    return hasattr(found, "colour")


def offered(name: str, value: str, package: str = "toys") -> EntryPoint:
    point = EntryPoint(name, value, "shoal.colours")
    vars(point).update(dist=SimpleNamespace(name=package))
    return point


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[EntryPoint]:
    """The entry points there are; a test adds those of other packages."""
    (tmp_path / "toy_colours.py").write_text(MODULE)
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no such chip')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [offered("red", "toy_colours:RED"), offered("blue", "toy_colours:BLUE")]
    monkeypatch.setattr(
        plugins, "points_of", lambda group: [point for point in points if point.group == group]
    )
    return points


@pytest.fixture
def colours(installed: list[EntryPoint]) -> Plugins[SimpleNamespace]:
    return Plugins("shoal.colours", "colour", is_colour, "a colour")


def test_every_installed_one_is_listed_and_can_be_loaded(colours: Plugins[SimpleNamespace]) -> None:
    assert colours.names() == ("blue", "red")
    assert colours.load("red").name == "red"
    assert colours.load("red") is colours.load("red")


def test_an_unknown_name_lists_the_known_ones(colours: Plugins[SimpleNamespace]) -> None:
    with pytest.raises(SettingsError, match="unknown colour 'green'; there are: blue, red"):
        colours.load("green")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "broken_plugin:TOY",
            r"'toy' of package toys \(broken_plugin:TOY\) cannot be imported: RuntimeError",
        ),
        ("no_such_module:TOY", "'toy' of package toys .*cannot be imported: ModuleNotFoundError"),
        ("shoal.errors:NOTHING", "'toy' of package toys .*cannot be imported: AttributeError"),
        (
            "shoal.errors:ShoalError",
            "'toy' of package toys .*leads to <class .*ShoalError'>; it must be a colour",
        ),
        ("toy_colours:RED", "'toy' of package toys .*calls itself 'red'"),
    ],
)
def test_a_broken_plugin_is_named_and_stops_no_other(
    installed: list[EntryPoint], colours: Plugins[SimpleNamespace], value: str, message: str
) -> None:
    installed.append(offered("toy", value))
    assert "toy" in colours.names()
    with pytest.raises(SettingsError, match=message):
        colours.load("toy")
    assert colours.load("red").name == "red"


def test_two_packages_with_one_name_are_refused(
    installed: list[EntryPoint], colours: Plugins[SimpleNamespace]
) -> None:
    installed.append(offered("red", "paints:RED", "paints"))
    with pytest.raises(SettingsError, match=r"offer the same colour 'red': toys .* and paints"):
        colours.names()


def test_one_entry_point_found_twice_is_one(
    installed: list[EntryPoint], colours: Plugins[SimpleNamespace]
) -> None:
    installed.append(offered("red", "toy_colours:RED"))
    assert colours.load("red").name == "red"


def test_without_any_entry_point_the_error_says_what_to_do(
    installed: list[EntryPoint], colours: Plugins[SimpleNamespace]
) -> None:
    installed.clear()
    with pytest.raises(SettingsError, match=r"no colour is installed: .*install shoal again"):
        colours.names()


def test_a_plug_in_that_ends_the_process_when_it_is_imported_is_named(
    installed: list[EntryPoint], colours: Plugins[SimpleNamespace], tmp_path: Path
) -> None:
    (tmp_path / "ending_plugin.py").write_text("raise SystemExit(0)\n")
    installed.append(offered("black", "ending_plugin:BLACK", "ends"))
    with pytest.raises(
        SettingsError, match=r"colour 'black' of package ends .* cannot be imported: SystemExit: 0"
    ):
        colours.load("black")
