"""The contract of a running federation changes: models come and go, bounds move, a sensor is
added."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from shoal.cli.main import shoal
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import ContractDiffers, LogUnavailable, SettingsError
from shoal.privacy.ledger import LEDGER, read_spending
from shoal.protocol.codec import pack
from shoal.protocol.history import DAY_S, pairs
from shoal.protocol.messages import ClusterName, Update
from shoal.runtime.checkpoint import Outbox
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.node import ServerNode
from shoal.server_node.report.build import Reports
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.house.small_federation import (
    all_records,
    clock,
    weather,
    write_federation,
    write_readings,
)

CLIENTS = ("attic", "cellar")
FEATURES = '[[features]]\nname = "warm"\nunit = "°C"\nlow = -10\nhigh = 50\n'
HEAPS = (
    '[[models]]\nname = "heaps"\nalgorithm = "density_tree"\noptions = { grow_readings = 200 }\n'
)
TREES = '[[models]]\nname = "trees"\nalgorithm = "cluster_tree"\n'
MEANS = '[[models]]\nname = "means"\nalgorithm = "kmeans"\noptions = { clusters = 3 }\n'
SENSOR = '[[features]]\nname = "light"\nlow = 0\nhigh = 1000\n'
READINGS = 900
PLACES = 2 * (READINGS + READINGS // 60)


class Federation:
    """A federation in a folder whose file is changed."""

    def __init__(self, folder: Path, models: str, address: str = "sqlite:federation.db") -> None:
        self.file = write_federation(folder, pool_clients=2, address=address)
        self.change(
            "epsilon_per_reading = 200",
            "epsilon_per_reading = 400\ncounts_epsilon = 40\nwindow_readings = 50",
        )
        self.change("[log]", f"{models}[log]")
        # Not FCAC: how many clusters it finds depends on the noise, which differs from run to run.
        self.change('algorithm = "fcac"', 'algorithm = "cluster_tree"')
        self._seed = 0

    @property
    def config(self) -> Config:
        return load_config(self.file)

    def change(self, before: str, after: str) -> None:
        text = self.file.read_text(encoding="utf-8")
        assert before in text
        self.file.write_text(text.replace(before, after, 1), encoding="utf-8")

    def measure(
        self, more: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda rows: rows
    ) -> None:
        """Further readings for each client."""
        for client in CLIENTS:
            self._seed += 1
            rows = weather(2 * READINGS, self._seed)[READINGS:]  # all three clusters from the start
            write_readings(self.config, client, more(rows), started_at=1e9 + self._seed * READINGS)

    def run(
        self, accept: bool = False, rebuild: bool = False, clients: tuple[str, ...] = CLIENTS
    ) -> dict[str, Any]:
        """Run server and clients until nothing is left to do; what the server has in the end."""
        with ExitStack() as stack:
            server = stack.enter_context(
                resumed(
                    open_server(self.config, rebuild=rebuild, clock=clock, accept_changes=accept)
                )
            )
            nodes = [
                stack.enter_context(resumed(open_client(self.config, client, clock=clock)))
                for client in clients
            ]
            while any([server.step(), *(node.step() for node in nodes)]):
                pass
            return known(server)

    def rename(self, model: str, identity: int, name: str) -> None:
        contract = self.config.contract
        request = ClusterName(
            contract.federation, contract.digest, model, identity, name, made_at=time.time()
        )
        with closing(open_log(self.config.log)) as log:
            log.publish(
                contract.updates_topic,
                request.encode(),
                contract.update_key(model),
                request.headers(),
            )
            log.flush()

    def spent(self, client: str) -> tuple[int, dict[str, int]]:
        """Places of noisy rows, and of windows by stream, that the ledger has of a client."""
        (spending,) = read_spending(self.config.client.folder / client / LEDGER).values()
        rows = 0 if spending.rows is None else spending.rows.places
        return rows, {model.model: model.windows for model in spending.models}

    def updates(self) -> list[Update]:
        records = all_records(self.config.log.address, self.config.contract.updates_topic)
        return [
            Update.decode(record.value, record.headers)
            for record in records
            if ("type", b"update") in record.headers
        ]

    def readings_in_history(self, model: str) -> int:
        reader = HistoryReader(self.config.server.folder / HISTORY_FILE)
        bins = reader.bins(model, DAY_S, 0, 2e9, 1000)
        return sum(readings for history_bin in bins for _, readings in pairs(history_bin.clusters))


def known(server: ServerNode) -> dict[str, Any]:
    """model -> its known clusters: identity -> name, and the middle of its nodes in the units of
    the contract."""
    found: dict[str, Any] = {}
    bounds = server.status().contract.bounds
    for name, model in server.models().items():
        view = model.view
        lineage = model.lineage
        assert view is not None
        found[name] = {
            identity: (
                lineage.clusters[identity].name,
                *bounds.from_unit(view.centres[number : number + 1])[0],
            )
            for number, identity in lineage.of_number.items()
            if view.centre_mass[number] > 0.1 * view.centre_mass.sum()
        }
    return found


def halves(server: ServerNode) -> dict[str, str]:
    """The digest of what each model has learnt."""
    return {name: digest_of(model.state().get("half")) for name, model in server.models().items()}


def digest_of(state: Any) -> str:
    return hashlib.sha256(pack(state)).hexdigest()


@pytest.fixture
def federation(memory_folder: Path) -> Federation:
    found = Federation(memory_folder, HEAPS)
    found.measure()
    return found


def test_models_come_and_go_and_the_others_are_untouched_to_the_bit(federation: Federation) -> None:
    federation.run()
    with resumed(open_server(federation.config, clock=clock)) as server:
        before = digest_of(server.models()["clusters"].state())
    federation.change(HEAPS, TREES)
    with resumed(open_server(federation.config, clock=clock, accept_changes=True)) as server:
        assert digest_of(server.models()["clusters"].state()) == before
        assert list(server.models()) == ["clusters", "trees"]
    with closing(open_log(federation.config.log)) as log:
        contract = federation.config.contract
        assert b"heaps" not in latest(log, contract.snapshots_topic)
        assert not [key for key in latest(log, contract.history_topic) if key.startswith(b"heaps/")]
    federation.measure()
    found = federation.run()
    assert len(found["trees"]) == 3
    assert not latest_rejected(federation)
    for client in CLIENTS:
        rows, windows = federation.spent(client)
        assert PLACES - 50 < rows <= PLACES, "each reading is charged once, when it is published"
        assert set(windows) == {"heaps"}, "nothing more is counted"
    numbers = {
        (update.model, update.client, update.sequence, pack(update.arrays))
        for update in federation.updates()
    }
    assert len(numbers) == len({key[:3] for key in numbers}), (
        "nothing is published twice with other noise"
    )
    rebuilt_is_the_same(federation)


def names(server: ServerNode) -> dict[str, dict[int, str]]:
    """model -> identity -> name of its known clusters."""
    return {
        name: {cluster.identity: cluster.name for cluster in model.lineage.known}
        for name, model in server.models().items()
    }


def latest_rejected(federation: Federation) -> dict[bytes, Any]:
    with closing(open_log(federation.config.log)) as log:
        return latest(log, federation.config.contract.rejected_topic)


def rebuilt_is_the_same(federation: Federation) -> None:
    """A server that has lost its checkpoint gets the same models, identities and names from the
    log."""
    with resumed(open_server(federation.config, clock=clock)) as server:
        models = halves(server)
        shown = names(server)
    shutil.rmtree(federation.config.server.folder)
    with resumed(open_server(federation.config, rebuild=True, clock=clock)) as server:
        while server.step():
            pass
        assert halves(server) == models
        assert names(server) == shown
    assert not latest_rejected(federation)


def nearest_before(
    found: dict[int, tuple[Any, ...]], before: dict[int, tuple[Any, ...]]
) -> Iterator[tuple[int, int]]:
    """(identity, identity of the cluster that was nearest before the change), by the features of
    before."""
    for identity, (_, *place) in found.items():
        distance = {
            entry: float(np.linalg.norm(np.array(place[: len(was)]) - was))
            for entry, (_, *was) in before.items()
        }
        yield identity, min(distance, key=distance.__getitem__)


def the_page_goes_on(federation: Federation, before: dict[str, Any]) -> None:
    """Before a client has sent anything under the new contract, all that was known is shown."""
    config = federation.config
    with resumed(open_server(config, clock=clock, accept_changes=True)) as server:
        while server.step():
            pass
        reports = Reports(HistoryReader(config.server.folder / HISTORY_FILE))
        report = reports.federation(server.status())
    assert report.clients_total == len(CLIENTS)
    for model in report.models:
        assert model.waiting_for == ""
        assert "learns again from the beginning" in model.state
        clustering = model.clustering
        assert clustering is not None
        names = {cluster.identity: cluster.name for cluster in clustering.clusters}
        expected = {identity: f"{model.name} {identity}" for identity in before[model.name]}
        assert expected.items() <= names.items()
        assert model.clusters_total == len(names)
        assert clustering.events
        shares = [cluster.share or 0.0 for cluster in clustering.clusters]
        assert sum(shares) > 0.5
        assert clustering.usual is not None


@pytest.mark.parametrize("change", ["bounds", "sensor"])
def test_clusters_keep_identity_name_and_history_by_where_they_lie(
    memory_folder: Path, change: str
) -> None:
    federation = Federation(memory_folder, HEAPS + TREES)
    federation.measure()
    before = federation.run()
    for model, clusters in before.items():
        assert len(clusters) == 3, model
        for identity in clusters:
            federation.rename(model, identity, f"{model} {identity}")
    federation.run()
    counted = federation.readings_in_history("clusters")
    with resumed(open_server(federation.config, clock=clock)) as server:
        total = {
            name: model.snapshot.readings
            for name, model in server.models().items()
            if model.snapshot
        }
    if change == "bounds":
        federation.change("high = 50", "high = 80")
        the_page_goes_on(federation, before)
        federation.measure()
    else:
        federation.change("[privacy]", f"{SENSOR}[privacy]")
        federation.measure(lambda rows: np.c_[rows, 300.0 + rows[:, :1]])
    after = federation.run(accept=True)
    for model, clusters in after.items():
        nearest = dict(nearest_before(clusters, before[model]))
        assert {own: nearest.get(own) for own in before[model]} == {
            own: own for own in before[model]
        }, (model, nearest)
        assert {own: clusters[own][0] for own in before[model]} == {
            own: f"{model} {own}" for own in before[model]
        }
    assert federation.readings_in_history("clusters") > counted > 0
    with resumed(open_server(federation.config, clock=clock)) as server:
        for name, model in server.models().items():
            assert model.snapshot is not None
            assert model.snapshot.readings > total[name], (
                "clients and their readings are counted on"
            )
    for client in CLIENTS:
        rows, windows = federation.spent(client)
        assert PLACES - 50 < rows <= PLACES
        assert windows["heaps"] == len(
            {
                update.sequence
                for update in federation.updates()
                if (update.client, update.model) == (client, "heaps")
            }
        )
    rebuilt_is_the_same(federation)


def test_what_cannot_be_kept_is_refused_with_words(federation: Federation) -> None:
    federation.run()
    file = federation.file.read_text(encoding="utf-8")
    for before, after, words in (
        (
            "counts_epsilon = 40",
            "counts_epsilon = 20",
            r"\[privacy\]: what has been published was promised",
        ),
        (
            'algorithm = "density_tree"\noptions = { grow_readings = 200 }',
            'algorithm = "fcac"',
            "another name",
        ),
        ('name = "warm"', 'name = "hot"', None),
        (
            "high = 50",
            "high = 80",
            r"feature warm: \S+ to 80, \S+ to 50 before\n[^$]* with --accept-changes",
        ),
    ):
        federation.change(before, after)
        if words is not None:
            with (
                pytest.raises(SettingsError, match=words),
                resumed(open_server(federation.config, clock=clock)),
            ):
                pass
        federation.file.write_text(file, encoding="utf-8")
    # There and back: the second time the same contract needs another number.
    federation.change(HEAPS, "")
    federation.run(accept=True)
    federation.file.write_text(file, encoding="utf-8")
    with (
        pytest.raises(SettingsError, match="count up `revision`"),
        resumed(open_server(federation.config, accept_changes=True)),
    ):
        pass
    federation.change('name = "house"', 'name = "house"\nrevision = 2')
    said = CliRunner().invoke(shoal, ["check", "--changes", str(federation.file)])
    assert "model clusters: as before" in said.output
    assert "model heaps: new" in said.output
    federation.measure()
    assert len(federation.run(accept=True)["heaps"]) == 3
    rebuilt_is_the_same(federation)


def test_a_client_that_lags_ends_with_words_and_goes_on_with_the_new_file(
    federation: Federation,
) -> None:
    federation.run()
    old = federation.config
    federation.change(HEAPS, TREES)
    federation.measure()
    changed = federation.config
    with (
        resumed(open_client(old, "attic", clock=clock)) as lagging,
        resumed(open_server(changed, clock=clock, accept_changes=True)),
        pytest.raises(ContractDiffers, match=r"models\.trees"),
    ):
        _ = [lagging.step() for _ in range(100)]
    with pytest.raises(ContractDiffers), resumed(open_client(old, "cellar", clock=clock)):
        pass
    federation.run()
    assert not latest_rejected(federation), (
        "what it published under the earlier contract counts, or is passed over"
    )
    with resumed(open_server(federation.config, clock=clock)) as server:
        (attic,) = (client for client in server.status().clients if client.client == "attic")
        assert attic.readings > 0
    rebuilt_is_the_same(federation)


def test_a_server_that_is_killed_in_the_middle_goes_on(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = federation.run()
    file = federation.file.read_text(encoding="utf-8")
    federation.change("high = 50", "high = 80")
    for method in ("store", "publish_pending"):
        with monkeypatch.context() as patched:
            patched.setattr(Outbox, method, killed)
            with (
                pytest.raises(LogUnavailable),
                resumed(open_server(federation.config, clock=clock, accept_changes=True)),
            ):
                pass
        if method == "store":  # nothing has happened: the old file is still that of the federation
            changed = federation.file.read_text(encoding="utf-8")
            federation.file.write_text(file, encoding="utf-8")
            assert federation.run() == found
            federation.file.write_text(changed, encoding="utf-8")
    federation.measure()
    after = federation.run()  # it was accepted before it was killed
    assert after["clusters"].keys() >= found["clusters"].keys()
    rebuilt_is_the_same(federation)


def killed(*_: object) -> None:
    raise LogUnavailable("killed")


@pytest.mark.integration
@pytest.mark.external
def test_on_kafka_a_model_comes_and_bounds_move(memory_folder: Path, kafka_bootstrap: str) -> None:
    federation = Federation(memory_folder, HEAPS, f"kafka://{kafka_bootstrap}")
    federation.measure()
    before = federation.run()
    federation.change("high = 50", "high = 80")
    federation.change("[log]", f"{TREES}[log]")
    federation.measure()
    after = federation.run(accept=True)
    for model, clusters in before.items():
        assert (
            dict(nearest_before(after[model], clusters)).items()
            >= {cluster: cluster for cluster in clusters}.items()
        ), model
    assert len(after["trees"]) == 3
    rebuilt_is_the_same(federation)
