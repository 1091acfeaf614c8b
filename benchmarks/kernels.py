"""What cluster_tree and density_tree cost in both forms of the kernels, in turns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.forms import use
from benchmarks.machine import facts, one_line
from benchmarks.privacy import cost, page
from benchmarks.results import out_option, write
from benchmarks.steadiness import speed
from shoal.kernels.forms import COMPILED


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--quick", is_flag=True, help="Few turns, in seconds: shows that it runs; no figures to keep."
)
@out_option("kernels")
def main(quick: bool, out: Path) -> None:
    """Measure cluster_tree and density_tree in both forms of the kernels. A full run takes about
    two minutes."""
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "numba"))
    use(COMPILED)
    with threadpool_limits(limits=1):
        cluster_tree = speed.measure((2,) if quick else (2, 16, 64), 2 if quick else 25)
        density_tree = cost.measure(((2, 6),) if quick else ((8, 6), (16, 40)), 2 if quick else 25)
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks.kernels" + " --quick" * quick,
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "goals": {"cluster_tree": speed.GOAL, "density_tree": cost.GOAL},
        "cluster_tree": cluster_tree,
        "density_tree": density_tree,
    }
    parts = [
        f"# Compiled kernels of cluster_tree and density_tree\n\nMade by `{result['made_by']}`; do not edit.\n",
        "## cluster_tree\n\n" + speed.cost_table(cluster_tree),
        "## density_tree\n\n" + page.costs(density_tree, cost.GOAL),
        "Processor time of one thread: the median of all turns.\n",
        one_line(machine) + "\n",
    ]
    write(out, "kernels", result, "\n".join(parts))
    click.echo(f"written to {out}/kernels.json and {out}/kernels.md")


if __name__ == "__main__":
    main()
