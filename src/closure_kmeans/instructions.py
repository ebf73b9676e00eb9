"""What LLVM can say and Numba has no word for: to ask for memory, to take some of many, to keep a product in registers.

Each is a Python function that says what it does, and what compiled code does instead.
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

# The arguments of LLVM's instruction: for reading, into the nearest cache, data.
READ, NEAREST, DATA = 0, 3, 1

# Bytes of the vectors that the processor at hand computes with, or that compiled code is told to make do with.
FEATURES = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
VECTOR_BYTES = 64 if "+avx512f" in FEATURES else 32 if "+avx" in FEATURES else 16
# Rows of a tile, each a vector of sums in a register: enough for sums to be ready when they are added to again, few
# enough for the sixteen registers that most processors have.
TILE_ROWS = 12
# Numbers that are compared, and taken or left, at once; and whether the processor can.
GROUP = 8
CAN_TAKE = "+avx512vl" in FEATURES


def numbers_per_vector(array: Array) -> int:
    """How many of an array's numbers a vector has. Compiled code knows it beforehand; ``itemsize`` is looked up."""
    return VECTOR_BYTES // array.itemsize


def prefetch(rows: Any, i: int, byte: int) -> None:
    """Fetch the cache line that holds a byte of ``rows[i]``, without waiting for it."""


def turn_rows(rows: Array, panel: Array) -> None:
    """Rows, as many as a vector has numbers, as the columns of a panel."""
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
    """The squared distances of ``TILE_ROWS`` rows to a panel of centres, and the best of them times their factors.

    A panel has as many centres as a vector has numbers, one a column; they are the candidates from ``first`` on. Each
    column of ``best`` and ``choice`` is improved by the candidate in that column, except that a row's ``own`` candidate
    does not count: the distance to it goes to its column of ``stays``. ``factors`` has a line for each row, or one for
    all.
    """
    candidates = slice(first, first + panel.shape[1])
    ids = np.arange(candidates.start, candidates.stop)
    distances = norms[:, np.newaxis] + center_norms[candidates] - 2 * (rows @ panel)
    is_own = ids == own[:, np.newaxis]
    stays[is_own] = distances[is_own]
    with np.errstate(invalid="ignore"):  # a factor of zero times infinity, which fills up the last panel: not chosen
        scores = np.where(is_own, np.inf, factors[:, candidates] * distances)
    better = scores < best
    best[better] = scores[better]
    choice[better] = np.broadcast_to(ids, better.shape)[better]


def near_tile(centers: Array, first: int, norms: Array, panel: Array, limits: Array, bits: Array) -> None:
    """Which of ``TILE_ROWS`` centres, those from ``first`` on, score no more than the limit of each column of a panel.

    A score is a squared distance less the squared norm of the column, which all its scores have in common. A panel has
    as many columns as a vector has numbers. ``norms`` are those of the tile. Each centre gets a bit for every column,
    which is set unless the score is above the limit: it is set for a score that is no number, because it overflowed.
    """
    scores = norms[:, np.newaxis] - 2 * (centers[first : first + TILE_ROWS] @ panel)
    bits[:] = [sum(1 << column for column in np.flatnonzero(~(score > limits))) for score in scores]


def take_lowest(best: Array, choice: Array, lowest: Array, chosen: Array) -> None:
    """The lowest score in each row of a tile, and its choice: of equal ones the smallest."""
    lowest[:] = best.min(axis=1)
    chosen[:] = np.where(best == lowest[:, np.newaxis], choice, np.iinfo(np.int32).max).min(axis=1)


def in_groups(size: int) -> int:
    """How many of so many numbers to take group by group, and not one by one.

    Compiled code takes none that way where the processor has no instruction for it.
    """
    return size - size % GROUP


def less(values: Array, first: int, bound: Any) -> int:
    """Which of a group of values, that from ``first`` on, are less than a bound: a bit for each. NaN is not."""
    return sum(1 << i for i in range(GROUP) if values[first + i] < bound)


def more(values: Array, first: int, bound: Any) -> int:
    """Which of a group of values are more than a bound. NaN is not."""
    return sum(1 << i for i in range(GROUP) if values[first + i] > bound)


def take_group(numbers: Array, first: int, bits: int, out: Array, place: int) -> int:
    """Put those of a group of numbers whose bits are set to ``out``, from a place on; how many they are.

    All ``GROUP`` numbers from there on are overwritten, the others by anything. ``out`` may be ``numbers``, if the
    place is not behind ``first``: the group is read before.
    """
    group = numbers[first : first + GROUP].copy()
    taken = [number for i, number in enumerate(group) if bits >> i & 1]
    out[place : place + GROUP] = taken + [group[-1]] * (GROUP - len(taken))
    return len(taken)


def emit_prefetch(_typing: Any, rows: Any, i: Any, byte: Any) -> Any:
    """LLVM's instruction on the address of the byte."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(rows)(context, builder, arguments[0])
        row, offset = (context.cast(builder, *pair, types.intp) for pair in zip(arguments[1:], (i, byte), strict=True))
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        begin = cgutils.get_item_pointer(context, builder, rows, array, [row, row.type(0)])  # rows may be apart
        address = builder.gep(builder.bitcast(begin, pointer), [offset])
        instruction = builder.module.declare_intrinsic(
            "llvm.prefetch", (pointer,), ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        )
        builder.call(instruction, [address, flag(READ), flag(NEAREST), flag(DATA)])
        return context.get_dummy_value()

    return types.void(rows, i, byte), emit


def emit_turn_rows(_typing: Any, rows: Any, panel: Any) -> Any:
    """A square of values at a time, in registers: blocks of one value, then of two, and so on, change places."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, panel = read_arguments(context, builder, signature, arguments)
        vectors = Vectors(builder, context.get_value_type(signature.args[0].dtype))
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
                        # Values of the second vector are those from ``lanes`` on.
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
    """All sums of the tile in registers, while one dimension after the other is added to them; then the scores."""
    kinds = (rows, norms, own, panel, center_norms, factors, first, best, choice, stays)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, norms, own, panel, center_norms, factors, first, best, choice, stays = read_arguments(
            context, builder, signature, arguments
        )
        index = first.type
        vectors = Vectors(builder, context.get_value_type(signature.args[0].dtype))
        ids = Vectors(builder, ir.IntType(32), vectors.lanes)
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
    """All products of the tile in registers, and one comparison for each centre."""
    kinds = (centers, first, norms, panel, limits, bits)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        centers, first, norms, panel, limits, bits = read_arguments(context, builder, signature, arguments)
        index = first.type
        vectors = Vectors(builder, context.get_value_type(signature.args[0].dtype))
        highest = vectors.load(limits, index(0))
        for r, total in enumerate(emit_products(builder, vectors, centers, first, panel)):
            norm = vectors.spread(vectors.load_one(norms, index(r)))
            scores = vectors.multiply_add(vectors.constant(-2), total, norm)
            near = builder.bitcast(builder.fcmp_unordered("<=", scores, highest), ir.IntType(vectors.lanes))
            builder.store(builder.zext(near, ir.IntType(32)), builder.gep(bits.data, [index(r)]))
        return context.get_dummy_value()

    return types.void(*kinds), emit


def emit_products(builder: Any, vectors: Vectors, rows: Any, first: Any, panel: Any) -> list[Any]:
    """The products of a tile, the rows from ``first`` on, and a panel: dimension by dimension, all in registers."""
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
    """Halves of vectors are compared until one value is left."""
    kinds = (best, choice, lowest, chosen)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        best, choice, lowest, chosen = read_arguments(context, builder, signature, arguments)
        vectors = Vectors(builder, context.get_value_type(signature.args[0].dtype))
        ids = Vectors(builder, ir.IntType(32), vectors.lanes)
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
    """What an overload returns for a value that is known when code is compiled."""
    return lambda array: number


def emit_comparison(operator: str) -> Any:
    """One comparison of vectors, whose bits are the result. NaN compares false."""

    def emit_bits(_typing: Any, values: Any, first: Any, bound: Any) -> Any:
        if not isinstance(bound, types.Float):
            raise TypingError(f"the bound must be a float, got {bound}")

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, first, bound = read_arguments(context, builder, signature, arguments)
            kind = signature.args[0].dtype
            vectors = Vectors(builder, context.get_value_type(kind), GROUP)
            bounds = vectors.spread(context.cast(builder, bound, signature.args[2], kind))
            found = builder.fcmp_ordered(operator, vectors.load(values, first), bounds)
            return builder.zext(builder.bitcast(found, ir.IntType(GROUP)), first.type)

        return types.intp(values, first, bound), emit

    return emit_bits


def emit_take_group(_typing: Any, numbers: Any, first: Any, bits: Any, out: Any, place: Any) -> Any:
    """LLVM's instruction for it, and a store of the whole vector: on some processors, to store a part takes longer."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, first, bits, out, place = read_arguments(context, builder, signature, arguments)
        vectors = Vectors(builder, context.get_value_type(signature.args[0].dtype), GROUP)
        bits = builder.trunc(bits, ir.IntType(GROUP))
        vectors.store(vectors.compress(vectors.load(numbers, first), bits), out, place)
        return builder.zext(builder.ctpop(bits), first.type)

    return types.intp(numbers, first, bits, out, place), emit


def read_arguments(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """The arguments of a call: arrays, to reach their memory and shape, places as whole numbers, and other numbers.

    Arrays must lie in memory number after number, in C order.
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


class Vectors:
    """Short words for vectors of numbers of a kind, in the code that a builder writes."""

    def __init__(self, builder: Any, number: Any, lanes: int | None = None) -> None:
        self._builder = builder
        self._bytes = 8 if isinstance(number, ir.DoubleType) else 4
        self.number = number
        self.lanes = VECTOR_BYTES // self._bytes if lanes is None else lanes
        self._kind = ir.VectorType(number, self.lanes)

    def constant(self, *values: float) -> Any:
        """The vector of some values, or of one for all."""
        return ir.Constant(self._kind, list(values) if len(values) > 1 else [values[0]] * self.lanes)

    def spread(self, value: Any) -> Any:
        """The vector that has a value in each place."""
        undefined, place = ir.Constant(self._kind, ir.Undefined), ir.IntType(32)
        alone = self._builder.insert_element(undefined, value, place(0))
        return self._builder.shuffle_vector(alone, undefined, ir.Constant(ir.VectorType(place, self.lanes), None))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """The vector a b + c, by one instruction where there is one."""
        product = self._builder.fmul(a, b, flags=("contract",))
        return self._builder.fadd(product, c, flags=("contract",))

    def lowest(self, vector: Any, compare: Any) -> Any:
        """The lowest value of a vector."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (self.pick(vector, vector, range(first, first + lanes)) for first in (0, lanes))
            vector = self._builder.select(compare("<", low, high), low, high)
        return self._builder.extract_element(vector, ir.IntType(32)(0))

    def pick(self, first: Any, second: Any, places: Sequence[int]) -> Any:
        """The vector of the values at some places of two vectors, those of the second after those of the first."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))
        return self._builder.shuffle_vector(first, second, mask)

    def compress(self, vector: Any, bits: Any) -> Any:
        """The values of a vector whose bits are set, one after the other; anything may follow them."""
        chosen = ir.VectorType(ir.IntType(1), self.lanes)
        kind = ir.FunctionType(self._kind, [self._kind, chosen, self._kind])
        letter = "i" if isinstance(self.number, ir.IntType) else "f"
        name = f"llvm.experimental.vector.compress.v{self.lanes}{letter}{8 * self._bytes}"
        function = cgutils.get_or_insert_function(self._builder.module, kind, name)
        return self._builder.call(function, [vector, self._builder.bitcast(bits, chosen), vector])

    def load_one(self, array: Any, place: Any) -> Any:
        """A value of an array, by its place in memory."""
        return self._builder.load(self._builder.gep(array.data, [place]))

    def load(self, array: Any, place: Any) -> Any:
        """As many values of an array as a vector has, from a place in memory on."""
        return self._builder.load(self._address(array, place), align=self._bytes)

    def store(self, vector: Any, array: Any, place: Any) -> None:
        """Put a vector there."""
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
