"""What the tests of audits share: the contract that is audited, and mechanisms that are broken on
purpose."""

from __future__ import annotations

import itertools
import random
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config, load_config
from shoal.kernels.arrays import Ints
from shoal.privacy.count_noise import CountMechanism, CountNoise, count_noise


def audited_config(
    folder: Path, epsilon: float = 2.0, *, off: bool = False, users: bool = False
) -> Config:
    """A federation that `shoal privacy audit` examines, with this epsilon of counts, or without any
    noise.

    `users`: the one whose privacy unit is a user.
    """
    text = (
        files("shoal.onebox.audit")
        .joinpath("users.toml" if users else "federation.toml")
        .read_text("utf-8")
    )
    text = text.replace("counts_epsilon = 2", f"counts_epsilon = {epsilon}")
    if off:
        text = text.replace('"formal"', '"off"')
        text = "\n".join(line for line in text.splitlines() if "epsilon" not in line)
    file = folder / "audited.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def fix_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients make the same noise keys, and logs the same names, in every run of a test.

    One in a thousand audits may refute a true claim by chance: a test that passes goes on passing.
    """
    drawn = SimpleNamespace(token_bytes=random.Random(0).randbytes)
    for module in ("shoal.privacy.keyed", "shoal.transports.sqlite.schema"):
        monkeypatch.setattr(f"{module}.secrets", drawn)


def model_of(config: Config, algorithm: str) -> ResolvedModel:
    return next(
        model for model in config.resolved.models.values() if model.algorithm.name == algorithm
    )


# Faults of the mechanism of counts.


def halve_the_noise(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> None:
    """Every mechanism draws from the tables of twice the epsilon, for single readings."""
    real = CountMechanism.__init__

    def halved(
        self: CountMechanism, noise: CountNoise, key: bytes, client: str, source: bytes, model: str
    ) -> None:
        real(self, count_noise(2 * epsilon), key, client, source, model)

    monkeypatch.setattr(CountMechanism, "__init__", halved)


def leave_empty_cells_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CountMechanism.release

    def release(
        self: CountMechanism, counts: Ints, window: tuple[int, int, int], plan: bytes
    ) -> Ints:
        private = real(self, counts, window, plan)
        private[counts == 0] = 0
        return private

    monkeypatch.setattr(CountMechanism, "release", release)


def leave_windows_with_a_rejected_reading_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a value that is not a number goes through the noise unchanged."""
    real = CountMechanism.release

    def release(
        self: CountMechanism, counts: Ints, window: tuple[int, int, int], plan: bytes
    ) -> Ints:
        _, first, last = window
        return counts if counts.sum() < last - first + 1 else real(self, counts, window, plan)

    monkeypatch.setattr(CountMechanism, "release", release)


def draw_fresh_noise_for_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under another plan each time."""
    real = CountMechanism.release
    plans = itertools.count()

    def release(
        self: CountMechanism, counts: Ints, window: tuple[int, int, int], plan: bytes
    ) -> Ints:
        return real(self, counts, window, next(plans).to_bytes(len(plan), "little"))

    monkeypatch.setattr(CountMechanism, "release", release)


def share_noise_between_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key for all, and noise that does not depend on the client."""
    real = CountMechanism.__init__

    def shared(
        self: CountMechanism, noise: CountNoise, key: bytes, client: str, source: bytes, model: str
    ) -> None:
        real(self, noise, bytes(len(key)), "any client", bytes(len(source)), model)

    monkeypatch.setattr(CountMechanism, "__init__", shared)
