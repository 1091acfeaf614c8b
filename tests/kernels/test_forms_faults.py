"""What a process does where the compiled kernels cannot be loaded: it reports why, and computes
with NumPy."""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from shoal.client_nodes.client_command import client
from shoal.errors import ShoalError
from shoal.kernels import forms
from shoal.kernels.compiled import CompiledKernels, numpy_loops
from shoal.kernels.forms import AUTO, COMPILED, NUMPY, ROWS_BEFORE_LOADING, VARIABLE, Forms
from shoal.runtime import service
from shoal.server_node.server_command import server
from tests.house.counting_federation import create
from tests.kernels.test_forms import wait_until_loaded


def reported_by(choice: Forms) -> list[str]:
    """What a process reports that computes with NumPy because the compiled form cannot be
    loaded."""
    problems = list[str]()
    choice.on_problem = problems.append
    for _ in range(3):
        assert choice.compiled_for(2 * ROWS_BEFORE_LOADING) is None
        wait_until_loaded(choice)
    assert [choice.why_numpy] == problems
    return problems


def uncompilable(sources: str) -> object:
    """As the functions that make kernels, of something that Numba has no types for."""
    import numba  # noqa: PLC0415  # may be missing

    return numba.njit("int64(int64)")(lambda number: number.no_such_attribute)


def test_where_nothing_can_be_compiled_the_reason_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(may_compile: bool = True) -> CompiledKernels:
        raise ShoalError("no folder to write to")

    monkeypatch.setattr(forms, "load_compiled", fail)
    assert reported_by(Forms(AUTO)) == ["no folder to write to"]


def test_what_numba_cannot_compile_is_reported_and_numpy_computes_on(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.kernels.compiled import ca_plus  # noqa: PLC0415  # needs Numba

    monkeypatch.setattr(ca_plus, "kernel", uncompilable)
    (why,) = reported_by(Forms(AUTO))
    assert re.fullmatch(
        'Numba cannot compile the kernels: .*no_such_attribute.*; SHOAL_KERNELS="numpy"'
        " computes .*",
        why,
    )
    assert "NUMBA_CACHE_DIR" not in why
    with pytest.raises(ShoalError, match="Numba cannot compile the kernels"):
        Forms(COMPILED).compiled_for(1)


def test_only_where_numba_finds_no_folder_a_folder_is_the_advice(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.core.caching import CacheImpl  # noqa: PLC0415  # may be missing

    from shoal.kernels.compiled import ca_plus  # noqa: PLC0415  # needs Numba

    with monkeypatch.context() as without_folders:
        without_folders.setattr(CacheImpl, "_locator_classes", [])
        (why,) = reported_by(Forms(AUTO))
    assert why.endswith("; name a folder that can be written, NUMBA_CACHE_DIR=FOLDER")

    def fail(sources: str) -> None:
        raise RuntimeError("LLVM cannot do it")

    monkeypatch.setattr(ca_plus, "kernel", fail)
    (why,) = reported_by(Forms(AUTO))
    assert why.startswith("Numba cannot compile the kernels: LLVM cannot do it; ")


def test_an_unusable_numba_is_reported_and_numpy_computes_on(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Python does for a module that is None here is what it does for one that is not there.
    monkeypatch.setitem(sys.modules, "numba.core.errors", None)
    (why,) = reported_by(Forms(AUTO))
    assert why.startswith("Numba cannot be used: ")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_expects_is_reported_and_numpy_computes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(may_compile: bool = True) -> CompiledKernels:
        raise KeyError("a slip")

    monkeypatch.setattr(forms, "load_compiled", fail)
    assert reported_by(Forms(AUTO)) == ["KeyError: 'a slip'"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (client, ["--name", "attic", "--no-wait"]),
        (server, ["--no-page"]),
    ],
)
def test_a_node_that_computes_with_numpy_because_of_a_fault_logs_it(
    command: click.Command,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(may_compile: bool = True) -> CompiledKernels:
        raise ShoalError("no folder to write to")

    choice = Forms(AUTO)
    monkeypatch.setattr(forms, "load_compiled", fail)
    monkeypatch.setattr(service, "PROCESS", choice)
    file = create(tmp_path, 10, clients=("attic",))
    ended = CliRunner().invoke(command, ["--config", str(file), "--until-idle", "0", *options])
    assert ended.exit_code == 0, ended.output
    logging.getLogger("shoal").addHandler(caplog.handler)
    assert choice.compiled_for(2 * ROWS_BEFORE_LOADING) is None
    wait_until_loaded(choice)
    (record,) = (
        record
        for record in caplog.records
        if record.getMessage().startswith("kernels_not_compiled")
    )
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize(
    ("command", "options", "chosen"),
    [(client, ["--name", "attic", "--no-wait"], NUMPY), (server, ["--no-page"], AUTO)],
)
def test_only_a_process_that_is_to_stay_small_chooses_numpy_by_itself(
    command: click.Command,
    options: list[str],
    chosen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    choice = Forms()
    monkeypatch.setattr(service, "PROCESS", choice)
    file = create(tmp_path, 10, clients=("attic",))
    ended = CliRunner().invoke(command, ["--config", str(file), "--until-idle", "0", *options])
    assert ended.exit_code == 0, ended.output
    assert choice.choice == chosen


def test_the_loops_are_those_that_numpy_calls() -> None:
    found = numpy_loops.numpy_loops()
    assert found.shape == (4,)
    assert found[0] != found[2]


def test_a_numpy_that_keeps_its_loops_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(numpy_loops.LoopsNotFound):
        numpy_loops.loop_of(np.exp, "d->i")
    right = numpy_loops.loop_of
    # The loop of another function in the place of the exponential.
    monkeypatch.setattr(
        numpy_loops,
        "loop_of",
        lambda ufunc, types: right(np.sqrt if ufunc is np.exp else ufunc, types),
    )
    with (
        np.errstate(all="ignore"),
        pytest.raises(numpy_loops.LoopsNotFound, match="do not compute"),
    ):
        numpy_loops.numpy_loops()


def test_a_numpy_whose_exponentials_cannot_be_computed_in_place_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = numpy_loops.loop_of
    exp = right(np.exp, "d->d")
    signature = ctypes.CFUNCTYPE(None, *4 * [ctypes.c_void_p])

    def only_elsewhere(arrays: int, lengths: int, steps: int, data: int) -> None:
        first, second = (ctypes.c_ssize_t * 2).from_address(arrays)
        if first != second:
            signature(exp.function)(arrays, lengths, steps, data)

    called = signature(only_elsewhere)
    loop = numpy_loops.Loop(ctypes.cast(called, ctypes.c_void_p).value or 0, exp.data)
    monkeypatch.setattr(
        numpy_loops,
        "loop_of",
        lambda ufunc, types: loop if ufunc is np.exp else right(ufunc, types),
    )
    with pytest.raises(numpy_loops.LoopsNotFound, match="do not compute"):
        numpy_loops.numpy_loops()


def test_nothing_is_compiled_where_numpys_loops_are_not_found(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.kernels.compiled import kernels as all_kernels  # noqa: PLC0415  # needs Numba

    def fail() -> None:
        raise numpy_loops.LoopsNotFound("elsewhere")

    compiled = list[str]()
    monkeypatch.setattr(all_kernels, "numpy_loops", fail)
    monkeypatch.setattr(all_kernels.ca_plus, "kernel", compiled.append)
    with pytest.raises(numpy_loops.LoopsNotFound):
        forms.load_compiled()
    assert compiled == []
