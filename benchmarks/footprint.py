"""Memory and processor time of a client process, the size of its installation, and the time of
`import shoal`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.installation import install, weigh
from benchmarks.machine import facts, one_line
from benchmarks.process import MIB, ClientProcess, check_proc
from benchmarks.results import out_option, quick_option, rounded, table, write
from benchmarks.site import CASES, CLIENT, DIMENSIONS, Case, Site
from shoal.kernels.forms import AUTO, VARIABLE

HERE = Path(__file__).parent.parent
GOAL = {"distributions": 12, "installed_mb": 110.0, "resident_mb": 64.0, "import_s": 0.15}
"""upper limits for a small machine; MB are 10^6 bytes, resident memory is the peak over the whole
stream"""
IMPORTS = 5
_IMPORT = (
    "import time; began = time.perf_counter(); import shoal; print(time.perf_counter() - began)"
)
BACKLOGS = {
    "one model": (1, {}),
    "three models": (3, {}),
    "three models, `SHOAL_KERNELS=auto`": (3, {VARIABLE: AUTO}),
}
"""name -> number of models, and variables of the client's environment"""
STAGES = 5
"""memory is taken before the first reading and after each fifth of the stream"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("A short stream, in seconds")
@click.option(
    "--install",
    "fresh",
    is_flag=True,
    help=(
        "Install shoal without extras into a fresh environment first (from the package index, half"
        " a minute), weigh it, and measure the client there."
    ),
)
@out_option("footprint")
def main(quick: bool, fresh: bool, out: Path) -> None:
    """Measure a real `shoal client` process over a stream of readings of 16 features with formal
    privacy, and over a backlog that waits for it at its start.

    Linux only: the figures are read from /proc. A full run takes about ten minutes.
    """
    check_proc()
    readings = 5_000 if quick else 100_000
    waiting = 5_000 if quick else 1_000_000
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "msgpack", "pydantic", "prometheus-client"))
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(sys.executable)
        installation = None
        if fresh:
            python = install(HERE, Path(scratch) / "environment")
            installation = weigh(python)
        import_s = import_time_s(python)
        cases = []
        for number, case in enumerate(CASES):
            cases.append(measure(case, python, Path(scratch) / f"site-{number}", readings))
            click.echo(_progress(cases[-1]))
        backlogs = []
        for number, name in enumerate([*BACKLOGS][:1] if quick else BACKLOGS):
            backlogs.append(
                measure_backlog(name, python, Path(scratch) / f"late-{number}", waiting)
            )
            click.echo(f"{name}: {backlogs[-1]['rss_max_mib']:.1f} MiB")
    result = {
        "made_by": "python -m benchmarks footprint" + " --quick" * quick + " --install" * fresh,
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "stream": {
            "readings": readings,
            "d": DIMENSIONS,
            "privacy": "formal",
            "settings": "defaults",
        },
        "installation": installation,
        "import_s": import_s,
        "cases": cases,
        "waiting": waiting,
        "backlogs": backlogs,
        "goal": GOAL | {"reached": reached(cases, installation, import_s)},
    }
    write(out, "footprint", result, markdown(result))
    click.echo(f"written to {out}/footprint.json and {out}/footprint.md")


def import_time_s(python: Path) -> float:
    """Seconds of `import shoal` in a fresh process: the least of several, as other work only adds
    to it."""
    command = [str(python), "-I", "-c", _IMPORT]
    runs = (
        subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(IMPORTS)
    )
    return min(float(run.stdout) for run in runs)


def reached(
    cases: list[dict[str, Any]], installation: dict[str, Any] | None, import_s: float
) -> dict[str, bool | None]:
    """Whether the goals are reached in the worst case; None for what was not measured."""
    resident_mb = max(case["rss_max_mib"] for case in cases) * MIB / 1e6
    weighed = installation or {}
    return {
        "distributions": weighed["distributions"] <= GOAL["distributions"] if weighed else None,
        "installed_mb": weighed["mb"] <= GOAL["installed_mb"] if weighed else None,
        "resident_mb": resident_mb <= GOAL["resident_mb"],
        "import_s": import_s <= GOAL["import_s"],
    }


def measure(case: Case, python: Path, folder: Path, readings: int) -> dict[str, Any]:
    """Run one client over one stream, which is written into its readings log in five parts."""
    site = Site(folder, case)
    with ClientProcess(python, site.file, CLIENT, site.key) as client:
        client.settle()
        start = client.footprint()
        resident = []
        for stage in range(1, STAGES + 1):
            site.write(readings // STAGES)
            client.wait_until_learned(stage * readings // STAGES)
            resident.append(client.footprint().resident_mib)
        # Work after the last update, such as metrics, belongs to the readings too.
        client.settle()
        end = client.footprint()
        totals = client.stop()
    return {
        "name": case.name,
        "epsilon_per_feature": case.epsilon_per_feature,
        "readings": totals["readings"],
        "nodes": site.nodes(),
        "rss_start_mib": start.resident_mib,
        "rss_by_stage_mib": resident,
        # The kernel's counters of one process differ by some pages, so its peak can be below what
        # was read before.
        "rss_max_mib": max(end.peak_mib, *resident),
        "rss_last_over_first_stage": resident[-1] / resident[0],
        "cpu_start_s": start.cpu_s,
        "cpu_s_per_1000_readings": (end.cpu_s - start.cpu_s) / readings * 1000,
    }


def measure_backlog(name: str, python: Path, folder: Path, readings: int) -> dict[str, Any]:
    """Start a client once its readings log has all readings, and let it learn them."""
    models, variables = BACKLOGS[name]
    # The environment that is measured otherwise has no Numba.
    python = Path(sys.executable) if variables else python
    site = Site(folder, CASES[0], models)
    site.write(readings)
    with ClientProcess(python, site.file, CLIENT, site.key, variables) as client:
        client.wait_until_learned(readings)
        client.settle()
        end = client.footprint()
        totals = client.stop()
    return {
        "name": name,
        "readings": totals["readings"],
        "rss_end_mib": end.resident_mib,
        "rss_max_mib": max(end.peak_mib, end.resident_mib),
        "cpu_s": end.cpu_s,
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    stream = result["stream"]
    head = [
        f"{rounded(stream['readings'])} readings, d = {stream['d']}",
        "nodes",
        "RSS at start",
        "at 20 %",
        "at 100 %",
        "highest",
        "CPU s at start",
        "CPU s per 1000 readings",
    ]
    parts = [
        f"# One client process\n\nMade by `{result['made_by']}`; do not edit.\n",
        table(head, [_line(case) for case in result["cases"]]),
        (
            "RSS is resident memory in MiB. The client runs with default settings and formal"
            " privacy; the CPU time is all of the process, with its log, its checkpoint and its"
            " updates. Its producer is another process and not counted.\n"
        ),
    ]
    parts.append(_backlogs(result))
    installation = result["installation"]
    if installation is not None:
        weights = sorted(installation["of_which_mb"].items(), key=lambda pair: -pair[1])
        parts.append(
            f"`pip install .` without extras brings {installation['distributions']} distributions,"
            f" shoal's own among them: {installation['mb']} MB"
            f" ({', '.join(f'{name} {mb}' for name, mb in weights)}).\n"
        )
    import_ms = rounded(1000 * result["import_s"])
    parts.append(f"`import shoal` takes {import_ms} ms in a fresh process; it loads no NumPy.\n")
    parts.append(_goals(result["goal"]))
    return "\n".join([*parts, one_line(result["machine"]) + "\n"])


def _backlogs(result: dict[str, Any]) -> str:
    waiting = f"{rounded(result['waiting'])} readings that wait at the start"
    lines = []
    for late in result["backlogs"]:
        figures = (late["rss_max_mib"], late["rss_end_mib"], late["cpu_s"])
        lines.append([late["name"], *map(rounded, figures)])
    return (
        f"{table([waiting, 'highest RSS', 'RSS at the end', 'CPU s'], lines)}\nA client reads a"
        " backlog in batches, so its length costs no memory. `auto` loads Numba, where the extra"
        " `fast` is installed, as here; by default a client does not.\n"
    )


def _goals(goal: dict[str, Any]) -> str:
    verdicts = {True: "reached", False: "missed", None: "not measured"}
    each = ", ".join(
        f"{name} {rounded(GOAL[name])}: {verdicts[goal['reached'][name]]}" for name in GOAL
    )
    return (
        "Goals, at most (MB are 10^6 bytes, MiB 2^20; 100 000 readings are an hour of 28 a"
        f" second): {each}.\n"
    )


def _line(case: dict[str, Any]) -> list[str]:
    figures = (
        case["rss_start_mib"],
        case["rss_by_stage_mib"][0],
        case["rss_by_stage_mib"][-1],
        case["rss_max_mib"],
        case["cpu_start_s"],
        case["cpu_s_per_1000_readings"],
    )
    name = f"{case['name']} (ε {case['epsilon_per_feature']:g} per feature)"
    return [name, str(case["nodes"]), *map(rounded, figures)]


def _progress(case: dict[str, Any]) -> str:
    return (
        f"{case['name']}: {case['nodes']} nodes, {rounded(case['rss_start_mib'])} MiB at start,"
        f" {rounded(case['rss_max_mib'])} at most, {rounded(case['cpu_s_per_1000_readings'])} CPU s"
        " per 1000 readings"
    )
