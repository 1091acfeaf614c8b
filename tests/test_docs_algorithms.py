"""The page on algorithms agrees with the declarations of options. To make its tables of options
anew: `python -m tests.test_docs_algorithms`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.algorithms.cluster_tree import ClusterTreeOptions
from shoal.algorithms.density_tree import DensityTreeOptions
from shoal.algorithms.fcac import FcacOptions
from shoal.algorithms.from_counts.states import StatesFromCountsOptions
from shoal.algorithms.options import AlgorithmOptions
from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.states.options import StatesOptions
from shoal.config.resolved import GIVEN_BY_CONTRACT
from shoal.errors import SettingsError

HERE = Path(__file__).parent.parent
FILE = HERE / "docs" / "reference" / "algorithms.md"
PAGE = FILE.read_text(encoding="utf-8")
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STREAMING: dict[str, type[AlgorithmOptions]] = {
    "cluster_tree": ClusterTreeOptions,
    "density_tree": DensityTreeOptions,
    "states": StatesOptions,
    "states_from_counts": StatesFromCountsOptions,
    "fcac": FcacOptions,
}
"""name of a streaming algorithm whose options have a table -> these options"""
TABLES = (
    ("cluster_tree",),
    ("density_tree",),
    ("states",),
    ("states_from_counts",),
    ("fcac",),
    ("kmeans", "fcm", "gmm", "kfed", "mufc", "ffcm", "kmeans_local", "gmm_local"),
    ("dbscan",),
    ("spectral",),
    ("tsk",),
)
"""the algorithms of each table, in the order of the page"""


def options_of(name: str) -> type[AlgorithmOptions]:
    """Options of an algorithm. Raises `SettingsError` for an unknown name."""
    return STREAMING.get(name) or rounds_algorithm(name).options


def options_table(names: Sequence[str]) -> str:
    """Markdown: the options of the algorithms `names`, with a column for who has them if there are
    several.

    An option that several algorithms declare alike has one line. Raises `SettingsError` for an
    unknown name.
    """
    owners: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        declared = options_of(name)
        for option in declared.model_fields.keys() - set(GIVEN_BY_CONTRACT):
            owners.setdefault(_cells(declared, option), []).append(f"`{name}`")
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    if len(names) > 1:
        lines = ["| option | of | default | values | meaning |", "|---|---|---|---|---|"]
    for (option, *cells), having in sorted(
        owners.items(), key=lambda entry: _place(names, entry[0][0])
    ):
        whose = [", ".join(having)] if len(names) > 1 else []
        lines.append(f"| {' | '.join([option, *whose, *cells])} |")
    return "\n".join(lines)


def _cells(declared: type[AlgorithmOptions], name: str) -> tuple[str, ...]:
    option = declared.model_fields[name]
    default = "none" if option.default is None else json.dumps(option.default)
    return f"`{name}`", f"`{default}`", declared.expected(name), option.description or ""


def _place(names: Sequence[str], option: str) -> int:
    """Where the first of the algorithms that have this option declares it: lines of one option
    stand together."""
    every = [f"`{field}`" for name in names for field in options_of(name).model_fields]
    return every.index(option)


@pytest.mark.parametrize("names", TABLES, ids=lambda names: names[0])
def test_a_table_of_options_agrees_with_the_declarations(names: tuple[str, ...]) -> None:
    assert options_table(names) in PAGE


def test_every_algorithm_in_rounds_that_comes_with_shoal_has_its_options_in_a_table() -> None:
    own = set(PROJECT["entry-points"]["shoal.algorithms"]) & set(rounds_names())
    assert own == {name for names in TABLES for name in names} - set(STREAMING)


def test_an_option_that_algorithms_declare_alike_has_one_line_with_all_of_them() -> None:
    table = options_table(("kmeans", "fcm"))
    assert table.count("| `clusters_max` | `kmeans`, `fcm` | `20` |") == 1
    assert "| `fuzzifier` | `fcm` | `2.0` |" in table


def test_every_option_says_what_it_means_and_which_values_it_takes() -> None:
    declared = [
        (rounds_algorithm(name).options, option)
        for name in rounds_names()
        for option in rounds_algorithm(name).options.model_fields
    ]
    assert declared
    assert all(
        options.model_fields[name].description and options.expected(name)
        for options, name in declared
    )


def test_an_algorithm_that_is_no_algorithm_in_rounds_has_no_such_table() -> None:
    with pytest.raises(SettingsError, match="cluster_tree_from_counts is a streaming algorithm"):
        options_table(("cluster_tree_from_counts",))


def rewritten(page: str) -> str:
    """The page with these tables made anew."""
    tables = iter(TABLES)
    return re.sub(
        r"^\| option \| (of \| )?default \| values \| meaning \|\n(\|.*\n)+",
        lambda _: f"{options_table(next(tables))}\n",
        page,
        flags=re.MULTILINE,
    )


if __name__ == "__main__":
    FILE.write_text(rewritten(PAGE), encoding="utf-8")
