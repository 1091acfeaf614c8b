"""The shares of clusters that a user is shown are those of the readings, on files whose states are
known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.config.settings import load_config
from shoal.kernels.arrays import Ints
from shoal.onebox.run_command import run_command
from shoal.producers.init_command import init_command
from shoal.protocol.messages import Snapshot
from shoal.server_node.history.counted import CountedReadings
from shoal.transports import open_log
from shoal.transports.base import latest

CENTRES = np.array([[20.0, 40.0], [30.0, 60.0], [24.0, 75.0], [33.0, 35.0]])
"""temperature and humidity of the states, whose means no two share"""
SPREAD = (0.5, 1.0)
ROWS = 6_000
WITHIN = 0.01
FROM_COUNTS = """
[[models]]
name = "counted"
algorithm = "cluster_tree_from_counts"

[[models]]
name = "tree"
algorithm = "density_tree"
"""


def mixed(generator: np.random.Generator) -> tuple[Ints, Ints]:
    """The state and the room of each row: one room, whose states change from row to row, with a
    small one."""
    return generator.choice(4, ROWS, p=[0.6, 0.25, 0.135, 0.015]), np.zeros(ROWS, dtype=int)


def after_one_another(generator: np.random.Generator) -> tuple[Ints, Ints]:
    """One room, each of whose states comes once; the last of them at the end of the file."""
    return np.sort(generator.choice(4, ROWS, p=[0.5, 0.3, 0.15, 0.05])), np.zeros(ROWS, dtype=int)


def rooms(generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Four rooms with states of their own, one of which ends early."""
    place = np.arange(ROWS)
    room = np.where(place < ROWS // 2, place % 4, place % 3)
    states = np.stack(
        [
            generator.choice(4, ROWS, p=[0.9, 0.1, 0.0, 0.0]),
            place // 300 % 2,
            np.full(ROWS, 2),
            generator.choice(4, ROWS, p=[0.9, 0.0, 0.0, 0.1]),
        ]
    )
    return states[room, place], room


def write(path: Path, state: Ints, room: Ints, generator: np.random.Generator) -> None:
    values = CENTRES[state] + generator.normal(0.0, SPREAD, (ROWS, 2))
    times = np.datetime64("2025-03-03T00:00:00") + np.arange(ROWS) * np.timedelta64(60, "s")
    lines = ["time,room,temperature,humidity"]
    for at, name, (temperature, humidity) in zip(times, room.tolist(), values, strict=True):
        lines.append(f"{at},room-{name},{temperature:.2f},{humidity:.2f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def recent_shares(file: Path) -> dict[str, dict[int, float]]:
    """model -> identity -> the recent share, as metrics and pictures show it."""
    config = load_config(file)
    log = open_log(config.log)
    snapshots = latest(log, config.contract.snapshots_topic)
    log.close()
    shares = {}
    for name in config.resolved.models:
        record = snapshots[name.encode()]
        identities = Snapshot.decode(record.value, record.headers).cluster_identities
        shares[name] = {cluster.identity: cluster.recent_share for cluster in identities}
    return shares


@pytest.mark.parametrize("kind", [mixed, after_one_another, rooms])
def test_the_shares_of_clusters_are_those_of_the_states_in_the_file(
    kind: Callable[[np.random.Generator], tuple[Ints, Ints]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_SERVER_PORT", "0")
    generator = np.random.default_rng(5)
    state, room = kind(generator)
    write(tmp_path / "a.csv", state, room, generator)
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    file = tmp_path / "a.toml"
    text = file.read_text(encoding="utf-8")
    end = text.index("\n# The following sections")
    file.write_text(text[:end] + FROM_COUNTS + text[end:], encoding="utf-8")
    result = CliRunner().invoke(run_command, ["a.toml", "a.csv", "--no-wait", "--json"])
    assert result.exit_code == 0
    models = json.loads(result.stdout)["models"]
    truth = np.sort(np.bincount(state, minlength=4) / ROWS)
    # A model that learns from counts learns in steps: it knows a state later than the file ends.
    for model in ["clusters", "counted"] if kind is mixed else ["clusters"]:
        shares = sorted(cluster["share"] for cluster in models[model])
        assert shares == pytest.approx(truth.tolist(), abs=WITHIN), model
    if kind is mixed:
        # Of 6,000 readings the smallest state is not found by a tree of counts: it is at the low
        # humidity of the largest one.
        by_state = np.bincount(state, minlength=4) / ROWS
        found = sorted([by_state[0] + by_state[3], by_state[1], by_state[2]])
        shares = sorted(cluster["share"] for cluster in models["tree"])
        assert shares == pytest.approx(found, abs=WITHIN)
        recent = sorted(recent_shares(file)["clusters"].values())
        # Of the newest 2,000 readings or so, which differ by chance from all.
        assert recent == pytest.approx(truth.tolist(), abs=0.03)


def test_a_model_that_knows_its_readings_is_believed_if_it_has_counted_all_of_the_history() -> None:
    history = CountedReadings(0, 600, 1000, {0: 800, 1: 200})
    assert history.told_by({0: 490.0, 1: 490.0}).by_cluster == {0: 500, 1: 500}
    # Begun again later than the history, as after a change of the contract.
    assert history.told_by({0: 400.0, 1: 400.0}) == history
    assert CountedReadings(0, 600, 0, {}).told_by({0: 0.0}).by_cluster == {}
