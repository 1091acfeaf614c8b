"""The machine on which figures were measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np


def facts(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, cores, load, Python and the versions of `packages`, as plain values."""
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "simd": np.show_config(mode="dicts")["SIMD Extensions"]["found"],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in packages},
    }


def one_line(machine: dict[str, Any]) -> str:
    """The facts as a sentence below a table."""
    versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items())
    return (
        f"Measured {machine['measured_at']} on {machine['cores']} cores of {machine['cpu']} (SIMD"
        f" {', '.join(machine['simd']) or 'baseline'}), load {machine['load_average_1min']} at the"
        f" start; {machine['system']}, Python {machine['python']}, {versions}."
    )


def _cpu() -> str:
    """The processor as the kernel names it; family and model tell apart processors with one
    marketing name."""
    listing = Path("/proc/cpuinfo")
    if not listing.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in listing.read_text().splitlines()]
    known = {name.strip(): value.strip() for name, _, value in lines}
    name = known.get("model name", platform.machine())
    return f"{name} (family {known.get('cpu family', '?')}, model {known.get('model', '?')})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
