"""The workflows of the repository: they cannot run here, so their commands are commands of the
Makefile, which are tested elsewhere, and actions are pinned."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import shoal

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
TRUSTED = {"pypa/gh-action-pypi-publish@release/v1"}
"""actions that are followed by a branch, as their makers ask for"""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each step is, and the step."""
    for workflow in WORKFLOWS:
        for name, job in read(workflow)["jobs"].items():
            for step in job["steps"]:
                yield f"{workflow.name}, {name}", step


def test_there_are_workflows_for_pushes_nights_and_tags() -> None:
    assert [path.stem for path in WORKFLOWS] == ["check", "nightly", "release"]


def test_every_make_command_of_a_step_is_one_of_the_makefile() -> None:
    commands = [
        (place, target)
        for place, step in steps()
        for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))
    ]
    assert {target for _, target in commands} == {
        "advisories",
        "check",
        "image",
        "integration",
        "newest",
        "programs",
        "release",
        "test",
    }
    for place, target in commands:
        assert target in TARGETS, place


def test_actions_are_pinned_to_commits() -> None:
    for place, step in steps():
        if "uses" in step:
            assert PINNED.fullmatch(step["uses"]) or step["uses"] in TRUSTED, place


def test_no_job_may_write_more_than_it_says_and_none_runs_forever() -> None:
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert job["timeout-minutes"] <= 90, f"{path.name}, {name}"


def test_no_expression_stands_in_a_script() -> None:
    """A branch or a tag may have any name: in a script it would be a command."""
    for place, step in steps():
        assert "${{" not in step.get("run", ""), place


def test_every_version_of_python_that_the_package_names_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    check = read(ROOT / ".github" / "workflows" / "check.yml")
    named = {
        classifier.rpartition(" :: ")[2]
        for classifier in project["classifiers"]
        if classifier.startswith("Programming Language :: Python :: 3.")
    }
    assert named <= set(check["jobs"]["check"]["strategy"]["matrix"]["python"])


def test_the_citation_names_the_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == shoal.__version__


@pytest.mark.integration
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("needs Go, by which actionlint is built")
    subprocess.run(
        ["go", "install", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"],
        env=os.environ | {"GOBIN": str(tmp_path)},
        check=True,
    )
    ended = subprocess.run(
        [tmp_path / "actionlint", *WORKFLOWS], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("folder", [".github/ISSUE_TEMPLATE", ".github"])
def test_forms_are_yaml_with_ids_of_their_own(folder: str) -> None:
    for path in (ROOT / folder).glob("*.yml"):
        identifiers = [field["id"] for field in read(path).get("body", ()) if "id" in field]
        assert len(identifiers) == len(set(identifiers)), path.name


def test_the_library_is_tried() -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "deploy" / "try_library.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("ARI") == 2
