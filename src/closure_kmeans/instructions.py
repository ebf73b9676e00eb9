"""LLVM operations that Numba does not expose: prefetch, vector compress, products in registers.

Each is a Python function that defines the operation, with an overload that emits LLVM instructions in compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# Arguments of ``llvm.prefetch``: for reading, into the nearest cache, data.
READ, NEAREST, DATA = 0, 3, 1

# Width in bytes of the vector registers of the host processor, or of the features that NUMBA_CPU_FEATURES allows.
FEATURES = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
VECTOR_BYTES = 64 if "+avx512f" in FEATURES else 32 if "+avx" in FEATURES else 16
# Rows of a tile; each has one vector of sums in a register. Enough of them to hide the latency of the addition, few
# enough for the sixteen registers of most processors.
TILE_ROWS = 12
# Numbers that are compared and compressed at once, and whether the processor has the instruction.
GROUP = 8
CAN_TAKE = "+avx512vl" in FEATURES


def numbers_per_vector(array: Array) -> int:
    """Numbers of the array's type in one vector; a constant in compiled code."""
    return VECTOR_BYTES // array.itemsize


def prefetch(rows: Any, i: int, byte: int) -> None:
    """Prefetch the cache line that holds a byte of ``rows[i]``."""


def turn_rows(rows: Array, panel: Array) -> None:
    """Transpose one vector's worth of rows into the columns of a panel."""
    panel[:] = rows.T


def score_tile(
    rows: Array,
    norms: Array,
    own: Array,
    panel: Array,
    center_norms: Array,
    factors: Array,
    first: int,
    best: Array,
    choice: Array,
    stays: Array,
) -> None:
    """Score ``TILE_ROWS`` rows against a panel of centres: keep the lowest product of squared distance and factor.

    A panel has one centre a column, as many as a vector has lanes: the candidates from ``first`` on. Each column of
    ``best`` and ``choice`` is updated with the candidate in that column, except a row's ``own`` candidate, whose
    squared distance goes to its column of ``stays``. ``factors`` has one line for each row, or one for all rows.
    """
    candidates = slice(first, first + panel.shape[1])
    ids = np.arange(candidates.start, candidates.stop)
    distances = norms[:, np.newaxis] + center_norms[candidates] - 2 * (rows @ panel)
    is_own = ids == own[:, np.newaxis]
    stays[is_own] = distances[is_own]
    with np.errstate(invalid="ignore"):  # a factor of zero times an infinite norm, in unused columns
        scores = np.where(is_own, np.inf, factors[:, candidates] * distances)
    better = scores < best
    best[better] = scores[better]
    choice[better] = np.broadcast_to(ids, better.shape)[better]


def near_tile(centers: Array, first: int, norms: Array, panel: Array, limits: Array, bits: Array) -> None:
    """Mark which of ``TILE_ROWS`` centres, from ``first`` on, score no more than the limit of each column of a panel.

    Scores are ‖c‖² − 2 x·c, the squared distance without ‖x‖². ``norms`` are the centres' squared norms. ``bits`` holds
    a bit mask for each centre with one bit for each column. The bit is set unless the score exceeds the limit; so it is
    set if the score overflowed to NaN.
    """
    scores = norms[:, np.newaxis] - 2 * (centers[first : first + TILE_ROWS] @ panel)
    bits[:] = [sum(1 << column for column in np.flatnonzero(~(score > limits))) for score in scores]


def take_lowest(best: Array, choice: Array, lowest: Array, chosen: Array) -> None:
    """Lowest score in each row of a tile, and its choice; the smallest choice of equal scores."""
    lowest[:] = best.min(axis=1)
    chosen[:] = np.where(best == lowest[:, np.newaxis], choice, np.iinfo(np.int32).max).min(axis=1)


def in_groups(size: int) -> int:
    """How many of ``size`` numbers to process in groups; the rest is processed one by one.

    In compiled code 0 if the processor has no compress instruction.
    """
    return size - size % GROUP


def less(values: Array, first: int, bound: Any) -> int:
    """Bit mask of the values of the group at ``first`` that are less than a bound; false for NaN."""
    return sum(1 << i for i in range(GROUP) if values[first + i] < bound)


def more(values: Array, first: int, bound: Any) -> int:
    """Bit mask of the values of the group at ``first`` that are greater than a bound; false for NaN."""
    return sum(1 << i for i in range(GROUP) if values[first + i] > bound)


def take_group(numbers: Array, first: int, bits: int, out: Array, place: int) -> int:
    """Compress: store the numbers of a group whose bits are set contiguously at ``out[place]``; return how many.

    All ``GROUP`` numbers there are overwritten, the rest with arbitrary values. ``out`` may be ``numbers`` if ``place
    <= first``: the group is read first.
    """
    group = numbers[first : first + GROUP].copy()
    taken = [number for i, number in enumerate(group) if bits >> i & 1]
    out[place : place + GROUP] = taken + [group[-1]] * (GROUP - len(taken))
    return len(taken)


def emit_prefetch(_typing: Any, rows: Any, i: Any, byte: Any) -> Any:
    """Emit ``llvm.prefetch`` for the address of the byte."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(rows)(context, builder, arguments[0])
        row, offset = (context.cast(builder, *pair, types.intp) for pair in zip(arguments[1:], (i, byte), strict=True))
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        begin = cgutils.get_item_pointer(context, builder, rows, array, [row, row.type(0)])  # rows may be strided
        address = builder.gep(builder.bitcast(begin, pointer), [offset])
        instruction = builder.module.declare_intrinsic(
            "llvm.prefetch", (pointer,), ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        )
        builder.call(instruction, [address, flag(READ), flag(NEAREST), flag(DATA)])
        return context.get_dummy_value()

    return types.void(rows, i, byte), emit


def emit_turn_rows(_typing: Any, rows: Any, panel: Any) -> Any:
    """Emit the transpose of one square at a time, in registers: swap blocks of size one, two, four and so on."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, panel = read_arguments(context, builder, signature, arguments)
        vectors = VectorBuilder(builder, context.get_value_type(signature.args[0].dtype))
        lanes = vectors.lanes
        n_features = builder.extract_value(panel.shape, 0)
        index = n_features.type
        in_squares = builder.mul(builder.udiv(n_features, index(lanes)), index(lanes))

        def place(r: int, t: Any) -> Any:
            return builder.add(builder.mul(index(r), n_features), t)

        with cgutils.for_range_slice(builder, index(0), in_squares, index(lanes)) as (first, _):
            square = [vectors.load(rows, place(r, first)) for r in range(lanes)]
            size = 1
            while size < lanes:
                for r in range(lanes):
                    if not r & size:
                        upper, lower = square[r], square[r + size]
                        # In the shuffle mask, indices from ``lanes`` on refer to the second vector.
                        square[r] = vectors.pick(
                            upper, lower, [c + (lanes - size) * bool(c & size) for c in range(lanes)]
                        )
                        square[r + size] = vectors.pick(
                            upper, lower, [c + (lanes if c & size else size) for c in range(lanes)]
                        )
                size *= 2
            for t, column in enumerate(square):
                vectors.store(column, panel, builder.mul(builder.add(first, index(t)), index(lanes)))
        with cgutils.for_range_slice(builder, in_squares, n_features, index(1)) as (t, _):
            for r in range(lanes):
                target = builder.gep(panel.data, [builder.add(builder.mul(t, index(lanes)), index(r))])
                builder.store(vectors.load_one(rows, place(r, t)), target)
        return context.get_dummy_value()

    return types.void(rows, panel), emit


def emit_score_tile(
    _typing: Any,
    rows: Any,
    norms: Any,
    own: Any,
    panel: Any,
    center_norms: Any,
    factors: Any,
    first: Any,
    best: Any,
    choice: Any,
    stays: Any,
) -> Any:
    """Emit a tile product whose sums stay in registers, followed by the scores."""
    kinds = (rows, norms, own, panel, center_norms, factors, first, best, choice, stays)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, norms, own, panel, center_norms, factors, first, best, choice, stays = read_arguments(
            context, builder, signature, arguments
        )
        index = first.type
        vectors = VectorBuilder(builder, context.get_value_type(signature.args[0].dtype))
        ids = VectorBuilder(builder, ir.IntType(32), vectors.lanes)
        sums = emit_products(builder, vectors, rows, index(0), panel)
        panel_norms = vectors.load(center_norms, first)
        n_lines, line_length = (builder.extract_value(factors.shape, axis) for axis in (0, 1))
        stride = builder.select(builder.icmp_signed(">", n_lines, index(1)), line_length, index(0))
        candidates = builder.add(ids.spread(builder.trunc(first, ids.number)), ids.constant(*range(ids.lanes)))
        for r, total in enumerate(sums):
            line = index(r * vectors.lanes)
            both_norms = builder.fadd(vectors.spread(vectors.load_one(norms, index(r))), panel_norms)
            distances = vectors.multiply_add(vectors.constant(-2), total, both_norms)
            is_own = builder.icmp_signed("==", candidates, ids.spread(ids.load_one(own, index(r))))
            vectors.store(builder.select(is_own, distances, vectors.load(stays, line)), stays, line)
            factor = vectors.load(factors, builder.add(first, builder.mul(index(r), stride)))
            scores = builder.select(is_own, vectors.constant(np.inf), builder.fmul(factor, distances))
            lowest = vectors.load(best, line)
            better = builder.fcmp_ordered("<", scores, lowest)
            vectors.store(builder.select(better, scores, lowest), best, line)
            ids.store(builder.select(better, candidates, ids.load(choice, line)), choice, line)
        return context.get_dummy_value()

    return types.void(*kinds), emit


def emit_near_tile(_typing: Any, centers: Any, first: Any, norms: Any, panel: Any, limits: Any, bits: Any) -> Any:
    """Emit a tile product in registers and one vector comparison for each centre."""
    kinds = (centers, first, norms, panel, limits, bits)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        centers, first, norms, panel, limits, bits = read_arguments(context, builder, signature, arguments)
        index = first.type
        vectors = VectorBuilder(builder, context.get_value_type(signature.args[0].dtype))
        highest = vectors.load(limits, index(0))
        for r, total in enumerate(emit_products(builder, vectors, centers, first, panel)):
            norm = vectors.spread(vectors.load_one(norms, index(r)))
            scores = vectors.multiply_add(vectors.constant(-2), total, norm)
            near = builder.bitcast(builder.fcmp_unordered("<=", scores, highest), ir.IntType(vectors.lanes))
            builder.store(builder.zext(near, ir.IntType(32)), builder.gep(bits.data, [index(r)]))
        return context.get_dummy_value()

    return types.void(*kinds), emit


def emit_products(builder: Any, vectors: VectorBuilder, rows: Any, first: Any, panel: Any) -> list[Any]:
    """Emit the products of a tile, the rows from ``first`` on, and a panel; one feature at a time, in registers."""
    index = first.type
    n_features = builder.extract_value(panel.shape, 0)
    begin = builder.mul(first, n_features)
    sums = [cgutils.alloca_once_value(builder, vectors.constant(0)) for _ in range(TILE_ROWS)]
    with cgutils.for_range(builder, n_features) as loop:
        column = vectors.load(panel, builder.mul(loop.index, index(vectors.lanes)))
        for r, total in enumerate(sums):
            place = builder.add(builder.add(begin, builder.mul(index(r), n_features)), loop.index)
            value = vectors.spread(vectors.load_one(rows, place))
            builder.store(vectors.multiply_add(value, column, builder.load(total)), total)
    return [builder.load(total) for total in sums]


def emit_take_lowest(_typing: Any, best: Any, choice: Any, lowest: Any, chosen: Any) -> Any:
    """Emit a horizontal minimum: the halves of a vector are compared until one value is left."""
    kinds = (best, choice, lowest, chosen)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        best, choice, lowest, chosen = read_arguments(context, builder, signature, arguments)
        vectors = VectorBuilder(builder, context.get_value_type(signature.args[0].dtype))
        ids = VectorBuilder(builder, ir.IntType(32), vectors.lanes)
        index = builder.extract_value(best.shape, 0).type
        for r in range(TILE_ROWS):
            row, line = index(r), index(r * vectors.lanes)
            scores = vectors.load(best, line)
            score = vectors.lowest(scores, builder.fcmp_ordered)
            is_lowest = builder.fcmp_ordered("==", scores, vectors.spread(score))
            choices = builder.select(is_lowest, ids.load(choice, line), ids.constant(np.iinfo(np.int32).max))
            builder.store(score, builder.gep(lowest.data, [row]))
            builder.store(ids.lowest(choices, builder.icmp_signed), builder.gep(chosen.data, [row]))
        return context.get_dummy_value()

    return types.void(*kinds), emit


def always(number: int) -> Any:
    """Overload of a function whose value is known at compile time."""
    return lambda array: number


def emit_comparison(operator: str) -> Any:
    """Emit one vector comparison whose bits are returned. NaN compares false."""

    def emit_bits(_typing: Any, values: Any, first: Any, bound: Any) -> Any:
        if not isinstance(bound, types.Float):
            raise TypingError(f"the bound must be a float, got {bound}")

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, first, bound = read_arguments(context, builder, signature, arguments)
            kind = signature.args[0].dtype
            vectors = VectorBuilder(builder, context.get_value_type(kind), GROUP)
            bounds = vectors.spread(context.cast(builder, bound, signature.args[2], kind))
            found = builder.fcmp_ordered(operator, vectors.load(values, first), bounds)
            return builder.zext(builder.bitcast(found, ir.IntType(GROUP)), first.type)

        return types.intp(values, first, bound), emit

    return emit_bits


def emit_take_group(_typing: Any, numbers: Any, first: Any, bits: Any, out: Any, place: Any) -> Any:
    """Emit a vector compress and a store of the whole vector; masked stores are slower on some processors."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, first, bits, out, place = read_arguments(context, builder, signature, arguments)
        vectors = VectorBuilder(builder, context.get_value_type(signature.args[0].dtype), GROUP)
        bits = builder.trunc(bits, ir.IntType(GROUP))
        vectors.store(vectors.compress(vectors.load(numbers, first), bits), out, place)
        return builder.zext(builder.ctpop(bits), first.type)

    return types.intp(numbers, first, bits, out, place), emit


def read_arguments(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Arguments of a call: arrays as structures with data and shape, integers cast to intp, floats unchanged.

    Arrays must be C-contiguous.
    """
    for kind in signature.args:
        if isinstance(kind, types.Array) and kind.layout != "C":
            raise TypingError(f"an array must be contiguous to be addressed directly, got {kind}")
    return [
        context.make_array(kind)(context, builder, value)
        if isinstance(kind, types.Array)
        else value
        if isinstance(kind, types.Float)
        else context.cast(builder, value, kind, types.intp)
        for kind, value in zip(signature.args, arguments, strict=True)
    ]


class VectorBuilder:
    """Short names for operations on vectors of one type, emitted by a builder."""

    def __init__(self, builder: Any, number: Any, lanes: int | None = None) -> None:
        self._builder = builder
        self._bytes = 8 if isinstance(number, ir.DoubleType) else 4
        self.number = number
        self.lanes = VECTOR_BYTES // self._bytes if lanes is None else lanes
        self._kind = ir.VectorType(number, self.lanes)

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
        """Horizontal minimum of a vector."""
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

    def compress(self, vector: Any, bits: Any) -> Any:
        """Compress: the values whose bits are set, contiguously; arbitrary values follow."""
        chosen = ir.VectorType(ir.IntType(1), self.lanes)
        kind = ir.FunctionType(self._kind, [self._kind, chosen, self._kind])
        letter = "i" if isinstance(self.number, ir.IntType) else "f"
        name = f"llvm.experimental.vector.compress.v{self.lanes}{letter}{8 * self._bytes}"
        function = cgutils.get_or_insert_function(self._builder.module, kind, name)
        return self._builder.call(function, [vector, self._builder.bitcast(bits, chosen), vector])

    def load_one(self, array: Any, place: Any) -> Any:
        """Load the value at an offset of an array."""
        return self._builder.load(self._builder.gep(array.data, [place]))

    def load(self, array: Any, place: Any) -> Any:
        """Load a vector at an offset of an array."""
        return self._builder.load(self._address(array, place), align=self._bytes)

    def store(self, vector: Any, array: Any, place: Any) -> None:
        """Store a vector at an offset of an array."""
        self._builder.store(vector, self._address(array, place), align=self._bytes)

    def _address(self, array: Any, place: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(array.data, [place]), self._kind.as_pointer())


overload(numbers_per_vector)(lambda array: always(VECTOR_BYTES // (array.dtype.bitwidth // 8)))
fetch_line = intrinsic(emit_prefetch)
overload(prefetch, inline="always")(lambda rows, i, byte: lambda rows, i, byte: fetch_line(rows, i, byte))
overload(in_groups)(lambda size: (lambda size: size - size % GROUP) if CAN_TAKE else (lambda size: 0))
less_at_once = intrinsic(emit_comparison("<"))
overload(less, inline="always")(
    lambda values, first, bound: lambda values, first, bound: less_at_once(values, first, bound)
)
more_at_once = intrinsic(emit_comparison(">"))
overload(more, inline="always")(
    lambda values, first, bound: lambda values, first, bound: more_at_once(values, first, bound)
)
take_at_once = intrinsic(emit_take_group)
overload(take_group, inline="always")(
    lambda numbers, first, bits, out, place: (
        lambda numbers, first, bits, out, place: take_at_once(numbers, first, bits, out, place)
    )
)
turn_in_registers = intrinsic(emit_turn_rows)
overload(turn_rows, inline="always")(lambda rows, panel: lambda rows, panel: turn_in_registers(rows, panel))
score_in_registers = intrinsic(emit_score_tile)
overload(score_tile, inline="always")(
    lambda rows, norms, own, panel, center_norms, factors, first, best, choice, stays: (
        lambda rows, norms, own, panel, center_norms, factors, first, best, choice, stays: score_in_registers(
            rows, norms, own, panel, center_norms, factors, first, best, choice, stays
        )
    )
)
compare_in_registers = intrinsic(emit_near_tile)
overload(near_tile, inline="always")(
    lambda centers, first, norms, panel, limits, bits: (
        lambda centers, first, norms, panel, limits, bits: compare_in_registers(
            centers, first, norms, panel, limits, bits
        )
    )
)
lowest_in_registers = intrinsic(emit_take_lowest)
overload(take_lowest, inline="always")(
    lambda best, choice, lowest, chosen: (
        lambda best, choice, lowest, chosen: lowest_in_registers(best, choice, lowest, chosen)
    )
)
