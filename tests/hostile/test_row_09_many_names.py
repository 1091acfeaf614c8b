"""Row 9: many names with large answers fill neither memory nor checkpoint: what is beyond a quota
is rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.protocol.codec import pack, unpack
from shoal.telemetry.metrics import ServerMetrics
from tests.hostile.attacked_rounds import AttackedRounds, step_all
from tests.server_node.rounds_harness import SITES
from tests.server_node.server_fixture import ServerFixture, states_of, updates_of

# The start of the paper: k-means++ at each of so many answers would take most of the time.
KFED = {"clusters": 512, "pick": "farthest", "average": "unweighted"}
NAMES = [f"made-up-{number}" for number in range(120)]


def test_answers_beyond_the_quota_are_rejected_and_the_checkpoint_stays_small(
    tmp_path: Path,
) -> None:
    site = AttackedRounds(tmp_path, "kfed", KFED, between="cache", answers_bytes_max=100_000)
    metrics = ServerMetrics()
    with site.server(metrics=metrics) as node:
        step_all(node)
        first = site.newest()
        rng = np.random.default_rng(1)
        large = {"prototype": rng.random((512, 2)), "count": np.full(512, 100.0)}
        site.send(*(site.make_answer(first, name, large, readings=512 * 100) for name in NAMES))
        step_all(node)
        known = {name for name, *_ in node.models()["heaps"].clients.totals()}
        assert 0 < len(known) < len(NAMES) / 10
        states = states_of(node)
        # The quota bounds the answers kept; the rest is of 512 clusters: snapshot, lineage with the
        # places where clusters lay, and open bins of history. None of it grows with the names.
        assert len(pack(unpack(states["heaps"])["rounds"]["policy_state"]["cached"])) <= 100_000
        assert sum(map(len, states.values())) < 4.2 * 100_000
    assert set(site.reasons()) == {"quota"}
    assert metrics.rejected.labels(reason="quota")._value.get() == len(NAMES) - len(known)


def test_one_answer_has_a_quota_of_its_own(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path, "kfed", KFED, client_bytes_max=4096)
    with site.server() as node:
        step_all(node)
        first = site.newest()
        large = {
            "prototype": np.random.default_rng(1).random((512, 2)),
            "count": np.full(512, 100.0),
        }
        site.send(site.make_answer(first, "large", large, readings=512 * 100))
        step_all(node)
        assert not node.models()["heaps"].clients.names()
    assert site.reasons() == ["quota"]


def test_an_answer_with_more_centres_than_were_asked_for_is_rejected(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path, "kfed")
    with site.server() as node:
        step_all(node)
        first = site.newest()
        large = {
            "prototype": np.random.default_rng(1).random((37_000, 2)),
            "count": np.ones(37_000),
        }
        site.send(site.make_answer(first, "large", large, readings=37_000))
        step_all(node)
        assert site.run_round(node).clients == len(SITES)
    assert site.reasons() == ["claims"]


def test_only_the_named_clients_are_processed(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, clients=("attic", "cellar"), clients_max=1)
    site.send(*updates_of(site, ("attic", 1), ("made-up", 1), ("cellar", 1)))
    site.run()
    assert site.snapshots()[-1].clients == 2
    assert [dict(record.headers)["reason"] for record in site.rejected().values()] == [b"client"]


def test_there_are_no_more_clients_than_the_quota_and_a_rebuild_has_the_same(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path, clients_max=3)
    names = [(name, number) for number in (1, 2) for name in ("attic", *NAMES[:5], "cellar")]
    site.send(*updates_of(site, *names))
    first = site.run()
    assert site.snapshots()[-1].clients == 3
    assert site.snapshots()[-1].updates == 6
    site.run()
    site.delete_checkpoint()
    assert site.run(rebuild=True) == first
    assert len(site.rejected()) == len(names) - 6
