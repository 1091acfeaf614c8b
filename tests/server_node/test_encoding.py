"""JSON of the types of the report, and the schema of that JSON."""

from __future__ import annotations

import gc
import traceback

from shoal.server_node.outputs.encoding import adapter_of
from shoal.server_node.report.types import Event


def format_a_traceback(phase: str, details: dict[str, int]) -> None:
    """As the finalizer of an asyncio task whose exception nobody asked for."""
    try:
        int("a") + int("b")
    except ValueError as error:
        traceback.format_exception(error)


def test_a_type_is_described_though_the_collector_would_run_finalizers_meanwhile() -> None:
    thresholds = gc.get_threshold()
    gc.callbacks.append(format_a_traceback)
    # So low that a collection falls into each parse of the source.
    gc.set_threshold(50)
    try:
        for _ in range(3):
            adapter_of.__wrapped__(Event)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(format_a_traceback)
    assert gc.isenabled()
