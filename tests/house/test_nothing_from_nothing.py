"""No cluster comes of readings that were all rejected, in any mode and by any algorithm.

The stages of a client take batches as `Intake` gives them, because writing and reading 100 000
records takes longer than all that is tested here; a server absorbs the updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms.registry import (
    algorithm_names,
    counting_names,
    rounds_algorithm,
    rounds_names,
)
from shoal.client_nodes.count_windows import CountWindows
from shoal.client_nodes.intake import Batch, RejectedReading, no_batch
from shoal.client_nodes.learner import Learner
from shoal.client_nodes.privacy import privatise
from shoal.client_nodes.publisher import Publisher
from shoal.client_nodes.round_answers import RoundAnswers
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.config.sections import ClientSettings
from shoal.privacy.ledger import Ledger
from shoal.protocol.topics import READINGS
from shoal.protocol.validation import Validator
from shoal.transports.base import Record
from tests.server_node.server_fixture import ServerFixture

INVALID = 100_000
BATCH = 20_000
WINDOW = 5_000
KEY = bytes(range(32))
LOG = bytes(16)
MODES: dict[str, dict[str, Any]] = {
    "off": {},
    "paper": {"epsilon_nominal_per_feature": 20},
    "formal": {"epsilon_per_reading": 20, "counts_epsilon": 4},
}


def with_every_algorithm(mode: str) -> Contract:
    """A federation with a model of each algorithm that the mode allows; models told K know it."""
    names = [name for name in algorithm_names() if mode != "paper" or name not in counting_names()]
    told = {name for name in rounds_names() if rounds_algorithm(name).takes("clusters")}
    return parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [
                {"name": "warm", "low": -10, "high": 50},
                {"name": "damp", "low": 0, "high": 100},
            ],
            "privacy": {
                "mode": mode,
                **({} if mode == "paper" else {"window_readings": WINDOW}),
                **MODES[mode],
            },
            "models": [
                {
                    "name": name.replace("_", "-"),
                    "algorithm": name,
                    "options": {"clusters": 3} if name in told else {},
                }
                for name in names
            ],
        }
    )


def rejected_batches() -> Iterator[Batch]:
    """`INVALID` readings that are no numbers, a second apart; then a batch without readings."""
    for first in range(0, INVALID, BATCH):
        numbers = range(first, first + BATCH)
        times = [1e9 + number for number in numbers]
        rejected = [
            RejectedReading(
                Record(READINGS, 0, number, 1000 * number, None, b"", ()),
                "not_a_number",
                time,
                0,
                number - first,
            )
            for number, time in zip(numbers, times, strict=True)
        ]
        taken_in_ms = [1000 * number for number in numbers]
        yield no_batch(2)._replace(
            rejected=rejected, record_times=times, taken_in_ms=taken_in_ms, public_times=times
        )
    yield no_batch(2)


@pytest.mark.parametrize("mode", MODES)
def test_of_rejected_readings_no_model_has_a_cluster_an_event_or_an_accepted_reading(
    tmp_path: Path, mode: str
) -> None:
    contract = with_every_algorithm(mode)
    resolved = resolve(contract)
    site = ServerFixture(tmp_path, contract)
    settings = ClientSettings(publish_readings=BATCH)
    validator = Validator(resolved)
    publisher = Publisher(resolved, "attic", validator, 1 << 20)
    mechanism = resolved.mode.mechanism(KEY, "attic", LOG)
    with site.log() as log, Ledger(tmp_path / "ledger.db", "client attic of plant", "0") as ledger:
        snapshots = Snapshots(contract, validator, log)
        learner = Learner(resolved, publisher, settings, 1e9)
        formal = ledger if resolved.mode.formal else None
        windows = CountWindows(
            resolved, "attic", publisher, snapshots, formal, KEY if formal else None, LOG
        )
        answers = RoundAnswers(resolved, "attic", publisher, snapshots, settings)
        with site.server() as server:
            for batch in rejected_batches():
                # A model may ask for updates more often than the setting says, and the readings
                # then do not end with one: what still waits is due by time.
                now = 1e9 if batch.rejected else 1e9 + settings.publish_s
                private = privatise(mechanism, batch, resolved.bounds)
                answers.keep(private, now)
                updates = (
                    learner.learn(private, now)
                    + windows.add(batch, now)
                    + answers.make_answers(now).updates
                )
                for record in (record for update in updates for record in update.records):
                    log.publish(record.topic, record.value, record.key, record.headers)
                log.flush()
                while server.step():
                    pass
            places = INVALID - windows.open_places if resolved.counted else 0
            for name, model in server.models().items():
                assert not model.lineage.clusters, name
                assert not model.status().events, name
                counted = sum(readings for _, _, readings, _ in model.clients.totals())
                assert counted == (places if resolved.models[name].family.client_counts else 0), (
                    name
                )
            [attic] = server.status().clients
            assert attic.rejected == (None if resolved.mode.formal else INVALID), (
                "the page shows it"
            )
