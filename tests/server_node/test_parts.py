"""Parts of the only cluster: named cells that last, found only where they mean the same twice."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from shoal.algorithms.view import ClusteringView
from shoal.client_nodes.labelling.labelled_readings import LabelledReadings
from shoal.client_nodes.labelling.labels_command import labels
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState
from shoal.kernels import forms
from shoal.kernels.arrays import Floats
from shoal.kernels.forms import COMPILED
from shoal.onebox.federation import OneBox
from shoal.protocol.parts import NO_PART, Part, are_parts, part_numbers
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.build import Reports
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.parts import Parts, next_parts
from shoal.server_node.report.status import StatusBoard
from tests.house.small_federation import CLIENTS, FILE, clock, write_readings
from tests.kernels.both_forms import FORMS
from tests.server_node.web_browser import Browser
from tests.server_node.web_statuses import a_contract

CONTRACT = a_contract(2)
ONE = Lineage(clusters={0: Cluster(0)})
LOOK = (0, 1_000)
"""readings before and now with which the number of parts is looked at"""
LATER = (1_000, 1_500)


def along(n: int, seed: int = 0, thick: float = 0.04) -> Floats:
    """(n, 2) places along a line: warmer is drier."""
    rng = np.random.default_rng(seed)
    return np.clip(
        0.5 + np.outer(rng.normal(size=n), [0.15, -0.12]) + thick * rng.normal(size=(n, 2)), 0, 1
    )


def round_places(n: int, seed: int = 0) -> Floats:
    return np.clip(0.5 + 0.1 * np.random.default_rng(seed).normal(size=(n, 2)), 0, 1)


def view_of(nodes: Floats) -> ClusteringView:
    return ClusteringView.from_nodes(nodes, np.ones(len(nodes)), np.zeros(len(nodes), dtype=int))


def test_a_long_cluster_has_parts_with_names_of_their_own() -> None:
    parts = next_parts([], view_of(along(400)), ONE, CONTRACT, LOOK)
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert len({part.label for part in parts}) == len(parts) >= 2
    warmest = max(parts, key=lambda one: one.centre[0])
    assert "temperature high" in warmest.label
    assert "°C" in warmest.text
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert min(part.share for part in parts) >= 0.1
    assert are_parts([list(part) for part in parts])


def test_a_round_cluster_has_none_as_its_halves_agree_on_nothing() -> None:
    found = [
        len(next_parts([], view_of(round_places(400, seed)), ONE, CONTRACT, LOOK))
        for seed in range(6)
    ]
    assert found == [0] * 6


def test_several_clusters_and_few_nodes_and_few_readings_have_none() -> None:
    long = view_of(along(400))
    assert (
        next_parts([], long, Lineage(clusters={0: Cluster(0), 1: Cluster(1)}), CONTRACT, LOOK) == []
    )
    assert next_parts([], long, Lineage(), CONTRACT, LOOK) == []
    assert next_parts([], view_of(along(12)), ONE, CONTRACT, LOOK) == []
    assert next_parts([], long, ONE, CONTRACT, (0, 999)) == []
    assert next_parts([], view_of(along(0)), ONE, CONTRACT, LOOK) == []
    assert next_parts([], view_of(np.full((50, 2), 0.5)), ONE, CONTRACT, LOOK) == []


def test_numbers_and_names_go_on_from_the_parts_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = next_parts([], view_of(along(400)), ONE, CONTRACT, LOOK)
    moved = along(400) + np.array([0.05, -0.04])
    after = next_parts(before, view_of(moved), ONE, CONTRACT, LATER)
    assert [(part.number, part.label) for part in after] == [
        (part.number, part.label) for part in before
    ]
    shifted = [
        np.array(part.centre) - other.centre for part, other in zip(after, before, strict=True)
    ]
    assert np.allclose(shifted, [0.05, -0.04], atol=0.02)
    monkeypatch.setattr(forms, "PROCESS", FORMS[COMPILED])
    assert next_parts(before, view_of(moved), ONE, CONTRACT, LATER) == after, (
        "the same bits, and any order in memory"
    )
    other_day = next_parts(before, view_of(along(400, seed=1)), ONE, CONTRACT, LATER)
    assert [(part.number, part.label) for part in other_day] == [
        (part.number, part.label) for part in before
    ]
    order = np.random.default_rng(2).permutation(400)
    again = next_parts(before, view_of(moved[order]), ONE, CONTRACT, LATER)
    assert [part._replace(centre=[], share=0) for part in again] == [
        part._replace(centre=[], share=0) for part in after
    ]


def test_the_number_stays_until_readings_double_and_ends_where_halves_agree_no_more() -> None:
    before = next_parts([], view_of(along(400)), ONE, CONTRACT, LOOK)
    round_one = view_of(round_places(400))
    kept = next_parts(before, round_one, ONE, CONTRACT, (1_100, 1_900))
    assert [part.number for part in kept] == [part.number for part in before]
    assert next_parts(before, round_one, ONE, CONTRACT, (1_900, 2_100)) == []


def test_a_part_that_lost_all_readings_ends_the_parts_until_the_next_look() -> None:
    before = next_parts([], view_of(along(400)), ONE, CONTRACT, LOOK)
    lone = [*before[:-1], before[-1]._replace(centre=[0.0, 0.0])]
    beside = [part._replace(centre=[0.5, 0.5]) for part in lone[:-1]]
    assert (
        next_parts([*beside, lone[-1]], view_of(0.5 + 1e-3 * along(50)), ONE, CONTRACT, LATER) == []
    )


def test_a_rebuild_keeps_published_parts_until_it_has_read_what_they_were_made_from() -> None:
    published = Parts()
    long = view_of(along(400))
    parts = published.follow(long, ONE, CONTRACT, 5_000)
    assert len(parts) >= 2
    rebuilt = Parts()
    rebuilt.restore(published.state())
    assert rebuilt.follow(view_of(round_places(20)), ONE, CONTRACT, 100) == parts
    assert rebuilt.follow(long, ONE, CONTRACT, 5_000) != []
    rebuilt.begin_again()
    assert rebuilt.follow(long, ONE, CONTRACT, 100) == []
    with pytest.raises(InvalidState):
        rebuilt.restore({"parts": [[0, "no", "part", 1.0, [], []]], "readings": 0})


def test_a_reading_is_in_the_part_with_the_nearest_centre_of_what_it_has() -> None:
    parts = [Part(2, "cold", "", 0.5, [0], [0.2, 0.5]), Part(5, "warm", "", 0.5, [0], [0.8, 0.5])]
    rows = np.array([[0.1, 0.9], [7.0, 0.5], [np.nan, 0.5], [0.9, np.nan], [np.nan, np.nan]])
    assert part_numbers(parts, rows, CONTRACT.features).tolist() == [2, 5, 2, 5, NO_PART]
    assert part_numbers([], rows, CONTRACT.features).tolist() == [NO_PART] * 5
    turning = [CONTRACT.features[0].model_copy(update={"kind": "circular"}), CONTRACT.features[1]]
    parts[1] = parts[1]._replace(centre=[0.2, 0.9])
    assert part_numbers(parts, rows[:1], turning).tolist() == [5], "circles decide no part"


def test_no_snapshot_has_parts_that_cannot_be() -> None:
    good = [1, "warm", "warm: 20-30 °C", 0.5, [0], [0.5, 0.5]]
    assert are_parts([good, [2, *good[1:]]])
    for wrong in (
        [good, good],
        [good, [2, *good[1:5], [0.5]]],
        [good[:5]],
        [[0, *good[1:]]],
        [[1, "a\nb", *good[2:]]],
    ):
        assert not are_parts(wrong)
    for place, value in ((3, 1.5), (4, [-1]), (5, [float("nan")]), (5, [2.0]), (5, None)):
        assert not are_parts([[*good[:place], value, *good[place + 1 :]]])


def federation_file(folder: Path) -> Path:
    settings = {
        "name": "house",
        "publish_readings": 100,
        "batch_readings_max": 70,
        "pool_clients": 1,
    }
    text = FILE.format(**settings, batch_updates_max=4, address="sqlite:federation.db")
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', 'mode = "off"')
    text = text.replace('"fcac"', '"cluster_tree"')
    path = folder / "federation.toml"
    path.write_text(text, encoding="utf-8")
    return path


def write_weather(config: Config, n: int) -> None:
    for seed, name in enumerate(CLIENTS):
        write_readings(config, name, along(n, seed) * [60.0, 100.0] + [-10.0, 0.0])


def test_a_federation_of_one_cluster_publishes_parts_labels_by_them_and_a_rebuild_has_the_same(
    tmp_path: Path, browser: Browser
) -> None:
    file = federation_file(tmp_path)
    config = load_config(file)
    write_weather(config, 1_200)
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        status = box.server.status()
        model = status.models["clusters"]
        assert model.snapshot is not None
        parts = model.snapshot.cluster_parts
        assert len(model.lineage.known) == 1
        listed = Reports().clustering(status, "clusters").parts
        shows_them(browser, box)
    assert len(parts) >= 2
    assert [part.label for part in listed] == [part.label for part in parts]
    assert all(-10 <= part.centre[0] <= 50 for part in listed)
    warmest = max(listed, key=lambda one: one.centre[0])
    assert "warm high" in warmest.label
    assert labelled_by(file, config, {part.title for part in parts}) > 0.98
    with resumed(open_server(config, rebuild=True, clock=clock)) as server:
        while server.step():
            pass
        rebuilt = server.models()["clusters"].snapshot
        assert rebuilt is not None
        assert [part[:2] for part in rebuilt.cluster_parts] == [part[:2] for part in parts]


def labelled_by(file: Path, config: Config, titles: set[str]) -> float:
    """The share of the labels with one of these parts whose reading is as its part says."""
    with closing(open_client_log(config, CLIENTS[0])) as log:
        [block, *_] = LabelledReadings(log, "clusters", 2).all()
    of = {label.part for label in block.labels if label is not None and label.version > 1}
    assert of - {""} <= titles | of
    export = ["export", "--config", str(file), "--name", CLIENTS[0], "--format", "jsonl"]
    assert '"part"' not in CliRunner().invoke(labels, export).stdout
    rows = (
        CliRunner().invoke(labels, [*export, "--parts"], catch_exceptions=False).stdout.splitlines()
    )
    held = [row for row in map(json.loads, rows) if row["part"]]
    high = [row["warm"] for row in held if "warm high" in row["part"]]
    rest = [row["warm"] for row in held if "warm high" not in row["part"]]
    assert high
    return float(np.mean([value > np.quantile(rest, 0.5) for value in high]))


def shows_them(browser: Browser, box: OneBox) -> None:
    web = page_server(StatusBoard(box.server.status()), CollectorRegistry())
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until("document.querySelectorAll('#parts tr').length >= 2")
        tab.shows("part 1:")
        tab.shows("they are no clusters")
        assert tab.console_errors() == []
    finally:
        web.stop()
