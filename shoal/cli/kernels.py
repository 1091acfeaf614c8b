"""`shoal kernels` compiles the kernels."""

from __future__ import annotations

import json
from importlib.metadata import version

import click

from shoal.cli.options import json_option
from shoal.kernels.forms import Forms


@click.command()
@json_option
def kernels(as_json: bool) -> None:
    """Compile the kernels now, so that no process has to; a minute at most.

    Where Numba is installed (the extra `fast`, which `server` and `demo` bring), a process that
    learns many rows loads compiled kernels in the background, and learns with NumPy until they are
    there. Both give the same results. Compiled kernels are kept in the folder of shoal, or else in
    the user's cache; NUMBA_CACHE_DIR names another folder. Run this as the user of the processes.
    SHOAL_KERNELS=numpy leaves the compiled kernels out, SHOAL_KERNELS=compiled waits for them at
    once.
    """
    forms = Forms()
    forms.load()
    numba = version("numba")
    numpy = version("numpy")
    if as_json:
        compiled = {"compiled": True, "choice": forms.choice, "numba": numba, "numpy": numpy}
        click.echo(json.dumps(compiled))
    else:
        click.echo(f"compiled with Numba {numba} for NumPy {numpy}; SHOAL_KERNELS: {forms.choice}")
