"""Vectors of numbers in LLVM's instructions, for loops in which Numba finds none by itself."""

from __future__ import annotations

from typing import Any

from llvmlite import ir


def splat(builder: Any, number: Any, form: Any) -> Any:
    """A vector all of whose numbers are this one."""
    none = ir.Constant(form, ir.Undefined)
    alone = builder.insert_element(none, number, ir.IntType(32)(0))
    return builder.shuffle_vector(alone, none, ir.Constant(ir.VectorType(ir.IntType(32), form.count), None))


def load(builder: Any, numbers: Any, first: Any, form: Any) -> Any:
    """The numbers of an array from a place on, as many as a vector has."""
    place = builder.bitcast(builder.gep(numbers, [first]), form.as_pointer())
    return builder.load(place, align=_bytes(form))


def store(builder: Any, vector: Any, numbers: Any, first: Any) -> None:
    """Put a vector into an array from a place on."""
    place = builder.bitcast(builder.gep(numbers, [first]), vector.type.as_pointer())
    builder.store(vector, place, align=_bytes(vector.type))


def _bytes(form: Any) -> int:
    """The size of a vector's element: where an array begins is not known any better."""
    return 8 if isinstance(form.element, ir.DoubleType) else 4
