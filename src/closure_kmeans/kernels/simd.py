"""LLVM operations that Numba does not expose: prefetch, and products of tiles that stay in vector registers.

Each is a Python function that defines the operation. In compiled code its emitter writes LLVM instructions instead.
Arrays must be C-contiguous, except those of ``prefetch``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from closure_kmeans.kernels.emit import TILE_ROWS, Array, Emitter, emitted, typed_by

# Arguments of ``llvm.prefetch``: for reading, into the nearest cache, data.
READ, NEAREST, DATA = 0, 3, 1


def type_widen(_context: Any, value: Any) -> Any:
    """Emit the shifts for float16, nothing for other numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if value != types.uint16:
            return arguments[0]
        word = ir.IntType(32)
        bits = builder.zext(arguments[0], word)
        magnitude = builder.shl(builder.and_(bits, word(0x7FFF)), word(13))
        sign = builder.shl(builder.and_(bits, word(0x8000)), word(16))
        scaled = builder.bitcast(builder.or_(magnitude, sign), ir.FloatType())
        return builder.fmul(scaled, ir.FloatType()(2.0**112))

    return (types.float32 if value == types.uint16 else value)(value), generate


@typed_by(type_widen)
def widen(value: Any) -> Any:
    """Convert a stored value to a number. float16 is stored as its bits: Numba has no float16."""
    if not isinstance(value, np.uint16):
        return value
    magnitude = (np.uint32(value) & np.uint32(0x7FFF)) << np.uint32(13)
    sign = (np.uint32(value) & np.uint32(0x8000)) << np.uint32(16)
    # The exponent biases differ by 112. Multiplying by 2^112 corrects this for subnormal numbers, too.
    return np.uint32(magnitude | sign).view(np.float32) * np.float32(2.0**112)


def emit_prefetch(code: Emitter, rows: Any, row: Any, byte: Any) -> None:
    """Emit ``llvm.prefetch`` for the address of the byte."""
    builder, pointer, flag = code.builder, ir.PointerType(), ir.IntType(32)
    begin = cgutils.get_item_pointer(code.context, builder, code.kind, rows, [row, row.type(0)])  # rows may be strided
    address = builder.gep(begin, [byte], source_etype=ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [address, flag(READ), flag(NEAREST), flag(DATA)])


@emitted(emit_prefetch)
def prefetch(rows: Any, i: int, byte: int) -> None:
    """Prefetch the cache line that holds a byte of ``rows[i]``."""


def emit_turn_rows(code: Emitter, rows: Any, panel: Any) -> None:
    """Emit the transpose of one square at a time, in registers: swap blocks of size one, two, four and so on."""
    builder, vectors, lanes = code.builder, code.vectors, code.vectors.lanes
    n_features = builder.extract_value(panel.shape, 0)
    width = code.index(lanes)
    in_squares = builder.mul(builder.udiv(n_features, width), width)

    def place(r: int, t: Any) -> Any:
        return builder.add(builder.mul(code.index(r), n_features), t)

    with code.loop(code.index(0), in_squares, lanes) as (first, _):
        square = [vectors.load(rows, place(r, first)) for r in range(lanes)]
        size = 1
        while size < lanes:
            for r in range(lanes):
                if not r & size:
                    upper, lower = square[r], square[r + size]
                    # In the shuffle mask, indices from ``lanes`` on refer to the second vector.
                    ours = [c + (lanes - size) * bool(c & size) for c in range(lanes)]
                    theirs = [c + (lanes if c & size else size) for c in range(lanes)]
                    square[r], square[r + size] = vectors.pick(upper, lower, ours), vectors.pick(upper, lower, theirs)
            size *= 2
        for t, column in enumerate(square):
            vectors.store(column, panel, builder.mul(code.add(first, t), width))
    with code.loop(in_squares, n_features, 1) as (t, _):
        for r in range(lanes):
            vectors.store_one(vectors.load_one(rows, place(r, t)), panel, code.add(builder.mul(t, width), r))


@emitted(emit_turn_rows)
def turn_rows(rows: Array, panel: Array) -> None:
    """Transpose one vector's worth of rows into the columns of a panel."""
    panel[:] = rows.T


def emit_score_tile(
    code: Emitter,
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
) -> None:
    """Emit a tile product whose sums stay in registers, followed by the scores."""
    builder, vectors, ids, index = code.builder, code.vectors, code.ids, code.index
    sums = code.products(rows, index(0), panel)
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


@emitted(emit_score_tile)
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


def emit_take_lowest(code: Emitter, best: Any, choice: Any, lowest: Any, chosen: Any) -> None:
    """Emit a horizontal minimum of scores, and one of the choices that have it."""
    builder, vectors, ids = code.builder, code.vectors, code.ids
    for r in range(TILE_ROWS):
        row, line = code.index(r), code.index(r * vectors.lanes)
        scores = vectors.load(best, line)
        score = vectors.lowest(scores, builder.fcmp_ordered)
        is_lowest = builder.fcmp_ordered("==", scores, vectors.spread(score))
        choices = builder.select(is_lowest, ids.load(choice, line), ids.constant(np.iinfo(np.int32).max))
        vectors.store_one(score, lowest, row)
        ids.store_one(ids.lowest(choices, builder.icmp_signed), chosen, row)


@emitted(emit_take_lowest)
def take_lowest(best: Array, choice: Array, lowest: Array, chosen: Array) -> None:
    """Lowest score in each row of a tile, and its choice; the smallest choice of equal scores."""
    lowest[:] = best.min(axis=1)
    chosen[:] = np.where(best == lowest[:, np.newaxis], choice, np.iinfo(np.int32).max).min(axis=1)
