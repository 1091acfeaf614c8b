"""Whether OpenTelemetry exports metrics and spans of this process, by its standard variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from shoal.errors import MissingExtra
from shoal.telemetry.events import log_event

if TYPE_CHECKING:
    from shoal.telemetry.resource import Telemetry

Signal = Literal["metrics", "traces"]
SIGNALS: Final[tuple[Signal, ...]] = ("metrics", "traces")
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL: Final = "http/protobuf"


def exported_signals(environment: Mapping[str, str] | None = None) -> tuple[Signal, ...]:
    """What is exported: nothing unless a variable names an endpoint.

    Source: OpenTelemetry specification 1.x, "Environment variable specification" and "OTLP exporter
    configuration".
    """
    if environment is None:
        environment = os.environ
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    return tuple(signal for signal in SIGNALS if _endpoint(environment, signal))


def _endpoint(environment: Mapping[str, str], signal: Signal) -> str:
    """The endpoint in the environment; empty where the signal is not exported."""
    if environment.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip() == "none":
        return ""
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
    return own or environment.get(ENDPOINT, "").strip()


def leave_the_machine(environment: Mapping[str, str] | None = None) -> bool:
    """Whether metrics are exported to another machine."""
    if environment is None:
        environment = os.environ
    if "metrics" not in exported_signals(environment):
        return False
    host = urlsplit(_endpoint(environment, "metrics")).hostname or ""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


@contextmanager
def exporting(process: str, *federations: Telemetry) -> Iterator[None]:
    """Export the metrics and spans of the federations of this process while the context is open.

    `process`: client, host, replica, run or server, in the name of the service unless a variable
    has one. Without the package it is said, and nothing is exported: variables of a whole machine
    must not stop a process.
    """
    signals = exported_signals()
    if not signals:
        yield
        return
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOL).strip()
    try:
        if protocol != PROTOCOL:
            raise MissingExtra(f"OTEL_EXPORTER_OTLP_PROTOCOL other than {PROTOCOL}", "otel")
        # Only a process that exports loads it: 60 modules.
        from shoal.telemetry.otel import Export  # noqa: PLC0415 - of the extra otel
    except MissingExtra as missing:
        log_event("telemetry_not_exported", logging.WARNING, reason=str(missing))
        yield
        return
    export = Export(process, federations, signals)
    log_event("telemetry_exported", signals=", ".join(signals))
    try:
        yield
    finally:
        export.close()
