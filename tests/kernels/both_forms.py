"""The two forms of the kernels, made once per process: to load the compiled form takes longer than
most tests."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.forms import COMPILED, NUMPY, Forms

ONE_AT_A_TIME = Path(tempfile.gettempdir(), f"shoal-kernels-{os.getuid()}.lock")
"""held by the process of the tests that loads the compiled form"""


class FormsOfTests(Forms):
    """The forms of one of several processes that test at the same time.

    Where Numba's cache does not have the kernels yet, the first one compiles them, and the others
    take them from the cache: each by itself would take minutes of a processor.
    """

    def load(self) -> CompiledKernels:
        if self._kernels is not None:
            return self._kernels
        with ONE_AT_A_TIME.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return super().load()


FORMS = {form: FormsOfTests(form) for form in (NUMPY, COMPILED)}
