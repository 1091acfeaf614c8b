"""The pool: which first updates are merged together, how that is decided, and that it is decided
once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server_node.server_fixture import models_of, pool_site, states_of
from tests.small_plant import an_update


def test_an_empty_pool_waits_without_end(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    with site.server() as server:
        site.clock.now += 1e6
        assert not server.step()
        assert "No client has sent" in server.status().models["clusters"].waiting_for


def test_nothing_is_published_while_the_pool_waits(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    site.send(
        *(an_update(site.contract, client, n) for client in ("attic", "cellar") for n in (1, 2))
    )
    with site.server() as server:
        while server.step():
            pass
        assert "2 of 3 clients have sent updates" in server.status().models["clusters"].waiting_for
        assert not server.up_to_date
    assert site.snapshots() == []


def test_the_pool_is_merged_with_its_last_client_whatever_the_time(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    site.send(*(an_update(site.contract, client) for client in ("attic", "cellar", "garden")))
    site.run()
    assert [snapshot.pooled for snapshot in site.snapshots()] == [3]


def test_the_order_of_clients_in_the_pool_changes_nothing(tmp_path: Path) -> None:
    models = []
    for number, order in enumerate((["attic", "cellar", "garden"], ["garden", "attic", "cellar"])):
        site = pool_site(tmp_path / str(number))
        site.send(*(an_update(site.contract, client) for client in order))
        models.append(site.run())
    assert models[0] == models[1]


def test_the_pool_times_out_with_the_clients_so_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = pool_site(tmp_path)
    site.send(an_update(site.contract, "attic"), an_update(site.contract, "cellar"))
    with site.server() as server:
        server.step()
        site.clock.now += 59
        assert not server.step()
        site.clock.now += 1
        with caplog.at_level("INFO", "shoal"):
            assert server.step()
        assert not server.step()
    (snapshot,) = site.snapshots()
    assert (snapshot.pooled, snapshot.clients) == (2, 2)
    (fields,) = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "pool_timed_out"
    ]
    assert fields == {"model": "clusters", "clients": 2, "updates": 2}


def test_the_pool_times_out_from_its_first_update_across_a_restart(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    site.send(an_update(site.contract, "attic"))
    with site.server() as server:
        server.step()
    site.clock.now += 60
    with site.server() as server:
        assert server.step()
    assert [snapshot.pooled for snapshot in site.snapshots()] == [1]


def test_a_clock_set_back_does_not_lengthen_the_wait_of_the_pool(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    site.clock.now = 4e9
    site.send(an_update(site.contract, "attic"))
    with site.server() as server:
        server.step()
        site.clock.now = 1e9
        assert not server.step()
        site.clock.now += 60
        assert server.step()


def test_a_timed_out_pool_is_stored_before_anything_is_published(tmp_path: Path) -> None:
    site = pool_site(tmp_path, snapshot_updates=10, snapshot_s=86_400.0)
    site.send(an_update(site.contract, "attic"))
    with site.server() as server:
        server.step()
        site.clock.now += 60
        server.step()
        closed = states_of(server)
    site.clock.now -= 60
    with site.server() as server:
        assert states_of(server) == closed
        assert models_of(server)


def test_a_pool_with_too_many_bytes_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.server_node.models.streaming.POOL_BYTES_MAX", 1000)
    site = pool_site(tmp_path, pool_clients=100)
    site.send(*(an_update(site.contract, "attic", n) for n in range(1, 20)))
    with site.server() as server:
        server.step()
    (snapshot,) = site.snapshots()
    assert 1 < snapshot.pooled < 19
    assert snapshot.updates == 19


def test_the_bytes_of_a_pool_are_counted_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.server_node.models.streaming.POOL_BYTES_MAX", 1000)
    pooled = []
    for number, batch in enumerate((1, 200)):
        site = pool_site(tmp_path / str(number), pool_clients=100, batch_updates_max=batch)
        site.send(*(an_update(site.contract, "attic", n) for n in range(1, 20)))
        while True:
            with site.server() as server:
                if not server.step():
                    break
        pooled.append(site.snapshots()[-1].pooled)
    assert pooled[0] == pooled[1]
