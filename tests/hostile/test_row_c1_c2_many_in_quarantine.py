"""Rows C1 and C2: the list of clients in quarantine can be read however many there are, and the
register is bounded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shoal.protocol.messages import MESSAGE_ITEMS_MAX
from shoal.protocol.quarantine import LIST_MAX, QuarantineList, QuarantineRequest
from shoal.server_node.ingest import requests
from shoal.server_node.ingest.quarantine import QuarantineRegister
from shoal.server_node.ingest.requests import SUBJECTS_MAX
from tests.server_node.server_fixture import ServerFixture
from tests.server_node.test_quarantine import ask, reasons
from tests.small_plant import plant


def test_the_list_of_any_number_of_clients_can_be_read() -> None:
    contract = plant()
    register = QuarantineRegister()
    for number in range(LIST_MAX + 10):
        client = f"client-{number}"
        request = ("plant", contract.digest, "clusters", client, "quarantine", "")
        register.begin(QuarantineRequest(*request, made_at=float(number)))
    record = register.list_record(contract)
    found = QuarantineList.decode(record.value, record.headers).clients
    assert len(found) == LIST_MAX > MESSAGE_ITEMS_MAX / 10
    assert {client.since for client in found} == set(map(float, range(10, LIST_MAX + 10)))


def test_requests_about_more_clients_than_the_register_has_room_for_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert math.isfinite(SUBJECTS_MAX)
    monkeypatch.setattr(requests, "SUBJECTS_MAX", 2)
    site = ServerFixture(tmp_path)
    for client in ("attic", "cellar", "made-up"):
        ask(site, client, "quarantine")
    ask(site, "cellar", "release")
    with site.server() as node:
        while node.step():
            pass
        assert [client.client for client in node.status().quarantined] == ["attic"]
    assert reasons(site) == {"quota": 1}
