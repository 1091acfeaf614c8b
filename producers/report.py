"""The last word of a producer: what was done, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import click

FAULTS = {
    "ragged": "rows had more or fewer cells than the header; passed on without values",
    "unreadable": "rows could not be read; passed on without values",
    "no_time": "rows had no readable time; passed on without one",
    "oversized": "messages were longer than payload_bytes_max",
    "not_text": "messages were no UTF-8 text",
    "not_json": "messages were no JSON object",
    "timeless": "messages had no readable time",
    "ahead": "messages had a time in the future",
    "unknown_topic": "messages were of a topic that nobody asked for",
    "retained": "messages were retained by the broker, of unknown age",
    "missing": "values were missing in their message",
    "not_a_number": "values were no numbers",
    "infinite": "values were infinite",
    "late": "messages came too late for their reading",
    "repeated": "messages came a second time",
    "incomplete": "readings lacked a value and were dropped",
    "held": "readings were filled up with last values",
}
"""what each kind of fault of a row, a message or a reading means"""


class ProducerTotals(NamedTuple):
    """What a producer did."""

    finished: bool
    """everything there was is stored"""
    published: Mapping[str, int]
    """readings stored, by client"""
    already_there: int
    """readings that were found stored"""
    position: int
    """rows of the source that are stored, by this run and those before"""
    faults: Mapping[str, int]
    source: str
    """its identity"""


def report(done: ProducerTotals, seconds: float, as_json: bool) -> None:
    """Print it."""
    published = sum(done.published.values())
    rate = published / seconds if seconds > 0 else 0.0
    if as_json:
        figures = {"seconds": round(seconds, 3), "per_second": round(rate, 1)}
        faults, clients = dict(done.faults), dict(sorted(done.published.items()))
        said = done._asdict() | {"published": published, "clients": clients, "faults": faults} | figures
        click.echo(json.dumps(said))
        return
    end = "to the end of the source" if done.finished else "stopped before the end"
    click.echo(f"{published:,} readings published to {len(done.published)} clients, {rate:,.0f} per second; {end}")
    if done.finished and not published:
        click.echo("nothing was new: an earlier run has published it all (--again publishes it once more)")
    for fault, number in done.faults.items():
        click.echo(f"{number:,} {FAULTS[fault]}")
