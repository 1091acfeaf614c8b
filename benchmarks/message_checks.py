"""Hand-written checks of messages beside the same checks declared for pydantic: time per update and
snapshot, memory.

    python -m benchmarks.message_checks

Both forms take the fields of a decoded message. Each figure is the smallest of several runs, in
microseconds.
"""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf

from shoal.config.base import NAME_PATTERN
from shoal.protocol.checks import COUNT_MAX, MOMENT_MAX, is_plain_table
from shoal.protocol.messages import CHUNKS_MAX, Snapshot, Update, is_cluster_identity

CALLS: Final = 2000
RUNS: Final = 15
NODES: Final = 500
IDENTITIES: Final = 20


def _required(holds: Callable[[Any], bool]) -> BeforeValidator:
    """A check that pydantic has no form of its own for."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError("malformed")
        return value

    return BeforeValidator(check)


NameField = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
CountFromOne = Annotated[int, Field(ge=1, le=COUNT_MAX)]
Moment = Annotated[float, Field(ge=-MOMENT_MAX, le=MOMENT_MAX)]
PlainTable = Annotated[dict[str, Any], _required(is_plain_table)]
Identity = Annotated[list[Any], _required(is_cluster_identity)]


class Checked(BaseModel):
    """What updates and snapshots have in common."""

    model_config = ConfigDict(strict=True, frozen=True)

    federation: NameField
    contract: NameField
    model: NameField
    algorithm: NameField
    readings: Count
    privacy: PlainTable
    arrays: dict[str, InstanceOf[np.ndarray]]
    made_at: Moment
    newest_reading_at: Moment | None = None
    round: Count | None = None


class CheckedUpdate(Checked):
    """The fields of `shoal.protocol.messages.Update`."""

    client: NameField
    sequence: CountFromOne
    chunk: CountFromOne = 1
    chunks: Annotated[int, Field(ge=1, le=CHUNKS_MAX)] = 1


class CheckedSnapshot(Checked):
    """The fields of `shoal.protocol.messages.Snapshot`."""

    version: CountFromOne
    positions: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
    updates: Count
    clients: Count
    clusters: Count
    nodes: Count
    pooled: Count
    round_request: PlainTable | None = None
    known: Count = 0
    active: Count = 0
    next_identity: Count = 0
    identities: list[Identity] = Field(default_factory=list)


def _messages() -> tuple[Update, Snapshot]:
    """An update of CA+ and a snapshot of CAEFC, of 500 nodes each."""
    common: dict[str, Any] = {
        **{
            "federation": "office",
            "contract": "0" * 32,
            "model": "rooms",
            "algorithm": "fcac",
            "readings": 500,
        },
        **{
            "privacy": {"mode": "formal", "epsilon": 4.0, "epsilon_per_feature": [1.0] * 4},
            "made_at": 1e9,
        },
        "arrays": {"weight": np.zeros((NODES, 4)), "count": np.ones(NODES, np.int64)},
    }
    identities = [
        [number, number, "night", True, number, 5, 1e9, 0.05] for number in range(IDENTITIES)
    ]
    counts: dict[str, Any] = dict.fromkeys(("updates", "clients", "clusters", "nodes", "pooled"), 5)
    return (
        Update(client="client-1", sequence=7, **common),
        Snapshot(version=7, positions=[[0, 9]], identities=identities, **counts, **common),
    )


def _microseconds(work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, number=CALLS, repeat=RUNS)) / CALLS * 1e6


MEMORY: Final = """
import subprocess, sys, timeit
from pathlib import Path
import shoal.config.settings, shoal.protocol.messages
if sys.argv[1] == "pydantic":
    import benchmarks.message_checks
(line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(line.split()[1])
"""


def _kilobytes(form: str) -> int:
    """Most memory of a process that has loaded settings and messages, and with `pydantic` the
    declared checks too."""
    command = [sys.executable, "-c", MEMORY, form]
    return min(
        int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )


def main() -> None:
    """Print the figures."""
    for message, form in zip(_messages(), (CheckedUpdate, CheckedSnapshot), strict=True):
        table = dict(vars(message))
        whole = _microseconds(partial(type(message).decode, message.encode(), message.headers()))
        by_hand = _microseconds(partial(type(message), **table))
        declared = _microseconds(partial(form, **table))
        checked = f"checks by hand {by_hand:.1f} us, by pydantic {declared:.1f} us"
        sys.stdout.write(f"{message.TYPE}: decoded in {whole:.1f} us; {checked}\n")
    more = _kilobytes("pydantic") - _kilobytes("hand")
    sys.stdout.write(f"memory with the declared checks: {more} kB more\n")


if __name__ == "__main__":
    main()
