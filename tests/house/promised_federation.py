"""What this version writes, for the versions to come: `make promised` stores it in `promised/`.

The archive of a version has four folders, and `formats.json`, the numbers of its formats:

    start     a federation with models of each family on noisy rows and private counts: its
              readings, keys and empty checkpoints, before anything was learnt
    half      the same after its clients and server have learnt these readings: log, checkpoints,
              ledgers, history, readings logs with labels
    masked    a federation with masked counts, its helpers with the state of what they have unmasked
    site      the readings of all clients of a host

Later versions upgrade them, and go on (`test_promised.py`): half as from start, bit for bit.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from shoal import __version__
from shoal.cli.formats import kept_numbers
from shoal.config.settings import load_config
from shoal.protocol.codec import pack
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_readings
from shoal.runtime.service import resumed
from shoal.runtime.site_readings import SiteReadings, TakenIn
from shoal.server_node.bootstrap import open_server
from tests.house.counting_federation import CLIENTS, create, rooms, run
from tests.house.masked_federation import MaskedFederation
from tests.house.small_federation import clock, give_noise_keys, write_readings

PROMISED = Path(__file__).parent / "promised" / "releases"
READINGS_EACH = 150
MODELS = """
[[models]]
name = "nodes"
algorithm = "fcac"
[[models]]
name = "tree"
algorithm = "cluster_tree"
[[models]]
name = "heaps"
algorithm = "kmeans"
options = { clusters = 3 }
[models.rounds]
quorum = 1
"""
PRIVACY = "counts_epsilon = 4\nepsilon_per_reading = 400"
WINDOWS = 2
MASKED_CLIENTS = 3


def write_start(folder: Path) -> Path:
    """A federation that has learnt nothing; returns its file."""
    folder.mkdir()
    file = create(folder, READINGS_EACH, privacy=PRIVACY, models=MODELS)
    give_noise_keys(folder, CLIENTS)
    return file


def learn(file: Path) -> None:
    """Let all nodes learn what is there."""
    run(file)


def feed(file: Path) -> None:
    """The readings of the second half; the log takes them in a second after those of the first."""
    config = load_config(file)
    for seed, client in enumerate(CLIENTS):
        with closing(open_readings(config, client)) as log:
            _, end = log.bounds(READINGS)[0]
            [newest], _ = log.read(READINGS, {0: end - 1})
        taken_in = newest.timestamp_ms / 1000 + 1
        write_readings(
            config,
            client,
            rooms(READINGS_EACH, 10 + seed),
            started_at=1e9 + READINGS_EACH,
            log_clock=partial(float, taken_in),
        )


def server_models(file: Path) -> dict[str, bytes]:
    """The state of every model in the server's checkpoint, encoded.

    Without what it knows of clients: that names their processes, which are new at each start.
    """
    found = {}
    with resumed(open_server(load_config(file), clock=clock)) as server:
        for name, model in server.models().items():
            state = model.state()
            publisher = {**state["publisher"]}
            del publisher["clients"]
            found[name] = pack({**state, "publisher": publisher})
    return found


def write_masked(folder: Path) -> None:
    """A federation with masked counts, some windows of which are unmasked."""
    folder.mkdir()
    federation = MaskedFederation(folder, clients=MASKED_CLIENTS)
    federation.feed(WINDOWS)
    federation.run()


def write_site(folder: Path) -> None:
    """The readings of three clients of a host."""
    folder.mkdir()
    with closing(SiteReadings(folder / "site.db", 10**6, lambda name: name.encode() * 16)) as site:
        taken = [TakenIn(name, 7, (("n", b"1"),), name.encode()) for name in "abc"]
        site.take_in(taken, b"source", {}, {0: 3})
        site.note("a", b"key", b"released")


def write_all(folder: Path) -> None:
    """All that the archive of this version has."""
    file = write_start(folder / "start")
    shutil.copytree(file.parent, folder / "half")
    learn(folder / "half" / file.name)
    write_masked(folder / "masked")
    write_site(folder / "site")
    text = json.dumps(kept_numbers(), indent=1) + "\n"
    (folder / "formats.json").write_text(text, encoding="utf-8")


def archive(folder: Path, file: Path, names: Sequence[str]) -> None:
    """Pack these files and folders; owners of this machine are no part of them."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:xz") as packed:
        for name in names:
            packed.add(folder / name, name, filter=anonymous)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "written"
        place.mkdir()
        write_all(place)
        target = PROMISED / f"{__version__}.tar.xz"
        archive(place, target, ["start", "half", "masked", "site", "formats.json"])
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")
