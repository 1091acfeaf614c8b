"""What shoal takes from elsewhere: the packages of a small installation, and parts of packages that
may change without notice."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "security.md"
PRODUCT = ("shoal", "producers", "client_nodes", "helper_node", "server_node", "onebox")
PUBLIC = {
    "kafka": {"kafka", "kafka.admin", "kafka.errors", "kafka.structs"},
    "uvicorn": {"uvicorn"},
}
"""package -> its modules whose names its documentation gives to users"""
INTERNAL = {
    "kafka.net.compat:KafkaNetClient": ("close",),
    "kafka.net.sasl.oauth:AbstractTokenProvider": ("token",),
    "kafka.coordinator.assignors.cooperative_sticky:CooperativeStickyAssignor": ("name",),
    "kafka.codec": ("gzip_decode", "lz4_decode", "snappy_decode", "zstd_decode"),
    "kafka.record.default_records": ("gzip_decode", "lz4_decode", "snappy_decode", "zstd_decode"),
    "kafka.record.legacy_records": ("gzip_decode", "lz4_decode", "snappy_decode"),
    "kafka.record.util": ("calc_crc32c", "crc32c_py"),
    "kafka:KafkaConsumer": ("_coordinator",),
    "kafka.coordinator.consumer:ConsumerCoordinator": ("request_rejoin",),
    "kafka:KafkaProducer": ("_accumulator", "_sender"),
    "kafka.producer.record_accumulator:RecordAccumulator": ("has_incomplete",),
    "kafka.producer.sender:Sender": ("force_close",),
    "uvicorn:Server": ("main_loop", "on_tick", "should_exit"),
    "uvicorn.protocols.http.h11_impl:H11Protocol": (
        "client",
        "conn",
        "cycle",
        "transport",
        "connection_made",
        "data_received",
        "pause_writing",
        "resume_writing",
        "on_response_complete",
        "send_400_response",
    ),
    "uvicorn.protocols.http.h11_impl:RequestResponseCycle": ("more_body", "response_complete"),
}
"""what is used, "module" or "module:class" -> its names"""
DISTRIBUTIONS = {"kafka": "kafka-python", "uvicorn": "uvicorn"}
UNDERSCORED = re.compile(r"\b(?:producer|consumer|admin|client)\.(_[a-z]\w*)")
SIZE_FACTOR = 2.0
"""by how much a package may be larger than the page states: versions differ"""


@pytest.mark.parametrize("place", INTERNAL)
def test_what_is_used_of_the_inside_of_a_package_is_where_it_was(place: str) -> None:
    module_name, _, class_name = place.partition(":")
    package = module_name.partition(".")[0]
    pytest.importorskip(package, reason=f"{package} is an extra")
    which = f"{DISTRIBUTIONS[package]} {version(DISTRIBUTIONS[package])}"
    try:
        found = import_module(module_name)
        if class_name:
            found = getattr(found, class_name)
    except (ImportError, AttributeError):
        pytest.fail(f"{which} has no {place} any more: see who uses it, and what took its place")
    source = inspect.getsource(found)
    for name in INTERNAL[place]:
        # Attributes of objects are made in methods.
        is_there = hasattr(found, name) or re.search(rf"\bself\.{name}\b", source)
        assert is_there, f"{which}: {place} has no {name} any more"


def test_everything_that_is_used_of_the_inside_of_a_package_is_listed() -> None:
    listed_modules = {place.partition(":")[0] for place in INTERNAL}
    listed_names = {name for names in INTERNAL.values() for name in names}
    for path in product_files():
        text = path.read_text(encoding="utf-8")
        for module in imported_modules(text):
            package = module.partition(".")[0]
            if package in PUBLIC and module not in PUBLIC[package]:
                assert module in listed_modules, f"{path.name} uses {module}: list it"
        if "kafka" in path.parts:
            assert set(UNDERSCORED.findall(text)) <= listed_names, path


def product_files() -> Iterator[Path]:
    """The modules of the package, each once."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            is_link = any(parent.is_symlink() for parent in path.parents)
            if not is_link:
                yield path


def imported_modules(text: str) -> Iterator[str]:
    """Every module that a source imports, or imports from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            # A module may be imported from its package by name.
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from named if INTERNAL.keys() >= set(named) else [node.module]


def small_installation() -> dict[str, str]:
    """What `pip install shoal` without extras brings: name -> licence, empty where it states none
    in the standard form."""
    found: dict[str, str] = {}
    waiting = ["shoal"]
    while waiting:
        package = distribution(waiting.pop())
        name = package.metadata["Name"].lower().replace("_", "-")
        if name in found:
            continue
        found[name] = package.metadata.get("License-Expression") or ""
        for line in package.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    del found["shoal"]
    return found


def stated() -> dict[str, tuple[str, float]]:
    """What the page says: name -> licence, and MB."""
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([\w. -]+) \| ([\d.]+) \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {name: (licence, float(mb)) for name, licence, mb in rows}


def test_the_page_lists_every_package_of_a_small_installation_with_its_licence() -> None:
    found = small_installation()
    page = stated()
    assert page.keys() == found.keys()
    for name, licence in found.items():
        if licence:
            assert page[name][0] == licence, name
    assert not [licence for licence, _ in page.values() if "GPL" in licence]


def test_no_package_of_a_small_installation_is_much_larger_than_the_page_says() -> None:
    for name, (_, mb) in stated().items():
        files = distribution(name).files or ()
        megabytes = sum(file.size or 0 for file in files) / 1e6
        assert megabytes <= SIZE_FACTOR * mb, f"{name}: {megabytes:.1f} MB"
