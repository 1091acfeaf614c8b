"""The result as a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.machine import one_line
from benchmarks.path.settings import SETTINGS
from benchmarks.results import rounded, table


def markdown(result: Mapping[str, Any]) -> str:
    """The tables, then how to read them."""
    parts = [f"# The whole path\n\nMade by `{result['made_by']}`; do not edit.\n"]
    for log, found in result["logs"].items():
        parts.append(f"## {NAMES[log]}\n")
        parts.append(
            _throughput(found["throughput"], result["stream"]["d"], result["machine"]["cores"])
        )
        parts.append(_latency(found["latency"]))
        parts.append(_processes(found))
        parts.append(_recovery(found["recovery"]))
    parts.append(_notes(result))
    return "\n".join(parts)


NAMES = {"sqlite": "The embedded log", "kafka": "Kafka"}


def _throughput(found: Mapping[str, Any], d: int, cores: int) -> str:
    measured = found["readings_per_s"]["median"]
    lines = [["the whole path", rounded(measured), "1"]]
    at_most = cores * found["readings"] / sum(row["cpu_s"] for row in found["processes"])
    lines.append(
        [
            "the processor time of its processes, on all cores",
            rounded(at_most),
            f"{measured / at_most:.2f}",
        ]
    )
    for name, peer in found["peers"].items():
        lines.append(
            [name, rounded(peer["readings_per_s"]["median"]), f"{peer['ratio']['median']:.2f}"]
        )
    head = [
        f"as fast as it goes, {rounded(found['readings'])} readings, d = {d}",
        "readings/s",
        "path / this",
    ]
    return table(head, lines)


def _latency(found: list[Mapping[str, Any]]) -> str:
    head = [
        "readings/s",
        "settings",
        "p50, s",
        "p99, s",
        "most, s",
        "stored late, s",
        "up, bytes",
        "to 8d",
        "down, bytes",
    ]
    return table(
        head,
        [
            [
                rounded(run["rate"]),
                run["settings"],
                f"{run['p50_s']:.2f}",
                f"**{run['p99_s']:.2f}**",
                f"{run['max_s']:.2f}",
                f"{run['stored_late_max_s']:.2f}",
                rounded(run["wire"]["update_bytes_per_reading"]),
                f"{run['wire']['updates_to_raw']:.2f}",
                rounded(run["wire"]["snapshot_bytes_per_reading"]),
            ]
            for run in found
        ],
    )


def _processes(found: Mapping[str, Any]) -> str:
    """Memory and processor time; the first client stands for all clients."""
    runs = {"as fast as it goes": found["throughput"]} | {
        f"{rounded(measured['rate'])}/s, {measured['settings']}": measured
        for measured in found["latency"]
    }
    names = [row["name"] for row in found["throughput"]["processes"] if row["name"] in ONE_OF_EACH]
    lines = []
    for run, measured in runs.items():
        rows = {row["name"]: row for row in measured["processes"]}
        lines.append(
            [
                run,
                *(
                    f"{rows[name]['rss_max_mib']:.0f}, {rows[name]['cpu_s_per_1000_readings']:.3f}"
                    for name in names
                ),
            ]
        )
    return table(["RSS at most (MiB), CPU s per 1000 readings of all", *names], lines)


ONE_OF_EACH = ("producer", "client-1", "server", "broker")


def _recovery(found: list[Mapping[str, Any]]) -> str:
    lines = [
        [
            recovered["killed"],
            str(recovered["kills"]),
            *(f"{recovered['seconds'][which]:.2f}" for which in ("median", "low", "high")),
        ]
        for recovered in found
    ]
    return table(["killed", "times", "back after, s", "least", "most"], lines)


def _notes(result: Mapping[str, Any]) -> str:
    stream = result["stream"]
    prompt = "; ".join(
        f"[{section}] " + ", ".join(f"{name} = {value}" for name, value in values.items())
        for section, values in SETTINGS["prompt"].items()
    )
    return (
        f"One `shoal producer`, {stream['clients']} `shoal client`, one `shoal server` with its"
        f" page, all on one machine; {stream['d']} features, formal privacy, a model of FCAC. The"
        f" readings are {stream['centres']} blobs from a CSV file, assigned to the clients in turn."
        " Latency is from the time at which a reading is due by the producer's rate to the time at"
        " which another process has read and decoded a snapshot with it: every reading that is due"
        f" in {stream['measured_s']:g} s after the first {stream['warm_s']:g} s, none left out."
        " *Stored late* is the longest delay of the producer, which is included. Settings are the"
        f" defaults, or *prompt*: {prompt}. Up is bytes of updates per reading, beside 8 bytes a"
        " feature; down, of snapshots.\n\nThe arithmetic is one process that adds noise to the"
        " same rows and clusters them with the FCAC estimator, without log, message or disk; raw"
        " records are encoded readings from one process through the same log to another. What the"
        " processor time of the processes allows would be reached if no core ever waited; it"
        f" hardly depends on what else runs. Kernels: {stream['kernels'] or 'as processes choose'};"
        " in recoveries as processes choose.\n\nA killed process is started again at once. Back:"
        f" {rounded(stream['kill_rate'])} readings/s continue meanwhile; seconds from the kill to"
        " the first snapshot with a reading due after it, of the killed client itself or of any."
        " This and the first table are under prompt settings.\n\nLoad average"
        f" {result['machine']['load_average_1min']} before, {result['load_after']}"
        f" after.\n\n{one_line(result['machine'])}\n"
    )
