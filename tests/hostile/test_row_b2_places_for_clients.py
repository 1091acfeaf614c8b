"""Row B2: places for clients that were taken by made-up names become free again."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.server_node.outputs.client_commands import clients as clients_group
from shoal.telemetry.metrics import ServerMetrics
from tests.hostile.keyed_site import KeyedSite
from tests.house.small_federation import write_federation
from tests.server_node.server_fixture import updates_of
from tests.server_node.test_quarantine import ask
from tests.small_plant import plant


def clients_of(site: KeyedSite, model: str = "clusters") -> list[str]:
    with site.server() as node:
        return node.models()[model].clients.names()


@pytest.mark.parametrize("keyed", [False, True])
def test_unlearning_a_client_frees_its_place_and_a_rebuild_has_the_same(
    tmp_path: Path, keyed: bool
) -> None:
    site = KeyedSite(tmp_path, keyed, plant(models=("clusters", "others")), clients_max=2)
    site.send(*updates_of(site, ("made-up-1", 1), ("made-up-2", 1), ("attic", 1)))
    site.run()
    assert clients_of(site) == ["made-up-1", "made-up-2"]
    assert site.reasons() == ["quota"]
    ask(site, "made-up-2", "unlearn")
    site.run()
    site.send(*updates_of(site, ("attic", 2), ("cellar", 1)))
    model = site.run()
    assert clients_of(site) == ["attic", "made-up-1"]
    site.delete_checkpoint()
    assert site.run(rebuild=True) == model


def test_a_client_that_is_forgotten_frees_its_place_and_the_models_keep_what_it_sent(
    tmp_path: Path,
) -> None:
    site = KeyedSite(tmp_path, False, clients_max=2)
    metrics = ServerMetrics()
    site.send(*updates_of(site, ("gone", 1), ("attic", 1)))
    ask(site, "gone", "forget")
    site.send(*updates_of(site, ("cellar", 1), ("gone", 2)))
    with site.server(metrics=metrics) as node:
        while node.step():
            pass
        assert not node.status().quarantined
        assert metrics.registry.get_sample_value("shoal_clients_max_used_ratio") == 1.0
    assert clients_of(site) == ["attic", "cellar", "gone"]
    assert site.reasons() == ["quota"], "there is no place left when it returns"


def test_the_command_asks_the_server_to_forget_a_client(tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    ended = CliRunner().invoke(
        clients_group, ["forget", "--config", str(file), "gone"], catch_exceptions=False
    )
    assert (ended.exit_code, ended.output) == (0, "forget requested for gone\n")
