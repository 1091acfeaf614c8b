"""Every error shoal raises on purpose: one base, one page.

A loop that serves catches `ShoalError` and nothing wider. `retriable` says whether trying the same
thing again later can succeed; `exit_code` is what the command line ends with (see `docs/reference/commands.md`).
Messages name the value and its range and say what to do; they never carry the value of a reading.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of every error raised on purpose."""

    retriable: bool = False
    exit_code: int = 1


class SettingsError(ShoalError):
    """A federation file, a flag or a folder is not what it must be."""

    exit_code = 2


class MissingExtra(SettingsError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'shoal[{extra}]'")
        self.extra = extra


class DataRefused(ShoalError, ValueError):
    """Rows that cannot be learnt from: wrong width, not a number, infinite, too few."""

    exit_code = 3


class MessageRefused(ShoalError):
    """A message that fails a check at the border. `reason` is one stable word (see `shoal.protocol.messages`)."""

    exit_code = 3

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class LogUnavailable(ShoalError):
    """The log cannot be reached or written just now: a broker is away, a disk is full."""

    retriable = True
    exit_code = 4


class LogRefused(ShoalError):
    """The log will never accept this: unknown topic, record too large, other settings than declared."""

    exit_code = 4


class OffsetGone(ShoalError):
    """Retention has passed the position asked for: records were lost to this reader."""

    exit_code = 4

    def __init__(self, topic: str, partition: int, asked: int, first: int) -> None:
        super().__init__(
            f"{topic}/{partition}: position {asked} was asked for but the log now begins at {first}; "
            f"{first - asked} records are gone. Restore an older log, or set accept_gap = true to go on without them"
        )
        self.topic, self.partition, self.asked, self.first = topic, partition, asked, first


class AnotherServer(ShoalError):
    """Another server answers for the federation: this one must not."""

    exit_code = 5


class PerhapsAnotherServer(AnotherServer):
    """Another server has claimed the federation; whether it still lives will be known later."""

    retriable = True


class StateRefused(ShoalError):
    """A saved state or checkpoint that is damaged, of another version, or of another model."""

    exit_code = 5
