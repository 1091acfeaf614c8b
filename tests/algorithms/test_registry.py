"""Algorithms are found by entry points and imported one by one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.algorithms.registry import (
    algorithm_names,
    counting_names,
    load_algorithm,
    rounds_algorithm,
    rounds_names,
    streaming_algorithm,
    streaming_names,
)
from shoal.cli.check import check
from shoal.errors import SettingsError


def test_the_installed_algorithms_are_those_of_pyproject() -> None:
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    assert set(algorithm_names()) >= set(project["entry-points"]["shoal.algorithms"]), (
        "run pip install -e . again"
    )


def test_every_name_leads_to_an_algorithm_of_its_family() -> None:
    assert sorted(streaming_names() + rounds_names()) == list(algorithm_names())
    assert all(streaming_algorithm(name).name == name for name in streaming_names())
    assert all(rounds_algorithm(name).name == name for name in rounds_names())


def test_the_family_of_an_algorithm_says_what_its_clients_do() -> None:
    families = {name: load_algorithm(name).family for name in algorithm_names()}
    for name, family in families.items():
        assert [family.client_learns, family.client_counts, family.client_answers].count(
            True
        ) == 1, name
        assert family.takes_rows == (family.learns_from == "noisy rows"), name
        assert family.in_rounds == (name in rounds_names()), name
        assert family.client_counts == (name in counting_names()), name
    assert [families[name].name for name in ("fcac", "density_tree", "kmeans")] == [
        "streaming",
        "counting",
        "rounds",
    ]


def test_the_baselines_that_only_serve_experiments_are_marked() -> None:
    assert [name for name in algorithm_names() if load_algorithm(name).paper_only] == [
        "ffcm",
        "gmm_local",
        "kmeans_local",
    ]


def test_the_reference_page_lists_every_algorithm_and_marks_those() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md").read_text(
        encoding="utf-8"
    )
    heads = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    for name in rounds_names():
        marked = [head for head in heads if f"`{name}`" in head]
        assert len(marked) == 1, name
        assert ("(paper only)" in marked[0]) == rounds_algorithm(name).paper_only, name


def test_shoal_check_marks_them_too(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    models = "".join(
        f'[[models]]\nname = "{name}"\nalgorithm = "{name}"\noptions = {{ clusters = 3 }}\n'
        for name in ("kmeans", "kmeans_local")
    )
    file.write_text(
        '[federation]\nname = "plant"\n[[features]]\nname = "t"\nlow = 0\nhigh = 1\n[privacy]\nmode'
        ' = "off"\n' + models
    )
    result = CliRunner().invoke(check, [str(file)], catch_exceptions=False)
    lines = [line for line in result.output.splitlines() if line.startswith("model ")]
    assert ["only for comparison" in line for line in lines] == [False, True], result.output


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match=r"unknown algorithm 'fcak'; there are: .*fcac, .*fcm.*kmeans"
    ):
        load_algorithm("fcak")


def test_a_name_of_the_other_family_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"fcac is a streaming algorithm; in rounds are: .*kmeans"
    ):
        rounds_algorithm("fcac")
    with pytest.raises(
        SettingsError, match=r"kmeans is an algorithm in rounds; streaming are: .*fcac"
    ):
        streaming_algorithm("kmeans")


ONE_OF_THEM = """
import sys
from shoal.algorithms.registry import algorithm_names, load_algorithm
assert "gmm" in algorithm_names()
load_algorithm("fcac").client({}, 2)
print(*sorted(name for name in sys.modules if name.startswith("shoal.algorithms.rounds.")))
"""


def test_loading_one_algorithm_does_not_import_the_others() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", ONE_OF_THEM], capture_output=True, text=True, check=True
    ).stdout
    assert not {"gmm", "kmeans", "fcm", "kfed", "mufc"} & {
        name.rpartition(".")[2] for name in loaded.split()
    }
