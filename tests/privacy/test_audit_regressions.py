"""The audits of faults of earlier versions: what is there now passes them, and each fault that is
back is refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes.count_windows import CountWindows
from shoal.client_nodes.own_updates import OwnUpdates
from shoal.client_nodes.publisher import EncodedUpdate
from shoal.client_nodes.releases import Releases
from shoal.config import privacy_report
from shoal.onebox.audit import regressions
from shoal.onebox.audit.regressions import audit_regressions
from shoal.onebox.audit.statistics import EventFinding
from shoal.onebox.audit.windows import audit_messages
from shoal.privacy.formal import beliefs
from shoal.privacy.ledger import Ledger
from shoal.server_node.models.clients import Clients
from shoal.simulation import counting
from tests.privacy.audited import audited_config, model_of


def found(folder: Path, users: bool = False) -> dict[str, EventFinding]:
    config = audited_config(folder, users=users)
    return {
        audit.audit: audit
        for audit in audit_regressions(config, folder / "run", np.random.default_rng(0))
    }


@pytest.mark.parametrize("users", [False, True])
def test_no_fault_of_earlier_versions_is_back(users: bool, memory_folder: Path) -> None:
    findings = found(memory_folder, users)
    assert len(findings) == 8
    for finding in findings.values():
        assert not finding.refuted, finding.line()
        assert finding.trials > 0


def forget_what_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_new", "resume", "note"):
        monkeypatch.setattr(Releases, name, lambda *_, **__: None)
    monkeypatch.setattr(OwnUpdates, "check", lambda *_, **__: None)


def notice_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clients, "copies", lambda *_: [])


def start_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnUpdates, "check", lambda *_, **__: None)


def charge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "charge", lambda *_: None)
    monkeypatch.setattr(Ledger, "check_windows", lambda *_: None)


def leave_out_empty_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CountWindows._close

    def close(self: CountWindows, now: float) -> list[EncodedUpdate]:
        return real(self, now) if self._valid.any() else []

    monkeypatch.setattr(CountWindows, "_close", close)


def name_streams_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    real = regressions.resolve
    first: list[Any] = []

    def resolve(contract: Any) -> Any:
        first.append(real(contract))
        return first[0]

    monkeypatch.setattr(regressions, "resolve", resolve)


def publish_the_key_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting.secrets, "token_bytes", bytes)


def state_the_beliefs_of_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_report, "beliefs", lambda epsilon: beliefs(epsilon / 100))


@pytest.mark.parametrize(
    ("fault", "audit"),
    [
        (forget_what_was_released, "files lost"),
        (notice_no_copies, "copies of a client"),
        (start_without_a_look, "right to read"),
        (charge_nothing, "one ledger"),
        (leave_out_empty_windows, "hidden presence"),
        (name_streams_alike, "names of streams"),
        (publish_the_key_of_the_library, "noise of the library"),
        (state_the_beliefs_of_less, "words"),
    ],
)
def test_a_fault_that_is_back_is_refuted(
    fault: Callable[[pytest.MonkeyPatch], None],
    audit: str,
    memory_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = audited_config(memory_folder)
    fault(monkeypatch)

    def one_by_one() -> Iterator[EventFinding]:
        yield from audit_regressions(config, memory_folder / "run", np.random.default_rng(0))

    finding = next(found for found in one_by_one() if found.audit == audit)
    assert finding.refuted, finding.line()


def test_neither_size_nor_time_of_messages_tells_where_readings_lay(memory_folder: Path) -> None:
    config = audited_config(memory_folder)
    model = model_of(config, "density_tree")
    generator = np.random.default_rng(0)
    for finding in audit_messages(config, model, memory_folder / "run", 60, generator):
        assert not finding.refuted, finding.line()
        assert finding.loss.trials == 30


def test_a_message_that_is_longer_where_readings_are_spread_is_refuted(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CountWindows._close

    def close(self: CountWindows, now: float) -> list[EncodedUpdate]:
        spread = len(np.unique(self._rows[self._valid], axis=0)) > 1
        updates = real(self, now)
        return updates + updates if spread else updates

    monkeypatch.setattr(CountWindows, "_close", close)
    config = audited_config(memory_folder)
    size, _ = audit_messages(
        config,
        model_of(config, "density_tree"),
        memory_folder / "run",
        200,
        np.random.default_rng(0),
    )
    assert size.refuted, size.line()
