"""Sequences of honest and hostile events, by a state machine: what a server becomes, its log alone
decides.

Whatever happens in whatever order (updates, damaged messages, clients that are quarantined,
released and unlearned, restarts), a server that has lost its checkpoint becomes the same one again
from the log.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from shoal.protocol.messages import Update
from tests.hostile.fuzzing import passed, save_passed, share_of
from tests.hostile.fuzzing.mutations import changed_bytes
from tests.server_node.server_fixture import ServerFixture, models_of
from tests.server_node.test_quarantine import ask
from tests.small_plant import an_update

CLIENTS = st.sampled_from(["attic", "cellar", "garden"])


class HostileSequence(RuleBasedStateMachine):
    """One folder with a log, and a server that is started for each look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-fuzz-")
        self.site = ServerFixture(Path(self.folder.name), step_s=60.0)
        self.sequence: Counter[str] = Counter()
        self.records = 0

    @rule(client=CLIENTS, count=st.integers(1, 3))
    def updates(self, client: str, count: int) -> None:
        for _ in range(count):
            self.sequence[client] += 1
            self.site.send(an_update(self.site.contract, client, self.sequence[client], rows=20))
        self.records += count

    @rule(client=CLIENTS)
    def a_repeated_update(self, client: str) -> None:
        self.site.send(
            an_update(self.site.contract, client, max(1, self.sequence[client]), rows=20)
        )
        self.records += 1

    @rule(client=CLIENTS, number=st.integers(0, 2**32))
    def a_damaged_update(self, client: str, number: int) -> None:
        value = an_update(self.site.contract, client, self.sequence[client] + 1, rows=20).encode()
        damaged = changed_bytes(random.Random(number), value, [value])
        self.site.publish(("clusters", damaged, Update.headers()))
        self.records += 1

    @rule(client=CLIENTS, action=st.sampled_from(["quarantine", "release", "unlearn"]))
    def a_request(self, client: str, action: str) -> None:
        ask(self.site, client, action)
        self.records += 1

    @rule()
    def the_server_runs(self) -> None:
        self.site.run()

    @rule()
    def the_server_is_stopped_after_one_step(self) -> None:
        with self.site.server() as server:
            server.step()

    @precondition(lambda self: self.records > 0)
    @rule()
    def the_checkpoint_is_lost(self) -> None:
        before = self.site.run()
        with self.site.server() as server:
            quarantined = server.status().quarantined
        self.site.delete_checkpoint()
        assert self.site.run(rebuild=True) == before
        with self.site.server() as server:
            assert models_of(server) == before
            assert server.status().quarantined == quarantined

    def teardown(self) -> None:
        self.site.run()
        reasons = [dict(record.headers)["reason"] for record in self.site.rejected().values()]
        assert b"failed" not in reasons, "a check is missing"
        self.folder.cleanup()
        save_passed("sequence", passed("sequence") + 1)


TestHostileSequence = HostileSequence.TestCase
TestHostileSequence.settings = settings(
    max_examples=max(3, share_of(0.02) // 10 - passed("sequence")),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
