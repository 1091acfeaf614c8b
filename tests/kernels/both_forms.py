"""The two forms of the kernels, made once per process: to load the compiled form takes longer than
most tests."""

from __future__ import annotations

from shoal.kernels.forms import COMPILED, NUMPY, Forms

FORMS = {form: Forms(form) for form in (NUMPY, COMPILED)}
