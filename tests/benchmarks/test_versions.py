"""Another version of shoal is run with its own code, whatever version is installed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.versions.__main__ import measured

HERE = Path(__file__).parents[2]
UPDATES = 3
PROJECT = """
[project]
name = "shoal"
[project.entry-points."shoal.sources"]
theirs = "producers.theirs:source"
"""
PRODUCER = f"""
import json, os, sys
from importlib.metadata import entry_points
import shoal
names = [point.name for point in entry_points(group="shoal.sources")]
tree = os.path.dirname(os.path.dirname(shoal.__file__))
done = {{"absorbed": {UPDATES}, "answered": {UPDATES}}}
print(json.dumps({{"tree": tree, "sources": names, **done}}))
sys.exit()
"""


def test_a_version_that_is_not_installed_has_its_own_packages_and_entry_points(
    tmp_path: Path,
) -> None:
    # A version with a package for each folder: no module of its `shoal` is one of a process.
    tree = tmp_path / "version"
    (tree / "shoal").mkdir(parents=True)
    for path in (HERE / "shoal").iterdir():
        if not path.is_symlink() and path.name != "__pycache__":
            (tree / "shoal" / path.name).symlink_to(path)
    (tree / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    for module in ("client_nodes/bootstrap", "producers/producer_command"):
        path = tree / f"{module}.py"
        path.parent.mkdir()
        (path.parent / "__init__.py").touch()
        path.write_text("open_client = None\n", encoding="utf-8")
    (tree / "producers" / "producer_command.py").write_text(PRODUCER, encoding="utf-8")
    assert measured(tree, UPDATES, 0, path=False)["sources"] == ["theirs"]
