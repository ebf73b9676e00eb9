"""Tiles of products of bytes: lower bounds of squared distances, by which a search rules centres out.

As in ``simd``, the operation is a Python function, and in compiled code its emitter writes LLVM instructions instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from closure_kmeans.kernels.emit import FEATURES, VECTOR_BYTES, Array, Emitter, Vectors, emitted

# How the processor multiplies bytes: AVX-512 VNNI, AVX-VNNI; AVX-512 BW, AVX2; or by ordinary instructions.
SUMS_FOURS = "+avx512vnni" in FEATURES if VECTOR_BYTES == 64 else "+avxvnni" in FEATURES
SUMS_PAIRS = "+avx512bw" in FEATURES if VECTOR_BYTES == 64 else "+avx2" in FEATURES
# The largest byte, in magnitude, to which a centre and a row are rounded. Sums of pairs must fit into 16 bits.
CENTER_LEVELS, ROW_LEVELS = 63 if SUMS_PAIRS and not SUMS_FOURS else 127, 127
# Centres of a tile of bytes.
NEAR_ROWS = 8


class ByteProducts:
    """Sums of four products of unsigned bytes, those of a word, and signed ones, those of each lane of a vector."""

    def __init__(self, code: Emitter) -> None:
        self._code, self._builder, self._ids = code, code.builder, code.ids
        self._word = ir.VectorType(code.ids.number, code.ids.lanes)
        self._pair = ir.VectorType(ir.IntType(16), 2 * code.ids.lanes)
        self._byte = ir.VectorType(ir.IntType(8), 4 * code.ids.lanes)

    def prepare(self, column: Any) -> Any:
        """What ``add`` takes, of a vector of words that hold four signed bytes each."""
        if SUMS_FOURS or SUMS_PAIRS:
            return column
        builder, shift = self._builder, self._ids.constant
        return [builder.ashr(builder.shl(column, shift(24 - place)), shift(24)) for place in range(0, 32, 8)]

    def add(self, total: Any, word: Any, column: Any) -> Any:
        """The total plus the products of the four unsigned bytes of a word and those of each lane."""
        builder, ids = self._builder, self._ids
        if SUMS_FOURS:
            return self._call(f"vpdpbusd.{8 * VECTOR_BYTES}", "avx512", self._word, total, ids.spread(word), column)
        if SUMS_PAIRS:
            family, names = (
                ("avx512", ("pmaddubs.w.512", "pmaddw.d.512"))
                if VECTOR_BYTES == 64
                else ("avx2", ("pmadd.ub.sw", "pmadd.wd"))
            )
            bytes_of = (builder.bitcast(vector, self._byte) for vector in (ids.spread(word), column))
            pairs = self._call(names[0], family, self._pair, *bytes_of)
            ones = ir.Constant(self._pair, [1] * self._pair.count)
            return builder.add(total, self._call(names[1], family, self._word, pairs, ones))
        for place, signed in enumerate(column):
            unsigned = builder.and_(builder.lshr(word, word.type(8 * place)), word.type(255))
            total = builder.add(total, builder.mul(ids.spread(unsigned), signed))
        return total

    def _call(self, name: str, family: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.x86.{family}.{name}")
        return self._builder.call(function, arguments)


def emit_near_tile(
    code: Emitter, codes: Any, first: Any, facts: Any, panel: Any, shifts: Any, facts_of_rows: Any, bits: Any
) -> None:
    """Emit products of bytes whose sums stay in registers, the bounds, and one vector comparison for each centre."""
    builder, ids, index = code.builder, code.ids, code.index
    numbers = Vectors(code, ir.FloatType(), ids.lanes)
    n_words = builder.extract_value(panel.shape, 0)
    begin = builder.mul(first, n_words)
    shift = ids.load(shifts, index(0))
    sums = [cgutils.alloca_once_value(builder, shift) for _ in range(NEAR_ROWS)]
    for total in sums:
        builder.store(shift, total)
    multiply = ByteProducts(code)
    with cgutils.for_range(builder, n_words) as loop:
        column = multiply.prepare(ids.load(panel, builder.mul(loop.index, index(ids.lanes))))
        for r, total in enumerate(sums):
            place = builder.add(builder.add(begin, builder.mul(index(r), n_words)), loop.index)
            builder.store(multiply.add(builder.load(total), ids.load_one(codes, place), column), total)
    steps, lengths, errors, limits = (numbers.load(facts_of_rows, index(i * ids.lanes)) for i in range(4))
    for r, total in enumerate(sums):
        place = builder.mul(builder.add(first, index(r)), index(4))
        scale, norm, error, length = (numbers.spread(numbers.load_one(facts, code.add(place, i))) for i in range(4))
        product = builder.fmul(builder.sitofp(builder.load(total), steps.type), steps)
        score = numbers.multiply_add(product, scale, norm)
        score = numbers.multiply_add(lengths, error, score)
        score = numbers.multiply_add(errors, length, score)
        near = builder.bitcast(builder.fcmp_unordered("<=", score, limits), ir.IntType(ids.lanes))
        ids.store_one(builder.zext(near, ids.number), bits, index(r))


@emitted(emit_near_tile)
def near_tile(
    codes: Array, first: int, facts: Array, panel: Array, shifts: Array, facts_of_rows: Array, bits: Array
) -> None:
    """Mark which of ``NEAR_ROWS`` centres, from ``first`` on, may be within the limit of each column of a panel.

    Centres and rows are rounded to bytes, four in a word. Bytes of centres, in ``codes``, are unsigned; bytes of rows,
    in the columns of ``panel``, are signed; ``shifts`` correct the product for the difference. ``facts`` are (scale,
    norm, -error, -length) of the centres, ``facts_of_rows`` are (steps, lengths, errors, limits). The squared distance
    without ‖x‖² is norm + scale · step · product, and rounding to bytes changes it by at most the row's length times
    the centre's error plus the row's error times the centre's length. ``bits`` holds a bit mask for each centre with
    one bit for each column. The bit is set unless the lower bound exceeds the limit; so it is set if the bound is NaN.
    """
    some = slice(first, first + NEAR_ROWS)
    ours = codes[some].view(np.uint8).astype(np.int64)
    theirs = np.ascontiguousarray(panel.T).view(np.int8).astype(np.int64)
    steps, lengths, errors, limits = facts_of_rows
    scales, norms, error, length = facts[some, :, np.newaxis].transpose(1, 0, 2)
    with np.errstate(over="ignore", invalid="ignore"):
        products = (ours @ theirs.T + shifts).astype(np.float32) * steps
        scores = products * scales + norms + lengths * error + errors * length
    bits[:] = [sum(1 << column for column in np.flatnonzero(~(score > limits))) for score in scores]
