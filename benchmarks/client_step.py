"""Readings per second through a whole client step, and where its time goes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from benchmarks.forms import FORMS, use
from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, table, write
from benchmarks.site import CASES, CLIENT, DIMENSIONS, Case, Site
from shoal.client_nodes import intake
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.learner import ModelLearner
from shoal.client_nodes.monitoring import ClientMonitoring
from shoal.config.settings import load_config
from shoal.privacy.formal import FormalNoise
from shoal.runtime.checkpoint import Outbox
from shoal.runtime.service import resumed
from shoal.transports.sqlite.log import SqliteLog

PARTS: dict[str, tuple[Any, str]] = {
    "learn (CA+)": (ModelLearner, "learn"),
    "intake (decode and check)": (intake, "decode_batch"),
    "privacy (clip, noise)": (FormalNoise, "privatise"),
    "read the readings log": (SqliteLog, "read"),
    "make updates": (ModelLearner, "make_update"),
    "store (checkpoint)": (Outbox, "store"),
    "publish": (Outbox, "publish_pending"),
    "count (metrics)": (ClientMonitoring, "stepped"),
}
"""parts of `ClientNode.step`, by the function that does the part; no function calls another one of
them"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("A short stream, in seconds")
@out_option("client_step")
def main(quick: bool, out: Path) -> None:
    """Drive a client node in this process over readings of 16 features with formal privacy. About
    half a minute."""
    readings = 2_000 if quick else 40_000
    machine = facts(("shoal", "numpy", "msgpack", "numba"))
    cases = [measure(case, readings, form) for form in FORMS for case in CASES]
    result = {
        "made_by": "python -m benchmarks client_step" + " --quick" * quick,
        "machine": machine,
        "stream": {
            "readings": readings,
            "d": DIMENSIONS,
            "privacy": "formal",
            "settings": "defaults",
        },
        "cases": cases,
    }
    write(out, "client_step", result, markdown(result))
    for case in cases:
        rate = rounded(case["readings_per_cpu_s"])
        click.echo(
            f"{case['name']}, {case['kernels']}: {case['nodes']} nodes, {rate} readings per CPU s"
        )
    click.echo(f"written to {out}/client_step.json and {out}/client_step.md")


def measure(case: Case, readings: int, form: str) -> dict[str, Any]:
    """Run the client over readings that are all in its log, as fast as possible, in one form of the
    kernels."""
    use(form)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder) / "site", case)
        site.write(readings)
        with resumed(open_client(load_config(site.file), CLIENT)) as client, timed() as spent:
            started = time.monotonic()
            used = time.process_time()
            while client.step():
                pass
            used = time.process_time() - used
            took = time.monotonic() - started
        nodes = site.nodes()
    shares = {part: seconds / used for part, seconds in spent.items()}
    return {
        "name": case.name,
        "kernels": form,
        "epsilon_per_feature": case.epsilon_per_feature,
        "nodes": nodes,
        "readings_per_cpu_s": readings / used,
        "readings_per_s": readings / took,
        "shares": shares | {"everything else": 1.0 - sum(shares.values())},
    }


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Processor seconds spent in each part within the context. A few clock readings per step cost
    nothing, whereas a profiler overrates small functions."""
    spent = dict.fromkeys(PARTS, 0.0)
    with ExitStack() as stack:
        for part, (owner, name) in PARTS.items():
            stack.enter_context(
                patch.object(owner, name, _clocked(getattr(owner, name), part, spent))
            )
        yield spent


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    cases = result["cases"]
    head = [
        f"{rounded(result['stream']['readings'])} readings, d = {result['stream']['d']}",
        *(f"{case['name']}, {case['kernels']}" for case in cases),
    ]
    lines = [
        ["nodes", *(str(case["nodes"]) for case in cases)],
        [
            "readings per CPU second",
            *(f"**{rounded(case['readings_per_cpu_s'])}**" for case in cases),
        ],
        [
            "readings per second of wall-clock time",
            *(rounded(case["readings_per_s"]) for case in cases),
        ],
        *(
            [part, *(f"{case['shares'][part]:.0%}" for case in cases)]
            for part in (*PARTS, "everything else")
        ),
    ]
    return "\n".join(
        [
            f"# A whole client step\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(head, lines),
            (
                "Shares are of the processor time; the wait for the disk, for every checkpoint and"
                " update, is only in the wall-clock figure. `shoal client` has NumPy's form of the"
                " kernels by default; the compiled one, with `SHOAL_KERNELS`, was loaded before.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )


def _clocked(
    function: Callable[..., Any], part: str, spent: dict[str, float]
) -> Callable[..., Any]:
    @wraps(function)
    def clocked(*args: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **named)
        finally:
            spent[part] += time.process_time() - start

    return clocked
