"""Types of the arrays that kernels take: of all elements, in C order. What is `CONST_` a kernel only reads, and the
array may be one that may not be written to."""

from __future__ import annotations

from numba import types

FLOAT32_1D = types.float32[::1]
FLOAT32_2D = types.float32[:, ::1]
FLOAT32_3D = types.float32[:, :, ::1]
FLOAT64_1D = types.float64[::1]
FLOAT64_2D = types.float64[:, ::1]
INT32_2D = types.int32[:, ::1]
INT64_1D = types.int64[::1]
INT64_2D = types.int64[:, ::1]
UINT64_2D = types.uint64[:, ::1]
UINT8_1D = types.uint8[::1]
CONST_FLOAT32_1D = types.Array(types.float32, 1, "C", readonly=True)
CONST_FLOAT32_2D = types.Array(types.float32, 2, "C", readonly=True)
CONST_FLOAT64_1D = types.Array(types.float64, 1, "C", readonly=True)
CONST_FLOAT64_2D = types.Array(types.float64, 2, "C", readonly=True)
CONST_FLOAT64_3D = types.Array(types.float64, 3, "C", readonly=True)
CONST_INT32_1D = types.Array(types.int32, 1, "C", readonly=True)
CONST_INT32_2D = types.Array(types.int32, 2, "C", readonly=True)
CONST_INT64_1D = types.Array(types.int64, 1, "C", readonly=True)
CONST_INT64_2D = types.Array(types.int64, 2, "C", readonly=True)
CONST_UINT32_1D = types.Array(types.uint32, 1, "C", readonly=True)
CONST_UINT64_1D = types.Array(types.uint64, 1, "C", readonly=True)
CONST_UINT64_2D = types.Array(types.uint64, 2, "C", readonly=True)
