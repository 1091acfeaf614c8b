"""Federations whose models learn rows made from private counts on a grid: what is found, charged,
and kept by a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.privacy.ledger import LEDGER, Ledger, read_spending
from shoal.protocol.codec import pack
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports.sqlite.log import SqliteLog
from tests.house.counting_federation import CLIENTS, create, run
from tests.house.power_cut import THINNED, cut_at_every_call
from tests.house.small_federation import clock, contents, give_noise_keys, updates_by_client

WITH_NOISE = (
    '[[models]]\nname = "with_noise"\nalgorithm = "cluster_tree_from_counts"\noptions = { noise ='
    " true }\n"
)
CAREFUL = (
    '[[models]]\nname = "careful"\nalgorithm = "cluster_tree_from_counts"\ncounts_epsilon = 2\n'
    '[[models]]\nname = "tree"\nalgorithm = "density_tree"\n'
)
STATES = (
    '[[models]]\nname = "states"\nalgorithm = "states_from_counts"\noptions = { block_readings ='
    " 4 }\n"
)
MIDDLES = np.array([[15, 80], [30, 50], [45, 20]]) / [60, 100]


# Private counts go over Kafka in test_contract_changes.py, too.
@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.integration)])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def test_both_models_find_three_clusters_in_one_stream_of_counts_at_an_epsilon_of_four(
    address: str, tmp_path: Path
) -> None:
    file = create(
        tmp_path,
        3000,
        window=200,
        first="cluster_tree_from_counts",
        models=WITH_NOISE,
        address=address,
    )
    run(file)
    config = load_config(file)
    assert config.resolved.total_epsilon == 4, "they share the counts and their price"
    with resumed(open_server(config, clock=clock)) as server:
        for model in server.models().values():
            assert model.view is not None
            heavy = model.view.centres[model.view.centre_mass > 0.05 * model.view.centre_mass.sum()]
            assert np.abs(heavy[:, None] - MIDDLES).sum(axis=2).min(axis=0).max() < 0.05, model.name
        assert len(server.models()["clusters"].view.centres) == 3


def test_k_means_on_rows_drawn_from_counts_finds_as_many_clusters_as_it_is_told(
    tmp_path: Path,
) -> None:
    models = (
        '[[models]]\nname = "told"\nalgorithm = "kmeans_from_counts"\noptions = { clusters = 3,'
        " grow_readings = 500 }\n"
    )
    file = create(tmp_path, 3000, window=200, models=models)
    run(file)
    config = load_config(file)
    assert config.resolved.total_epsilon == 8, "it has counts of its own"
    with resumed(open_server(config, clock=clock)) as server:
        view = server.models()["told"].view
        assert view is not None
        assert len(view.centres) == 3
        assert np.abs(view.centres[:, None] - MIDDLES).sum(axis=2).min(axis=0).max() < 0.05


def test_models_that_share_counts_publish_the_same_ones_and_are_charged_once(
    tmp_path: Path,
) -> None:
    file = create(
        tmp_path, 600, first="cluster_tree_from_counts", models=WITH_NOISE + CAREFUL + STATES
    )
    run(file)
    config = load_config(file)
    assert config.resolved.total_epsilon == 4 + 2 + 4 + 4
    spent, limit = config.resolved.epsilon_spent
    assert 13.9 < spent <= limit == 14
    spending = read_spending(config.client.folder / "attic" / LEDGER)["client attic of house"]
    assert [(model.model, model.epsilon) for model in spending.models] == [
        ("grid:2", 2),
        ("grid:4", 4),
        ("states", 4),
        ("tree", 4),
    ]
    counts: dict[str, list[bytes]] = {}
    for again in updates_by_client(config)["attic"].values():
        for update in again:
            counts.setdefault(update.model, []).append(update.arrays["count"].tobytes())
    assert counts["clusters"] == counts["with_noise"] != counts["careful"]
    with resumed(open_server(config, clock=clock)) as server:
        shown = server.models()["states"].view
        assert shown is not None
        assert shown.states is not None
        assert shown.states.provisional
        assert len(shown.centres) <= 1, (
            "in one draw of ten, so few readings are seen in the noise, as one state"
        )


def test_without_noise_every_reading_becomes_a_row(tmp_path: Path) -> None:
    file = create(tmp_path, 1000, mode="off", privacy="", first="cluster_tree_from_counts")
    run(file)
    with resumed(open_server(load_config(file), clock=clock)) as server:
        view = server.models()["clusters"].view
        assert len(view.centres) == 3
        learnt = 2 * 1000 // 50 * 50
        assert 0.7 * learnt < np.sum(view.mass) <= learnt


def test_a_client_of_one_that_has_four_features_does_not_start(tmp_path: Path) -> None:
    file = create(tmp_path, 0, first="cluster_tree_from_counts", clients=())
    more = "".join(f'[[features]]\nname = "f{n}"\nlow = 0\nhigh = 1\n' for n in range(2))
    file.write_text(file.read_text().replace("[privacy]", f"{more}[privacy]"))
    with pytest.raises(Exception, match="at most 3 features, and there are 4; take density_tree"):
        resumed(open_client(load_config(file), "attic", clock=clock)).__enter__()


def run_clients_then_server(file: Path) -> None:
    """The clients one after the other, so that the order of the log is known, then the server."""
    for client in CLIENTS:
        with resumed(open_client(load_config(file), client, clock=clock)) as node:
            while node.step():
                pass
    with resumed(open_server(load_config(file), clock=clock)) as server:
        while server.step():
            pass


def outcome(file: Path) -> dict[str, Any]:
    """Every update, and what the server has learnt, to the byte."""
    config = load_config(file)
    found: dict[str, Any] = {}
    for client, updates in updates_by_client(config).items():
        for again in updates.values():
            by_model = {
                update.model: {
                    contents(cluster) for cluster in again if cluster.model == update.model
                }
                for update in again
            }
            assert all(len(answers) == 1 for answers in by_model.values()), (
                "two answers for one window"
            )
        found[client] = {
            number: sorted(set(map(contents, again))) for number, again in updates.items()
        }
    with resumed(open_server(config, clock=clock)) as server:
        for model in server.models().values():
            found[model.name] = pack(model.state()["half"])
    return found


@THINNED
def test_a_restart_at_any_instant_gives_the_same_bytes(memory_folder: Path, every: int) -> None:
    folder = memory_folder / "run"
    folder.mkdir()
    file = create(folder, 300, first="cluster_tree_from_counts", models=WITH_NOISE + STATES)
    give_noise_keys(folder, CLIENTS)
    calls = ((Ledger, "charge"), (Checkpoint, "save"), (SqliteLog, "publish"))
    cut_at_every_call(calls, file, memory_folder, run_clients_then_server, outcome, 2 * every)
