"""Quotas that a checkpoint has kept refuse what they would have refused without a restart."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.server_node.ingest.quotas import BURST_S, Quotas
from shoal.transports.base import Record

SETTINGS = ServerSettings(clients_max=2, client_updates_per_s=1.0)


def record(partition: int, seconds: int) -> Record:
    return Record("plant.updates", partition, 0, 1000 * seconds, None, b"", ())


@pytest.mark.parametrize("clients", [(), ("attic",), ("attic", "cellar")])
def test_what_clients_may_still_send_is_kept(clients: tuple[str, ...]) -> None:
    before = Quotas(SETTINGS)
    after = Quotas(SETTINGS)
    for number, client in enumerate(clients):
        for _ in range(int(BURST_S) - number):
            before.check(client, record(number, 5))
        before.accepted(client)
    after.restore(unpack(pack(before.state())))
    assert pack(after.state()) == pack(before.state())
    for client in clients[:1]:
        with pytest.raises(MessageRejected, match="more than 1 records"):
            after.check(client, record(0, 5))
    if len(clients) == 2:
        after.check("cellar", record(1, 5))
        with pytest.raises(MessageRejected, match="clients_max"):
            after.check("shed", record(0, 5))


@pytest.mark.parametrize(
    "clients", [None, [[0]], [{"attic": None}], [{"attic": [True]}], [{"attic": [True, [[0]]]}]]
)
def test_damaged_quotas_are_refused(clients: Any) -> None:
    with pytest.raises(InvalidState):
        Quotas(SETTINGS).restore({"clients": clients})


def test_names_that_are_dropped_leave_the_state_too() -> None:
    quotas = Quotas(SETTINGS)
    quotas.check("attic", record(0, 5))
    quotas.accepted("attic")
    for number in range(2 * SETTINGS.clients_max):
        quotas.check(f"made-up-{number}", record(1, 5))
        kept = [client for group in unpack(pack(quotas.state()))["clients"] for client in group]
    assert kept == ["attic"]
