"""States on the page and under `/v1`: dwells and changes, and clusters that are the states of
another model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.onebox.federation import OneBox
from shoal.server_node.history.recent import RecentHistory
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.outputs.encoding import plain
from shoal.server_node.outputs.web.page_renderer import PageRenderer
from shoal.server_node.report.beside import beside_of, same_as
from shoal.server_node.report.build import Reports
from tests.house.small_federation import CLIENTS, clock
from tests.house.test_states import federation_file, write_planted

PART = np.tile([0.0, 1.0, 0.3, 0.9], 6)


def recent(shares: dict[int, np.ndarray], start: int = 0) -> RecentHistory:
    return RecentHistory(
        start, 300, {identity: own.tolist() for identity, own in shares.items()}, {}, {}
    )


def test_clusters_are_the_states_that_part_the_readings_alike() -> None:
    states = recent({0: PART, 1: 1 - PART})
    nearly = np.clip(PART, 0.04, 0.96)
    assert same_as(recent({5: 1 - nearly, 7: nearly, -1: PART * 0}), states, [0, 1]) == {
        5: 1,
        7: 0,
    }
    assert same_as(recent({5: 1 - nearly[4:], 7: nearly[4:]}, 1_200), states, [0, 1]) == {
        5: 1,
        7: 0,
    }


def test_clusters_are_no_states_if_they_part_otherwise_or_too_little_is_known() -> None:
    states = recent({0: PART, 1: 1 - PART})
    half = np.full(len(PART), 0.5)
    assert same_as(recent({5: half, 7: half}), states, [0, 1]) == {}
    assert same_as(recent({5: half, 7: half}), recent({0: half, 1: half}), [0, 1]) == {}, (
        "nothing moves"
    )
    assert same_as(recent({5: PART, 6: (1 - PART) / 2, 7: (1 - PART) / 2}), states, [0, 1]) == {}
    assert same_as(recent({5: PART[:8], 7: 1 - PART[:8]}), states, [0, 1]) == {}
    assert same_as(recent({}), states, [0, 1]) == {}
    assert same_as(recent({5: np.roll(PART, 1), 7: 1 - np.roll(PART, 1)}), states, [0, 1]) == {}


def test_the_page_has_stays_and_changes_and_those_of_a_model_beside_it(tmp_path: Path) -> None:
    file = federation_file(tmp_path)
    text = file.read_text(encoding="utf-8")
    places = '[[models]]\nname = "places"\nalgorithm = "cluster_tree"\n[log]'
    file.write_text(text.replace("[log]", places), encoding="utf-8")
    config = load_config(file)
    write_planted(config)
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        status = box.server.status()
        history = HistoryReader(config.server.folder / HISTORY_FILE)
        stays = status.models["clusters"]
        for suffix in ("svg", "png"):
            pictured = CliRunner().invoke(
                shoal,
                [
                    "picture",
                    "--config",
                    str(file),
                    "--of",
                    "states",
                    "--out",
                    f"{tmp_path}/changes.{suffix}",
                ],
            )
            assert pictured.exit_code == 0, pictured.output
        asked = [
            "picture",
            "--config",
            str(file),
            "--of",
            "states",
            "--out",
            f"{tmp_path}/no.svg",
            "--model",
            "places",
        ]
        assert isinstance(CliRunner().invoke(shoal, asked).exception, SettingsError), (
            "its clusters are no states"
        )
        reports = Reports(history)
        listed = plain(reports.clustering(status, "clusters"))
        content = PageRenderer(reports=reports).render(status).content
    drawn = (tmp_path / "changes.svg").read_text(encoding="utf-8")
    for words in ("changes between states seen", "at a stretch"):
        assert words in drawn
    assert "readings at a stretch" not in drawn, "readings have times"
    models = {model["name"]: model["clustering"] for model in content["models"]}
    shown = models["clusters"]["states"]
    assert shown == listed["states"]
    assert not shown["provisional"]
    assert sum(times for *_, times in shown["moves"]) == shown["n_changes"] >= 20
    dwells = {cluster["identity"]: cluster["dwell"] for cluster in listed["clusters"]}
    assert sorted(dwells) == [0, 1]
    assert all(70 < dwell < 170 for dwell in dwells.values())
    assert 0.95 < shown["reading_s"] < 1.05, "a reading each second"
    on_page = models["clusters"]["clusters"].values()
    assert {cluster["identity"]: cluster["dwell"] for cluster in on_page} == dwells
    assert sorted(move[:2] for move in shown["moves"]) == [[0, 1], [1, 0]]
    assert models["clusters"]["beside"] is None
    assert models["places"]["states"] is None
    beside = models["places"]["beside"]
    assert [cluster["identity"] for cluster in beside["states"]] == [0, 1]
    assert beside["model"] == "clusters"
    assert beside_of(stays, status.contract, None, None) is None, "no history, nothing over time"
