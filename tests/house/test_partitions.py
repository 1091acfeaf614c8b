"""On brokers or embedded, on one partition or several: each model has its own order, and is the same to the bit."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest

from onebox.federation import OneBox
from server_node.bootstrap import open_server
from server_node.models.rounds import RoundsModel
from shoal.config.settings import Config, load_config
from shoal.errors import LogError
from shoal.protocol.codec import pack
from shoal.transports.base import partition_of
from tests.house.rounds_federation import begin_in_rounds
from tests.house.small_federation import CLIENTS, all_records, clock

# Names that fall on three different partitions of three.
MODELS = """
[[models]]
name = "clusters"
algorithm = "fcac"

[[models]]
name = "heaps"
algorithm = "kmeans"
options = { clusters = 5 }
[models.rounds]
quorum = 1

[[models]]
name = "fuzzy"
algorithm = "fcm"
options = { clusters = 3 }
[models.rounds]
quorum = 1
"""


def on_partitions(file: Path, partitions: int) -> Config:
    config = load_config(file)
    return config.model_copy(update={"log": config.log.model_copy(update={"partitions": partitions})})


def models_after(config: Config) -> dict[str, bytes]:
    """name -> what the model has learnt, to the bit, when nobody has anything left to do."""
    with OneBox(config, CLIENTS, clock) as box:
        box.run_until_idle()
        return {
            name: pack(model.params if isinstance(model, RoundsModel) else model.state()["half"])
            for name, model in box.server.models().items()
        }


@pytest.mark.parametrize(("where", "partitions"), [("sqlite", 3), ("kafka", 1), ("kafka", 3)])
def test_three_models_on_a_broker_or_on_three_partitions_are_the_models_on_one_embedded(
    where: str, partitions: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # What is drawn at a start is drawn from the federation's name, so both have the same.
    name = f"house-{uuid.uuid4().hex}"
    for folder in (one := tmp_path / "one", other := tmp_path / "other"):
        folder.mkdir()
        file = begin_in_rounds(folder, MODELS)
        file.write_text(file.read_text(encoding="utf-8").replace('name = "house"', f'name = "{name}"'), "utf-8")
    config = on_partitions(other / "house.toml", partitions)
    if where == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
        config = config.model_copy(update={"log": config.log.model_copy(update={"address": address})})
    alone = models_after(on_partitions(one / "house.toml", 1))
    assert models_after(config) == alone
    assert len(alone) == 3
    places = Counter((r.partition, r.key) for r in all_records(config.log.address, config.contract.updates_topic))
    assert {partition for partition, _ in places} == set(range(partitions))
    assert all(partition == partition_of(key, partitions) for partition, key in places)


def test_a_log_with_one_partition_is_not_taken_for_one_with_three(tmp_path: Path) -> None:
    file = begin_in_rounds(tmp_path, MODELS)
    with open_server(on_partitions(file, 1), clock=clock):
        pass
    with pytest.raises(LogError, match="partitions is 1, not 3"), open_server(on_partitions(file, 3)):
        pass
