"""Row 2: whatever one record raises, it is set aside with the reason, and the models are as they
were before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms import registry
from shoal.algorithms.fcac.caefc import CAEFC
from shoal.algorithms.streaming import Contribution, StreamingAlgorithm
from shoal.config import resolved
from tests.hostile.attacked_rounds import AttackedRounds, filled, step_all
from tests.server_node.rounds_harness import SITES
from tests.server_node.server_fixture import ServerFixture, models_of, updates_of


def test_an_answer_with_an_impossible_spread_is_set_aside_at_every_start(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path, "gmm_local")
    with site.server() as node:
        step_all(node)
        first = site.newest()
        forged = filled(site.honest_arrays(first), spread=1e149)
        site.send(site.make_answer(first, "liar", forged))
        step_all(node)
    with site.server() as node:
        assert site.run_round(node).clients == len(SITES)
    assert site.reasons() == ["claims"]


class Fragile(CAEFC):
    """Half absorbs what comes, and fails at the updates of one client."""

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        super().absorb(contributions, key)
        if any(contribution.client == "poison" for contribution in contributions):
            raise np.linalg.LinAlgError("singular")


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server half of fcac fails at the updates of the client `poison`."""
    algorithm: StreamingAlgorithm = registry.streaming_algorithm("fcac")

    def server(options: Mapping[str, Any], width: int | None) -> Fragile:
        return Fragile(width, **options)

    monkeypatch.setattr(resolved, "load_algorithm", lambda name: replace(algorithm, server=server))


@pytest.mark.usefixtures("fragile")
@pytest.mark.parametrize("stored_every", [1, 1000])
def test_a_record_that_fails_in_absorbing_leaves_the_model_as_without_it(
    tmp_path: Path, stored_every: int
) -> None:
    poisoned = ServerFixture(tmp_path / "poisoned", batch_updates_max=stored_every)
    clean = ServerFixture(tmp_path / "clean", batch_updates_max=stored_every)
    before = [("attic", 1), ("cellar", 1), ("attic", 2)]
    after = [("attic", 3), ("cellar", 2)]
    for site, poison in ((poisoned, [("poison", 1), ("poison", 2)]), (clean, [])):
        site.send(*updates_of(site, *before, *poison, *after))
    assert poisoned.run() == clean.run()
    reasons = [dict(record.headers)["reason"] for record in poisoned.rejected().values()]
    assert reasons == [b"failed", b"failed"]
    # A restart reads nothing twice, and a rebuild sets the same records aside.
    assert poisoned.run() == clean.run()
    poisoned.delete_checkpoint()
    assert poisoned.run(rebuild=True) == clean.run()
    assert len(poisoned.rejected()) == 2


@pytest.mark.usefixtures("fragile")
def test_a_first_update_that_fails_in_merging_is_left_out_and_its_client_is_put_into_quarantine(
    tmp_path: Path,
) -> None:
    poisoned = ServerFixture(tmp_path / "poisoned", pool_clients=3)
    clean = ServerFixture(tmp_path / "clean", pool_clients=2)
    poisoned.send(*updates_of(poisoned, ("attic", 1), ("poison", 1), ("cellar", 1)))
    clean.send(*updates_of(clean, ("attic", 1), ("cellar", 1)))
    with poisoned.server() as node:
        step_all(node)
        assert [entry.client for entry in node.status().quarantined] == ["poison"]
        assert models_of(node) == clean.run()
        poisoned.send(*updates_of(poisoned, ("poison", 2)))
        step_all(node)
        assert models_of(node) == clean.run()
