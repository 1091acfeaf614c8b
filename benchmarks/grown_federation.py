"""A federation of one size, in this process: `python -m benchmarks.grown_federation SIZE`, SIZE a
`Size` as JSON.

Its clients run one after the other and the server after each block of readings, and it prints the
`Cost` as JSON. With regions, each is such a federation, and contributes to another one, which has
no other clients.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.process import footprint_of
from benchmarks.streams import Blobs
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.config.upstream import load_upstream
from shoal.kernels.forms import PROCESS
from shoal.protocol.messages import Update
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.server_node.regions.bridge import open_bridge
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.transports import open_log
from shoal.transports.base import RecordBatch, publish_batch

SEED = 4
BLOCK_READINGS = 20_000
"""readings that a client's log gets before the client learns them, and the server what the client
has published"""
STEP_CLIENTS = 50
"""clients that publish between two steps of the server: it stores what it has learnt whenever it
has nothing to do"""
UPDATE_ROWS = 500
"""readings of an update, those of `publish_readings`"""
SNAPSHOT_UPDATES = 20
DAY_S = 86_400.0
LOG_FILES = "federation.db*"
CONTRIBUTE_READINGS = 5_000
"""readings of a region between two of its contributions"""
UPSTREAM = "upstream"
"""name of the federation above regions"""
_UPSTREAM_SECTION = f"""
[upstream]
file = "../{UPSTREAM}/federation.toml"
publish_readings = {CONTRIBUTE_READINGS}
publish_s = 86400.0
"""


@dataclass(frozen=True)
class Size:
    """The sizes of a federation; one of them at a time is varied."""

    readings: int = 20_000
    """readings of each client"""
    clients: int = 1
    nodes: int = 100
    """most nodes that a client and the server keep of a model"""
    features: int = 16
    clusters: int = 32
    """blobs in the stream"""
    models: int = 1
    regions: int = 0
    """federations, each with `clients` clients, that contribute to an upstream federation; 0: one,
    which does not"""
    epsilon_per_feature: float = 20.0
    """epsilon; at 20 the blobs stand apart; at 5 noise hides them, and a model fills up to its
    limit of nodes"""

    @property
    def readings_total(self) -> int:
        """Readings of all clients of all federations."""
        return self.readings * self.clients * max(1, self.regions)


@dataclass(frozen=True)
class Cost:
    """What a federation has taken and holds at its end."""

    client_s: float
    """processor time of the steps of all clients"""
    server_s: float
    """processor time of the steps of the server, or of those of all regions"""
    upstream_s: float
    """processor time to copy the regions' contributions, and of the steps of the upstream server"""
    memory_mib: float
    """most resident memory of the process"""
    client_bytes: int
    """size of the folders of all clients, without their readings logs"""
    readings_bytes: int
    """size of the readings logs"""
    server_bytes: int
    """size of the server's folder, or of all regions' folders"""
    log_bytes: int
    """size of the federation's log, or of all regions' logs"""
    update_bytes: int
    """size of all updates, keys and headers included"""
    absorbed: int
    """readings behind the updates that the server has absorbed"""
    nodes: int
    """nodes in the newest snapshot of the first model"""
    clusters: int
    """clusters in that snapshot"""


@dataclass
class Federation:
    """A federation that runs in this process."""

    config: Config
    server: ServerNode
    client_s: float = 0.0
    """processor time of its clients so far"""
    server_s: float = 0.0


def cost_of(size: Size, folder: Path) -> Cost:
    """Run a new federation in `folder`, or regions and the federation above them."""
    federations: list[Federation] = []
    upstream_s = 0.0
    with ExitStack() as stack:
        above = opened(stack, folder, UPSTREAM, size) if size.regions else None
        for number in range(1, size.regions + 1) if above else [0]:
            federation = opened(
                stack, folder, f"federation-{number}", size, _UPSTREAM_SECTION if above else ""
            )
            copy = _bridge_step(stack, federation.config) if above else None
            for _ in steps(federation, size):
                if copy is not None and above is not None:
                    upstream_s += stepped_s(copy) + stepped_s(above.server.step)
            federations.append(federation)
        nodes, clusters = _sizes((above or federations[0]).server)
        absorbed = sum(absorbed_by(federation.server) for federation in federations)
        if absorbed != size.readings_total:
            raise RuntimeError(f"{absorbed} readings absorbed of {size.readings_total}")
    clients = sum(_folder_bytes(federation.config.client.folder) for federation in federations)
    readings = sum(
        _folder_bytes(federation.config.client.folder, "readings.db*") for federation in federations
    )
    return Cost(
        client_s=sum(federation.client_s for federation in federations),
        server_s=sum(federation.server_s for federation in federations),
        upstream_s=upstream_s,
        memory_mib=footprint_of(_own_process()).peak_mib,
        client_bytes=clients - readings,
        readings_bytes=readings,
        server_bytes=sum(
            _folder_bytes(federation.config.server.folder) for federation in federations
        ),
        log_bytes=sum(
            _folder_bytes(federation.config.server.folder.parent, LOG_FILES, False)
            for federation in federations
        ),
        update_bytes=sum(_update_bytes(federation.config) for federation in federations),
        absorbed=absorbed,
        nodes=nodes,
        clusters=clusters,
    )


def absorbed_by(server: ServerNode) -> int:
    """Readings behind the updates that the first model of a server has absorbed."""
    model = next(iter(server.models().values()))
    return sum(readings for _, _, readings, _ in model.clients.totals())


def opened(stack: ExitStack, folder: Path, name: str, size: Size, upstream: str = "") -> Federation:
    """A new federation with its server, in a folder of its own."""
    file = folder / name / "federation.toml"
    file.parent.mkdir()
    file.write_text(_federation_file(size, name) + upstream, encoding="utf-8")
    config = load_config(file)
    found = load_upstream(config)
    state = None if found is None else UpstreamState(found, config.upstream)
    return Federation(config, stack.enter_context(resumed(open_server(config, upstream=state))))


def _bridge_step(stack: ExitStack, region: Config) -> Callable[[], bool]:
    """One step of the bridge of a region."""
    upstream = load_upstream(region)
    assert upstream is not None
    return stack.enter_context(
        resumed(open_bridge(region, upstream.config, lambda snapshot: None))
    ).step


def steps(federation: Federation, size: Size) -> Iterator[None]:
    """Let each client learn each block of its readings, and the server absorb what it has
    published."""
    for number in range(1, size.clients + 1):
        for block in _blocks(size, federation.config, number):
            with resumed(open_client(federation.config, f"client-{number}")) as client:
                block()
                federation.client_s += stepped_s(client.step)
            if number % STEP_CLIENTS == 0 or number > size.clients - size.clients % STEP_CLIENTS:
                federation.server_s += stepped_s(federation.server.step)
            yield


def _blocks(size: Size, config: Config, number: int) -> Iterator[Callable[[], None]]:
    """Writers, one for each block of readings of a client: each writes its block to the client's
    readings log."""
    # A walk along the blobs first, so that there are as many nodes as blobs in any dimension.
    stream = Blobs(
        size.features, size.clusters, min(size.readings // 2, 100 * size.clusters), SEED, number
    )

    def write(first: int, rows: int) -> None:
        with closing(open_client_log(config, f"client-{number}")) as log:
            log.ensure(READINGS, readings_settings(config.client))
            # The server keeps a history by time, so every size has the readings of one day.
            times = (np.arange(first, first + rows) * (DAY_S / size.readings)).tolist()
            publish_batch(
                log,
                READINGS,
                RecordBatch(Reading.encode_many(times, stream.draw(rows)), Reading.headers()),
                0,
            )
            log.flush()

    for first in range(0, size.readings, BLOCK_READINGS):
        rows = min(BLOCK_READINGS, size.readings - first)
        yield partial(write, first, rows)


def stepped_s(step: Callable[[], bool]) -> float:
    """Step until there is nothing to do; processor seconds."""
    began = time.process_time()
    while step():
        pass
    return time.process_time() - began


def _sizes(server: ServerNode) -> tuple[int, int]:
    snapshot = next(iter(server.models().values())).snapshot
    return (0, 0) if snapshot is None else (snapshot.nodes, snapshot.clusters)


def _folder_bytes(folder: Path, pattern: str = "*", within: bool = True) -> int:
    """Bytes of the files in a folder, and in those within it."""
    paths = folder.rglob(pattern) if within else folder.glob(pattern)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _update_bytes(config: Config) -> int:
    at = {0: 0}
    size = 0
    wanted = ("type", Update.TYPE.encode())
    with closing(open_log(config.log)) as log:
        while True:
            records, at = log.read(config.contract.updates_topic, at)
            if not records:
                return size
            for record in records:
                if wanted in record.headers:
                    parts = [
                        record.key or b"",
                        record.value or b"",
                        *(content for _, content in record.headers),
                    ]
                    size += sum(map(len, parts)) + sum(len(name) for name, _ in record.headers)


def _own_process() -> int:
    return int(Path("/proc/self").resolve().name)


def _federation_file(size: Size, name: str) -> str:
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0.0\nhigh = 1.0\n'
        for number in range(size.features)
    )
    models = "".join(
        f'[[models]]\nname = "model-{number}"\nalgorithm = "fcac"\noptions = {{ nodes_max ='
        f" {size.nodes} }}\n"
        for number in range(1, size.models + 1)
    )
    return (
        f'[federation]\nname = "{name}"\n{features}'
        '[privacy]\nmode = "formal"\nepsilon_per_reading ='
        f" {size.epsilon_per_feature * size.features}\n{models}"
        '[log]\naddress = "sqlite:federation.db"\n'
        f'[client]\nfolder = "clients"\npublish_readings = {UPDATE_ROWS}\npublish_s = 86400.0\n'
        # By number alone: the work must not depend on how fast the machine is.
        '[server]\nfolder = "server"\nport = 0\npool_clients = 1\n'
        f"snapshot_updates = {SNAPSHOT_UPDATES}\nsnapshot_s = 86400.0\n"
        "regions ="
        f" {json.dumps([f'federation-{number}' for number in range(1, size.regions + 1)])}\n"
    )


if __name__ == "__main__":
    PROCESS.start()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(asdict(cost_of(Size(**json.loads(sys.argv[1])), Path(scratch)))))
