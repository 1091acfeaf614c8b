"""A fuzzer: valid messages, requests and files, changed at random, against the parts that read
them.

Every case is made from its number alone. `SHOAL_FUZZ_CASES` is how many cases all targets have
together: 2 000 in CI, 10^6 in `make fuzz`. With `SHOAL_FUZZ_FOLDER`, a run begins where the run
before ended, and a case that fails is kept in `corpus/`, where the next run and CI begin with it.
`SHOAL_FUZZ_FIRST` is the first number of each target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.files import atomic_file

CASES = int(os.environ.get("SHOAL_FUZZ_CASES", "2000"))
FIRST = int(os.environ.get("SHOAL_FUZZ_FIRST", "0"))
FOLDER = os.environ.get("SHOAL_FUZZ_FOLDER")
CORPUS = Path(__file__).parent / "corpus"
BATCH = 100
"""cases after which the place is saved"""


def share_of(part: float) -> int:
    """How many of all cases a target has."""
    return max(20, int(CASES * part))


def batches(target: str, part: float) -> Iterator[range]:
    """The numbers of a target's cases, up to `BATCH` at a time; those that a run before has passed
    are left out.

    The last batches are always repeated, as tests also ask what became of their cases.
    """
    end = share_of(part)
    done = min(passed(target), max(0, end - 2 * BATCH))
    for first in range(done, end, BATCH):
        numbers = range(FIRST + first, FIRST + min(first + BATCH, end))
        yield numbers
        # Only reached when the batch has passed.
        save_passed(target, first + len(numbers))


def numbers(target: str, part: float) -> Iterator[int]:
    """The numbers of `batches`, one by one."""
    for batch in batches(target, part):
        yield from batch


def passed(target: str) -> int:
    """How many cases of a target have passed in the runs of this folder."""
    place = Path(FOLDER or "") / target
    return int(place.read_text(encoding="ascii")) if FOLDER and place.is_file() else 0


def save_passed(target: str, count: int) -> None:
    """Save it; nothing without a folder."""
    if FOLDER and count > passed(target):
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        with atomic_file(Path(FOLDER) / target, replace=True) as file:
            file.write_text(str(count), encoding="ascii")


@contextmanager
def keeping(target: str, number: int | str, content: Callable[[], bytes]) -> Iterator[None]:
    """The case of this number: where it fails, its content goes to the corpus, if there is a
    folder."""
    try:
        yield
    except BaseException as wrong:
        if FOLDER and isinstance(wrong, Exception):
            CORPUS.mkdir(exist_ok=True)
            (CORPUS / f"{target}-{number}").write_bytes(content())
        raise


def corpus(target: str) -> dict[str, bytes]:
    """name -> content of the cases of a target that have failed once, or that were added by
    hand."""
    return {path.name: path.read_bytes() for path in sorted(CORPUS.glob(f"{target}-*"))}
