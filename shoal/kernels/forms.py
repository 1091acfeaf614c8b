"""Which form of a kernel computes in this process: NumPy's, or the compiled one of the extra `fast`
(Numba).

Both give the same bits, so a process may change from one to the other at any row. NumPy's is the
reference and always there. The compiled form is loaded in the background, from Numba's cache if
`shoal kernels` has compiled it, while NumPy's computes on: no reading waits for a compiler. What
the cache lacks is compiled by a process of its own, so that this one can end meanwhile.
"""

from __future__ import annotations

import atexit
import importlib.util
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from shoal.errors import MissingExtra, SettingsError, ShoalError
from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.kernel_cache import NotInCache, without_compiling

VARIABLE: Final = "SHOAL_KERNELS"
AUTO = "auto"
NUMPY = "numpy"
COMPILED = "compiled"
ROWS_BEFORE_LOADING: Final = 5000
"""rows that CA+ learns with NumPy, of late, before a process loads the compiled form: fewer take
less time than loading does"""
ROWS_KEPT_S: Final = 60.0
"""seconds in which the rows counted so far fade by a factor of e. At 80 rows a second they never
come to `ROWS_BEFORE_LOADING`, and NumPy takes one percent of a core: that is not worth the 145 MiB
of Numba, however long the process runs"""

SLOW_S: Final = 4.0
"""seconds after which loading the kernels must mean compiling them"""
COMPILING: Final = (
    "Compiling the kernels, once on this machine: about a minute, in which readings are learnt "
    "more slowly. `shoal kernels` does it beforehand."
)

COMPILER: Final = ("-P", "-m", "shoal", "kernels")
"""arguments of Python with which it compiles the kernels into Numba's cache"""
LOOK_S: Final = 0.1
"""seconds between two looks at whether this process ends while another one compiles"""

NO_FOLDER: Final = "no locator available"
"""words of Numba where it finds no folder for its cache"""


class Forms:
    """The choice of one process, and the compiled kernels once they are loaded. Safe to use from
    several threads."""

    def __init__(
        self, choice: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`choice` is "auto", "numpy" or "compiled"; None: the variable SHOAL_KERNELS, or else
        "auto". `clock` is monotonic, seconds."""
        self._choice = choice
        self._rows = 0.0
        """rows of late"""
        self._clock = clock
        self._counted_s = clock()
        self._lock = threading.Lock()
        """held while the kernels are loaded, which can take a minute"""
        self._starting = threading.Lock()
        """held while the thread that loads them is started, so that two callers do not start two"""
        self._loading: threading.Thread | None = None
        self._kernels: CompiledKernels | None = None
        self.why_numpy: str | None = None
        """why the compiled form cannot be loaded; None while that is not known"""
        self.on_problem: Callable[[str], None] = lambda why: None
        """called in the background with the reason, where Numba is there and the compiled form is
        not"""
        self.on_slow: Callable[[str], None] = lambda text: None
        """called in the background with a line for people, where loading takes longer than from the
        cache"""

    @property
    def choice(self) -> str:
        """The form that is chosen. Raises `SettingsError` for an unknown value of SHOAL_KERNELS."""
        if self._choice is None:
            self._choice = os.environ.get(VARIABLE) or AUTO
        if self._choice not in (AUTO, NUMPY, COMPILED):
            raise SettingsError(
                f'SHOAL_KERNELS = {self._choice!r}, must be "{AUTO}", "{NUMPY}" or "{COMPILED}"'
            )
        return self._choice

    def check(self) -> None:
        """Raises `SettingsError` for an unknown value of SHOAL_KERNELS, and `MissingExtra` if Numba
        is needed and missing."""
        if self.choice == COMPILED and importlib.util.find_spec("numba") is None:
            raise MissingExtra(f'{VARIABLE} = "{COMPILED}"', "fast")

    def start(self) -> None:
        """Check the choice at the start of a process, and with "compiled" load now, so that no
        reading waits for it.

        Raises as `check` and `load` do.
        """
        self.check()
        if self.choice == COMPILED:
            self.load()

    def prefer_numpy(self) -> None:
        """Choose NumPy for this process, unless SHOAL_KERNELS says otherwise: for a process that is
        to stay small."""
        if self._choice is None and not os.environ.get(VARIABLE):
            self._choice = NUMPY

    def is_loading_in(self, thread: threading.Thread) -> bool:
        """Whether the kernels are loaded or compiled in the background by `thread`."""
        return thread is self._loading

    def compiled_for(self, rows: float = 0.0) -> CompiledKernels | None:
        """The compiled kernels; None where NumPy's form is to do the work, which takes CA+'s time
        for `rows` rows.

        0: the caller's work is counted already. With "compiled" it waits until they are loaded, and
        raises `MissingExtra` without Numba.
        """
        if self._kernels is not None or self.why_numpy is not None:
            return self._kernels
        if self.choice == COMPILED:
            return self.load()
        if self.choice == AUTO:
            now = self._clock()
            faded = self._rows * math.exp((self._counted_s - now) / ROWS_KEPT_S)
            self._rows = faded + rows
            self._counted_s = now
            if self._rows > ROWS_BEFORE_LOADING:
                self._load_in_background()
        return None

    def load(self) -> CompiledKernels:
        """Load the compiled kernels, and compile them if that has not been done on this machine.

        Raises `MissingExtra` without Numba, and `ShoalError` where they cannot be compiled.
        """
        return self._load_by(load_compiled)

    def _load_by(self, load: Callable[[], CompiledKernels]) -> CompiledKernels:
        # Two threads that need them first must not compile them twice.
        with self._lock:
            if self._kernels is None:
                slow = threading.Timer(SLOW_S, self.on_slow, (COMPILING,))
                slow.daemon = True
                slow.start()
                try:
                    self._kernels = load()
                finally:
                    slow.cancel()
        return self._kernels

    def _load_in_background(self) -> None:
        # Python awaits the thread when the process ends, as a load that is cut off can crash the
        # interpreter; but for the kernel that it loads only. Commands do not wait for that one
        # either: they end the process without ending the interpreter.
        with self._starting:
            if self._loading is None:
                self._loading = threading.Thread(target=self._try_to_load, name="shoal-kernels")
                self._loading.start()

    def _try_to_load(self) -> None:
        # NumPy's form computes on, with the same results.
        try:
            self._load_by(load_compiled_elsewhere)
        except (MissingExtra, ProcessEnds) as problem:
            self.why_numpy = str(problem)
        except ShoalError as problem:
            self._report(str(problem))
        except Exception as problem:
            # Nothing above this line would report it, and every call would look for a thread that
            # has ended.
            self._report(f"{type(problem).__name__}: {problem}")
            raise

    def _report(self, why: str) -> None:
        self.why_numpy = why
        self.on_problem(why)

    def leave_to_numpy(self) -> None:
        """Stay with NumPy in a child forked while its parent loaded the kernels: there the lock is
        never released."""
        if self._kernels is None and self._loading is not None:
            self.why_numpy = "this process was forked while its parent loaded the compiled kernels"


class ProcessEnds(Exception):
    """The process ends before its kernels are compiled."""


def check_process() -> None:
    """Raises `ProcessEnds` where the main thread has ended and Python waits for the others."""
    if not threading.main_thread().is_alive():
        raise ProcessEnds("this process ended before the kernels were compiled")


def load_compiled_elsewhere() -> CompiledKernels:
    """Load the compiled kernels from Numba's cache; what it lacks another process compiles first.

    A compiler in a thread of this process would hold its end up for as long as one kernel takes,
    half a minute and on a loaded machine several. Raises as `load_compiled` does.
    """
    try:
        return load_compiled(may_compile=False)
    except NotInCache:
        compile_elsewhere()
    # Compiles here after all where the other process could not store them, or says why it cannot.
    return load_compiled()


def compile_elsewhere() -> None:
    """Compile the kernels in another process, and wait for its end.

    Raises `ProcessEnds` where this one ends meanwhile, and ends the other one too: kernels that it
    has compiled until then stay in the cache, for the next process.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        # The program that a frozen interpreter runs is not Python.
        return
    # The modules that this process has, in the order in which it finds them.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    # A process that computes with NumPy alone, as a client does, needs none of it: .3 MiB.
    import subprocess  # noqa: PLC0415 - loaded only to compile

    try:
        compiler = subprocess.Popen(
            [sys.executable, *COMPILER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    except OSError:
        return
    # For a command, which does not await its threads.
    atexit.register(compiler.kill)
    try:
        while compiler.poll() is None:
            check_process()
            time.sleep(LOOK_S)
    finally:
        compiler.kill()
        compiler.wait()
        atexit.unregister(compiler.kill)


def load_compiled(may_compile: bool = True) -> CompiledKernels:
    """Import the compiled kernels; that compiles them, unless Numba's cache has them.

    Raises `MissingExtra` without Numba, `ShoalError` where they cannot be compiled, `ProcessEnds`,
    and `NotInCache` where a kernel would have to be compiled and must not.
    """
    if importlib.util.find_spec("numba") is None:
        raise MissingExtra("The compiled form of the kernels", "fast")
    try:
        # Imports Numba: 0.5 s, and 130 MB of memory.
        from numba.core.errors import NumbaError  # noqa: PLC0415 - loads Numba
    except (ImportError, OSError, RuntimeError) as problem:
        raise ShoalError(f"Numba cannot be used: {problem}") from problem
    try:
        from shoal.kernels.compiled.kernels import compiled_kernels  # noqa: PLC0415 - compiles

        if may_compile:
            return compiled_kernels(check_process)
        with without_compiling():
            return compiled_kernels(check_process)
    except (NumbaError, ImportError, OSError, RuntimeError) as problem:
        raise ShoalError(_why_not_compiled(problem)) from problem


def _why_not_compiled(problem: Exception) -> str:
    """The words of Numba on one line, and what to do about it."""
    said = " ".join(str(problem).split())
    if NO_FOLDER in said:
        return f"{said}; name a folder that can be written, NUMBA_CACHE_DIR=FOLDER"
    return (
        f'Numba cannot compile the kernels: {said}; {VARIABLE}="{NUMPY}" computes the same results'
        " without it"
    )


PROCESS = Forms()
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=PROCESS.leave_to_numpy)
