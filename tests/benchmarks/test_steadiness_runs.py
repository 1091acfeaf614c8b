"""The benchmark of steadiness runs in its quick form, and its measures are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

if missing := [part for part in ("river", "sklearn") if find_spec(part) is None]:
    reason = f"{missing[0]}: the peers come with the extra 'bench'"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)

from benchmarks.steadiness.__main__ import kept_peers
from benchmarks.steadiness.judge import judge
from benchmarks.steadiness.learners import PEERS
from benchmarks.steadiness.neighbours import known_by_neighbours
from benchmarks.steadiness.picture import draw, panel
from benchmarks.steadiness.streams import Stream, changing, repeated, stationary

HERE = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("steadiness")
    command = [sys.executable, "-m", "benchmarks", "steadiness", "--quick", "--out", str(out)]
    ended = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result: dict[str, Any] = json.loads((out / "steadiness.json").read_text(encoding="utf-8"))
    page = (out / "steadiness.md").read_text(encoding="utf-8")
    assert result["made_by"] in page
    assert all(name in page for name in result["learners"])
    return result


@pytest.mark.integration
def test_every_learner_is_judged_on_every_stream(quick: dict[str, Any]) -> None:
    pairs = {(verdict["stream"], verdict["learner"]) for verdict in quick["verdicts"]}
    assert pairs == {
        (stream, name) for stream in ("blobs K=5 d=2", "births") for name in quick["learners"]
    }
    for verdict in quick["verdicts"]:
        assert -1.0 <= verdict["ari"] <= 1.0
        assert 0.0 <= verdict["still"] <= 1.0
        assert verdict["switches"] <= verdict["switches_possible"]
    for name in ("sketched_rows_per_s", "rebuild_ms", "later_rebuild_ms"):
        assert all(figures["median"] > 0 for figures in quick["speed"][0][name].values())
        assert set(quick["speed"][0][name]) == {"numpy", "compiled"}


@pytest.mark.integration
def test_peers_are_kept_from_a_result_that_was_judged_alike(quick: dict[str, Any]) -> None:
    kept = kept_peers(quick, quick["judged"])
    assert (
        {verdict["learner"] for verdict in kept["verdicts"]}
        == set(kept["learners"])
        == {"FCAC", PEERS[1].name}
    )
    assert kept["measured_at"] == quick["machine"]["measured_at"]
    with pytest.raises(click.UsageError, match="judged by"):
        kept_peers(quick, {**quick["judged"], "seeds": [1]})


@pytest.mark.integration
def test_the_picture_has_the_true_numbers_beside_those_of_the_learners(
    quick: dict[str, Any],
) -> None:
    seed = quick["judged"]["seeds"][0]
    lines, truth = panel(quick, "births", seed)
    assert truth == [3, 3, 4, 4, 5, 5]
    assert set(lines) == {"FCAC", "cluster_tree"}
    assert all(len(counts) == len(truth) for counts in lines.values())
    with pytest.raises(click.UsageError, match="no verdict on 'rings'"):
        panel(quick, "rings", seed)


def test_the_picture_of_the_documentation_can_be_drawn_from_the_published_result(
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra 'plot'")
    draw(
        json.loads((HERE / "benchmarks/results/steadiness.json").read_text(encoding="utf-8")),
        tmp_path / "drawn.png",
    )
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    assert (HERE / "benchmarks/steadiness/steadiness.png").is_file()


class Oracle:
    """Knows the truth; `flicker` gives every row another label after each batch."""

    def __init__(self, stream: Stream, flicker: bool = False) -> None:
        self._known = {
            row.tobytes(): int(label) for row, label in zip(stream.rows, stream.truth, strict=True)
        }
        self._flicker = flicker
        self._batches = 0
        self._seen = set[int]()

    def learn(self, rows: np.ndarray) -> None:
        self._batches += 1
        self._seen |= {self._known[row.tobytes()] for row in rows}

    def predict(self, rows: np.ndarray) -> np.ndarray:
        shift = 100 * self._batches if self._flicker else 0
        return np.array([self._known[row.tobytes()] + shift for row in rows])

    def count(self) -> int:
        return len(self._seen) + (self._batches % 2 if self._flicker else 0)


@pytest.mark.parametrize(
    "name", ["blobs K=5 d=2", "small 1 %", "births", "deaths", "class by class d=2", "drift"]
)
def test_a_learner_that_knows_the_truth_is_perfect(name: str) -> None:
    stream = {**stationary(4000), **changing(4000)}[name](1)
    verdict = judge(Oracle(stream), stream)
    assert verdict.ari == 1.0
    assert verdict.count_error == 0.0
    assert verdict.switches == 0
    assert all(delay is not None and delay <= 500 for delay in verdict.delays)


def test_labels_and_counts_that_change_all_the_time_are_measured() -> None:
    stream = stationary(4000)["blobs K=5 d=2"](1)
    verdict = judge(Oracle(stream, flicker=True), stream)
    assert verdict.ari == 1.0
    assert verdict.switches == verdict.switches_possible == 20
    assert verdict.changes == 2.0
    assert verdict.still == 0.0


def test_a_delay_is_counted_from_the_event_and_from_the_change_of_the_modes() -> None:
    """Blobs are two while 6 sd apart; their density has two modes while they are 2 apart, which is
    another moment."""
    for name in ("split", "merge"):
        stream = changing(4000)[name](1)
        (event,) = stream.events
        assert event.modes_at is not None
        assert (event.modes_at > event.at) is (name == "merge")
        verdict = judge(Oracle(stream), stream)
        assert verdict.delays[0] is not None
        assert verdict.delays_modes == [verdict.delays[0] + event.at - event.modes_at]


def test_a_repeated_stream_has_every_row_once_in_each_round() -> None:
    stream = stationary(300)["one blob"](1)
    rows = repeated(stream, 5, 750).rows
    assert len(np.unique(rows[:300], axis=0)) == len(np.unique(rows[300:600], axis=0)) == 300
    assert not np.array_equal(rows[:300], rows[300:600])
    assert len(rows) == 750


def test_nearest_rows_know_the_class_of_blobs_and_not_a_random_one() -> None:
    stream = stationary(1000)["blobs K=5 d=2"](1)
    right, largest, agreement = known_by_neighbours(stream.rows, stream.truth)
    assert right == agreement == 1.0
    assert largest == np.bincount(stream.truth).max() / 1000
    right, _, agreement = known_by_neighbours(stream.rows, np.arange(1000) % 2)
    assert 0.4 < right < 0.6
    assert abs(agreement) < 0.05
