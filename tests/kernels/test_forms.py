"""The choice between NumPy's kernels and the compiled ones, and how these are loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.kernels import kernels
from shoal.errors import MissingExtra, SettingsError, ShoalError
from shoal.kernels import forms
from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.compiled import kernels as compiled
from shoal.kernels.compiled.kernels import digest_of_sources
from shoal.kernels.forms import AUTO, COMPILED, NUMPY, ROWS_BEFORE_LOADING, VARIABLE, Forms
from shoal.kernels.kernel_cache import NotInCache
from tests.small_plant import Clock


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def wait_until_loaded(choice: Forms) -> None:
    """Until the thread that `choice` has started to load its kernels has ended."""
    assert choice._loading is not None
    choice._loading.join()


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("numpy", NUMPY), ("compiled", COMPILED), ("auto", AUTO), ("", AUTO)):
        monkeypatch.setenv(VARIABLE, value)
        assert Forms().choice == expected
    monkeypatch.delenv(VARIABLE)
    assert Forms().choice == AUTO
    monkeypatch.setenv(VARIABLE, "fortran")
    with pytest.raises(SettingsError, match="SHOAL_KERNELS = 'fortran', must be"):
        Forms().check()


def test_a_small_process_prefers_numpy_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value, expected in (("", NUMPY), ("auto", AUTO), ("compiled", COMPILED)):
        monkeypatch.setenv(VARIABLE, value)
        choice = Forms()
        choice.prefer_numpy()
        assert choice.choice == expected


def test_a_process_that_is_to_compute_compiled_has_its_kernels_before_the_first_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = list[str]()
    monkeypatch.setattr(forms, "load_compiled", lambda: loaded.append("compiled"))
    for value, expected in (("numpy", []), ("auto", []), ("compiled", ["compiled"])):
        monkeypatch.setenv(VARIABLE, value)
        Forms().start()
        assert loaded == expected


def test_with_numpy_nothing_is_loaded() -> None:
    choice = Forms(NUMPY)
    assert choice.compiled_for(10 * ROWS_BEFORE_LOADING) is None
    assert choice.why_numpy is None


def test_few_rows_load_nothing_and_many_load_in_the_background(numba: None) -> None:
    choice = Forms(AUTO, Clock(0.0))
    assert choice.compiled_for(ROWS_BEFORE_LOADING) is None
    assert choice.compiled_for(0) is None
    assert choice._loading is None
    assert choice.compiled_for(1) is None
    wait_until_loaded(choice)
    assert isinstance(choice.compiled_for(1), CompiledKernels)


def test_few_rows_a_second_never_load_the_compiled_form_however_long_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "load_compiled", lambda _: pytest.fail("loaded for few rows"))
    clock = Clock(0.0)
    choice = Forms(AUTO, clock)
    for _ in range(2 * ROWS_BEFORE_LOADING // 80):
        clock.now += 1.0
        assert choice.compiled_for(80.0) is None
    assert choice._loading is None


def test_nobody_who_computes_waits_while_the_kernels_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()
    compiled = threading.Event()
    found = list[CompiledKernels | None]()

    def load(may_compile: bool = True) -> object:
        begun.set()
        compiled.wait()
        return "compiled kernels"

    monkeypatch.setattr(forms, "load_compiled", load)
    choice = Forms(AUTO)
    assert choice.compiled_for(2 * ROWS_BEFORE_LOADING) is None
    try:
        assert begun.wait(60)
        asking = threading.Thread(target=lambda: found.append(choice.compiled_for(1)))
        asking.start()
        asking.join(60)
        assert found == [None], "NumPy's form goes on"
    finally:
        compiled.set()
    asking.join()
    wait_until_loaded(choice)
    assert choice.compiled_for(1) == "compiled kernels"


def test_without_numba_a_process_computes_with_numpy_and_says_so_only_when_asked(
    no_numba: None,
) -> None:
    choice = Forms(AUTO)
    problems = list[str]()
    choice.on_problem = problems.append
    assert choice.compiled_for(2 * ROWS_BEFORE_LOADING) is None
    wait_until_loaded(choice)
    assert choice.compiled_for(1) is None
    assert choice.why_numpy is not None
    assert "'.[fast]'" in choice.why_numpy
    assert problems == []
    for demand in (
        Forms(COMPILED).check,
        Forms(COMPILED).start,
        lambda: Forms(COMPILED).compiled_for(1),
    ):
        with pytest.raises(MissingExtra, match=r"'\.\[fast\]'"):
            demand()


def test_a_child_that_is_forked_while_the_parent_loads_computes_with_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()

    def wait(may_compile: bool = True) -> CompiledKernels:
        release.wait()
        raise ShoalError("released")

    monkeypatch.setattr(forms, "load_compiled", wait)
    choice = Forms(AUTO)
    choice.compiled_for(2 * ROWS_BEFORE_LOADING)
    try:
        # What the hook of `os.register_at_fork` does in the child.
        choice.leave_to_numpy()
        assert choice.compiled_for(2 * ROWS_BEFORE_LOADING) is None
    finally:
        release.set()
        wait_until_loaded(choice)


def test_the_command_compiles(numba: None) -> None:
    shown = CliRunner().invoke(kernels, ["--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["compiled"] is True
    assert "compiled with Numba" in CliRunner().invoke(kernels).output


def test_the_command_without_numba_names_the_extra(no_numba: None) -> None:
    result = CliRunner().invoke(kernels)
    assert isinstance(result.exception, MissingExtra)
    assert "pip install '.[fast]'" in str(result.exception)


LEARN = """
import sys
import numpy as np
from shoal.algorithms.fcac import CAPlus
from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.forms import PROCESS
network, rows = CAPlus(), np.random.default_rng(0).random((500, 2))
for _ in range(12):
    network.learn(rows)
print("numba" in sys.modules, network.n_learnt)
"""


@pytest.mark.parametrize(("chosen", "loaded"), [("numpy", False), ("compiled", True)])
def test_a_process_loads_what_its_environment_chooses(
    chosen: str, loaded: bool, numba: None, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEARN],
        env=os.environ | {VARIABLE: chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == [str(loaded), "6000"]


ENDS = """
import sys
from shoal.kernels import forms
forms.COMPILER = ("-c", sys.argv[1])
forms.PROCESS.on_problem = print
forms.PROCESS.compiled_for(2 * forms.ROWS_BEFORE_LOADING)
"""
NEVER_DONE = """
import os, pathlib, signal
folder = pathlib.Path(os.environ["NUMBA_CACHE_DIR"])
(folder / "begun").write_text(str(os.getpid()))
(folder / "begun").rename(folder / "compiler")
signal.pause()
"""
AFTER_ITS_START = """
import os, pathlib, time
while not pathlib.Path(os.environ["NUMBA_CACHE_DIR"], "compiler").exists():
    time.sleep(0.01)
"""


def test_a_process_that_ends_does_not_wait_until_kernels_are_compiled(
    numba: None, tmp_path: Path
) -> None:
    environment = os.environ | {VARIABLE: "auto", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", ENDS + AFTER_ITS_START, NEVER_DONE]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout + ended.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "compiler").read_text()), 0)
    assert list(tmp_path.rglob("*.nbi")) == []


def test_what_the_cache_lacks_is_compiled_by_another_process_and_then_loaded(
    numba: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba as compiler  # noqa: PLC0415  # may be missing

    loads = list[bool]()

    def load(may_compile: bool = True) -> CompiledKernels:
        loads.append(may_compile)
        if not may_compile:
            raise NotInCache
        return compiled_before

    compiled_before = Forms(COMPILED).load()
    with monkeypatch.context() as empty:
        empty.setattr(compiler.config, "CACHE_DIR", str(tmp_path))
        with pytest.raises(NotInCache):
            forms.load_compiled(may_compile=False)
    assert forms.load_compiled(may_compile=False).loops is not None
    written = tmp_path / "written"
    monkeypatch.setattr(forms, "load_compiled", load)
    monkeypatch.setattr(forms, "COMPILER", ("-c", f"open({str(written)!r}, 'x')"))
    choice = Forms(AUTO)
    assert choice.compiled_for(2 * ROWS_BEFORE_LOADING) is None
    wait_until_loaded(choice)
    assert choice.compiled_for(1) is compiled_before
    assert loads == [False, True]
    assert written.exists()


def test_the_digest_changes_with_any_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copies = [
        Path(shutil.copy(file, tmp_path / f"{number}.py"))
        for number, file in enumerate(compiled.source_files())
    ]
    monkeypatch.setattr(compiled, "source_files", lambda: copies)
    found = {digest_of_sources()}
    for file in copies:
        file.write_text(file.read_text(encoding="utf-8") + "#\n", encoding="utf-8")
        found.add(digest_of_sources())
    assert len(found) == 1 + len(copies) > 15


def test_every_kernel_has_the_digest_in_the_key_of_the_cache(numba: None) -> None:
    for kernel in Forms(COMPILED).load()[:-1]:
        closure = dict(
            zip(kernel.py_func.__code__.co_freevars, kernel.py_func.__closure__, strict=True)
        )
        assert closure["sources"].cell_contents == digest_of_sources()


def test_numba_takes_from_its_cache_only_what_was_made_from_the_same_sources(
    numba: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba as compiler  # noqa: PLC0415  # may be missing

    def kernel(sources: str) -> bool:
        """Made as the kernels are; whether it came from the cache."""

        @compiler.njit("int64(int64)", cache=True)
        def made(number: int) -> int:
            sources  # noqa: B018  # in the closure, as in the kernels
            return number

        return bool(made.stats.cache_hits)

    monkeypatch.setattr(compiler.config, "CACHE_DIR", str(tmp_path))
    assert [kernel(digest) for digest in ("one", "one", "two", "two")] == [False, True, False, True]


def test_a_process_says_that_it_compiles_where_loading_takes_longer_than_from_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = threading.Event()
    texts: list[str] = []
    monkeypatch.setattr(forms, "SLOW_S", 0.0)
    monkeypatch.setattr(forms, "load_compiled", lambda: told.wait(30))
    slow = Forms(COMPILED)
    slow.on_slow = lambda text: (texts.append(text), told.set())[0]
    assert slow.load()
    assert texts == [forms.COMPILING]
    monkeypatch.setattr(forms, "SLOW_S", 3600.0)
    fast = Forms(COMPILED)
    fast.on_slow = texts.append
    assert fast.load()
    assert len(texts) == 1
