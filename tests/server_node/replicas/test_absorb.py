"""`absorb` is a pure function, and gives the bits of one server."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.config.settings import Config, LogSettings
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.quarantine import QuarantineRequest
from shoal.runtime.checkpoint import STATE_BYTES_MAX, OutboxRecord
from shoal.server_node.replicas.region_model import RegionModel, absorb
from shoal.transports.base import Record
from tests.server_node.chunked_updates import in_chunks, large
from tests.server_node.server_fixture import NO_TIMERS, ServerFixture
from tests.small_plant import an_update, plant

CONTRACT = plant()
IDENTITY = bytes(16)


def a_region(contract: Contract = CONTRACT, **settings: object) -> RegionModel:
    server = ServerSettings(**{"pool_clients": 1, "snapshot_updates": 2, **NO_TIMERS, **settings})
    config = Config(contract=contract, log=LogSettings(), server=server)
    resolved = resolve(contract)
    return RegionModel(config, resolved, resolved.models[contract.models[0].name], IDENTITY)


def as_records(
    *messages: Update | QuarantineRequest | OutboxRecord, start_s: float = 2e9
) -> list[Record]:
    """The messages as the topic of updates has them, a second after each other."""
    key = CONTRACT.update_key("clusters")
    found = []
    for offset, message in enumerate(messages):
        value, headers = (
            (message.value, message.headers)
            if isinstance(message, OutboxRecord)
            else (message.encode(), message.headers())
        )
        found.append(
            Record(
                CONTRACT.updates_topic,
                0,
                offset,
                int(1000 * (start_s + offset)),
                key,
                value,
                headers,
            )
        )
    return found


def absorb_all(
    region: RegionModel, records: Sequence[Record], state: bytes | None = None
) -> tuple[bytes | None, list[OutboxRecord]]:
    published: list[OutboxRecord] = []
    for record in records:
        state, records, *_ = absorb(region, state, record)
        published += records
    return state, published


def some_updates() -> list[Update]:
    clients = ("attic", "cellar", "garden")
    whole = [an_update(CONTRACT, client, number) for number in range(1, 9) for client in clients]
    return [*whole, whole[3], *in_chunks(large("attic", 9), nodes_each=4)]


def half_of(state: bytes | None) -> bytes:
    assert state is not None
    return pack(unpack(state, STATE_BYTES_MAX)["model"]["half"])


def test_the_model_is_that_of_one_server_to_the_bit(tmp_path: Path) -> None:
    updates = some_updates()
    site = ServerFixture(tmp_path, CONTRACT, pool_clients=3)
    site.send(*updates)
    state, _ = absorb_all(a_region(pool_clients=3), as_records(*updates))
    assert half_of(state) == site.run()["clusters"]


def test_the_snapshots_are_the_same_wherever_the_state_is_restored() -> None:
    records = as_records(*some_updates())
    once = absorb_all(a_region(), records)
    state = None
    published = []
    for record in records:  # each in a process of its own
        state, records = absorb_all(a_region(), [record], state)
        published += records
    assert (state, published) == once
    assert len([record for record in published if record.topic == CONTRACT.snapshots_topic]) > 5


def test_the_arguments_are_not_changed_and_decide_alone() -> None:
    region = a_region()
    records = as_records(*some_updates())
    before, _ = absorb_all(region, records[:10])
    copy = bytes(before or b"")
    results = [absorb(region, before, records[10]) for _ in range(3)]
    assert before == copy
    assert {result.state for result in results} == {results[0].state}
    assert {result.records for result in results} == {results[0].records}
    assert absorb(region, None, records[10]).state != results[0].state


def test_no_record_and_no_update_are_a_model_that_publishes_nothing() -> None:
    region = a_region(snapshot_s=1.0)
    absorbed = absorb(region, None, as_records(region.timer_request)[0])
    assert (absorbed.records, absorbed.pending) == ((), False)
    assert list(absorbed.outcome.ingested) == []


def test_a_snapshot_is_due_by_the_time_of_the_log_alone() -> None:
    region = a_region(snapshot_updates=1000, snapshot_s=3.0)
    update = an_update(CONTRACT)
    first, second, *_ = as_records(update, an_update(CONTRACT, sequence=2))
    state, published = absorb_all(region, [first])
    assert [record.topic for record in published] == [CONTRACT.snapshots_topic], (
        "the first one is long due"
    )
    absorbed = absorb(region, state, second)
    assert (absorbed.records, absorbed.pending) == ((), True)
    early, late = (as_records(region.timer_request, start_s=at)[0] for at in (2e9 + 2.9, 2e9 + 3.0))
    assert absorb(region, absorbed.state, early).records == ()
    shown = absorb(region, absorbed.state, late)
    assert not shown.pending
    snapshot = Snapshot.decode(shown.records[0].value, shown.records[0].headers)
    assert (snapshot.version, snapshot.updates, snapshot.made_at) == (2, 2, 2e9 + 3.0)


def test_what_snapshots_take_on_this_machine_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updates = as_records(*some_updates())

    def takes(seconds: float) -> list[OutboxRecord]:
        with monkeypatch.context() as machine:
            moments = count(0.0, seconds)
            machine.setattr("time.thread_time", lambda: next(moments))
            return absorb_all(a_region(snapshot_updates=1000, snapshot_s=0.1), updates)[1]

    assert takes(0.001) == takes(100.0)


def test_the_pool_begins_by_the_time_of_the_log() -> None:
    region = a_region(pool_clients=2, pool_s=60.0, snapshot_updates=1)
    state, published = absorb_all(region, as_records(an_update(CONTRACT)))
    assert published == []
    soon, later = (as_records(region.timer_request, start_s=at)[0] for at in (2e9 + 59, 2e9 + 60))
    assert absorb(region, state, soon).records == ()
    assert len(absorb(region, state, later).records) == 1


def test_an_update_that_comes_again_changes_no_model() -> None:
    region = a_region()
    records = as_records(an_update(CONTRACT), an_update(CONTRACT))
    state, _ = absorb_all(region, records[:1])
    again = absorb(region, state, records[1])
    assert again.outcome.ingested[0].result == "repeated"
    assert half_of(again.state) == half_of(state)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (an_update(CONTRACT, federation="other"), "federation"),
        (an_update(plant(models=("clusters", "others"))), "contract"),
        (OutboxRecord("", b"nonsense", None, ()), "type"),
    ],
)
def test_what_a_server_rejects_is_rejected_with_its_original(
    wrong: Update | OutboxRecord, reason: str
) -> None:
    absorbed = absorb(a_region(), None, as_records(wrong)[0])
    assert absorbed.outcome.ingested[0].reason == reason
    (rejected,) = absorbed.records
    assert rejected.topic == CONTRACT.rejected_topic


def test_an_update_of_another_model_than_its_key_names_is_rejected() -> None:
    contract = plant(models=("clusters", "others"))
    update = an_update(contract, model="others")
    absorbed = absorb(a_region(contract), None, as_records(update)[0])
    assert (absorbed.outcome.ingested[0].result, absorbed.outcome.ingested[0].reason) == (
        "rejected",
        "model",
    )


def test_a_client_in_quarantine_is_not_absorbed() -> None:
    request = QuarantineRequest(
        "plant", CONTRACT.digest, "clusters", "attic", "quarantine", "broken", made_at=1e9
    )
    region = a_region()
    state, published = absorb_all(region, as_records(an_update(CONTRACT), request))
    assert published[-1].key == b"@quarantine"
    after = absorb(region, state, as_records(*[an_update(CONTRACT, sequence=2)] * 3)[2])
    assert after.outcome.ingested[0].result == "quarantined"
    assert half_of(after.state) == half_of(state)


def test_a_record_that_raises_an_unforeseen_error_is_set_aside_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = a_region()
    (first, second, third) = as_records(*(an_update(CONTRACT, sequence=n) for n in (1, 2, 3)))
    state, _ = absorb_all(region, [first])

    def fails(update: Update, *_: object) -> None:
        update.arrays["weight"][:] = np.nan
        raise ZeroDivisionError("half way")

    with monkeypatch.context() as broken:
        broken.setattr("shoal.server_node.models.streaming.StreamingModel.process", fails)
        absorbed = absorb(region, state, second)
    assert absorbed.outcome.ingested[0].reason == "failed"
    after = absorb(region, absorbed.state, third)
    assert half_of(after.state) == half_of(absorb_all(a_region(), [first, third])[0])


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"version": 1}, "of another version of shoal"),
        ({"version": 99}, "of another version of shoal"),
        ({"contract": "other"}, "put the old federation file back"),
        ({"log": b"other"}, r"another \[replica\] group"),
        ({"model": None}, "damaged"),
    ],
)
def test_the_state_of_another_model_is_refused_with_advice(
    change: dict[str, object], advice: str
) -> None:
    first, second = as_records(an_update(CONTRACT), an_update(CONTRACT, sequence=2))
    state, _ = absorb_all(a_region(), [first])
    other = pack(unpack(state or b"", STATE_BYTES_MAX) | change)
    with pytest.raises(InvalidState, match=advice):
        absorb(a_region(), other, second)
