"""A house of separate processes that a producer feeds, and what must be true of it in the end whatever happened."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from client_nodes.node import ClientNode
from client_nodes.resources import ClientResources
from server_node.node import ServerNode
from shoal.config.settings import Config, LogSettings, load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import READINGS, ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.readings_log import open_client_log, open_readings
from shoal.transports import open_log
from tests.house.processes import Process
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    final_model,
    model_bytes,
    said,
    updates_by_client,
    weather,
    write_federation,
)

READINGS_EACH = 3000
PUBLISH_READINGS = 100
FINISH = ["--until-idle", "3"]


def whole_house(folder: Path, address: str, log: str = "") -> Path:
    """The federation file of a house, with more under [log], and what its producer will read."""
    sizes = {"publish_readings": PUBLISH_READINGS, "batch_readings_max": 60, "batch_updates_max": 3}
    write_csv(folder / "sites.csv")
    file = write_federation(folder, **sizes, address=address)
    file.write_text(file.read_text(encoding="utf-8").replace("[client]", f"{log}\n[client]"), encoding="utf-8")
    return file


def write_csv(path: Path) -> None:
    """Readings of all clients in turn, as one site manager would export them."""
    streams = [weather(READINGS_EACH, seed) for seed in range(len(CLIENTS))]
    rows = [
        f"{1e9 + number},{client},{warm!r},{damp!r}"
        for number in range(READINGS_EACH)
        for client, (warm, damp) in zip(CLIENTS, (stream[number].tolist() for stream in streams), strict=True)
    ]
    path.write_text("\n".join(["time,site,warm,damp", *rows]) + "\n", encoding="utf-8")


def start_all(file: Path, rate: int = 1500) -> list[Process]:
    """The server, the clients, and a producer of so many readings per second over all of them."""
    folder = file.parent
    words = {"server": ["server", "--config", str(file), "--no-page"]}
    words |= {name: ["client", "--config", str(file), "--name", name] for name in CLIENTS}
    words["producer"] = ["producer", "--config", str(file), str(folder / "sites.csv")]
    words["producer"] += ["--split", "column:site", "--time-column", "time", "--rate", f"{rate}/s"]
    return [Process(said_words, folder / f"{name}.txt") for name, said_words in words.items()]


def at_work(clients: Sequence[Process]) -> bool:
    """Whether all of these have published."""
    return all(client.said().count("updates_published") > 2 for client in clients)


def spooled(config: Config, client: str) -> tuple[int, int]:
    """The first reading that is kept, and where the next one goes."""
    with closing(open_readings(config, client)) as log:
        return log.bounds(READINGS)[0]


def every_reading_came_once(config: Config) -> bool:
    """Whether every reading has come to its client, each once."""
    for client in CLIENTS:
        with closing(open_readings(config, client)) as log:
            log.ensure(READINGS)
            if log.bounds(READINGS)[0][1] != READINGS_EACH:
                return False
    return True


def undisturbed_updates(config: Config, client: str, scratch: Path) -> list[bytes]:
    """What this client would have said, from the same readings and key, never killed."""
    home = config.client.folder / client
    shutil.copytree(home, scratch / client)
    there = config.model_copy(update={"client": config.client.model_copy(update={"folder": scratch})})
    with (
        closing(open_client_log(there, client)) as readings,
        closing(open_log(f"sqlite:{scratch / f'{client}.db'}")) as log,
        Checkpoint(scratch / f"{client}-checkpoint.db", client) as checkpoint,
    ):
        ensure_topics(log, config.contract)
        premises = ClientResources(readings, checkpoint, (home / "noise.key").read_bytes())
        node = ClientNode(config.contract, client, config.client, premises, log, clock=clock)
        node.resume()
        while node.step():
            pass
        found, _ = log.read(config.contract.updates_topic, {0: 0}, 10**6)
    return [said(Update.decode(record.value, record.headers)) for record in found]


def embedded_copy(config: Config, scratch: Path) -> Config:
    """The same updates in the same order, on an embedded log."""
    there = config.model_copy(update={"log": LogSettings(address=f"sqlite:{scratch / 'copy.db'}")})
    with closing(open_log(there.log)) as log:
        ensure_topics(log, config.contract)
        for record in all_records(config.log.address, config.contract.updates_topic):
            log.publish(record.topic, record.value, record.key, record.headers)
    return there


def replayed(config: Config, memory: Path) -> bytes:
    """The model that the log of updates gives when it is read again from its beginning by a server that never died."""
    with (
        closing(open_log(config.log)) as log,
        Checkpoint(memory, "replay") as checkpoint,
    ):
        server = ServerNode(config.contract, config.server, log, checkpoint, rebuild=True, clock=clock)
        server.resume()
        while server.step():
            pass
        return model_bytes(server)


def finish(processes: list[Process], folder: Path) -> None:
    """Let the producer end, then every client, then the server, each when nothing is left to do."""
    processes[-1].end()
    for place in range(1, len(processes) - 1):
        processes[place].kill()
        processes[place] = Process([*processes[place].words, *FINISH], folder / f"{CLIENTS[place - 1]}.txt")
    for client in processes[1:-1]:
        client.end()
    processes[0].kill()
    processes[0] = Process([*processes[0].words, *FINISH], folder / "server.txt")
    processes[0].end()


def check_nothing_lost_and_nothing_twice(file: Path, scratch: Path) -> None:
    """Every reading is learnt once, every update says what it must, and the model is what the log makes of anybody."""
    config = load_config(file)
    assert every_reading_came_once(config)
    heard = updates_by_client(config)
    assert set(heard) == set(CLIENTS)
    for client, by_number in heard.items():
        wanted = undisturbed_updates(config, client, scratch / "undisturbed")
        assert sorted(by_number) == list(range(1, len(wanted) + 1))
        assert len(wanted) == READINGS_EACH // PUBLISH_READINGS
        for number, update in enumerate(wanted, start=1):
            assert {said(again) for again in by_number[number]} == {update}, f"update {number} of {client}"
    model = final_model(file)
    assert model == replayed(config, scratch / "replay.db")
    assert model == replayed(embedded_copy(config, scratch), scratch / "copied.db")
