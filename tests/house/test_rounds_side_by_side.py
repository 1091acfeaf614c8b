"""Several models in one federation learn the same rows: each gives what its functions give
offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.base import Params
from shoal.algorithms.rounds.policies import Policy
from shoal.client_nodes.bootstrap import open_client
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import InvalidState
from shoal.estimators.federated import (
    FederatedDBSCAN,
    FederatedFCM,
    FederatedGMM,
    FederatedKMeans,
    FederatedSpectral,
)
from shoal.estimators.rounds import KFED, MUFC
from shoal.estimators.tsk import FederatedTSK
from shoal.onebox.federation import OneBox
from shoal.protocol.messages import Update
from shoal.protocol.topics import LABELS
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.models.rounds import RoundsModel, init_hint_for, known_clusters
from shoal.server_node.models.streaming import StreamingModel
from shoal.simulation import rounds as federations
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.house.rounds_federation import KMEANS, create_rounds_federation
from tests.house.small_federation import CLIENTS, all_records, clock, contents, model_bytes

FCAC = """
[[models]]
name = "clusters"
algorithm = "fcac"
"""
AUTO = """
[[models]]
name = "as-many"
algorithm = "fcm"
source = "clusters"
[models.rounds]
quorum = 1
"""


FIRST: dict[str, Params] = {}
"""what each model began with"""


def model_of(algorithm: str) -> str:
    """A model of the algorithm's name, of three clusters where it asks for a number."""
    options = (
        "options = { clusters = 3 }\n" if rounds_algorithm(algorithm).takes("clusters") else ""
    )
    return (
        f'[[models]]\nname = "{algorithm}"\nalgorithm ='
        f' "{algorithm}"\n{options}[models.rounds]\nquorum = 1\n'
    )


ALL = FCAC + "".join(model_of(algorithm) for algorithm in rounds_names())


def read_all_readings(file: Path) -> None:
    """Run each client alone until it has read all its readings."""
    for client in CLIENTS:
        with resumed(open_client(load_config(file), client, clock=clock)) as node:
            while node.step():
                pass


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with every algorithm, after all its rounds."""
    folder = tmp_path_factory.mktemp("federation")
    file = create_rounds_federation(folder, ALL)
    read_all_readings(file)
    with OneBox(load_config(file), CLIENTS, clock) as box:
        while box.step():
            for name, model in box.server.models().items():
                if isinstance(model, RoundsModel) and model.params is not None:
                    FIRST.setdefault(name, model.params)
    return file


@pytest.mark.parametrize("algorithm", rounds_names())
def test_the_service_gives_the_numbers_of_the_same_functions_offline(
    algorithm: str, ended: Path
) -> None:
    config = load_config(ended)
    with OneBox(config, CLIENTS, clock) as box:
        windows = [box.clients[client].window for client in CLIENTS]
        served = box.server.models()[algorithm]
        assert isinstance(served, RoundsModel)
        assert served.params is not None
        assert served.sleeping
        params = served.params
    policy = Policy("decay" if rounds_algorithm(algorithm).additive else "cache")
    offline = federations.run_rounds(
        rounds_algorithm(algorithm),
        FIRST[algorithm],
        windows,
        rounds_max=100,
        tolerance=1e-3,
        policy=policy,
    )
    assert offline.shifts
    assert all(np.array_equal(offline.params[name], params[name]) for name in params)


ESTIMATORS = {
    "kmeans": FederatedKMeans(),
    "kmeans_local": FederatedKMeans(average="weighted"),
    "kfed": KFED(),
    "mufc": MUFC(),
    "dbscan": FederatedDBSCAN(),
    "spectral": FederatedSpectral(),
    "fcm": FederatedFCM(),
    "ffcm": FederatedFCM(average="avg1"),
    "gmm": FederatedGMM(),
    "gmm_local": FederatedGMM(average="unweighted"),
    "tsk": FederatedTSK(),
}


# The service starts from random centres as well, and does not warn.
@pytest.mark.filterwarnings("ignore:. of 3 centres have no rows:UserWarning")
@pytest.mark.parametrize("algorithm", rounds_names())
def test_the_estimator_gives_the_numbers_of_the_service(algorithm: str, ended: Path) -> None:
    """With the same initial parameters, bounds and policy."""
    with OneBox(load_config(ended), CLIENTS, clock) as box:
        windows = [box.clients[client].window for client in CLIENTS]
        served = box.server.models()[algorithm]
        assert isinstance(served, RoundsModel)
        assert served.params is not None
        params = served.params
    first = FIRST[algorithm]
    policy = Policy("decay" if rounds_algorithm(algorithm).additive else "cache")
    wanted = {
        "n_clusters": 3,
        "init": first["centre"],
        "bounds": (0, 1),
        "tol": 1e-3,
        "policy": policy,
    }
    wanted["random_state"] = int(first["seed"][0]) if "seed" in first else 0
    estimator = ESTIMATORS[algorithm]
    estimator.set_params(
        **{name: value for name, value in wanted.items() if name in estimator.get_params()}
    )
    if isinstance(estimator, FederatedTSK):
        found = estimator.fit([rows[:, :-1] for rows in windows], [rows[:, -1] for rows in windows])
    else:
        found = estimator.fit(windows)
    assert found.params_.keys() == params.keys()
    assert all(np.array_equal(found.params_[name], params[name]) for name in params)


def test_models_in_rounds_do_not_change_a_streaming_model(ended: Path, tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, FCAC)
    for client in CLIENTS:
        client_folder = tmp_path / "clients" / client
        for name in ("readings.db", "noise.key"):
            client_folder.joinpath(name).write_bytes(
                (ended.parent / "clients" / client / name).read_bytes()
            )
        client_folder.joinpath("noise.key").chmod(0o600)
        Checkpoint(client_folder / "checkpoint.db", f"client {client} of house").close()
    read_all_readings(file)
    with (
        OneBox(load_config(file), CLIENTS, clock) as alone,
        OneBox(load_config(ended), CLIENTS, clock) as together,
    ):
        alone.run_until_idle()
        assert model_bytes(alone.server) == model_bytes(together.server)


def test_a_client_labels_its_readings_by_every_model(ended: Path) -> None:
    config = load_config(ended)
    log = open_log(f"sqlite:{config.client.folder / 'attic' / 'readings.db'}")
    keys = latest(log, LABELS)
    log.close()
    assert {key.split(b"/")[0].decode() for key in keys} == {
        model.name for model in config.contract.models
    }


def test_a_model_with_as_many_clusters_as_found_starts_from_the_streaming_model(
    tmp_path: Path,
) -> None:
    file = create_rounds_federation(tmp_path, FCAC + AUTO)
    with OneBox(load_config(file), CLIENTS, clock) as box:
        models = box.server.models()
        assert isinstance(models["as-many"], RoundsModel)
        while models["as-many"].params is None:
            assert box.step()
        first = models["as-many"].snapshot
        assert first is not None
        assert np.array_equal(first.arrays["centre"], known_clusters(models["clusters"])[0])
        box.run_until_idle()
        assert models["as-many"].sleeping


def test_a_model_starts_from_what_the_streaming_model_found_in_the_same_step(
    tmp_path: Path,
) -> None:
    """Otherwise it would depend on how the log was divided into steps, and so on time."""
    for batch in (1, 1000):
        folder = tmp_path / f"{batch}"
        folder.mkdir()
        sourced = KMEANS.replace(
            'algorithm = "kmeans"', 'algorithm = "kmeans"\nsource = "clusters"'
        )
        file = create_rounds_federation(folder, sourced + FCAC)
        text = file.read_text(encoding="utf-8").replace(
            "batch_updates_max = 4", f"batch_updates_max = {batch}"
        )
        file.write_text(text, encoding="utf-8")
        read_all_readings(file)
        config = load_config(file)
        with resumed(open_server(config, clock=clock)) as server:
            heaps = server.models()["heaps"]
            clusters = server.models()["clusters"]
            assert isinstance(heaps, RoundsModel)
            assert isinstance(clusters, StreamingModel)
            while heaps.params is None:
                assert server.step()
            contract = resolve(config.contract)
            hint = init_hint_for(
                contract, contract.models[config.contract.models[0].name], clusters
            )
            assert hint is not None
            assert hint.points is not None
            assert np.array_equal(
                heaps.params["centre"],
                rounds_algorithm("kmeans").start({"clusters": 5}, config.contract.width, hint)[
                    "centre"
                ],
            )


def test_no_round_closes_before_all_answers_in_the_log_are_read(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, KMEANS.replace("quorum = 1", "quorum = 0.5"))
    file.write_text(
        file.read_text(encoding="utf-8").replace("batch_updates_max = 4", "batch_updates_max = 1"),
        "utf-8",
    )
    read_all_readings(file)
    with OneBox(load_config(file), CLIENTS, clock) as box:
        answers = set()
        while box.step():
            seen = box.server.models()["heaps"].status().rounds
            assert seen is not None
            answers.add(seen.counted)
        assert answers == {0, 3}
        learned = box.server.metrics.registry.get_sample_value(
            "shoal_readings_total", {"result": "learned"}
        )
        assert learned == 0, (
            "answers are about the same rows again and again, so they count no reading"
        )


def test_a_server_that_lost_its_checkpoint_continues_from_its_snapshots(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, KMEANS)
    config = load_config(file)
    read_all_readings(file)
    with OneBox(config, CLIENTS, clock) as box:
        for _ in range(4):
            box.step()
        published = box.server.models()["heaps"].snapshot
        assert published is not None
        assert published.round_request is not None
    for path in config.server.folder.iterdir():
        path.unlink()
    with pytest.raises(InvalidState, match="--rebuild"), resumed(open_server(config, clock=clock)):
        pass
    with resumed(open_server(config, rebuild=True, clock=clock)) as server:
        server.step()
    with OneBox(config, CLIENTS, clock) as box:
        box.run_until_idle()
        model = box.server.models()["heaps"]
        assert isinstance(model, RoundsModel)
        assert model.sleeping
        assert model.snapshot is not None
        assert model.snapshot.version > published.version
    answers = [
        Update.decode(record.value, record.headers)
        for record in all_records(config.log.address, config.contract.updates_topic)
    ]
    # A snapshot repeated after a restart has the same bytes.
    distinct = {contents(answer) for answer in answers}
    assert len(distinct) == len({(answer.client, answer.sequence) for answer in answers})
    assert len(distinct) == len({(answer.client, answer.round) for answer in answers})
    assert not all_records(config.log.address, config.contract.rejected_topic)


def test_the_status_counts_each_client_once(ended: Path) -> None:
    with resumed(open_server(load_config(ended), clock=clock)) as server:
        picture = server.status()
    assert [client.client for client in picture.clients] == sorted(CLIENTS)
    assert all(client.readings == 400 for client in picture.clients)
    shown = {name: model.rounds for name, model in picture.models.items()}
    assert shown.pop("clusters") is None
    assert all(
        seen is not None and seen.phase == "sleeping" and seen.counted == 3
        for seen in shown.values()
    )
