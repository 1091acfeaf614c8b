"""What is timed: clients publish updates and answers, and servers take them in, all in this
process; and the path of readings from a file to the model, by default settings.

It is started as a script in this version and in the other one, so it uses only what both have. It
prints JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import shoal
from shoal.config.settings import Config, load_config
from shoal.estimators.fcac import FCAC
from shoal.kernels.forms import PROCESS
from shoal.privacy import Bounds, load_mode
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_readings
from shoal.transports.base import RecordBatch, publish_batch

try:
    from shoal.runtime.service import resumed
except ImportError:  # in a version whose nodes are resumed where they are opened

    def resumed(opened: Any) -> Any:
        """What is opened, which is resumed."""
        return opened


TREE = Path(shoal.__file__).parent.parent

try:
    import shoal.client_nodes

    if not Path(shoal.client_nodes.__file__ or "").is_relative_to(TREE):
        raise ImportError("of the version that is installed here, in this version's package")
    from shoal.client_nodes.bootstrap import open_client
    from shoal.producers.producer_command import producer
    from shoal.server_node.bootstrap import open_server
    from shoal.server_node.node import ServerNode
except ImportError:  # in a version that installs a package for each folder
    # mypy takes the same file for another module, whose functions and classes are others.
    from client_nodes.bootstrap import open_client  # type: ignore[assignment]  # another module
    from producers.producer_command import producer  # type: ignore[assignment]  # another module
    from server_node.bootstrap import open_server
    from server_node.node import ServerNode  # type: ignore[assignment]  # another module

MODEL = "clusters"
CLIENTS = 4
DIMENSIONS = 8
CENTRES = 20
SPREAD = 0.01
UPDATE_READINGS = 100
STREAMING = (
    f'[privacy]\nmode = "formal"\nepsilon_per_reading = {20.0 * DIMENSIONS}\n'
    # Fixed, as defaults of versions differ.
    f'[[models]]\nname = "{MODEL}"\nalgorithm = "fcac"\n'
    "options = { nodes_max = 2000, client_share_max = 0.95 }\n"
)
SERVERS = {"batches": "", "single": "batch_updates_max = 1\nsnapshot_updates = 1\n"}
"""name -> settings: with the defaults, and with a checkpoint and a snapshot for every update"""
ANSWERING = 20
"""clients in rounds"""
WINDOW_ROWS = 200
ROUNDS = (
    f'[privacy]\nmode = "off"\n[[models]]\nname = "{MODEL}"\nalgorithm = "kmeans"\noptions = {{'
    " clusters = 10 }\n[models.rounds]\nquorum = 1.0\ndeadline_s = 86400\ntolerance ="
    " 0.0\nrounds_max = 10000\n"
)


PATH_DIMENSIONS = 16
PATH_UPDATE_READINGS = 500
PATH_EPSILON = 20.0 * PATH_DIMENSIONS
PATH_MODEL = (
    f'[privacy]\nmode = "formal"\nepsilon_per_reading = {PATH_EPSILON}\n'
    f'[[models]]\nname = "{MODEL}"\nalgorithm = "fcac"\n'
)
WARM_READINGS = 8000
"""enough for every process of a path to load its compiled kernels"""
WRITTEN_READINGS = 2000
"""readings that a producer stores for a client at once where it does not wait for them"""
READ_READINGS = 1000
"""readings that a client reads at once"""
SYNCS = 50
SYNCED_BYTES = 16384


class Node(Protocol):
    """A client or a server."""

    def step(self) -> bool: ...


def measure(folder: Path, updates: int, seed: int) -> dict[str, Any]:
    """Processor seconds of all clients, and of servers on what these published."""
    streaming = folder / "streaming"
    rounds = folder / "rounds"
    streaming.mkdir()
    rounds.mkdir()
    found = _streaming(streaming, updates, seed) | _rounds(rounds, updates // ANSWERING, seed)
    return {"tree": str(TREE), **found}


def _streaming(folder: Path, updates: int, seed: int) -> dict[str, Any]:
    """Updates of FCAC: of clients in turn, and of a server with each of `SERVERS`."""
    config = _config(folder, "clients", CLIENTS, STREAMING)
    found: dict[str, Any] = {}
    with _open_clients(config, CLIENTS, updates // CLIENTS * UPDATE_READINGS, seed) as clients:
        found["client"] = 0.0
        while used := _turn(clients):
            found["client"] += used
    for name, settings in SERVERS.items():
        shutil.copy(folder / "clients.db", folder / f"{name}.db")
        with resumed(
            open_server(_config(folder, name, CLIENTS, STREAMING, settings), clock=_clock)
        ) as server:
            began = time.process_time()
            _run(server)
            found[name] = time.process_time() - began
            snapshot = server.models()[MODEL].snapshot
            assert snapshot is not None
            found |= {"absorbed": snapshot.updates, "nodes": snapshot.nodes}
    return found


def _rounds(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Answers of k-means: of clients in turn, and of a server, which combines those of each
    round."""
    config = _config(folder, "clients", ANSWERING, ROUNDS)
    found = {"answer": 0.0, "combine": 0.0}
    with (
        _open_clients(config, ANSWERING, WINDOW_ROWS, seed) as clients,
        resumed(open_server(config, clock=_clock)) as server,
    ):
        while _turn(clients):
            pass  # all readings are in the windows then
        _run(server)
        for number in range(rounds + 1):
            answer = _turn(clients)
            began = time.process_time()
            _run(server)
            if number:  # the first one also makes the clients known to the server
                found["answer"] += answer
                found["combine"] += time.process_time() - began
        snapshot = server.models()[MODEL].snapshot
        assert snapshot is not None
        return found | {"answered": snapshot.updates - ANSWERING}


def measure_path(folder: Path, readings: int, seed: int) -> dict[str, Any]:
    """Processor seconds of a producer, of clients and of a server for these readings, one after the
    other; and of what none of them can do without: numbers read from text, arithmetic, and the log.
    """
    PROCESS.start()
    generator = np.random.default_rng([seed, CENTRES])
    centres = generator.uniform(size=(CENTRES, PATH_DIMENSIONS))
    rows = centres[generator.integers(CENTRES, size=readings)]
    rows = np.clip(rows + generator.normal(0, SPREAD, rows.shape), 0.0, 1.0)
    for name, some in (("warm", rows[:WARM_READINGS]), ("path", rows)):
        own = folder / name
        own.mkdir()
        file = own / "readings.csv"
        names = ",".join(f"x{n}" for n in range(PATH_DIMENSIONS))
        np.savetxt(file, some, "%.6f", ",", header=names, comments="")
        found = _path(own, file, len(some), seed)
        found |= {"arithmetic": _arithmetic(some), **_alone(own, file, some)}
    return {"tree": str(TREE), **found}


def _path(folder: Path, file: Path, readings: int, seed: int) -> dict[str, Any]:
    """Seconds of each process, with the defaults of all settings."""
    features = "".join(
        f'[[features]]\nname = "x{n}"\nlow = 0.0\nhigh = 1.0\n' for n in range(PATH_DIMENSIONS)
    )
    federation = folder / "federation.toml"
    federation.write_text(
        f'[federation]\nname = "measured"\n{features}{PATH_MODEL}[log]\naddress ='
        ' "sqlite:federation.db"\n[client]\nfolder = "clients"\n[server]\nfolder ='
        f' "server"\npool_clients = {CLIENTS}\n',
        encoding="utf-8",
    )
    config = load_config(federation)
    found = {"learnt": 0.0}
    _set_secrets(seed, CLIENTS)
    began = time.process_time()
    split = ["--clients", str(CLIENTS), "--split", "round-robin", "--speed", "max"]
    producer.main([str(file), "--config", str(federation), *split], standalone_mode=False)
    found["produced"] = time.process_time() - began
    for number in range(1, CLIENTS + 1):
        _set_secrets(seed, number)
        with resumed(open_client(config, f"client-{number}", clock=_clock)) as client:
            while used := _turn([client]):
                found["learnt"] += used
    with resumed(open_server(config, clock=_clock)) as server:
        began = time.process_time()
        _run(server)
        found["absorbed"] = time.process_time() - began
        snapshot = server.models()[MODEL].snapshot
        assert snapshot is not None
        return found | {"updates": snapshot.updates, "nodes": snapshot.nodes}


def _arithmetic(rows: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Seconds in which one estimator adds noise to the rows and clusters them, without message, log
    and disk."""
    bounds = Bounds([0.0] * PATH_DIMENSIONS, [1.0] * PATH_DIMENSIONS)
    noise = load_mode("formal")(bounds, {"epsilon_per_reading": PATH_EPSILON}).mechanism(
        bytes(32), "one", bytes(16)
    )
    places = np.stack([np.zeros(len(rows), dtype=np.int64), np.arange(len(rows))], axis=1)
    owners = np.arange(len(rows)) % CLIENTS
    model = FCAC()
    size = PATH_UPDATE_READINGS * CLIENTS
    began = time.process_time()
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        model.partial_fit(noise.privatise(rows[part], places[part]).rows, clients=owners[part])
    return time.process_time() - began


def _alone(
    folder: Path, file: Path, rows: np.ndarray[Any, np.dtype[np.float64]]
) -> dict[str, float]:
    """Seconds of each thing alone: the numbers of a file, the readings through a log, and a synced
    write, which is the median by the wall clock and not of all readings."""
    began = time.process_time()
    np.loadtxt(file, delimiter=",", skiprows=1)
    found = {"numbers": time.process_time() - began}
    values = Reading.encode_many([None] * len(rows), rows)
    headers = (*Reading.headers(), ("source", b"0123456789abcdef.0"))
    numbers = [b"%d" % number for number in range(len(rows))]
    config = load_config(folder / "federation.toml")
    (config.client.folder / "alone").mkdir()
    with closing(open_readings(config, "alone")) as log:
        began = time.process_time()
        at = {0: 0}
        read = 0
        for start in range(0, len(values), WRITTEN_READINGS):
            part = slice(start, start + WRITTEN_READINGS)
            publish_batch(
                log, READINGS, RecordBatch(values[part], headers, [("number", numbers[part])]), 0
            )
            log.flush()
        while read < len(values):
            records, at = log.read(READINGS, at, READ_READINGS)
            read += len(records)
        found["log"] = time.process_time() - began
    with (folder / "synced").open("wb") as synced:
        took = []
        for _ in range(SYNCS):
            synced.write(bytes(SYNCED_BYTES))
            synced.flush()
            began = time.perf_counter()
            os.fsync(synced.fileno())
            took.append(time.perf_counter() - began)
    return found | {"sync": float(np.median(took))}


def _clock() -> float:
    """Always the same, so that nothing happens by time."""
    return 1_700_000_000.0


def _turn(nodes: Sequence[Node]) -> float:
    """Processor time of one step of each; 0 when none had anything to do."""
    began = time.process_time()
    worked = [node.step() for node in nodes]
    return time.process_time() - began if any(worked) else 0.0


def _run(server: ServerNode) -> None:
    """Let the server do all that there is to do."""
    while server.step():
        pass


def _config(folder: Path, name: str, clients: int, terms: str, server: str = "") -> Config:
    """A federation file whose log is `name`.db; `terms` are the privacy and the models."""
    features = "".join(
        f'[[features]]\nname = "x{n}"\nlow = 0.0\nhigh = 1.0\n' for n in range(DIMENSIONS)
    )
    file = folder / f"{name}.toml"
    file.write_text(
        f'[federation]\nname = "measured"\n{features}{terms}[log]\naddress ='
        f' "sqlite:{name}.db"\n[client]\nfolder = "clients"\npublish_readings ='
        f" {UPDATE_READINGS}\nbatch_readings_max = {UPDATE_READINGS}\n[server]\nfolder ="
        f' "{name}"\npool_clients = {clients}\n{server}',
        encoding="utf-8",
    )
    return load_config(file)


@contextmanager
def _open_clients(config: Config, clients: int, readings: int, seed: int) -> Iterator[list[Node]]:
    """Clients, each with the same number of readings around centres that are the same for all."""
    centres = np.random.default_rng(CENTRES).uniform(size=(CENTRES, DIMENSIONS))
    with ExitStack() as stack:
        nodes: list[Node] = []
        for number in range(clients):
            generator = np.random.default_rng([seed, number])
            kinds = generator.integers(CENTRES, size=readings)
            _set_secrets(seed, number)
            _write_readings(
                config,
                f"client-{number}",
                centres[kinds] + generator.normal(0, SPREAD, (readings, 8)),
            )
            nodes.append(
                stack.enter_context(resumed(open_client(config, f"client-{number}", clock=_clock)))
            )
        yield nodes


def _set_secrets(seed: int, client: int) -> None:
    """Keys and identities by seed, client and length alone, in whatever order a version asks for
    them: other noise would give the server another number of nodes, and other work."""

    def token_bytes(nbytes: int | None = None) -> bytes:
        return hashlib.shake_256(f"{seed} {client} {nbytes}".encode()).digest(nbytes or 32)

    secrets.token_bytes = token_bytes
    secrets.token_hex = lambda nbytes=None: token_bytes(nbytes).hex()


def _write_readings(
    config: Config, client: str, rows: np.ndarray[Any, np.dtype[np.float64]]
) -> None:
    (config.client.folder / client).mkdir(parents=True)
    with closing(open_readings(config, client)) as log:
        for number, row in enumerate(rows):
            log.publish(READINGS, Reading(float(number), row).encode(), None, Reading.headers())
        log.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        what = {"parts": measure, "path": measure_path}[sys.argv[1]]
        print(json.dumps(what(Path(scratch), int(sys.argv[2]), int(sys.argv[3]))))
