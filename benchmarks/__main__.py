"""`python -m benchmarks NAME`: the one way to run a benchmark. Without a name it lists them.

Each is a module, or a package with a `__main__`, that has a command `main`. It measures, and writes
`NAME.json` for programs and `NAME.md` for people into a folder.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import NamedTuple

import click


class Benchmark(NamedTuple):
    """What a benchmark shows, and what a full run takes."""

    shows: str
    takes: str
    regular: bool = True
    """whether `python -m benchmarks all` runs it, which needs no options and no other version"""


BENCHMARKS = {
    "streaming": Benchmark("CA+ and CAEFC beside other clusterers", "5 to 12 minutes"),
    "cluster_tree": Benchmark("ClusterTree beside other clusterers", "2 minutes"),
    "rounds": Benchmark("answers and rounds, the service, and memory", "5 minutes"),
    "rounds.tables": Benchmark("defaults of rounds on labelled tables", "5 minutes", False),
    "footprint": Benchmark("memory of a client process", "2 minutes"),
    "idle": Benchmark("a server and a client without readings", "5 minutes"),
    "disk": Benchmark("what a million readings leave on disks", "2 minutes", False),
    "host": Benchmark("a host of many devices at a reading a second", "2 minutes", False),
    "host_group": Benchmark("hosts of a group: a kill, and one more", "10 minutes", False),
    "host_regions": Benchmark("hosts that feed regions, below one server", "5 minutes", False),
    "client_step": Benchmark("readings through a whole client", "half a minute"),
    "noise": Benchmark("the keyed noise in both forms of the kernels", "15 seconds"),
    "path": Benchmark("producer, clients and server, on both logs", "10 minutes"),
    "kernel_pairs": Benchmark("each compiled kernel beside its NumPy form", "5 minutes"),
    "growth": Benchmark("how costs grow with readings, clients, ...", "half an hour", False),
    "restarts": Benchmark("restart and rebuild of a server with many clients", "2 minutes", False),
    "versions": Benchmark("the path in this version and in another one", "4 minutes", False),
    "steadiness": Benchmark("how steady cluster_tree, FCAC and peers are", "half an hour"),
    "steadiness.field": Benchmark("births, noise, many clusters, ...", "half an hour", False),
    "steadiness.neighbours": Benchmark("classes that the nearest rows know", "a minute", False),
    "steadiness.portions": Benchmark("ClusterTree.fit, portions and halves", "2 minutes", False),
    "states": Benchmark("states in time on public and own streams", "10 minutes", False),
    "states_private": Benchmark("states from private counts", "half an hour", False),
    "state_events": Benchmark("site events of states: false alarms, delays", "10 minutes", False),
    "robustness": Benchmark("what malicious clients can do to a model", "3 minutes"),
    "robustness.streaming": Benchmark("one hostile client of ten, and order", "5 minutes", False),
    "privacy": Benchmark("clusters from private readings, by epsilon", "10 minutes", False),
    "privacy.density_tree": Benchmark("mixtures, coarse values, real streams", "5 minutes", False),
    "privacy.masked": Benchmark("what sums over clients find, and cost", "an hour", False),
    "privacy.users": Benchmark("counted readings of users it takes", "10 minutes", False),
    "privacy.peers": Benchmark("other private k-means, from their folders", "an hour", False),
    "privacy_choices": Benchmark("rounds on rows drawn from counts; users", "10 minutes"),
    "from_counts": Benchmark("cluster_tree from counts on a grid", "10 minutes"),
    "absence": Benchmark("states that go and come back, at any pace", "4 minutes"),
    "junk": Benchmark("how long junk delays an honest update", "3 minutes", False),
    "gaps": Benchmark("what missing values cost", "10 minutes"),
    "kinds": Benchmark("circular features and categories", "2 minutes"),
    "parts": Benchmark("how steady parts of one cluster are", "10 minutes"),
    "chances": Benchmark("the chances that `shoal changes` states", "some seconds", False),
    "unusual": Benchmark("events of unusual shares beside detectors", "10 minutes", False),
    "feature_events": Benchmark(
        "stuck and drifting features, beside detectors", "5 minutes", False
    ),
    "client_events": Benchmark(
        "clients new to a state, or unlike their fellows", "5 minutes", False
    ),
    "sensor_options": Benchmark("what to turn, on sensor files", "2 minutes", False),
    "history": Benchmark("what history and page cost a server", "5 minutes"),
    "page": Benchmark("the live page in Chromium with 1000 nodes", "half a minute"),
    "replay": Benchmark("replays on each engine, and their memory", "15 minutes"),
    "regions": Benchmark("replicas that are killed, started, stopped", "6 minutes", False),
    "hierarchy": Benchmark("FCAC with regions, and in a flat federation", "a minute", False),
}


class Benchmarks(click.Group):
    """Loads a benchmark when it is named: each imports the libraries that it is compared with."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*BENCHMARKS, "all"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "all":
            return run_all
        if cmd_name not in BENCHMARKS:
            return None
        module = import_module(f"benchmarks.{cmd_name}")
        if not hasattr(module, "main"):
            module = import_module(f"benchmarks.{cmd_name}.__main__")
        command: click.Command = module.main
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, f"{shows} ({takes})") for name, (shows, takes, _) in BENCHMARKS.items()]
        with formatter.section("Benchmarks, and what a full run takes"):
            formatter.write_dl([*rows, ("all", "all that need no option, in nearly two hours")])


@click.command(name="all")
@click.option("--quick", is_flag=True, help="The quick form of each: shows that they run.")
def run_all(quick: bool) -> None:
    """Run the benchmarks that need no option, one process after the other."""
    for name, benchmark in BENCHMARKS.items():
        if benchmark.regular:
            # A process each, so that none finds the caches and the memory of the one before.
            command = [sys.executable, "-m", "benchmarks", name]
            subprocess.run([*command, "--quick"] if quick else command, check=True)


@click.command(cls=Benchmarks, context_settings={"max_content_width": 100})
def main() -> None:
    """Measure speed, memory and quality beside other libraries; results go to benchmarks/results.

    Each takes --quick (seconds, to see that it runs), --out FOLDER and --help. Run them from the
    root of the repository.
    """


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
