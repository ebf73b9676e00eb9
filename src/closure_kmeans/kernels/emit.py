"""Writing LLVM code: functions of kernels whose instructions are emitted instead of compiled from Python.

With NUMBA_BOUNDSCHECK, every emitted load and store of an array is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

# Width in bytes of the vector registers of the host processor, or of the features that NUMBA_CPU_FEATURES allows.
FEATURES = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
VECTOR_BYTES = 64 if "+avx512f" in FEATURES else 32 if "+avx" in FEATURES else 16
# Rows of a tile; each has one vector of sums in a register. Enough of them to hide the latency of the addition, few
# enough for the sixteen registers of most processors.
TILE_ROWS = 12


def typed_by(typed: Callable[..., Any]) -> Callable[[Function], Function]:
    """Let ``typed(context, *types)`` say the signature of a function in compiled code, and what emits it."""

    def decorate(definition: Function) -> Function:
        if config.DISABLE_JIT:
            return definition
        parameters = signature(definition).parameters.values()
        context = Parameter("context", Parameter.POSITIONAL_ONLY)
        cast(Any, typed).__signature__ = Signature([context, *parameters])
        typed.__name__ = definition.__name__
        operation = intrinsic(typed)
        operation.__wrapped__ = definition
        return cast(Function, operation)

    return decorate


def emitted(emit: Callable[..., None]) -> Callable[[Function], Function]:
    """Let ``emit(code, *arguments)`` write the instructions of a function in compiled code, which returns nothing.

    Arrays arrive as structures with ``data`` and ``shape``, integers as intp.
    """

    def typed(_context: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = [
                context.make_array(kind)(context, builder, value)
                if isinstance(kind, types.Array)
                else context.cast(builder, value, kind, types.intp)
                for kind, value in zip(kinds, arguments, strict=True)
            ]
            emit(Emitter(context, builder, kinds[0]), *values)
            return context.get_dummy_value()

        return types.void(*kinds), generate

    return typed_by(typed)


class Emitter:
    """Short names for the instructions that operations are made of, for arrays of one type of numbers."""

    def __init__(self, context: Any, builder: Any, kind: Any) -> None:
        self.context, self.builder, self.kind = context, builder, kind
        self.index = context.get_value_type(types.intp)
        self.vectors = Vectors(self, context.get_value_type(kind.dtype), VECTOR_BYTES // (kind.dtype.bitwidth // 8))
        self.ids = Vectors(self, ir.IntType(32), self.vectors.lanes)

    def add(self, a: Any, b: int) -> Any:
        """An index plus a constant."""
        return self.builder.add(a, self.index(b)) if b else a

    def loop(self, first: Any, last: Any, step: int) -> Any:
        """A loop over the indices from ``first`` to ``last``."""
        return cgutils.for_range_slice(self.builder, first, last, self.index(step))

    def products(self, rows: Any, first: Any, panel: Any) -> list[Any]:
        """Products of the rows of a tile, from ``first`` on, and a panel; feature by feature, in registers."""
        builder, vectors = self.builder, self.vectors
        n_features = builder.extract_value(panel.shape, 0)
        begin = builder.mul(first, n_features)
        sums = [cgutils.alloca_once_value(builder, vectors.constant(0)) for _ in range(TILE_ROWS)]
        with cgutils.for_range(builder, n_features) as loop:
            column = vectors.load(panel, builder.mul(loop.index, self.index(vectors.lanes)))
            for r, total in enumerate(sums):
                place = builder.add(builder.add(begin, builder.mul(self.index(r), n_features)), loop.index)
                value = vectors.spread(vectors.load_one(rows, place))
                builder.store(vectors.multiply_add(value, column, builder.load(total)), total)
        return [builder.load(total) for total in sums]


class Vectors:
    """Operations on vectors of one type of numbers."""

    def __init__(self, code: Emitter, number: Any, lanes: int) -> None:
        self._code, self._builder = code, code.builder
        self.number, self.lanes = number, lanes
        self._bytes = {ir.DoubleType(): 8, ir.FloatType(): 4}.get(number) or number.width // 8
        self._kind = ir.VectorType(number, lanes)

    def constant(self, *values: float) -> Any:
        """Vector of constants: the given values, or one value in every lane."""
        return ir.Constant(self._kind, list(values) if len(values) > 1 else [values[0]] * self.lanes)

    def spread(self, value: Any) -> Any:
        """Broadcast a value to every lane."""
        undefined, place = ir.Constant(self._kind, ir.Undefined), ir.IntType(32)
        alone = self._builder.insert_element(undefined, value, place(0))
        return self._builder.shuffle_vector(alone, undefined, ir.Constant(ir.VectorType(place, self.lanes), None))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """The vector a b + c, fused where the processor can."""
        product = self._builder.fmul(a, b, flags=("contract",))
        return self._builder.fadd(product, c, flags=("contract",))

    def lowest(self, vector: Any, compare: Any) -> Any:
        """Horizontal minimum of a vector: its halves are compared until one value is left."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (self.pick(vector, vector, range(first, first + lanes)) for first in (0, lanes))
            vector = self._builder.select(compare("<", low, high), low, high)
        return self._builder.extract_element(vector, ir.IntType(32)(0))

    def pick(self, first: Any, second: Any, places: Sequence[int]) -> Any:
        """Shuffle: the values at some places of the concatenation of two vectors."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))
        return self._builder.shuffle_vector(first, second, mask)

    def load_one(self, array: Any, place: Any) -> Any:
        """Load the value at an offset of an array."""
        return self._builder.load(self._address(array, place, 1), typ=self.number)

    def store_one(self, value: Any, array: Any, place: Any) -> None:
        """Store a value at an offset of an array."""
        self._builder.store(value, self._address(array, place, 1))

    def load(self, array: Any, place: Any) -> Any:
        """Load a vector at an offset of an array."""
        return self._builder.load(self._address(array, place, self.lanes), align=self._bytes, typ=self._kind)

    def store(self, vector: Any, array: Any, place: Any) -> None:
        """Store a vector at an offset of an array."""
        self._builder.store(vector, self._address(array, place, self.lanes), align=self._bytes)

    def _address(self, array: Any, place: Any, n_numbers: int) -> Any:
        builder = self._builder
        if config.BOUNDSCHECK:
            end = builder.add(place, place.type(n_numbers))
            inside = builder.and_(
                builder.icmp_signed("<=", place.type(0), place), builder.icmp_signed("<=", end, array.nitems)
            )
            with builder.if_then(builder.not_(inside), likely=False):
                message = (f"{n_numbers} numbers are read or written beyond the end of an array",)
                self._code.context.call_conv.return_user_exc(builder, IndexError, message)
        address = builder.gep(array.data, [place], source_etype=self.number)
        address.type = ir.PointerType()  # Numba's own pointers still have types
        return address
