"""A federation file for somebody's own data, written from what their columns hold, and the commands
that use it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.base import client_name_of, given_client_name
from shoal.producers.columns import Column, Understood
from shoal.producers.features import UNITS
from shoal.producers.sheet import LISTED

WINDOW_READINGS = 400
WINDOW_S_MAX = 604_800.0
"""longest window of a contract, in seconds"""
WINDOW_READINGS_MIN = 50
"""fewest readings of a window in which noise leaves something to see (docs/explanation/privacy.md)
"""
MISSING_MIN = 0.02
"""share of readings that lack a value from which on they are learnt for the others"""
EPSILONS = ((400_000, 1.0), (100_000, 2.0), (0, 4.0))
"""(readings from which on, epsilon): half the epsilon takes about four times the readings"""
PUBLISH_READINGS = (20, 500)
"""fewest and most readings of an update"""
UPDATES_PER_CLIENT = 40
"""updates of a client, at least, in data that are replayed once"""
BOUNDS_SENTENCE = (
    "low and high are PROPOSALS, made from the data and rounded outward. Bounds that are taken from data reveal "
    "something of it: put the range of the sensor's data sheet there before you rely on the privacy of this "
    "federation."
)


@dataclass(frozen=True)
class Plan:
    """What a federation file is written from."""

    name: str
    understood: Understood
    private: bool
    readings: int
    """readings in the data, about"""
    settings: Mapping[str, Any]
    """settings of the source; those with no value are left out"""
    sentences: tuple[str, ...] = ()
    """sentences on each file as it was understood"""
    source: str = "files"
    """section of the source"""

    @property
    def origin(self) -> str:
        """What the file was made from, for people."""
        rows = f"{self.understood.rows:,} {'rows' if self.source == 'files' else 'messages'}"
        return rows if self.understood.rows else "a sheet of features"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return max(1, len(self.understood.clients))


def federation_file(plan: Plan) -> str:
    """The file as TOML: contract, and settings that fit the rate of the data."""
    lines = [
        f"# A shoal federation, proposed from {plan.origin}. Clients and the server read this file.",
        "# [federation], [[features]], [privacy] and [[models]] are the contract: the same on every machine.",
        "",
        "[federation]",
        f"name = {_toml(plan.name)}",
    ]
    if plan.understood.rows:
        lines += ["", *(f"# {line}" for line in _wrapped(BOUNDS_SENTENCE))]
    for column in plan.understood.of("feature"):
        lines += ["", "[[features]]", *_feature(column)]
    lines += ["", *_privacy(plan), "", *_model(plan), ""]
    lines += [
        "# The following sections are settings of single processes and no part of the contract.",
        f"# After a change of the contract, delete the folder {plan.name} to begin again.",
        "",
        *_processes(plan),
    ]
    given = {
        name: value
        for name, value in plan.settings.items()
        if value not in (None, "", 0, (), [], {})
    }
    plain = {name: value for name, value in given.items() if not isinstance(value, dict)}
    if given:
        lines += [
            "",
            f"[{plan.source}]",
            *(f"{name} = {_toml(value)}" for name, value in plain.items()),
        ]
    for name in given.keys() - plain.keys():
        lines += [
            "",
            f"[{plan.source}.{name}]",
            *(f"{_toml(key)} = {_toml(value)}" for key, value in given[name].items()),
        ]
    return "\n".join(lines) + "\n"


def _processes(plan: Plan) -> list[str]:
    """The settings of clients, server and events, each with a place of this federation's own."""
    return [
        "[log]",
        f"address = {_toml(f'sqlite:{plan.name}/federation.db')}",
        "",
        "[client]",
        f"folder = {_toml(f'{plan.name}/clients')}",
        f"publish_readings = {_publish_readings(plan)}",
        "",
        "[server]",
        f"folder = {_toml(f'{plan.name}/server')}",
        f"pool_clients = {min(plan.clients, 5)}",
        "pool_s = 10.0",
        "snapshot_updates = 5",
        "",
        "[events]",
        f"folder = {_toml(f'{plan.name}/events')}",
    ]


def _feature(column: Column) -> list[str]:
    if column.values:
        lines = [
            f"name = {_toml(column.name)}",
            'kind = "category"',
            f"values = {_toml(list(column.values))}",
        ]
        if column.reason != LISTED:
            lines[2] += (
                "  # PROPOSAL: those that occur; a value that is not listed is taken for missing"
            )
        return lines
    physical = UNITS.get(column.unit.lower())
    known = physical is not None and (physical.low, physical.high) == (column.low, column.high)
    lines = [f"name = {_toml(column.name)}"]
    if column.unit:
        lines.append(f"unit = {_toml(column.unit)}")
    step = [f"step = {column.step!r}"] if column.step else []
    if column.period:
        circle = ['kind = "circular"', f"period = {column.period!r}", f"low = {column.low!r}"]
        if column.reason != LISTED:
            circle[1] += "  # PROPOSAL: begins again after it"
            circle[2] += "  # PROPOSAL: where the circle is cut, as few readings lie there"
        return [*lines, *circle, *step]
    if column.reason == LISTED:
        return [*lines, f"low = {column.low!r}", f"high = {column.high!r}", *step]
    remark = "the physical range of the unit" if known else "PROPOSAL"
    if column.outside > 0:
        remark += f"; {column.outside:.2%} of the values lie outside and are clipped"
    step = [f"{line}  # PROPOSAL: the values shown differ by multiples of it" for line in step]
    return [*lines, f"low = {column.low!r}", f"high = {column.high!r}  # {remark}", *step]


def _privacy(plan: Plan) -> list[str]:
    share = plan.understood.missing
    missing = [
        f'missing = "learn"  # {share:.0%} of the readings lack a value; they are learnt for the others'
    ]
    if plan.source == "mqtt" or share <= MISSING_MIN:
        missing = []
    if not plan.private:
        return ["[privacy]", 'mode = "off"  # the data are public: nothing is hidden', *missing]
    epsilon = next(epsilon for least, epsilon in EPSILONS if plan.readings >= least)
    lines = [
        "[privacy]",
        'mode = "formal"  # each reading is protected, at the client, before anything leaves it',
        f"counts_epsilon = {epsilon!r}  # what one reading costs; `shoal check` says what that means",
        *missing,
    ]
    interval = plan.understood.interval_s
    if interval is not None and interval * WINDOW_READINGS > 600:
        # A sensor that sends live fills its window in this time.
        window = max(WINDOW_READINGS_MIN, min(WINDOW_READINGS, int(WINDOW_S_MAX / interval)))
        if window != WINDOW_READINGS:
            lines.append(f"window_readings = {window}")
        lines.append(f"window_s = {min(WINDOW_S_MAX, float(round(1.1 * window * interval)))!r}")
    return lines


def _model(plan: Plan) -> list[str]:
    algorithm = "density_tree" if plan.private else "cluster_tree"
    why = "learns from private counts" if plan.private else "for readings without noise"
    return [
        "[[models]]",
        'name = "clusters"',
        f'algorithm = "{algorithm}"  # {why}; finds the number of clusters',
    ]


def _publish_readings(plan: Plan) -> int:
    least, most = PUBLISH_READINGS
    return max(least, min(most, plan.readings // plan.clients // UPDATES_PER_CLIENT))


def _feeding(plan: Plan, path: str, files: str) -> str:
    if plan.source == "files":
        return f"shoal producer --config {path} {files or 'DATA'}"
    return f"shoal producer --config {path} --{plan.source}{'' if plan.settings.get('client') else ' --name client-1'}"


def next_commands(file: Path, plan: Plan, data: Sequence[Path]) -> list[str]:
    """The commands that use the file, with the real names of the clients."""
    path = shlex.quote(str(file))
    files = " ".join(shlex.quote(str(one)) for one in data)
    names = [shlex.quote(written_name(text)) for text in plan.understood.clients] or ["client-1"]
    first = names[0]
    more = (
        f", and the same for {', '.join(names[1:4])}{' ...' if len(names) > 4 else ''}"
        if len(names) > 1
        else ""
    )
    whole = [
        f"shoal run {path} {files or 'DATA'}   # all of it in one process, with the page",
        "or, as processes of their own:",
    ]
    return [
        *(whole if plan.source == "files" else []),
        f"shoal server --config {path}",
        f"shoal client --config {path} --name {first}   # at its site{more}",
        _feeding(plan, path, files),
    ]


def written_name(text: str) -> str:
    """What a person writes on the command line for the client that data call `text`: the text,
    wherever that is it."""
    name = client_name_of(text)
    return (
        text
        if text.isprintable() and given_client_name(text) == name and not text.startswith("-")
        else name
    )


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # A TOML string escapes as JSON does, but for DEL.
    return (
        json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        if isinstance(value, str)
        else repr(value)
    )


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines
