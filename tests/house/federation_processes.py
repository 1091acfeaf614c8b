"""A federation of separate processes fed by a producer, and the check that each reading counted
exactly once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from shoal.client_nodes.node import ClientNode, ClientResources
from shoal.config.settings import Config, LogSettings, load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import READINGS, ensure_local_topics, ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_client_log, open_readings
from shoal.server_node.history.store import HistoryStore
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from tests.house.processes import Process, wait_until
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    contents,
    final_model,
    model_bytes,
    updates_by_client,
    weather,
    write_federation,
)

PART_READINGS = 1200
"""readings of each client in one file for the producer"""
PUBLISH_READINGS = 100
FINISH = ["--until-idle", "3"]


def prepare_federation(folder: Path, address: str, log: str = "") -> Path:
    """Write a federation file, with `log` as more settings under [log], and the first file for the
    producer."""
    sizes = {"publish_readings": PUBLISH_READINGS, "batch_readings_max": 60, "batch_updates_max": 3}
    write_part(folder)
    file = write_federation(folder, **sizes, address=address)
    file.write_text(
        file.read_text(encoding="utf-8").replace("[client]", f"{log}\n[client]"), encoding="utf-8"
    )
    return file


def write_part(folder: Path) -> Path:
    """Write the next file for the producer: readings of all clients in turn, as one site manager
    would export them."""
    part = len(parts(folder))
    streams = [
        weather(PART_READINGS, seed)
        for seed in range(part * len(CLIENTS), (part + 1) * len(CLIENTS))
    ]
    rows = [
        f"{1e9 + part * PART_READINGS + number},{client},{warm!r},{damp!r}"
        for number in range(PART_READINGS)
        for client, (warm, damp) in zip(
            CLIENTS, (stream[number].tolist() for stream in streams), strict=True
        )
    ]
    path = folder / f"sites-{part + 1}.csv"
    path.write_text("\n".join(["time,site,warm,damp", *rows]) + "\n", encoding="utf-8")
    return path


def parts(folder: Path) -> list[Path]:
    """The files written for the producer so far."""
    return list(folder.glob("sites-*.csv"))


def readings_each(file: Path) -> int:
    """Readings of each client in all files for the producer."""
    return PART_READINGS * len(parts(file.parent))


def start_all(file: Path, rate: int = 1500) -> list[Process]:
    """Start the server, the clients and, as the last, a producer of `rate` readings per second for
    all clients."""
    folder = file.parent
    arguments = {"server": ["server", "--config", str(file), "--no-page"]}
    arguments |= {name: ["client", "--config", str(file), "--name", name] for name in CLIENTS}
    arguments["producer"] = ["producer", "--config", str(file), *map(str, parts(folder))]
    arguments["producer"] += [
        "--split",
        "column:site",
        "--time-column",
        "time",
        "--rate",
        f"{rate}/s",
    ]
    return [Process(argument, folder / f"{name}.txt") for name, argument in arguments.items()]


def keep_feeding(processes: list[Process], file: Path) -> None:
    """Start a producer with another file if the last one has ended, so that clients do not run out
    of readings.

    How long readings last must not depend on how fast this machine is.
    """
    if processes[-1].running():
        return
    processes[-1].end()
    path = str(write_part(file.parent))
    arguments = [
        path if argument.endswith(".csv") else argument for argument in processes[-1].arguments
    ]
    processes[-1] = Process(arguments, file.parent / "producer.txt")


def wait_for_updates(processes: list[Process], file: Path, number: int = 1) -> None:
    """Return once the clients have published `number` more updates, fed with more readings if need
    be."""

    def published() -> int:
        return sum(client.log_text().count("updates_published") for client in processes[1:-1])

    def reached() -> bool:
        keep_feeding(processes, file)
        return published() >= before + number

    before = published()
    wait_until(reached)


def have_published(clients: Sequence[Process]) -> bool:
    """Whether each of these has published some updates."""
    return all(client.log_text().count("updates_published") > 2 for client in clients)


def stored_range(config: Config, client: str) -> tuple[int, int]:
    """(offset of the first reading kept, offset of the next one) in a client's readings log."""
    with closing(open_readings(config, client)) as log:
        return log.bounds(READINGS)[0]


def undisturbed_updates(config: Config, client: str, scratch: Path) -> list[bytes]:
    """The contents of the updates that a client makes of the same readings and key if it is never
    killed."""
    folder = config.client.folder / client
    shutil.copytree(folder, scratch / client)
    copied = config.model_copy(
        update={"client": config.client.model_copy(update={"folder": scratch})}
    )
    with (
        closing(open_client_log(copied, client)) as readings,
        closing(open_log(f"sqlite:{scratch / f'{client}.db'}")) as log,
        Checkpoint(scratch / f"{client}-checkpoint.db", client) as checkpoint,
    ):
        ensure_topics(log, config.contract)
        ensure_local_topics(readings, config.client)
        resources = ClientResources(readings, checkpoint, (folder / "noise.key").read_bytes())
        node = ClientNode(config.resolved, client, config.client, resources, log, clock=clock)
        node.resume()
        while node.step():
            pass
        found, _ = log.read(config.contract.updates_topic, {0: 0}, 10**6)
    return [contents(Update.decode(record.value, record.headers)) for record in found]


def embedded_copy(config: Config, scratch: Path) -> Config:
    """The federation with the same updates in the same order on an embedded log."""
    copied = config.model_copy(update={"log": LogSettings(address=f"sqlite:{scratch / 'copy.db'}")})
    with closing(open_log(copied.log)) as log:
        ensure_topics(log, config.contract)
        for record in all_records(config.log.address, config.contract.updates_topic):
            log.publish(record.topic, record.value, record.key, record.headers)
    return copied


def replayed_model(config: Config, checkpoint_file: Path) -> bytes:
    """The model of a server that reads the topic of updates from its beginning and is never
    killed."""
    with (
        closing(open_log(config.log)) as log,
        Checkpoint(checkpoint_file, "replay") as checkpoint,
    ):
        server = ServerNode(
            config.resolved,
            config.server,
            log,
            checkpoint,
            rebuild=True,
            clock=clock,
            history=HistoryStore(config.resolved),
        )
        server.resume()
        while server.step():
            pass
        return model_bytes(server)


def finish(processes: list[Process], folder: Path) -> None:
    """Let the producer end, then every client, then the server, each when it has nothing left to
    do."""
    processes[-1].end()
    for place in range(1, len(processes) - 1):
        processes[place].kill()
        processes[place] = Process(
            [*processes[place].arguments, *FINISH], folder / f"{CLIENTS[place - 1]}.txt"
        )
    for client in processes[1:-1]:
        client.end()
    processes[0].kill()
    processes[0] = Process([*processes[0].arguments, *FINISH], folder / "server.txt")
    processes[0].end()


def check_exactly_once(file: Path, scratch: Path) -> None:
    """Check that no reading is lost or learnt twice, each update is right, and a replay gives the
    same model."""
    config = load_config(file)
    total = readings_each(file)
    assert {client: stored_range(config, client)[1] for client in CLIENTS} == dict.fromkeys(
        CLIENTS, total
    )
    published = updates_by_client(config)
    assert set(published) == set(CLIENTS)
    for client, by_sequence in published.items():
        expected = undisturbed_updates(config, client, scratch / "undisturbed")
        assert sorted(by_sequence) == list(range(1, len(expected) + 1))
        assert len(expected) == total // PUBLISH_READINGS
        for sequence, update in enumerate(expected, start=1):
            assert {contents(part) for part in by_sequence[sequence]} == {update}, (
                f"update {sequence} of {client}"
            )
    model = final_model(file)
    assert model == replayed_model(config, scratch / "replay.db")
    assert model == replayed_model(embedded_copy(config, scratch), scratch / "copied.db")
