"""A small federation with models in rounds: clients read all their readings first, then the rounds
are run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.onebox.federation import OneBox
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot
from shoal.runtime.service import resumed
from tests.house.small_federation import CLIENTS, all_records, clock, create_federation

KMEANS = """
[[models]]
name = "heaps"
algorithm = "kmeans"
options = { clusters = 5 }
[models.rounds]
quorum = 1
"""


def create_rounds_federation(
    folder: Path, models: str, clients: Sequence[str] = CLIENTS, readings: int = 400
) -> Path:
    """A federation with these models whose clients have readings but have learnt nothing; returns
    its file."""
    file = create_federation(folder, clients, readings, pool_clients=len(clients))
    text = file.read_text(encoding="utf-8")
    # With noise, which differs for each readings log, the number of rounds would differ too.
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', 'mode = "off"')
    before, rest = text.split("[[models]]")
    file.write_text(before + models + "[log]" + rest.split("[log]")[1], encoding="utf-8")
    return file


def run_in_rounds(file: Path, clients: Sequence[str] = CLIENTS) -> None:
    """Run every client until it is idle, then the federation until all are."""
    config = load_config(file)
    for client in sorted(clients):
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass
    with OneBox(config, clients, clock) as box:
        box.run_until_idle()


def snapshots_by_version(config: Config, model: str) -> dict[int, bytes]:
    """version -> the encoded snapshot of a model, without the positions.

    An update repeated after a kill is in the log twice, so positions depend on kills; nothing else
    does. A snapshot published again with the same version has the same bytes.
    """
    found: dict[int, bytes] = {}
    for record in all_records(config.log.address, config.contract.snapshots_topic):
        if record.key == model.encode() and record.value is not None:
            snapshot = Snapshot.decode(record.value, record.headers)
            assert found.setdefault(snapshot.version, record.value) == record.value
    return {version: _without_positions(value) for version, value in found.items()}


def _without_positions(value: bytes) -> bytes:
    return pack(vars(Snapshot.decode(value, Snapshot.headers())) | {"positions": []})
