"""A client's site to measure: a federation file with formal privacy, and readings in the client's
readings log."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.streams import Blobs
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports import open_log

CLIENT = "bench"
FEDERATION = "measured"
MODEL = "clusters"
MODELS = {MODEL: "fcac", "tree": "cluster_tree", "fine": "fcac"}
"""name -> algorithm; a site has the first ones"""
DIMENSIONS = 16
CENTRES = 100
SEED = 2
FLUSH_ROWS = 1000


class Case(NamedTuple):
    """A stream of blobs under a privacy budget."""

    name: str
    epsilon_per_feature: float


CASES = (
    Case("blobs stand apart", 20.0),
    Case("noise hides the blobs", 5.0),
)
"""the first keeps about a node for each blob; the second fills the model up to the limit of nodes
it is served with"""


class Site:
    """The files of one client. Readings are blobs in the unit cube; their event times are 0, 1, 2,
    ..."""

    def __init__(self, folder: Path, case: Case, models: int = 1) -> None:
        self.file = folder / "federation.toml"
        self.checkpoint = folder / "clients" / CLIENT / "checkpoint.db"
        self.key = folder / "clients" / CLIENT / "noise.key"
        self._readings = folder / "clients" / CLIENT / "readings.db"
        self._readings.parent.mkdir(parents=True)
        self.file.write_text(_federation(case.epsilon_per_feature, models), encoding="utf-8")
        self._stream = Blobs(DIMENSIONS, CENTRES, 0, SEED)
        self._written = 0

    def write(self, n: int) -> None:
        """Write the next `n` readings into the client's readings log, as a producer does."""
        with closing(open_log(f"sqlite:{self._readings}")) as log:
            log.ensure(READINGS, READINGS_SETTINGS)
            for row in self._stream.draw(n):
                log.publish(
                    READINGS, Reading(float(self._written), row).encode(), None, Reading.headers()
                )
                self._written += 1
                if self._written % FLUSH_ROWS == 0:
                    log.flush()
            log.flush()

    def nodes(self) -> int:
        """Number of nodes in the client's checkpoint; the client must have ended."""
        with Checkpoint(self.checkpoint, f"client {CLIENT} of {FEDERATION}") as checkpoint:
            state = checkpoint.load()
        return (
            0
            if state is None
            else len(state["learner"]["models"][MODEL]["half"]["nodes"]["weight"])
        )


def _federation(epsilon_per_feature: float, models: int) -> str:
    declared = "".join(
        f'[[models]]\nname = "{name}"\nalgorithm = "{algorithm}"\n'
        for name, algorithm in islice(MODELS.items(), models)
    )
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0.0\nhigh = 1.0\n' for number in range(DIMENSIONS)
    )
    return (
        f'[federation]\nname = "{FEDERATION}"\n{features}'
        f'[privacy]\nmode = "formal"\nepsilon_per_reading = {epsilon_per_feature * DIMENSIONS}\n'
        f"{declared}"
        '[log]\naddress = "sqlite:federation.db"\n[client]\nfolder = "clients"\n'
    )
