"""Writes a federation file for somebody's own data, and names the commands that use it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.base import DAY_S, client_name_of, given_client_name, shown_client_name
from shoal.producers.column_types import Column, Understood
from shoal.producers.features import UNITS
from shoal.producers.sheet import LISTED
from shoal.producers.subjects import (
    NO_PEOPLE,
    READINGS_PER_DAY,
    SPAN_DAYS,
    USER_WINDOWS,
    WINDOW_S_MAX,
    CountingWindow,
    People,
    Subjects,
    counting_window,
)

WINDOW_READINGS = 400
WINDOW_S_GOAL = 21_600.0
"""seconds of a window that show what of a day is like the day before"""
WINDOW_READINGS_OF_DAYS = 100
"""readings of a window that are not given up for it: with fewer, noise hides small clusters"""
WINDOW_READINGS_MIN = 50
"""fewest readings of a window that noise leaves something of (docs/explanation/privacy.md)"""
MISSING_MIN = 0.02
"""share of readings that lack a value from which on they are learnt for the others"""
EPSILONS = ((400_000, 1.0), (100_000, 2.0), (0, 4.0))
"""(readings from which on, epsilon): half the epsilon takes about four times the readings"""
EPSILON_OF_PEOPLE = 4.0
"""epsilon of all that a person has in a window, or a client in the span of its budget"""
PUBLISH_READINGS = (20, 500)
"""fewest and most readings of an update"""
LOOKS_PER_FILE = 8
"""changes of the tree of cuts in data that are replayed once, at least: each cuts a cluster from
another once at most, and six clusters take four"""
GROW_READINGS = (100, 2000)
"""fewest and most readings between two of them; the most is the default of density_tree"""
UPDATE_S_MAX = 21_600.0
"""seconds of readings in an update, at most, where that leaves it the fewest readings"""
UPDATES_PER_CLIENT = 40
"""updates of a client, at least, in data that are replayed once"""
BOUNDS_SENTENCE = (
    "low and high are PROPOSALS, made from the data and rounded outward. Bounds that are taken from"
    " data reveal something of it: put the range of the sensor's data sheet there before you rely"
    " on the privacy of this federation."
)
STATES_SENTENCE = (
    "The readings are of one source in the order of time: the model states finds what it does when,"
    " beside the clusters of density."
)
NO_STATES_SENTENCE = (
    "The readings are of one source in the order of time. The model states, which finds what it"
    " does when, learns from rows, and is not proposed beside private counts; of public data:"
    " --public."
)
TIMES_SENTENCE = (
    'times = "public" lets history, days and weeks be those of the readings: when they were taken'
    ' is published, what they hold stays protected; "arrival" publishes when they came instead.'
)


@dataclass(frozen=True)
class Plan:
    """What a federation file is written from."""

    name: str
    understood: Understood
    subjects: Subjects
    readings: int
    """readings in the data, about"""
    settings: Mapping[str, Any]
    """settings of the source; those with no value are left out"""
    sentences: tuple[str, ...] = ()
    """sentences on each file as it was understood"""
    source: str = "files"
    """section of the source"""
    people: People = NO_PEOPLE

    @property
    def private(self) -> bool:
        """Whether anybody needs to be protected."""
        return self.subjects.private

    @property
    def window(self) -> CountingWindow:
        """The window of the counts that protect people."""
        return counting_window(self.subjects.unit, self.understood.interval_s)

    @property
    def readings_per_day(self) -> float:
        """Readings of a client in a day."""
        if self.understood.interval_s is None:
            return READINGS_PER_DAY
        return float(f"{DAY_S / self.understood.interval_s:.6g}")

    @property
    def user_is_named(self) -> bool:
        """Whether the source has a user id with every reading."""
        return bool(self.settings.get("user_column") or self.settings.get("user_id"))

    @property
    def expected_clients(self) -> int:
        """Number of clients that will take part."""
        return self.subjects.clients or self.clients

    @property
    def origin(self) -> str:
        """What the file was made from, for people."""
        if not self.understood.rows:
            return "a sheet of features"
        noun = "rows" if self.source == "files" else "messages"
        return f"{self.understood.rows:,} {noun}"

    @property
    def has_times(self) -> bool:
        """Whether a column or a field holds the times of the readings."""
        return bool(self.understood.of("time"))

    @property
    def is_one_stream(self) -> bool:
        """Whether all readings are of one source and their times are those of a steady pace."""
        has_pace = self.understood.interval_s is not None and not self.understood.are_days
        return has_pace and self.has_times and self.expected_clients == 1

    @property
    def clients(self) -> int:
        """Number of clients in the data."""
        return max(1, len(self.understood.clients))


def federation_file(plan: Plan) -> str:
    """The file as TOML: contract, and settings that fit the rate of the data."""
    lines = [
        f"# A shoal federation, proposed from {plan.origin}."
        " Clients and the server read this file.",
        "# [federation], [[features]], [privacy] and [[models]] are the contract:"
        " the same on every machine.",
        "",
        "[federation]",
        f"name = {_toml(plan.name)}",
    ]
    if plan.understood.rows:
        lines += ["", *(f"# {line}" for line in _wrapped(BOUNDS_SENTENCE))]
    for column in plan.understood.of("feature"):
        lines += ["", "[[features]]", *_feature(column)]
    lines += ["", *_privacy(plan), "", *_models(plan), ""]
    lines += [
        "# The following sections are settings of single processes and no part of the contract.",
        f"# After a change of the contract, delete the folder {plan.name} to begin again.",
        "",
        *_processes(plan),
    ]
    lines += _source(plan)
    return "\n".join(lines) + "\n"


def _source(plan: Plan) -> list[str]:
    """The section of the source, without settings that have no value."""
    plain: list[str] = []
    tables: list[str] = []
    for name, value in plan.settings.items():
        if value in (None, "", 0, (), [], {}):
            continue
        if isinstance(value, dict):
            # After the plain settings: in TOML, what follows the head of a table belongs to it.
            tables += ["", f"[{plan.source}.{name}]"]
            tables += [f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items()]
        else:
            plain.append(f"{name} = {_toml(value)}")
    if not plain and not tables:
        return []
    return ["", f"[{plan.source}]", *plain, *tables]


def _processes(plan: Plan) -> list[str]:
    """The settings of clients, server and events, each with a place of this federation's own."""
    return [
        "[log]",
        f"address = {_toml(f'sqlite:{plan.name}/federation.db')}",
        "",
        "[client]",
        f"folder = {_toml(f'{plan.name}/clients')}",
        f"publish_readings = {_publish_readings(plan)}",
        *_labels(plan),
        *_limits(plan),
        "",
        "[server]",
        f"folder = {_toml(f'{plan.name}/server')}",
        f"pool_clients = {min(plan.clients, 5)}",
        "pool_s = 10.0",
        "snapshot_updates = 5",
        *_client_names(plan),
        "",
        "[events]",
        f"folder = {_toml(f'{plan.name}/events')}",
    ]


def _client_names(plan: Plan) -> list[str]:
    """What the data call the clients that have another name, for people to read."""
    # The file is given to all clients: names of people are not for them.
    if plan.subjects.are_people:
        return []
    lines = []
    for text in plan.understood.clients:
        name = client_name_of(text)
        shown = shown_client_name(text)
        if shown and shown != name:
            lines.append(f"{_toml(name)} = {_toml(shown)}")
    return ["", "[server.client_names]", *lines] if lines else []


def _labels(plan: Plan) -> list[str]:
    """Labels and site events, which stay in the folder of the client; `shoal run` has them for
    files as well."""
    if plan.source == "files":
        return []
    return ["label = true  # labels and events of its own readings stay in the client's folder"]


def _limits(plan: Plan) -> list[str]:
    """What people spend, in the section of the client."""
    lines = []
    if plan.subjects.are_people and plan.understood.interval_s is not None:
        lines.append(
            f"readings_per_day = {plan.readings_per_day!r}  # `shoal check` says what they cost"
        )
    if plan.subjects.unit == "user":
        epsilon = EPSILON_OF_PEOPLE * USER_WINDOWS
        lines += [
            f"epsilon_max = {epsilon!r}  # of {USER_WINDOWS} windows, in all: windows add up",
            'at_epsilon_max = "refuse"  # then it reads on, and counts nothing more',
        ]
    return lines


def _feature(column: Column) -> list[str]:
    lines = [f"name = {_toml(column.name)}"]
    if column.unit and not column.values:
        lines.append(f"unit = {_toml(column.unit)}")
    # What a person listed is no proposal, and needs no remark.
    is_listed = column.reason == LISTED
    if column.values:
        lines.append('kind = "category"')
        lines.append(f"values = {_toml(list(column.values))}")
        if not is_listed:
            lines[-1] += (
                "  # PROPOSAL: those that occur; a value that is not listed is taken for missing"
            )
        return lines
    step = [f"step = {column.step!r}"] if column.step else []
    if column.period:
        period = f"period = {column.period!r}"
        low = f"low = {column.low!r}"
        if not is_listed:
            period += "  # PROPOSAL: begins again after it"
            low += "  # PROPOSAL: where the circle is cut, as few readings lie there"
        return [*lines, 'kind = "circular"', period, low, *step]
    high = f"high = {column.high!r}"
    if not is_listed:
        high += f"  # {_remark_on_bounds(column)}"
        step = [f"{line}  # PROPOSAL: the values shown differ by multiples of it" for line in step]
    return [*lines, f"low = {column.low!r}", high, *step]


def _remark_on_bounds(column: Column) -> str:
    physical = UNITS.get(column.unit.lower())
    remark = "PROPOSAL"
    if physical is not None and (physical.low, physical.high) == (column.low, column.high):
        remark = "the physical range of the unit"
    if column.outside > 0:
        remark += f"; {column.outside:.2%} of the values lie outside and are clipped"
    return remark


def _privacy(plan: Plan) -> list[str]:
    share = plan.understood.missing
    missing = []
    # Fields of MQTT topics come at different times: what is missing in the sample need not be.
    if plan.source != "mqtt" and share > MISSING_MIN:
        missing.append(
            f'missing = "learn"  # {share:.0%} of the readings lack a value;'
            " they are learnt for the others"
        )
    if not plan.private:
        return ["[privacy]", 'mode = "off"  # the data are public: nothing is hidden', *missing]
    if plan.subjects.are_people:
        return [*_privacy_of_people(plan), *missing, *_helpers(plan)]
    epsilon = next(epsilon for least, epsilon in EPSILONS if plan.readings >= least)
    lines = [
        "[privacy]",
        'mode = "formal"  # each reading is protected, at the client, before anything leaves it',
        f"counts_epsilon = {epsilon!r}  # what one reading costs; `shoal check` says what that"
        " means",
        *missing,
    ]
    if plan.has_times:
        lines.append(
            'times = "public"  # when readings were taken is published; "arrival": when they came'
        )
    interval = plan.understood.interval_s
    if interval is not None and interval * WINDOW_READINGS > 600:
        # A window is spread over its time: a longer one than a part of a day shows no day cycle.
        window = max(WINDOW_READINGS_OF_DAYS, min(WINDOW_READINGS, int(WINDOW_S_GOAL / interval)))
        # A sensor that sends live fills its window in this time.
        window = max(WINDOW_READINGS_MIN, min(window, int(WINDOW_S_MAX / interval)))
        if window != WINDOW_READINGS:
            lines.append(f"window_readings = {window}")
        lines.append(f"window_s = {min(WINDOW_S_MAX, float(round(1.1 * window * interval)))!r}")
    return lines


def _privacy_of_people(plan: Plan) -> list[str]:
    window = plan.window
    windows = [f"window_readings = {window.readings}", f"window_s = {window.seconds!r}"]
    if plan.subjects.masked:
        span = max(1, int(SPAN_DAYS * DAY_S / window.lasts_s))
        return [
            "[privacy]",
            'mode = "masked"  # helpers unmask noisy sums over many clients',
            'unit = "client"  # all readings of a client are protected together',
            f"epsilon = {EPSILON_OF_PEOPLE!r}  # what those of {SPAN_DAYS} days cost",
            f"budget_windows = {span}",
            f"budget_days = {SPAN_DAYS}",
            *windows,
        ]
    whose = "client" if plan.subjects.kind == "client" else "person"
    return [
        "[privacy]",
        'mode = "formal"  # noise is added at the client, before anything leaves it',
        f'unit = "user"  # all readings of a {whose} in a window are protected together',
        f"counts_epsilon = {EPSILON_OF_PEOPLE!r}  # of one window; [client] epsilon_max is of all",
        "readings_per_window_max = 1  # further ones of the same window are not counted",
        *windows,
    ]


def _helpers(plan: Plan) -> list[str]:
    lines = []
    for number, key in enumerate(plan.subjects.helper_keys, 1):
        lines += ["", "[[privacy.helpers]]", f'name = "h{number}"', f"key = {_toml(key)}"]
    return lines


def _models(plan: Plan) -> list[str]:
    algorithm = "density_tree" if plan.private else "cluster_tree"
    why = "learns from private counts" if plan.private else "for readings without noise"
    lines = [
        "[[models]]",
        'name = "clusters"',
        f'algorithm = "{algorithm}"  # {why}; finds the number of clusters',
        *_options_of_counts(plan),
    ]
    if plan.is_one_stream and not plan.private:
        lines += [
            "",
            "[[models]]",
            'name = "states"',
            'algorithm = "states"  # what the stream does when: the order of time decides',
        ]
    return lines


def _options_of_counts(plan: Plan) -> list[str]:
    """The line with the looks for clusters of a file that is too short for the default."""
    least, most = GROW_READINGS
    between = plan.readings // LOOKS_PER_FILE
    if not plan.private or plan.source != "files" or not plan.readings or between >= most:
        return []
    return [
        f"options = {{ grow_readings = {max(least, between)} }}  # a short file: clusters are"
        f" looked for {LOOKS_PER_FILE} times in it"
    ]


def _publish_readings(plan: Plan) -> int:
    least, most = PUBLISH_READINGS
    interval = plan.understood.interval_s
    if interval:
        # History, cycles and what is usual need updates that are no longer than parts of a day.
        most = min(most, max(1, int(UPDATE_S_MAX / interval)))
    return max(least, min(most, plan.readings // plan.clients // UPDATES_PER_CLIENT))


def _feeding(plan: Plan, path: str, files: str) -> str:
    if plan.source == "files":
        return f"shoal producer --config {path} {files or 'DATA'}"
    return f"shoal producer --config {path} --{plan.source}{_only_client(plan)}"


def _only_client(plan: Plan) -> str:
    """The option that names the client of all messages, where they do not name theirs."""
    return "" if plan.settings.get("client") else " --name client-1"


def next_commands(file: Path, plan: Plan, data: Sequence[Path]) -> list[str]:
    """The commands that use the file, with the real names of the clients."""
    path = shlex.quote(str(file))
    files = " ".join(shlex.quote(str(file)) for file in data)
    names = [written_name(text) for text in plan.understood.clients] or ["client-1"]
    at_once = f"shoal run {path} {files or 'DATA'}"
    if plan.source != "files":
        at_once = f"shoal run {path}{_only_client(plan)}"
    commands = [
        f"{at_once}   # all of it in one process, with the page",
        "or, as processes of their own:",
    ]
    if plan.subjects.masked:
        # One process would hold the helpers' secrets beside the counts.
        commands = [f"shoal helper --config {path} --key h1.key   # where each helper's key is"]
    client = f"shoal client --config {path} --name {shlex.quote(names[0])}   # at its site"
    if len(names) > 1:
        shown = ", ".join(names[:3])
        if len(names) > 3:
            shown += f" and {len(names) - 3} more"
        client = f"shoal host --config {path}   # at the site of {shown}"
    return [*commands, f"shoal server --config {path}", client, _feeding(plan, path, files)]


def written_name(text: str) -> str:
    """What a person writes on the command line for the client that data call `text`.

    That is the text itself, wherever it names the client there too.
    """
    name = client_name_of(text)
    if not text.isprintable() or text.startswith("-"):
        return name
    if given_client_name(text) == name:
        return text
    return name


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # A TOML string escapes as JSON does, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines
