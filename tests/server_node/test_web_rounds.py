"""Models in rounds on the page: how far they are, and their centres as what there is to draw."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from server_node.status import HistoryPoint, RoundStatus, ServerStatus, StatusBoard
from server_node.web import create_app, page_server, predict
from shoal.config.contract import Contract, contract_of
from shoal.protocol.messages import Snapshot
from tests.server_node.web_asking import Asking
from tests.server_node.web_browser import browsing
from tests.server_node.web_pictures import NOW, a_contract, a_picture, a_snapshot

CENTRES = np.array([[0.25, 0.5], [0.75, 0.1], [0.5, 0.9]])
MASS = np.array([120.0, 60.0, 0.0])


def a_contract_in_rounds() -> Contract:
    tables = a_contract(2).model_dump(mode="json")
    models = [{"name": "heaps", "algorithm": "kmeans", "options": {"clusters": 3}}]
    wanted = {"federation": {"name": "greenhouse"}, "features": tables["features"], "models": models}
    return contract_of(wanted | {"privacy": {"mode": "formal", "epsilon_per_reading": 4.0}})


CONTRACT = a_contract_in_rounds()


def a_round(arrays: dict[str, NDArray[Any]]) -> Snapshot:
    ours = {"centre": CENTRES, "centre_weight": MASS, "cluster": np.empty(0, dtype=np.int64), "edge": np.empty((0, 2))}
    seed = a_snapshot(a_contract(2), {**ours, "node_id": np.empty(0), "weight": np.empty((0, 2))})
    call = {"until": NOW + 5, "fraction": 1.0, "rows_min": 20}
    sizes: dict[str, Any] = {"clusters": 2, "nodes": 3, "round": 7, "call": call}
    return replace(seed, contract=CONTRACT.digest, model="heaps", algorithm="kmeans", arrays=arrays, **sizes)


def a_picture_of(seen: RoundStatus) -> ServerStatus:
    picture = a_picture(CONTRACT, [a_round({"centre": CENTRES, "weight": MASS})])
    return replace(picture, models={"heaps": replace(picture.models["heaps"], rounds=seen)})


CALLING = a_picture_of(RoundStatus(7, "collecting", counted=4, received=1, shift=0.0123456, expected=5))

UNTOUCHED = replace(
    CALLING,
    models={
        "heaps": replace(
            a_picture_of(RoundStatus(1, "collecting", 0, 0, math.inf, expected=0)).models["heaps"],
            waiting_for="Clients have been called; their first answers have not come yet.",
        )
    },
)
"""the call is out with the centres it starts from, and nobody has answered"""


def drawn(picture: ServerStatus) -> Any:
    told = Asking(create_app(StatusBoard(picture), CollectorRegistry(), predict)).get("/picture")
    return json.loads(told.content)["models"][0]


def test_a_model_that_no_round_has_moved_has_no_shift_to_show() -> None:
    assert drawn(a_picture_of(RoundStatus(1, "collecting", 0, 0, math.inf)))["rounds"]["shift"] is None


def test_the_round_its_answers_its_shift_and_its_state_are_told() -> None:
    wanted = {"round": 7, "phase": "collecting", "counted": 4, "received": 1, "shift": 0.0123, "expected": 5}
    assert drawn(CALLING)["rounds"] == wanted


def test_where_a_model_starts_anew_its_history_does_not_fall_to_nothing() -> None:
    history = [HistoryPoint(NOW - 9 + i, clusters, 3, 0) for i, clusters in enumerate((0, 3, 0, 3, 2))]
    heaps = replace(CALLING.models["heaps"], history=history)
    assert drawn(replace(CALLING, models={"heaps": heaps}))["history"] == [[NOW - 8, 3], [NOW - 5, 2]]


def test_centres_are_drawn_where_they_are_and_as_large_as_what_stands_behind_them() -> None:
    model = drawn(CALLING)
    assert model["drawn"]["nodes"]["count"] == MASS.tolist()
    assert model["drawn"]["nodes"]["cluster"] == [0, 1, 2]
    assert np.allclose(model["drawn"]["nodes"]["values"], [[0.0, 50.0], [40.0, 10.0], [20.0, 90.0]], atol=0.1)
    assert [cluster["weight"] for cluster in model["drawn"]["clusters"]] == MASS.tolist()


def test_readings_are_predicted_by_a_model_in_rounds_too() -> None:
    client = Asking(create_app(StatusBoard(CALLING), CollectorRegistry(), predict))
    answer = client.post("/predict", json=[[0.0, 50.0], [39.0, 12.0]]).json()
    assert answer == {"clusters": [0, 1], "identities": [0, 1], "version": 1}


def test_the_page_shows_the_rounds(chromium: str, tmp_path: Path) -> None:
    board = StatusBoard(UNTOUCHED)
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        with browsing(chromium, tmp_path) as browser:
            tab = browser.tab()
            tab.resize(1280, 900)
            tab.open(f"http://127.0.0.1:{port}/")
            tab.shows("their first answers have not come yet")
            tab.shows("A first round of answers")
            assert not tab.value_of("document.getElementById('map-help').checkVisibility()")
            board.set(CALLING)
            tab.shows("Each mark is the centre of a cluster")
            said = "document.getElementById('counters').textContent"
            tab.until(f"{said}.includes('Shift0.0123in the newest round')")
            for words in ("Round7collecting answers", "Answers1of 5 asked", "Readings48,000in newest answers"):
                assert words in tab.value_of(said)
            board.set(a_picture_of(RoundStatus(7, "sleeping", counted=4, received=0, shift=0.0)))
            tab.until(f"{said}.includes('Round7sleeping')")
            assert "Answers4in the newest round" in tab.value_of(said)
            cells = (
                "[...document.querySelectorAll('#clusters tbody tr')].map(row => row.innerText.split(/\\s+/).join(' '))"
            )
            assert tab.value_of(cells) == ["0 67 % 0.00 50.0", "1 33 % 40.00 10.0", "– 0 % 20.00 90.0"]
            tab.shows("its share is of the rows behind the newest answers")
            tab.value_of("document.getElementById('map').focus()")
            tab.press("ArrowRight")
            tab.until("document.getElementById('map-said').textContent.startsWith('Centre of cluster 0 · weight 120')")
            assert tab.complaints() == []
    finally:
        web.stop()
