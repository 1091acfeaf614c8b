"""Checksums of Kafka's records in C, by a package whose licence allows any use.

kafka-python takes the package crc32c where that is installed, which is under the LGPL, and else
computes in Python, which makes all that goes through a log twenty times slower.
"""

from __future__ import annotations

import google_crc32c
from kafka.record import util


def use_fast_checksums() -> None:
    """Let kafka-python compute by google-crc32c where it would in Python; what it has stays."""
    in_python = (util.crc32c_py,)
    if util.calc_crc32c.__defaults__ == in_python:
        util.calc_crc32c.__defaults__ = (crc32c,)


def crc32c(content: memoryview) -> int:
    """CRC-32C (Castagnoli) of bytes."""
    # A copy: it takes nothing that could be written.
    return int(google_crc32c.value(bytes(content)))
