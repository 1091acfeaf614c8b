"""Models in rounds on the page: the state of their rounds, and their centres on the map."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from shoal.config.contract import Contract, parse_contract
from shoal.protocol.messages import Snapshot
from shoal.server_node.models.round_state import Phase
from shoal.server_node.outputs.web import create_app, page_server, predict
from shoal.server_node.report.status import HistoryPoint, RoundStatus, ServerStatus, StatusBoard
from tests.server_node.web_browser import Browser
from tests.server_node.web_client import WebClient
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status

CENTRES = np.array([[0.25, 0.5], [0.75, 0.1], [0.5, 0.9]])
MASS = np.array([120.0, 60.0, 0.0])


def a_contract_in_rounds() -> Contract:
    tables = a_contract(2).model_dump(mode="json")
    models = [{"name": "heaps", "algorithm": "kmeans", "options": {"clusters": 3}}]
    expected = {
        "federation": {"name": "greenhouse"},
        "features": tables["features"],
        "models": models,
    }
    return parse_contract(expected | {"privacy": {"mode": "formal", "epsilon_per_reading": 4.0}})


CONTRACT = a_contract_in_rounds()


def a_round(arrays: dict[str, NDArray[Any]]) -> Snapshot:
    request = {"deadline": NOW + 5, "fraction": 1.0, "rows_min": 20}
    return replace(
        a_snapshot(CONTRACT, arrays, model="heaps", algorithm="kmeans"),
        round=7,
        round_request=request,
    )


def status_with(rounds: RoundStatus) -> ServerStatus:
    status = a_status(CONTRACT, [a_round({"centre": CENTRES, "weight": MASS})])
    return replace(status, models={"heaps": replace(status.models["heaps"], rounds=rounds)})


COLLECTING = status_with(
    RoundStatus(7, Phase.COLLECTING, counted=4, received=1, shift=0.0123456, expected=5)
)

NO_ANSWERS = replace(
    COLLECTING,
    models={
        "heaps": replace(
            status_with(RoundStatus(1, Phase.COLLECTING, 0, 0, math.inf, expected=0)).models[
                "heaps"
            ],
            waiting_for="Clients have been called; their first answers have not come yet.",
        )
    },
)
"""the first request, with the initial centres, has been published and has no answers"""


def client_of(status: ServerStatus) -> WebClient:
    return WebClient(create_app(StatusBoard(status), CollectorRegistry(), predict))


def rendered(status: ServerStatus) -> Any:
    return client_of(status).get("/v1/status").json()["models"][0]


def test_before_the_first_round_has_closed_there_is_no_shift() -> None:
    assert (
        rendered(status_with(RoundStatus(1, Phase.COLLECTING, 0, 0, math.inf)))["rounds"]["shift"]
        is None
    )


def test_the_status_has_the_round_its_phase_answers_and_shift() -> None:
    expected = {
        "round": 7,
        "phase": "collecting",
        "counted": 4,
        "received": 1,
        "shift": 0.0123,
        "expected": 5,
    }
    assert rendered(COLLECTING)["rounds"] == expected


def test_a_restart_of_the_rounds_leaves_no_zero_in_the_history() -> None:
    history = [
        HistoryPoint(NOW - 9 + i, clusters, 3, 0) for i, clusters in enumerate((0, 3, 0, 3, 2))
    ]
    heaps = replace(COLLECTING.models["heaps"], history=history)
    assert rendered(replace(COLLECTING, models={"heaps": heaps}))["history"] == [
        [NOW - 8, 3],
        [NOW - 5, 2],
    ]


def test_centres_are_nodes_at_their_place_with_their_mass() -> None:
    nodes = client_of(COLLECTING).get("/v1/nodes").json()["nodes"]
    assert nodes["mass"] == MASS.tolist()
    assert nodes["cluster"] == [0, 1, -1], "a centre without rows is no cluster"
    assert np.allclose(nodes["values"], [[0.0, 50.0], [40.0, 10.0], [20.0, 90.0]], atol=0.1)
    shares = [
        cluster["recent_share"]
        for cluster in rendered(COLLECTING)["clustering"]["clusters"].values()
    ]
    assert np.allclose(shares, MASS[MASS > 0] / MASS.sum(), atol=1e-4)


def test_readings_are_predicted_by_a_model_in_rounds_too() -> None:
    client = client_of(COLLECTING)
    answer = client.post("/v1/predict", json=[[0.0, 50.0], [39.0, 12.0]]).json()
    assert (answer["model"], answer["version"]) == ("heaps", 1)
    assert answer["clusters"] == answer["identities"] == [0, 1]


def test_the_page_shows_the_rounds(browser: Browser) -> None:
    board = StatusBoard(NO_ANSWERS)
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.shows("their first answers have not come yet")
        tab.shows("A first round of answers")
        assert not tab.value_of("document.getElementById('map-help').checkVisibility()")
        board.post(COLLECTING)
        tab.unfold()
        tab.shows("Each mark is the centre of a cluster")
        counters = "document.getElementById('counters').textContent"
        tab.until(f"{counters}.includes('Shift0.0123in the newest round')")
        for words in (
            "Round7collecting answers",
            "Answers1of 5 requested",
            "Readings48,000in newest answers",
        ):
            assert words in tab.value_of(counters)
        board.post(status_with(RoundStatus(7, Phase.SLEEPING, counted=4, received=0, shift=0.0)))
        tab.until(f"{counters}.includes('Round7sleeping')")
        assert "Answers4in the newest round" in tab.value_of(counters)
        cells = (
            "[...document.querySelectorAll('#clusters tbody tr')].map(row =>"
            " row.innerText.split(/\\s+/).join(' '))"
        )
        first, second = tab.value_of(cells)
        assert re.fullmatch(
            r"temperature low, humidity high \(0\) active 67 % – \d+ \w+ 0.00 50.0", first
        )
        assert re.fullmatch(
            r"temperature high, humidity low \(1\) active 33 % – \d+ \w+ 40.00 10.0", second
        )
        tab.shows("no history is kept to count shares from")
        tab.value_of("document.getElementById('map').focus()")
        tab.press("ArrowRight")
        announcement = "document.getElementById('map-announcement').textContent"
        tab.until(f"{announcement}.startsWith('Centre of cluster 0 · weight 120')")
        assert tab.console_errors() == []
    finally:
        web.stop()
