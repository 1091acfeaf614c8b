"""Invalid messages: each is rejected with its bytes and counted, and changes no model."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.config.limits import RECORD_BYTES_MAX
from shoal.config.resolved import resolve
from shoal.config.settings import LogSettings
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.messages import Update
from shoal.protocol.rejected import REASONS
from shoal.server_node.models.clients import Clients
from shoal.server_node.models.publisher import ModelPublisher
from shoal.transports.base import Headers
from tests.server_node.server_fixture import ServerFixture, models_of, updates_of
from tests.small_plant import an_update, forged

LARGE = LogSettings(update_bytes_max=RECORD_BYTES_MAX)
"""a log that accepts larger records than clients send"""


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def with_weight(update: Update, weight: NDArray[np.float64]) -> Update:
    return replace(update, arrays={**update.arrays, "weight": weight})


def test_a_rejected_record_keeps_its_bytes_reason_and_origin(site: ServerFixture) -> None:
    good = an_update(site.contract)
    headers = Update.headers()
    records: list[tuple[str, bytes | None, Headers]] = [
        ("clusters", None, ()),
        ("clusters", good.encode(), (("type", b"snapshot"), ("v", b"1"))),
        ("clusters", good.encode(), (("type", b"update"), ("v", b"9"))),
        ("clusters", b"\xc1", headers),
        ("clusters", replace(good, federation="other").encode(), headers),
        ("clusters", replace(good, contract="0" * 32).encode(), headers),
        ("clusters", replace(good, model="none").encode(), headers),
        ("clusters", replace(good, privacy={}).encode(), headers),
        ("clusters", replace(good, arrays={}).encode(), headers),
        ("clusters", with_weight(good, good.arrays["weight"] * np.nan).encode(), headers),
        ("clusters", with_weight(good, good.arrays["weight"] + 9).encode(), headers),
        ("clusters", forged(good, sequence=0), headers),
        ("clusters", forged(good, privacy={"mode": np.zeros(2)}), headers),
        ("clusters", bytes(33_500_000), headers),
    ]
    expected = [
        "type",
        "type",
        "version",
        "malformed",
        "federation",
        "contract",
        "model",
        "privacy",
        "arrays",
    ]
    expected += ["not_finite", "bounds", "sequence", "malformed", "oversized"]
    site.log_settings = LARGE
    site.publish(*records)
    site.send(good)
    site.run()
    rejected = site.rejected()
    assert len(rejected) == len(records)
    for offset, ((_, value, original), reason) in enumerate(zip(records, expected, strict=True)):
        record = rejected[f"plant.updates/0/{offset}".encode()]
        given = dict(record.headers)
        assert record.value == (value or b"")
        assert given["reason"].decode() == reason
        assert given["origin"] == f"plant.updates/0/{offset}".encode()
        assert given["key"] == b"clusters"
        assert [
            (name.removeprefix("original."), v)
            for name, v in record.headers
            if name.startswith("original.")
        ] == [*original]
    assert site.snapshots()[-1].updates == 1


def test_a_flood_of_malformed_messages_is_counted_rejected_and_survived(
    site: ServerFixture, tmp_path: Path
) -> None:
    quiet = ServerFixture(tmp_path / "quiet")
    # A copy of every one is compared below.
    site.settings = site.settings.model_copy(update={"rejected_kept_per_s": 0.0})
    chance = random.Random(3)
    good = [an_update(site.contract, "attic", n) for n in (1, 2, 3)]
    original = an_update(site.contract, "cellar").encode()
    flood: list[tuple[str, bytes | None, Headers]] = []
    for number in range(10_000):
        value = bytearray(original)
        for _ in range(3):
            value[chance.randrange(len(value))] = chance.randrange(256)
        flood.append(
            (
                ("clusters", bytes(value[: chance.randrange(len(value))]), Update.headers()),
                ("clusters", bytes(value), (("type", b"update"), ("v", b"0"))),
                ("clusters", chance.randbytes(chance.randrange(300)), Update.headers()),
                ("", b"", ()),
            )[number % 4]
        )
    half = [(u.model, u.encode(), Update.headers()) for u in good]
    site.publish(half[0], *flood[:5000], half[1], *flood[5000:], half[2])
    quiet.send(*good)
    logging.getLogger("shoal").setLevel(logging.ERROR)
    with site.server() as server:
        while server.step():
            pass
        assert models_of(server) == quiet.run()
        status = server.status()
        counted = server.metrics.registry.get_sample_value(
            "shoal_updates_total", {"result": "rejected"}
        )
        assert counted == sum(status.rejected.values()) == 10_000
        assert set(status.rejected) <= set(REASONS)
        assert len(server._checkpoint.pending()) <= site.settings.batch_updates_max
    rejected = site.rejected()
    assert len(rejected) == 10_000
    for offset, (_, sent, _) in enumerate(flood[:5000], 1):
        record = rejected[f"plant.updates/0/{offset}".encode()]
        assert record.value == sent
        assert dict(record.headers)["reason"].decode() in REASONS


def test_a_record_with_millions_of_headers_is_rejected(site: ServerFixture) -> None:
    site.log_settings = LARGE
    site.publish(("clusters", b"x", (("h", b""),) * 3_000_000))
    site.send(an_update(site.contract))
    site.run()
    (record,) = site.rejected().values()
    assert ("original_headers_cut", b"1") in record.headers
    assert site.run()
    assert site.snapshots()[-1].updates == 1


def test_an_update_from_more_readings_than_the_contract_allows_is_rejected(
    site: ServerFixture,
) -> None:
    most = site.contract.models[0].readings_max
    site.send(
        *(an_update(site.contract, "exaggerating", n, readings=most + n % 2) for n in range(1, 5))
    )
    site.run()
    assert site.snapshots()[-1].readings == 2 * most
    assert [dict(record.headers)["reason"] for record in site.rejected().values()] == [
        b"bounds",
        b"bounds",
    ]


def test_a_sum_of_readings_is_capped(site: ServerFixture) -> None:
    contract = resolve(site.contract)
    (model,) = contract.models.values()
    publisher = ModelPublisher(contract, model)
    clients = Clients()
    for sequence in (1, 2):
        publisher.count_readings(COUNT_MAX - 1)
        clients.take("exaggerating", sequence, COUNT_MAX - 1, 0.0)
    assert publisher.counts.readings == clients.totals()[0][2] == COUNT_MAX


def test_an_invalid_sequence_number_is_rejected(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 1), ("attic", 10**6), ("attic", 2)))
    site.run()
    (record,) = site.rejected().values()
    assert dict(record.headers)["reason"] == b"sequence"
    assert site.snapshots()[-1].updates == 2


def test_no_value_of_a_rejected_message_is_logged(
    site: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    good = an_update(site.contract)
    weight = good.arrays["weight"].copy()
    weight[0] = 7.123456789
    site.publish(("clusters", with_weight(good, weight).encode(), Update.headers()))
    with caplog.at_level(logging.DEBUG, "shoal"):
        site.run()
    logged = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "update_rejected"
    ]
    assert [fields["reason"] for fields in logged] == ["bounds"]
    assert [(fields["model"], fields["client"]) for fields in logged] == [("clusters", good.client)]
    assert "123456789" not in str([vars(record) for record in caplog.records])
