"""`shoal topics` creates and checks the topics of a federation; `shoal rejected` shows what the
server rejected."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from shoal.cli.options import config_option, json_option
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidData, LogError
from shoal.protocol.conflicts import INCARNATION_HEADER
from shoal.protocol.rejected import VALUE_BYTES
from shoal.protocol.topics import declared_topics, ensure_topics
from shoal.text import counted
from shoal.transports import open_log, open_log_to_read
from shoal.transports.base import Log, Record, latest


@click.group()
def topics() -> None:
    """The topics of a federation."""


@topics.command()
@config_option
@json_option
def ensure(file: Path, as_json: bool) -> None:
    """Create the federation's topics where they are missing, and check the existing ones.

    A topic with other settings than declared is an error that names every difference; nothing is
    changed. On Kafka, run this as a user who may create topics; clients and servers then need the
    rights to read and write only.
    """
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        chosen = config.client.publish_labels, config.upstream.file is not None
        ensure_topics(log, config.contract, config.log, *chosen)
        declared = declared_topics(config.contract, config.log, *chosen)
        bounds = {name: log.bounds(name) for name in declared}
    if as_json:
        by_topic = {}
        for name, ends in bounds.items():
            by_topic[name] = [ends[partition] for partition in sorted(ends)]
        click.echo(json.dumps(by_topic))
        return
    for name, ends in bounds.items():
        offsets = sum(end - first for first, end in ends.values())
        click.echo(f"{name}: {counted(len(ends), 'partition')}, {offsets} offsets kept")


# The beginning tells what kind of bytes they are; the whole value may be megabytes.
BYTES_SHOWN = 64
ORIGINAL = "original."


@click.group()
def rejected() -> None:
    """Messages that the server rejected because they failed a check."""


@rejected.command("list")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def list_(file: Path, as_json: bool) -> None:
    """List the rejected messages: where each comes from, the reason, and its size."""
    with _log_to_read(file) as (config, log):
        found = _rejected_records(config, log)
        if not found:
            click.echo("No message has been rejected.", err=True)
        for origin, record in found.items():
            reason = _header(record, "reason")
            detail = _header(record, "detail")
            size = len(record.value or b"")
            if as_json:
                click.echo(
                    json.dumps(
                        {"origin": origin, "reason": reason, "bytes": size, "detail": detail}
                    )
                )
            else:
                click.echo(f"{origin}  {reason}  {size} bytes  {detail}")


@rejected.command()
@config_option
@click.argument("origin")
@click.option(
    "--raw", is_flag=True, help="Write the original bytes, and nothing else, to standard output."
)
def show(file: Path, origin: str, raw: bool) -> None:
    """Show one message. ORIGIN is TOPIC/PARTITION/OFFSET, as `shoal rejected list` prints it."""
    with _log_to_read(file) as (config, log):
        record = _find(config, log, origin)
    if raw:
        sys.stdout.buffer.write(record.value or b"")
        return
    for name, value in record.headers:
        click.echo(f"{name}: {_text(value)}")
    value = record.value or b""
    shown = value[:BYTES_SHOWN].hex(" ")
    if len(value) > BYTES_SHOWN:
        shown += " ..."
    click.echo(f"value: {len(value)} bytes, {shown}")


@rejected.command()
@config_option
@click.argument("origin")
def requeue(file: Path, origin: str) -> None:
    """Publish one message again at the end of the topic that it came from, and take it off the
    list.

    Use it for a message that would pass now, because the server was too old or had another
    federation file. The server checks it again.
    """
    with _open_log(file) as (config, log):
        record = _find(config, log, origin)
        kept = dict(record.headers)
        if "original_headers_cut" in kept:
            raise InvalidData(
                f"{origin}: its headers were too large to be kept, so it cannot be published as "
                "it was"
            )
        if VALUE_BYTES in kept:
            raise InvalidData(
                f"{origin}: its value was too large to be kept, so it cannot be published as it was"
            )
        topic, partition = _parse_origin(config, origin)
        headers = []
        for name, value in record.headers:
            original = name.removeprefix(ORIGINAL)
            # The process that published it may have ended: it must not seem to publish again.
            if original not in {name, INCARNATION_HEADER}:
                headers.append((original, value))
        log.publish(topic, record.value, kept.get("key") or None, tuple(headers), partition)
        # In this order a failure between the two leaves it on the list, and a repeated update
        # changes nothing.
        log.flush()
        log.publish(config.contract.rejected_topic, None, record.key)
        log.flush()
    click.echo(f"{origin}: published again")


@contextmanager
def _open_log(file: Path) -> Iterator[tuple[Config, Log]]:
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        yield config, log


@contextmanager
def _log_to_read(file: Path) -> Iterator[tuple[Config, Log]]:
    config = load_config(file)
    with closing(open_log_to_read(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        yield config, log


def _rejected_records(config: Config, log: Log) -> dict[str, Record]:
    """Origin -> the rejected record, oldest first."""
    records = latest(log, config.contract.rejected_topic)
    # A compacted topic gives its keys in no order; the offset is that of their newest record.
    by_age = sorted(records.items(), key=lambda item: item[1].offset)
    return {_text(key): record for key, record in by_age}


def _find(config: Config, log: Log, origin: str) -> Record:
    record = _rejected_records(config, log).get(origin)
    if record is None:
        raise LogError(
            f"{origin}: not among the rejected messages; `shoal rejected list` prints them"
        )
    return record


def _parse_origin(config: Config, origin: str) -> tuple[str, int]:
    """Topic and partition of an origin. Raises `InvalidData` for any topic but that of updates.

    Otherwise any writer to the topic of rejected messages could make this command write to any
    topic.
    """
    topic = config.contract.updates_topic
    place = re.fullmatch(rf"{re.escape(topic)}/([0-9]{{1,9}})/[0-9]+", origin)
    if place is None:
        raise InvalidData(
            f"{origin}: no server has rejected this, as it does not come from {topic}; it is not "
            "published"
        )
    return topic, int(place[1])


def _header(record: Record, name: str) -> str:
    return _text(dict(record.headers).get(name, b""))


def _text(value: bytes) -> str:
    """The value as text without control characters, so that it cannot act on a terminal."""
    shown = ""
    for letter in value.decode(errors="backslashreplace"):
        shown += letter if letter.isprintable() else f"\\x{ord(letter):02x}"
    return shown
