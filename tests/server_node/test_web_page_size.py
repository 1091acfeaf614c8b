"""How much the page reads: at first, and at each change, with many clusters, clients and nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from shoal.algorithms.registry import load_algorithm
from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, FINE_S, HistoryBin, HistoryNames
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.web import create_app
from shoal.server_node.outputs.web.page import FILES
from shoal.server_node.outputs.web.page_renderer import PageRenderer
from shoal.server_node.report.build import Reports
from shoal.server_node.report.lineage.step import advance
from shoal.server_node.report.status import ClientStatus, ServerStatus, StatusBoard
from tests.server_node.test_web_endpoints import predict
from tests.server_node.web_client import WebClient
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(8)
CLUSTERS = 60
CLIENTS = 200
NODES = 1000
FIRST_BYTES_MAX = 60_000
CHANGE_BYTES_MAX = 20_000
MOVED_SHARE = 0.02
"""of all readings, between two snapshots: the more there are, the longer is the change"""
LATER = {
    f"/{name}.js"
    for name in (
        "overview",
        "unusual",
        "histograms",
        "map",
        "details",
        "clusters",
        "clients",
        "states",
    )
}
"""scripts that the page imports when it needs them, after the first picture"""
NEWEST = int(NOW) // COARSE_S * COARSE_S


def history(folder: Path, more: int = 0, newest: int = NEWEST) -> HistoryReader:
    """A week in which every client fed three clusters; `more` readings of each came since the last
    call."""
    bins: list[HistoryBin | HistoryNames] = []
    for width, number in ((COARSE_S, 7 * 48), (FINE_S, 72)):
        for back in range(number):
            rng = np.random.default_rng([width, back])
            shares = rng.integers(200, 900, CLUSTERS) + (
                more * rng.integers(1, 9, CLUSTERS) if not back else 0
            )
            clusters = [number for pair in enumerate(shares.tolist()) for number in pair]
            sent = [
                number
                for i in range(CLIENTS)
                for number in (i, 117 + (3 * more if not back else 0))
            ]
            cells = [
                number
                for client in range(CLIENTS)
                for k in range(3)
                for number in (
                    client,
                    (7 * client + k) % CLUSTERS,
                    30 + 9 * k + (more if not back else 0),
                )
            ]
            start = newest - back * width
            bins.append(
                HistoryBin.of(
                    CONTRACT.federation,
                    CONTRACT.digest,
                    "fcac",
                    width,
                    start,
                    1 + more,
                    clusters,
                    sent,
                    cells if width == FINE_S else [],
                )
            )
    names = [[identity, "", f"label {identity}"] for identity in range(CLUSTERS)]
    clients = [f"client-{i:03}" for i in range(CLIENTS)]
    bins.append(HistoryNames(CONTRACT.federation, CONTRACT.digest, "fcac", clients, names))
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    store.apply([HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins])
    store.close()
    return HistoryReader(folder / HISTORY_FILE)


def clients_seen(updates: int) -> tuple[ClientStatus, ...]:
    return tuple(
        ClientStatus(
            f"client-{i:03}",
            NOW + 2 * updates - i / 50,
            400 + updates,
            160_000 + 400 * updates + i,
            90.0 + i,
        )
        for i in range(CLIENTS)
    )


def moved(arrays: dict[str, Any], share: float, seed: int) -> dict[str, Any]:
    """The nodes after as many more readings as `share` of those so far: every one has moved, and
    won more."""
    rng = np.random.default_rng(seed)
    step = rng.normal(0, 0.1 * share, arrays["weight"].shape)
    gain = rng.poisson(share * arrays["count"])
    centre = arrays["centre"] + rng.normal(0, 0.02 * share, arrays["centre"].shape)
    return arrays | {
        "weight": arrays["weight"] + step,
        "count": arrays["count"] + gain,
        "centre": centre,
    }


def later(status: ServerStatus, arrays: dict[str, Any], updates: int) -> ServerStatus:
    """`status` after a snapshot of `arrays`."""
    snapshot = a_snapshot(CONTRACT, arrays, version=1 + updates)
    view = load_algorithm("fcac").view(arrays)
    lineage, _ = advance(
        status.models["fcac"].lineage, view, 500_000 + snapshot.readings, NOW + 2 * updates
    )
    model = replace(status.models["fcac"], snapshot=snapshot, lineage=lineage)
    return replace(
        status, models={"fcac": model}, clients=clients_seen(updates), now=NOW + 2 * updates
    )


@pytest.fixture
def crowded() -> ServerStatus:
    return a_status(
        CONTRACT, [a_snapshot(CONTRACT, some_nodes(8, CLUSTERS, NODES))], clients=clients_seen(0)
    )


def test_the_first_picture_is_at_most_60_kb_compressed(
    crowded: ServerStatus, tmp_path: Path
) -> None:
    client = WebClient(
        create_app(StatusBoard(crowded), CollectorRegistry(), predict, history=history(tmp_path))
    )
    sizes = {}
    past = f"/v1/history?model=fcac&of=clusters&step=7200&from={NEWEST - 7 * 86_400}"
    for path in (*(set(FILES) - LATER), "/v1/status?model=", past):
        answer = client.get(path, headers={"accept-encoding": "gzip"})
        assert (answer.status_code, answer.headers.get("content-encoding")) in (
            (200, "gzip"),
            (200, None),
        )
        sizes[path] = answer.num_bytes_downloaded
    assert sum(sizes.values()) <= FIRST_BYTES_MAX


@pytest.mark.parametrize("newest", [NEWEST, NEWEST + COARSE_S])
def test_a_change_is_at_most_20_kb(crowded: ServerStatus, newest: int, tmp_path: Path) -> None:
    renderer = PageRenderer(reports=Reports(history(tmp_path)))
    before = renderer.render(crowded, "fcac")
    arrays = moved(some_nodes(8, CLUSTERS, NODES), MOVED_SHARE, 3)
    history(tmp_path, 20, newest)
    after = renderer.render(later(crowded, arrays, 1), "fcac")
    changed = json.loads(renderer.change(before, after))
    assert len(changed["models"]["0"]["clustering"]["clusters"]) == CLUSTERS
    assert len(renderer.change(before, after)) <= CHANGE_BYTES_MAX
