"""Errors travel between processes: a worker hands the error that it raised to the process that
started it."""

from __future__ import annotations

import pickle

import pytest

from shoal import errors
from shoal.errors import MessageRejected, MissingCodec, MissingExtra, OffsetOutOfRange, ShoalError
from shoal.runtime import workers

EXAMPLES: dict[str, ShoalError] = {
    "MissingExtra": MissingExtra("drawing", "plot"),
    "MissingCodec": MissingCodec("devices", "zstd"),
    "MessageRejected": MessageRejected("bounds", "outside"),
    "OffsetOutOfRange": OffsetOutOfRange("topic", 0, 3, 7),
}
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ShoalError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was_sent(kind: type[ShoalError]) -> None:
    sent = EXAMPLES.get(kind.__name__) or kind("what is wrong")
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert str(arrived) == str(sent)
    assert vars(arrived) == vars(sent)
    assert (arrived.exit_code, arrived.retriable) == (sent.exit_code, sent.retriable)


def miss(job: int) -> int:
    raise MissingExtra(f"job {job}", "evaluate")


def test_a_missing_extra_in_a_worker_process_is_that_error_in_the_caller() -> None:
    with pytest.raises(MissingExtra, match="needs an extra") as caught:
        list(workers.spread(miss, [1, 2], 2))
    assert caught.value.extra == "evaluate"
