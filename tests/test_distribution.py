"""What is shipped: the examples run, and the source distribution holds every file of the repository
that it should."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = {".ci", ".gitignore"}
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
WITH_A_SERVER = {"http_client", "house_mqtt", "factory_regions"}
"""examples that tests/test_examples.py runs"""


@pytest.mark.parametrize(
    "example",
    [path for path in EXAMPLES if path.stem not in WITH_A_SERVER],
    ids=lambda path: path.stem,
)
def test_an_example_runs_without_a_warning(example: Path, tmp_path: Path) -> None:
    # an example that serves a page takes any free port
    environment = os.environ | {"SHOAL_SERVER_PORT": "0"}
    words = [sys.executable, "-W", "error", example]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)


def test_every_example_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f"`{path.name}`" not in listed] == []


def test_the_source_distribution_holds_every_tracked_file() -> None:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git repository")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaging = project["tool"]["setuptools"]
    packages = {"shoal", *packaging["package-dir"].values()}
    rules = [
        line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    ]
    grafted = {folder for rule in rules if rule[:1] == ["graft"] for folder in rule[1:]}
    included = {file for rule in rules if rule[:1] == ["include"] for file in rule[1:]}
    always = {"pyproject.toml", "README.md", "MANIFEST.in", *project["project"]["license-files"]}
    left_out = {
        file
        for file in listing.stdout.splitlines()
        if file not in included | always
        and file.split("/")[0] not in grafted | packages | NOT_SHIPPED
    }
    assert left_out == set()


def test_every_file_that_the_manifest_names_is_there() -> None:
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    named = [
        name
        for line in lines
        if line.startswith(("include ", "graft "))
        for name in line.split()[1:]
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_licence_is_the_one_that_the_project_states() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "The shoal authors" in text
    assert project["authors"] == [{"name": "The shoal authors"}]
