"""The report of a producer at its end: how many readings it stored and what was wrong, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import click

FAULTS = {
    "ragged": "rows had more or fewer cells than the header; passed on without values",
    "unreadable": "rows could not be read; passed on without values",
    "unclosed": "rows had a quote that is never closed; passed on without values",
    "no_time": "rows had no readable time; passed on without one",
    "oversized": "messages were longer than payload_bytes_max",
    "not_text": "messages were no UTF-8 text",
    "not_json": "messages were no JSON object",
    "timeless": "messages had no readable time",
    "ahead": "messages had a time in the future",
    "unknown_topic": "messages were of a topic that was not subscribed to",
    "retained": "messages were retained by the broker, of unknown age",
    "missing": "values were missing in their message",
    "not_a_number": "values were no numbers",
    "infinite": "values were infinite",
    "late": "messages came too late for their reading",
    "repeated": "messages came a second time",
    "incomplete": "readings lacked a value and were dropped",
    "filled": "readings were filled up with last values",
}
"""kind of fault of a row, a message or a reading -> its description"""


class ProducerTotals(NamedTuple):
    """What a producer did until its end."""

    finished: bool
    """whether the source ended and all of it is stored"""
    published: Mapping[str, int]
    """readings stored, by client"""
    already_there: int
    """readings that an earlier run had stored"""
    position: int
    """rows of the source that are stored, by this run and earlier ones"""
    faults: Mapping[str, int]
    source: str
    """identity of the source"""
    empty: str = ""
    """why there was nothing to publish; empty where there was something"""


def report(totals: ProducerTotals, seconds: float, as_json: bool) -> None:
    """Print the totals of a run that took `seconds`."""
    published = sum(totals.published.values())
    rate = published / seconds if seconds > 0 else 0.0
    if as_json:
        figures = {"seconds": round(seconds, 3), "per_second": round(rate, 1)}
        faults, clients = dict(totals.faults), dict(sorted(totals.published.items()))
        printed = totals._asdict() | {"published": published, "clients": clients, "faults": faults} | figures
        click.echo(json.dumps(printed))
        return
    end = "to the end of the source" if totals.finished else "stopped before the end"
    click.echo(f"{published:,} readings published to {len(totals.published)} clients, {rate:,.0f} per second; {end}")
    if totals.empty:
        click.echo(totals.empty)
    elif totals.finished and not published:
        click.echo("nothing was new: an earlier run has published everything (--again publishes it once more)")
    for fault, number in totals.faults.items():
        click.echo(f"{number:,} {FAULTS[fault]}")
