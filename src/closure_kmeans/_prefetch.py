"""Ask for memory ahead of its use: rows that lie here and there are waited for otherwise.

Numba has no word for it, LLVM does. It changes no result, and does nothing where a processor has no such instruction.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

# The arguments of LLVM's instruction: for reading, into the nearest cache, data.
READ, NEAREST, DATA = 0, 3, 1


def prefetch(rows: Any, i: int, t: int) -> None:
    """Fetch the cache line that holds ``rows[i, t]``, without waiting for it."""


def emit_prefetch(_typing: Any, rows: Any, i: Any, t: Any) -> Any:
    """What compiled code does instead: LLVM's instruction on the address of the element."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row_type, *index_types = signature.args
        array = context.make_array(row_type)(context, builder, arguments[0])
        place = [
            context.cast(builder, index, kind, types.intp)
            for index, kind in zip(arguments[1:], index_types, strict=True)
        ]
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(cgutils.get_item_pointer(context, builder, row_type, array, place), byte)
        instruction = builder.module.declare_intrinsic(
            "llvm.prefetch", (byte,), ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        builder.call(instruction, [address, flag(READ), flag(NEAREST), flag(DATA)])
        return context.get_dummy_value()

    return types.void(rows, i, t), emit


fetch_line = intrinsic(emit_prefetch)
overload(prefetch)(lambda rows, i, t: lambda rows, i, t: fetch_line(rows, i, t))
