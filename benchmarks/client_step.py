"""Readings per second through a whole client step, and where its time goes."""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import facts, one_line
from benchmarks.results import rounded, table, write
from benchmarks.site import CASES, CLIENT, DIMENSIONS, Case, Site
from client_nodes.node import ClientNode
from client_nodes.premises import client_at_home
from shoal.settings import load_config

PARTS = {
    "learn (CA+)": ("learner.py", "learn"),
    "intake (decode and check)": ("intake.py", "take_in"),
    "privacy (clip, noise)": ("mechanisms.py", "privatise"),
    "read the readings log": ("sqlite.py", "read"),
    "make updates": ("node.py", "_speak"),
    "remember (checkpoint)": ("uplink.py", "remember"),
    "publish": ("uplink.py", "speak"),
    "count (metrics)": ("node.py", "_count"),
}
"""the parts of `ClientNode.step`, by the function that is all of the part"""


@click.command(context_settings={"max_content_width": 100})
@click.option("--quick", is_flag=True, help="A short stream, in seconds: shows that it runs; no figures to keep.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("benchmarks/results"),
    show_default=True,
    help="Folder for client_step.json and client_step.md.",
)
def main(quick: bool, out: Path) -> None:
    """Drive a client node in this process over readings of 16 features with formal privacy, and profile it.

    Speed is taken without the profiler, in processor time; the shares are the profiler's. About a minute.
    """
    readings = 2_000 if quick else 40_000
    machine = facts(("shoal", "numpy", "msgpack"))
    cases = [measure(case, readings) for case in CASES]
    result = {
        "made_by": "python -m benchmarks.client_step" + " --quick" * quick,
        "machine": machine,
        "stream": {"readings": readings, "d": DIMENSIONS, "privacy": "formal", "settings": "defaults"},
        "cases": cases,
    }
    write(out, "client_step", result, markdown(result))
    for case in cases:
        click.echo(f"{case['name']}: {case['nodes']} nodes, {rounded(case['readings_per_cpu_s'])} readings per CPU s")
    click.echo(f"written to {out}/client_step.json and {out}/client_step.md")


def measure(case: Case, readings: int) -> dict[str, Any]:
    """The same stream twice: once for its speed, once under the profiler."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Site(Path(folder) / "plain", case)
        plain.write(readings)
        with client_at_home(load_config(plain.file), CLIENT) as node:
            started, used = time.monotonic(), time.process_time()
            _drain(node)
            used, took = time.process_time() - used, time.monotonic() - started
        watched = Site(Path(folder) / "watched", case)
        watched.write(readings)
        profile = cProfile.Profile()
        with client_at_home(load_config(watched.file), CLIENT) as node:
            profile.runcall(_drain, node)
        nodes = plain.nodes()
    return {
        "name": case.name,
        "epsilon_per_feature": case.epsilon_per_feature,
        "nodes": nodes,
        "readings_per_cpu_s": readings / used,
        "readings_per_s": readings / took,
        "shares": _shares(profile),
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    cases = result["cases"]
    head = [
        f"{rounded(result['stream']['readings'])} readings, d = {result['stream']['d']}",
        *(case["name"] for case in cases),
    ]
    lines = [
        ["nodes", *(str(case["nodes"]) for case in cases)],
        ["readings per CPU second", *(f"**{rounded(case['readings_per_cpu_s'])}**" for case in cases)],
        ["readings per second by the clock", *(rounded(case["readings_per_s"]) for case in cases)],
        *([part, *(f"{case['shares'][part]:.0%}" for case in cases)] for part in (*PARTS, "everything else")),
    ]
    return "\n".join(
        [
            f"# A whole client step\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(head, lines),
            "Shares are cProfile's, by the clock, so they hold the wait for the disk too and make much of code in "
            "small functions.\n",
            one_line(result["machine"]) + "\n",
        ]
    )


def _drain(node: ClientNode) -> None:
    while node.step():
        pass


def _shares(profile: cProfile.Profile) -> dict[str, float]:
    """Part of the step -> its share of the time."""
    spent: dict[tuple[str, str], float] = {}
    for (file, _, function), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        place = (Path(file).name, function)
        spent[place] = spent.get(place, 0.0) + cumulative
    whole = spent["node.py", "step"]
    shares = {part: spent.get(place, 0.0) / whole for part, place in PARTS.items()}
    return shares | {"everything else": max(0.0, 1.0 - sum(shares.values()))}


if __name__ == "__main__":
    main()
