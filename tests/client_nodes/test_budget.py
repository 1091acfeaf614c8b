"""The limit of a ledger: nothing is released beyond it, and what happens there depends on numbers
of places alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, SettingsError
from shoal.privacy.ledger import Spending, read_spending
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from tests.house.counting_federation import create
from tests.house.small_federation import clock, contents, updates_by_client

READINGS = 400
PLACES = READINGS + 7
"""with the rejected readings among them"""
ROWS = "epsilon_per_reading = 200\ncounts_epsilon = 4"
FCAC = '[[models]]\nname = "published"\nalgorithm = "fcac"'


def limited(file: Path, epsilon_max: float, **more: object) -> Config:
    config = load_config(file)
    return config.model_copy(
        update={"client": config.client.model_copy(update={"epsilon_max": epsilon_max, **more})}
    )


def run(config: Config) -> ClientNode:
    with resumed(open_client(config, "attic", clock=clock)) as node:
        while node.step():
            pass
    return node


def spending(config: Config) -> Spending:
    return read_spending(config.client.folder / "attic" / "ledger.db")["client attic of house"]


def published(config: Config) -> dict[int, object]:
    return {
        number: contents(again[0])
        for number, again in updates_by_client(config).get("attic", {}).items()
    }


def test_a_client_pauses_at_its_limit_and_goes_on_when_the_limit_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {}
    for name in ("limited", "whole"):
        (tmp_path / name).mkdir()
        files[name] = create(tmp_path / name, READINGS, clients=("attic",))
    with caplog.at_level("WARNING", logger="shoal"):
        node = run(limited(files["limited"], 4 * 150))
    assert caplog.text.count("epsilon_max_reached") == 1
    config = load_config(files["limited"])
    assert node.totals["read"] == 150
    assert spending(config).of_person() <= 4 * 150
    run(limited(files["limited"], 4 * 150))
    assert node.totals["read"] == 150, "also after a restart"
    with resumed(open_client(config, "attic", clock=clock)) as again:
        while again.step():
            pass
        assert (again.totals["read"], again.totals["refused"]) == (PLACES, 0)
    windows = [(model.windows, model.places) for model in spending(config).models]
    run(load_config(files["whole"]))
    assert windows == [
        (model.windows, model.places) for model in spending(load_config(files["whole"])).models
    ]


def test_a_client_that_refuses_reads_on_and_releases_nothing_more(tmp_path: Path) -> None:
    file = create(tmp_path, READINGS, clients=("attic",))
    config = limited(file, 4 * 150, at_epsilon_max="refuse")
    node = run(config)
    assert (node.totals["read"], node.totals["refused"]) == (PLACES, PLACES - 150)
    assert spending(config).of_person() <= 4 * 150
    before = published(config)
    run(config)
    assert published(config) == before


@pytest.mark.parametrize(
    ("readings", "epsilon_max", "read"), [(10, 40, PLACES), (10, 39, 9), (1, 3.9, 0)]
)
def test_the_limit_may_be_for_a_person_with_so_many_readings(
    tmp_path: Path, readings: int, epsilon_max: float, read: int
) -> None:
    file = create(tmp_path, READINGS, clients=("attic",))
    assert run(limited(file, epsilon_max, person_readings=readings)).totals["read"] == read


def test_noisy_rows_and_counts_are_limited_together(tmp_path: Path) -> None:
    file = create(tmp_path, READINGS, privacy=ROWS, models=FCAC, clients=("attic",))
    config = limited(file, 204 * 100)
    assert run(config).totals["read"] == 100
    found = spending(config)
    assert found.rows is not None
    assert found.rows.epsilon == 200
    assert found.of_person() <= 204 * 100


def test_models_that_share_counts_reach_the_limit_as_one_does(tmp_path: Path) -> None:
    models = (
        '[[models]]\nname = "noise"\nalgorithm = "cluster_tree_from_counts"\noptions = { noise ='
        " true }"
    )
    file = create(
        tmp_path, READINGS, models=models, first="cluster_tree_from_counts", clients=("attic",)
    )
    config = limited(file, 4 * 150)
    assert run(config).totals["read"] == 150
    assert spending(config).of_person() <= 4 * 150


def test_a_limit_without_a_guarantee_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    file = create(tmp_path, 10, mode="off", privacy="", clients=("attic",))
    with pytest.raises(SettingsError, match="leave it out"):
        run(limited(file, 10))


def test_noisy_rows_are_charged_before_an_update_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = create(tmp_path, READINGS, privacy=ROWS, models=FCAC, clients=("attic",))
    config = load_config(file)
    charged = []
    save = Checkpoint.save

    def noting_save(self: Checkpoint, state: Any, records: Any = (), *more: Any) -> int:
        rows = spending(config).rows
        if records:
            charged.append(
                (
                    0 if rows is None else rows.places,
                    sum(stop for _, stop in state["intake"]["positions"]),
                )
            )
        return save(self, state, records, *more)

    monkeypatch.setattr(Checkpoint, "save", noting_save)
    run(config)
    assert len(charged) > 3
    assert all(rows == read for rows, read in charged)


def test_a_lost_ledger_of_noisy_rows_stops_the_start(tmp_path: Path) -> None:
    file = create(tmp_path, READINGS, privacy=ROWS, models=FCAC, clients=("attic",))
    config = load_config(file)
    run(config)
    for path in (config.client.folder / "attic").glob("ledger.db*"):
        path.unlink()
    with pytest.raises(InvalidState, match="missing or older than the checkpoint"):
        run(config)
