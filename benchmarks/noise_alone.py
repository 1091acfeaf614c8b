"""How often models that learn from private counts show a cluster where there is nothing but noise.

Each stream is 10,000 windows of one client none of whose readings are valid, counted, made private
and absorbed by the server's own code, and looked at after every window. What a model shows depends
on what it has added up since its start, so one stream is one chance. The tree of density_tree grows
in as many streams more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, table, write
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import counting_names, streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.privacy.count_noise import count_noise

WINDOWS = 10_000
WINDOW = 400
EPSILON = 4.0
STREAMS: Final = 200
WIDTHS: Final = (2,)
GROWING: Final = ("density_tree",)
"""the tree of this model; the other trees are the same, and a grid never grows"""
NEVER: Final = 2**40
SHOWN_MAX: Final = 1 / 200


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--quick", is_flag=True, help="Few windows, in seconds: shows that it runs; no figures to keep."
)
@click.option("--seeds", default=STREAMS, show_default=True, help="Streams of each model.")
@out_option("noise_alone")
def main(quick: bool, seeds: int, out: Path) -> None:
    """Count the streams of noise alone in which a cluster is shown."""
    started = time.monotonic()
    machine = facts(("shoal", "numpy"))
    windows, streams, whole = (20, 2, 1) if quick else (WINDOWS, seeds, seeds)
    with threadpool_limits(limits=1):
        rows = [
            measured(name, d, range(1, 1 + number), windows, grows)
            for name in counting_names()
            for d in WIDTHS
            for number, grows in ((streams, False), (whole, True))
            if not grows or name in GROWING
        ]
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks.noise_alone" + " --quick" * quick,
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "windows": windows,
        "rows": rows,
        "goal": SHOWN_MAX,
        "reached": all(row["shown"] <= SHOWN_MAX * row["streams"] for row in rows),
    }
    write(out, "noise_alone", result, markdown(result))
    click.echo(f"written to {out}/noise_alone.json and {out}/noise_alone.md")


def measured(name: str, d: int, seeds: Sequence[int], windows: int, grows: bool) -> dict[str, Any]:
    """How many of the streams with these seeds show a cluster after any of their windows."""
    algorithm = streaming_algorithm(name)
    assert isinstance(algorithm, CountingAlgorithm)
    shown = sum(shows_a_cluster(algorithm, d, seed, windows, grows) for seed in seeds)
    return {"algorithm": name, "d": d, "grows": grows, "streams": len(seeds), "shown": shown}


def shows_a_cluster(
    algorithm: CountingAlgorithm, d: int, seed: int, windows: int, grows: bool
) -> bool:
    """Whether anything is shown after one of the windows. Without `grows` a tree stays as it began."""
    noise = count_noise(EPSILON)
    given = {"noise_variance": noise.variance, "window_readings": WINDOW}
    grown = {} if grows or not algorithm.samples_axes else {"grow_readings": NEVER}
    server = algorithm.server({**given, **grown}, d)
    client = algorithm.counter(given, d)
    rows = np.zeros((WINDOW, d))
    valid = np.zeros(WINDOW, dtype=np.bool_)
    counted = client.count(rows, valid, b"client", 0)
    for number in range(windows):
        if grows and number % 5 == 0:
            client.adopt(server.snapshot())
        if grows or not number:
            counted = client.count(rows, valid, b"client", number)
        private = noise.draw(f"{seed} {number}".encode(), len(counted.counts))
        server.absorb([Contribution("client", number + 1, counted.update(private))], b"")
        if looks(number, windows) and algorithm.view(server.snapshot()).centres.size:
            return True
    return False


def looks(number: int, windows: int) -> bool:
    """Whether to look after this window: what has been found stays found, so every fiftieth and the
    last are enough."""
    return number % 50 == 0 or number == windows - 1


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        [
            row["algorithm"],
            str(row["d"]),
            "yes" if row["grows"] else "no",
            str(row["streams"]),
            str(row["shown"]),
        ]
        for row in result["rows"]
    ]
    return "\n".join(
        [
            f"# Clusters from noise alone\n\nMade by `{result['made_by']}`; do not edit.\n",
            f"Streams of {result['windows']} windows of {WINDOW} readings, none of them valid, at an epsilon of "
            f"{EPSILON:g} a reading.\n",
            table(
                ["algorithm", "features", "tree grows", "streams", "of them show a cluster"], lines
            ),
            f"Goal: at most 1 of 200 streams: {'reached' if result['reached'] else 'missed'}.\n",
            one_line(result["machine"]) + "\n",
        ]
    )


if __name__ == "__main__":
    main()
