"""What is measured: the stream, the settings of the processes, and the length of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.streams import Blobs

DIMENSIONS = 16
CENTRES = 100
SEED = 2
EPSILON_PER_FEATURE = 20.0
MODEL = "clusters"
ROWS = 100_000
"""rows of the file that is replayed in a loop"""

DEFAULTS: Mapping[str, Mapping[str, float]] = {}
PROMPT: Mapping[str, Mapping[str, float]] = {"client": {"publish_s": 0.2}}
KERNELS = "compiled" if find_spec("numba") else "numpy"
SETTINGS = {"default": DEFAULTS, "prompt": PROMPT}
"""settings by their name in the results; all others have the defaults that `shoal check --settings`
prints"""


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    clients: int
    turns: int
    """turns of the throughput and its peers"""
    readings: int
    """readings of a turn, over all clients"""
    rates: tuple[int, ...]
    """readings per second over all clients"""
    settings: tuple[str, ...]
    warm_s: float
    """pause before latency is measured"""
    measured_s: float
    kills: int
    """kills of each process"""
    kill_rate: int
    steady_s: float
    """pause between a recovery and the next kill"""
    kernels: str | None = None
    """SHOAL_KERNELS of throughput and latency. Recovery is measured as people run it: a client
    loads nothing"""


FULL = Extent(
    4, 3, 400_000, (1_000, 10_000), ("default", "prompt"), 5.0, 20.0, 3, 1_000, 2.0, KERNELS
)
SMALL = Extent(2, 1, 4_000, (1_000,), ("prompt",), 0.5, 1.0, 1, 1_000, 0.2)


def write_stream(file: Path, rows: int = ROWS) -> None:
    """Blobs as a CSV for `shoal producer` to replay."""
    with file.open("w", encoding="utf-8") as out:
        out.write(",".join(f"x{number}" for number in range(DIMENSIONS)) + "\n")
        for row in Blobs(DIMENSIONS, CENTRES, 0, SEED).draw(rows).tolist():
            out.write(",".join(f"{value:.6f}" for value in row) + "\n")


def write_federation(
    file: Path, name: str, address: str, settings: Mapping[str, Mapping[str, float]], clients: int
) -> None:
    """The federation file of one run. The server waits for all clients, and serves its page on a
    free port."""
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0.0\nhigh = 1.0\n' for number in range(DIMENSIONS)
    )
    sections: dict[str, dict[str, float | str]] = {
        "log": {"address": address},
        "client": {"folder": "clients", **settings.get("client", {})},
        "server": {
            "folder": "server",
            "port": 0,
            "pool_clients": clients,
            **settings.get("server", {}),
        },
    }
    file.write_text(
        f'[federation]\nname = "{name}"\n{features}'
        f'[privacy]\nmode = "formal"\nepsilon_per_reading = {EPSILON_PER_FEATURE * DIMENSIONS}\n'
        f'[[models]]\nname = "{MODEL}"\nalgorithm = "fcac"\n'
        + "".join(
            f"[{section}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
            for section, keys in sections.items()
        ),
        encoding="utf-8",
    )


def _toml(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
