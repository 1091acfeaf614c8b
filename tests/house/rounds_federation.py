"""A small federation with models in rounds, run in a fixed order: first every reading is taken in, then all talk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client_nodes.bootstrap import open_client
from onebox.federation import OneBox
from shoal.config.settings import Config, load_config
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot
from tests.house.small_federation import CLIENTS, all_records, begin, clock

KMEANS = """
[[models]]
name = "heaps"
algorithm = "kmeans"
options = { clusters = 5 }
[models.rounds]
quorum = 1
"""


def begin_in_rounds(folder: Path, models: str, clients: Sequence[str] = CLIENTS, readings: int = 400) -> Path:
    """A federation with these models whose clients have readings but have learnt nothing; returns its file."""
    file = begin(folder, clients, readings, pool_clients=len(clients))
    text = file.read_text(encoding="utf-8")
    # Noise differs with each readings log, and with it how many rounds there are: here they are counted.
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', 'mode = "off"')
    before, rest = text.split("[[models]]")
    file.write_text(before + models + "[log]" + rest.split("[log]")[1], encoding="utf-8")
    return file


def run_in_rounds(file: Path, clients: Sequence[str] = CLIENTS) -> None:
    """Until nothing is left to do."""
    config = load_config(file)
    for client in sorted(clients):
        with open_client(config, client, clock=clock) as node:
            while node.step():
                pass
    with OneBox(config, clients, clock) as box:
        box.run_until_idle()


def snapshots_by_version(config: Config, model: str) -> dict[int, bytes]:
    """version -> what was published of a model under that number, but for how far the log had been read.

    A word repeated after a kill stands in the log twice, so positions depend on kills; nothing else does. What was
    published again under the same number is the same to the bit.
    """
    said: dict[int, bytes] = {}
    for record in all_records(config.log.address, config.contract.snapshots_topic):
        if record.key == model.encode() and record.value is not None:
            snapshot = Snapshot.decode(record.value, record.headers)
            assert said.setdefault(snapshot.version, record.value) == record.value
    return {version: _without_positions(value) for version, value in said.items()}


def _without_positions(value: bytes) -> bytes:
    return pack(vars(Snapshot.decode(value, Snapshot.headers())) | {"positions": []})
