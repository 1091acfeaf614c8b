"""Every error that shoal raises on purpose, with one base class.

A service loop catches `ShoalError` and nothing wider. `retriable` says whether the same call can
succeed later; `exit_code` is the exit code of the command line (see `docs/reference/commands.md`).
A message names the value and its range and says what to do. It never contains the value of a
reading.
"""

from __future__ import annotations

from typing import Any


class ShoalError(Exception):
    """Base class of every error raised on purpose."""

    retriable: bool = False
    exit_code: int = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from its message and attributes: constructors with other arguments would fail
        in `pickle`.

        A worker process hands its errors to its parent that way.
        """
        return _restored, (type(self), self.args, dict(vars(self)))


class SettingsError(ShoalError):
    """A setting, a command-line option, or a file or folder that one of them names is not valid."""

    exit_code = 2


class MissingExtra(SettingsError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install '.[{extra}]' in a clone of shoal")
        self.extra = extra


class LogFolderMissing(SettingsError):
    """The folder of a log's file is not there: the address is wrong, or no process has started
    there yet."""


class ContractDiffers(SettingsError):
    """The contract in the federation file is not the one that the federation's server has
    published."""


class InvalidData(ShoalError, ValueError):
    """Rows that cannot be learnt from: wrong width, not a number, infinite, or too few."""

    exit_code = 3


class MessageRejected(ShoalError):
    """A message fails a check. `reason` is one of `shoal.protocol.rejected.REASONS`; `detail` is
    for people."""

    exit_code = 3

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class LogUnavailable(ShoalError):
    """The log cannot be read or written at present: a broker does not answer, or a disk is full."""

    retriable = True
    exit_code = 4


class ContractMissing(LogUnavailable):
    """No server has published the contract of the federation yet, and the client waits for it."""


class LogError(ShoalError):
    """The log cannot do this, now or later: unknown topic, record too large, other settings than
    declared."""

    exit_code = 4


class TopicMissing(LogError):
    """The log has no topic of this name."""


class MissingCodec(LogError):
    """Records are compressed by a codec whose library is not installed here: nothing is wrong with
    them, so none is passed over."""

    def __init__(self, topic: str, codec: str) -> None:
        super().__init__(
            f"topic {topic!r} has records compressed with {codec}, which is not installed here:"
            f" pip install '.[{codec}]' in a clone of shoal, and start again; the position is kept"
        )
        self.codec = codec


class OffsetOutOfRange(ShoalError):
    """Retention has removed records before they were read: the position lies before the first one
    kept."""

    exit_code = 4

    def __init__(self, topic: str, partition: int, asked: int, first: int) -> None:
        super().__init__(
            f"{topic}/{partition}: the next position to read is {asked}, but the log now begins "
            f"at {first}; {first - asked} records are lost. Restore an older log, or set "
            "accept_gap = true to continue without them"
        )
        self.topic = topic
        self.partition = partition
        self.asked = asked
        self.first = first


class PartitionLost(ShoalError):
    """A partition of clients is no more this host's: another one has it, or its changelog could not
    be written."""

    exit_code = 4


class LeaseHeld(ShoalError):
    """Another server holds the lease of the federation, so this one must not serve it."""

    exit_code = 5


class LeaseUncertain(LeaseHeld):
    """Another server has the lease, and it is not known yet whether that server still runs."""

    retriable = True


class InvalidState(ShoalError):
    """A saved state or checkpoint is damaged, of another version, or of another model."""

    exit_code = 5


class CheckpointDamaged(InvalidState):
    """The file of a checkpoint is not as it was written."""


class CheckpointInUse(InvalidState):
    """Another process has the file of a checkpoint or a ledger open."""


def _restored(
    kind: type[ShoalError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> ShoalError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
