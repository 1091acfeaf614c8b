"""Both forms of the kernels, NumPy's and the compiled one, measured in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Final

from shoal.kernels import forms
from shoal.kernels.forms import COMPILED, NUMPY, Forms

FORMS: Final = {NUMPY: Forms(NUMPY), COMPILED: Forms(COMPILED)}


def use(form: str) -> None:
    """Compute with this form of the kernels from now on. Raises `MissingExtra` without Numba."""
    forms.PROCESS = FORMS[form]
    FORMS[form].start()


def seconds_by_form(
    prepare: Callable[[int], Mapping[str, Callable[[], object]]], turns: int
) -> dict[str, dict[str, list[float]]]:
    """`prepare(turn)` gives what is measured, by name -> name -> form -> processor seconds of each
    turn.

    What is measured is prepared anew for each form and turn, and called once before the first.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(-1, turns):
        for form in FORMS:
            use(form)
            works = prepare(max(turn, 0))
            gc.collect()
            for name, work in works.items():
                started = time.process_time()
                work()
                took = max(time.process_time() - started, 1e-9)
                if turn >= 0:
                    found.setdefault(name, {}).setdefault(form, []).append(took)
    return found
