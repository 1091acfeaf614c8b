"""Round answers: a request is answered once, before its deadline, from enough rows, also over a
kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.view import Summary
from shoal.config.contract import Contract, parse_contract
from shoal.protocol.messages import Snapshot, Update
from tests.client_nodes.site import Site, readings
from tests.small_plant import snapshot_with

FEATURES = [{"name": "warm", "low": -10, "high": 50}, {"name": "damp", "low": 0, "high": 100}]
HEAPS = {
    "name": "heaps",
    "algorithm": "kmeans",
    "options": {"clusters": 2},
    "rounds": {"rows_min": 10},
}
MORE = {"name": "more", "algorithm": "fcm", "options": {"clusters": 3}}
CENTRES = np.array([[0.2, 0.8], [0.7, 0.2]])


def agreed(*models: dict[str, Any]) -> Contract:
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    return parse_contract(tables | {"models": list(models)})


CONTRACT = agreed(HEAPS)


class Requester:
    """A server that only publishes round requests."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def request(
        self, version: int = 1, number: int = 1, within_s: float = 10.0, **other: Any
    ) -> Snapshot:
        """Publish a round request for the first model."""
        contract = self._site.contract
        now = self._site.clock.now
        model = contract.models[0]
        snapshot = snapshot_with(
            contract,
            model,
            {"centre": CENTRES, "weight": np.zeros(len(CENTRES))},
            Summary(0, len(CENTRES), 0),
            version=version,
            made_at=now,
            round=number,
            round_request={"deadline": now + within_s, "fraction": 1.0, "rows_min": 10, **other},
        )
        self.publish(snapshot.encode())
        return snapshot

    def publish(self, value: bytes) -> None:
        with self._site.federation() as log:
            log.publish(self._site.contract.snapshots_topic, value, b"heaps", Snapshot.headers())
            log.flush()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, CONTRACT, window_rows=100)


def answers(site: Site) -> list[Update]:
    """The updates published, each once: the newest one is repeated at every start."""
    published = {(update.model, update.sequence): update for update in site.updates()}
    for update in site.updates():
        assert update.encode() == published[update.model, update.sequence].encode()
    return list(published.values())


def test_without_a_request_nothing_is_published(site: Site) -> None:
    site.add_readings(readings(30))
    site.run()
    assert answers(site) == []


def test_without_rows_nothing_is_published(site: Site) -> None:
    Requester(site).request()
    site.run()
    assert answers(site) == []


def test_a_client_that_rejects_every_reading_says_how_many(site: Site) -> None:
    for number in (3, 4):
        site.add_readings(readings(number) * np.nan)
        site.run()
    reports = answers(site)
    assert [report.rejected for report in reports] == [3, 7]
    assert all(report.is_report for report in reports)


def test_a_request_is_answered_once_from_the_window(site: Site) -> None:
    site.add_readings(readings(150))
    site.run()
    request = Requester(site).request(version=4, number=3)
    for _ in range(2):
        site.run()
    [answer] = answers(site)
    assert (answer.round, answer.sequence, answer.readings, answer.client) == (3, 1, 100, "attic")
    assert answer.newest_reading_at == 1e9 + 149
    with site.node() as node:
        wanted = rounds_algorithm("kmeans").answer(request.arrays, node.window)
    assert all(np.array_equal(answer.arrays[name], wanted[name]) for name in wanted)


def test_requests_of_a_log_created_anew_are_answered_though_their_versions_begin_at_1_again(
    site: Site,
) -> None:
    site.add_readings(readings(150))
    site.run()
    Requester(site).request(version=4, number=3)
    site.run()
    for file in site.folder.glob("federation.db*"):
        file.unlink()
    Requester(site).request()
    site.run()
    *_, answer = site.updates()
    assert (answer.round, answer.sequence) == (1, 2)


def test_a_round_requested_again_is_answered_again_under_the_next_sequence_number(
    site: Site,
) -> None:
    site.add_readings(readings(30))
    for version in (1, 2):
        Requester(site).request(version=version)
        site.run()
    assert [(answer.sequence, answer.round) for answer in answers(site)] == [(1, 1), (2, 1)]


def test_only_the_newest_of_many_requests_is_answered(site: Site) -> None:
    site.add_readings(readings(30))
    requester = Requester(site)
    requester.request(version=1, number=1)
    requester.request(version=3, number=3)
    with site.node() as node:
        while node.step():
            pass
        # A snapshot that the server published again.
        requester.request(version=2, number=2)
        assert not node.step()
    assert [answer.round for answer in answers(site)] == [3]


def test_a_request_is_answered_once_there_are_enough_rows(site: Site) -> None:
    Requester(site).request()
    site.add_readings(readings(9))
    site.run()
    assert answers(site) == []
    site.add_readings(readings(1, seed=1))
    site.run()
    assert [answer.readings for answer in answers(site)] == [10]


def test_a_request_cannot_ask_for_fewer_rows_than_the_contract(site: Site) -> None:
    Requester(site).request(rows_min=1)
    site.add_readings(readings(9))
    site.run()
    assert answers(site) == []


def test_a_request_may_ask_for_more_rows_than_the_contract(site: Site) -> None:
    Requester(site).request(rows_min=20)
    site.add_readings(readings(19))
    site.run()
    assert answers(site) == []
    site.add_readings(readings(1, seed=1))
    site.run()
    assert [answer.readings for answer in answers(site)] == [20]


def test_a_request_is_not_answered_after_its_deadline(site: Site) -> None:
    site.add_readings(readings(30))
    Requester(site).request(within_s=10.0)
    site.clock.now += 10.0
    site.run()
    assert answers(site) == []


def test_a_client_that_is_not_selected_does_not_answer(site: Site) -> None:
    site.add_readings(readings(30))
    Requester(site).request(fraction=1e-9)
    site.run()
    assert answers(site) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline": None},
        {"fraction": 0},
        {"fraction": 1.5},
        {"rows_min": 0},
        {"deadline": float("nan")},
    ],
)
def test_an_invalid_request_is_ignored(site: Site, wrong: dict[str, Any]) -> None:
    site.add_readings(readings(30))
    requester = Requester(site)
    requester.request(version=5, **wrong)
    site.run()
    assert answers(site) == []
    requester.request(version=4)
    site.run()
    assert len(answers(site)) == 1


def test_an_answer_stored_but_not_published_is_published_after_a_restart_and_no_other(
    site: Site,
) -> None:
    site.add_readings(readings(30))
    Requester(site).request()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.runtime.checkpoint.Outbox.publish_pending", lambda self: 0)
        site.run()
    assert answers(site) == []
    site.add_readings(readings(30, seed=5), started_at=2e9)
    site.run()
    [answer] = answers(site)
    assert answer.readings == 30


def test_models_in_rounds_share_one_window_beside_streaming_models(tmp_path: Path) -> None:
    site = Site(tmp_path, agreed(HEAPS, MORE, {"name": "clusters", "algorithm": "fcac"}))
    site.add_readings(readings(100))
    Requester(site).request()
    site.run()
    assert sorted(answer.model for answer in answers(site)) == ["clusters", "clusters", "heaps"]
    with site.node() as node:
        assert len(node.window) == 100


def test_a_client_without_models_in_rounds_keeps_no_rows(tmp_path: Path) -> None:
    site = Site(tmp_path, agreed({"name": "clusters", "algorithm": "fcac"}))
    site.add_readings(readings(100))
    site.run()
    with site.node() as node:
        assert len(node.window) == 0


def test_the_window_holds_rows_after_privacy(tmp_path: Path) -> None:
    models = {"models": [HEAPS], "privacy": {"mode": "formal", "epsilon_per_reading": 4}}
    site = Site(
        tmp_path, parse_contract({"federation": {"name": "plant"}, "features": FEATURES, **models})
    )
    raw = readings(50)
    site.add_readings(raw)
    site.run()
    with site.node() as node:
        assert len(node.window) == 50
        unit = (raw - [-10, 0]) / [60, 100]
        # Noise may be 0 by chance: about once in 16 000 values.
        assert np.isclose(node.window, unit).sum() <= 2
