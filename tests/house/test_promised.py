"""What each release has written is upgraded, and goes on as if nothing had been.

`promised_federation.py` says what the archives have, and makes that of today's version.
"""

from __future__ import annotations

import json
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from shoal import __version__
from shoal.cli.formats import FORMATS, kept_numbers
from shoal.config.settings import load_config
from shoal.onebox.upkeep.upgrade import undo, upgrade
from shoal.privacy.ledger import Spending, read_spending
from shoal.protocol.topics import READINGS, RELEASES
from shoal.runtime.site_readings import SiteReadings
from tests.house.counting_federation import CLIENTS
from tests.house.masked_federation import MaskedFederation
from tests.house.promised_federation import (
    MASKED_CLIENTS,
    PROMISED,
    WINDOWS,
    feed,
    learn,
    server_models,
)
from tests.house.small_federation import contents, updates_by_client
from tests.house.test_readers import digests

UPGRADED = {FORMATS["Files"][0].kept}
"""formats that `shoal upgrade` has steps for: the embedded log"""
ARCHIVES = sorted(PROMISED.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder as that version has left it."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    made_with = json.loads((tmp_path / "formats.json").read_text(encoding="utf-8"))
    numbers = kept_numbers()
    differing = {kept for kept, number in made_with.items() if numbers.get(kept) != number}
    # What a step upgrades is upgraded, also where this version has changed since its archive.
    if request.param.name == f"{__version__}.tar.xz" and differing - UPGRADED:
        pytest.skip(f"{__version__} is not released: `make promised` stores its formats anew")
    return tmp_path


def upgraded(folder: Path) -> Path:
    """The folder in today's formats; an upgrade that changes something can be undone."""
    before = digests(folder)
    if upgrade(folder).kept is not None:
        undo(folder)
        assert digests(folder) == before, "to the bit"
        upgrade(folder)
    return folder


def published(file: Path) -> dict[str, dict[int, set[bytes]]]:
    """client -> number -> the contents of its update."""
    found: dict[str, dict[int, set[bytes]]] = {}
    for client, by_sequence in updates_by_client(load_config(file)).items():
        found[client] = {}
        for sequence, updates in by_sequence.items():
            found[client][sequence] = {contents(update) for update in updates}
    return found


def spent(file: Path) -> dict[str, dict[str, Spending]]:
    """client -> the accounts of its ledger."""
    return {
        client: read_spending(file.parent / "clients" / client / "ledger.db") for client in CLIENTS
    }


def test_there_is_an_archive_of_this_version() -> None:
    assert PROMISED / f"{__version__}.tar.xz" in ARCHIVES


def test_a_federation_goes_on_as_an_undisturbed_one(written: Path) -> None:
    half = upgraded(written / "half") / "federation.toml"
    start = upgraded(written / "start") / "federation.toml"
    spent_before = spent(half)
    learn(start)
    assert server_models(start) == server_models(half)
    assert spent(start) == spent_before
    for file in (start, half):
        feed(file)
        learn(file)
    assert server_models(start) == server_models(half)
    assert published(start) == published(half)
    assert spent(start) == spent(half) != spent_before


def test_a_federation_with_masked_counts_goes_on(written: Path) -> None:
    folder = upgraded(written / "masked")
    federation = MaskedFederation.written_before(folder, clients=MASKED_CLIENTS, now=2e9)
    ledger = folder / "clients" / "c0" / "ledger.db"

    def windows() -> int:
        [spending] = read_spending(ledger).values()
        [masked] = spending.masked
        return masked.windows

    def readings() -> int:
        with federation.server() as server:
            return int(server.models()["clusters"].state()["half"]["readings"])

    assert windows() == WINDOWS
    readings_before = readings()
    assert readings_before > 0
    federation.feed(1, first=WINDOWS)
    federation.run()
    assert windows() == WINDOWS + 1
    assert readings() > readings_before


def test_the_readings_of_a_host_are_there(written: Path) -> None:
    folder = upgraded(written / "site")
    with closing(SiteReadings(folder / "site.db", 10**6)) as site:
        assert site.names == ["a", "b", "c"]
        assert site.positions(b"source") == {0: 3}
        log = site.log_of("a")
        assert log.identity(READINGS) == b"a" * 16
        [record], _ = log.read(READINGS, {0: 0})
        assert (record.value, record.headers) == (b"a", (("n", b"1"),))
        [note], _ = log.read(RELEASES, {0: 0})
        assert (note.key, note.value) == (b"key", b"released")
