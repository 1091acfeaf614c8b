"""The pictures of reproduction/gallery/README.md: every algorithm on the same two data sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reproduction.experiments import gallery
from reproduction.experiments.gallery import (
    CLIENTS,
    SHOWN,
    Clustering,
    DataSet,
    blobs,
    cluster,
    skewed,
)
from reproduction.reproduce_command import reproduce
from shoal.algorithms.registry import load_algorithm

GALLERY = Path(__file__).parents[2] / "reproduction" / "gallery"


def test_every_algorithm_finds_the_five_blobs() -> None:
    for name in SHOWN:
        found = cluster(name, blobs(1), 1)
        # One that predicts sees the inputs only, and has a line instead.
        assert found.ari > 0.95 or load_algorithm(name).regression is not None, name


def test_the_line_of_an_algorithm_that_predicts_goes_through_the_rows() -> None:
    data = skewed(1)
    found = cluster("tsk", data, 1)
    assert found.curve is not None
    nearest = found.curve[np.abs(found.curve[:, :1] - data.rows[:, 0]).argmin(axis=0), 1]
    assert np.square(nearest - data.rows[:, 1]).mean() < 0.9 * data.rows[:, 1].var()
    assert cluster("kmeans", data, 1).curve is None


def test_each_client_of_the_skewed_data_holds_two_of_the_clusters() -> None:
    data = skewed(3)
    assert len(data.clients) == CLIENTS
    assert sum(map(len, data.clients)) == len(data.rows)
    for client in range(CLIENTS):
        assert len(np.unique(data.classes[data.owner == client])) == 2


def test_the_same_seed_gives_the_same_data() -> None:
    for make in (blobs, skewed):
        assert make(4).rows.tobytes() == make(4).rows.tobytes()
        assert make(4).rows.tobytes() != make(5).rows.tobytes()


@pytest.mark.integration
def test_the_command_draws_and_reports_every_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[tuple[str, bytes, int], Clustering] = {}

    def once(algorithm: str, data: DataSet, seed: int = 0) -> Clustering:
        """The table of the second run is of the clusterings of the first."""
        key = algorithm, data.rows.tobytes(), seed
        if key not in known:
            known[key] = cluster(algorithm, data, seed)
        return known[key]

    monkeypatch.setattr(gallery, "cluster", once)
    result = CliRunner().invoke(reproduce, ["pictures", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["algorithm"] for row in rows] == [name for name in SHOWN for _ in range(2)]
    for name in ("data", *SHOWN):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
    again = CliRunner().invoke(reproduce, ["pictures"])
    assert again.output.count("| skewed ") == len(SHOWN)


def test_a_missing_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(reproduce, ["pictures", "--out", str(tmp_path / "nowhere")])
    assert "no such folder" in str(result.exception)


@pytest.mark.parametrize("name", SHOWN)
def test_every_algorithm_has_its_picture_in_the_docs(name: str) -> None:
    assert f"({name}.png)" in (GALLERY / "README.md").read_text()
    assert (GALLERY / f"{name}.png").is_file()
