"""Clients in quarantine: what is absorbed, what a rebuild repeats, what is listed."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidState
from shoal.protocol.messages import Update
from shoal.protocol.quarantine import LIST_KEY, QuarantineList, QuarantineRequest
from shoal.protocol.signatures import HEADER, KEY_BYTES, server_file, signature, write_keys
from shoal.server_node.ingest.quarantine import QuarantineRegister
from shoal.server_node.ingest.requests import quarantine_records, request_signer
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import latest
from tests.federation_text import federation_text
from tests.forked_python import nodes
from tests.server_node.server_fixture import ServerFixture, states_of, updates_of
from tests.small_plant import forged, plant

CLIENTS = ("attic", "cellar", "garden")
LATER = itertools.count(1_000_000_000.0)
"""when each request is made, seconds since 1970"""


def ask(site: ServerFixture, client: str, action: str, detail: str = "") -> None:
    """Publish the request for every model, as the commands do."""
    sign = request_signer(site.settings)
    records = quarantine_records(site.contract, client, action, detail, next(LATER))
    site.publish(
        *((record.key.decode(), record.value, record.headers + sign(record)) for record in records)
    )


def reasons(site: ServerFixture) -> dict[str, int]:
    """reason -> records rejected for it."""
    return Counter(dict(record.headers)["reason"].decode() for record in site.rejected().values())


def some(site: ServerFixture, clients: Sequence[str], numbers: Sequence[int]) -> list[Update]:
    return [
        update
        for number in numbers
        for client in clients
        for update in updates_of(site, (client, number))
    ]


def absorbed_of(site: ServerFixture, client: str) -> int:
    """How many updates of a client its model has absorbed."""
    with site.server() as server:
        return {
            name: updates for name, updates, *_ in server.models()["clusters"].clients.totals()
        }.get(client, 0)


def test_a_client_in_quarantine_is_absorbed_no_more_and_the_others_are(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path / "a")
    without = ServerFixture(tmp_path / "b")
    site.send(*some(site, CLIENTS, [1]))
    ask(site, "cellar", "quarantine")
    site.send(*some(site, CLIENTS, [2, 3]))
    without.send(*some(site, CLIENTS, [1]), *some(site, ["attic", "garden"], [2, 3]))
    assert site.run() == without.run()
    assert site.rejected() == {}, "what it sends is counted, and not kept a second time"


def test_a_client_that_has_never_sent_can_be_in_quarantine(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    ask(site, "cellar", "quarantine", "not ours")
    site.run()
    site.send(*some(site, ["cellar"], [1]))
    metrics = ServerMetrics()
    with site.server(metrics=metrics) as server:
        while server.step():
            pass
        (listed,) = server.status().quarantined
    assert (listed.client, listed.detail, listed.unlearned) == ("cellar", "not ours", False)
    assert site.snapshots() == []
    assert metrics.registry.get_sample_value("shoal_quarantined_clients") == 1
    assert metrics.registry.get_sample_value("shoal_updates_total", {"result": "quarantined"}) == 1


def test_a_released_client_is_absorbed_again_whatever_numbers_it_has_used_meanwhile(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    site.send(*some(site, CLIENTS, [1]))
    ask(site, "cellar", "quarantine")
    site.send(*some(site, ["cellar"], [2, 3]))
    ask(site, "cellar", "release")
    site.send(*some(site, CLIENTS, [5000]))
    site.run()
    assert (absorbed_of(site, "cellar"), absorbed_of(site, "attic")) == (2, 1), (
        "only its own numbers may jump"
    )
    with site.server() as server:
        assert server.status().quarantined == []


def test_a_rebuild_repeats_quarantines_and_releases_at_their_places(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    site.send(*some(site, CLIENTS, [1]))
    ask(site, "cellar", "quarantine")
    site.send(*some(site, CLIENTS, [2]))
    ask(site, "cellar", "release")
    site.send(*some(site, CLIENTS, [3]))
    ask(site, "attic", "quarantine")
    site.send(*some(site, CLIENTS, [4]))
    before = site.run()
    site.delete_checkpoint()
    assert site.run(rebuild=True) == before
    with site.server() as server:
        assert [client.client for client in server.status().quarantined] == ["attic"]


def test_a_quarantine_outlives_a_restart(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    site.send(*some(site, CLIENTS, [1]))
    ask(site, "cellar", "quarantine")
    site.run()
    site.send(*some(site, CLIENTS, [2]))
    site.run()
    assert absorbed_of(site, "cellar") == 1


def test_each_model_of_a_federation_stops_absorbing_the_client(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, plant(models=("left", "right")))
    ask(site, "cellar", "quarantine")
    site.run()
    with site.server() as server:
        assert [(client.model, client.client) for client in server.status().quarantined] == [
            ("left", "cellar"),
            ("right", "cellar"),
        ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"federation": "other"}, "federation"),
        ({"contract": "0" * 32}, "contract"),
        ({"model": "other"}, "model"),
    ],
)
def test_a_request_of_another_federation_is_rejected(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    site = ServerFixture(tmp_path)
    parts: dict[str, Any] = {
        "federation": "plant",
        "contract": site.contract.digest,
        "model": "clusters",
    } | changes
    request = QuarantineRequest(
        **parts, client="cellar", action="quarantine", detail="", made_at=1e9
    )
    site.publish(("clusters", request.encode(), QuarantineRequest.headers()))
    site.run()
    (record,) = site.rejected().values()
    assert dict(record.headers)["reason"].decode() == reason
    with site.server() as server:
        assert server.status().quarantined == []


def signed_site(folder: Path) -> ServerFixture:
    keys = folder / "keys"
    write_keys(server_file(keys, "cellar"), [bytes(KEY_BYTES)])
    return ServerFixture(folder / "site", client_keys=keys)


def test_with_signed_updates_a_request_needs_the_signature_of_an_operator(tmp_path: Path) -> None:
    site = signed_site(tmp_path)
    (record,) = quarantine_records(site.contract, "attic", "quarantine", "", 1e9)
    forged = signature(bytes(KEY_BYTES), record.topic, record.value or b"", QuarantineRequest.TYPE)
    site.publish(("clusters", record.value, record.headers))
    site.publish(("clusters", record.value, (*record.headers, (HEADER, forged))))
    site.run()
    assert len(site.rejected()) == 2, "without a signature, and with that of a client"
    ask(site, "attic", "quarantine")
    with site.server() as server:
        server.step()
        assert [client.client for client in server.status().quarantined] == ["attic"]
    assert server_file(tmp_path / "keys", "_operator").stat().st_mode & 0o077 == 0


def test_the_list_in_the_log_is_that_of_the_server_and_no_client_takes_it_for_a_snapshot(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    ask(site, "cellar", "quarantine")
    site.run()
    with site.log() as log:
        record = latest(log, site.contract.snapshots_topic)[LIST_KEY]
    assert [
        client.client for client in QuarantineList.decode(record.value, record.headers).clients
    ] == ["cellar"]


def test_a_damaged_register_is_not_restored() -> None:
    whole = QuarantineRegister().state()
    for name in whole:
        with pytest.raises(InvalidState, match=f"lacks {name}"):
            QuarantineRegister().restore(
                {key: value for key, value in whole.items() if key != name}
            )
    with pytest.raises(InvalidState, match="an entry of active must be a saved state"):
        QuarantineRegister().restore(whole | {"active": [["clusters"]]})


FEDERATION = federation_text(log={"address": "sqlite:federation.db"})


def run_shoal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return nodes().run_text(*arguments, "--config", "plant.toml", cwd=folder)


@pytest.mark.long
def test_the_command_quarantines_lists_and_releases(tmp_path: Path) -> None:
    names = '[server.client_names]\ncellar = "Keller Süd"\n'
    (tmp_path / "plant.toml").write_text(FEDERATION + names, encoding="utf-8")
    site = ServerFixture(tmp_path)
    assert run_shoal(tmp_path, "quarantine", "list").stdout == "no client is in quarantine\n"
    assert run_shoal(tmp_path, "quarantine", "cellar", "--reason", "strange").returncode == 0
    assert run_shoal(tmp_path, "quarantine", "list", "--reason", "no way out").returncode == 0
    site.run()
    shown = json.loads(run_shoal(tmp_path, "quarantine", "list", "--json").stdout)["quarantined"]
    assert [(entry["client"], entry["client_name"], entry["detail"]) for entry in shown] == [
        ("cellar", "Keller Süd", "strange"),
        ("list", "", "no way out"),
    ]
    listed = run_shoal(tmp_path, "quarantine", "list").stdout
    assert "Keller Süd (cellar)  clusters  quarantined since" in listed
    assert run_shoal(tmp_path, "quarantine", "cellar", "--release").returncode == 0
    site.run()
    assert "cellar" not in run_shoal(tmp_path, "quarantine", "list").stdout
    written = run_shoal(tmp_path, "quarantine", "Werk Süd")
    assert re.search(r"quarantine requested for (werk-sud-[0-9a-f]{12})\n", written.stdout)
    wrong = run_shoal(tmp_path, "quarantine", "cellar", "--reason", "two\nlines")
    assert (wrong.returncode, "one line of at most 300" in wrong.stderr) == (2, True)


def test_the_whole_state_of_a_server_with_a_quarantine_is_restored(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    site.send(*some(site, CLIENTS, [1]))
    ask(site, "cellar", "quarantine")
    with site.server() as server:
        while server.step():
            pass
        before = states_of(server), server.status().quarantined
    with site.server() as server:
        assert (states_of(server), server.status().quarantined) == before


@pytest.mark.parametrize("action", [np.zeros((3, 1, 2)), [], 7, "banish", None])
def test_an_action_that_there_is_not_is_rejected_whatever_it_is(
    tmp_path: Path, action: Any
) -> None:
    site = ServerFixture(tmp_path)
    request = QuarantineRequest(
        "plant", site.contract.digest, "clusters", "cellar", "quarantine", "", made_at=1e9
    )
    site.publish(("clusters", forged(request, action=action), QuarantineRequest.headers()))
    site.run()
    (record,) = site.rejected().values()
    assert dict(record.headers)["reason"] == b"malformed"


def test_a_request_from_the_future_cannot_keep_others_from_being_newer(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    for made_at in (2.5e11, time.time()):
        (record,) = quarantine_records(site.contract, "cellar", "quarantine", "", made_at)
        site.publish((record.key.decode(), record.value, record.headers))
    site.run()
    assert reasons(site) == {"malformed": 1}
    with site.server() as server:
        assert len(server.status().quarantined) == 1
