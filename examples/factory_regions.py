"""A factory on Kafka with two regions: two halls, each a federation of its own, below the
federation of the factory.

    python examples/factory_regions.py 127.0.0.1:9092      # a broker; writes into ./factory-example
What the clients of a hall, two machines each, have counted goes up in one contribution: the
factory's model knows the clusters of both halls, and no reading leaves its machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

FEDERATION = """
[federation]
name = "{name}"
[[features]]
name = "vibration"
unit = "mm/s"
low = 0.0
high = 20.0
[[features]]
name = "temperature"
unit = "°C"
low = 0.0
high = 120.0
[privacy]
mode = "formal"
counts_epsilon = 4.0
[[models]]
name = "states"
algorithm = "density_tree"
[log]
address = "kafka://{broker}"
[server]
port = {port}
{more}
"""
UPSTREAM = '[upstream]\nfile = "../factory/federation.toml"\npublish_readings = 800\n'
STATES = {"factory-north": [(2, 40), (8, 70)], "factory-south": [(2, 40), (14, 95)]}
READINGS = 12_000


def write(folder: Path, name: str, broker: str, port: int, more: str) -> None:
    """One federation file, and the readings of the two machines of a hall."""
    (folder / name).mkdir(parents=True)
    text = FEDERATION.format(name=name, broker=broker, port=port, more=more)
    (folder / name / "federation.toml").write_text(text, encoding="utf-8")
    if name not in STATES:
        return
    rng = np.random.default_rng(port)
    rows = np.array(STATES[name])[rng.integers(2, size=READINGS)] + rng.normal(
        0, (0.5, 2.0), (READINGS, 2)
    )
    lines = "".join(f"{vibration:.3f},{temperature:.2f}\n" for vibration, temperature in rows)
    (folder / name / "readings.csv").write_text(f"vibration,temperature\n{lines}")


@contextmanager
def running(folder: Path, *words: str) -> Iterator[None]:
    process = subprocess.Popen([Path(sys.executable).parent / "shoal", *words], cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main(broker: str, ports: tuple[int, int, int] = (8765, 8766, 8767)) -> int:
    """Run the factory until its model knows three states; the number that it knows then."""
    folder = Path("factory-example")
    config = ("--config", "federation.toml")
    write(
        folder,
        "factory",
        broker,
        ports[0],
        "regions = [{}]".format(", ".join(f'"{name}"' for name in STATES)),
    )
    for name, port in zip(STATES, ports[1:], strict=True):
        write(folder, name, broker, port, UPSTREAM)
    with ExitStack() as stack:
        for name in ("factory", *STATES):
            stack.enter_context(running(folder / name, "server", *config))
        for name in STATES:
            for machine in ("client-1", "client-2"):
                stack.enter_context(running(folder / name, "client", *config, "--name", machine))
            feed = ("producer", *config, "--clients", "2", "readings.csv")
            stack.enter_context(running(folder / name, *feed))
        clusters = []
        until = time.monotonic() + 300
        while len(clusters) < 3 and time.monotonic() < until:
            time.sleep(1)
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/v1/clusters") as answer,
            ):
                clusters = json.load(answer)["clusters"]
        for cluster in clusters:
            print(f"cluster {cluster['identity']}: {cluster['text']}")
    return len(clusters)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
