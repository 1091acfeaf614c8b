"""Runs of the fuzzer that go on where the run before ended, and keep what they found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import fuzzing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    changed = (
        ("FOLDER", str(tmp_path / "run")),
        ("CORPUS", tmp_path / "corpus"),
        ("CASES", 2000),
        ("FIRST", 0),
    )
    for name, value in changed:
        monkeypatch.setattr(fuzzing, name, value)
    return tmp_path


def test_a_run_begins_where_the_run_before_was_ended() -> None:
    seen = []
    for batch in fuzzing.batches("page", 0.5):
        if batch[0] == 300:
            break
        seen += list(batch)
    assert seen == list(range(300))
    assert next(iter(fuzzing.numbers("page", 0.5))) == 300, (
        "the batch in which it ended was not passed"
    )
    assert next(iter(fuzzing.numbers("other", 0.5))) == 0


def test_a_run_that_has_passed_all_repeats_the_last_ones_alone() -> None:
    assert len(list(fuzzing.numbers("page", 0.5))) == 1000
    assert list(fuzzing.numbers("page", 0.5)) == list(range(800, 1000))


def test_a_case_that_fails_is_kept_and_begins_the_next_run() -> None:
    with pytest.raises(ZeroDivisionError), fuzzing.keeping("page", 17, lambda: b"GET /"):
        print(1 // 0)
    assert fuzzing.corpus("page") == {"page-17": b"GET /"}
    assert not fuzzing.corpus("other")
