"""The compiled form of the kernels (extra `fast`, Numba), with the bits of the NumPy form.

`shoal.kernels.forms` imports this folder when a process has computed enough to gain by it, and nothing else in shoal
does: importing it loads Numba. `numpy_loops` and `sources` do without.
"""
